"""The model against published rows that it was not fitted to: every error, whatever it is."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from rn50lib.tools.scaling.fit import MODEL, READINGS, Reading, amdahl, fit, fit_amdahl, perfect
from rn50lib.tools.scaling.model import predict
from rn50lib.tools.scaling.published import Series, load

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
    told = [f"{r.name}: {r.told(parameter(*key, r))}" for r in READINGS]
    told.append(f"Amdahl: {100 * serial_share(*key):.3g} % serial")
    how = "fitted on " + ", ".join(str(n) for n in series.fit_on) + " GPUs"
    if series.parameters_of:
        how = f"taken from {' '.join(series.parameters_of)}, not refitted"
    columns = ["GPUs", " " * 9, f"{'published':>10}", *(f"{name:>19}" for name in NAMES)]
    return [
        f"{series.name}, {series.precision}, batch {series.batch}: {series.hardware};"
        f" {series.software}",
        f"  {series.source} ({series.remark})",
        f"  {how}: {'; '.join(told)}",
        "  ".join(columns),
    ]


def verdict() -> str:
    """How large the errors of the held-out rows are, by name."""
    rows = [outcome for outcome in outcomes() if not outcome.fitted]
    told = []
    for name in NAMES:
        sizes = [abs(100 * row.error(name)) for row in rows]
        told.append(f"{name} {sum(sizes) / len(sizes):.1f} % (at most {max(sizes):.1f} %)")
    return f"Mean error of the {len(rows)} held-out rows: {', '.join(told)}."


def cannot_tell() -> str:
    """What rows of images per second leave open."""
    rows = [outcome for outcome in outcomes() if outcome.fitted]
    worst = {r.name: max(abs(100 * row.error(r.name)) for row in rows) for r in READINGS}
    told = ", ".join(f"{name} {error:.1f} %" for name, error in worst.items())
    return (
        "What the rows cannot tell apart: a throughput says how long a step took and not why. An"
        " exchange that is not hidden, CPUs that several GPUs share, and workers that wait for the"
        " slowest all make a step longer as GPUs are added. Each reading has one number for it, and"
        f" on the rows it was fitted to its largest error is: {told}."
        " `rn50 doctor --allreduce` measures the exchange and `rn50 run --test-io` the input; with"
        " both given, only the stragglers are left to fit."
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
