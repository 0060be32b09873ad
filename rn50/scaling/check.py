"""The model against published rows that it was not fitted to: every error, whatever it is.

There is one free number per precision, and naive models stand beside. Compute comes from the row
of one GPU. Bandwidths, latencies and buckets have sources (`links`, `model`) and are never fitted.
What no source gives is how much the step times of the workers vary: so `noise` is the free
parameter of the model, reading "stragglers" below.

A few rows of images per second cannot say why a step gets longer, so there are two rival readings
of the same rows, with one free parameter each, fitted alike:

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

import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from rn50.common import aligned
from rn50.scaling import links
from rn50.scaling.model import Cluster, Training, predict

PATH = Path(__file__).resolve().parents[1] / "published.json"
Rows = Sequence[tuple[int, float]]  # (GPUs, images per second of all of them)


# --- what was published ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Series:
    """One precision of one publication: images per second by the number of GPUs.

    `fit_on` are the rows that may be fitted; where it is empty, the parameters of the series named
    by `parameters_of` (publication, precision) are used as they are. `inference_ips` are one GPU's
    by batch; `trained` are the results of trainings by the number of GPUs and the metric.
    """

    name: str
    precision: str
    batch: int
    gradient_bytes: int
    ips: dict[int, float]
    network: str
    gpus_per_host: int
    hardware: str
    software: str
    source: str
    remark: str
    fit_on: Sequence[int] = ()
    parameters_of: tuple[str, str] | None = None
    inference_ips: dict[str, float] = field(default_factory=dict)
    trained: dict[str, dict[str, float]] = field(default_factory=dict)

    @property
    def training(self) -> Training:
        """What one GPU does, by the row of one GPU."""
        return Training(self.ips[1], self.batch, self.gradient_bytes)

    @property
    def cluster(self) -> Cluster:
        return Cluster(*links.parse(self.network), gpus_per_host=self.gpus_per_host)


@functools.cache
def load() -> dict[tuple[str, str], Series]:
    """Every series by (publication, precision), from `data/published.json`."""
    found = {}
    for name, publication in json.loads(PATH.read_text())["sets"].items():
        for precision, row in publication.pop("series").items():
            row["ips"] = {int(n): ips for n, ips in row["ips"].items()}
            if other := row.get("parameters_of"):
                row["parameters_of"] = tuple(other)
            found[name, precision] = Series(name, precision, **publication, **row)
    return found


# --- the readings ---------------------------------------------------------------------------------


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

    def ips(self, training: Training, cluster: Cluster, value: float, n: int) -> float:
        """Images per second of n GPUs."""
        return predict(training, self.enter(cluster, value), n).ips

    def describe(self, value: float) -> str:
        """The parameter with its unit: 6.83 % noise."""
        return f"{self.scale * value:.3g} {self.unit}"


class Amdahl(Reading):
    """Amdahl's law: a share of the work does not get faster. With a share of 0 nothing is lost."""

    def ips(self, training: Training, cluster: Cluster, value: float, n: int) -> float:
        return training.compute_ips / (value + (1 - value) / n)


MODEL = Reading("stragglers", "noise", 0.0, 1.0, True, 100, "% noise of a step's time")
RIVALS = (
    Reading("communication", "bandwidth_share", 1e-4, 1.0, False, 100, "% of the bandwidth"),
    Reading("shared input", "contention_s", 0.0, 1e-2, True, 1e6, "us per image and further GPU"),
)
READINGS = (MODEL, *RIVALS)
AMDAHL = Amdahl("Amdahl", "serial", 0.0, 1.0, True, 100, "% serial")
NAMES = (*(reading.name for reading in (*READINGS, AMDAHL)), "perfect")


def fit(reading: Reading, training: Training, cluster: Cluster, rows: Rows) -> float:
    """The value of the reading's parameter for which the rows are predicted best: a scan, dense
    near the low end as all ranges here need it, then finer and finer ones around the best."""

    def wrong(value: float) -> float:
        pairs = [(reading.ips(training, cluster, value, n), ips) for n, ips in rows if n > 1]
        return sum(math.log(predicted / found) ** 2 for predicted, found in pairs)

    low, high = reading.low, reading.high
    points = np.array([low, *(low + (high - low) * np.logspace(-6, 0, 241))])
    for _ in range(12):
        best = int(np.argmin([wrong(float(point)) for point in points]))
        points = np.linspace(points[max(0, best - 1)], points[min(len(points) - 1, best + 1)], 21)
    return min((low, float(points[10])), key=wrong)


