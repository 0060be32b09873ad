"""What each exercise is worth: `points.csv`, which the first grading writes and the instructor
edits."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path

from rn50lib.errors import UserError
from workshop.checks import table

WORTH = {"easy": 1.0, "medium": 2.0, "hard": 3.0}


def default() -> dict[str, float]:
    return {item.name: WORTH[item.difficulty] for item in table.EXERCISES}


def load(path: Path) -> tuple[dict[str, float], list[str]]:
    """The points of each exercise, and what was noticed. Writes the table where there is none.

    Raises UserError, with the line, for one that cannot be read.
    """
    points = default()
    if not path.exists():
        write(path, points)
        return points, [f"{path} was written: edit the points there, and grade again"]
    notes, given = [], {}
    try:
        rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"))))
    except (OSError, UnicodeDecodeError, csv.Error) as problem:
        raise UserError(f"{path} cannot be read: {problem}") from None
    for number, row in enumerate(rows, 1):
        if number == 1 or not any(cell.strip() for cell in row):
            continue
        given[row[0].strip()] = _number(path, number, row)
    for name in given:
        if name not in points:
            notes.append(f"{path} has points for {name}, which is no exercise")
    for name in points:
        if name not in given:
            notes.append(f"{path} has no points for {name}: {points[name]:g} are taken")
    return {name: given.get(name, worth) for name, worth in points.items()}, notes


def _number(path: Path, line: int, row: list[str]) -> float:
    try:
        value = float(row[1].strip().replace(",", "."))
    except (IndexError, ValueError):
        value = math.nan
    if not 0 <= value < 1e6:
        raise UserError(f"{path}, line {line}: expected is a line such as ex03.shard,2")
    return value


def write(path: Path, points: dict[str, float]) -> None:
    lines = ["exercise,points", *(f"{name},{worth:g}" for name, worth in points.items())]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
