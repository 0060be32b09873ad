"""Runs and benchmarks beside each other, and beside published figures: `rn50 compare`.

Each becomes a `Side`, which holds rates by metric, number of workers and batch, and results of
trainings by metric and number of workers. Only figures of the same metric, workers and batch are
divided by each other; weak scaling is a ratio within a side, and so may be compared across batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import harmonic_mean
from typing import TYPE_CHECKING, Any

from rn50 import plot
from rn50.common import aligned
from rn50.scaling.check import load
from rn50lib.errors import UserError
from rn50lib.files import read_json
from rn50lib.report import check_metrics

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

RATES = ("train.total_ips", "val.total_ips")
LAST = ("train.loss", "train.top1", "val.loss", "val.top1", "val.top5")
Key = tuple[str, int, int]  # metric, workers, batch per worker
TITLES = {"train.total_ips": "Training", "val.total_ips": "Inference"}


@dataclass
class Side:
    """One of the things compared. Rates in images per second over all workers, None if not
    measured; `trained` holds the last epoch's metrics and the hours by (metric, workers)."""

    name: str
    rates: dict[Key, float | None] = field(default_factory=dict)
    trained: dict[tuple[str, int], float | None] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def weak_scaling(self, key: str, n: int, batch: int) -> float | None:
        """Rate over that of one worker with the same batch, None where either is missing."""
        rate, one = self.rates.get((key, n, batch)), self.rates.get((key, 1, batch))
        return rate / one if rate and one else None

    def best_batch(self, key: str, n: int) -> tuple[int, float] | None:
        """(batch, rate) of the batch with which n workers are fastest; None without any rate."""
        found = [(rate, b) for (k, m, b), rate in self.rates.items() if (k, m) == (key, n) and rate]
        return max(found)[::-1] if found else None


# --- reading --------------------------------------------------------------------------------------


def read(path: str, name: str | None = None) -> Side:
    """A report or a benchmark from its file. Raises UserError for anything else."""
    try:
        content = read_json(path)
    except (OSError, ValueError) as error:
        raise UserError(f"{path} cannot be read as JSON: {error}") from None
    side = Side(name or Path(path).stem)
    try:
        if "metric_keys" in content:
            read_benchmark(side, content)
        elif "ngpus" in content and "metrics" in content:
            read_report(side, content)
        else:
            raise ValueError("it has neither metric_keys nor ngpus and metrics")
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"{path} is neither a report (--report) nor a benchmark (`rn50 benchmark -o`): {error}"
        ) from None
    return side


def side_of(benchmark: dict[str, Any]) -> Side:
    """A benchmark that has just been measured, for its tables."""
    side = Side("this sweep")
    read_benchmark(side, benchmark)
    return side


def read_benchmark(side: Side, content: dict[str, Any]) -> None:
    reasons = content.get("env", {}).get("cells", {})
    for n, cells in content["metrics"].items():
        for batch, values in cells.items():
            for key in content["metric_keys"]:
                side.rates[key, int(n), int(batch)] = speed((values or {}).get(key))
            cell = reasons.get(n, {}).get(batch, {})
            if cell.get("reason"):
                side.notes.append(f"{side.name}, n {n}, batch {batch}: {cell['reason']}")


def read_report(side: Side, content: dict[str, Any]) -> None:
    n, metrics = int(content["ngpus"]), content["metrics"]
    check_metrics(metrics)
    batch = content.get("env", {}).get("axes", {}).get("batch_size", {}).get("value")
    for key in RATES:
        speeds = [speed(rate) for rate in metrics.get(key) or []]
        epochs = [rate for rate in speeds if rate is not None]
        if epochs and batch is not None:  # the first epoch is a warm-up where there are others
            side.rates[key, n, int(batch)] = harmonic_mean(epochs[1:] or epochs)
    if batch is None and any(metrics.get(key) for key in RATES):
        side.notes.append(
            f"{side.name}: its report does not say the batch, so its speed is left out"
        )
    for key in LAST:
        if metrics.get(key) and metrics[key][-1] is not None:
            side.trained[key, n] = float(metrics[key][-1])
    if content.get("total_duration"):
        side.trained["hours", n] = content["total_duration"] / 3600


def speed(value: float | None) -> float | None:
    """A rate of a file, None where there is none or it is 0. ValueError for what is no speed."""
    rate = float(value or 0)
    if not 0 <= rate < float("inf"):
        raise ValueError(f"{value} is not a speed")
    return rate or None


def names() -> list[str]:
    """What `published` knows: publication and precision, as in DGX-1/mixed."""
    return [f"{name.replace(' ', '-')}/{precision}" for name, precision in load()]


