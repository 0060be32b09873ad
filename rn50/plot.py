"""`rn50 plot`, and the style of every figure of the project."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from data_prep.command_line import Parser
from rn50.common import Output, contains, named
from rn50.reports import load
from rn50lib.errors import UserError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Okabe and Ito's palette, for the common kinds of colour blindness; black is for text
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#F0E442")
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
MARK = "rn50 figure"  # in each figure, under the format's name for the program that made it
FORMATS = {".png": "Software", ".svg": "Creator", ".pdf": "Creator"}
# One colour, one meaning in the notebooks' figures (COLOURS is for `rn50 plot`; a trace has more
# kinds). A measured value is filled and black, a predicted one hollow or a dashed line; FINDING is
# for the one series that a title is about.
MEANING = {
    "input": "#E69F00",
    "compute": "#0072B2",
    "communication": "#D55E00",
    "recorded": "#5B3F8C",
    "published": "#8C8C8C",
}
FINDING = "#009E73"
SERIES = ("#222222", FINDING, "#CC79A7", "#56B4E9", "#555555")
STYLE: dict[str, Any] = {
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "figure.dpi": 110,
    "figure.figsize": (9.0, 3.2),
    "figure.titlesize": 12,
    "figure.titleweight": "bold",
    "figure.constrained_layout.use": True,
    "font.size": 10.5,
    "axes.titlesize": 12,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "legend.frameon": False,
    "lines.markersize": 4,
    "savefig.facecolor": "white",
}


@contextlib.contextmanager
def style() -> Iterator[None]:
    """Apply the project's Matplotlib settings within a `with` block."""
    import matplotlib
    from cycler import cycler

    cycle = cycler(color=COLOURS) + cycler(marker=MARKERS)
    with matplotlib.rc_context(STYLE | {"axes.prop_cycle": cycle}):
        yield


def use() -> None:
    """Apply the project's settings to all figures of this process."""
    import matplotlib
    from cycler import cycler

    matplotlib.rcParams.update(STYLE | {"axes.prop_cycle": cycler(color=SERIES)})


def curves(reports: dict[str, dict[str, Any]]) -> Figure:
    """Draw training loss, training top-1 and validation top-1 over epochs, a line per report.

    Raise UserError if no report holds any of the three.
    """
    from matplotlib.figure import Figure

    panels = (
        ("train.loss", "Training loss", "cross-entropy, nats"),
        ("train.top1", "Training accuracy", "top-1, per cent"),
        ("val.top1", "Validation accuracy", "top-1, per cent"),
    )
    with style():
        figure = Figure(figsize=(11, 3.4))
        for axes, (key, title, unit) in zip(figure.subplots(1, 3), panels, strict=True):
            for name, report in reports.items():
                values = report["metrics"].get(key) or []
                if any(value is not None for value in values):
                    known = [float("nan") if value is None else value for value in values]
                    # without formulas, and in Unicode
                    label = name.encode("utf-8", "backslashreplace").decode().replace("$", r"\$")
                    axes.plot(range(1, len(values) + 1), known, label=label)
            axes.set(title=title, xlabel="epoch", ylabel=unit)
            axes.xaxis.get_major_locator().set_params(integer=True)
        drawn = [axes for axes in figure.axes if axes.lines]
        if not drawn:
            raise UserError(
                f"{', '.join(reports)}: no accuracy or loss in there (was it run with"
                " --no-metrics?)"
            )
        drawn[0].legend()
    return figure


def output(path: str | Path) -> Output:
    """Return the output for a figure. Raise UserError if it would replace anything but a figure."""
    if Path(path).suffix.lower() not in FORMATS:
        raise UserError(f"--output {path}: name a file that ends in {' or '.join(FORMATS)}")
    return Output("--output", path, "a figure of rn50", contains(MARK.encode()))


def save(figure: Figure, to: Output) -> None:
    """Write a figure in the format of its suffix. Raise UserError if it cannot be written."""
    suffix = Path(to.path).suffix.lower()
    mark = {FORMATS[suffix]: MARK}
    to.write(lambda draft: figure.savefig(draft, format=suffix[1:], metadata=mark))


def main(argv: list[str]) -> int:
    parser = Parser(prog="rn50 plot", description="Draw curves over epochs from report files.")
    add = parser.add_argument
    add("reports", nargs="+", help="files that --report wrote, or folders of runs")
    add("-o", "--output", required=True, help="image to write (.png, .svg, .pdf)")
    add("--labels", nargs="+", help="a name for each report (default: its file name)")
    args = parser.parse_args(argv)
    to, reports = output(args.output), named(args.reports, args.labels)
    save(curves({name: load(file) for name, file in reports.items()}), to)
    print(args.output)
    return 0
