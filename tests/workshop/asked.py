"""Functions that a test has a worker process call."""

from __future__ import annotations

from collections.abc import Callable

from rn50lib.errors import UserError
from workshop.worker import tell


def counter(start: int) -> Callable[[int], int]:
    """Add an argument to the sum of the earlier ones."""
    tell("told before it starts")
    print("a framework's own words, which is not an answer")
    total = start

    def add(value: int) -> int:
        nonlocal total
        total += value
        return total

    return add


def refuse() -> None:
    raise UserError("no such luck")
