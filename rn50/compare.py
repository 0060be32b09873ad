"""`rn50 compare`: reports and benchmarks next to each other and next to published figures.

Only figures of the same model, image size, metric, number of workers and batch are divided.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import harmonic_mean
from typing import Any

from data_prep.command_line import Parser
from rn50.common import aligned, named
from rn50.published import Series, load
from rn50.reports import check_metrics
from rn50lib.errors import UserError
from rn50lib.files import load_json

# the settings that decide a rate
SPEED = (
    "backend loader data_format data_nthreads dtype engine compile cuda_graph fused comm threads"
    " step test_io"
).split()
RATES = ("train.total_ips", "val.total_ips")
LAST = ("train.loss", "train.top1", "val.loss", "val.top1", "val.top5")


@dataclass
class Side:
    """One of the things compared.

    `rates` holds images per second over all workers by (metric, workers, batch per worker), None if
    a cell failed; `trained` the last epoch's metrics and the hours by (metric, workers). `work` is
    the model and the image size, each None if the file does not say; `axes` a run's settings.
    """

    name: str
    work: tuple[str | None, int | None] = (None, None)
    axes: dict[str, Any] = field(default_factory=dict)
    rates: dict[tuple[str, int, int], float | None] = field(default_factory=dict)
    trained: dict[tuple[str, int], float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def does_other_work(self, other: Side) -> bool:
        """Return True if a model or an image size differs that both state."""
        return any(a and b and a != b for a, b in zip(self.work, other.work, strict=True))


def read(path: Path, name: str) -> Side:
    """Read a report or a benchmark. Raise UserError for anything else."""
    content = load_json(path)
    try:
        return side_of(content, name)
    except (AttributeError, KeyError, TypeError, ValueError, OverflowError) as error:
        raise UserError(
            f"{path} is neither a report (--report) nor a benchmark (`rn50 benchmark -o`): {error}"
        ) from None


def side_of(content: dict[str, Any], name: str) -> Side:
    """Return the side of a report's or a benchmark's content. Raise ValueError for others."""
    env = content.get("env", {})
    axes = {key: axis["value"] for key, axis in env.get("axes", {}).items()}
    side = Side(name, (content.get("model"), axes.get("image_shape")), axes)
    (add_benchmark if "metric_keys" in content else add_report)(side, content)
    return side


def add_benchmark(side: Side, content: dict[str, Any]) -> None:
    """Add the rates of a benchmark, the reasons of its failed cells, and epochs that differ."""
    details = content.get("env", {}).get("cells", {})
    for n, cells in content["metrics"].items():
        for batch, values in cells.items():
            name, cell = f"{side.name}, n {n}, batch {batch}", details.get(n, {}).get(batch, {})
            for key in content["metric_keys"]:
                side.rates[key, int(n), int(batch)] = speed((values or {}).get(key))
                rates = cell.get(key, {}).get("epochs", [1])
                if max(rates) > 1.1 * min(rates):
                    between = f"{number(min(rates))} to {number(max(rates))}"
                    side.notes.append(f"{name}: {key} was {between} in its epochs")
            if reason := cell.get("reason"):
                side.notes.append(f"{name}: {reason}")


def add_report(side: Side, content: dict[str, Any]) -> None:
    """Add a report's rate (the harmonic mean without the first epoch), last metrics and hours."""
    n, metrics = int(content["ngpus"]), content["metrics"]
    check_metrics(metrics)
    batch = side.axes.get("batch_size")
    for key in RATES:
        epochs = [rate for rate in map(speed, metrics.get(key) or []) if rate is not None]
        if epochs and batch is not None:
            side.rates[key, n, int(batch)] = harmonic_mean(epochs[1:] or epochs)
        elif epochs:
            side.notes.append(f"{side.name}: {key} is left out, as the report has no batch size")
    for key in LAST:
        if metrics.get(key) and metrics[key][-1] is not None:
            side.trained[key, n] = float(metrics[key][-1])
    if content.get("total_duration"):
        side.trained["hours", n] = content["total_duration"] / 3600


def speed(value: float | None) -> float | None:
    """Return a rate, None if it is missing or 0. Raise ValueError if it cannot be one."""
    rate = float(value or 0)
    if not 0 <= rate < float("inf"):
        raise ValueError(f"{value} is not a speed")
    return rate or None


def named_series() -> dict[str, Series]:
    """Return published figures by publication and precision, as in DGX-1/mixed."""
    return {f"{name.replace(' ', '-')}/{dtype}": series for (name, dtype), series in load().items()}


