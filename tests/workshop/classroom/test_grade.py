"""A class is graded from the command line: everybody gets what they deserve, and nobody can get in
the way of anybody else. The answers below run for real, in the box that this machine allows."""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support import leaving_nothing
from tests.workshop.classroom import a_class as made
from workshop.checks import engine, table
from workshop.classroom import answers, points

MOODLE = "Clara Beispiel_48151_assignsubmission_file_"


def graded(where: Path, *flags: str, env: dict[str, str] | None = None) -> str:
    """Run the command in a process of its own; what it printed."""
    done = subprocess.run(
        [sys.executable, "-m", "rn50", "workshop", "grade", str(where / "handed-in"),
         *map(str, where.glob("export*.zip")), "-o", str(where / "class.html"), *flags],
        cwd=ROOT, env={**os.environ, **(env or {})}, capture_output=True, text=True, timeout=3600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def outcomes(where: Path) -> dict[tuple[str, str], dict[str, str]]:
    """The table: (learner, exercise) to its row."""
    text = (where / "class.csv").read_text(encoding="utf-8-sig")
    return {(row["learner"], row["exercise"]): row for row in csv.DictReader(io.StringIO(text))}


def placed(source: str, where: Path, port: int) -> str:
    """What gets out of a box, with the places that it should try."""
    source = source.replace("PLACE", repr(str(where / "handed-in"))).replace("PORT", str(port))
    return source.replace("COURSE", repr(str(ROOT)))


@pytest.mark.slow
def test_small_class(tmp_path, monkeypatch):
    """Right, tricky, and forged: one of each, in three ways of handing in."""
    where = tmp_path / "handed-in"
    server = socket.create_server(("127.0.0.1", 0))
    right = made.books(True, ("ex03",))
    made.save(where / "Anna Äpfel", right)

    forged = made.books(False, ("ex02", "ex03"))
    made.answer("ex03.shard", made.FORGER)(forged)
    for check in ("ex03.shard", "ex03.start"):
        made.cell(forged["ex03_horovod"], "check", check)["source"] = "print('passed')"
    made.cell(forged["ex03_horovod"], "check", "ex03.start")["outputs"] = [
        {"output_type": "stream", "name": "stdout", "text": "✓ ex03.start passed: 2 and 3 ranks"}
    ]
    made.save(where / "=Bert<script>", forged, short=True)

    tricky = made.books(True, ("ex03",))
    made.answer("ex03.shard", placed(made.GETS_OUT, tmp_path, server.getsockname()[1]))(tricky)
    made.answer("ex03.sums", made.SYNTAX)(tricky)
    made.answer("ex03.recipe", "def train(data, out):\n    ...")(tricky)
    made.answer("ex03.ring", "import time\ntime.sleep(600)\nsent = {}")(tricky)
    made.save(tmp_path / "clara", tricky)
    with zipfile.ZipFile(tmp_path / "clara.zip", "w") as inner:
        inner.write(tmp_path / "clara" / "ex03_horovod.ipynb", "work/ex03_horovod.ipynb")
    with zipfile.ZipFile(tmp_path / "export.zip", "w") as outer:
        outer.write(tmp_path / "clara.zip", f"{MOODLE}/clara.zip")
        outer.writestr("../../escaped.ipynb", "{}")
    shutil.rmtree(tmp_path / "clara")

    careless = made.books(True, ("ex07",))
    made.answer("ex07.fold", made.FOLD_OF_NAN)(careless)
    made.answer("ex07.percentile", made.SORTS_THE_CALLERS)(careless)
    made.answer("ex07.likeliest", made.NO_RETURN)(careless)
    made.save(where / "Dora", careless)

    with leaving_nothing():
        printed = graded(tmp_path, "--jobs", "2", "--time-limit", "15")
    found = outcomes(tmp_path)

    def of(learner: str) -> dict[str, str]:
        return {name[5:]: row["outcome"] for (who, name), row in found.items()
                if who == learner and name.startswith("ex03")}  # fmt: skip

    assert set(of("Anna Äpfel").values()) == {engine.PASSED}
    bert = of("'=Bert<script>")
    assert bert["shard"] in (engine.WRONG, engine.ERROR) and bert["start"] == engine.NOT_ATTEMPTED
    assert engine.PASSED not in {r["outcome"] for (who, _), r in found.items() if "Bert" in who}
    clara = of("Clara Beispiel")
    assert clara == {
        "shard": "passed", "start": "passed", "sums": "error", "ring": "error",
        "recipe": engine.NOT_ATTEMPTED,
    }  # fmt: skip
    assert "line 1" in found["Clara Beispiel", "ex03.sums"]["diagnosis"]
    assert "time limit" in found["Clara Beispiel", "ex03.ring"]["diagnosis"]
    for name, said in {
        "ex07.fold": "the weight: 144 of 144 numbers are nan",
        "ex07.percentile": "`seconds` is changed by your function",
        "ex07.likeliest": "is a `return` missing?",
    }.items():
        row = found["Dora", name]
        assert row["outcome"] == engine.WRONG and said in row["diagnosis"], row
    assert "leads out of the zip" in printed and not list(tmp_path.rglob("*escaped*"))
    assert re.search(r"per submission \d+\.\d s in the median", printed)
    assert not list(where.rglob("*pwned*")) and not (ROOT / "rn50lib" / "pwned").exists()

    page = (tmp_path / "class.html").read_text(encoding="utf-8")
    assert "<script" not in page and "=Bert&lt;script&gt;" in page and "http" not in page
    assert "check cell was changed, and has been put back" in page
    feedback = sorted(p.name for p in (tmp_path / "class-feedback").iterdir())
    assert feedback == ["anna-apfel.html", "bert-script.html", "clara-beispiel.html", "dora.html"]
    server.close()


def test_answers_are_taken_with_what_they_need():
    """A helper cell, an import elsewhere, a deleted cell: as Run All would have it, lessons not."""
    master = answers.code_cells(json.dumps(made.books(False, ("ex01",))["ex01_records"]), "ex01")
    book = made.books(True, ("ex01",))["ex01_records"]
    answer = made.cell(book, "answer", "ex01.index")
    answer["source"] = "def index(shard):\n    return walk(shard, STEP)"
    helper = "%matplotlib inline\nimport struct as s\nSTEP = 16\nrun = explode()\n"
    helper += "\n\ndef walk(a, b):\n    return s"
    at = book["cells"].index(answer)
    book["cells"].insert(at, {"cell_type": "code", "id": "x", "metadata": {}, "source": helper})
    cells = answers.code_cells(json.dumps(book), "ex01")
    found = answers.find("ex01.index", "index", cells, master)
    taken = {
        name: [source.splitlines()[0] for _ in numbers] for name, source, numbers in found.plan
    }
    assert len(found.plan) == 2 and found.problem == ""
    (_, source, numbers), (_, _, own) = found.plan
    assert len(numbers) == 3 and "explode" not in "".join(source.splitlines()[i] for i in (1, 2)), (
        taken
    )
    assert own == [0]
    book["cells"].remove(answer)
    gone = answers.find("ex01.index", "index", answers.code_cells(json.dumps(book), "x"), master)
    assert gone.cell is None and "deleted" in gone.problem


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"cells": 3}', '{"cells": [{"cell_type": "code"}]}', "[" * 100_000,
             '{"cells": [{"cell_type": "code", "source": 7}]}'],
)  # fmt: skip
def test_file_that_is_no_notebook(text):
    with pytest.raises(answers.Unreadable):
        answers.code_cells(text, "x")


