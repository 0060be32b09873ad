"""Figures of notebook 06 about memory: its parts, what a batch takes, what was measured.

Each function returns a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

import numpy as np

from rn50lib.memory import Memory, largest_batch, predict
from rn50lib.network import Network
from rn50lib.tools import plot
from workshop.lessons.precision.step_memory import Peaks

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE, YELLOW, SKY = plot.COLOURS[:6]
GREY = "#5b6b7a"
COLOURS = {
    "weights": GREY, "gradients": PURPLE, "momentum": YELLOW, "images": GREEN, "activations": BLUE,
    "workspace": SKY,
}  # fmt: skip
HATCHES = {"activations": "", "workspace": "//", "images": "..", "gradients": "xx"}
GB = 1e9


def parts(
    net: Network, size: int, points: Sequence[tuple[str, int]], capacity: float
) -> tuple[Figure, str]:
    """A stacked bar per (dtype, batch), and a line at `capacity` bytes."""
    from matplotlib.figure import Figure

    found = {point: predict(net, size, point[1], point[0]) for point in points}
    with plot.style():
        figure = Figure(figsize=(10.5, 0.62 * len(points) + 1.7))
        axes = figure.subplots()
        stack(axes, {f"{dtype}, batch {batch}": m for (dtype, batch), m in found.items()})
        limit(axes, capacity)
        axes.set_title(f"A training step of {net.name} at {size} pixels, by part", fontsize=11)
    told = [
        f"{dtype} with {batch}: {m.total / GB:.1f} GB ({100 * m.activations / m.total:.0f} %"
        " activations)"
        for (dtype, batch), m in found.items()
    ]
    return figure, "; ".join(told) + "."


def stack(axes: Axes, rows: dict[str, Memory]) -> None:
    """Horizontal bars, a colour per part."""
    left = np.zeros(len(rows))
    for part, colour in COLOURS.items():
        values = np.array([asdict(m)[part] for m in rows.values()]) / GB
        axes.barh(list(rows), values, 0.62, left=left, color=colour, label=part,
                  hatch=HATCHES.get(part, ""), edgecolor="white", lw=0.5)  # fmt: skip
        left += values
    for place, total in enumerate(left):
        axes.text(total, place, f" {total:.1f} GB", va="center")
    axes.set(xlabel="GB", xlim=(0, 1.14 * left.max()))
    axes.invert_yaxis()
    axes.grid(False, axis="y")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.28), ncols=6, fontsize=9)


def limit(axes: Axes, capacity: float) -> None:
    axes.axvline(capacity / GB, color="black", ls="--", lw=1.4, marker="")
    axes.set_xlim(0, max(axes.get_xlim()[1], 1.1 * capacity / GB))


def what_fits(
    net: Network, dtype: str, batch: int, size: int, capacity: float
) -> tuple[Figure, str]:
    """Left, the parts of one step; right, the memory over the batch in both widths, and where it
    meets the capacity. `capacity` in GB."""
    from matplotlib.figure import Figure

    here = predict(net, size, batch, dtype)
    bytes_ = int(capacity * GB)
    most = {name: largest_batch(net, size, name, bytes_) for name in ("float32", dtype)}
    with plot.style():
        figure = Figure(figsize=(10.5, 3.7))
        left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
        values = {name: value / GB for name, value in asdict(here).items()}
        bars = left.barh(list(values), list(values.values()), 0.65,
                         color=[COLOURS[name] for name in values])  # fmt: skip
        left.bar_label(bars, [f" {value:.2f}" for value in values.values()], fontsize=9)
        left.margins(x=0.18)
        left.invert_yaxis()
        left.grid(False, axis="y")
        left.set(xlabel="GB")
        left.set_title(
            f"{dtype}, batch {batch}, {size} pixels: {here.total / GB:.1f} GB", fontsize=11
        )
        batches = np.array([0, max(8, 1.3 * max(*most.values(), batch))])
        pair = dict.fromkeys(("float32", dtype if dtype != "float32" else "float16"))
        for name, colour, line in zip(pair, (GREY, BLUE), (":", "-"), strict=True):
            totals = [predict(net, size, int(b), name).total / GB for b in batches]
            right.plot(batches, totals, marker="", lw=2, color=colour, ls=line, label=name)
        right.axhline(capacity, color="black", ls="--", lw=1.4, marker="")
        right.text(0, capacity, f" {capacity:g} GB", va="bottom")
        right.plot(batch, here.total / GB, "X", ms=10, color=ORANGE, label="yours")
        right.set(xlabel="batch", ylabel="GB", ylim=(0, 1.6 * capacity), xlim=(0, batches[1]))
        right.set_title("What fits", fontsize=11)
        right.legend(loc="lower right", fontsize=9)
    fits = "fits into" if here.total <= bytes_ else "does not fit into"
    largest = f"{most[dtype]:,} in {dtype}"
    if dtype != "float32":
        largest += f" and {most['float32']:,} in float32"
    return figure, (
        f"A step with {batch} images takes {here.total / GB:.2f} GB,"
        f" {100 * here.activations / here.total:.0f} % of it activations: it {fits}"
        f" {capacity:g} GB. By this count the largest batch is {largest}."
    )


def measured(found: Peaks) -> tuple[Figure, str]:
    """The measured peaks over the batch, and the line that the prediction draws through the first
    of each."""
    from matplotlib.figure import Figure

    few, many = found.batches[0], found.batches[-1]
    told = []
    with plot.style():
        figure = Figure(figsize=(10.5, 3.4))
        axes = figure.subplots()
        for place, dtype in enumerate(found.dtypes):
            colour = (ORANGE, BLUE)[place % 2]
            points = [found.bytes[dtype, batch] / GB for batch in found.batches]
            axes.plot(found.batches, points, ls="", marker=plot.MARKERS[place], ms=9, color=colour,
                      label=f"{dtype}, measured")  # fmt: skip
            ends = np.array([0, many * 1.1])
            line = points[0] + (ends - few) * found.predicted_per_image(dtype) / GB
            axes.plot(ends, line, marker="", color=colour, ls=("--", "-")[place % 2],
                      label=f"{dtype}, slope as predicted")  # fmt: skip
            told.append(
                f"{dtype}: {found.per_image(dtype) / 1e6:.1f} MB per image measured,"
                f" {found.predicted_per_image(dtype) / 1e6:.1f} predicted"
            )
        axes.set(xlabel="batch", ylabel="GB at most", ylim=(0, None), xlim=(0, many * 1.1))
        axes.set_title("The most memory that a run had at once", fontsize=11)
        axes.legend(fontsize=9, loc="upper left", ncols=2)
    return figure, "; ".join(told) + "."
