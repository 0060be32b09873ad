"""The strict runner: executes notebooks with papermill, each in processes of its own, with a time
limit, and leaves one HTML index. papermill alone lets a misspelt parameter and a hanging cell pass.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from rn50 import launch
from workshop import paths, processes
from workshop.course import catalogue, kernels, pages, results
from workshop.course.selection import Job

Say = Callable[[str], None]

HEARTBEAT_S = 30.0
LEFTOVER_S = 3.0  # what a kernel's helpers may take to end by themselves


class Runner:
    """Runs jobs into `out`. `say` prints a line; `changed` is called with all outcomes whenever one
    of them is new, so that an interrupted course leaves its index too."""

    def __init__(
        self, out: Path, say: Say, changed: Callable[[list[results.Outcome]], object]
    ) -> None:
        self.out, self.say, self.changed = out, say, changed
        self.stopped = threading.Event()
        self.lock = threading.Lock()
        self.outcomes: dict[str, results.Outcome] = {}
        self.jobs: Sequence[Job] = ()

    def run(
        self, jobs: Sequence[Job], parallel: int = 1, resume: bool = False
    ) -> list[results.Outcome]:
        """All jobs; the outcomes in their order. A KeyboardInterrupt ends what is running and
        rises."""
        self.jobs = jobs
        before = results.earlier(self.out) if resume else {}
        for job in jobs:
            item = before.get(job.name)
            if item is not None and self.still_valid(job, item):
                self.say(f"{job.name}: passed before in {item.seconds:.1f} s, not run again")
                self.outcomes[job.name] = replace(item, reused=True)
        left = [job for job in jobs if job.name not in self.outcomes]
        with ThreadPoolExecutor(max(1, parallel)) as pool:
            running = [pool.submit(self.one, job) for job in left]
            try:
                for future in running:
                    future.result()
            except BaseException:
                self.stopped.set()
                pool.shutdown(cancel_futures=True)
                raise
        return self.all_outcomes()

    def all_outcomes(self) -> list[results.Outcome]:
        """The outcome of every job so far, in order; "not run" where there is none."""
        return [
            self.outcomes.get(job.name) or self.outcome(job, results.NOT_RUN, 0.0, None, [])
            for job in self.jobs
        ]

    def one(self, job: Job) -> None:
        """One notebook, from its start to its page."""
        if self.stopped.is_set():
            return
        self.say(f"{job.name}: started, limit {job.limit:.0f} s")
        target = self.out / f"{job.name}.ipynb"
        for old in (target, target.with_suffix(".html")):
            old.unlink(missing_ok=True)
        status, seconds, error, leftovers = self.execute(job, target)
        if status == results.NOT_RUN:  # interrupted
            return
        cells = results.read_cells(target)
        if status == results.PASSED:
            found = results.problem(cells)
            status, error = (results.FAILED, found) if found else (status, None)
        elif status == results.FAILED:
            found = results.problem(cells)
            error = found if found and found.from_output else error
        elif error is not None:  # the time limit: show where it stood
            error = replace(error, excerpt=results.source_of(cells, error.cell))
        done = self.outcome(job, status, seconds, error, leftovers, cells)
        place = f" in cell {error.cell}" if error and error.cell else ""
        why = f": {error.text}{place}" if error else ""
        self.say(f"{job.name}: {status} in {seconds:.1f} s{why}")
        with self.lock:
            self.outcomes[job.name] = done
            pages.page(self.out, done, [item.name for item in self.jobs])
            self.changed(self.all_outcomes())

    def still_valid(self, job: Job, before: results.Outcome) -> bool:
        """Whether an earlier pass was of this very notebook with these parameters."""
        same = (before.sha256, before.parameters) == (job.sha256, job.parameters)
        return before.passed and same and (self.out / before.notebook).exists()

    def outcome(
        self,
        job: Job,
        status: str,
        seconds: float,
        error: results.Error | None,
        leftovers: list[str],
        cells: Sequence[dict[str, Any]] = (),
    ) -> results.Outcome:
        return results.Outcome(
            name=job.name,
            title=job.title,
            status=status,
            seconds=round(seconds, 3),
            budget=job.budget,
            limit=job.limit,
            parameters=job.parameters,
            sha256=job.sha256,
            notebook=f"{job.name}.ipynb",
            page=f"{job.name}.html",
            error=error,
            notes=results.shown(list(cells), "note"),
            recorded=results.shown(list(cells), "recorded"),
            leftovers=leftovers,
        )

    def environment(self, mark: str) -> dict[str, str]:
        """What the notebook's processes get: places, the interpreter's kernel, and the mark."""
        env = launch.with_library(dict(os.environ))
        env |= {
            processes.MARK: mark,
            "RN50_DATA": str(paths.data_home()),
            "RN50_RUNS": str(self.out / "runs"),
            "PYTHONUNBUFFERED": "1",
        }
        with self.lock:
            return kernels.with_kernelspec(env, self.out / ".jupyter")

    def execute(self, job: Job, target: Path) -> tuple[str, float, results.Error | None, list[str]]:
        """(status, seconds, error, leftovers) of one notebook, its processes ended in any case."""
        mark = processes.new_mark()
        folder = self.out / "files" / job.name
        folder.mkdir(parents=True, exist_ok=True)
        order = folder / ".job.json"
        order.write_text(
            json.dumps(
                {
                    "notebook": str(job.path),
                    "output": str(target),
                    "parameters": job.parameters,
                    "folder": str(folder),
                    "kernel_start_s": int(catalogue.KERNEL_START_S),
                }
            ),
            encoding="utf-8",
        )
        with open(folder / ".worker.log", "wb") as log:
            worker = subprocess.Popen(
                [sys.executable, "-m", "workshop.course.worker", str(order)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env=self.environment(mark),
                cwd=folder,
                start_new_session=True,
            )
        watch = Watch(worker, job, self.say, self.stopped)
        try:
            status, error = watch.until_end()
            if status == results.PASSED:
                settle(mark)
        finally:
            leftovers = processes.end(mark)
            worker.wait()
            watch.close()
        if status == results.FAILED and error is None:
            tail = (folder / ".worker.log").read_text(encoding="utf-8", errors="replace")
            last = [line for line in tail.splitlines() if line.strip()][-results.EXCERPT_LINES :]
            text = last[-1] if last else "its worker ended without a word"
            error = results.Error(text, watch.cell, "\n".join(last))
        order.unlink(missing_ok=True)
        return status, watch.seconds, error, leftovers if status == results.PASSED else []


def settle(mark: str) -> None:
    """Give the helpers of a notebook that is through a moment to end by themselves."""
    deadline = time.monotonic() + LEFTOVER_S
    while processes.marked(mark) and time.monotonic() < deadline:
        time.sleep(0.1)


class Watch:
    """Follows a worker's events and stops waiting at the time limit."""

    def __init__(
        self, worker: subprocess.Popen, job: Job, say: Say, stopped: threading.Event
    ) -> None:
        self.worker, self.job, self.say, self.stopped = worker, job, say, stopped
        self.events: queue.Queue[dict[str, Any]] = queue.Queue()
        self.begin = time.monotonic()
        self.first: float | None = None  # when the kernel was up
        self.last: float | None = None
        self.cell: int | None = None
        self.cells = 0
        self.error: results.Error | None = None
        self.thread = threading.Thread(target=self._read, daemon=True)
        self.thread.start()

    def _read(self) -> None:
        assert self.worker.stdout is not None
        for line in self.worker.stdout:
            with contextlib.suppress(ValueError):
                self.events.put(json.loads(line))

    @property
    def seconds(self) -> float:
        """The notebook's own time so far, or in all."""
        if self.first is None:
            return 0.0
        return (self.last or time.monotonic()) - self.first

    def _take(self) -> None:
        while True:
            try:
                event = self.events.get_nowait()
            except queue.Empty:
                return
            if event["event"] == "started":
                self.first = time.monotonic()
            elif event["event"] == "cell":
                self.cell, self.cells = event["number"], event["cells"]
            elif event["event"] == "executed":
                self.last = time.monotonic()
            elif event["event"] == "failed":
                self.error = results.Error(event["error"], self.cell)

    def until_end(self) -> tuple[str, results.Error | None]:
        """Wait for the worker. The status is passed, failed, time limit or not run."""
        said = time.monotonic()
        while self.worker.poll() is None:
            self._take()
            now = time.monotonic()
            if self.stopped.is_set():
                return results.NOT_RUN, None
            if self.first is None and now - self.begin > catalogue.KERNEL_START_S:
                text = f"the kernel did not start within {catalogue.KERNEL_START_S:.0f} s"
                return results.TIME_LIMIT, results.Error(text)
            if self.first is not None and self.last is None and self.seconds > self.job.limit:
                self.last = now
                text = f"stopped after its time limit of {self.job.limit:g} s"
                return results.TIME_LIMIT, results.Error(text, self.cell)
            if now - said > HEARTBEAT_S:
                said = now
                where = f"cell {self.cell} of {self.cells}" if self.cell else "kernel starting"
                self.say(f"{self.job.name}: {where}, {now - (self.first or self.begin):.0f} s")
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.worker.wait(0.1)
        self.thread.join(2.0)
        self._take()
        self.last = self.last or time.monotonic()
        return (results.PASSED if self.worker.returncode == 0 else results.FAILED), self.error

    def close(self) -> None:
        self.thread.join(2.0)
        if self.worker.stdout is not None:
            self.worker.stdout.close()
