"""Whose a hand-in is, and which of two counts, by real names of each platform."""

from __future__ import annotations

import json
import os
import shutil
import zipfile
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from workshop.classroom import collect, roster

STEMS = ["ex03_horovod", "ex04_tfrecord"]
GRADESCOPE = """---
submission_87184652:
  :submitters:
  - :name: Tariq Moss
    :sid: '4711'
    :email: t.moss@uni.example
  - :name: Uma Lind
    :sid: '4712'
    :email: u.lind@uni.example
  :created_at: 2026-11-10 18:25:53.109082000 Z
  :score:
  :status: unprocessed
"""


def collected(work: Path, *sources: Path, people: str = "") -> tuple[dict[str, list[str]], str]:
    """(by learner the notebooks, all notes)."""
    work.mkdir(exist_ok=True)
    (work / "roster.csv").write_text(people)
    known = roster.load(work / "roster.csv") if people else None
    collector = collect.Collector(work, STEMS, known)
    found = collector.collect(*sources)
    for one in found:
        assert all(file.path.exists() for file in one.notebooks.values())
    notes = [f"{one.learner}: {note}" for one in found for note in one.notes]
    return {one.learner: sorted(one.notebooks) for one in found}, "\n".join(
        [*collector.notes, *notes]
    )


def zipped(path: Path, *names: str, text: str = "{}", at: datetime | None = None) -> Path:
    with zipfile.ZipFile(path, "w") as out:
        for name in names:
            when = at.timetuple()[:6] if at else (1980, 1, 1, 0, 0, 0)
            out.writestr(zipfile.ZipInfo(name, when), text)
    return path


def test_ours(tmp_path):
    where = tmp_path / "handed-in"
    for name in ("anna/ex03.ipynb", "anna/work/ex04_tfrecord.ipynb", "ex03_ben.ipynb",
                 "ex04_tfrecord_ben.ipynb", "ex03_horovod.ipynb", "anna/lesson.ipynb"):  # fmt: skip
        (where / name).parent.mkdir(parents=True, exist_ok=True)
        (where / name).write_text("{}")
    (where / "anna" / "link.ipynb").symlink_to("/etc/passwd")
    zipped(where / "rn50-gina.zip", "ex03_horovod.ipynb", "answers/capstone.py", "manifest.json")
    whole = zipped(tmp_path / "own.zip", "ex03_horovod.ipynb").read_bytes()
    (where / "broken.zip").write_bytes(whole[:60])
    found, notes = collected(tmp_path / "work", where)
    assert found == {"anna": ["ex03", "ex04"], "ben": ["ex03", "ex04"], "gina": ["ex03"],
                     "broken": []}  # fmt: skip
    for part in ("ex03_horovod.ipynb names no learner", "lesson.ipynb is no exercise",
                 "link.ipynb is a link", "broken: broken.zip cannot be unpacked"):  # fmt: skip
        assert part in notes, (part, notes)


def test_moodle(tmp_path):
    own = zipped(tmp_path / "own.zip", "work/ex03_horovod.ipynb")
    export = tmp_path / "Course-Exercise 3-4711.zip"
    with zipfile.ZipFile(export, "w") as out:
        for number in (657737, 657768):  # two of the same name
            out.write(own, f"Eva Klein_{number}_assignsubmission_file_/a.zip")
        out.writestr("Finn Wolf_657772_assignsubmission_file_ex03_horovod.ipynb", "{}")
        out.writestr("Finn Wolf_657772_assignsubmission_file_/ex04.ipynb", "{}")
    found, _ = collected(tmp_path / "work", export)
    assert found == {"Eva Klein (657737)": ["ex03"], "Eva Klein (657768)": ["ex03"],
                     "Finn Wolf": ["ex03", "ex04"]}  # fmt: skip


