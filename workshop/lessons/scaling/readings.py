"""Why published rows lose speed: the model and rival readings, each with one fitted number.

Compute comes from the row of one GPU; bandwidths, latencies and buckets have sources and are never
fitted. No source says how much the step times of the workers vary, so `noise` is the number of the
model. Rows of images per second cannot say why a step gets longer, so two rivals are fitted alike:

- "communication": no stragglers, no overlap, and the links give only a share of their bandwidth;
- "shared input": no stragglers, and every further worker on a host costs each image some time.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from rn50.published import Series, load
from rn50.scaling import Cluster, Training, links, predict


def training(series: Series) -> Training:
    """Return what one GPU does, by the row of one GPU."""
    return Training(series.ips[1], series.batch, series.gradient_bytes)


def cluster(series: Series) -> Cluster:
    """Return the hosts of the publication."""
    return Cluster(*links.parse(series.network), gpus_per_host=series.gpus_per_host)


def with_share(cluster: Cluster, share: float) -> Cluster:
    """Return the cluster with a share of its bandwidth and nothing hidden."""
    between = cluster.between.slower(share) if cluster.between else None
    return replace(
        cluster, local=cluster.local.slower(share), between=between, noise=0.0, overlap=False
    )


@dataclass(frozen=True)
class Reading:
    """A way to explain lost speed by one number, with its range, scale and unit."""

    name: str
    enter: Callable[[Cluster, float], Cluster]
    low: float
    high: float
    scale: float
    unit: str

    def ips(self, training: Training, cluster: Cluster, value: float, n: int) -> float:
        """Return the images per second of n GPUs."""
        return predict(training, self.enter(cluster, value), n).ips

    def describe(self, value: float) -> str:
        """Return the number with its unit: 6.83 % noise."""
        return f"{self.scale * value:.3g} {self.unit}"


class Amdahl(Reading):
    """Amdahl's law: a share of the work does not get faster. With a share of 0 nothing is lost."""

    def ips(self, training: Training, cluster: Cluster, value: float, n: int) -> float:
        """Return the images per second of n GPUs."""
        return training.compute_ips / (value + (1 - value) / n)


def with_noise(cluster: Cluster, noise: float) -> Cluster:
    """Return the cluster with stragglers."""
    return replace(cluster, noise=noise)


def with_contention(cluster: Cluster, seconds: float) -> Cluster:
    """Return the cluster in which every further worker on a host costs each image some time."""
    return replace(cluster, noise=0.0, contention_s=seconds)


MODEL = Reading("stragglers", with_noise, 0.0, 1.0, 100, "% noise of a step's time")
READINGS = (
    MODEL,
    Reading("communication", with_share, 1e-4, 1.0, 100, "% of the bandwidth"),
    Reading("shared input", with_contention, 0.0, 1e-2, 1e6, "us per image and further GPU"),
)
FITTED = (*READINGS, Amdahl("Amdahl", with_noise, 0.0, 1.0, 100, "% serial"))
NAMES = (*(reading.name for reading in FITTED), "perfect")


@functools.cache
def parameter(name: str, precision: str, reading: Reading) -> float:
    """Return the reading's number for a series: fitted to its rows, or taken from another one.

    The fit has the least squared logarithm of predicted over measured speed. It scans the range,
    densely near the low end, and then ever finer around the best point.
    """
    series = load()[name, precision]
    if series.parameters_of:
        return parameter(*series.parameters_of, reading)
    of = training(series), cluster(series)
    rows = [(n, series.ips[n]) for n in series.fit_on if n > 1]

    def wrong(value: float) -> float:
        return sum(math.log(reading.ips(*of, value, n) / ips) ** 2 for n, ips in rows)

    low, high = reading.low, reading.high
    points = np.array([low, *(low + (high - low) * np.logspace(-6, 0, 241))])
    for _ in range(12):
        best = int(np.argmin([wrong(float(point)) for point in points]))
        points = np.linspace(points[max(0, best - 1)], points[min(len(points) - 1, best + 1)], 21)
    return min((low, float(points[10])), key=wrong)


@dataclass(frozen=True)
class Outcome:
    """A published row and what was predicted for it: images per second by name of NAMES."""

    series: Series
    gpus: int
    published: float
    predicted: dict[str, float]
    fitted: bool

    def error(self, name: str) -> float:
        """Return the error in per cent: 2 is 2 % too fast."""
        return 100 * (self.predicted[name] / self.published - 1)


def outcomes() -> list[Outcome]:
    """Return every published row of more than one GPU."""
    found = []
    for key, series in load().items():
        of = training(series), cluster(series)
        numbers = {reading: parameter(*key, reading) for reading in FITTED}
        for n in [n for n in series.ips if n > 1]:
            predicted = {r.name: r.ips(*of, number, n) for r, number in numbers.items()}
            predicted["perfect"] = n * series.ips[1]
            found.append(Outcome(series, n, series.ips[n], predicted, n in series.fit_on))
    return found


def verdict() -> str:
    """Return how large the errors of the held-out rows are, by name."""
    rows = [row for row in outcomes() if not row.fitted]
    errors = []
    for name in NAMES:
        sizes = [abs(row.error(name)) for row in rows]
        errors.append(f"{name} {np.mean(sizes):.1f} % (at most {max(sizes):.1f} %)")
    return f"Mean error of the {len(rows)} held-out rows: {', '.join(errors)}."


def cannot_tell() -> str:
    """Return what rows of images per second leave open."""
    rows = [row for row in outcomes() if row.fitted]
    worst = {r.name: max(abs(row.error(r.name)) for row in rows) for r in READINGS}
    errors = ", ".join(f"{name} {error:.1f} %" for name, error in worst.items())
    return (
        "The rows do not show why a step gets longer. An exchange that is not hidden, CPUs that"
        " several GPUs share, and workers that wait for the slowest all have this effect. Each"
        " reading has one number for it, and its largest error on the rows it was fitted to is:"
        f" {errors}. nccl-tests measure the exchange and `rn50 run --test-io` the input; with both"
        " known, only the stragglers are left to explain."
    )
