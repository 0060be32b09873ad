"""A class: the learners' copy, grading here and with nbgrader."""

from __future__ import annotations

import contextlib
import csv
import json
import os
import re
import socket
import stat
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests import capabilities
from tests.conftest import ROOT
from tests.support import leaving_nothing
from workshop import masters
from workshop.course import build, release
from workshop.course.grade import bubblewrap_works

Book = dict[str, Any]
TELLING = 24  # characters; shorter lines such as `return x` reveal nothing


def book(name: str, solved: bool) -> Book:
    """An exercise notebook of the course, such as ex01."""
    (master,) = (path for path in build.masters(ROOT) if path.stem.startswith(name))
    found: Book = json.loads(build.build(ROOT, master, solved=solved))
    return found


def cell(book: Book, *tags: str) -> dict[str, Any]:
    (found,) = (c for c in book["cells"] if c["metadata"].get("tags") == list(tags))
    return found


def answered(exercise: str, source: str) -> Book:
    """A solved notebook in which one answer is `source`."""
    made = book(exercise[:4], solved=True)
    cell(made, "answer", exercise)["source"] = source
    return made


# --- release --------------------------------------------------------------------------------------


def secrets() -> set[str]:
    """Return the revealing lines of all solutions, without those that the exercises show anyway."""
    found, given = set(), set()
    for master in build.masters(ROOT):
        for part in masters.read_master(master):
            if part["cell_type"] == "code":
                for _, lines, secret in masters.regions(part["source"], str(master)):
                    (found if secret else given).update(map(str.strip, lines))
                given.update(map(str.strip, masters.stub(part["source"]).splitlines()))
            else:
                given.update(map(str.strip, part["source"].splitlines()))
    return {line for line in found - given if len(line) >= TELLING and not line.startswith('"""')}


def library() -> str:
    """Return what every learner may read: library, lessons, checks, hints, pages and scripts."""
    folders = (
        "rn50lib",
        "rn50",
        "data_prep",
        "workshop",
        "notebooks/source",
        "benchmarks",
        "scripts",
    )
    found = [path for name in folders for path in (ROOT / name).rglob("*.py")]
    found += [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), *ROOT.glob("exercises/*/*.md")]
    found += [ROOT / "workshop/checks/hints.md"]
    found += [path for path in ROOT.glob("exercises/*/*.py") if path.parent.name != "source"]
    return "\n".join(path.read_text(encoding="utf-8") for path in found)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("release") / "course"
    release.release(ROOT, target)
    return target


@pytest.mark.slow
def test_no_line_of_a_solution_is_in_the_learners_copy(copy: Path) -> None:
    known = library()
    hidden = {line for line in secrets() if line not in known}
    assert len(hidden) > 60  # the search has something to find
    found = []
    for path in copy.rglob("*"):
        if path.suffix in (".py", ".ipynb", ".md", ".json", ".txt", ".toml"):
            text = path.read_text(encoding="utf-8").replace('\\"', '"')
            found += [(str(path.relative_to(copy)), line) for line in hidden if line in text]
    assert not found
    assert not [path for path in copy.rglob("*") if path.name == "solutions"]
    assert {path.name for path in copy.iterdir()}.isdisjoint({"tests", "answers", "runs", ".git"})


