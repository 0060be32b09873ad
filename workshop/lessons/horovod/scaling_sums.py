"""The arithmetic of weak scaling for notebook 03: what a step loses, and what would win it back.

All times are seconds per step. `Weak` holds measurements; nothing here measures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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


def beside(
    reports: Mapping[str, Mapping[str, Any]], epoch: int | None = None
) -> tuple[list[list[Any]], list[str]]:
    """(rows, columns) of reports beside each other: who trained what, and the metrics of an epoch.

    `epoch` counts from 1, None is the last. A metric that none of them has is left out.
    """
    at = -1 if epoch is None else epoch - 1
    rows: list[list[Any]] = [["model", *(r["model"] for r in reports.values())]]
    rows.append(["ngpus: workers", *(r["ngpus"] for r in reports.values())])
    for axis in ("backend", "comm", "batch_size", "loader", "dtype"):
        told = [r["env"]["axes"].get(axis, {}).get("value") for r in reports.values()]
        rows.append([axis, *map(str, told)])
    keys: Sequence[str] = list(
        dict.fromkeys(key for report in reports.values() for key in report["metrics"])
    )
    for key in keys:
        values = [r["metrics"].get(key) for r in reports.values()]
        chosen = [value[at] if value else None for value in values]
        if any(value is not None for value in chosen):
            rows.append([key, *chosen])
    told = [r["env"].get("weights_apart") for r in reports.values()]
    if any(value is not None for value in told):
        rows.append(["largest difference between the ranks' weights", *told])
    return rows, ["last epoch" if epoch is None else f"epoch {epoch}", *reports]
