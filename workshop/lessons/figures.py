"""Figures that several lessons draw: stacked bars, pairs of times, rates, loss curves, answers.

Each function returns a matplotlib figure, and mostly a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50 import plot
from workshop.pairs import Pairs, median_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK = plot.COLOURS[:4]
GREY = "#5b6b7a"
HATCHES = ("", "//", "..", "xx", "\\\\", "++", "")
Lines = Sequence[dict[str, Any]]  # of a run's progress.jsonl


def stacked(
    bars: Mapping[str, Mapping[str, float]], unit: str, title: str, limit: float | None = None
) -> Figure:
    """A horizontal bar per name, of parts that add up; `limit` is a line across all."""
    from matplotlib.figure import Figure

    parts = dict.fromkeys(part for values in bars.values() for part in values)
    colours = dict(zip(parts, (*plot.COLOURS[:6], GREY), strict=False))
    most = max(sum(values.values()) for values in bars.values())
    with plot.style():
        figure = Figure(figsize=(10.5, 0.6 * len(bars) + 1.6))
        axes = figure.subplots()
        for row, values in enumerate(bars.values()):
            left = 0.0
            for place, part in enumerate(parts):
                width = max(0.0, values.get(part, 0.0))
                axes.barh(
                    row, width, 0.6, left=left, color=colours[part], hatch=HATCHES[place % 7],
                    edgecolor="white", lw=0.6, label=part if row == 0 else None,
                )  # fmt: skip
                left += width
            axes.text(left, row, f" {left:,.3g}" if left < 100 else f" {left:,.0f}", va="center")
        if limit is not None:
            axes.axvline(limit, color="black", ls="--", lw=1.4, marker="")
        axes.set(title=title, xlabel=unit, xlim=(0, 1.14 * max(most, limit or 0)))
        axes.set_yticks(range(len(bars)), list(bars))
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        legend = axes.get_legend_handles_labels()
        figure.legend(*legend, loc="outside lower center", ncols=4, fontsize=9)
    return figure


def pairs(
    timed: Pairs, lines: Mapping[str, float] | None = None, what: str = "A step"
) -> tuple[Figure, str]:
    """Two things timed in turns, and the ratio of every pair, with named ratios to compare with."""
    from matplotlib.figure import Figure

    ratios = timed.ratios
    middle, low, high = median_interval(ratios)
    turns = range(1, len(ratios) + 1)
    with plot.style():
        figure = Figure(figsize=(10.5, 3.7))
        left, right = figure.subplots(1, 2)
        for name in (timed.first, timed.second):
            left.plot(turns, [1000 * v for v in timed.seconds[name]], lw=1.2, ms=6, label=name)
        left.set(title=f"{what}, in turns", xlabel="pair", ylabel="milliseconds")
        left.set_ylim(0, 1.15 * left.get_ylim()[1])
        left.legend(loc="lower left")
        right.axhspan(low, high, color=BLUE, alpha=0.15, lw=0)
        right.plot(turns, ratios, ls="", ms=6, color=BLUE, label="measured, a dot per pair")
        right.axhline(middle, color=BLUE, lw=1.6, marker="", label=f"median {middle:.3f}")
        for (name, value), dashes in zip((lines or {}).items(), ("--", ":"), strict=False):
            label = f"{name} {value:.3f}"
            right.axhline(value, color=ORANGE, ls=dashes, lw=1.6, marker="", label=label)
        right.set(title=f"{timed.second} over {timed.first}", xlabel="pair", ylabel="ratio")
        right.legend(fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
        for axes in (left, right):
            axes.xaxis.get_major_locator().set_params(integer=True)
    spread = f"the median lies between {low:.3f} and {high:.3f}"
    if len(ratios) < 6:
        spread = "too few to say how sure that is"
    return figure, (
        f"{what} of {timed.second} takes {middle:.3f} times as long as one of {timed.first}"
        f" ({len(ratios)} pairs; {spread})."
    )


def rates(
    measured: Mapping[str, Sequence[float]],
    at_work: Mapping[str, float],
    device: str,
    ceiling: float | None = None,
) -> Figure:
    """A bar per input with a dot per round, images per second; and the per cent of the time in
    which the device behind it works. `ceiling` is the device's own speed."""
    from matplotlib.figure import Figure

    top = max([*(rate for row in measured.values() for rate in row), ceiling or 0])
    with plot.style():
        figure = Figure(figsize=(10.5, 0.55 * len(measured) + 1.6))
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.5, 1))
        for row, (name, values) in enumerate(measured.items()):
            left.barh(row, np.median(values), 0.6, color=BLUE)
            left.plot(values, [row] * len(values), "o", ms=4.5, mfc="white", mec="black", ls="")
            left.text(top * 1.08, row, short(float(np.median(values))), va="center")
            if name in at_work:
                right.barh(row, at_work[name], 0.6, color=GREEN, hatch="//", edgecolor="white")
                right.text(103, row, f"{at_work[name]:.0f} %", va="center")
        if ceiling is not None:
            left.axvline(ceiling, color=ORANGE, ls="--", lw=2, marker="")
        line = f"; the line is {ceiling:,.1f}" if ceiling else ""
        left.set_title(f"Images per second{line}", fontsize=11)
        left.set(xlim=(0, top * 1.3), xlabel="a dot per round, the bar is their median")
        right.set_title("Device at work, per cent", fontsize=11)
        right.set(xlim=(0, 120), xlabel=device)
        left.set_yticks(range(len(measured)), list(measured))
        left.invert_yaxis()
        for axes in (left, right):
            axes.grid(False, axis="y")
    return figure


