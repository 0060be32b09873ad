"""One finding of the doctor: what was looked at, how it stands, and what to do about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

OK, NOTE, PROBLEM = "ok", "note", "problem"
SETUP = "run `make setup`"


@dataclass(frozen=True)
class Check:
    """`name` is stable, for programs; `what` and `remedy` are for people. `facts` holds the numbers
    behind the sentence, in bytes, seconds and counts."""

    name: str
    status: str
    what: str
    remedy: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        remedy = f" — {self.remedy}" if self.remedy else ""
        return f"{self.status + ':':8} {self.what}{remedy}"

    def to_dict(self) -> dict[str, Any]:
        """For --json."""
        return asdict(self)


@dataclass(frozen=True)
class Group:
    """Findings under one heading."""

    name: str
    checks: tuple[Check, ...]


def ok(name: str, what: str, /, **facts: Any) -> Check:
    """All is well."""
    return Check(name, OK, what, facts=facts)


def note(name: str, what: str, remedy: str = "", /, **facts: Any) -> Check:
    """Training runs all the same; something is missing, slower, or worth knowing."""
    return Check(name, NOTE, what, remedy, facts)


def problem(name: str, what: str, remedy: str, /, **facts: Any) -> Check:
    """Training cannot run here until this is put right."""
    return Check(name, PROBLEM, what, remedy, facts)


def size(count: float) -> str:
    """Bytes for people: '64 MiB', '3.4 GiB', '252 GiB'."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if count >= scale:
            value = count / scale
            return f"{value:.{0 if value >= 10 or value == int(value) else 1}f} {unit}"
    return f"{count / 2**10:.0f} KiB"