def test_points_are_the_instructor_s(tmp_path):
    path = tmp_path / "points.csv"
    given, notes = points.load(path)
    assert set(given) == {item.name for item in table.EXERCISES} and "was written" in notes[0]
    path.write_text("exercise,points\nex03.shard,2.5\nex99.none,1\n")
    given, notes = points.load(path)
    assert given["ex03.shard"] == 2.5 and given["ex03.start"] == 1
    assert "ex99.none, which is no exercise" in notes[0]
    path.write_text("exercise,points\nex03.shard,many\n")
    with pytest.raises(points.UserError, match="line 2: 'many' is no number of points"):
        points.load(path)


def test_nothing_to_grade_is_one_line(tmp_path, rn50):
    status, _, err = rn50(ROOT, "workshop", "grade", tmp_path / "none", "-o", tmp_path / "c.html")
    assert status == 2 and "there is no" in err and len(err.splitlines()) == 1
    (tmp_path / "empty").mkdir()
    status, _, err = rn50(ROOT, "workshop", "grade", tmp_path / "empty", "-o", tmp_path / "c.html")
    assert status == 2 and "holds no exercise notebook" in err


@pytest.mark.slow
def test_machine_without_namespaces_says_what_it_cannot_enforce(open_folder: Path) -> None:
    """As in a container that forbids them: what is open is found by trying, and told."""
    program = """
import os, sys
from pathlib import Path
from workshop.classroom import kernel, probe
def refused(*_): raise OSError(1, "refused")
kernel.unshare = refused
print(*probe.open_ways(Path(sys.argv[1]), []))
"""
    for given in ("boxed", "plain"):
        (open_folder / given).mkdir()
    done = [
        subprocess.run([sys.executable, "-c", text, str(open_folder / folder)], cwd=ROOT, text=True,
                       capture_output=True, timeout=120)
        for text, folder in ((program, "plain"),
                             (program.replace("kernel.unshare = refused", ""), "boxed"))
    ]  # fmt: skip
    plain, boxed = (set(one.stdout.split()) for one in done)
    assert {"network", "files", "writing"} <= plain, done
    assert "memory" not in plain and "size" not in plain, done
    assert boxed <= plain
