"""The report of a run: the reference's JSON keys in its order, and everything else under `env`.

A metric that was not measured is null, never 0.0 or NaN.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rn50lib.files import write_file

TOP = {"top1": 1, "top5": 5}  # the label is among so many of the most likely classes
SUMS = ("loss", *TOP, "examples")  # the sums of a training step, in this order
PARTS = (*(name for name in SUMS if name not in ("loss", "examples")), "loss", "time", "total_ips")
KEYS = tuple(f"{phase}.{part}" for phase in ("train", "val") for part in PARTS)


@dataclass
class Report:
    """The report of one run. `metrics` has a list for each of KEYS with a value per epoch.

    Accuracies are per cent, loss is nats, time is seconds per step without the epoch's first,
    and total_ips is images per second over all workers, data and compute together.
    """

    # in the reference's order
    model: str
    ngpus: int
    total_duration: float = field(default=0.0, kw_only=True)
    cmd: list[str]
    metrics: dict[str, list[float | None]] = field(
        default_factory=lambda: {k: [] for k in KEYS}, kw_only=True
    )
    env: dict[str, Any] = field(default_factory=dict)

    def add(self, phase: str, values: dict[str, float | None]) -> None:
        """Append one epoch of 'train' or 'val'; missing values were not measured."""
        for part in PARTS:
            self.metrics[f"{phase}.{part}"].append(values.get(part))

    def best_epoch(self, among: Iterable[int], done: int) -> int | None:
        """Return the epoch with the highest val top-1, the later one of equals.

        None if there is none, or if not all of the `done` epochs were validated.
        """
        top1 = [value for value in self.metrics["val.top1"][:done] if value is not None]
        if len(top1) < done:
            return None
        measured = [epoch for epoch in among if 0 < epoch <= done]
        return max(measured, key=lambda epoch: (top1[epoch - 1], epoch), default=None)

    def to_dict(self) -> dict[str, Any]:
        """Return the report's content; a phase that never ran has no keys."""
        return vars(self) | {"metrics": {key: v for key, v in self.metrics.items() if v}}

    def write(self, path: str | Path) -> None:
        """Write the report, whole or not at all."""
        write_json(path, self.to_dict())


def as_json(content: Any) -> str:
    """Return strict JSON, indent 4."""
    return json.dumps(content, indent=4, allow_nan=False) + "\n"


def write_json(path: str | Path, content: Any) -> None:
    """Write strict JSON, whole or not at all. Raise UserError if it cannot be written."""
    write_file(path, as_json(content))
