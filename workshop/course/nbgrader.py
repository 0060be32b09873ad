"""`rn50 workshop build --nbgrader DIR`: the exercises as a course folder of nbgrader.

Each check becomes a grade cell whose last value is its points, which nbgrader accepts, partial
credit included. An answer that earns nothing ends the cell with an error.
"""

from __future__ import annotations

import contextlib
import json
import os
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from rn50lib.files import write_file
from workshop import catalogue, masters
from workshop.checks import ask, engine, records
from workshop.course import build, lint
from workshop.errors import show_user_errors_plainly
from workshop.output import quiet_stderr

ASSIGNMENT = "rn50"
POINTS = {"easy": 1, "medium": 2, "hard": 3}  # by the difficulty of an exercise
CONFIG = """c = get_config()  # noqa: F821 - defined by nbgrader
c.ClearSolutions.code_stub = {"python": "..."}
c.ExecutePreprocessor.timeout = 300  # seconds per cell: some checks start processes
"""


def export(root: Path, folder: Path) -> None:
    """Write a course folder for nbgrader. Raises UserError if there is one already."""
    if folder.exists():
        raise UserError(f"{folder} exists already: name a new folder")
    write_file(folder / "nbgrader_config.py", CONFIG)
    for master in filter(build.is_exercise, build.masters(root)):
        text = json.dumps(notebook(root, master), indent=1, ensure_ascii=False)
        write_file(folder / "source" / ASSIGNMENT / f"{master.stem}.ipynb", text + "\n")


def notebook(root: Path, master: Path) -> dict[str, Any]:
    """Return an exercise notebook with nbgrader's metadata and the solutions in it.

    Raises UserError if an answer or a check of the master has no tags.
    """
    cells = masters.read_master(master)
    if errors := lint.check_tags(cells, master):
        raise UserError(f"{master}: {'; '.join(errors)}")
    book: dict[str, Any] = json.loads(build.build(root, master))
    for cell, given in zip(book["cells"], cells, strict=False):
        kind, name = (*given["tags"], "", "")[:2]
        if kind not in ("answer", "check"):
            continue
        item, grade_id = catalogue.find(name), name.replace(".", "-")  # nbgrader accepts no dots
        about = {"schema_version": 3, "task": False, "grade_id": grade_id, "grade": kind == "check"}
        about |= {"solution": kind == "answer", "locked": kind == "check"}
        if kind == "answer":
            cell["source"] = masters.stub(given["source"], str(master), keep=True)
            about["grade_id"] = f"{grade_id}-answer"
        else:
            about["points"] = POINTS[item.difficulty]
            call = f'points("{name}", {item.answer}, {about["points"]})'
            cell["source"] = f"from workshop.course.nbgrader import points\n\n{call}"
        cell["metadata"]["nbgrader"] = about
    return book


def points(exercise: str, answer: Any, worth: float) -> float:
    """Check an answer, print the result, and return its points.

    Raises CheckFailed if it earns none, also with RN50_CHECK=record.
    """
    with open(os.devnull, "w", encoding="utf-8") as null:  # nbgrader takes a warning for a failure
        with contextlib.redirect_stderr(null), quiet_stderr():
            result = engine.judge(exercise, answer)
    records.store(result)
    if not result.share:
        show_user_errors_plainly()
        raise ask.CheckFailed(result)
    print(*result.lines, sep="\n")
    return round(result.share * worth, 2)
