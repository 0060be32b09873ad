"""`rn50 benchmark`: rates over numbers of workers and batch sizes, in a file and as tables.

The sweep and its file are those of the reference's `benchmark`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

from data_prep.command_line import converter, whole
from rn50 import compare, description, launch
from rn50 import parser as parsers
from rn50.autoconfig import Given, prepare
from rn50.common import Output, counts, has_key
from rn50.reports import load
from rn50lib.config import Resolved, flag_name, scoped
from rn50lib.errors import TERMINATED, UserError
from rn50lib.files import is_stream
from rn50lib.lifetime import die_with_parent
from rn50lib.report import as_json

# names in a file that are lists here, or a sweep's own; the names of the parsed values
SWEEP = {"n": "workers", "batch_size": "batches", "warmup": "warmup"}


def parse(argv: list[str]) -> tuple[argparse.Namespace, Given]:
    """Return a benchmark's own flags, and the values that every cell has."""
    parser = parsers.config_parser("benchmark")
    parser.usage = "rn50 benchmark [FLAGS] -o FILE"
    parser.conflict_handler = "resolve"  # -n and -b are lists here
    add, several = parser.add_argument_group("sweep").add_argument, converter(counts)
    add("-n", "--n-GPUs", "--ngpus", dest="workers", type=several, metavar="N,N,...",
        help="numbers of workers")  # fmt: skip
    add("-b", "--batch-size", "--batch-sizes", dest="batches", type=several, metavar="N,N,...",
        help="batch sizes per worker")  # fmt: skip
    number: dict[str, Any] = {"type": whole(), "metavar": "N", "default": argparse.SUPPRESS}
    add("-i", "--benchmark-iters", help="iterations per epoch (100)", **number)
    add("-e", "--num-epochs", "--epochs", help="epochs (1)", **number)
    add("-w", "--warmup", type=int, default=0, metavar="N",
        help="first epochs to leave out (0)")  # fmt: skip
    add("-o", "--output", type=Path, help="JSON file to write", required=True)
    add("--dry-run", action="store_true", help="print every cell's run, and stop")
    for _, values in parsers.sources(parser.parse_known_args(argv)[0]):
        for key, value in values.items():
            if name := SWEEP.get(str(key).replace("-", "_")):
                text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
                parser.set_defaults(**{name: text})
    asked, own = parsers.parse_given(parser, argv, SWEEP)
    for name in scoped("untimed"):
        if asked.get(name):
            raise UserError(f"{flag_name(name)} does not work with a benchmark: omit it")
    if asked.get("load_epoch") is not None and not asked.get("only_inference"):
        raise UserError("--load-epoch: speed does not depend on the weights; leave it out")
    if not asked.get("only_inference") and asked.pop("model_prefix", None):
        launch.say("--model-prefix is left out: a benchmark saves no checkpoints")
    asked = {"num_epochs": 1, "benchmark_iters": 100, **asked, "no_metrics": True}
    epochs = asked["num_epochs"]
    if own.warmup >= epochs:
        raise UserError(f"-w {own.warmup} leaves nothing of -e {epochs}: use a larger -e")
    return own, asked


@dataclass
class Cell:
    """One number of workers and one batch size; `reason` says why a figure is missing."""

    n: int
    batch: int
    reason: str | None = None
    report: dict[str, Any] | None = None
    file: Path | None = None  # of the report

    @property
    def title(self) -> str:
        return f"n {self.n}, batch {self.batch}"


def main(argv: list[str]) -> int:
    """Return 0 if every cell was measured, 1 if one failed, 130 after Ctrl-C."""
    die_with_parent()
    own, asked = parse(argv)
    output = Output("-o", own.output, "a benchmark", has_key("metric_keys"))
    if own.dry_run:
        show(own, asked)
        return 0
    cells = sweep(own, asked)
    home = launch.new_run("benchmark")
    runs = plan(cells, asked)
    dropped = min(own.warmup, min(resolved.config.num_epochs for _, resolved in runs) - 1)
    if dropped < own.warmup:
        launch.say(f"profile ci: -w {own.warmup} capped to {dropped}")
    interrupted = 0  # the exit status, if so
    try:
        for cell, resolved in runs:
            measure(cell, resolved, home / f"n{cell.n}-b{cell.batch}")
    except KeyboardInterrupt as error:
        interrupted = error.args[0] if error.args else 130
        for cell in cells:
            cell.reason = cell.reason or (None if cell.report else "interrupted")
    if not any(cell.report for cell in cells) and interrupted:
        launch.say("interrupted before the first cell was measured: nothing is written")
        return interrupted
    planned = [resolved for _, resolved in runs]
    found = contents(cells, planned, dropped, ["rn50", "benchmark", *argv])
    output.write(as_json(found))
    launch.say(compare.text([compare.side_of(found, "this sweep")]))
    if not is_stream(own.output):
        print(own.output)
    return interrupted or int(any(cell.reason for cell in cells))


