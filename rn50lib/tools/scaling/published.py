"""Published throughputs of several GPUs, with their source: `data/published_scaling.json`."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path

from rn50lib.tools.scaling import links
from rn50lib.tools.scaling.model import Cluster, Training

PATH = Path(__file__).resolve().parents[2] / "data" / "published_scaling.json"


@dataclass(frozen=True)
class Series:
    """One precision of one publication: images per second by the number of GPUs.

    `fit_on` are the rows that may be fitted; where it is empty, the parameters of the series named
    by `parameters_of` (publication, precision) are used as they are.
    """

    name: str
    precision: str
    batch: int
    gradient_bytes: int
    ips: dict[int, float]
    fit_on: tuple[int, ...]
    parameters_of: tuple[str, str] | None
    network: str
    gpus_per_host: int
    hardware: str
    software: str
    source: str
    remark: str

    @property
    def training(self) -> Training:
        """What one GPU does, by the row of one GPU."""
        return Training(self.ips[1], self.batch, self.gradient_bytes)

    @property
    def cluster(self) -> Cluster:
        return Cluster(*links.parse(self.network), gpus_per_host=self.gpus_per_host)

    @property
    def held_out(self) -> tuple[int, ...]:
        """The rows that are predicted without having been fitted."""
        return tuple(n for n in self.ips if n > 1 and n not in self.fit_on)


@functools.cache
def load() -> dict[tuple[str, str], Series]:
    """Every series by (publication, precision)."""
    found = {}
    for name, told in json.loads(PATH.read_text())["sets"].items():
        shared = {
            key: told[key]
            for key in ("network", "gpus_per_host", "hardware", "software", "source", "remark")
        }
        for precision, row in told["series"].items():
            other = told.get("parameters_of", {}).get(precision)
            found[name, precision] = Series(
                name=name,
                precision=precision,
                batch=row["batch"],
                gradient_bytes=row["gradient_bytes"],
                ips={int(n): ips for n, ips in row["ips"].items()},
                fit_on=tuple(told.get("fit_on", ())),
                parameters_of=(other[0], other[1]) if other else None,
                **shared,
            )
    return found
