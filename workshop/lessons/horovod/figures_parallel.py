"""Data parallelism, drawn: what every worker has for itself, and what is the same on all."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rn50lib import network
from rn50lib.tools import plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DARK = "#3b4752"
SAME = "#dfe5ea"  # what is equal on all workers
FEW = 8  # more workers than these are not all drawn


def data_parallel(workers: int = 4, batch: int = 32) -> tuple[Figure, str]:
    """One step of `workers` workers, a column each, from the data down to the new weights."""
    from matplotlib.figure import Figure

    shown = list(range(workers)) if workers <= FEW else [*range(FEW - 1), workers - 1]
    with plot.style():
        figure = Figure(figsize=(11, 5.0))
        axes = figure.subplots()
        for column, rank in enumerate(shown):
            draw_worker(axes, column, rank, batch, len(shown))
        if len(shown) < workers:
            axes.text(FEW - 1.5, 3.0, "…", fontsize=18, ha="center", va="center")
        width = len(shown)
        box(axes, 0.04, 1.62, width - 0.08, 0.42, DARK,
            f"all-reduce: the average of all {workers} gradients" if workers > 1
            else "nobody to exchange with", colour="white")  # fmt: skip
        rows = ("data", "weights before", "gradient", "exchange", "weights after")
        axes.set_yticks([5.18, 4.08, 2.88, 1.83, 0.63], rows)
        axes.tick_params(length=0)
        axes.set(xlim=(-0.05, width + 0.05), ylim=(0.1, 5.65), xticks=[])
        axes.set_title("A step of data-parallel training: the same model, other images", loc="left")
        axes.grid(False)
        for side in axes.spines.values():
            side.set_visible(False)
    return figure, sentence(workers, batch)


def draw_worker(axes: Axes, column: int, rank: int, batch: int, columns: int) -> None:
    """A worker's column, from top to bottom."""
    left, width = column + 0.08, 0.84
    tint = plot.COLOURS[rank % 7]
    ink = "white" if rank % 7 < 3 else "black"
    first = rank * batch
    small = columns > 5
    span = f"{first} … {first + batch - 1}"
    box(axes, left, 4.9, width, 0.56, tint, f"images\n{span}" if small else
        f"worker {rank}: images\n{span} of the step", colour=ink)  # fmt: skip
    box(axes, left, 3.8, width, 0.56, SAME, "all weights" if small else "all weights,\nthe same")
    box(axes, left, 2.6, width, 0.56, tint, "own\ngradient" if small else "gradient of\nits images",
        colour=ink)  # fmt: skip
    box(
        axes,
        left,
        0.35,
        width,
        0.56,
        SAME,
        "all weights" if small else "all weights,\nagain the same",
    )
    for top, bottom in ((4.9, 4.36), (3.8, 3.16), (2.6, 2.04), (1.62, 0.91)):
        axes.annotate(
            "", (left + width / 2, bottom), (left + width / 2, top),
            arrowprops={"arrowstyle": "<->" if top == 2.6 else "->", "color": "0.35", "lw": 1.3},
        )  # fmt: skip


def box(
    axes: Axes,
    left: float,
    bottom: float,
    width: float,
    height: float,
    face: str,
    text: str,
    colour: str = "black",
) -> None:
    from matplotlib.patches import FancyBboxPatch

    look: dict[str, Any] = {"boxstyle": "round,pad=0,rounding_size=0.06", "mutation_aspect": 1}
    axes.add_patch(
        FancyBboxPatch(
            (left, bottom), width, height, facecolor=face, edgecolor="0.4", lw=0.8, **look
        )
    )
    axes.text(
        left + width / 2, bottom + height / 2, text, ha="center", va="center", fontsize=8.5,
        color=colour,
    )  # fmt: skip


def sentence(workers: int, batch: int) -> str:
    """The arithmetic of a step."""
    parameters = network.resnet(50).num_parameters
    megabytes = 4 * parameters / 1e6
    words = (
        f"{workers} × {batch} = {workers * batch:,} images a step; every worker holds all"
        f" {parameters:,} weights of ResNet-50 and computes with {batch} images"
    )
    if workers == 1:
        return f"{words}. One worker exchanges nothing."
    sent = 2 * (workers - 1) / workers * megabytes
    return (
        f"{words}, then sends {sent:.0f} MB (2 × {workers - 1} / {workers} × {megabytes:.0f} MB of"
        " gradients) whatever the batch: larger batches hide the exchange better."
    )


def explore() -> None:
    """The drawing with its controls."""
    import ipywidgets

    from workshop import output

    def alt(workers: int, batch: int) -> str:
        return "Workers side by side, each with its images. " + sentence(workers, batch)

    output.explore(
        data_parallel,
        alt,
        workers=ipywidgets.SelectionSlider(options=[1, 2, 4, 8, 16, 64], value=4),
        batch=ipywidgets.IntSlider(32, 8, 256, 8),
    )