def sweep(own: argparse.Namespace, asked: Given, remarks: list[str] | None = None) -> list[Cell]:
    """Return the cells of the sweep; `remarks` is that of `prepare`."""
    ns, batches = own.workers, own.batches
    if not (ns and batches):
        chosen = prepare(asked, remarks=remarks).config
        ns, batches = ns or [chosen.n], batches or [chosen.batch_size]
    return [Cell(n, batch) for n in ns for batch in batches]


def in_cell(asked: Given, cell: Cell) -> Given:
    """Return the flags of one cell, without flags for several workers if it has one."""
    left_out = scoped("group") if cell.n == 1 else ()
    kept = {name: value for name, value in asked.items() if name not in left_out}
    return {**kept, "n": cell.n, "batch_size": cell.batch}


def show(own: argparse.Namespace, asked: Given) -> None:
    """Print what each cell would run, then what is missing here."""
    lines, missing = [], list[str]()
    for cell in sweep(own, asked, remarks=[]):
        resolved = prepare(in_cell(asked, cell), remarks=missing)
        config = resolved.config
        lines += [f"{cell.title}:", description.command_line(resolved)]
        lines += [description.arithmetic(config), *resolved.caps]
    if not missing:
        description.check_data(asked, config)
    print("\n".join([*lines, *dict.fromkeys(missing)]))


def plan(cells: list[Cell], asked: Given) -> list[tuple[Cell, Resolved]]:
    """Return the cells that can run here and what each runs. Raise UserError if none can."""
    runs = []
    for cell in cells:
        try:
            runs.append((cell, prepare(in_cell(asked, cell))))
        except UserError as error:
            cell.reason = str(error)
    if not runs:
        raise UserError(cells[0].reason or "")
    launch.say(description.describe(runs[0][1]))
    launch.warn_of_load()
    for cell in cells:
        if cell.reason:
            launch.say(f"{cell.title} is left out: {cell.reason}")
    return runs


def measure(cell: Cell, resolved: Resolved, folder: Path) -> None:
    """Run a cell; fill in its report or its reason. Raise KeyboardInterrupt if the user ends it."""
    launch.say(cell.title)
    folder.mkdir()
    status, failure, _ = launch.run_once(resolved, folder)
    if status in (130, TERMINATED):
        raise KeyboardInterrupt(status)
    if status == 0:
        cell.file = folder / "report.json"
        cell.report = load(cell.file)
        return
    lines = [line.strip() for line in (failure or "").splitlines() if line.strip()]
    lines = lines or [f"the worker exited with status {status}"]
    cell.reason = lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"
    launch.say(f"{cell.title} failed: {cell.reason}")


def contents(
    cells: list[Cell], planned: list[Resolved], dropped: int, command: list[str]
) -> dict[str, Any]:
    """Return a sweep's file: the reference's keys model, ngpus, bs, metric_keys and metrics; `env`.

    A figure is the harmonic mean over a cell's epochs without the first `dropped`, in images per
    second over all workers; null if there is none, with the reason in `env.cells[n][b]`.
    """
    first, reports = planned[0].config, [cell.report for cell in cells if cell.report]
    keys = [] if first.only_inference else ["train.total_ips"]
    keys += [] if first.no_val else ["val.total_ips"]
    metrics: dict[str, dict[str, Any]] = {}
    details: dict[str, dict[str, Any]] = {}
    for cell in cells:
        found = {key: rates(cell, key, dropped) for key in keys}
        if cell.report and None in found.values():
            cell.reason = (
                "an epoch has one iteration, which is not timed: use a larger -i, a smaller -b or"
                " more images"
            )
        figures = {k: harmonic_mean(epochs) if epochs else None for k, epochs in found.items()}
        measured = {key: {"epochs": epochs} for key, epochs in found.items() if epochs}
        entry: dict[str, Any] = {"reason": cell.reason, **measured}
        entry |= {"report": str(cell.file)} if cell.file else {}
        metrics.setdefault(str(cell.n), {})[str(cell.batch)] = figures
        details.setdefault(str(cell.n), {})[str(cell.batch)] = entry
    same = ("machine", "versions", "axes")  # of the last, as one worker has no --comm
    measured_on = {key: reports[-1]["env"].get(key) for key in same if reports}
    caps = dict.fromkeys(line for resolved in planned for line in resolved.caps)
    warm_up = {"untimed_iterations": 1, "epochs_left_out": dropped}  # 1: the first of each epoch
    return {
        "model": reports[0]["model"] if reports else first.to_network().name,
        "ngpus": list(dict.fromkeys(cell.n for cell in cells)),
        "bs": list(dict.fromkeys(cell.batch for cell in cells)),
        "metric_keys": keys,
        "metrics": metrics,
        "env": {
            "cmd": command,
            "warm_up": warm_up,
            "caps": [*caps],
            **measured_on,
            "cells": details,
        },
    }


def rates(cell: Cell, key: str, dropped: int) -> list[float] | None:
    """Return a cell's images per second of each epoch; None if one was not measured."""
    epochs = cell.report["metrics"].get(key, [])[dropped:] if cell.report else []
    return None if not epochs or None in epochs else epochs
