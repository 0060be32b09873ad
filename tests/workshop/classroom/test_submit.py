"""What a learner hands in: the exercises that were worked on, and nothing else."""

from __future__ import annotations

import json
import zipfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.workshop.conftest import MASTER
from workshop.classroom import collect
from workshop.course import build

CELL = "### BEGIN SOLUTION\nanswer = 6 * 7\n### END SOLUTION"


@pytest.fixture
def course(checkout, tmp_path, monkeypatch) -> Path:
    """A small course with two exercises, and a home folder of its own."""
    (checkout / "exercises" / "source").mkdir(parents=True)
    (checkout / "notebooks" / "source" / "00_start_here.py").write_text(MASTER)
    for name in ("ex01_numbers", "ex02_words"):
        text = f"# %% [markdown]\n# # {name}\n\n# %%\n{CELL}\n"
        (checkout / "exercises" / "source" / f"{name}.py").write_text(text)
    for master in build.masters(checkout):
        build.write(build.build(checkout, master))
    monkeypatch.setenv("HOME", str(tmp_path / "home" / "anna"))
    monkeypatch.delenv("RN50_RUNS", raising=False)
    monkeypatch.delenv("RN50_LEARNER", raising=False)
    return checkout


def work_on(course: Path, source: str = "answer = 42") -> None:
    """A solved cell with an output that shows a path of the learner's."""
    path = course / "exercises" / "ex01_numbers.ipynb"
    book = json.loads(path.read_text())
    (cell,) = [c for c in book["cells"] if c["cell_type"] == "code"]
    cell["source"] = source
    cell["outputs"] = [{"output_type": "stream", "name": "stdout", "text": str(Path.home())}]
    book["metadata"]["widgets"] = {"path": str(Path.home())}
    path.write_text(json.dumps(book))


def inside(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as opened:
        return {name: opened.read(name).decode() for name in opened.namelist()}


def test_zip_has_the_work_and_nothing_else(course, rn50):
    work_on(course)
    (course / "answers").mkdir()
    (course / "answers" / "ex01.py").write_text("def f():\n    return 1\n")
    (course / "answers" / "ex01.json").write_text('{"ex01.frame": {"outcome": "passed"}}')
    for name in ("data/roadsigns/a.jpg", "runs/x/report.json"):
        (course / name).parent.mkdir(parents=True)
        (course / name).write_text("x")
    status, out, err = rn50(course, "workshop", "submit", "--name", "Anna Äpfel")
    assert status == 0, err
    assert out == (
        "rn50-Anna-Äpfel.zip: 1 exercise notebook and 1 file of answers/ of Anna Äpfel:"
        " ex01_numbers.ipynb, answers/ex01.py.\n"
    )
    found = inside(course / "rn50-Anna-Äpfel.zip")
    assert list(found) == ["ex01_numbers.ipynb", "answers/ex01.py", "manifest.json"]
    assert str(Path.home()) not in "".join(found.values())
    (cell,) = [
        c for c in json.loads(found["ex01_numbers.ipynb"])["cells"] if c["cell_type"] == "code"
    ]
    assert cell["source"] == "answer = 42" and cell["outputs"] == []
    about = json.loads(found["manifest.json"])
    made = datetime.fromisoformat(about["made"])
    assert about["learner"] == "Anna Äpfel" and made.utcoffset() == timedelta(0)
    assert abs(datetime.now(timezone.utc) - made) < timedelta(minutes=5)
    with zipfile.ZipFile(course / "rn50-Anna-Äpfel.zip") as opened:
        stamps = {datetime(*info.date_time, tzinfo=timezone.utc) for info in opened.infolist()}
    assert max(stamps) - made < timedelta(seconds=2) and len(stamps) == 1


def test_grading_knows_whose_it_is(course, rn50, tmp_path):
    work_on(course)
    (tmp_path / "in").mkdir()
    (tmp_path / "work").mkdir()
    rn50(course, "workshop", "submit", "--name", "anna", "-o", tmp_path / "in" / "rn50-anna.zip")
    (found,) = collect.Collector(tmp_path / "work", ["ex01_numbers"]).collect(tmp_path / "in")
    assert found.learner == "anna" and list(found.notebooks) == ["ex01"]


def test_nothing_to_hand_in_is_said_kindly(course, rn50):
    status, out, err = rn50(course, "workshop", "submit", "--name", "anna")
    assert status == 2 and not out
    assert "there is nothing to hand in" in err and len(err.splitlines()) == 1
    assert not list(course.glob("*.zip*"))


@pytest.mark.parametrize("name", ["", "  ", "///"])
def test_without_a_name_it_asks_for_one(course, rn50, name):
    work_on(course)
    status, _, err = rn50(course, "workshop", "submit", "--name", name)
    assert status == 2 and "--name" in err


def test_path_in_the_learner_s_own_code_is_told(course, rn50):
    work_on(course, f"answer = open({str(Path.home() / 'x')!r})")
    status, out, _ = rn50(course, "workshop", "submit", "--name", "anna")
    assert status == 0 and "Your home folder's path stands in ex01_numbers.ipynb." in out


def test_damaged_notebook_is_named(course, rn50):
    (course / "exercises" / "ex02_words.ipynb").write_text("{")
    status, _, err = rn50(course, "workshop", "submit", "--name", "anna")
    assert status == 2 and "ex02_words.ipynb cannot be read as a notebook" in err
    assert "rn50 workshop reset ex02_words" in err
