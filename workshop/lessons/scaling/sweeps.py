"""Sweeps of notebook 08: `rn50 benchmark` run from a cell, and sums over the file that it wrote.

Rates are images per second over all workers, times seconds. Nothing here measures; `run` starts the
program that does.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rn50.compare import Side
from workshop import output
from workshop.programs import program

TRAIN, VAL = "train.total_ips", "val.total_ips"


def run(file: Path, *flags: object, status: int = 0) -> dict[str, Any]:
    """`rn50 benchmark FLAGS -o FILE` with its output as it comes; returns what stands in FILE.

    Raises RunFailed if the exit status is not `status`.
    """
    program("rn50", "benchmark", *flags, "-o", file.name, folder=file.parent, status=status)
    return dict(json.loads(file.read_text(encoding="utf-8")))


# --- tables ---------------------------------------------------------------------------------------


def training_table(sides: Sequence[Side]) -> tuple[list[list[Any]], list[str]]:
    """(rows, columns) of the published training table for two precisions: for each number of
    workers both rates with their best batches, the speed-up of the first over the second, and the
    weak scaling of each at the batch of its rate."""
    first, second = sides
    rows = []
    for n in sorted({n for side in sides for key, n, _ in side.rates if key == TRAIN}):
        best = [side.best_batch(TRAIN, n) for side in sides]
        if None in best:
            continue
        pairs = [pair for pair in best if pair is not None]
        weak = [s.weak_scaling(TRAIN, n, b) for s, (b, _) in zip(sides, pairs, strict=True)]
        (b1, r1), (b2, r2) = pairs
        rows.append([n, b1, r1, b2, r2, r1 / r2, *weak])
    columns = ["workers"]
    for side in sides:
        columns += [f"{side.name}: batch", "img/s"]
    columns += ["speed-up", f"weak scaling, {first.name}", f"weak scaling, {second.name}"]
    return rows, columns


def batch_table(
    sides: Sequence[Side], key: str = VAL, n: int = 1
) -> tuple[list[list[Any]], list[str]]:
    """(rows, columns) of a rate over the batches, and the speed-up at each batch that both have."""
    batches = sorted({b for side in sides for k, m, b in side.rates if (k, m) == (key, n)})
    rows: list[list[Any]] = []
    for b in batches:
        found = [side.rates.get((key, n, b)) for side in sides]
        one, *others = found
        rows.append([b, *found, *(one / o if one and o else None for o in others)])
    names = [side.name for side in sides]
    ratios = [f"{names[0]} / {name}" for name in names[1:]]
    return rows, ["batch", *names, *ratios]


def equal_and_best(
    first: Side, second: Side, key: str = VAL, n: int = 1
) -> tuple[int, float, float]:
    """(largest common batch, speed-up there, speed-up with each one's best batch): first / second.

    Raises ValueError where they have no batch in common.
    """
    common = {
        b: (rate, other)
        for (k, m, b), rate in first.rates.items()
        if (k, m) == (key, n) and rate and (other := second.rates.get((k, m, b)))
    }
    most = max(common)
    one, two = common[most]
    best = [pair[1] for side in (first, second) if (pair := side.best_batch(key, n))]
    return most, one / two, best[0] / best[1]


def markdown(rows: Sequence[Sequence[Any]], columns: Sequence[str]) -> str:
    """The table as Markdown, for a README: numbers to the right."""
    right = [
        any(isinstance(row[i], int | float) for row in rows)
        and all(row[i] is None or isinstance(row[i], int | float) for row in rows)
        for i in range(len(columns))
    ]
    lines = [list(columns), ["---:" if r else "---" for r in right]]
    lines += [[output.cell_text(value) for value in row] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
