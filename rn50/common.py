"""What several verbs need: lists of numbers in their flags, and tables of text."""

from __future__ import annotations

from collections.abc import Sequence

from rn50lib.config.kinds import positive


def counts(text: str) -> list[int]:
    """'1,4,8' as numbers, each once, in this order. Raises ValueError for anything else."""
    return list(dict.fromkeys(positive(part) for part in text.split(",")))


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of text with columns of equal width, to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(t.rjust(w) for t, w in zip(row, widths, strict=True)) for row in rows]
