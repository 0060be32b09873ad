"""Tables as CSV: those that an instructor edits, and those that grading writes.

What learners wrote stands in them as text, never as a formula of a spreadsheet.
"""

from __future__ import annotations

import csv
import io
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from pathlib import Path

from rn50lib.errors import UserError


def read(path: Path, columns: Sequence[str], optional: Sequence[str] = ()) -> list[dict[str, str]]:
    """The rows of a table by column, each with its line number under "line"; empty ones left out.

    The columns may stand in any order, between commas or semicolons. Raises UserError for a table
    that cannot be read or lacks a column.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
        given = list(csv.reader(io.StringIO(text), delimiter=";" if ";" in text[:200] else ","))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise UserError(f"{path} cannot be read: {problem}") from None
    head = [plain(cell) for cell in given[0]] if given else []
    if not set(map(plain, columns)) <= set(head):
        names = ",".join([*columns, *optional])
        raise UserError(f"{path}, line 1: expected are the columns {names}")
    rows = []
    for number, cells in enumerate(given[1:], 2):
        clean = dict(zip(head, (" ".join(cell.split()) for cell in cells), strict=False))
        if any(clean.values()):
            row = {name: clean.get(plain(name), "") for name in (*columns, *optional)}
            rows.append(row | {"line": str(number)})
    return rows


def points(path: Path, row: dict[str, str]) -> float:
    """The number in the column `points`. Raises UserError, with the line, where there is none."""
    try:
        value = float(row["points"].replace(",", "."))
    except ValueError:
        value = math.nan
    if not 0 <= value < 1e6:
        raise UserError(f"{path}, line {row['line']}: {row['points']!r} is no number of points")
    return value


def plain(text: str) -> str:
    """Letters and digits alone, small, however they are encoded."""
    return re.sub(r"[\W_]+", "", unicodedata.normalize("NFKC", text).casefold())


def text(rows: Iterable[Iterable[object]]) -> str:
    """The CSV of some rows."""
    out = io.StringIO()
    csv.writer(out).writerows([harmless(str(cell)) for cell in row] for row in rows)
    return out.getvalue()


def harmless(cell: str) -> str:
    """A cell on one line that no spreadsheet takes for a formula."""
    cell = "".join(c if c.isprintable() else " " for c in cell)
    return f"'{cell}" if cell[:1] in ("=", "+", "-", "@") else cell
