"""Marks: from a graded class to what a teacher edits and what each platform takes."""

from __future__ import annotations

import csv
import io
import json
import os
import shutil
import subprocess
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from tests import capabilities
from tests.conftest import ROOT
from tests.workshop.classroom import a_class as made
from tests.workshop.classroom.test_grade import graded, outcomes

ROSTER = (
    "id,name,e-mail\n7,Anna Berg,anna@uni.example\n8,Ben Wolf,ben@uni.example\n"
    "9,Cem Ak,cem@uni.example\n10,Dora Lind,dora@uni.example\n"
)


def table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig"))))


def marks(where: Path) -> dict[str, dict[str, str]]:
    return {row["learner"]: row for row in table(where / "class-marks.csv")}


def hunted(found: int, in_vain: int = 0) -> made.Book:
    """ex04 with an answer to ex04.hunt alone: so many of the eight mistakes, and lines that are
    none."""
    from workshop.checks import ex04

    mistakes = sorted(ex04.line_of(text) for text in ex04.MISTAKES)
    right = sorted(ex04.line_of(text) for text in ex04.RIGHT)
    book = made.books(False, ("ex04",))["ex04_tfrecord"]
    lines = set(mistakes[:found] + right[:in_vain])
    made.cell(book, "answer", "ex04.hunt")["source"] = f"wrong_lines = {lines}"
    return book


def hand_in(folder: Path, book: made.Book, when: str) -> None:
    made.save(folder, {"ex04_tfrecord": book})
    time = datetime.fromisoformat(when).replace(tzinfo=timezone.utc).timestamp()
    os.utime(folder / "ex04_tfrecord.ipynb", (time, time))


@pytest.mark.slow
def test_marks_go_where_teachers_keep_them(tmp_path):
    where = tmp_path / "handed-in"
    hand_in(where / "Anna Berg", hunted(8), "2026-03-01T17:59:00")
    hand_in(where / "Ben Wolf", hunted(6, in_vain=1), "2026-03-03T18:01:00")
    hand_in(where / "Cem Ak", made.books(False, ("ex04",))["ex04_tfrecord"], "2026-03-01T10:00:00")
    (tmp_path / "class.roster.csv").write_text(ROSTER)
    flags = ("--roster", str(tmp_path / "class.roster.csv"), "--due", "2026-03-01T18:00+00:00",
             "--marks", "moodle", "--marks", "canvas")  # fmt: skip
    graded(tmp_path, *flags)
    assert outcomes(tmp_path)["Ben Wolf", "ex04.hunt"]["outcome"] == "wrong"
    found = marks(tmp_path)
    got = {who: (row["points"], row["ex04"], row["days late"]) for who, row in found.items()}
    # 3 points; 6 found less 1 in vain are 5 of 8 parts
    assert got == {"Anna Berg": ("3", "3", "0"), "Ben Wolf": ("1.88", "1.88", "3"),
                   "Cem Ak": ("0", "0", "0"), "Dora Lind": ("0", "0", "")}  # fmt: skip
    assert found["Dora Lind"]["status"] == "missing" and found["Ben Wolf"]["id"] == "8"
    assert found["Ben Wolf"]["handed in"].startswith("2026-03-03 18:01:00 UTC")
    most = found["Anna Berg"]["of"]

    given = table(tmp_path / "overrides.csv")
    assert [row["learner"] for row in given] == list(found)
    (tmp_path / "overrides.csv").write_text(  # as a spreadsheet of another country writes it
        "learner;exercise;points;remark\nBen Wolf;ex04.hunt;2,5;Line 12 was unclear\n"
        "Anna Berg;;;=very() good\nDora Lind;;1;was ill\nNobody;;1;\n",
        encoding="utf-8-sig",
    )
    printed = graded(tmp_path, *flags)
    assert "overrides.csv, line 5: nobody here is called Nobody" in printed
    found = marks(tmp_path)
    assert [row["points"] for row in found.values()] == ["3", "2.5", "0", "1"]
    assert found["Dora Lind"]["remark"] == "was ill"
    page = (tmp_path / "class-feedback" / "ben-wolf.html").read_text()
    assert "Line 12 was unclear" in page and "2.5 of 3 points" in page
    assert (tmp_path / "overrides.csv").read_text(encoding="utf-8-sig").count("\n") == 5

    # Moodle, "Import: CSV file": a line of names, and columns that say who it is
    moodle = table(tmp_path / "class-moodle.csv")
    assert list(moodle[0]) == ["ID number", "Email address", "Full name", "RN50 workbook",
                               "Feedback: RN50 workbook"]  # fmt: skip
    assert list(moodle[0].values()) == ["7", "anna@uni.example", "Anna Berg", "3", "'=very() good"]
    # Canvas: Student, ID, SIS User ID, SIS Login ID, Section, then assignments; points possible
    canvas = list(csv.reader((tmp_path / "class-canvas.csv").open()))
    assert canvas[0] == ["Student", "ID", "SIS User ID", "SIS Login ID", "Section", "RN50 workbook"]
    assert canvas[1][0].strip() == "Points Possible" and canvas[1][5] == most
    assert canvas[3] == ["Ben Wolf", "", "8", "ben@uni.example", "", "2.5"]


