"""The exercises for a university that already runs nbgrader: its metadata in their cells.

    rn50 workshop export nbgrader course && cd course && nbgrader generate_assignment rn50

The markers of the solutions are nbgrader's own. Each check is a grade cell whose last value is the
points, which nbgrader takes, parts of them too; an answer that earns none ends in an error.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from workshop.checks import ask, engine, records, table
from workshop.course import build, solutions
from workshop.errors import show_user_errors_plainly

ASSIGNMENT = "rn50"
CONFIG = """c = get_config()  # noqa: F821 - nbgrader's
c.ClearSolutions.code_stub = {"python": "..."}
c.ExecutePreprocessor.timeout = 300  # of a cell: checks that start ranks take longer than 30 s
"""


def export(root: Path, folder: Path, worth: dict[str, float]) -> None:
    """Write a course folder of nbgrader. Raises UserError where `folder` is there already."""
    source = folder / "source" / ASSIGNMENT
    try:
        source.mkdir(parents=True)
        (folder / "nbgrader_config.py").open("x", encoding="utf-8").write(CONFIG)
        for master in filter(build.is_exercise, build.masters(root)):
            text = json.dumps(notebook(root, master, worth), indent=1, ensure_ascii=False)
            (source / f"{master.stem}.ipynb").write_text(text + "\n", encoding="utf-8")
    except OSError as problem:
        raise UserError(f"{folder}: {problem}. Give a new folder") from None


def notebook(root: Path, master: Path, worth: dict[str, float]) -> dict[str, Any]:
    """An exercise notebook as nbgrader's formgrader would save it, with solutions."""
    book: dict[str, Any] = json.loads(build.build(root, master).text)
    for cell, given in zip(book["cells"], build.read_master(master), strict=False):
        kind, name = (*given["tags"], "", "")[:2]
        if kind not in ("answer", "check"):
            continue
        item, grade_id = table.find(name), name.replace(".", "-")  # it takes no dots
        about: dict[str, Any] = {
            "schema_version": 3,
            "task": False,
            "grade": False,
            "solution": False,
        }
        if kind == "answer":
            cell["source"] = with_stub(given["source"])
            about |= {"solution": True, "locked": False, "grade_id": f"{grade_id}-answer"}
        else:
            call = f'points("{name}", {item.answer}, {worth[name]:g})'
            cell["source"] = f"from workshop.classroom.nbgrader import points\n\n{call}"
            about |= {"grade": True, "locked": True, "grade_id": grade_id}
            about["points"] = worth[name]
        cell["metadata"]["nbgrader"] = about
    return book


def with_stub(source: str) -> str:
    """A cell that names what is to be written also when nbgrader has taken the solution out."""
    lines: list[str] = []
    for indent, part, is_solution in solutions.regions(source, "exercise"):
        if is_solution and not indent:
            lines += solutions.stub_lines("\n".join(part))
        lines += [indent + solutions.BEGIN, *part, indent + solutions.END] if is_solution else part
    return "\n".join(lines)


def points(exercise: str, answer: Any, worth: float) -> float:
    """Check an answer, say how it went, and return its points.

    Raises CheckFailed where it earns none, whatever RN50_CHECK says.
    """
    with no_stderr():
        result = engine.judge(exercise, answer)
    records.store(result)
    if not result.share:
        show_user_errors_plainly()
        raise ask.CheckFailed(result)
    print(*result.lines, sep="\n")
    return round(result.share * worth, 2)


@contextlib.contextmanager
def no_stderr() -> Iterator[None]:
    """Drop what is written to standard error: any of it, such as a framework's warning, means no
    points to nbgrader."""
    kept = os.dup(2)
    with open(os.devnull, "w") as null, contextlib.redirect_stderr(null):
        os.dup2(null.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(kept, 2)
            os.close(kept)