@pytest.mark.slow
def test_learners_copy_is_a_working_course(copy: Path) -> None:
    assert build.drift(copy) == []
    for page in copy.glob("*.md"):
        text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
        for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text):
            if "://" not in link:
                assert (copy / link).exists(), (page.name, link)
    for name in ("README.md", "Makefile"):  # it has no tests
        text = (copy / name).read_text(encoding="utf-8")
        assert "make test" not in text and "make acceptance" not in text
    program = (
        "import workshop as w, rn50.cli; print(rn50.cli.__file__)\n"
        "try: w.solution('ex03.shard', now=True)\n"
        "except Exception as error: print(type(error).__name__, error)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=copy, env={"PYTHONPATH": str(copy), "PATH": "/bin"},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    where, said = done.stdout.splitlines()
    assert Path(where).is_relative_to(copy) and "your instructor" in said, done


def test_release_refuses_a_folder_in_use(rn50, tmp_path: Path) -> None:
    status, _, err = rn50(ROOT, "workshop", "release", tmp_path)
    assert status == 2 and "exists already" in err
    (tmp_path / "link").symlink_to(ROOT / "docs")
    for inside in (ROOT / "notebooks/x", tmp_path / "link/x", f"{ROOT}/../{ROOT.name}/docs/x"):
        status, _, err = rn50(ROOT, "workshop", "release", inside)
        assert status == 2 and "is inside the course" in err


# --- grade ----------------------------------------------------------------------------------------

LOOP = "def frame(payload):\n    while True:\n        pass\n"
MEMORY = "def slowdown(*anything):\n    return bytearray(2**34)\n"
ENDS = """
import os
def test_split(split):
    for _ in range(1200):
        os.mkdir("d")
        os.chdir("d")
    os.chmod(".", 0)
    os._exit(0)
"""
ODD = "def frame(payload):\n    raise ValueError('=1+1\\n<script>half \\ud800 of\\x1b[2J')\n"
READS = """
import os, pathlib, socket
def frame(payload):
    seen = [name for place in PLACES for name in pathlib.Path(place).glob("*")]
    for address in ADDRESSES:
        kind = socket.AF_UNIX if isinstance(address, str) else socket.AF_INET
        if not socket.socket(kind).connect_ex(address):
            seen.append(address)
    os.listdir(os.environ["RN50_DATA"] + "/signs")
    if not seen:
        raise ValueError("closed in")
"""
ESCAPES = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        time.sleep(600)
    os._exit(0)
"""


@contextlib.contextmanager
def curious(uploads: Path) -> Iterator[tuple[Book, dict[str, str]]]:
    """An answer that looks for uploads, solutions and services, and data that it may read."""
    places = [str(uploads), *(str(ROOT / name) for name in ("exercises/source", "tests", ".git"))]
    for link, place in ("data", "disk"), ("disk/signs", "scratch"):
        (uploads.parent / place).mkdir()
        (uploads.parent / link).symlink_to(uploads.parent / place)
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))
        here = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        local = stack.enter_context(socket.create_server(f"{folder}/s", family=socket.AF_UNIX))
        addresses = repr([here.getsockname(), local.getsockname()])
        source = READS.replace("PLACES", repr(places)).replace("ADDRESSES", addresses)
        yield answered("ex01.frame", source + ESCAPES), {"RN50_DATA": str(uploads.parent / "data")}


def graded(uploads: Path, *flags: str, **env: str) -> tuple[str, dict[str, dict[str, str]]]:
    """Run the command; return its output, and the rows of the table by learner."""
    out = uploads.parent / "class.html"
    command = [sys.executable, "-m", "rn50", "workshop", "grade", uploads, "-o", out, *flags]
    with leaving_nothing():
        done = subprocess.run(
            command, cwd=ROOT, env=os.environ | env, capture_output=True, text=True, timeout=1800
        )
    assert done.returncode == 0, done.stdout + done.stderr
    with out.with_suffix(".csv").open(encoding="utf-8-sig", newline="") as file:
        return done.stdout, {row["learner"]: row for row in csv.DictReader(file)}


def save(folder: Path, made: Book) -> None:
    folder.mkdir(parents=True)
    (folder / "ex01.ipynb").write_text(json.dumps(made), encoding="utf-8")


@pytest.mark.slow
def test_one_row_per_learner_whatever_an_upload_contains(tmp_path: Path) -> None:
    where = tmp_path / "in"
    right = book("ex01", solved=True)
    wrong = answered("ex01.frame", LOOP)
    cell(wrong, "answer", "ex01.order")["source"] = MEMORY
    save(where / "=odd<script>", wrong)
    ends = answered("ex01.leak", ENDS)
    ends["cells"].append({"cell_type": "code", "metadata": {}, "source": "!ls\n" * 501})
    cell(ends, "answer", "ex01.frame")["source"] = ODD
    save(where / "ends", ends)
    helped = answered("ex01.frame", "def frame(payload):\n    return walk(payload)")
    own = "".join(cell(right, "answer", "ex01.frame")["source"]).replace("def frame", "def walk")
    helper = {"cell_type": "code", "id": "x", "metadata": {}, "source": f"explode()\n{own}"}
    at = helped["cells"].index(cell(helped, "answer", "ex01.frame"))
    helped["cells"].insert(at, helper)
    cell(helped, "check", "ex01.leak")["source"] = "print('passed')"
    (where / "Anna Äpfel.ipynb").write_text(json.dumps(helped))
    save(where / "untouched", book("ex01", solved=False))
    again = answered("ex01.frame", "def frame(payload): return b''")  # and a right copy below it
    places = [again["cells"].index(cell(again, kind, "ex01.frame")) for kind in ("answer", "check")]
    for kind in ("check", "answer"):
        again["cells"].insert(max(places) + 1, cell(right, kind, "ex01.frame"))
    own_test = cell(again, "answer", "ex01.order")  # fails after the definition: the check counts
    own_test["source"] = "".join(own_test["source"]) + "\nassert not 'what the learner thinks'\n"
    save(where / "again", again)
    for name in ("+sum", "-sum", "@sum", "empty"):
        (where / name).mkdir()
    os.mkfifo(where / "empty" / "ex01.ipynb")
    (where / "deep.ipynb").write_text("[" * 100_000)
    (where / "not-a-book.ipynb").write_text('{"cells": [{"cell_type": "code", "source": 7}]}')
    with zipfile.ZipFile(where / "ben.zip", "w", zipfile.ZIP_DEFLATED) as out:
        out.writestr("../../escaped.ipynb", json.dumps(right))
        out.writestr("/large.ipynb", bytes(41 * 2**20))
    data = bytearray((where / "ben.zip").read_bytes())
    data[60:200] = bytes(140)
    (where / "damaged.zip").write_bytes(data)
    Path(os.fsdecode(os.fsencode(where) + b"/M\xfcller")).mkdir()
    (where / ".hidden.ipynb").write_text("{}")
    (tmp_path / "tmp").mkdir()
    with curious(where) as (made, env):
        save(where / "curious", made)
        flags = ("--time-limit", "10", "--memory", "2", "--jobs", "2")
        printed, found = graded(where, *flags, TMPDIR=str(tmp_path / "tmp"), **env)
    assert not os.listdir(tmp_path / "tmp")
    for name in ("class.html", "class.csv"):  # marks are not for others
        assert stat.S_IMODE((tmp_path / name).stat().st_mode) == 0o600
    full = {"ex01.frame": "2", "ex01.order": "2", "ex01.leak": "2"}
    for who in ("Anna Äpfel", "ben", "again"):
        assert full.items() <= found[who].items(), (printed, found[who])
    nothing = dict.fromkeys(("ex01.frame", "ex01.order"), "0")
    odd = found["'=odd<script>"]  # each answer costs its own points alone
    assert (full | nothing).items() <= odd.items(), (printed, odd)
    assert {"'+sum", "'-sum", "'@sum"} < found.keys()  # Excel would read them as formulas
    assert (full | {"ex01.frame": "0", "ex01.leak": "0"}).items() <= found["ends"].items(), printed
    for who, said in {"empty": "no exercise notebook", "deep": "cannot be read", "M?ller": "no ex",
                      "not-a-book": "cannot be read", "damaged": "cannot be read",
                      "ben": "larger than 40 MiB", "untouched": ""}.items():  # fmt: skip
        (row,) = (row for name, row in found.items() if re.fullmatch(who.replace("?", "."), name))
        assert said in row["notes"] and (who == "ben" or row["points"] == "0"), row
    assert len(found) == len(list(where.glob("[!.]*"))) and not list(tmp_path.rglob("*escaped*"))
    assert "empty: no exercise notebook" in printed, printed
    page = (tmp_path / "class.html").read_text(encoding="utf-8")
    boxed = ["under bubblewrap", "closed in"] if bubblewrap_works() else ["without bubblewrap"]
    for said in ("the time limit of 10 s", "MemoryError", "Python ended", "can forge", *boxed):
        assert said in page, said
    assert found["curious"]["ex01.order"] == "2", printed
    assert "<script" not in page and "\x1b" not in page


@pytest.mark.slow
def test_what_was_graded_before_an_interruption_is_kept(tmp_path: Path) -> None:
    where, out = tmp_path / "in", tmp_path / "class.html"
    save(where / "a", book("ex01", solved=True))
    save(where / "b", answered("ex01.frame", LOOP))
    command = [sys.executable, "-m", "rn50", "workshop", "grade", where, "-o", out, "--jobs", "1"]
    with (
        leaving_nothing(),
        subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as running,
    ):
        assert running.stdout is not None
        while "a, ex01: 3 of 3 passed" not in running.stdout.readline():
            assert running.poll() is None
        time.sleep(5)  # the other one begins
        running.terminate()
        running.wait(20)  # and not for its time limit
    with out.with_suffix(".csv").open(encoding="utf-8-sig", newline="") as file:
        done, rest = csv.DictReader(file)
    assert done["ex01.frame"] == "2" and "ex01 was not graded: interrupted" in rest["notes"]


@pytest.mark.acceptance  # the test above has the one of this machine
@pytest.mark.parametrize(
    "boxed", [pytest.param(True, marks=[pytest.mark.needs("bubblewrap")]), False]
)
def test_page_says_whether_bubblewrap_was_used(tmp_path: Path, boxed: bool) -> None:
    """Bubblewrap keeps uploads and network out of reach. No process is left with or without it."""
    where = tmp_path / "in"
    with curious(where) as (made, env):
        save(where / "anna", made)
        path = {} if boxed else {"PATH": str(Path(sys.executable).parent)}
        printed, found = graded(where, **env, **path)
    page = (tmp_path / "class.html").read_text()
    assert ("Answers ran under bubblewrap" in page and "closed in" in page) == boxed, printed
    assert ("Answers ran without bubblewrap" in page) == (not boxed)
    assert found["anna"]["ex01.order"] == "2", printed


def test_grade_needs_a_folder_of_uploads(tmp_path: Path, rn50) -> None:
    for folder, flags in ((tmp_path / "none", ()), (tmp_path, ()), (ROOT, ("-o", tmp_path / "c"))):
        status, _, err = rn50(tmp_path, "workshop", "grade", folder, *flags)
        assert status == 2 and len(err.splitlines()) == 1 and str(tmp_path) in err, err


@pytest.mark.acceptance
@pytest.mark.needs("nbgrader")
def test_nbgrader_gives_the_same_points(tmp_path: Path, rn50) -> None:
    """Right, partly right and untouched, by `nbgrader autograde` and by `rn50 workshop grade`."""
    from workshop.checks import ex04

    course, program = tmp_path / "course", Path(str(capabilities.nbgrader_program()))
    status, _, err = rn50(tmp_path, "workshop", "build", "--nbgrader", course)
    assert status == 0, err
    assert len(list((course / "source" / "rn50").iterdir())) == 8
    for path in (course / "source" / "rn50").iterdir():
        made = json.loads(path.read_text())
        if path.stem[:4] == "ex04":  # the exercises that do without TensorFlow
            last = made["cells"].index(cell(made, "check", "ex04.hunt"))
            path.write_text(json.dumps(made | {"cells": made["cells"][: last + 1]}))
        else:
            path.unlink()
    install = [sys.executable, "-m", "ipykernel", "install", "--prefix", tmp_path]  # as documented
    subprocess.run(install, check=True, capture_output=True)
    path = f"{program.parent}:{os.environ['PATH']}"
    env = os.environ | {"JUPYTER_PATH": str(tmp_path / "share/jupyter"), "PATH": path}

    def run(*words: str | Path) -> None:
        done = subprocess.run(words, cwd=course, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr

    run(program, "generate_assignment", "rn50")
    (path,) = (course / "release" / "rn50").iterdir()
    released = path.read_text()
    assert "SOLUTION" not in released and "wrong_lines = ..." in released
    mistakes = sorted(ex04.line_of(text) for text in ex04.MISTAKES)
    hunt = ("answer", "ex04.hunt")
    right = {hunt: f"wrong_lines = {set(mistakes)}"}
    parts = {hunt: f"wrong_lines = {set(mistakes[:5])}"}
    for who, answers in {"right": right, "parts": parts, "untouched": {}}.items():
        made = json.loads(released)
        for one in made["cells"]:
            tags = tuple(one["metadata"].get("tags", ()))
            one["source"] = answers.get(tags, one["source"])
        (course / "submitted" / who / "rn50").mkdir(parents=True)
        (course / "submitted" / who / "rn50" / path.name).write_text(json.dumps(made))
    run(program, "autograde", "rn50")
    run(program, "export", "--to", tmp_path / "grades.csv")
    with (tmp_path / "grades.csv").open(newline="") as file:
        theirs = {row["student_id"]: float(row["score"]) for row in csv.DictReader(file)}
    _, ours = graded(course / "submitted")
    expected = {"right": 3, "parts": 1.88, "untouched": 0}  # 5 of 8 mistakes, 3 points
    assert theirs == {who: float(row["points"]) for who, row in ours.items()} == expected