@pytest.mark.parametrize(
    ("text", "said"),
    [("learner,exercise,points,remark\nA,ex04.hant,1,", "line 2: there is no exercise ex04.hant"),
     ("learner,exercise,points,remark\n\nA,,-1,", "line 3: '-1' is no number of points"),
     ("learner,points\nA,1", "line 1: expected are the columns learner,exercise,points,remark")],
)  # fmt: skip
def test_overrides_that_cannot_be_read(tmp_path, rn50, text, said):
    made.save(tmp_path / "in" / "A", made.books(False, ("ex01",)))
    (tmp_path / "overrides.csv").write_text(text)
    status, _, err = rn50(ROOT, "workshop", "grade", tmp_path / "in", "-o", tmp_path / "c.html")
    assert status == 2 and said in err and len(err.splitlines()) == 1
    assert (tmp_path / "overrides.csv").read_text() == text


def test_flags_that_cannot_be_kept(tmp_path, rn50):
    made.save(tmp_path / "in" / "A", made.books(False, ("ex01",)))
    made.save(tmp_path / "in" / "B", made.books(False, ("ex01",)))
    for flags, said in {
        ("--due", "tomorrow"): "'tomorrow' is no time such as 2026-11-23T18:00",
        ("--marks", "canvas"): "--marks canvas needs --roster",
        ("--marks", "gradescope"): "--marks gradescope is for one learner, not 2",
    }.items():
        words = ("workshop", "grade", tmp_path / "in", "-o", tmp_path / "c.html", *flags)
        status, _, err = rn50(ROOT, *words)
        assert status == 2 and said in err and len(err.splitlines()) == 1, err


def installed(zip_: Path, folder: Path) -> Path:
    """As Gradescope lays an autograder out."""
    shutil.unpack_archive(zip_, folder / "source")
    shutil.copy(folder / "source" / "run_autograder", folder)
    (folder / "submission").mkdir()
    return folder


