"""What learners hand in: the right notebook is graded, and the rest is reported by reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
import weakref
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.workshop.course.test_classroom import book
from workshop.course import build, uploads
from workshop.course.grade import learners_of

Book = dict[str, Any]
NAME = "ex01_records.ipynb"
FULL = {"ex01.frame": "2", "ex01.order": "2", "ex01.leak": "2"}
RIGHT, BLANK = book("ex01", solved=True), book("ex01", solved=False)
WRONG = json.loads(json.dumps(RIGHT).replace("def frame(", "def frame(more=0, "))
FRESH = {path.stem[:4]: uploads.code_cells(build.build(ROOT, path).encode())
         for path in build.masters(ROOT) if build.is_exercise(path)}  # fmt: skip


def zipped(path: Path, *entries: tuple[str, Book | bytes]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as file:
        for where, content in entries:
            data = content if isinstance(content, bytes) else json.dumps(content).encode()
            file.writestr(where, data)


def saved(path: Path, made: Book, day: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(made), encoding="utf-8")
    os.utime(path, (day * 86400, day * 86400))


def judged(cells: dict[str, list[uploads.Cell]], notes: list[str]) -> tuple[bool, str]:
    """Return whether the right answers of ex01 would be graded, and the notes."""
    wanted = [cell for cell in uploads.code_cells(json.dumps(RIGHT).encode()) if cell["kind"]]
    mine = [cell for cell in cells.get("ex01", []) if cell["kind"]]
    return mine == wanted, " | ".join(notes)


def work(path: Path) -> tuple[bool, str]:
    return judged(*uploads.read(path, FRESH))


def test_uploads_made_by_hand_are_found(tmp_path: Path) -> None:
    """Copies and other files before the notebook, macOS, Windows, Moodle's folders."""
    where = tmp_path / "in"
    others = [(f"course/.venv/lib/m{i:03}.py", b"x = 1\n") for i in range(3)]
    checkpoint = "exercises\\.ipynb_checkpoints\\ex01_records-checkpoint.ipynb"
    zipped(
        where / "anna.zip", *others, (checkpoint, BLANK),
        (f"__MACOSX/exercises/._{NAME}", bytes(120)), (f"exercises\\{NAME}", RIGHT),
    )  # fmt: skip
    moodle = where / "Ben Berg_1234_assignsubmission_file_"
    moodle.mkdir()
    (moodle / "my work.ipynb").write_bytes(json.dumps(RIGHT).encode("utf-16"))
    zipped(where / "Cy Dee_77_assignsubmission_file_Cy Dee.zip", (NAME, RIGHT))
    saved(where / ".hidden.ipynb", RIGHT)
    found = {one.name: judged(one.cells, one.notes) for one in learners_of(where, FRESH)}
    assert found.keys() == {"anna", "Ben Berg", "Cy Dee"} and found["Ben Berg"] == (True, "")
    right, notes = found["anna"]
    assert right and not notes


@pytest.mark.parametrize(
    "encode",
    [
        lambda made: json.dumps(made).encode("utf-8-sig"),
        lambda made: json.dumps(made, indent=1).replace("\n", "\r\n").encode("utf-16"),
        lambda made: json.dumps(made).replace("\\n", "\\r\\n").encode(),
    ],
    ids=["bom", "utf-16", "crlf"],
)
def test_encodings_and_formats(tmp_path: Path, encode: Callable[[Book], bytes]) -> None:
    (tmp_path / "dora.ipynb").write_bytes(encode(RIGHT))
    cells, notes = uploads.read(tmp_path / "dora.ipynb", FRESH)
    answers = [cell["exercise"] for cell in cells["ex01"] if cell["kind"] == "answer"]
    assert answers == [*FULL] and not notes


@pytest.mark.parametrize(
    ("others", "day"),
    [
        ({"exercises/ex01_records-Copy1.ipynb": WRONG}, 50),
        ({"aaa/ex01_records.ipynb": WRONG}, 50),
        ({"a.ipynb": BLANK, "ex01_records (2).ipynb": BLANK}, 200),
    ],
)
def test_newest_answer_is_graded(tmp_path: Path, others: dict[str, Book], day: int) -> None:
    saved(tmp_path / "anna" / "exercises" / NAME, RIGHT, day=100)
    for where, made in others.items():
        saved(tmp_path / "anna" / where, made, day=day)
    right, notes = work(tmp_path / "anna")
    assert right and f"ex01 is exercises/{NAME}; not graded: " in notes
    assert all(where in notes for where in others)


def locked(path: Path) -> None:
    """Mark the entries of a zip as encrypted, in both of their headers."""
    data = bytearray(path.read_bytes())
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        at = -1
        while (at := data.find(mark, at + 1)) >= 0:
            data[at + offset] |= 1
    path.write_bytes(data)


