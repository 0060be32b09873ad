"""Figures of notebook 02 that show what runs measured: a resumed run, predictions, mistakes.

Each function returns a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50 import plot
from workshop.lessons import figures
from workshop.lessons.figures import BLUE, GREY, ORANGE, Lines, by_step, readings
from workshop.lessons.single_gpu.predictions import Predictions
from workshop.lessons.single_gpu.reading import shares

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def resumed(undisturbed: Lines, before: Lines, after: Lines) -> tuple[Figure, str]:
    """The loss of an undisturbed run, and of one that was killed and then resumed."""
    from matplotlib.figure import Figure

    with plot.style():
        figure = Figure(figsize=(10.5, 3.4))
        axes = figure.subplots()
        square: dict[str, Any] = {"marker": "s", "ms": 8, "mfc": "none", "mew": 1.6}
        axes.plot(*readings(undisturbed), color=GREY, lw=2, marker="", label="undisturbed")
        axes.plot(*readings(before), color=ORANGE, ls="", label="until it was killed", **square)
        axes.plot(*readings(after), color=BLUE, ls="", marker="x", ms=6, mew=1.6, label="resumed")
        killed, again = readings(before)[0][-1], readings(after)[0][0]
        axes.axvline(killed, color=ORANGE, ls=":", lw=1.4)
        axes.set(title="Killed and resumed", xlabel="progress, epochs", ylabel="loss, nats")
        axes.legend()
    there, here = by_step(undisturbed), by_step(after)
    same = sum(there.get(place) == loss for place, loss in here.items())
    return figure, (
        f"The run was killed at {killed:.2f} epochs and went on from epoch {int(again)}; "
        f"{same} of its {len(here)} readings after that equal the undisturbed run's to"
        " the last digit."
    )


def loop(report: dict[str, Any]) -> tuple[Figure, str]:
    """Where the seconds of a run's loop went."""
    names = {"step": "the model", "data": "waiting for a batch", "loop": "everything else"}
    share = shares(report)
    text = (
        f"{share['step']:.0f} % of the loop is the model, {share['data']:.0f} % waiting for data"
        f" and {share['loop']:.1f} % everything else."
    )
    bars = {"the loop": {names[p]: s for p, s in report["env"]["seconds"].items()}}
    return figures.stacked(bars, "seconds", "Where the time of the loop went"), text


# --- predictions ----------------------------------------------------------------------------------


def most_certain(found: Predictions, right: bool, count: int) -> list[int]:
    """The pictures that the network was surest about, right or wrong, one of each class."""
    chosen: dict[int, int] = {}
    for i in np.argsort(-found.confidence, kind="stable"):
        if bool(found.right[i]) == right:
            chosen.setdefault(int(found.labels[i]), int(i))
    return list(chosen.values())[:count]


def gallery(found: Predictions, chosen: Sequence[int]) -> tuple[Figure, str]:
    """Pictures with the three likeliest classes under each, the true one in green; and in words."""
    pictures = [found.picture(i, size=160) for i in chosen]
    truths = [found.classes[found.labels[i]] for i in chosen]
    figure, told = figures.answers(
        pictures, truths, found.probabilities[list(chosen)], found.classes
    )
    return figure, f"Validation pictures by their true class, with the network's answers: {told}"


def confusion(found: Predictions) -> tuple[Figure, str]:
    """How often each class was taken for each other one, and the commonest mistakes in words."""
    from matplotlib.figure import Figure

    count = len(found.classes)
    matrix = np.zeros((count, count), int)
    np.add.at(matrix, (found.labels, found.answers), 1)
    with plot.style():
        figure = Figure(figsize=(8.2, 6.6))
        axes = figure.subplots()
        share = 100 * matrix / np.maximum(1, matrix.sum(axis=1, keepdims=True))
        shown = axes.imshow(share, cmap="cividis", vmin=0, vmax=100)
        axes.grid(False)
        axes.set_xticks(range(count), found.classes, rotation=45, ha="right")
        axes.set_yticks(range(count), found.classes)
        axes.set(title="What was taken for what", xlabel="the network says", ylabel="the truth")
        for row, column in np.argwhere(matrix):
            ink = "black" if share[row, column] > 55 else "white"
            text = str(matrix[row, column])
            axes.text(column, row, text, ha="center", va="center", color=ink, fontsize=8)
        figure.colorbar(shown, ax=axes, label="per cent of the class", shrink=0.8)
    return figure, confusion_sentence(matrix, found.classes)


def confusion_sentence(matrix: np.ndarray, classes: Sequence[str]) -> str:
    wrong = matrix.copy()
    np.fill_diagonal(wrong, 0)
    total = int(wrong.sum())
    if not total:
        return f"All {int(matrix.sum()):,} pictures were named rightly."
    order = np.argsort(-wrong, axis=None, kind="stable")[:3]
    common = [
        f"{classes[row]} for {classes[column]} ({wrong[row, column]} times)"
        for row, column in zip(*np.unravel_index(order, wrong.shape), strict=True)
        if wrong[row, column]
    ]
    return (
        f"{total:,} of {int(matrix.sum()):,} answers are wrong; the commonest mistakes take "
        + ", ".join(common)
        + "."
    )
