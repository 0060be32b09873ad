"""Ten hostile uploads and one honest one: everybody gets what they deserve, nothing stops.

Where the tests run as root, the course and the uploads stand below /usr, in a view of the file
system that ends with the command.
"""

from __future__ import annotations

import json
import os
import shlex
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.workshop.classroom import a_class as made
from tests.workshop.classroom.test_grade import outcomes
from workshop.checks import engine

BOOK = "ex01_records"
SECRET = "Zoe Zebra"
SPY = f"""
import gc, os, pathlib

def index(shard):
    secret = {SECRET[::-1]!r}[::-1]
    seen = []
    for one in gc.get_objects():
        if type(one) in (list, tuple, set):
            seen += [each for each in one if type(each) is str and secret in each]
        elif type(one) is dict:
            seen += [each for each in (*one, *one.values()) if type(each) is str and secret in each]
    for place in PLACES:
        for folder, _, files in os.walk(place):
            seen += [folder + "/" + name for name in files]
    assert not seen, seen[:3]
    raise ValueError("nothing seen")
"""
SURROGATE = "def index(shard):\n    raise ValueError('half \\ud800 of a character')\n"
NAMES = {  # learner: status, ex01.index, what is said
    "1-surrogate": ("handed in", engine.ERROR, "ValueError: half ? of a character"),
    r"2-M\xfcller": ("handed in", engine.PASSED, ""),
    "3-deflate": ("damaged", engine.ERROR, "It was not found. 3-deflate.zip/ex01_records.ipynb"),
    "4-lzma": ("damaged", engine.ERROR, "cannot be unpacked"),
    "5-mallory": ("handed in", engine.NOT_ATTEMPTED, ""),
    "6-large": ("damaged", engine.ERROR, "it is too large"),
    "7-many": ("damaged", engine.PASSED, ""),
    "8-leads-out": ("handed in", engine.PASSED, ""),
    "9-spy": ("handed in", engine.ERROR, "ValueError: nothing seen"),
    "a-newest": ("handed in", engine.NOT_ATTEMPTED, ""),
    SECRET: ("handed in", engine.PASSED, ""),
}


def damaged(path: Path, method: int, text: str) -> None:
    """A zip with one notebook, whose stream is broken in the middle."""
    with zipfile.ZipFile(path, "w", method) as out:
        out.writestr(f"{BOOK}.ipynb", text)
    data = bytearray(path.read_bytes())
    data[60:200] = b"\xff" * 140
    path.write_bytes(data)


