"""Sweeps of notebook 08: `rn50 benchmark` run from a cell, and sums over the file that it wrote.

Rates are images per second over all workers, times seconds. Nothing here measures; `run` starts the
program that does.
"""

from __future__ import annotations

import json
import os
import select
import shlex
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from rn50lib import launch
from rn50lib.metrics import harmonic_mean
from rn50lib.tools.sides import Side
from workshop import output
from workshop.errors import RunFailed

TRAIN, VAL = "train.total_ips", "val.total_ips"
SAY_S = 2.0  # what has been printed is shown at least this often
KEPT = 60  # lines


def run(file: Path, *flags: object, status: int = 0) -> dict[str, Any]:
    """`rn50 benchmark FLAGS -o FILE` with its output as it comes; returns what stands in FILE.

    Raises RunFailed if the exit status is not `status`.
    """
    words = [os.fspath(f) if isinstance(f, os.PathLike) else str(f) for f in flags]
    command = shlex.join(["rn50", "benchmark", *words, "-o", file.name])
    slot, lines, began = output.Slot(), list[str](), time.monotonic()

    def show(ended: bool = False) -> None:
        told = lines if ended else [*lines, f"({time.monotonic() - began:.0f} s)"]
        html = f"<b>$ {escape(command)}</b>\n{escape(chr(10).join(told))}"
        slot.html(
            f'<pre style="white-space:pre-wrap;background:none">{html}</pre>',
            "\n".join([f"$ {command}", *told]),
        )

    show()
    process = subprocess.Popen(
        [*launch.program("benchmark"), *words, "-o", str(file)],
        env=launch.with_library(dict(os.environ)) | {"PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    assert process.stdout
    try:
        while True:
            if select.select([process.stdout], [], [], SAY_S)[0]:
                said = process.stdout.readline()
                if not said:
                    break
                lines = [*lines, said.decode("utf-8", "replace").rstrip()][-KEPT:]
            show()
        ended = process.wait()
    finally:  # also when the cell is interrupted: the program ends its workers
        if process.poll() is None:
            process.terminate()
            process.wait()
        process.stdout.close()
    show(ended=True)
    if ended != status:
        raise RunFailed(
            f"rn50 benchmark ended with exit status {ended}; it said:", "\n".join(lines[-12:])
        )
    return dict(json.loads(file.read_text(encoding="utf-8")))


# --- the iterations behind a figure ---------------------------------------------------------------


def iterations(
    result: Mapping[str, Any], n: int, batch: int, phase: str = "train"
) -> dict[int, list[float]]:
    """Seconds of each timed iteration of a cell, by epoch: the cell's folder keeps them."""
    cell = result["env"]["cells"][str(n)][str(batch)]
    phases = json.loads((Path(cell["report"]).parent / "measured.json").read_text())
    return {p["epoch"]: p["seconds"] for p in phases if p["phase"] == phase}


def rates(result: Mapping[str, Any], n: int, batch: int, phase: str = "train") -> list[float]:
    """Images per second of each iteration that counts: those of the warm-up epochs do not."""
    dropped = result["env"]["warm_up"]["epochs_left_out"]
    found = iterations(result, n, batch, phase)
    return [n * batch / s for epoch, row in found.items() if epoch >= dropped for s in row]


def means(values: Sequence[float]) -> dict[str, float]:
    """One set of rates, each over as many images, in four numbers. The harmonic mean is what a
    clock would say: all images over all seconds."""
    ordered = sorted(values)
    return {
        "harmonic mean": harmonic_mean(ordered),
        "arithmetic mean": sum(ordered) / len(ordered),
        "median": statistics.median(ordered),
        "best": ordered[-1],
    }


def expected_best(values: Sequence[float], n: int) -> float:
    """The expected largest of `n` values drawn from these, each as likely, with replacement."""
    ordered, m = sorted(values), len(values)
    return sum(v * ((i / m) ** n - ((i - 1) / m) ** n) for i, v in enumerate(ordered, 1))


# --- tables ---------------------------------------------------------------------------------------


def best_batch(side: Side, key: str, n: int) -> tuple[int, float] | None:
    """(batch, rate) of the batch with which n workers are fastest; None where none was measured."""
    found = [(rate, b) for (k, m, b), rate in side.rates.items() if (k, m) == (key, n) and rate]
    return max(found)[::-1] if found else None


def training_table(sides: Sequence[Side]) -> tuple[list[list[Any]], list[str]]:
    """(rows, columns) of the reference's training table for two precisions: for each number of
    workers both rates with their best batches, the speed-up of the first over the second, and the
    weak scaling of each at the batch of its rate."""
    first, second = sides
    rows = []
    for n in sorted({n for side in sides for key, n, _ in side.rates if key == TRAIN}):
        best = [best_batch(side, TRAIN, n) for side in sides]
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
    best = [pair[1] for side in (first, second) if (pair := best_batch(side, key, n))]
    return most, one / two, best[0] / best[1]


def strong(side: Side, n: int) -> list[tuple[int, float, float]]:
    """(global batch, rate of one worker, rate of n workers that share the batch) as measured."""
    found = []
    for key, m, b in sorted(side.rates):
        one, many = side.rates[key, m, b], side.rates.get((key, n, b // n))
        if key == TRAIN and m == 1 and b % n == 0 and one and many:
            found.append((b, one, many))
    return found


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
