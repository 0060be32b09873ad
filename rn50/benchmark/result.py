"""From the reports of a sweep's cells to its file: the reference's keys, and more under `env`."""

from __future__ import annotations

import math
from statistics import harmonic_mean
from typing import Any

from rn50.benchmark.cells import Cell

PERCENTILES = (50, 90, 95, 99, 100)


def to_dict(cells: list[Cell], keys: list[str], dropped: int, more: dict[str, Any]) -> dict:
    """The sweep as the reference writes it: model, ngpus, bs, metric_keys, metrics.

    A cell's value is the harmonic mean over its epochs without the first `dropped`, in images per
    second over all workers; null where there is none, and then its reason stands in
    `env.cells[n][b]`, beside what else was measured. `more` goes into `env` too.
    """
    metrics: dict[str, dict[str, dict[str, float | None]]] = {}
    details: dict[str, dict[str, dict[str, Any]]] = {}
    for cell in cells:
        values = {key: value(cell, key, dropped) for key in keys}
        metrics.setdefault(str(cell.n), {})[str(cell.batch)] = values
        if cell.reason is None and None in values.values():
            cell.reason = (
                "an epoch has one iteration, which is not timed: give a larger -i, a smaller -b or"
                " more images"
            )
        entry: dict[str, Any] = {"reason": cell.reason}
        if cell.report is not None:
            entry |= {key: detail(cell, key, dropped) for key in keys if values[key] is not None}
            entry["report"] = str(cell.folder / "report.json")
        details.setdefault(str(cell.n), {})[str(cell.batch)] = entry
    reports = [cell.report for cell in cells if cell.report is not None]
    planned = next(cell for cell in cells if cell.resolved is not None).experiment.to_network()
    machine = {k: reports[0]["env"].get(k) for k in ("machine", "versions")} if reports else {}
    return {
        "model": reports[0]["model"] if reports else planned.name,
        "ngpus": list(dict.fromkeys(cell.n for cell in cells)),
        "bs": list(dict.fromkeys(cell.batch for cell in cells)),
        "metric_keys": keys,
        "metrics": metrics,
        "env": {**more, **machine, "cells": details},
    }


def value(cell: Cell, key: str, dropped: int) -> float | None:
    """The figure of a cell, in images per second; None where an epoch was not measured."""
    epochs = kept(cell, key, dropped)
    return harmonic_mean(epochs) if epochs else None


def kept(cell: Cell, key: str, dropped: int) -> list[float]:
    """The rates of a cell's epochs without the first `dropped`; none unless all were measured."""
    if cell.report is None or cell.reason is not None:
        return []
    epochs = cell.report["metrics"].get(key, [])[dropped:]
    return [] if any(rate is None for rate in epochs) else epochs


def detail(cell: Cell, key: str, dropped: int) -> dict[str, Any]:
    """What else is known of a figure; rates in images per second over all workers.

    `n` iterations were timed, over `epochs`; `median` and `spread` (the quartiles) are rates of
    single iterations. `data_ips` and `compute_ips` are the rates if waiting for input, or all but
    that, were all there is. `latency_ms` has the percentiles of an iteration, from the end of
    the one before: what of the input is not hidden behind the computing is in it. On a GPU
    PyTorch's loop is a step ahead of the device and TensorFlow's more, so that a single iteration
    may look too short or too long.
    """
    assert cell.phases is not None
    images = cell.experiment.global_batch
    phases = [p for p in cell.phases if key.startswith(p["phase"] + ".") and p["epoch"] >= dropped]
    seconds = sorted(s for phase in phases for s in phase["seconds"])
    total, data = sum(seconds), sum(phase["data_s"] for phase in phases)
    return {
        "n": len(seconds),
        "median": images / percentile(seconds, 50),
        "spread": [images / percentile(seconds, 75), images / percentile(seconds, 25)],
        "epochs": kept(cell, key, dropped),
        "data_ips": images * len(seconds) / data if data > 0 else None,
        "compute_ips": images * len(seconds) / (total - data) if total > data else None,
        "latency_ms": {str(p): 1000 * percentile(seconds, p) for p in PERCENTILES},
    }


def percentile(ordered: list[float], per_cent: float) -> float:
    """The smallest of the ordered values that `per_cent` of them do not exceed (nearest rank)."""
    return ordered[max(0, math.ceil(len(ordered) * per_cent / 100) - 1)]


def spreads(found: dict[str, Any]) -> str:
    """A line for each figure of a benchmark's file: the quartiles of its iterations."""
    lines = [
        f"  n {n}, batch {batch}, {key}: {cell[key]['spread'][0]:,.1f} to"
        f" {cell[key]['spread'][1]:,.1f}"
        for n, row in found["env"]["cells"].items()
        for batch, cell in row.items()
        for key in found["metric_keys"]
        if key in cell
    ]
    return "\n".join(["half of the iterations were between (images per second)", *lines])
