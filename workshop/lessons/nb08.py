"""Notebook 08: predictions for more GPUs, next to the published rows.

Compute comes from the row of one GPU; bandwidths, latencies and buckets have sources and are never
fitted. Rows of images per second cannot show why a step gets longer, so each reading
attributes all of the loss to one cause, with one parameter fitted to the rows with few GPUs:

- "stragglers": the step times of the GPUs vary, and all wait for the slowest;
- "communication": nothing overlaps, and the links reach only a share of their bandwidth.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rn50.published import Series, load
from rn50.scaling import Cluster, Training, links, predict

NETWORK = "nvlink+100g"  # hosts of 8 GPUs joined by NVLink, with 100 Gbit/s between them


def training(series: Series) -> Training:
    """Return the training on one GPU, from its published row."""
    return Training(series.ips[1], series.batch, series.gradient_bytes)


def cluster(series: Series) -> Cluster:
    """Return the hosts of the publication."""
    return Cluster(*links.parse(series.network), gpus_per_host=series.gpus_per_host)


def with_noise(cluster: Cluster, noise: float) -> Cluster:
    """Return the cluster with stragglers: `noise` is a step's relative standard deviation."""
    return replace(cluster, noise=noise)


def with_share(cluster: Cluster, share: float) -> Cluster:
    """Return the cluster with a share of its bandwidth and no overlap."""
    between = cluster.between.slower(share) if cluster.between else None
    return replace(
        cluster, local=cluster.local.slower(share), between=between, noise=0.0, overlap=False
    )


@dataclass(frozen=True)
class Reading:
    """A cause to which all of the lost time is attributed, with the range of its parameter."""

    name: str
    enter: Callable[[Cluster, float], Cluster]
    low: float
    high: float

    def ips(self, training: Training, cluster: Cluster, value: float, n: int) -> float:
        """Return the images per second of n GPUs."""
        return predict(training, self.enter(cluster, value), n).ips


class Amdahl(Reading):
    """Amdahl's law: a share of the work does not get faster."""

    def ips(self, training: Training, cluster: Cluster, value: float, n: int) -> float:
        """Return the images per second of n GPUs."""
        return training.compute_ips / (value + (1 - value) / n)


READINGS = {
    reading.name: reading
    for reading in (
        Reading("stragglers", with_noise, 0.0, 1.0),
        Reading("communication", with_share, 1e-4, 1.0),
    )
}
FITTED = (*READINGS.values(), Amdahl("Amdahl", with_noise, 0.0, 1.0))


@functools.cache
def parameter(name: str, precision: str, reading: Reading) -> float:
    """Return a reading's parameter for a series, fitted to its rows or to those of another series.

    The fit minimises the squared logarithm of predicted over measured speed. It scans the range,
    densely near the low end, then ever more finely around the best point.
    """
    series = load()[name, precision]
    if series.parameters_of:
        return parameter(*series.parameters_of, reading)
    of = training(series), cluster(series)
    rows = [(n, series.ips[n]) for n in series.fit_on if n > 1]

    def loss(value: float) -> float:
        return sum(math.log(reading.ips(*of, value, n) / ips) ** 2 for n, ips in rows)

    low, high = reading.low, reading.high
    points = np.array([low, *(low + (high - low) * np.logspace(-6, 0, 241))])
    for _ in range(12):
        best = int(np.argmin([loss(float(point)) for point in points]))
        points = np.linspace(points[max(0, best - 1)], points[min(len(points) - 1, best + 1)], 21)
    return min((low, float(points[10])), key=loss)


@dataclass(frozen=True)
class Outcome:
    """A published row and its predictions: images per second by the name of the reading."""

    series: Series
    gpus: int
    published: float
    predicted: dict[str, float]
    fitted: bool

    def error(self, name: str) -> float:
        """Return the error in per cent: 2 is 2% too fast."""
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
            predicted["wires only"] = predict(*of, n).ips
            found.append(Outcome(series, n, series.ips[n], predicted, n in series.fit_on))
    return found


def held_out(*names: str) -> list[list[Any]]:
    """Return a row per published row that was not fitted: name, GPUs, img/s, error in % by name."""
    return [
        [f"{o.series.name} {o.series.precision}", o.gpus, o.published, *map(o.error, names)]
        for o in outcomes() if not o.fitted
    ]  # fmt: skip


def efficiency(
    gpus: int,
    reading: str,
    batch: int | None = None,
    ips: float | None = None,
    network: str = NETWORK,
) -> float:
    """Return the predicted share of perfect speed, from 0 to 1, with float16 gradients.

    Args:
        gpus: How many GPUs, in hosts of 8.
        reading: The cause of the loss; its parameter is the one fitted to the DGX-1's FP16 rows.
        batch: Images per GPU; by default the DGX-1's.
        ips: Images per second of one GPU with that batch; by default the DGX-1's.
        network: Within and between the hosts, as for `rn50 scale`.
    """
    series = load()["DGX-1", "mixed"]
    cause = READINGS[reading]
    value = parameter("DGX-1", "mixed", cause)
    one = replace(training(series), batch=batch or series.batch, compute_ips=ips or series.ips[1])
    return predict(one, cause.enter(Cluster(*links.parse(network)), value), gpus).efficiency