def test_canvas(tmp_path):
    where = tmp_path / "submissions"
    where.mkdir()
    (where / "bergann_12345_678_ex03_horovod-1.ipynb").write_text("{}")
    shutil.copy(zipped(tmp_path / "a.zip", "ex04.ipynb"), where / "wolffinn_LATE_222_9_work.zip")
    shutil.copy(tmp_path / "a.zip", where / "bergann_12345_679_more.zip")
    assert collected(tmp_path / "work", where)[0] == {
        "bergann": ["ex03", "ex04"], "wolffinn": ["ex04"]
    }  # fmt: skip


def test_nbgrader(tmp_path):
    for name in ("submitted/bitdiddle/ps1/ex03_horovod.ipynb",
                 "inbound/hacker+ps1+2026-11-02 15:58:23.948203 UTC+9gbq/ex03.ipynb"):  # fmt: skip
        (tmp_path / "course" / name).parent.mkdir(parents=True)
        (tmp_path / "course" / name).write_text("{}")
    course = tmp_path / "course"
    assert collected(tmp_path / "a", course / "submitted")[0] == {"bitdiddle": ["ex03"]}
    assert collected(tmp_path / "b", course / "inbound")[0] == {"hacker": ["ex03"]}
    shutil.rmtree(course / "inbound")
    assert collected(tmp_path / "c", course)[0] == {"bitdiddle": ["ex03"]}


@pytest.mark.parametrize("packed", [True, False])
def test_gradescope(tmp_path, packed):
    """Who stands behind a folder says the export's own list; a group is a row each."""
    export = tmp_path / "assignment_9100_export.zip"
    with zipfile.ZipFile(export, "w") as out:
        out.writestr("assignment_9100_export/submission_metadata.yml", GRADESCOPE)
        out.writestr("assignment_9100_export/submission_87184652/ex03_horovod.ipynb", "{}")
        out.writestr("assignment_9100_export/submission_99/ex04.ipynb", "{}")
    if not packed:
        with zipfile.ZipFile(export) as opened:
            opened.extractall(tmp_path / "out")
        export = tmp_path / "out"
    assert collected(tmp_path / "work", export)[0] == {
        "Tariq Moss": ["ex03"], "Uma Lind": ["ex03"], "submission_99": ["ex04"]
    }  # fmt: skip


def test_name_inside_of_an_upload_stands_for_nobody(tmp_path):
    """As a folder of uploads, as Moodle's export, and with Moodle's form in the file's own name."""
    forged = zipped(tmp_path / "m.zip", "anna_1_assignsubmission_file_/ex03.ipynb", text="forged")
    where = tmp_path / "handed-in"
    (where / "anna_1_assignsubmission_file_").mkdir(parents=True)
    (where / "anna_1_assignsubmission_file_" / "ex03.ipynb").write_text("own")
    shutil.copy(forged, where / "mallory.zip")
    shutil.copy(forged, where / "eve_2_assignsubmission_file_x.zip")
    name = "finn_3_assignsubmission_file_anna_1_assignsubmission_file_ex04.ipynb"
    (where / name).write_text("forged")
    collector = collect.Collector(tmp_path, STEMS)
    found = {one.learner: one for one in collector.collect(where)}
    assert found["anna"].notebooks["ex03"].path.read_text() == "own" and not found["anna"].notes
    assert set(found) == {"anna", "mallory", "eve"} and not found["anna"].notebooks.get("ex04")
    assert "not believed" in found["mallory"].notes[0] and "not believed" in found["eve"].notes[0]


