"""Runs and benchmarks beside each other, and beside published figures: `rn50 compare`.

A report or a benchmark becomes a `Side`: rates by metric, number of workers and batch, and results
of trainings by metric and number of workers. Only figures of the same metric, workers and batch are
divided by each other; weak scaling is a ratio within a side, and so may be compared across batches.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from rn50lib.files import read_json
from rn50lib.metrics import harmonic_mean
from rn50lib.report import check_metrics
from rn50lib.tools.benchmark.table import aligned
from rn50lib.tools.scaling.published import load as load_speeds

RATES = ("train.total_ips", "val.total_ips")
LAST = ("train.loss", "train.top1", "val.loss", "val.top1", "val.top5")
RESULTS = Path(__file__).resolve().parents[1] / "data" / "published_results.json"
Cell = tuple[str, int, int]  # metric, workers, batch per worker


@dataclass
class Side:
    """One of the things compared. Rates in images per second over all workers, None if not
    measured; `trained` holds the last epoch's metrics and the hours by (metric, workers)."""

    name: str
    rates: dict[Cell, float | None] = field(default_factory=dict)
    trained: dict[tuple[str, int], float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    contended: set[Cell] = field(default_factory=set)  # timed while others used the machine

    def weak_scaling(self, key: str, n: int, batch: int) -> float | None:
        """Rate over that of one worker with the same batch, None where either is missing."""
        rate, one = self.rates.get((key, n, batch)), self.rates.get((key, 1, batch))
        return rate / one if rate and one else None

    def fair_scaling(self, cell: Cell) -> float | None:
        """The same where neither was timed while others used the machine."""
        key, n, batch = cell
        return None if {cell, (key, 1, batch)} & self.contended else self.weak_scaling(*cell)

    def fair(self, cell: Cell) -> float | None:
        """A rate that may be compared, None where there is none."""
        return None if cell in self.contended else self.rates.get(cell)

    def mark(self, cells: Sequence[Cell], where: str, why: Sequence[str]) -> None:
        """Note that these were timed while others used the machine, where `why` says so."""
        if cells and why:
            self.contended |= set(cells)
            self.notes.append(f"* {where}: {'; '.join(why)}: this speed is not compared")


# --- reading --------------------------------------------------------------------------------------


def read(path: str, name: str | None = None) -> Side:
    """A report or a benchmark from its file. Raises UserError for anything else."""
    try:
        told = read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from None
    side = Side(name or Path(path).stem)
    try:
        if "metric_keys" in told:
            read_benchmark(side, told)
        elif "ngpus" in told and "metrics" in told:
            read_report(side, told)
        else:
            raise ValueError("it has neither metric_keys nor ngpus and metrics")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        why = f"no {error}" if isinstance(error, KeyError) else str(error)
        if isinstance(error, AttributeError | TypeError):
            why = "what is in it has another form"
        raise UserError(
            f"{path} is neither a report (--report) nor a benchmark (`rn50 benchmark -o`): {why}"
        ) from None
    return side


def read_benchmark(side: Side, told: dict[str, Any]) -> None:
    reasons = told.get("env", {}).get("cells", {})
    for n, cells in told["metrics"].items():
        for batch, values in cells.items():
            for key in told["metric_keys"]:
                side.rates[key, int(n), int(batch)] = speed((values or {}).get(key))
            told_of = reasons.get(n, {}).get(batch, {})
            if told_of.get("reason"):
                side.notes.append(f"{side.name}, n {n}, batch {batch}: {told_of['reason']}")
            measured = [(k, int(n), int(batch)) for k, rate in (values or {}).items() if rate]
            where = f"{side.name}, n {n}, batch {batch}"
            side.mark(measured, where, told_of.get("contended") or ())


def read_report(side: Side, told: dict[str, Any]) -> None:
    n, metrics = int(told["ngpus"]), told["metrics"]
    check_metrics(metrics)
    batch = told.get("env", {}).get("axes", {}).get("batch_size", {}).get("value")
    for key in RATES:
        told_of = [speed(rate) for rate in metrics.get(key) or []]
        epochs = [rate for rate in told_of if rate is not None]
        if epochs and batch is not None:  # the first epoch is a warm-up where there are others
            side.rates[key, n, int(batch)] = harmonic_mean(epochs[1:] or epochs)
    side.mark(list(side.rates), side.name, told.get("env", {}).get("contended") or ())
    if batch is None and any(metrics.get(key) for key in RATES):
        side.notes.append(
            f"{side.name}: its report does not say the batch, so its speed is left out"
        )
    for key in LAST:
        if metrics.get(key) and metrics[key][-1] is not None:
            side.trained[key, n] = float(metrics[key][-1])
    if told.get("total_duration"):
        side.trained["hours", n] = told["total_duration"] / 3600


def speed(told: float | None) -> float | None:
    """A rate of a file, None where there is none or it is 0. ValueError for what is no speed."""
    rate = float(told or 0)
    if not 0 <= rate < float("inf"):
        raise ValueError(f"{told} is not a speed")
    return rate or None


@functools.cache
def names() -> tuple[str, ...]:
    """What `published` knows: publication and precision, as in DGX-1/mixed."""
    return tuple(f"{name.replace(' ', '-')}/{precision}" for name, precision in load_speeds())


def published(name: str) -> Side:
    """Published figures by name, with their source as notes. UserError where there are none."""
    if name not in names():
        raise UserError(f"--published {name}: there are {', '.join(names())}")
    series = list(load_speeds().values())[names().index(name)]
    side = Side(name)
    for n, ips in series.ips.items():
        side.rates["train.total_ips", n, series.batch] = ips
    side.notes.append(
        f"{name}: published, {series.source}; {series.hardware}, {series.software}"
        f" ({series.remark})"
    )
    more = json.loads(RESULTS.read_text()).get(name, {})
    for batch, ips in more.get("inference_ips", {}).items():
        side.rates["val.total_ips", 1, int(batch)] = float(ips)
    for n, results in more.get("trained", {}).items():
        for key, value in results.items():
            side.trained[key, int(n)] = value
    return side


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
        rates = [side.fair(cell) for side in sides]
        ratios = [ratio(rate, rates[0]) for rate in rates[1:]]
        told = [told_rate(side, cell) for side in sides]
        rows.append([str(cell[1]), str(cell[2]), *told, *map(number, ratios)])
    title = f"{key}, images per second"
    if all(row[-len(others) :] == ["-"] * len(others) for row in rows):
        common = any(all(side.rates.get(cell) for side in sides) for cell in cells)
        why = "others used the machine" if common else "no workers and batch in common"
        title += f" ({why}, so there is no ratio)"
    return "\n".join([title, *aligned([head, *rows])])


def told_rate(side: Side, cell: Cell) -> str:
    """A rate in the table; one that others disturbed has a star."""
    rate = side.rates.get(cell)
    if cell in side.rates and rate is None:
        return "failed"
    return number(rate) + "*" * (cell in side.contended)


def weak_table(sides: Sequence[Side], key: str) -> str:
    """Weak scaling: the speed of n workers over that of one with the same batch."""
    cells = sorted({c for side in sides for c in side.rates if c[0] == key and c[1] > 1})
    rows = []
    for cell in cells:
        found = [side.fair_scaling(cell) for side in sides]
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
                "weak_scaling": [side.fair_scaling((key, n, batch)) for side in sides],
                "contended": [(key, n, batch) in side.contended for side in sides],
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
