"""What a check says: one finding about one topic of a script."""

from __future__ import annotations

from dataclasses import dataclass

PRESENT, MISSING, MISTAKE, CANNOT_TELL = "present", "missing", "mistake", "cannot tell"
KINDS = (PRESENT, MISSING, MISTAKE, CANNOT_TELL)


@dataclass(frozen=True)
class Finding:
    """One sentence on `topic`, about `line` (from 1; None: the file as a whole).

    `remedy` is what to do; it is empty where everything is as it should be.
    """

    topic: str
    kind: str
    line: int | None
    what: str
    remedy: str = ""


def present(topic: str, line: int | None, what: str) -> Finding:
    return Finding(topic, PRESENT, line, what)


def missing(topic: str, line: int | None, what: str, remedy: str) -> Finding:
    return Finding(topic, MISSING, line, what, remedy)


def mistake(topic: str, line: int | None, what: str, remedy: str) -> Finding:
    return Finding(topic, MISTAKE, line, what, remedy)


def cannot_tell(topic: str, line: int | None, what: str, remedy: str) -> Finding:
    return Finding(topic, CANNOT_TELL, line, what, remedy)
