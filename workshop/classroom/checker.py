"""Grades one submission, in a process of its own outside of the box: only that writes results.

For each exercise it closes a new process in, has it run the learner's code, and calls the check
with what stands for the learner's function.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import shutil
import signal
import socket
import tempfile
import threading
import time
import types
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from workshop.checks import engine, table
from workshop.classroom import answers, box, learner, view
from workshop.classroom.channel import Channel, Gone

UNGRADED = "not graded"
GRACE_S = 2.0  # for a check that works on an answer it has already got
WATCH_S = 0.25
LARGE_MINUTES = 20.0  # of a learner; an exercise with more gets more seconds
LAUNCHES = 6.0  # times the seconds, where Python and a framework are loaded six times


@dataclass
class Order:
    """What the grading server is to do: `submissions` of nobody's name, each exercise notebook →
    file; `masters` exercise notebook → the built notebook's text; `hidden` are the paths that no
    answer may see, `folder` is empty, and the result of submission 7 becomes `results`/7.json."""

    submissions: list[dict[str, str]]
    masters: dict[str, str]
    results: str
    hidden: list[str]
    folder: str
    imports: list[str]
    jobs: int
    limits: box.Limits


class Checker:
    """Runs the exercises of one submission, in a folder that is empty and for it alone."""

    def __init__(self, order: Order, notebooks: dict[str, str], folder: Path, user: int) -> None:
        self.order, self.notebooks, self.folder, self.user = order, notebooks, folder, user
        self.notes: list[str] = []
        self.shared = folder / "shared"  # what a check writes for the answer to read
        self.shown = [*view.readable(), self.shared]
        self.pid = 0

    def run(self) -> list[engine.Result]:
        box.kernel_says(box.kernel.control, box.kernel.SUBREAPER, 1)
        self.shared.mkdir(mode=0o755)
        tempfile.tempdir = str(self.shared)
        tempfile.mkdtemp = _readable_mkdtemp  # type: ignore[assignment]
        texts = self.order.masters.items()
        masters = {name: answers.code_cells(text, f"{name} as given") for name, text in texts}
        results = []
        for notebook in table.notebooks():
            items = table.of_notebook(notebook)
            if notebook not in masters:
                continue
            file = self.notebooks.get(notebook)
            if file is None:
                said = f"{notebook} was not handed in."
                results += [engine.Result(item.name, engine.NOT_ATTEMPTED, said) for item in items]
                continue
            try:
                text = Path(file).read_text(encoding="utf-8", errors="replace")
                cells = answers.code_cells(text, notebook)
            except (OSError, answers.Unreadable) as problem:
                said = f"the file of {notebook} {problem}."
                results += [engine.Result(item.name, engine.ERROR, said) for item in items]
                continue
            results += [self.exercise(item, cells, masters[notebook]) for item in items]
        return results

    def exercise(
        self, item: table.Exercise, cells: list[answers.Cell], master: list[answers.Cell]
    ) -> engine.Result:
        """Grade one exercise, whatever the learner's code does."""
        if item.lacks:
            said = f"it needs {item.lacks}, which is not installed where this was graded."
            return engine.Result(item.name, UNGRADED, said)
        try:
            answer = answers.find(item.name, item.answer, cells, master)
        except answers.DAMAGE as error:  # text that Python's own parser gives up on
            said = f"{type(error).__name__}: the cell cannot be read as Python."
            return engine.Result(item.name, engine.ERROR, said)
        self.notes += answer.notes
        if answer.cell is None:
            return engine.Result(item.name, engine.NOT_ATTEMPTED, answer.problem)
        if answer.problem:
            return engine.Result(item.name, engine.ERROR, answer.problem)
        stub = stand_in(answer.cell, item.answer)
        left = engine.unanswered(stub) if stub else ""
        if stub and left and engine.only_dots(stub):
            return engine.Result(item.name, engine.NOT_ATTEMPTED, left)
        try:
            return self.closed_in(item, answer.plan, left)
        except Gone as problem:
            return engine.Result(item.name, engine.ERROR, *self.why(problem, item))
        finally:
            shutil.rmtree(self.folder / "box", ignore_errors=True)

    def closed_in(self, item: table.Exercise, plan: answers.Plan, left: str) -> engine.Result:
        """Run the plan in a box and judge what it defines. Raises Gone when the box does not
        last."""
        limits = limits_of(item, self.order.limits)
        root = self.folder / "box"
        root.mkdir(exist_ok=True)
        ours, theirs = socket.socketpair()
        hidden = list(map(Path, self.order.hidden))
        made = box.Box(root, limits, self.user, self.shown, hidden)
        self.pid = made.start(lambda: learner.live(theirs), keep=(theirs.fileno(),))
        theirs.close()
        channel = Channel(ours, trusted=True)
        channel.deadline = time.monotonic() + limits.seconds
        done = threading.Event()
        watch = threading.Thread(target=self.watch, args=(channel, done), daemon=True)
        previous = signal.signal(signal.SIGALRM, _alarm)
        signal.setitimer(signal.ITIMER_REAL, limits.seconds + GRACE_S)
        try:
            channel.start()
            watch.start()
            return self.judged(item, channel.object(learner.FIRST), plan, left)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, previous)
            done.set()
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGKILL)
            box.end_children()
            channel.close()
            watch.join()

    def judged(
        self, item: table.Exercise, root: Any, plan: answers.Plan, left: str
    ) -> engine.Result:
        name = item.name
        try:
            root.run(plan)
        except (Exception, SystemExit) as error:
            if not root.has(item.answer):
                place = getattr(error, "learners_place", "")
                said = f"{type(error).__name__}: {engine.first_line(error)}"
                return engine.Result(name, engine.ERROR, said, place)
        if not root.has(item.answer):
            return engine.Result(
                name, engine.NOT_ATTEMPTED, f"its cell does not define `{item.answer}`."
            )
        value = root.get(item.answer)
        left = left or engine.unanswered(value)
        untouched = engine.Result(name, engine.NOT_ATTEMPTED, left)
        if left and not item.function:
            return untouched
        result = engine.tried(item, value, f'workshop.hint("{name}") helps.')
        if left and not result.passed:
            return untouched
        return replace(result, then="") if result.passed else result

    def watch(self, channel: Channel, done: threading.Event) -> None:
        """End the box when its processes together hold too much memory."""
        base = box.own_memory()
        while not done.wait(WATCH_S):
            sizes = [box.own_memory(pid) - base for pid in box.children(self.pid)]
            if sum(max(0, size) for size in sizes) > self.order.limits.memory * 1.25:
                channel.stop("memory")
                with contextlib.suppress(OSError):
                    os.kill(self.pid, signal.SIGKILL)
                return

    def why(self, problem: Gone, item: table.Exercise) -> tuple[str, str]:
        """An ended box in two sentences."""
        limits = limits_of(item, self.order.limits)
        if str(problem) == "time":
            said = f"time limit: no result after {limits.seconds:g} s."
            return said, "Look for a loop that does not end."
        if str(problem) == "memory":
            said = f"memory limit: more than {limits.memory / 2**30:g} GiB."
            return said, "Look for a list or an array that grows without end."
        return f"the answer did not come to its end: {problem}.", "Look for what ends Python in it."