def test_everything_left_out_is_reported(tmp_path: Path) -> None:
    """Links, encrypted and damaged files, folders that never end."""
    anna = tmp_path / "anna"
    saved(anna / "work" / "ex01_records.ipynb.txt", RIGHT)
    (anna / "link.ipynb").symlink_to(anna / "none")
    (anna / "notes.pdf").write_bytes(b"?")
    zipped(anna / "locked.zip", (NAME, WRONG))
    locked(anna / "locked.zip")
    deep, here = os.open(anna, os.O_RDONLY), os.getcwd()
    os.fchdir(deep)
    for _ in range(30):  # longer than a path may be
        os.mkdir("d" * 200)
        os.chdir("d" * 200)
    os.chdir(here)
    os.close(deep)
    right, notes = work(anna)
    assert right, notes
    for why in ("link.ipynb is a link", "is encrypted", "File name too long"):
        assert why in notes, (why, notes)
    assert "notes.pdf" not in notes


def test_an_upload_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    saved(tmp_path / "anna" / NAME, RIGHT)
    (tmp_path / "ben").symlink_to("anna")
    found = {one.name: judged(one.cells, one.notes) for one in learners_of(tmp_path, FRESH)}
    right, notes = found["ben"]
    assert found["anna"] == (True, "") and not right and "ben is a link" in notes


@pytest.mark.parametrize("method", [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2])
def test_a_zip_that_lies_about_sizes_is_not_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: int
) -> None:
    with zipfile.ZipFile(tmp_path / "anna.zip", "w", method) as file:
        file.writestr(NAME, bytes(2**25))
    data = bytearray((tmp_path / "anna.zip").read_bytes())
    for at in (22, data.rindex(b"PK\x01\x02") + 24):
        data[at : at + 4] = (1000).to_bytes(4, "little")
    (tmp_path / "anna.zip").write_bytes(data)
    monkeypatch.setattr(uploads, "MAX_FILE", 2**20)
    tracemalloc.start()
    right, notes = work(tmp_path / "anna.zip")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert not right and f"{NAME} cannot be read, " in notes and peak < 2**24


def test_one_notebook_of_many_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Cells(list[uploads.Cell]):
        """A list that can be watched."""

    cells_of, made, kept = uploads.cells_of, list[weakref.ref[Cells]](), list[int]()

    def watched(file: uploads.File) -> Cells:
        kept.append(sum(one() is not None for one in made))
        cells = Cells(cells_of(file))
        made.append(weakref.ref(cells))
        return cells

    monkeypatch.setattr(uploads, "cells_of", watched)
    for day in range(1, 8):
        saved(tmp_path / "anna" / f"{day}.ipynb", RIGHT if day == 4 else BLANK, day)
    right, notes = work(tmp_path / "anna")
    assert right and "ex01 is 4.ipynb; not graded: " in notes
    assert kept == [0] + [1] * 6


@pytest.mark.parametrize("name", ["cut.ipynb", "cut.zip"])
def test_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"PK\x03\x04")
    right, notes = work(tmp_path / name)
    assert not right and f"left out: {name} cannot be read, " in notes


def test_upload_without_a_notebook_lists_its_files(tmp_path: Path) -> None:
    (tmp_path / "ex01.py").write_text("x = 1\n")
    right, notes = work(tmp_path / "ex01.py")
    assert not right and "no exercise notebook" in notes and "ex01.py" in notes


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    """Windows writes names in its own code page; some programs mark them as UTF-8 all the same."""
    zipped(tmp_path / "finn.zip", ("Uebung/ex01_records.ipynb", RIGHT))
    data = (tmp_path / "finn.zip").read_bytes()
    (tmp_path / "finn.zip").write_bytes(data.replace(b"Uebung", b"\x9a\x81bung"))
    assert work(tmp_path / "finn.zip") == (True, "")
    zipped(tmp_path / "gina.zip", ("Übung/ex01_records.ipynb", RIGHT))
    data = (tmp_path / "gina.zip").read_bytes()
    (tmp_path / "gina.zip").write_bytes(data.replace("Ü".encode(), b"\xff\xfe"))
    right, notes = work(tmp_path / "gina.zip")
    assert not right and "cannot be read" in notes and "gina.zip" in notes


def test_notebook_that_could_not_be_run_is_an_error(tmp_path: Path) -> None:
    """If nothing was run, as in a container without user namespaces, 0 points are no result."""
    box = tmp_path / "bin" / "bwrap"
    box.parent.mkdir()
    box.write_text('#!/bin/sh\nfor last; do :; done\n[ "$last" = true ] || exec ls "no room"\n')
    box.chmod(0o755)
    saved(tmp_path / "in" / "anna.ipynb", RIGHT)
    command = [sys.executable, "-m", "rn50", "workshop", "grade", tmp_path / "in"]
    env = os.environ | {"PATH": f"{box.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [*command, "-o", tmp_path / "class.html"], cwd=ROOT, env=env, capture_output=True, text=True
    )
    assert done.returncode == 2 and "anna, ex01: " in done.stderr and "no room" in done.stderr, done
    assert "ex01 was not graded: " in (tmp_path / "class.csv").read_text("utf-8-sig")
