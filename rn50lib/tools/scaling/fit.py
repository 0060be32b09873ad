"""Calibration: one free number per precision, and the naive models to compare with.

Compute comes from the row of one GPU. Bandwidths, latencies and buckets have sources (`links`,
`model`) and are never fitted. What no source gives is how much the step times of the workers vary:
so `noise` is the free parameter of the model, reading "stragglers" below.

A few rows of images per second cannot say why a step gets longer, so there are two rival readings
of the same rows, with one free parameter each. They are fitted alike and shown beside the model:

- "communication": all workers take the same time, the exchange is not overlapped at all, and the
  links give only a share of their bandwidth;
- "shared input": all workers take the same time, and every further worker on a host costs each
  image some of the host's time.

The fit has the least squared logarithm of predicted over measured speed, over all rows with more
than one GPU, and the parameter stays in its range. A parameter is carried to other GPUs unchanged.

For published rows of MXNet these facts are taken as given: in mixed precision its weights and with
them its gradients are float16, 2 bytes a number (4 in FP32 and TF32); hosts of 8 GPUs; V100s joined
by `nvlink`, A100s by `nvlink3`; 100 Gbit/s between hosts where the source names nothing else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from rn50lib.tools.scaling.model import Cluster, Training, predict

Rows = Sequence[tuple[int, float]]  # (GPUs, images per second of all of them)


@dataclass(frozen=True)
class Reading:
    """A way to explain lost speed by one number: where it enters the cluster, its range and unit.

    The number shown is `scale` times the number in the cluster.
    """

    name: str
    field: str
    low: float
    high: float
    overlap: bool
    scale: float
    unit: str

    def enter(self, cluster: Cluster, value: float) -> Cluster:
        """The cluster by this reading, with this value of its parameter."""
        free: dict[str, Any] = {"noise": 0.0, "bandwidth_share": 1.0, "contention_s": 0.0}
        return replace(cluster, overlap=self.overlap, **(free | {self.field: value}))

    def told(self, value: float) -> str:
        """The parameter in words: 6.83 % noise."""
        return f"{self.scale * value:.3g} {self.unit}"


MODEL = Reading("stragglers", "noise", 0.0, 1.0, True, 100, "% noise of a step's time")
RIVALS = (
    Reading("communication", "bandwidth_share", 1e-4, 1.0, False, 100, "% of the bandwidth"),
    Reading("shared input", "contention_s", 0.0, 1e-2, True, 1e6, "us per image and further GPU"),
)
READINGS = (MODEL, *RIVALS)


def fit(reading: Reading, training: Training, cluster: Cluster, rows: Rows) -> float:
    """The value of the reading's parameter for which the rows are predicted best."""

    def wrong(value: float) -> float:
        entered = reading.enter(cluster, value)
        return squares((predict(training, entered, n).ips, ips) for n, ips in rows if n > 1)

    return least(wrong, reading.low, reading.high)


def fit_amdahl(ips: float, rows: Rows) -> float:
    """The serial share of Amdahl's law for which the rows are predicted best."""
    return least(
        lambda serial: squares((amdahl(ips, serial, n), found) for n, found in rows if n > 1), 0, 1
    )


def amdahl(ips: float, serial: float, n: int) -> float:
    """Images per second of n GPUs where `serial` of the work does not get faster."""
    return ips / (serial + (1 - serial) / n)


def perfect(ips: float, n: int) -> float:
    """Images per second if nothing is lost."""
    return n * ips


def squares(pairs: Iterable[tuple[float, float]]) -> float:
    return sum(math.log(predicted / found) ** 2 for predicted, found in pairs)


def least(wrong: Callable[[float], float], low: float, high: float) -> float:
    """Where a function of one number is least, in [low, high]: a scan, then golden sections.

    The scan is dense near `low`, which all ranges here need.
    """
    points = [low, *(low + (high - low) * 10 ** (-6 + 6 * i / 240) for i in range(241))]
    at = min(range(len(points)), key=lambda i: wrong(points[i]))
    a, b = points[max(0, at - 1)], points[min(len(points) - 1, at + 1)]
    shrink = (math.sqrt(5) - 1) / 2
    for _ in range(80):
        left, right = b - shrink * (b - a), a + shrink * (b - a)
        if wrong(left) <= wrong(right):
            b = right
        else:
            a = left
    return min((low, (a + b) / 2), key=wrong)