def handed_in(where: Path, places: list[str]) -> None:
    right = made.books(True, ("ex01",))
    text, stub = json.dumps(right[BOOK]), json.dumps(made.books(False, ("ex01",))[BOOK])
    made.save(where / SECRET, right)
    for name, source in (("1-surrogate", SURROGATE), ("9-spy", SPY)):
        books = made.books(True, ("ex01",))
        made.answer("ex01.index", source.replace("PLACES", repr(places)))(books)
        made.save(where / name, books)
    umlaut = os.fsencode(where) + b"/2-M\xfcller"
    os.mkdir(umlaut)
    Path(os.fsdecode(umlaut), f"{BOOK}.ipynb").write_text(text)
    Path(os.fsdecode(umlaut + b"/no\xff.ipynb")).write_text("{}")
    damaged(where / "3-deflate.zip", zipfile.ZIP_DEFLATED, text)
    damaged(where / "4-lzma.zip", zipfile.ZIP_LZMA, text)
    with zipfile.ZipFile(where / "5-mallory.zip", "w") as out:
        for name in (f"{SECRET}_1_assignsubmission_file_", f"../{SECRET}", SECRET):
            out.writestr(f"{name}/{BOOK}.ipynb", stub)
    with zipfile.ZipFile(where / "6-large.zip", "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr(f"{BOOK}.ipynb", bytes(41 * 2**20))
    with zipfile.ZipFile(where / "7-many.zip", "w") as out:
        out.writestr(f"{BOOK}.ipynb", text)
        for number in range(2100):
            out.writestr(f"{number}.ipynb", "{}")
    with zipfile.ZipFile(where / "8-leads-out.zip", "w") as out:
        out.writestr("../../escaped.ipynb", text)
        out.writestr("line\n\x1b[2J.ipynb", "{}")
        out.writestr(f"{BOOK}.ipynb", text)
    data = (where / "8-leads-out.zip").read_bytes()
    with zipfile.ZipFile(where / "8-leads-out.zip") as opened:
        date = opened.infolist()[2].date_time
    stamp = (date[0] - 1980) << 9 | date[1] << 5 | date[2]
    data = data.replace(struct.pack("<H", stamp), b"\xff\xff")  # the 31st of month 15
    (where / "8-leads-out.zip").write_bytes(data)
    for name, book, when in (("1.zip", text, "2026-03-01"), ("2/x.zip", stub, "2026-03-02")):
        (where / "a-newest" / name).parent.mkdir(parents=True, exist_ok=True)
        with zipfile.ZipFile(where / "a-newest" / name, "w") as out:
            out.writestr(f"{BOOK}.ipynb", book)
            out.writestr("manifest.json", json.dumps({"made": f"{when}T10:00:00+00:00"}))
    (where.parent / "roster.csv").write_text(
        f"id,name,e-mail\n1,{SECRET},z@uni.example\n2,Missing Person,m@uni.example\n"
    )


@pytest.mark.slow
def test_ten_hostile_uploads(open_folder: Path) -> None:
    where, course = open_folder / "handed-in", ROOT
    source, before = where, []
    if os.geteuid() == 0:
        source, course = Path("/usr/lib/dpkg"), Path("/usr/local/src")
        mounts = f"mount --bind {shlex.quote(str(where))} {source} &&"
        mounts += f" mount --bind {shlex.quote(str(ROOT))} {course} && cd {course} &&"
        before = ["unshare", "-m", "bash", "-c", f'{mounts} exec "$@"', "bash"]
    places = [source, where, course / "exercises" / "source", ROOT / "exercises" / "source"]
    handed_in(where, list(map(str, places)))
    command = [*before, sys.executable, "-m", "rn50", "workshop", "grade", str(source),
               "-o", str(open_folder / "class.html"), "--roster", str(open_folder / "roster.csv"),
               "--jobs", "2", "--time-limit", "60"]  # fmt: skip

    def graded() -> str:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    printed = graded()
    assert "Each answer runs closed in" in printed and "11 submissions graded" in printed
    assert "\x1b" not in printed and "Missing Person" in printed
    found = outcomes(open_folder)
    for who, (status, outcome, said) in NAMES.items():
        row = found[who, "ex01.index"]
        assert (row["status"], row["outcome"]) == (status, outcome), row
        assert said in row["diagnosis"], row
    assert found["Missing Person", "ex01.index"]["status"] == "missing"
    page = (open_folder / "class.html").read_text(encoding="utf-8")
    for part in ("ex01 is taken from a-newest/2/x.zip/ex01_records.ipynb (2026-03-02 10:00:00 UTC",
                 "were not believed", "leads out of the zip", "holds more than is unpacked",
                 "and 1979 notes more",
                 "1-surrogate is not on the roster"):  # fmt: skip
        assert part in page, part
    assert len(list((open_folder / "class-feedback").iterdir())) == 12
    assert not list(open_folder.rglob("*escaped*"))

    kept = open_folder / "class-results.jsonl"
    assert SECRET not in kept.read_text()
    table = (open_folder / "class.csv").read_bytes()
    again = graded()
    assert "12 of 12 are taken from class-results.jsonl" in again
    assert (open_folder / "class.csv").read_bytes() == table
    lines = kept.read_text().splitlines(keepends=True)
    missing = [line for line in lines if "ex01 was not handed in" in line]
    kept.write_text("".join(line for line in lines if line not in missing) + missing[0][:50])
    again = graded()
    assert f"{12 - len(missing)} of 12 are taken from" in again and 0 < len(missing) < 12
    assert (open_folder / "class.csv").read_bytes() == table
