"""Where the marks go: a row for each learner, and from it what each platform takes.

`-o class.html` puts `class-marks.csv` beside the page, and with `--marks canvas` `class-canvas.csv`
too. nbgrader's gradebook takes `class-marks.csv` itself, by `platforms/nbgrader_gradebook.py`.
"""

from __future__ import annotations

import json
from pathlib import Path

from workshop.checks import engine, table
from workshop.classroom import sheets
from workshop.classroom.pages import Class, Result

COURSE = "RN50 workbook"  # what its column is called in a gradebook
COLUMNS = ("learner", "id", "e-mail", "status", "handed in", "days late")
Rows = list[dict[str, str]]


def rows(course: Class) -> Rows:
    """The marks of everybody; all that is written for a platform comes from here."""
    found = []
    for one in course.results:
        late = "" if one.days_late is None else str(one.days_late)
        about = (one.learner, one.person.id, one.person.mail, one.status, one.handed_in, late)
        row = dict(zip(COLUMNS, about, strict=True))
        for notebook in table.notebooks():
            row[notebook] = f"{sum(line.points for line in one.of(notebook)):g}"
        found.append(row | {"points": f"{one.points:g}", "of": f"{one.most:g}"})
        found[-1]["remark"] = one.remark
    return found


def plain(marks: Rows) -> str:
    """`class-marks.csv`; Moodle's "Import: CSV file" takes it too, column by column."""
    return sheets.text([list(marks[0]), *(row.values() for row in marks)])


def moodle(marks: Rows) -> str:
    """As Moodle's gradebook exports: "ID number" or "Email address" says who it is."""
    head = ("ID number", "Email address", "Full name", COURSE, f"Feedback: {COURSE}")
    names = ("id", "e-mail", "learner", "points", "remark")
    return sheets.text([head, *([row[name] for name in names] for row in marks)])


def canvas(marks: Rows) -> str:
    """As Canvas's gradebook exports: the five columns about a student, then the assignment."""
    head = ("Student", "ID", "SIS User ID", "SIS Login ID", "Section", COURSE)
    possible = ("    Points Possible", "", "", "", "", marks[0]["of"])
    students = [(r["learner"], "", r["id"], r["e-mail"], "", r["points"]) for r in marks]
    return sheets.text([head, possible, *students])


FORMATS = {"moodle": moodle, "canvas": canvas}


def gradescope(one: Result) -> str:
    """`results.json` of Gradescope's autograder, for one learner. What could not be graded here
    counts nowhere."""
    tests = [
        {
            "name": line.exercise,
            "score": line.points,
            "max_score": line.most,
            "status": "passed" if line.outcome == engine.PASSED else "failed",
            "output": " ".join(filter(None, (line.outcome + ":", line.said, line.then))),
        }
        for line in one.exercises
        if line.outcome != "not graded"
    ]
    left = [line.exercise for line in one.exercises if line.outcome == "not graded"]
    said = f"Not graded here: {', '.join(left)}." if left else ""
    return json.dumps({"score": one.points, "output": said, "tests": tests}, indent=1) + "\n"


def files(out: Path, platforms: list[str]) -> dict[str, Path]:
    """The path of each table beside the page: "marks" and the platforms."""
    kinds = {"gradescope": "json"}
    names = dict.fromkeys(["marks", *platforms])
    return {name: out.with_name(f"{out.stem}-{name}.{kinds.get(name, 'csv')}") for name in names}


def write(course: Class, out: Path, platforms: list[str]) -> None:
    """Write `files`."""
    marks = rows(course)
    for name, path in files(out, platforms).items():
        if name == "gradescope":
            path.write_text(gradescope(course.results[0]), encoding="utf-8")
        else:
            text = FORMATS.get(name, plain)(marks)
            path.write_text(text, encoding="utf-8-sig" if name == "marks" else "utf-8", newline="")