def autograded(folder: Path) -> dict[str, Any]:
    done = subprocess.run(
        ["bash", str(folder / "run_autograder")], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads((folder / "results" / "results.json").read_text())
    return found


@pytest.mark.slow
def test_gradescope_s_autograder(tmp_path, rn50):
    """The zip's own scripts, with this environment in the place of the one that setup.sh makes."""
    status, _, err = rn50(tmp_path, "workshop", "export", "gradescope", tmp_path / "auto.zip")
    assert status == 0, err
    folder = installed(tmp_path / "auto.zip", tmp_path / "autograder")
    assert "### BEGIN" not in "".join(p.read_text() for p in folder.rglob("exercises/source/*.py"))
    (folder / "source" / "course" / ".venv").symlink_to(sys.prefix)
    assert "holds no exercise notebook" in autograded(folder)["output"]

    (folder / "submission" / "ex04_tfrecord.ipynb").write_text(json.dumps(hunted(6)))
    right = made.books(True, ("ex01",))["ex01_records"]
    made.cell(right, "answer", "ex01.frame")["source"] = "def frame(payload):\n    return payload"
    (folder / "submission" / "ex01_records.ipynb").write_text(json.dumps(right))
    found = autograded(folder)
    tests = {test["name"]: test for test in found["tests"]}
    assert found["score"] == sum(test["score"] for test in tests.values()) == 2 + 1 + 2 + 2.25
    assert tests["ex01.crc"]["status"] == "passed" and tests["ex01.crc"]["max_score"] == 2
    assert tests["ex01.frame"]["status"] == "failed" and tests["ex01.frame"]["score"] == 0
    assert tests["ex04.hunt"]["score"] == 2.25 and "6 of 8 mistakes" in tests["ex04.hunt"]["output"]
    assert all(
        0 <= t["score"] <= t["max_score"] and type(t["output"]) is str for t in found["tests"]
    )


@pytest.mark.acceptance
@pytest.mark.needs("package_index", "root")
def test_gradescope_s_setup(tmp_path, rn50):
    """The image as Gradescope builds it, in a folder: `setup.sh`, then a hand-in."""
    status, _, err = rn50(tmp_path, "workshop", "export", "gradescope", tmp_path / "auto.zip")
    assert status == 0, err
    folder = installed(tmp_path / "auto.zip", tmp_path / "autograder")
    subprocess.run(["bash", str(folder / "source" / "setup.sh")], check=True, timeout=3600)
    for name, book in made.books(True, ("ex01", "ex03")).items():
        (folder / "submission" / f"{name}.ipynb").write_text(json.dumps(book))
    tests = {test["name"]: test["status"] for test in autograded(folder)["tests"]}
    assert {tests[name] for name in tests if name[:4] in ("ex01", "ex03")} == {"passed"}


@pytest.mark.slow
@pytest.mark.needs("nbgrader", "tensorflow")
def test_nbgrader_gives_the_same_points(tmp_path, rn50):
    """Right, partly right and untouched: `nbgrader autograde` and `rn50 workshop grade` agree, and
    what `grade` gives is in nbgrader's gradebook by our own way too."""
    course, program = tmp_path / "course", Path(str(capabilities.nbgrader_program()))
    status, _, err = rn50(tmp_path, "workshop", "export", "nbgrader", course)
    assert status == 0, err
    for path in (course / "source" / "rn50").iterdir():
        if path.stem[:4] not in ("ex01", "ex04"):
            path.unlink()
    kernel = tmp_path / "jupyter" / "kernels" / "python3"
    kernel.mkdir(parents=True)
    command = [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    about = {"argv": command, "display_name": "Python 3 (ipykernel)", "language": "python"}
    (kernel / "kernel.json").write_text(json.dumps(about))
    env = os.environ | {"JUPYTER_PATH": str(tmp_path / "jupyter"),
                        "PATH": f"{program.parent}:{os.environ['PATH']}"}  # fmt: skip

    def run(*words: str | Path, where: Path = course) -> None:
        done = subprocess.run(words, cwd=where, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    run(program, "generate_assignment", "rn50")
    released = {p.stem: json.loads(p.read_text()) for p in (course / "release/rn50").iterdir()}
    text = json.dumps(released)
    assert "SOLUTION" not in text and "wrong_lines = ..." in text
    answers = {
        "right": {**made.books(True, ("ex01",)), "ex04_tfrecord": hunted(8)},
        "parts": {**made.books(True, ("ex01",)), "ex04_tfrecord": hunted(5)},
        "untouched": {},
    }
    made.answer("ex01.index", "def index(shard):\n    return []")(answers["parts"])
    for who, books in answers.items():
        for name, book in json.loads(text).items():
            for cell in made.cells(book):
                tags = cell["metadata"].get("tags", [])
                if name in books and tags[:1] == ["answer"]:
                    cell["source"] = made.cell(books[name], *tags)["source"]
            path = course / "submitted" / who / "rn50" / f"{name}.ipynb"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(book))
    run(program, "autograde", "rn50")
    run(program, "export", "--to", tmp_path / "grades.csv")
    theirs = {row["student_id"]: float(row["score"]) for row in table(tmp_path / "grades.csv")}
    shutil.copytree(course / "submitted", tmp_path / "handed-in")
    graded(tmp_path)
    ours = {who: float(row["points"]) for who, row in marks(tmp_path).items()}
    assert theirs == ours == {"right": 10, "parts": 6 + 1.88, "untouched": 0}

    script = ROOT / "workshop" / "classroom" / "platforms" / "nbgrader_gradebook.py"
    (tmp_path / "new").mkdir()
    for _ in range(2):
        words = (program.parent / "python", script, tmp_path / "class-marks.csv", "gradebook.db")
        run(*words, where=tmp_path / "new")
    run(program, "export", "--to", "grades.csv", where=tmp_path / "new")
    rows = table(tmp_path / "new" / "grades.csv")
    assert {row["student_id"]: float(row["score"]) for row in rows} == ours
