"""Reads reports and logs for notebook 02: rows for tables, and what they say."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rn50lib import resnet as network
from rn50lib.errors import UserError
from workshop.expected import Expected

if TYPE_CHECKING:
    from workshop.runs import Run
    from workshop.session import Session

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
    rows.append(["env", f"{len(report['env'])} entries", "machine, versions, settings and reasons"])
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


def full_run(report: dict[str, Any], epochs: int) -> dict[str, float | None]:
    """The recorded results of the full run on the road signs, by key, with this report's top-1
    where it is that of such a run: ResNet-50 through all `epochs`."""
    metrics, dtype = report["metrics"], report["env"]["axes"]["dtype"]["value"]
    whole = (report["model"], len(metrics["val.top1"])) == ("resnet50", epochs)
    yours: dict[str, float | None] = {"roadsigns.untrained.top1": None}
    for precision in ("float32", "bfloat16"):
        same = whole and dtype == precision
        key = f"roadsigns.resnet50.{precision}"
        yours[f"{key}.top1"] = metrics["val.top1"][-1] if same else None
        yours[f"{key}.minutes"] = None
    return yours


def validated(report: dict[str, Any], pictures: int) -> int:
    """How many of the pictures a run validated on: profile ci takes the first ones alone."""
    axes = report["env"]["axes"]
    if "benchmark_iters" in axes:
        pictures = min(pictures, axes["benchmark_iters"]["value"] * axes["batch_size"]["value"])
    return pictures


# --- speed ----------------------------------------------------------------------------------------

PUBLISHED_BATCH = 208  # of one V100 in FP16, which has 16 GB


def speed_batch(session: Session) -> int:
    """The batch at which speed is measured: the published one on a GPU with memory enough."""
    memory = min((gpu.memory for gpu in session.machine.gpus), default=0)
    return session.pick(cpu=32, gpu=PUBLISHED_BATCH if memory > 15e9 else 64)


def beside_published(
    report: dict[str, Any], results: Mapping[str, Expected]
) -> tuple[list[list[Any]], list[str]]:
    """(rows, columns): a run's speed and work beside those of one V100 as published."""
    flops, axes = report["env"]["model_flops"], report["env"]["axes"]
    dtype, pixels, batch = (axes[name]["value"] for name in ("dtype", "image_shape", "batch_size"))
    ips = report["metrics"]["train.total_ips"][-1]
    rows = [[f"yours, {report['model']}", dtype, pixels, batch, ips, flops["per_image"] / 1e9,
             flops["per_second"] / 1e12, "this machine"]]  # fmt: skip
    work = network.resnet(50).train_flops(224)
    for precision, images in (("fp16", PUBLISHED_BATCH), ("fp32", 96)):
        item = results[f"published.v100.1gpu.{precision}.ips"]
        rows.append(["one V100, resnet50", precision.upper(), 224, images, item.value, work / 1e9,
                     item.value * work / 1e12, item.provenance])  # fmt: skip
    columns = ["training", "precision", "pixels", "batch", "img/s", "GFLOP per image"]
    return rows, [*columns, "TFLOP per second", "from"]


def shares(report: dict[str, Any]) -> dict[str, float]:
    """Per cent of the loop's seconds by part: step, data, loop."""
    seconds = report["env"]["seconds"]
    return {part: 100 * value / sum(seconds.values()) for part, value in seconds.items()}


def verdict(times: float, profile: str) -> str:
    """What it means that the input alone is `times` as fast as the model alone."""
    if profile == "ci":
        return "Under profile ci the runs are cut to a few steps: this says nothing."
    if times > 1.2:
        return "The time goes into the model: a faster input would gain little."
    if times < 1 / 1.2:
        return "The time goes into the input: a faster processor for the model would gain little."
    return "The time goes into both alike: input and model are about equally fast."
