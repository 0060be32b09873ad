"""A class of 40: right, half, untouched, broken, and hostile in every way we could think of: what
answers do, and what uploads are."""

from __future__ import annotations

import random
import re
import socket
import threading
import time
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.support import leaving_nothing
from tests.workshop.classroom import a_class as made
from tests.workshop.classroom import test_hostile_uploads as uploads
from tests.workshop.classroom.test_grade import graded, outcomes, placed
from workshop.checks import engine, table

HOSTILE = {  # learner: answer to ex03.shard, what it deserves (None: not to pass), what is said
    "syntax": (made.SYNTAX, engine.ERROR, "SyntaxError"),
    "loop": (made.LOOP, engine.ERROR, "time limit"),
    "loop-inside": (made.LOOP_INSIDE, engine.ERROR, "time limit"),
    "memory": (made.MEMORY, engine.ERROR, "Memory"),
    "disk": (made.DISK, engine.ERROR, "OSError"),
    "ends": (made.ENDS, engine.ERROR, "did not come to its end"),
    "raises": (made.RAISES, engine.ERROR, "NameError"),
    "wrong": (made.SAME, engine.WRONG, "every rank reads the same images"),
    "forks": (made.FORKS, engine.PASSED, ""),
    "bomb": (made.BOMB, engine.ERROR, "time limit"),
    "forger": (made.FORGER, None, ""),
    "quiet-forger": (made.QUIET_FORGER, None, ""),
    "gets-out": (made.GETS_OUT, engine.PASSED, ""),
}


def handed_in(where: Path, port: int) -> dict[str, str]:
    """40 submissions; returns what kind each learner is, without the last eleven."""
    kinds = {}
    right, stub = made.books(True), made.books(False)
    names = list(right)

    def learner(name: str, kind: str, books: dict[str, made.Book], short: bool = False) -> None:
        made.save(where / name, books, short)
        kinds[name] = kind

    for i in range(5):
        learner(f"right-{i}", "right", right, short=bool(i % 2))
    for i in range(4):
        done = random.Random(i).sample(names, len(names) // 2)
        learner(f"half-{i}", ",".join(sorted(n[:4] for n in done)),
                {n: (right if n in done else stub)[n] for n in names})  # fmt: skip
    for i in range(3):
        learner(f"untouched-{i}", "untouched", stub)
    for name, (source, _, _) in HOSTILE.items():
        books = made.books(True)
        made.answer("ex03.shard", placed(source, where.parent, port))(books)
        learner(name, "hostile", books)
    cut = made.books(True)
    for book in cut.values():  # only the answers are left, without their tags and ids
        kept = [c for c in made.cells(book) if "answer" in c["metadata"].get("tags", [])]
        for cell in kept:
            cell["metadata"], cell["id"] = {}, "lost"
        book["cells"] = kept
    learner("cells-deleted", "right", cut)
    edited = made.books(False)
    for book in edited.values():
        for cell in made.cells(book):
            if "check" in cell["metadata"].get("tags", []):
                cell["source"] = "print('✓ passed')"
    learner("checks-edited", "untouched", edited)
    learner("one-notebook", names[2][:4], {names[2]: right[names[2]]})
    broken = {n: right[n] for n in names[1:]}
    learner("broken-file", "broken", broken)
    (where / "broken-file" / f"{names[0]}.ipynb").write_bytes(b"\x00\xff{" * 1000)
    uploads.handed_in(where, [str(where), str(ROOT / "exercises" / "source")])
    return kinds


@pytest.mark.acceptance
@pytest.mark.needs("torch", "tensorflow")
def test_class_of_40(tmp_path):
    where = tmp_path / "handed-in"
    server = socket.create_server(("127.0.0.1", 0))
    called: list[object] = []
    threading.Thread(target=lambda: called.append(server.accept()), daemon=True).start()
    kinds = handed_in(where, server.getsockname()[1])
    assert len(kinds) == 29
    files = {p: p.read_bytes() for p in where.rglob("*") if p.is_file()}
    begin = time.monotonic()
    with leaving_nothing():
        printed = graded(tmp_path, "--jobs", "2")
    seconds = time.monotonic() - begin
    print(printed)
    found = outcomes(tmp_path)
    graded_here = [item for item in table.EXERCISES if not item.lacks]
    assert len(found) == 40 * len(table.EXERCISES)

    def got(who: str, name: str) -> str:
        return found[who, name]["outcome"]

    for who, kind in kinds.items():
        for item in graded_here:
            row = (who, item.name, found[who, item.name])
            if kind == "right" or (kind == "hostile" and item.name != "ex03.shard"):
                assert got(who, item.name) == engine.PASSED, row
            elif kind == "untouched":
                assert got(who, item.name) == engine.NOT_ATTEMPTED, row
            elif kind == "broken":
                first = item.notebook == table.notebooks()[0]
                assert got(who, item.name) == (engine.ERROR if first else engine.PASSED), row
            elif kind != "hostile":
                done = item.notebook in kind.split(",")
                assert got(who, item.name) == (engine.PASSED if done else engine.NOT_ATTEMPTED), row
    for who, (_, outcome, said) in HOSTILE.items():
        row = found[who, "ex03.shard"]
        assert row["outcome"] == outcome or (outcome is None and row["outcome"] != "passed"), row
        assert said in row["diagnosis"], row

    for who, (status, outcome, said) in uploads.NAMES.items():
        row = found[who, "ex01.index"]
        assert (row["status"], row["outcome"]) == (status, outcome), row
        assert said in row["diagnosis"], row

    assert {p: p.read_bytes() for p in where.rglob("*") if p.is_file()} == files
    assert not called and not list(ROOT.glob("**/pwned"))
    assert re.search(r"40 submissions graded in", printed)
    print(f"40 submissions, {len(table.EXERCISES)} exercises each: {seconds:.0f} s")
    assert (tmp_path / "class.html").exists()
    assert len(list((tmp_path / "class-feedback").glob("*.html"))) == 40
