"""`python -m workshop.classroom.server`: frameworks loaded once, a fork per submission.

Reads one JSON object on its standard input (`Order`) and writes a JSON line per graded submission:
its number, and what went wrong with the grading itself. It never runs a learner's code, and holds
nobody's name, answer or result in its memory, because what it holds is in every box.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import selectors
import shutil
import signal
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path

from workshop.checks import table
from workshop.classroom import box
from workshop.classroom.checker import GRACE_S, Checker, Order, limits_of
from workshop.classroom.remote import note_parts

OWN_MEMORY = 4 * 2**30  # of a checker: a flood of data from an answer ends it alone
USER = 64_000  # the first of the accounts, one for each job at a time, that learners' code gets


@dataclass
class Running:
    """A submission that is being graded."""

    number: int
    slot: int
    pid: int
    begin: float


def warm(names: list[str]) -> None:
    """Import what the exercises use, as far as it is installed here."""
    for name in names:
        with contextlib.suppress(Exception):
            importlib.import_module(name)
    for notebook in table.notebooks():
        with contextlib.suppress(ImportError):
            importlib.import_module(f"workshop.checks.{notebook}")
    checks = "workshop.checks."
    note_parts([m for name, m in sorted(sys.modules.items()) if name.startswith(checks)])


class Server:
    def __init__(self, order: Order) -> None:
        self.order = order
        self.waiting = list(range(len(order.submissions)))
        self.free = list(range(order.jobs))[::-1]
        self.running: dict[int, Running] = {}  # by the pipe's end
        self.selector = selectors.DefaultSelector()
        each = [limits_of(item, order.limits).seconds + GRACE_S + 5 for item in table.EXERCISES]
        self.limit = sum(each) + 60

    def run(self) -> None:
        """Grade everything, some at a time."""
        while self.waiting or self.running:
            while self.waiting and self.free:
                self.begin(self.waiting.pop(0), self.free.pop())
            for key, _ in self.selector.select(timeout=1.0):
                self.end(key.fd, "grading this submission ended in the middle")
            for pipe, one in list(self.running.items()):
                if time.monotonic() - one.begin > self.limit:
                    self.end(pipe, "the whole submission took too long")

    def begin(self, number: int, slot: int) -> None:
        folder = Path(self.order.folder) / f"slot{slot}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o711)
        ours, theirs = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            grade_one(self.order, number, folder, USER + slot)
        os.close(theirs)
        self.running[ours] = Running(number, slot, pid, time.monotonic())
        self.selector.register(ours, selectors.EVENT_READ)

    def end(self, pipe: int, problem: str) -> None:
        """Tell that a submission is done, and make room for the next. `problem` is why, where there
        is no result."""
        one = self.running.pop(pipe)
        self.selector.unregister(pipe)
        os.close(pipe)
        with contextlib.suppress(OSError):
            os.kill(one.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(one.pid, 0)
        box.end_children(but=[left.pid for left in self.running.values()])
        seconds = round(time.monotonic() - one.begin, 2)
        print(
            json.dumps({"number": one.number, "problem": problem, "seconds": seconds}), flush=True
        )
        self.free.append(one.slot)


def grade_one(order: Order, number: int, folder: Path, user: int) -> None:
    """In a fork of its own: grade one submission, write the result, end, which closes the pipe."""
    try:
        checker = Checker(order, order.submissions[number], folder, user)
        result = Path(order.results, f"{number}.json")
        box.limit_data(OWN_MEMORY)
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        results = checker.run()
        told = {"results": [asdict(item) for item in results], "notes": checker.notes}
        beside = result.with_suffix(".new")
        # what a learner's error says may hold half of a character, which no file takes
        text = json.dumps(told, ensure_ascii=False)
        beside.write_text(text, encoding="utf-8", errors="replace")
        os.replace(beside, result)
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)


def main() -> int:
    given = json.load(sys.stdin)
    given["limits"] = box.Limits(**given["limits"])
    order = Order(**given)
    box.kernel_says(box.kernel.control, box.kernel.SUBREAPER, 1)
    box.kernel_says(box.kernel.control, box.kernel.PARENT_DEATH_SIGNAL, signal.SIGKILL)
    warm(order.imports)
    Server(order).run()
    return 0


if __name__ == "__main__":
    sys.exit(main())
