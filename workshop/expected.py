"""Recorded results with their provenance: `notebooks/expected/*.json`, keys unique over all files.

Notebooks show them next to the learner's own number, or instead of it if this machine cannot
measure it, with the hardware, the versions and the date, or the publication.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

from rn50lib.errors import UserError


@dataclass(frozen=True)
class Expected:
    """One recorded result. `spread` is the half-width over `runs` runs, in the unit of `value`.

    `kind` is "measured" (then hardware, versions and date are there) or "published" (then source).
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

    @property
    def provenance(self) -> str:
        """The source of the value in one line."""
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        if self.kind == "published":
            parts = ["published", self.source, self.hardware]
        else:
            runs = f"{self.runs} runs" if self.runs and self.runs > 1 else ""
            runs += " (± half their range)" if runs and self.spread else ""
            parts = [f"recorded on {self.hardware}", versions, self.date, runs]
        return ", ".join(part for part in parts if part)


def problem(item: Expected) -> str | None:
    """Return what is missing from a recorded result, None if it is complete."""
    if not isinstance(item.value, int | float) or isinstance(item.value, bool):
        return "value must be a number"
    if not item.what:
        return "what (one line that says what was measured) is empty"
    if item.kind == "measured":
        missing = [name for name in ("hardware", "versions", "date") if not getattr(item, name)]
        return f"a measured result needs {', '.join(missing)}" if missing else None
    if item.kind == "published":
        return None if item.source else "a published result needs its source"
    return f'kind is {item.kind!r}; it must be "measured" or "published"'


def load(folder: Path) -> dict[str, Expected]:
    """Return all results of a folder by key.

    Raises:
        UserError: A result is wrong; the message names its file and key.
    """
    found: dict[str, Expected] = {}
    for path in sorted(folder.glob("*.json")):
        try:
            results = dict(json.loads(path.read_text(encoding="utf-8"))["results"])
        except (OSError, ValueError, KeyError, TypeError) as wrong:
            raise UserError(
                f'{path} is not JSON of the form {{"results": {{...}}}}: {wrong}'
            ) from None
        for key, entry in results.items():
            try:
                item = Expected(key=key, **entry)
            except TypeError as wrong:
                raise UserError(
                    f"{path}: {key}: {str(wrong).partition(') ')[2] or wrong}"
                ) from None
            if (lack := problem(item)) is not None:
                raise UserError(f"{path}: {key}: {lack}")
            if key in found:
                raise UserError(f"{path}: {key} is in a second file too: keys must be unique")
            found[key] = item
    return found
