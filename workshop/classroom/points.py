"""What the instructor decides: the points of each exercise (`points.csv`), and what counts instead
of them for a learner, with a remark (`overrides.csv`). The first grading writes both tables."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rn50lib.errors import UserError
from workshop.checks import table
from workshop.classroom import sheets

WORTH = {"easy": 1.0, "medium": 2.0, "hard": 3.0}
OVERRIDES = ("learner", "exercise", "points", "remark")
# (learner, exercise) → points, or None where they stay, and a remark; no exercise: the whole
Overrides = dict[tuple[str, str], tuple[float | None, str]]


def load(path: Path) -> tuple[dict[str, float], list[str]]:
    """The points of each exercise, and what was noticed. Writes the table where there is none.

    Raises UserError, with the line, for one that cannot be read.
    """
    points = {item.name: WORTH[item.difficulty] for item in table.EXERCISES}
    if not path.exists():
        rows = [("exercise", "points"), *((name, f"{worth:g}") for name, worth in points.items())]
        path.write_text(sheets.text(rows), encoding="utf-8", newline="")
        return points, [f"{path} was written: edit the points there, and grade again"]
    given = {
        row["exercise"]: sheets.points(path, row)
        for row in sheets.read(path, ("exercise", "points"))
    }
    notes = [f"{path} has points for {n}, which is no exercise" for n in given if n not in points]
    notes += [
        f"{path} has no points for {name}: {worth:g} are taken"
        for name, worth in points.items()
        if name not in given
    ]
    return {name: given.get(name, worth) for name, worth in points.items()}, notes


def overrides(path: Path, learners: Collection[str]) -> tuple[Overrides, list[str]]:
    """What the instructor gives instead, and what was noticed. Where there is no such table one is
    written, with an empty row for each learner.

    Raises UserError, with the line, for one that cannot be read.
    """
    known = {sheets.harmless(one): one for one in learners}
    names = {"", *(item.name for item in table.EXERCISES)}
    if not path.exists():
        rows = [OVERRIDES, *((one, "", "", "") for one in sorted(learners, key=str.casefold))]
        path.write_text(sheets.text(rows), encoding="utf-8-sig", newline="")
        return {}, []
    found: Overrides = {}
    notes = []
    for row in sheets.read(path, OVERRIDES):
        who, exercise, line = row["learner"], row["exercise"], f"{path}, line {row['line']}"
        if exercise not in names:
            raise UserError(f"{line}: there is no exercise {exercise}")
        worth = sheets.points(path, row) if row["points"] else None
        if worth is None and not row["remark"]:
            continue
        if who in known:
            found[known[who], exercise] = worth, row["remark"]
        else:
            notes.append(f"{line}: nobody here is called {who}")
    return found, notes
