"""A report, a benchmark or published figures as a `Side`, which `rn50 compare` lays beside others.

A side holds rates by metric, number of workers and batch, and results of trainings by metric and
number of workers.
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from rn50lib.files import read_json
from rn50lib.metrics import harmonic_mean
from rn50lib.report import check_metrics
from rn50lib.tools.scaling.published import load as load_speeds

RATES = ("train.total_ips", "val.total_ips")
LAST = ("train.loss", "train.top1", "val.loss", "val.top1", "val.top5")
RESULTS = Path(__file__).resolve().parents[1] / "data" / "published_results.json"
Cell = tuple[str, int, int]  # metric, workers, batch per worker


@dataclass
class Side:
    """One of the things compared. Rates in images per second over all workers, None if not
    measured; `trained` holds the last epoch's metrics and the hours by (metric, workers)."""

    name: str
    rates: dict[Cell, float | None] = field(default_factory=dict)
    trained: dict[tuple[str, int], float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def weak_scaling(self, key: str, n: int, batch: int) -> float | None:
        """Rate over that of one worker with the same batch, None where either is missing."""
        rate, one = self.rates.get((key, n, batch)), self.rates.get((key, 1, batch))
        return rate / one if rate and one else None


# --- reading --------------------------------------------------------------------------------------


def read(path: str, name: str | None = None) -> Side:
    """A report or a benchmark from its file. Raises UserError for anything else."""
    try:
        told = read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from None
    side = Side(name or Path(path).stem)
    try:
        if "metric_keys" in told:
            read_benchmark(side, told)
        elif "ngpus" in told and "metrics" in told:
            read_report(side, told)
        else:
            raise ValueError("it has neither metric_keys nor ngpus and metrics")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error)
        if isinstance(error, AttributeError | TypeError):
            why = "what is in it has another form"
        raise UserError(
            f"{path} is neither a report (--report) nor a benchmark (`rn50 benchmark -o`): {why}"
        ) from None
    return side


def read_benchmark(side: Side, told: dict[str, Any]) -> None:
    reasons = told.get("env", {}).get("cells", {})
    for n, cells in told["metrics"].items():
        for batch, values in cells.items():
            for key in told["metric_keys"]:
                side.rates[key, int(n), int(batch)] = speed((values or {}).get(key))
            told_of = reasons.get(n, {}).get(batch, {})
            if told_of.get("reason"):
                side.notes.append(f"{side.name}, n {n}, batch {batch}: {told_of['reason']}")


def read_report(side: Side, told: dict[str, Any]) -> None:
    n, metrics = int(told["ngpus"]), told["metrics"]
    check_metrics(metrics)
    batch = told.get("env", {}).get("axes", {}).get("batch_size", {}).get("value")
    for key in RATES:
        told_of = [speed(rate) for rate in metrics.get(key) or []]
        epochs = [rate for rate in told_of if rate is not None]
        if epochs and batch is not None:  # the first epoch is a warm-up where there are others
            side.rates[key, n, int(batch)] = harmonic_mean(epochs[1:] or epochs)
    if batch is None and any(metrics.get(key) for key in RATES):
        side.notes.append(
            f"{side.name}: its report does not say the batch, so its speed is left out"
        )
    for key in LAST:
        if metrics.get(key) and metrics[key][-1] is not None:
            side.trained[key, n] = float(metrics[key][-1])
    if told.get("total_duration"):
        side.trained["hours", n] = told["total_duration"] / 3600


def speed(told: float | None) -> float | None:
    """A rate of a file, None where there is none or it is 0. ValueError for what is no speed."""
    rate = float(told or 0)
    if not 0 <= rate < float("inf"):
        raise ValueError(f"{told} is not a speed")
    return rate or None


@functools.cache
def names() -> tuple[str, ...]:
    """What `published` knows: publication and precision, as in DGX-1/mixed."""
    return tuple(f"{name.replace(' ', '-')}/{precision}" for name, precision in load_speeds())


def published(name: str) -> Side:
    """Published figures by name, with their source as notes. UserError where there are none."""
    if name not in names():
        raise UserError(f"--published {name}: there are {', '.join(names())}")
    series = list(load_speeds().values())[names().index(name)]
    side = Side(name)
    for n, ips in series.ips.items():
        side.rates["train.total_ips", n, series.batch] = ips
    side.notes.append(
        f"{name}: published, {series.source}; {series.hardware}, {series.software}"
        f" ({series.remark})"
    )
    more = json.loads(RESULTS.read_text()).get(name, {})
    for batch, ips in more.get("inference_ips", {}).items():
        side.rates["val.total_ips", 1, int(batch)] = float(ips)
    for n, results in more.get("trained", {}).items():
        for key, value in results.items():
            side.trained[key, int(n)] = value
    return side
