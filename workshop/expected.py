"""Recorded results with their provenance: `notebooks/expected/*.json`, keys unique over all files.

Notebooks show them next to the learner's own number, or instead of it if this machine cannot
measure it, with the hardware, the versions and the date, or the publication.
"""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass, field
from pathlib import Path

from rn50lib.errors import UserError

NEEDED = {  # fields by the kind of a result
    "measured": ("what", "hardware", "versions", "date"),
    "published": ("what", "source"),
}


@dataclass(frozen=True)
class Expected:
    """One recorded result. `spread` is the half-width over `runs` runs, in the unit of `value`.

    `each` has the values of those runs, if a lesson needs more than their mean.
    """

    key: str
    what: str
    value: float
    kind: str
    unit: str = ""
    spread: float | None = None
    runs: int | None = None
    hardware: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    date: str = ""
    source: str = ""
    command: str = ""
    each: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        if missing := [name for name in NEEDED[self.kind] if not getattr(self, name)]:
            raise ValueError(f"{self.key}: a {self.kind} result needs {', '.join(missing)}")
        if self.each:
            runs, mean = len(self.each), statistics.mean(self.each)
            if runs != self.runs or not math.isclose(mean, self.value, rel_tol=1e-3):
                raise ValueError(f"{self.key}: `each` has {runs} values with the mean {mean:g}")

    @property
    def provenance(self) -> str:
        """The source of the value in one line."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        if self.kind == "published":
            parts = ["published", self.source, self.hardware]
        else:
            runs = f"{self.runs} runs" if self.runs and self.runs > 1 else ""
            runs += " (± half their range)" if runs and self.spread and not self.each else ""
            parts = [f"recorded on {self.hardware}", versions, self.date, runs]
        return ", ".join(part for part in parts if part)


def load(folder: Path) -> dict[str, Expected]:
    """Return all results of a folder by key. Raises UserError, naming the file, if one is wrong."""
    found: dict[str, Expected] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            for key, entry in json.loads(path.read_text(encoding="utf-8"))["results"].items():
                if key in found:
                    raise ValueError(f"{key} is in a second file too: keys must be unique")
                found[key] = Expected(key=key, **entry)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as wrong:
            raise UserError(f"{path}: {type(wrong).__name__}: {wrong}") from None
    return found
