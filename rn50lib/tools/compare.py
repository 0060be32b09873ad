"""Runs and benchmarks beside each other, and beside published figures: `rn50 compare`.

Each becomes a `Side` (`rn50lib.tools.sides`). Only figures of the same metric, workers and batch
are divided by each other; weak scaling is a ratio within a side, and so may be compared across
batches.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from rn50lib.errors import UserError
from rn50lib.tools.benchmark.table import aligned
from rn50lib.tools.sides import LAST, RATES, Cell, Side, names, published, read

# --- tables ---------------------------------------------------------------------------------------


def text(sides: Sequence[Side]) -> str:
    """The tables of everything that at least one side has, and the notes."""
    parts = [
        table
        for key in RATES
        for table in (rate_table(sides, key), weak_table(sides, key))
        if table
    ]
    parts += [table for table in (trained_table(sides),) if table]
    if not parts:
        raise UserError(f"{', '.join(s.name for s in sides)}: no speed and no accuracy in there")
    return "\n\n".join([*parts, *(["\n".join(n for s in sides for n in s.notes)])]).rstrip()


def rate_table(sides: Sequence[Side], key: str) -> str:
    """Images per second by workers and batch, and each side over the first."""
    cells = sorted({cell for side in sides for cell in side.rates if cell[0] == key})
    if not cells:
        return ""
    first, *others = sides
    head = ["workers", "batch", *(s.name for s in sides)]
    head += [f"{s.name} / {first.name}" for s in others]
    rows = []
    for cell in cells:
        rates = [side.rates.get(cell) for side in sides]
        ratios = [ratio(rate, rates[0]) for rate in rates[1:]]
        told = [told_rate(side, cell) for side in sides]
        rows.append([str(cell[1]), str(cell[2]), *told, *map(number, ratios)])
    title = f"{key}, images per second"
    if all(row[-len(others) :] == ["-"] * len(others) for row in rows):
        title += " (no workers and batch in common, so there is no ratio)"
    return "\n".join([title, *aligned([head, *rows])])


def told_rate(side: Side, cell: Cell) -> str:
    """A rate in the table."""
    rate = side.rates.get(cell)
    if cell in side.rates and rate is None:
        return "failed"
    return number(rate)


def weak_table(sides: Sequence[Side], key: str) -> str:
    """Weak scaling: the speed of n workers over that of one with the same batch."""
    cells = sorted({c for side in sides for c in side.rates if c[0] == key and c[1] > 1})
    rows = []
    for cell in cells:
        found = [side.weak_scaling(*cell) for side in sides]
        if any(value is not None for value in found):
            rows.append([str(cell[1]), str(cell[2]), *map(number, found)])
    if not rows:
        return ""
    head = ["workers", "batch", *(side.name for side in sides)]
    return "\n".join([f"{key}, times the speed of one worker", *aligned([head, *rows])])


def trained_table(sides: Sequence[Side]) -> str:
    """The last epoch's metrics and the hours of trainings."""
    order = (*LAST, "hours")
    rows = [
        [key, str(n), *(number(side.trained.get((key, n)), 3) for side in sides)]
        for key in order
        for n in sorted({m for side in sides for k, m in side.trained if k == key})
    ]
    if not rows:
        return ""
    head = ["metric", "workers", *(side.name for side in sides)]
    return "\n".join(["trainings, after their last epoch", *aligned([head, *rows])])


def ratio(value: float | None, base: float | None) -> float | None:
    return value / base if value and base else None


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits if value < 100 else 1}f}"


def as_json(sides: Sequence[Side]) -> dict[str, Any]:
    """The same as data: a list of cells with a rate for every side, and of trainings."""
    cells = sorted({cell for side in sides for cell in side.rates})
    trained = sorted({key for side in sides for key in side.trained})
    return {
        "sides": [side.name for side in sides],
        "rates": [
            {
                "metric": key, "workers": n, "batch": batch,
                "ips": [side.rates.get((key, n, batch)) for side in sides],
                "weak_scaling": [side.weak_scaling(key, n, batch) for side in sides],
            }
            for key, n, batch in cells
        ],
        "trained": [
            {"metric": k, "workers": n, "value": [s.trained.get((k, n)) for s in sides]}
            for k, n in trained
        ],
        "notes": [note for side in sides for note in side.notes],
    }  # fmt: skip


# --- the command ----------------------------------------------------------------------------------


def main(argv: list[str]) -> int:
    """`rn50 compare A.json B.json`; returns the exit status."""
    from rn50lib.parser import Parser

    parser = Parser(prog="rn50 compare", description="Reports and benchmarks beside each other.",
                    allow_abbrev=False)  # fmt: skip
    parser.add_argument("files", nargs="*", help="files of --report or of `rn50 benchmark -o`")
    told = f"published figures beside them: {', '.join(names())}; may be given several times"
    parser.add_argument("--published", action="append", default=[], metavar="NAME", help=told)
    parser.add_argument("--labels", nargs="+", help="a name for each file (default: its own)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("-o", "--output", help="picture to write (.png, .svg, .pdf)")
    args = parser.parse_args(argv)
    if args.labels and len(args.labels) != len(args.files):
        parser.error(f"--labels: {len(args.labels)} names for {len(args.files)} files")
    if len(args.files) + len(args.published) < 2:
        parser.error("it takes two to compare: another file, or --published " + names()[0])
    labels = args.labels or [None] * len(args.files)
    sides = [read(file, label) for file, label in zip(args.files, labels, strict=True)]
    sides += [published(name) for name in args.published]
    seen = [side.name for side in sides]
    if len(set(seen)) < len(seen):
        parser.error(f"two of them are called {max(seen, key=seen.count)}: name them with --labels")
    shown = text(sides)
    print(json.dumps(as_json(sides), indent=4) if args.json else shown)
    if args.output:
        from rn50lib.tools import plot, plot_compare

        plot.save(plot_compare.rates(sides), args.output)
    return 0
