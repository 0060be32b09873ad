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
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from rn50lib.tools.scaling.model import Cluster, Training, predict
from rn50lib.tools.scaling.published import Series, load

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

    def describe(self, value: float) -> str:
        """The parameter with its unit: 6.83 % noise."""
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
    """Where a function of one number is least, in [low, high]: a scan, dense near `low` as all
    ranges here need it, then finer and finer ones around the best."""
    points = np.array([low, *(low + (high - low) * np.logspace(-6, 0, 241))])
    for _ in range(12):
        at = int(np.argmin([wrong(float(point)) for point in points]))
        around = points[max(0, at - 1)], points[min(len(points) - 1, at + 1)]
        points = np.linspace(*around, 21)
    return min((low, float(points[10])), key=wrong)


# --- against what was published -------------------------------------------------------------------

NAIVE = ("Amdahl", "perfect")
NAMES = (*(reading.name for reading in READINGS), *NAIVE)


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


@functools.cache
def parameter(name: str, precision: str, reading: Reading) -> float:
    """The reading's parameter for a series: fitted to its rows, or the one it takes over."""
    series = load()[name, precision]
    if series.parameters_of:
        return parameter(*series.parameters_of, reading)
    rows = [(n, series.ips[n]) for n in series.fit_on]
    return fit(reading, series.training, series.cluster, rows)


@functools.cache
def serial_share(name: str, precision: str) -> float:
    """Amdahl's serial share for a series, fitted or taken over likewise."""
    series = load()[name, precision]
    if series.parameters_of:
        return serial_share(*series.parameters_of)
    return fit_amdahl(series.ips[1], [(n, series.ips[n]) for n in series.fit_on])


def outcomes() -> list[Outcome]:
    """Every published row of more than one GPU, fitted ones first within their series."""
    found = []
    for (name, precision), series in load().items():
        rows = sorted((n for n in series.ips if n > 1), key=lambda n: (n not in series.fit_on, n))
        for n in rows:
            predicted = {
                reading.name: predict(
                    series.training,
                    reading.enter(series.cluster, parameter(name, precision, reading)),
                    n,
                ).ips
                for reading in READINGS
            }
            predicted["Amdahl"] = amdahl(series.ips[1], serial_share(name, precision), n)
            predicted["perfect"] = perfect(series.ips[1], n)
            found.append(Outcome(series, n, series.ips[n], predicted, n in series.fit_on))
    return found


def text() -> str:
    """The report of `rn50 scale --check`."""
    lines = [
        "Images per second, and in brackets how far the prediction is from the published row.",
        f'The model is "{MODEL.name}". It and its rivals have one free number per precision, set',
        "by the rows marked fitted and no other. The naive two are Amdahl's law (one free number",
        "too) and perfect scaling.",
    ]
    seen = None
    for outcome in outcomes():
        series = outcome.series
        key = (series.name, series.precision)
        if key != seen:
            seen = key
            lines += ["", *heading(series)]
        mark = "fitted" if outcome.fitted else "held out"
        cells = [f"{outcome.gpus:4}", f"{mark:>9}", f"{outcome.published:10.1f}"]
        cells += [f"{outcome.predicted[n]:9.1f} ({100 * outcome.error(n):+5.1f} %)" for n in NAMES]
        lines.append("  ".join(cells))
    return "\n".join([*lines, "", verdict(), "", cannot_tell()])


def heading(series: Series) -> list[str]:
    """Who measured what, the parameters, and the names of the columns."""
    key = (series.name, series.precision)
    parameters = [f"{r.name}: {r.describe(parameter(*key, r))}" for r in READINGS]
    parameters.append(f"Amdahl: {100 * serial_share(*key):.3g} % serial")
    how = "fitted on " + ", ".join(str(n) for n in series.fit_on) + " GPUs"
    if series.parameters_of:
        how = f"taken from {' '.join(series.parameters_of)}, not refitted"
    columns = ["GPUs", " " * 9, f"{'published':>10}", *(f"{name:>19}" for name in NAMES)]
    return [
        f"{series.name}, {series.precision}, batch {series.batch}: {series.hardware};"
        f" {series.software}",
        f"  {series.source} ({series.remark})",
        f"  {how}: {'; '.join(parameters)}",
        "  ".join(columns),
    ]


def verdict() -> str:
    """How large the errors of the held-out rows are, by name."""
    rows = [outcome for outcome in outcomes() if not outcome.fitted]
    errors = []
    for name in NAMES:
        sizes = [abs(100 * row.error(name)) for row in rows]
        errors.append(f"{name} {sum(sizes) / len(sizes):.1f} % (at most {max(sizes):.1f} %)")
    return f"Mean error of the {len(rows)} held-out rows: {', '.join(errors)}."


def cannot_tell() -> str:
    """What rows of images per second leave open."""
    rows = [outcome for outcome in outcomes() if outcome.fitted]
    worst = {r.name: max(abs(100 * row.error(r.name)) for row in rows) for r in READINGS}
    errors = ", ".join(f"{name} {error:.1f} %" for name, error in worst.items())
    return (
        "What the rows cannot tell apart: a throughput says how long a step took and not why. An"
        " exchange that is not hidden, CPUs that several GPUs share, and workers that wait for the"
        " slowest all make a step longer as GPUs are added. Each reading has one number for it, and"
        f" on the rows it was fitted to its largest error is: {errors}."
        " `rn50 doctor --allreduce` measures the exchange and `rn50 run --test-io` the input; with"
        " both known, only the stragglers are left to explain."
    )


def as_json() -> dict[str, Any]:
    """The same as data: per series its parameters, per row what was published and predicted."""
    series = [
        {
            "name": name,
            "precision": precision,
            "fitted_on": list(one.fit_on),
            "parameters_of": one.parameters_of,
            "source": one.source,
            "remark": one.remark,
            "parameters": {r.field: parameter(name, precision, r) for r in READINGS}
            | {"serial": serial_share(name, precision)},
        }
        for (name, precision), one in load().items()
    ]
    rows = [
        {
            "name": row.series.name,
            "precision": row.series.precision,
            "gpus": row.gpus,
            "fitted": row.fitted,
            "published": row.published,
            "predicted": row.predicted,
            "error": {name: row.error(name) for name in NAMES},
        }
        for row in outcomes()
    ]
    return {"model": MODEL.name, "series": series, "rows": rows}
