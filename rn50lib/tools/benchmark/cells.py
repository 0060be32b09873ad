"""The cells of a sweep, and the processes that measure them."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rn50lib import launch, report
from rn50lib.config import Config
from rn50lib.tools.benchmark.worker import DONE, FAILED


@dataclass
class Cell:
    """One number of workers and one batch size, as they were asked for.

    `resolved` is what is run for it (None: refused) and `folder` its own place, which is new.
    `reason` says why there is no figure.
    """

    n: int
    batch: int
    folder: Path
    resolved: Config | None = None
    reason: str | None = None
    report: dict[str, Any] | None = None
    phases: list[dict[str, Any]] | None = None

    @property
    def title(self) -> str:
        return f"n {self.n}, batch {self.batch}"


def measure(cells: list[Cell], isolate: bool) -> None:
    """Run cells that all have the same number of workers; fills in their reports and reasons.

    The workers stay for all of them: a cell does not pay for starting them. After a failure, new
    workers go on with the next cell. With `isolate` every cell has workers of its own. Raises
    KeyboardInterrupt when the user ends it.
    """
    left = list(cells)
    while left:
        batch = left[:1] if isolate else list(left)
        status, failure = launch_worker(batch)
        for cell in batch:
            if not (cell.folder / DONE).exists():
                break
            cell.phases = json.loads((cell.folder / DONE).read_text())
            cell.report = report.load(cell.folder / "report.json")
            left.pop(0)
        else:
            continue
        if status in (130, 128 + signal.SIGTERM):
            raise KeyboardInterrupt
        failed = left.pop(0)
        failed.reason = reason_of(failed.folder, status, failure)
        launch.say(f"{failed.title} failed: {failed.reason}")


def launch_worker(cells: list[Cell]) -> tuple[int, str | None]:
    """Start the workers on these cells and wait. Returns (exit status, what failed)."""
    assert cells[0].resolved is not None
    first = cells[0].resolved.experiment
    jobs = []
    for cell in cells:
        assert cell.resolved is not None
        cell.folder.mkdir(parents=True, exist_ok=True)
        cell.resolved.write(cell.folder / "experiment.json")
        jobs.append({"title": cell.title, "folder": str(cell.folder)})
    file = cells[0].folder / "cells.json"
    report.write_json(file, jobs)
    worker = [sys.executable, "-m", "rn50lib.tools.benchmark.worker", str(file)]
    command = launch.launchers.command(first, worker, cells[0].folder)
    status, failure, _ = launch.run_command(command, first)
    return status, failure


def reason_of(folder: Path, status: int, failure: str | None) -> str:
    """The reason of a failed cell in one line."""
    left = folder / FAILED
    if left.exists():
        return left.read_text().strip() or "the worker gave no reason"
    lines = [line.strip() for line in (failure or "").splitlines() if line.strip()]
    if not lines:
        return f"the worker ended with status {status}"
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"
