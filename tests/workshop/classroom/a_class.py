"""Made-up submissions: learners who do it right, who do not, and who try to get away with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import ROOT
from workshop.course import build

Book = dict[str, Any]


def books(solved: bool, only: tuple[str, ...] | None = None) -> dict[str, Book]:
    """The exercise notebooks of the course by name, such as ex03_horovod."""
    found = {}
    for master in build.masters(ROOT):
        if build.is_exercise(master) and (only is None or master.stem[:4] in only):
            found[master.stem] = json.loads(build.build(ROOT, master, solved=solved).text)
    return found


def cells(book: Book) -> list[dict[str, Any]]:
    return [cell for cell in book["cells"] if cell["cell_type"] == "code"]


def cell(book: Book, tag: str, exercise: str) -> dict[str, Any]:
    (found,) = [c for c in cells(book) if c["metadata"].get("tags") == [tag, exercise]]
    return found


def answer(exercise: str, source: str) -> Callable[[dict[str, Book]], None]:
    """A change: this is the answer's cell now."""

    def change(all_books: dict[str, Book]) -> None:
        for name, book in all_books.items():
            if name.startswith(exercise[:4]):
                cell(book, "answer", exercise)["source"] = source

    return change


def save(folder: Path, all_books: dict[str, Book], short: bool = False) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, book in all_books.items():
        path = folder / f"{name[:4] if short else name}.ipynb"
        path.write_text(json.dumps(book), encoding="utf-8")


FORGER = """
import json, os, sys, pathlib
import builtins
from workshop.checks import ask, compare, engine, ex02, ex03, records, table

def shard(order, rank, size, batch):
    return order

def passed(*_, **__):
    return "all is right"

for module in (ex02, ex03):
    for name in dir(module):
        if callable(getattr(module, name)) and not name.startswith("_"):
            setattr(module, name, passed)
engine.tried = engine.judge = lambda name, answer, *_: engine.Result(str(name), "passed", "", "")
compare.wrong = compare.Wrong.__init__ = passed
ask.check = passed
builtins.isinstance = lambda *_: True
builtins.all = builtins.any = lambda *_: True
told = {"ex03.shard": {"exercise": "ex03.shard", "outcome": "passed", "passed_at": "2026-11-21"}}
for place in (records.answers_home(), pathlib.Path("answers"), pathlib.Path.home() / "answers"):
    try:
        place.mkdir(parents=True, exist_ok=True)
        (place / "ex03.json").write_text(json.dumps(told))
    except OSError:
        pass
print("✓ ex03.shard passed: everything is right")
told = json.dumps({"results": [told["ex03.shard"]], "kind": "value", "thread": "main", "sizes": []})
for number in range(0, 64):
    try:
        os.write(number, told.encode())
    except OSError:
        pass
"""
QUIET_FORGER = FORGER.replace("range(0, 64)", "()")
GETS_OUT = """
import os, pathlib, socket

def tried(way):
    try:
        return way()
    except OSError:
        return None

HOMES = [pathlib.Path(PLACE), pathlib.Path(PLACE).parent]
seen = [path for home in HOMES for path in tried(lambda: list(home.rglob("*"))) or ()]
stolen = [tried(lambda: path.read_bytes()) for path in seen if path.is_file()]
solution = tried(lambda: list(pathlib.Path(COURSE, "exercises", "source").glob("*.py")))
net = tried(lambda: socket.create_connection(("127.0.0.1", PORT), 2))
wrote = tried(lambda: pathlib.Path(PLACE, "pwned").write_text("x"))
wrote = wrote or tried(lambda: pathlib.Path(COURSE, "rn50lib", "pwned").write_text("x"))
accounts = tried(lambda: pathlib.Path("/etc/passwd").read_text()) or ""
mine = tried(lambda: pathlib.Path.home().joinpath("notes.txt").write_text("mine"))
numbers = [int(n) for n in tried(lambda: os.listdir("/proc")) or () if n.isdigit()]
others = [n for n in numbers if n != os.getpid()]

def shard(order, rank, size, batch):
    assert not stolen and not solution and net is None and not wrote, (stolen, solution, net, wrote)
    assert mine and not others, (mine, others)
    assert accounts.startswith("learner:") and accounts.count("\\n") == 1, accounts
    steps = len(order) // (size * batch)
    return order[: steps * size * batch].reshape(steps, size, batch)[:, rank]
"""
SHARD = """
def shard(order, rank, size, batch):
    steps = len(order) // (size * batch)
    return order[: steps * size * batch].reshape(steps, size, batch)[:, rank]
"""
FOLD_OF_NAN = """
def fold(conv, bn):
    import torch

    out, into, *side = conv.weight.shape
    folded = torch.nn.Conv2d(into, out, side).double()
    folded.weight.copy_(conv.weight * float("nan"))
    return folded
"""
SORTS_THE_CALLERS = """
import math

def percentile(seconds, per_cent):
    seconds.sort()
    return seconds[max(0, math.ceil(len(seconds) * per_cent / 100) - 1)]
"""
NO_RETURN = """
def likeliest(logits, k):
    power = (logits - logits.amax(dim=1, keepdim=True)).exp()
"""
LOOP = SHARD + "\nwhile True:\n    pass\n"
LOOP_INSIDE = "def shard(order, rank, size, batch):\n    while True:\n        pass\n"
MEMORY = (
    "def shard(order, rank, size, batch):\n    return [bytearray(2**26) for _ in range(10_000)]\n"
)
SYNTAX = "def shard(order, rank, size, batch:\n    return order\n"
FORKS = (
    """
import os, time
for _ in range(20):
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(600)
        os._exit(0)
"""
    + SHARD
)
BOMB = """
import os
def shard(order, rank, size, batch):
    while True:
        try:
            os.fork()
        except OSError:
            pass
"""
DISK = """
def shard(order, rank, size, batch):
    with open("large", "wb") as file:
        while True:
            file.write(bytes(2**24))
"""
ENDS = "import os\ndef shard(order, rank, size, batch):\n    os._exit(0)\n"
RAISES = "def shard(order, rank, size, batch):\n    return order[nowhere]\n"
SAME = "def shard(order, rank, size, batch):\n    steps = len(order) // (size * batch)\n" \
       "    return order[: steps * batch].reshape(steps, batch)\n"  # fmt: skip