def published(name: str) -> Side:
    """Return published figures with their source."""
    side, series = Side(name, ("resnet50", 224)), named_series()[name]
    for n, ips in series.ips.items():
        side.rates["train.total_ips", n, series.batch] = ips
    for batch, ips in series.inference_ips.items():
        side.rates["val.total_ips", 1, int(batch)] = float(ips)
    for gpus, results in series.trained.items():
        side.trained |= {(key, int(gpus)): value for key, value in results.items()}
    where = f"{series.hardware}, {series.software} ({series.remark})"
    side.notes.append(f"{name}: published, {series.source}; {where}")
    return side


# --- tables ---------------------------------------------------------------------------------------


def text(sides: Sequence[Side]) -> str:
    """Return the tables of everything that at least one side has, and the notes."""
    tables = [*(rate_table(sides, key) for key in RATES), trained_table(sides)]
    parts = [table for table in tables if table]
    if not parts:
        raise UserError(f"{', '.join(s.name for s in sides)}: no speed and no accuracy in there")
    notes = [note for side in sides for note in side.notes]
    base = sides[0].axes
    for side in sides[1:]:
        if side.does_other_work(sides[0]):
            work = (f"{s.name} {s.work[0] or 'another network'}, {s.work[1] or '?'} px"
                    for s in (sides[0], side))  # fmt: skip
            notes.append(f"not divided, as they compute different things: {'; '.join(work)}")
        differ = [f"{key} {base.get(key, 'off')} / {side.axes.get(key, 'off')}" for key in SPEED
                  if base and side.axes and base.get(key) != side.axes.get(key)]  # fmt: skip
        if differ:
            notes.append(f"{sides[0].name} / {side.name} differ: {', '.join(differ)}")
    return "\n\n".join([*parts, "\n".join(notes)]).rstrip()


def rate_table(sides: Sequence[Side], key: str) -> str:
    """Return images per second by workers and batch, and the ratio of each side to the first."""
    rows, ratios = [], []
    same = [not side.does_other_work(sides[0]) for side in sides[1:]]
    for cell in sorted({cell for side in sides for cell in side.rates if cell[0] == key}):
        base, *rates = [side.rates.get(cell) for side in sides]
        ratios += [rate / base if rate and base and comparable else None
                   for rate, comparable in zip(rates, same, strict=True)]  # fmt: skip
        # a cell with None has failed, a missing one was not measured
        shown = ["failed" if side.rates.get(cell, 0) is None else number(side.rates.get(cell))
                 for side in sides]  # fmt: skip
        rows.append([*cell[1:], *shown, *map(number, ratios[len(ratios) - len(rates) :])])
    title = f"{key}, images per second"
    if ratios and not any(ratios) and all(same):
        title += " (no workers and batch in common, hence no ratios)"
    more = [f"{side.name} / {sides[0].name}" for side in sides[1:]]
    return table_text(title, ["workers", "batch", *(s.name for s in sides), *more], rows)


def trained_table(sides: Sequence[Side]) -> str:
    """Return the last epoch's metrics and the hours of training runs."""
    rows = [
        [key, n, *(number(side.trained.get((key, n)), 3) for side in sides)]
        for key in (*LAST, "hours")
        for n in sorted({m for side in sides for k, m in side.trained if k == key})
    ]
    head = ["metric", "workers", *(side.name for side in sides)]
    return table_text("training runs, after their last epoch", head, rows)


def table_text(title: str, head: list[str], rows: list[list[Any]]) -> str:
    """Return a table with a title, or an empty text without rows."""
    return "\n".join([title, *aligned([head, *([*map(str, row)] for row in rows)])]) if rows else ""


def number(value: float | None, digits: int = 2) -> str:
    """Return a number with one digit after the point if it is 100 or more; '-' for None."""
    return "-" if value is None else f"{value:,.{digits if value < 100 else 1}f}"


def main(argv: list[str]) -> int:
    known = named_series()
    parser = Parser(
        prog="rn50 compare", description="Compare reports and benchmarks.", allow_abbrev=False
    )
    parser.add_argument("files", nargs="*", help="reports, benchmarks, or folders of runs")
    parser.add_argument(
        "--published", action="append", default=[], choices=known, metavar="NAME",
        help=f"add published figures, once or several times: {', '.join(known)}",
    )  # fmt: skip
    parser.add_argument("--labels", nargs="+", help="a name for each file (default: its own)")
    args = parser.parse_args(argv)
    if len(args.files) + len({*args.published}) < 2:
        parser.error(f"nothing to compare with: add a file, or --published {next(iter(known))}")
    sides = [read(file, name) for name, file in named(args.files, args.labels).items()]
    sides += [published(name) for name in dict.fromkeys(args.published)]
    print(text(sides))
    return 0
