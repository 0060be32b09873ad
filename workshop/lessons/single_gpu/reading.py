"""Reads reports, logs and source for notebook 02: rows for tables, and what a function calls."""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rn50lib.errors import UserError

if TYPE_CHECKING:
    from workshop.runs import Run

MEANING = {
    "model": "the network",
    "ngpus": "workers, one a GPU; without GPUs, processes",
    "total_duration": "seconds, start of the pipelines and checkpoints included",
    "cmd": "the command, word by word",
    "train.top1": "training images whose label is the first guess, per cent",
    "train.top5": "training images whose label is among the first five, per cent",
    "train.loss": "cross-entropy, nats: the mean over the epoch",
    "train.time": "seconds per iteration, the first one of the epoch left out",
    "train.total_ips": "images per second: global batch / train.time",
    "val.top1": "the same five for the validation images",
}


def report_rows(report: dict[str, Any]) -> list[list[Any]]:
    """(key, value of the last epoch, what it means) in the report's own order."""
    rows: list[list[Any]] = []
    for key in ("model", "ngpus", "total_duration", "cmd"):
        value = report[key]
        shown = f"{len(value)} words" if isinstance(value, list) else value
        rows.append([key, shown, MEANING[key]])
    for key, values in report["metrics"].items():
        rows.append([f"metrics · {key}", values[-1], MEANING.get(key, "")])
    rows.append(["env", f"{len(report['env'])} entries", "everything that the reference's has not"])
    return rows


def axes_rows(report: dict[str, Any], names: Sequence[str]) -> list[list[Any]]:
    """(axis, value, why) for those of `names` that the run had."""
    axes = report["env"]["axes"]
    there = [name for name in names if name in axes]
    values = {name: axes[name]["value"] for name in there}
    return [
        [name, f"{value:g}" if isinstance(value, float) else str(value), axes[name]["reason"]]
        for name, value in values.items()
    ]


def iteration_rows(report: dict[str, Any], steps: int) -> list[list[Any]]:
    """(epoch, iterations that are timed, seconds per iteration, images per second) of training."""
    metrics = report["metrics"]
    both = zip(metrics["train.time"], metrics["train.total_ips"], strict=True)
    return [[epoch, steps - 1, time, ips] for epoch, (time, ips) in enumerate(both, 1)]


def first_iterations(report: dict[str, Any], steps: int) -> float:
    """Seconds that the first iterations of all epochs took: what `train.time` leaves out."""
    times = [time for time in report["metrics"]["train.time"] if time is not None]
    return max(0.0, sum(report["env"]["seconds"].values()) - sum(times) * (steps - 1))


def input_speed(run: Run) -> float:
    """Images per second of a finished `test_io` run, its last epoch. Raises UserError without."""
    found = re.findall(r"^epoch \d+: ([0-9.]+) img/s", run.log, re.MULTILINE)
    if not found:
        raise UserError(f"the run in {run.dir} measured no input speed: was test_io given?")
    return float(found[-1])


def calls(function: Any) -> list[str]:
    """The names that a function calls, in the source's order: `loss.backward()` is "backward"."""
    from workshop.source import find

    found = []
    for node in ast.walk(ast.parse(textwrap.dedent(find(function)[3]))):
        if isinstance(node, ast.Call):
            target = node.func
            name = getattr(target, "attr", getattr(target, "id", None))
            if name is not None:
                found.append((node.lineno, node.col_offset, name))
    return [name for _, _, name in sorted(found)]
