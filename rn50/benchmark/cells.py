"""The cells of a sweep: their runs, their figures, and the file of all of them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

from rn50 import launch
from rn50lib import report
from rn50lib.config import Resolved, TrainConfig
from rn50lib.errors import TERMINATED


@dataclass
class Cell:
    """One number of workers and one batch size, with a new folder.

    `resolved` is what is run for it (None: refused); `reason` says why a figure is missing.
    """

    n: int
    batch: int
    folder: Path
    resolved: Resolved | None = None
    reason: str | None = None
    report: dict[str, Any] | None = None

    @property
    def title(self) -> str:
        return f"n {self.n}, batch {self.batch}"

    @property
    def config(self) -> TrainConfig:
        assert self.resolved is not None
        return self.resolved.config


def measure(cell: Cell) -> None:
    """Run a cell; fill in its report or its reason. Raise KeyboardInterrupt if the user ends it."""
    assert cell.resolved is not None
    launch.say(cell.title)
    cell.folder.mkdir()
    status, failure = launch.run_once(cell.resolved, cell.folder)
    if status in (130, TERMINATED):
        raise KeyboardInterrupt
    if status == 0:
        cell.report = report.load(cell.folder / "report.json")
    else:
        cell.reason = reason_of(status, failure)
        launch.say(f"{cell.title} failed: {cell.reason}")


def reason_of(status: int, failure: str | None) -> str:
    """Return the reason of a failed cell in one line: the first of its lines, and the last."""
    lines = [line.strip() for line in (failure or "").splitlines() if line.strip()]
    if not lines:
        return f"the worker exited with status {status}"
    return lines[0] if len(lines) == 1 else f"{lines[0]} {lines[-1]}"


def contents(cells: list[Cell], dropped: int, command: list[str]) -> dict[str, Any]:
    """Return a sweep's file: the reference's keys model, ngpus, bs, metric_keys and metrics; `env`.

    A figure is the harmonic mean over a cell's epochs without the first `dropped`, in images per
    second over all workers; null if there is none, with the reason in `env.cells[n][b]`.
    """
    planned = [cell for cell in cells if cell.resolved]
    first, reports = planned[0].config, [cell.report for cell in cells if cell.report]
    keys = [] if first.only_inference else ["train.total_ips"]
    keys += [] if first.no_val else ["val.total_ips"]
    metrics: dict[str, dict[str, Any]] = {}
    details: dict[str, dict[str, Any]] = {}
    for cell in cells:
        found = {key: rates(cell, key, dropped) for key in keys}
        if cell.report and None in found.values():
            cell.reason = (
                "an epoch has one iteration, which is not timed: use a larger -i, a smaller -b or"
                " more images"
            )
        figures = {k: harmonic_mean(epochs) if epochs else None for k, epochs in found.items()}
        measured = {key: {"epochs": epochs} for key, epochs in found.items() if epochs}
        entry: dict[str, Any] = {"reason": cell.reason, **measured}
        if cell.report:
            entry["report"] = str(cell.folder / "report.json")
        metrics.setdefault(str(cell.n), {})[str(cell.batch)] = figures
        details.setdefault(str(cell.n), {})[str(cell.batch)] = entry
    machine = {key: reports[0]["env"].get(key) for key in ("machine", "versions") if reports}
    caps = dict.fromkeys(line for cell in planned if cell.resolved for line in cell.resolved.caps)
    warm_up = {"untimed_iterations": 1, "epochs_left_out": dropped}  # 1: the first of each epoch
    return {
        "model": reports[0]["model"] if reports else first.to_network().name,
        "ngpus": list(dict.fromkeys(cell.n for cell in cells)),
        "bs": list(dict.fromkeys(cell.batch for cell in cells)),
        "metric_keys": keys,
        "metrics": metrics,
        "env": {"cmd": command, "warm_up": warm_up, "caps": [*caps], **machine, "cells": details},
    }


def rates(cell: Cell, key: str, dropped: int) -> list[float] | None:
    """Return a cell's images per second of each epoch; None if one was not measured."""
    epochs = cell.report["metrics"].get(key, [])[dropped:] if cell.report else []
    return None if not epochs or None in epochs else epochs
