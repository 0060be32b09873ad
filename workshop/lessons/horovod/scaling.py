"""Weak scaling, for notebook 03: what a step loses, and what would win it back; the bare
all-reduce, and runs beside each other. All times are seconds per step.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50lib.comm.measure import MB, SIZES, Measured
from workshop import output
from workshop.lessons.figures import Lines, by_step, readings, stacked

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
        return (
            f"One worker takes {one:.0f} ms for {self.batch} images, {self.workers} take"
            f" {many:.0f} ms for {self.workers * self.batch}: {self.speedup:.2f} times the speed,"
            f" an efficiency of {100 * self.efficiency:.0f} %. The parts: {listed} ="
            f" {1000 * sum(self.parts.values()):.0f} ms."
        )


def explain(
    one: float,
    many: float,
    workers: int,
    batch: int,
    timeline: Mapping[str, float] | None = None,
) -> Weak:
    """The measured steps with their explanation; `timeline` is `rn50lib.timeline.mean_parts`.

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


def published_rows(results: Mapping[str, Any]) -> list[list[Any]]:
    """(GPUs, precision, img/s, efficiency) of the published V100 runs, those there are."""
    rows = []
    for precision in ("fp16", "fp32"):
        for gpus in (1, 4, 8):
            key = f"published.v100.{gpus}gpu.{precision}.ips"
            first = results.get(f"published.v100.1gpu.{precision}.ips")
            if key in results and first is not None:
                ips = results[key].value
                rows.append([gpus, precision.upper(), ips, ips / (gpus * first.value)])
    return rows


def figure(found: Weak) -> tuple[Figure, str]:
    """The step of one worker above the step of many, in parts that add up to it."""
    one = {PARTS["alone"]: 1000 * found.one}
    many = {PARTS[name]: 1000 * seconds for name, seconds in found.parts.items()}
    bars = {"1 worker": one, f"{found.workers} workers": many}
    title = f"A step of {found.batch} images per worker"
    return stacked(bars, "milliseconds", title), found.sentence()


# --- runs -----------------------------------------------------------------------------------------


def difference(one: Lines, many: Lines) -> str:
    """How far the losses of two runs of the same batches are apart."""
    here, there = by_step(one), by_step(many)
    both = [place for place in here if place in there]
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


# --- the all-reduce -------------------------------------------------------------------------------


def measure_allreduce(workers: int, quick: bool = False) -> Measured:
    """What all-reduces of many sizes take between `workers` processes.

    `quick` leaves out the large ones. Raises UserError where the workers cannot be started.
    """
    from rn50lib.tools.doctor import allreduce

    slot = output.Slot()
    slot.line("the workers are starting")
    lines: Any = output.LineStream(slot)
    sizes = tuple(size for size in SIZES if size <= (4 * MB if quick else max(SIZES)))
    with redirect_stderr(lines):
        found, _ = allreduce.run(workers, sizes=sizes, repeats=5 if quick else 10)
    return found