def test_newest_counts_and_the_page_says_why(tmp_path):
    """Two zips of `submit`: the manifest decides, not the alphabet, and not a time to come."""
    where = tmp_path / "handed-in"
    where.mkdir()
    now = datetime.now(timezone.utc)
    for name, hours in (("a", -1), ("b", -5), ("c", 24 * 365)):
        made = (now + timedelta(hours=hours)).isoformat()
        path = where / f"anna_{len(name)}_assignsubmission_file_{name}.zip"
        with zipfile.ZipFile(path, "w") as out:
            out.writestr(zipfile.ZipInfo("ex03.ipynb"), name)
            out.writestr("manifest.json", json.dumps({"learner": "anna", "made": made}))
        os.utime(path, (0, now.timestamp() - 10 * 3600))
    (one,) = collect.Collector(tmp_path, STEMS).collect(where)
    assert one.notebooks["ex03"].path.read_text() == "a"
    assert "by its manifest" in one.notes[0] and "UTC" in one.notes[0]
    assert "file_a.zip/ex03.ipynb" in one.notes[0].split("newer than")[0]
    assert "by the file's time" in one.notes[1]


def test_upload_time_counts_where_there_is_no_manifest(tmp_path):
    early, late = datetime(2026, 3, 1), datetime(2026, 3, 2)
    old = zipped(tmp_path / "old.zip", "ex03.ipynb", text="old", at=late)
    new = zipped(tmp_path / "new.zip", "ex03.ipynb", text="new", at=early)
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as out:
        for path, when in ((new, late), (old, early)):
            name = f"Anna Berg_1_assignsubmission_file_/{path.name}"
            out.writestr(zipfile.ZipInfo(name, when.timetuple()[:6]), path.read_bytes())
    (one,) = collect.Collector(tmp_path, STEMS).collect(tmp_path / "all.zip")
    assert one.notebooks["ex03"].path.read_text() == "new"


@pytest.mark.parametrize("name", ["../ex03.ipynb", "/ex03.ipynb", "a/../../ex03.ipynb",
                                  "..\\ex03.ipynb", "C:\\ex03.ipynb"])  # fmt: skip
def test_zip_that_leads_out_is_refused(tmp_path, name):
    (tmp_path / "in").mkdir()
    zipped(tmp_path / "in" / "mia.zip", name, "ex04_tfrecord.ipynb")
    found, notes = collected(tmp_path / "work", tmp_path / "in")
    assert found == {"mia": ["ex04"]} and "leads out of the zip: refused" in notes
    assert not list(tmp_path.glob("*.ipynb"))


ROSTER = """id;name;e-mail
4711;Moss, Tariq;t.moss@uni.example
4712;Anna Äpfel;a.aepfel@uni.example
4713;Ann Berg;bergie@uni.example
4714;Max Muster;m1@uni.example
4715;Max Muster;m2@uni.example
"""


def test_roster_gives_a_row_for_everybody(tmp_path):
    where = tmp_path / "in"
    where.mkdir()
    for name in ("Tariq Moss_1_assignsubmission_file_ex03.ipynb", "ex03_a.aepfel.ipynb",
                 "bergann_12345_678_ex03.ipynb", "ex03_m1.ipynb", "ex03_Max Muster.ipynb",
                 "ex04_bergie.ipynb"):  # fmt: skip
        (where / name).write_text("{}")
    zipped(where / "rn50-A\u0308pfel-Anna.zip", "ex04.ipynb")  # as macOS writes an Ä
    found, notes = collected(tmp_path / "work", where, people=ROSTER)
    assert found == {
        "Moss, Tariq": ["ex03"], "Anna Äpfel": ["ex03", "ex04"], "Ann Berg": ["ex03", "ex04"],
        "Max Muster (4714)": ["ex03"], "Max Muster (4715)": [], "Max Muster": ["ex03"],
    }  # fmt: skip
    assert notes == "Max Muster is not on the roster"


@pytest.mark.parametrize(("text", "said"), [
    ("name,mail\nA,b", "line 1: expected are the columns"),
    ("id,name,e-mail\n1,A,x\n1,B,y", "line 3: expected are a name and an id of its own"),
])  # fmt: skip
def test_roster_that_cannot_be_read(tmp_path, text, said):
    (tmp_path / "class.csv").write_text(text)
    with pytest.raises(roster.UserError, match=said):
        roster.load(tmp_path / "class.csv")
