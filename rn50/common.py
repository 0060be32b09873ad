"""Lists of numbers in flags and text tables, shared by several verbs."""

from __future__ import annotations

from collections.abc import Sequence

from rn50.parser import positive


def counts(text: str) -> list[int]:
    """Return the distinct numbers of '1,4,8' in order. Raise ValueError for anything else."""
    return list(dict.fromkeys(positive(part) for part in text.split(",")))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return a line per row, with right-aligned columns of equal width."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(t.rjust(w) for t, w in zip(row, widths, strict=True)) for row in rows]
