"""Weak scaling, for notebook 03: what a step loses, and what would win it back; and runs beside
each other. All times are seconds per step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from workshop.lessons.figures import Lines, by_step, last_loss, readings, stacked
from workshop.session import Session

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {  # of a step with several workers, in the order in which they are drawn
    "alone": "computing, as a worker alone does",
    "slower": "computing is slower beside the others",
    "negotiation": "waiting for the other workers",
    "copy": "copies into and out of the fusion buffer",
    "allreduce": "the all-reduce, as far as it is exposed",
    "exchange": "the exchange and all that it costs",
    "rest": "not explained",
}
NOISE = 0.05  # of a step: a part may be that much below 0
FEW_READINGS = 4  # of a curve: fewer show nothing


@dataclass(frozen=True)
class Weak:
    """Steps of one worker and of `workers`, each with `batch` images.

    `parts` (names of PARTS) add up to `many`. Seconds per step.
    """

    workers: int
    batch: int
    one: float
    many: float
    parts: dict[str, float] = field(default_factory=dict)

    @property
    def efficiency(self) -> float:
        """Speed of `workers` over `workers` times the speed of one: 1 is perfect."""
        return self.one / self.many

    @property
    def speedup(self) -> float:
        return self.workers * self.efficiency

    @property
    def per_image(self) -> float:
        """Seconds that a worker alone computes per image."""
        return self.one / self.batch

    @property
    def overhead(self) -> float:
        """Seconds per step that several workers take longer than one."""
        return max(0.0, self.many - self.one)

    def sentence(self) -> str:
        """The sum, in words."""
        one, many = 1000 * self.one, 1000 * self.many
        numbers = [f"{1000 * seconds:.0f}" for seconds in self.parts.values()]
        listed = " + ".join(numbers).replace("+ -", "− ")
        disturbed = ""
        if min(self.parts.values()) < -NOISE * self.many:
            disturbed = (
                " A part that is clearly negative says that the machine was not equally quiet in"
                " the two runs: measure again."
            )
        return (
            f"One worker takes {one:.0f} ms for {self.batch} images, {self.workers} take"
            f" {many:.0f} ms for {self.workers * self.batch}: {self.speedup:.2f} times the speed,"
            f" an efficiency of {100 * self.efficiency:.0f} %. The parts: {listed} ="
            f" {1000 * sum(self.parts.values()):.0f} ms.{disturbed}"
        )


def explain(
    one: float,
    many: float,
    workers: int,
    batch: int,
    timeline: Mapping[str, float] | None = None,
) -> Weak:
    """The measured steps with their explanation; `timeline` is what `timeline.mean_parts` gives.

    Its computation, less what a worker alone takes, is what computing beside the others costs. The
    difference between its mean step and the measured one is left as "rest": the two do not count
    the same steps. Without a timeline all that is lost is "exchange".
    """
    if timeline is None:
        return Weak(workers, batch, one, many, {"alone": one, "exchange": many - one})
    parts = {"alone": one, "slower": timeline["compute"] - one}
    parts |= {name: timeline[name] for name in ("negotiation", "copy", "allreduce")}
    parts["rest"] = many - sum(parts.values())
    return Weak(workers, batch, one, many, parts)


def efficiency(batch: float, per_image: float, overhead: float) -> float:
    """Weak-scaling efficiency if a step loses `overhead` seconds whatever its batch."""
    work = batch * per_image
    return work / (work + overhead)


def wanted_batch(per_image: float, overhead: float, goal: float) -> int:
    """The smallest batch per worker whose efficiency is at least `goal` (below 1).

    From work / (work + overhead) = goal follows work = overhead * goal / (1 - goal).
    """
    return max(1, math.ceil(overhead * goal / (1 - goal) / per_image - 1e-9))


def figure(found: Weak) -> tuple[Figure, str]:
    """The step of one worker above the step of many, in parts that add up to it."""
    one = {PARTS["alone"]: 1000 * found.one}
    missing = sum(seconds for seconds in found.parts.values() if seconds < 0)
    shown = {name: max(0.0, seconds) for name, seconds in found.parts.items()}
    shown["alone"] += missing  # a negative part cannot be drawn
    many = {PARTS[name]: 1000 * seconds for name, seconds in shown.items()}
    bars = {"1 worker": one, f"{found.workers} workers": many}
    title = f"A step of {found.batch} images per worker"
    return stacked(bars, "milliseconds", title), found.sentence()


# --- runs -----------------------------------------------------------------------------------------


def difference(one: Lines, many: Lines) -> str:
    """How far the losses of two runs of the same batches are apart."""
    here, there = by_step(one), by_step(many)
    both = [place for place in here if place in there]
    if len(both) < FEW_READINGS:
        return f"{len(both)} readings are too few to compare the curves."
    apart = [abs(here[place] - there[place]) for place in both]
    losses = readings(one)[1]
    return (
        f"At {len(both)} readings the losses differ by {np.mean(apart):.3f} on average, while"
        f" training changes the loss by {abs(losses[0] - losses[-1]):.2f}."
    )


def beside(reports: Mapping[str, Mapping[str, Any]]) -> tuple[list[list[Any]], list[str]]:
    """(rows, columns) of reports beside each other: who trained what, and the metrics of the last
    epoch. A metric that none of them has is left out."""
    rows: list[list[Any]] = [["model", *(r["model"] for r in reports.values())]]
    rows.append(["ngpus: workers", *(r["ngpus"] for r in reports.values())])
    for axis in ("backend", "comm", "batch_size", "loader", "dtype"):
        values = [r["env"]["axes"].get(axis, {}).get("value") for r in reports.values()]
        rows.append([axis, *map(str, values)])
    for key in dict.fromkeys(key for report in reports.values() for key in report["metrics"]):
        lists = [r["metrics"].get(key) for r in reports.values()]
        last = [values[-1] if values else None for values in lists]
        if any(value is not None for value in last):
            rows.append([key, *last])
    apart = [r["env"].get("weights_apart") for r in reports.values()]
    if any(value is not None for value in apart):
        rows.append(["largest difference between the ranks' weights", *apart])
    return rows, ["last epoch", *reports]


def recorded_losses(
    session: Session, one: Mapping[str, Any], many: Mapping[str, Any], epochs: int, workers: int
) -> dict[str, float | None]:
    """The recorded losses of one worker and of two by key, with these where they compare."""
    full = session.profile != "ci" and (epochs, workers) == (3, 2)
    keys = {"horovod.one_worker.loss": one, "horovod.two_workers.loss": many}
    return {k: r["metrics"]["train.loss"][-1] if full else None for k, r in keys.items()}


def recorded_batches(session: Session, runs: Mapping[str, Lines]) -> dict[str, float | None]:
    """The recorded losses of the four runs with larger batches by key, with these beside them where
    they ran; the two that a warm-up makes different are noted."""
    names = ("small", "unscaled", "no_warmup", "warmup")
    ends = dict(zip(names, map(last_loss, runs.values()), strict=False))
    for name, what in (("no_warmup", "without"), ("warmup", "with")):
        if name in ends:
            text = f"training loss at batch 128 {what} warm-up"
            session.note(f"{name}_loss", ends[name], "", text)
    return {f"horovod.large_batch.{name}": ends.get(name) for name in names}


def at_speed(session: Session, workers: int, batch: int, steps: int) -> dict[str, Any]:
    """What is run to measure speed: ResNet-50 on random pictures, with a share of the cores."""
    common: dict[str, Any] = {
        "loader": "synthetic", "num_classes": 12, "num_epochs": 1, "no_val": True,
        "no_metrics": True, "data_nthreads": 0,
    }  # fmt: skip
    if session.profile == "ci":  # small, but with steps enough to look into
        return dict(
            network="tiny", batch_size=4, image_shape=32, benchmark_iters=6, threads=1,
            profile="cpu", **common,
        )  # fmt: skip
    return dict(
        num_layers=50, batch_size=batch, image_shape=session.pick(cpu=64, gpu=224),
        benchmark_iters=steps, disp_batches=5, threads=max(1, session.machine.cores // workers),
        **common,
    )  # fmt: skip
