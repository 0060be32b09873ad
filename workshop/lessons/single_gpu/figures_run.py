"""Figures of notebook 02 that show what runs measured: pairs, readings, predictions, seconds.

Each function returns a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50lib.tools import plot
from workshop.pairs import Pairs, median_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from workshop.lessons.single_gpu.predictions import Predictions

BLUE, ORANGE, GREEN = plot.COLOURS[:3]
GREY = "#5b6b7a"


def pairs(measured: Pairs, lines: dict[str, float]) -> tuple[Figure, str]:
    """The ratio of every pair, its median, and named ratios to compare it with."""
    from matplotlib.figure import Figure

    ratios = measured.ratios
    middle, low, high = median_interval(ratios)
    with plot.style():
        figure = Figure(figsize=(10.5, 3.7))
        left, right = figure.subplots(1, 2)
        turns = range(1, len(ratios) + 1)
        for name in (measured.first, measured.second):
            milliseconds = [1000 * value for value in measured.seconds[name]]
            left.plot(turns, milliseconds, lw=1.2, ms=6, label=name)
        left.set(title="A training step, in turns", xlabel="pair", ylabel="milliseconds a step")
        left.set_ylim(0, 1.15 * left.get_ylim()[1])
        left.legend(loc="lower left")
        right.axhspan(low, high, color=BLUE, alpha=0.15, lw=0)
        right.plot(turns, ratios, ls="", ms=6, color=BLUE, label="measured, a dot per pair")
        right.axhline(middle, color=BLUE, lw=1.6, label=f"median {middle:.3f}")
        for (name, value), dashes in zip(lines.items(), ("--", ":"), strict=False):
            right.axhline(value, color=ORANGE, ls=dashes, lw=1.6, label=f"{name} {value:.3f}")
        title = f"{measured.second} over {measured.first}"
        right.set(title=title, xlabel="pair", ylabel="ratio of the two times")
        right.legend(fontsize=8.5, loc="upper center", bbox_to_anchor=(0.5, -0.2), ncols=2)
        for axes in (left, right):
            axes.xaxis.get_major_locator().set_params(integer=True)
    spread = f"the median lies between {low:.3f} and {high:.3f}"
    if len(ratios) < 6:
        spread = "too few to say how sure that is"
    return figure, (
        f"A step of {measured.second} takes {middle:.3f} times as long as one of {measured.first}"
        f" ({len(ratios)} pairs; {spread})."
    )


def resumed(
    undisturbed: Sequence[dict[str, Any]],
    before: Sequence[dict[str, Any]],
    after: Sequence[dict[str, Any]],
) -> tuple[Figure, str]:
    """The loss of an undisturbed run, and of one that was killed and then resumed."""
    from matplotlib.figure import Figure

    with plot.style():
        figure = Figure(figsize=(10.5, 3.4))
        axes = figure.subplots()
        open_square: dict[str, Any] = {"marker": "s", "ms": 8, "mfc": "none", "mew": 1.6}
        axes.plot(*readings(undisturbed), color=GREY, lw=2, marker="", label="undisturbed")
        axes.plot(
            *readings(before), color=ORANGE, ls="", label="until it was killed", **open_square
        )
        axes.plot(*readings(after), color=BLUE, ls="", marker="x", ms=6, mew=1.6, label="resumed")
        killed, again = readings(before)[0][-1], readings(after)[0][0]
        axes.axvline(killed, color=ORANGE, ls=":", lw=1.4)
        axes.set(
            title="Killed and resumed", xlabel="progress, epochs", ylabel="training loss, nats"
        )
        axes.legend()
    there, again_there = by_place(undisturbed), by_place(after)
    same = sum(there.get(place) == loss for place, loss in again_there.items())
    return figure, (
        f"The run was killed at {killed:.2f} epochs and went on from epoch {int(again)}; "
        f"{same} of its {len(again_there)} readings after that equal the undisturbed run's to"
        " the last digit."
    )


def by_place(lines: Sequence[dict[str, Any]]) -> dict[tuple[int, int], float]:
    """The training loss by (epoch, step)."""
    return {
        (line["epoch"], line["step"]): line["loss"] for line in lines if line["phase"] == "train"
    }


def readings(lines: Sequence[dict[str, Any]]) -> tuple[list[float], list[float]]:
    """Progress in epochs, and the training loss there."""
    train = [line for line in lines if line["phase"] == "train"]
    return [line["epoch"] + line["step"] / line["steps"] for line in train], [
        line["loss"] for line in train
    ]


# -- predictions ---------------------------------------------------------------------------------


def most_certain(found: Predictions, right: bool, count: int, per_class: int = 1) -> list[int]:
    """The pictures that the network was surest about, right or wrong, a few of each class."""
    chosen: list[int] = []
    taken: dict[int, int] = {}
    for i in np.argsort(-found.confidence, kind="stable"):
        label = int(found.labels[i])
        if bool(found.right[i]) == right and taken.get(label, 0) < per_class:
            taken[label] = taken.get(label, 0) + 1
            chosen.append(int(i))
    return chosen[:count]


def gallery(found: Predictions, chosen: Sequence[int], columns: int = 6) -> tuple[Figure, str]:
    """Pictures with the three likeliest classes under each, the true one in green; and in words."""
    from matplotlib.figure import Figure

    rows = max(1, -(-len(chosen) // columns))
    with plot.style():
        figure = Figure(figsize=(10.5, 3.0 * rows))
        grid = figure.subplots(2 * rows, columns, squeeze=False, height_ratios=(2.4, 1) * rows)
        for axes in grid.flat:
            axes.axis("off")
        for k, i in enumerate(chosen):
            row, column = divmod(k, columns)
            picture, bars = grid[2 * row, column], grid[2 * row + 1, column]
            picture.imshow(found.picture(i, size=160))
            colour, mark = (GREEN, "✓") if found.right[i] else (ORANGE, "✗")
            picture.set_title(
                f"{mark} {found.classes[found.labels[i]]}", color=colour, fontsize=10, loc="center"
            )
            probability_bars(bars, found, i)
    return figure, in_words(found, chosen)


def probability_bars(axes: Axes, found: Predictions, i: int) -> None:
    """The three likeliest classes of picture i as bars, the likeliest on top."""
    best = np.argsort(-found.probabilities[i], kind="stable")[:3]
    for place, label in enumerate(best):
        value = float(found.probabilities[i, label])
        colour = GREEN if label == found.labels[i] else GREY
        axes.barh(-place, value, 0.8, color=colour)
        text = f"{found.classes[label]} {100 * value:.0f} %"
        inside = value > 0.55
        axes.text(
            0.02 if inside else value + 0.02, -place, text, va="center", fontsize=8.5,
            color="white" if inside else "black",
        )  # fmt: skip
    axes.set(xlim=(0, 1), ylim=(-3.3, 0.6))  # room below, before the next row of pictures


def in_words(found: Predictions, chosen: Sequence[int]) -> str:
    """The gallery in words."""
    parts = [
        f"a picture of {found.classes[found.labels[i]]}, for which the network says"
        f" {found.classes[found.said[i]]} with {100 * found.confidence[i]:.0f} %"
        for i in chosen
    ]
    return "Validation pictures with the network's answers: " + "; ".join(parts) + "."


def confusion(found: Predictions) -> tuple[Figure, str]:
    """How often each class was taken for each other one, and the commonest mistakes in words."""
    from matplotlib.figure import Figure

    count = len(found.classes)
    matrix = np.zeros((count, count), int)
    np.add.at(matrix, (found.labels, found.said), 1)
    with plot.style():
        figure = Figure(figsize=(8.2, 6.6))
        axes = figure.subplots()
        share = 100 * matrix / np.maximum(1, matrix.sum(axis=1, keepdims=True))
        shown = axes.imshow(share, cmap="cividis", vmin=0, vmax=100)
        axes.grid(False)
        axes.set_xticks(range(count), found.classes, rotation=45, ha="right")
        axes.set_yticks(range(count), found.classes)
        axes.set(title="What was taken for what", xlabel="the network says", ylabel="the truth")
        for row, column in zip(*np.nonzero(matrix), strict=True):
            ink = "black" if share[row, column] > 55 else "white"
            axes.text(
                column, row, matrix[row, column], ha="center", va="center", color=ink, fontsize=8
            )
        figure.colorbar(shown, ax=axes, label="per cent of the class", shrink=0.8)
    return figure, confusion_sentence(matrix, found.classes)


def confusion_sentence(matrix: np.ndarray, classes: Sequence[str]) -> str:
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    total = int(wrong.sum())
    if not total:
        return f"All {int(matrix.sum()):,} pictures were named rightly."
    order = np.argsort(-wrong, axis=None, kind="stable")[:3]
    common = []
    for place in order:
        row, column = np.unravel_index(place, wrong.shape)
        if wrong[row, column]:
            common.append(f"{classes[row]} for {classes[column]} ({wrong[row, column]} times)")
    return (
        f"{total:,} of {int(matrix.sum()):,} answers are wrong; the commonest mistakes take "
        + ", ".join(common)
        + "."
    )


def inside_group(found: Predictions, prefix: str) -> tuple[int, int, float]:
    """Mistakes on the classes whose name begins with `prefix`: (all, those that stay in the group,
    the per cent of them that would stay there if wrong answers fell evenly on the other classes).
    """
    group = [i for i, name in enumerate(found.classes) if name.startswith(prefix)]
    wrong = ~found.right & np.isin(found.labels, group)
    stay = wrong & np.isin(found.said, group)
    by_chance = 100 * (len(group) - 1) / (len(found.classes) - 1)
    return int(wrong.sum()), int(stay.sum()), by_chance


# -- time ----------------------------------------------------------------------------------------

PARTS = {
    "step": ("the model: forward, backward, update", BLUE, ""),
    "data": ("waiting for the next batch", ORANGE, "//"),
    "loop": ("everything else in the loop", GREEN, "xx"),
}


def time_going(seconds: dict[str, float], speeds: dict[str, float]) -> Figure:
    """Where the training loop's seconds went, and the speed of the parts beside the whole."""
    from matplotlib.figure import Figure

    total = sum(seconds[part] for part in PARTS)
    with plot.style():
        figure = Figure(figsize=(10.5, 3.2))
        left, right = figure.subplots(1, 2)
        start = 0.0
        for part, (label, colour, hatch) in PARTS.items():
            value = seconds[part]
            left.barh(
                0, value, 0.5, left=start, color=colour, hatch=hatch, edgecolor="w",
                label=f"{label}: {value:.2f} s ({100 * value / total:.1f} %)",
            )  # fmt: skip
            start += value
        left.set(title="Where the time of the loop went", xlabel="seconds", ylim=(-0.4, 1.5))
        left.set_yticks([])
        left.grid(False)
        left.legend(loc="upper left", fontsize=9)
        names = list(speeds)
        colours = (ORANGE, BLUE, GREY)
        bars = right.barh(names, list(speeds.values()), color=colours[: len(names)])
        right.bar_label(bars, [f" {value:,.0f}" for value in speeds.values()])
        right.invert_yaxis()
        right.margins(x=0.15)
        right.grid(False)
        right.set(title="How fast each part is alone", xlabel="images per second")
    return figure
