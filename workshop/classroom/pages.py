"""The pages of a graded class: one for the instructor, a table, and one page for each learner.

What learners wrote stands on them as text, never as HTML.
"""

from __future__ import annotations

import re
import shutil
import unicodedata
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workshop.checks import engine, table
from workshop.classroom import box, sheets
from workshop.classroom.roster import Person
from workshop.course import pages

MARKS = {**engine.MARKS, engine.ERROR: "!", "not graded": "–"}


@dataclass(frozen=True)
class Line(engine.Result):
    """One exercise of one learner, with a remark of the instructor's."""

    points: float = 0.0
    most: float = 0.0
    remark: str = ""


@dataclass(frozen=True)
class Result:
    """One learner. `status` is handed in, damaged or missing; `handed_in` says when, and by which
    clock; `given` are points in the place of the sum; `notes` are for the instructor, the `remark`
    is the instructor's."""

    learner: str
    person: Person
    status: str
    exercises: list[Line]
    notes: list[str]
    seconds: float
    handed_in: str = ""
    days_late: int | None = None
    given: float | None = None
    remark: str = ""

    @property
    def points(self) -> float:
        return sum(line.points for line in self.exercises) if self.given is None else self.given

    @property
    def most(self) -> float:
        return sum(line.most for line in self.exercises if line.outcome != "not graded")

    @property
    def passed(self) -> int:
        return sum(line.outcome == engine.PASSED for line in self.exercises)

    def of(self, notebook: str) -> list[Line]:
        return [line for line in self.exercises if line.exercise.startswith(f"{notebook}.")]


@dataclass(frozen=True)
class Class:
    """Everything that the pages show."""

    when: str
    seconds: float
    results: list[Result]
    points: dict[str, float]
    notes: list[str]
    open_ways: list[str]
    command: str
    limits: box.Limits
    due: str = ""

    @property
    def exercises(self) -> list[dict[str, Any]]:
        """Of each exercise: how many passed, and what was wrong most often."""
        found = []
        for item in table.EXERCISES:
            lines = [x for one in self.results for x in one.exercises if x.exercise == item.name]
            if not lines:
                continue
            said = Counter(x.said for x in lines if x.outcome in (engine.WRONG, engine.ERROR))
            often, times = said.most_common(1)[0] if said else ("", 0)
            counts = Counter(x.outcome for x in lines)
            entry = {"name": item.name, "counts": counts, "of": len(lines)}
            found.append(entry | {"often": often, "times": times, "points": self.points[item.name]})
        return found

    @property
    def notebooks(self) -> list[tuple[str, list[str]]]:
        names = [entry["name"] for entry in self.exercises]
        kept = [(nb, [n for n in names if n.startswith(f"{nb}.")]) for nb in table.notebooks()]
        return [(notebook, inside) for notebook, inside in kept if inside]


def slug(name: str, taken: set[str]) -> str:
    """A file name for a learner, which no other learner has."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    base = re.sub(r"[^A-Za-z0-9]+", "-", plain).strip("-").lower()[:60] or "learner"
    made, number = base, 2
    while made in taken:
        made, number = f"{base}-{number}", number + 1
    taken.add(made)
    return made


def files(out: Path) -> list[Path]:
    """The page, the table beside it, and the folder of feedback."""
    return [out, out.with_suffix(".csv"), out.with_name(f"{out.stem}-feedback")]


def write(course: Class, out: Path) -> None:
    """Write `files(out)`."""
    _, beside, folder = files(out)
    taken: set[str] = set()
    links = {one.learner: f"{slug(one.learner, taken)}.html" for one in course.results}
    env = pages.environment()
    goals = {item.name: item.goal for item in table.EXERCISES}
    new = folder.with_name(f"{folder.name}.new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir()
    for one in course.results:
        text = env.get_template("feedback.html").render(
            one=one, course=course, goals=goals, marks=MARKS
        )
        (new / links[one.learner]).write_text(text, encoding="utf-8")
    shutil.rmtree(folder, ignore_errors=True)
    new.rename(folder)
    beside.write_text(spreadsheet(course), encoding="utf-8-sig", newline="")
    page = env.get_template("class.html").render(
        course=course, links=links, folder=folder.name, table=beside.name, marks=MARKS
    )
    out.write_text(page, encoding="utf-8")


def spreadsheet(course: Class) -> str:
    """A row for each exercise of each learner."""
    head = ("learner", "exercise", "outcome", "points", "of", "diagnosis", "status", "remark")
    return sheets.text([head, *(
        (one.learner, x.exercise, x.outcome, f"{x.points:g}", f"{x.most:g}", x.said, one.status,
         x.remark)
        for one in course.results for x in one.exercises
    )])  # fmt: skip