def published(name: str) -> Side:
    """Published figures by name, with their source as notes. UserError where there are none."""
    if name not in names():
        raise UserError(f"--published {name}: there are {', '.join(names())}")
    series = list(load().values())[names().index(name)]
    side = Side(name)
    for n, ips in series.ips.items():
        side.rates["train.total_ips", n, series.batch] = ips
    side.notes.append(
        f"{name}: published, {series.source}; {series.hardware}, {series.software}"
        f" ({series.remark})"
    )
    for batch, ips in series.inference_ips.items():
        side.rates["val.total_ips", 1, int(batch)] = float(ips)
    for gpus, results in series.trained.items():
        side.trained |= {(key, int(gpus)): value for key, value in results.items()}
    return side


# --- tables ---------------------------------------------------------------------------------------


def text(sides: Sequence[Side]) -> str:
    """The tables of everything that at least one side has, and the notes."""
    tables = [table(sides, key) for key in RATES for table in (rate_table, weak_table)]
    parts = [table for table in (*tables, trained_table(sides)) if table]
    if not parts:
        raise UserError(f"{', '.join(s.name for s in sides)}: no speed and no accuracy in there")
    notes = "\n".join(note for side in sides for note in side.notes)
    return "\n\n".join([*parts, notes]).rstrip()


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
        ratios = [rate / rates[0] if rate and rates[0] else None for rate in rates[1:]]
        # a cell without a value has failed, one that is not there was not measured
        shown = ["failed" if side.rates.get(cell, 0) is None else number(side.rates.get(cell))
                 for side in sides]  # fmt: skip
        rows.append([str(cell[1]), str(cell[2]), *shown, *map(number, ratios)])
    title = f"{key}, images per second"
    if others and all(row[-len(others) :] == ["-"] * len(others) for row in rows):
        title += " (no workers and batch in common, so there is no ratio)"
    return "\n".join([title, *aligned([head, *rows])])


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
    rows = [
        [key, str(n), *(number(side.trained.get((key, n)), 3) for side in sides)]
        for key in (*LAST, "hours")
        for n in sorted({m for side in sides for k, m in side.trained if k == key})
    ]
    if not rows:
        return ""
    head = ["metric", "workers", *(side.name for side in sides)]
    return "\n".join(["trainings, after their last epoch", *aligned([head, *rows])])


def number(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{value:,.{digits if value < 100 else 1}f}"


# --- the picture ----------------------------------------------------------------------------------


def figure(sides: Sequence[Side]) -> Figure:
    """A panel for each metric that has a speed. Raises UserError where none has."""
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    measured = {key for side in sides for (key, _, _), rate in side.rates.items() if rate}
    metrics = [key for key in RATES if key in measured]
    if not metrics:
        names = ", ".join(side.name for side in sides)
        raise UserError(f"--output: no speed in {names} to draw; `rn50 plot` draws their curves")
    with plot.style():
        drawn = Figure(figsize=(max(7.0, 5.2 * len(metrics)), 4.0))
        panels = drawn.subplots(1, len(metrics), squeeze=False)[0]
        for axes, key in zip(panels, metrics, strict=True):
            draw(axes, sides, key)
        shared = [Line2D([], [], label=side.name, **look(i)) for i, side in enumerate(sides)]
        drawn.legend(handles=shared, loc="outside lower center", ncols=3)
    return drawn


def look(number: int) -> dict[str, Any]:
    """A side's colour and marker, the same in all panels."""
    at = number % len(plot.COLOURS)
    return {"color": plot.COLOURS[at], "marker": plot.MARKERS[at]}


def draw(axes: Axes, sides: Sequence[Side], key: str) -> None:
    """Speed over the workers, a line for each batch; over the batch where only one number of
    workers was measured."""
    several = len({n for side in sides for metric, n, _ in side.rates if metric == key}) > 1
    for number, side in enumerate(sides):
        lines: dict[int, list[tuple[int, float]]] = {}
        for (metric, n, batch), ips in sorted(side.rates.items(), key=lambda item: item[0]):
            if metric == key and ips:
                line, at = (batch, n) if several else (n, batch)
                lines.setdefault(line, []).append((at, ips))
        for line, points in lines.items():
            axes.plot(*zip(*points, strict=True), **look(number), ms=6)
            if several:
                axes.annotate(f"batch {line}", points[-1], (-4, 5), textcoords="offset points",
                              fontsize=8, ha="right")  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set(title=TITLES[key], xlabel="workers" if several else "batch per worker",
             ylabel="images per second")  # fmt: skip
    axes.set_ylim(bottom=0)


# --- the command ----------------------------------------------------------------------------------


def main(argv: list[str]) -> int:
    """`rn50 compare A.json B.json`; returns the exit status."""
    from rn50.parser import Parser

    parser = Parser(prog="rn50 compare", description="Reports and benchmarks beside each other.",
                    allow_abbrev=False)  # fmt: skip
    parser.add_argument("files", nargs="*", help="files of --report or of `rn50 benchmark -o`")
    parser.add_argument(
        "--published", action="append", default=[], metavar="NAME",
        help=f"published figures beside them: {', '.join(names())}; may be given several times",
    )  # fmt: skip
    parser.add_argument("--labels", nargs="+", help="a name for each file (default: its own)")
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
    print(text(sides))
    if args.output:
        plot.save(figure(sides), args.output)
    return 0