def short(rate: float) -> str:
    """A rate in as many digits as it is worth."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


# --- runs -----------------------------------------------------------------------------------------


def loss_curves(runs: Mapping[str, Lines], title: str, rate: bool = False) -> tuple[Figure, str]:
    """Training loss over the epochs of several runs, by name; with `rate` the learning rate too."""
    from matplotlib.figure import Figure

    with plot.style():
        figure = Figure(figsize=(10.5, 3.9))
        panels = figure.subplots(1, 2 if rate else 1, squeeze=False)[0]
        for name, lines in runs.items():
            at, loss = readings(lines)
            panels[0].plot(at, loss, label=name, lw=1.6, markevery=max(1, len(at) // 8), ms=6)
            if rate:
                at, values = readings(lines, "lr")
                panels[1].plot(at, values, lw=1.6, markevery=max(1, len(at) // 8), ms=6)
        panels[0].set(title=title, xlabel="progress, epochs", ylabel="training loss, nats")
        if rate:
            panels[1].set(title="The learning rate", xlabel="progress, epochs", ylabel="")
            panels[1].set_ylim(bottom=0)
        names = panels[0].get_legend_handles_labels()
        figure.legend(*names, loc="outside lower center", ncols=2 if len(runs) > 3 else 3)
    last = [f"{name} {last_loss(lines):.2f}" for name, lines in runs.items()]
    return figure, f"Mean training loss of the last epoch: {', '.join(last)}."


def readings(lines: Lines, key: str = "loss") -> tuple[list[float], list[float]]:
    """Progress in epochs, and the value there; readings without one are left out."""
    train = [line for line in lines if line["phase"] == "train" and line.get(key) is not None]
    at = [line["epoch"] + line["step"] / line["steps"] for line in train]
    return at, [line[key] for line in train]


def by_step(lines: Lines) -> dict[tuple[int, int], float]:
    """The training loss by (epoch, step)."""
    return {
        (line["epoch"], line["step"]): line["loss"] for line in lines if line["phase"] == "train"
    }


def last_loss(lines: Lines) -> float:
    """The mean training loss of the last epoch, nats."""
    return float([line["train.loss"] for line in lines if line["phase"] == "epoch"][-1])


# --- answers --------------------------------------------------------------------------------------


def answers(
    pictures: Sequence[np.ndarray], truths: Sequence[str], probabilities: np.ndarray,
    classes: Sequence[str],
) -> tuple[Figure, str]:  # fmt: skip
    """Pictures with the three likeliest classes under each, the true one in green; and in words.

    A truth that is no class is neither right nor wrong. `probabilities` (pictures, classes).
    """
    from matplotlib.figure import Figure

    columns, rows, told = 6, max(1, -(-len(pictures) // 6)), []
    with plot.style():
        figure = Figure(figsize=(10.5, 3.0 * rows))
        grid = figure.subplots(2 * rows, columns, squeeze=False, height_ratios=(2.4, 1) * rows)
        for axes in grid.flat:
            axes.axis("off")
        for k, (pixels, truth, row) in enumerate(zip(pictures, truths, probabilities, strict=True)):
            picture, bars = grid[2 * (k // columns), k % columns], grid[2 * (k // columns) + 1]
            picture.imshow(pixels)
            said = classes[int(row.argmax())]
            mark, colour = ("✓ ", GREEN) if said == truth else ("✗ ", ORANGE)
            if truth not in classes:
                mark, colour = "", "black"
            picture.set_title(f"{mark}{truth}", color=colour, fontsize=10, loc="center")
            best_classes(bars[k % columns], row, classes, truth)
            told.append(f"{truth}: {said} with {100 * row.max():.0f} %")
    return figure, "; ".join(told) + "."


def best_classes(axes: Axes, row: np.ndarray, classes: Sequence[str], truth: str) -> None:
    """The three likeliest classes as bars, the likeliest on top, the truth in green."""
    for place, label in enumerate(np.argsort(-row, kind="stable")[:3]):
        value, inside = float(row[label]), row[label] > 0.55
        axes.barh(-place, value, 0.8, color=GREEN if classes[label] == truth else GREY)
        axes.text(
            0.02 if inside else value + 0.02, -place, f"{classes[label]} {100 * value:.0f} %",
            va="center", fontsize=8.5, color="white" if inside else "black",
        )  # fmt: skip
    axes.set(xlim=(0, 1), ylim=(-3.3, 0.6))  # room below, before the next row of pictures