@functools.cache
def parameter(name: str, precision: str, reading: Reading) -> float:
    """The reading's parameter for a series: fitted to its rows, or the one it takes over."""
    series = load()[name, precision]
    if series.parameters_of:
        return parameter(*series.parameters_of, reading)
    rows = [(n, series.ips[n]) for n in series.fit_on]
    return fit(reading, series.training, series.cluster, rows)


# --- against what was published -------------------------------------------------------------------


@dataclass(frozen=True)
class Outcome:
    """A published row beside what was predicted for it: images per second by name of NAMES."""

    series: Series
    gpus: int
    published: float
    predicted: dict[str, float]
    fitted: bool

    def error(self, name: str) -> float:
        """Predicted over published, less 1: 0.02 is 2 % too fast."""
        return self.predicted[name] / self.published - 1


def outcomes(*of: Series) -> list[Outcome]:
    """Every published row of more than one GPU, of these series or of all."""
    found = []
    for series in of or load().values():
        one = series.training, series.cluster
        values = {
            reading: parameter(series.name, series.precision, reading)
            for reading in (*READINGS, AMDAHL)
        }
        for n, ips in series.ips.items():
            if n > 1:
                predicted = {r.name: r.ips(*one, value, n) for r, value in values.items()}
                predicted["perfect"] = AMDAHL.ips(*one, 0.0, n)
                found.append(Outcome(series, n, ips, predicted, n in series.fit_on))
    return found


def text() -> str:
    """The report of `rn50 scale --check`."""
    lines = [
        "Images per second, and in brackets how far the prediction is from the published row.",
        f'The model is "{MODEL.name}". It and its rivals have one free number per precision, set',
        "by the rows marked fitted and no other. The naive two are Amdahl's law (one free number",
        "too) and perfect scaling.",
    ]
    for series in load().values():
        table = [["GPUs", "", "published", *NAMES]]
        for row in outcomes(series):
            mark = "fitted" if row.fitted else "held out"
            cells = [f"{row.predicted[n]:.1f} ({100 * row.error(n):+5.1f} %)" for n in NAMES]
            table.append([str(row.gpus), mark, f"{row.published:.1f}", *cells])
        lines += ["", *heading(series), *aligned(table)]
    return "\n".join([*lines, "", verdict(), "", cannot_tell()])


def heading(series: Series) -> list[str]:
    """Who measured what, and the parameters."""
    key = (series.name, series.precision)
    parameters = [f"{r.name}: {r.describe(parameter(*key, r))}" for r in (*READINGS, AMDAHL)]
    how = "fitted on " + ", ".join(str(n) for n in series.fit_on) + " GPUs"
    if series.parameters_of:
        how = f"taken from {' '.join(series.parameters_of)}, not refitted"
    return [
        f"{series.name}, {series.precision}, batch {series.batch}: {series.hardware};"
        f" {series.software}",
        f"  {series.source} ({series.remark})",
        f"  {how}: {'; '.join(parameters)}",
    ]


def verdict() -> str:
    """How large the errors of the held-out rows are, by name."""
    rows = [row for row in outcomes() if not row.fitted]
    errors = []
    for name in NAMES:
        sizes = [abs(100 * row.error(name)) for row in rows]
        errors.append(f"{name} {np.mean(sizes):.1f} % (at most {max(sizes):.1f} %)")
    return f"Mean error of the {len(rows)} held-out rows: {', '.join(errors)}."


def cannot_tell() -> str:
    """What rows of images per second leave open."""
    rows = [row for row in outcomes() if row.fitted]
    worst = {r.name: max(abs(100 * row.error(r.name)) for row in rows) for r in READINGS}
    errors = ", ".join(f"{name} {error:.1f} %" for name, error in worst.items())
    return (
        "What the rows cannot tell apart: a throughput says how long a step took and not why. An"
        " exchange that is not hidden, CPUs that several GPUs share, and workers that wait for the"
        " slowest all make a step longer as GPUs are added. Each reading has one number for it, and"
        f" on the rows it was fitted to its largest error is: {errors}."
        " nccl-tests measure the exchange and `rn50 run --test-io` the input; with both known, only"
        " the stragglers are left to explain."
    )
