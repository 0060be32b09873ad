"""Published speeds of ResNet-50 v1.5, from `published.json`.

For rows of MXNet these facts are taken as given: gradients of 2 bytes in mixed precision and of 4
in FP32 and TF32; V100s joined by `nvlink`, A100s by `nvlink3`; 100 Gbit/s between hosts.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Series:
    """One precision of one publication: images per second by the number of GPUs.

    `noise` is the number of the scaling model, fitted to the rows `fit_on`. If these are empty, the
    numbers of the series `parameters_of` (publication, precision) are used. `inference_ips` are one
    GPU's by batch; `trained` are results of training runs by the number of GPUs and the metric.
    """

    name: str
    precision: str
    batch: int
    gradient_bytes: int
    ips: dict[int, float]
    noise: float
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


@functools.cache
def load() -> dict[tuple[str, str], Series]:
    """Return every series by (publication, precision)."""
    found = {}
    content = json.loads(Path(__file__).with_suffix(".json").read_text())
    for name, publication in content["sets"].items():
        for precision, row in publication.pop("series").items():
            row["ips"] = {int(n): ips for n, ips in row["ips"].items()}
            row["parameters_of"] = tuple(row.get("parameters_of", ())) or None
            found[name, precision] = Series(name, precision, **publication, **row)
    return found
