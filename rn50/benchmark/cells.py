"""The cells of a sweep, and the processes that measure them."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rn50 import launch
from rn50.benchmark.worker import DONE, FAILED
from rn50lib import report
from rn50lib.config import Config, Experiment


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

    @property
    def experiment(self) -> Experiment:
        """What is run for it."""
        assert self.resolved is not None
        return self.resolved.experiment


def measure(cells: list[Cell]) -> None:
    """Run cells that all have the same number of workers; fills in their reports and reasons.

    The workers stay for all of them: a cell does not pay for starting them. After a failure, new
    workers go on with the next cell. Raises KeyboardInterrupt when the user ends it.
    """
    left = list(cells)
    while left:
        status, failure = launch_workers(left)
        while left and (left[0].folder / DONE).exists():
            cell = left.pop(0)
            cell.phases = json.loads((cell.folder / DONE).read_text())
            cell.report = report.load(cell.folder / "report.json")
        if not left:
            return
        if status in (130, 128 + signal.SIGTERM):
            raise KeyboardInterrupt
        failed = left.pop(0)
        failed.reason = reason_of(failed.folder, status, failure)
        launch.say(f"{failed.title} failed: {failed.reason}")


def launch_workers(cells: list[Cell]) -> tuple[int, str | None]:
    """Start the workers on these cells and wait. Returns (exit status, what failed)."""
    first = cells[0].experiment
    for cell in cells:
        assert cell.resolved is not None
        cell.folder.mkdir(parents=True, exist_ok=True)
        cell.resolved.write(cell.folder / "experiment.json")
    file = cells[0].folder / "cells.json"
    report.write_json(file, [{"title": cell.title, "folder": str(cell.folder)} for cell in cells])
    worker = [sys.executable, "-m", "rn50.benchmark.worker", str(file)]
    command = launch.launcher_command(first, worker, cells[0].folder)
    return launch.run_command(command, first, cells[0].folder)


def reason_of(folder: Path, status: int, failure: str | None) -> str:
    """The reason of a failed cell in one line."""
    left = folder / FAILED
    if left.exists():
        return left.read_text().strip() or "the worker gave no reason"
    lines = [line.strip() for line in (failure or "").splitlines() if line.strip()]
    if not lines:
        return f"the worker ended with status {status}"
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"