def limits_of(item: table.Exercise, limits: box.Limits) -> box.Limits:
    """The limits of one exercise: more time for one that is large for the learner too, and for one
    whose check starts ranks as processes."""
    longer = LAUNCHES if item.launches else 1.0
    return replace(limits, seconds=limits.seconds * max(longer, item.minutes / LARGE_MINUTES))


_mkdtemp = tempfile.mkdtemp


def _readable_mkdtemp(*values: Any, **named: Any) -> str:
    """A temporary folder that the account inside a box can read too."""
    folder: str = _mkdtemp(*values, **named)
    os.chmod(folder, 0o755)
    return folder


def _alarm(number: int, frame: Any) -> None:
    raise Gone("time")


def stand_in(cell: answers.Cell, name: str) -> Any:
    """A function with the code of the learner's, which is looked at and never called; None where
    the answer is not defined with `def`."""
    source = answers.plain(cell.source)
    try:
        code = compile(source, cell.name, "exec")
    except answers.DAMAGE:
        return None
    lines = source.splitlines(keepends=True)
    linecache.cache[cell.name] = (len(source), None, lines, cell.name)
    found = [c for c in code.co_consts if isinstance(c, types.CodeType) and c.co_name == name]
    if not found or found[-1].co_freevars:
        return None
    return types.FunctionType(found[-1], {}, name)
