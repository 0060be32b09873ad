"""The per-run report: the reference's JSON, key for key, with everything else under `env`.

A metric that was not measured is null; it is never 0.0 and never NaN, which is not JSON.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from rn50lib.files import read_json, write_file

PARTS = ("top1", "top5", "loss", "time", "total_ips")
Number = (int, float, type(None))
KEYS = tuple(f"{phase}.{part}" for phase in ("train", "val") for part in PARTS)


@dataclass
class Report:
    """One run. `metrics` has a list for each of KEYS, a value per epoch, None if not measured.

    top1 and top5 in per cent, loss in nats, time in seconds per iteration (the first iteration of
    the epoch left out), total_ips in images per second over all workers, data and compute together.
    """

    model: str
    ngpus: int
    cmd: list[str]
    env: dict[str, Any] = field(default_factory=dict)
    total_duration: float = 0.0
    metrics: dict[str, list[float | None]] = field(default_factory=lambda: {k: [] for k in KEYS})

    def add(self, phase: str, values: dict[str, float | None]) -> None:
        """Append one epoch of 'train' or 'val'; what `values` lacks was not measured."""
        for part in PARTS:
            self.metrics[f"{phase}.{part}"].append(values.get(part))

    def to_dict(self) -> dict[str, Any]:
        """The report in the reference's order; a phase that never ran has no keys."""
        return {
            "model": self.model,
            "ngpus": self.ngpus,
            "total_duration": self.total_duration,
            "cmd": self.cmd,
            "metrics": {key: values for key, values in self.metrics.items() if values},
            "env": self.env,
        }

    def write(self, path: str | Path) -> None:
        """Write beside and rename, so that a reader never sees half a report."""
        write_json(path, self.to_dict())


def write_json(path: str | Path, content: Any) -> None:
    """Strict JSON, indent 4, written whole or not at all. Raises UserError where it cannot be."""
    try:
        write_file(path, json.dumps(content, indent=4, allow_nan=False) + "\n")
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror or error}") from error


def load(path: str | Path) -> dict[str, Any]:
    """A report from its file. Raises UserError when it is missing or is not a report."""
    try:
        content = read_json(path)
    except OSError as error:
        raise UserError(f"report {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:
        raise UserError(f"report {path} is not JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get("metrics"), dict):
        raise UserError(f"report {path} has no 'metrics': it was not written by --report")
    try:
        check_metrics(content["metrics"])
    except ValueError as error:
        raise UserError(f"report {path}: {error}") from None
    return content


def is_report(path: str | Path) -> bool:
    """Return True if the file is a report, which a new one may replace."""
    try:
        load(path)
    except UserError:
        return False
    return True


def check_metrics(metrics: dict[str, Any]) -> None:
    """Raise ValueError for a metric of a report that has no list of numbers and nulls."""
    for key, values in metrics.items():
        if not isinstance(values, list) or not all(isinstance(v, Number) for v in values):
            raise ValueError(f"{key} is not a list of numbers, a value per epoch")
