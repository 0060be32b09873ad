"""Figures of notebook 05 about pictures: the outputs and times of DALI's operators, what decoding
a part costs, crops, and the same picture through several loaders.

They return a matplotlib figure and mostly a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50lib.tools import plot
from workshop.lessons.tfrecord.figures_input import BLUE, ORANGE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HATCHES = ("", "//", "..", "xx")


# -- the graph -------------------------------------------------------------------------------------


def outputs(found: Mapping[str, np.ndarray]) -> tuple[Figure, str]:
    """What each operator gives for one image, as pictures, with its shape and bytes."""
    from matplotlib.figure import Figure

    with plot.style():
        figure = Figure(figsize=(10.5, 3.1))
        told = []
        for axes, (name, values) in zip(
            np.ravel(figure.subplots(1, len(found))), found.items(), strict=True
        ):
            shape = " × ".join(map(str, values.shape))
            kilobytes = values.nbytes / 1000
            if values.ndim == 1:  # bytes of a file, as they lie there
                width = int(len(values) ** 0.5)
                axes.imshow(values[: width * width].reshape(width, width), cmap="gray")
            elif values.shape[0] == 3:  # planes: the first one
                axes.imshow(values[0], cmap="gray", interpolation="nearest")
            else:
                axes.imshow(values, interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.grid(False)
            axes.set_title(name, fontsize=11)
            axes.set_xlabel(f"{values.dtype} {shape}\n{kilobytes:,.0f} KB", fontsize=9)
            told.append(f"{name} {kilobytes:,.0f} KB")
    return figure, "What an image takes behind each operator: " + ", ".join(told) + "."


def step_times(
    until: Mapping[str, Sequence[float]], ways: Mapping[str, Sequence[str]]
) -> tuple[Figure, str, dict[str, dict[str, float]]]:
    """Stacked bars of the operators' times; `until` holds ms an image until an operator is done,
    `ways` the operators of each graph in order. Also returns ms by graph and operator."""
    from matplotlib.figure import Figure

    found = {way: own_times(until, names) for way, names in ways.items()}
    whole = {way: sum(times.values()) for way, times in found.items()}
    with plot.style():
        figure = Figure(figsize=(10.5, 0.75 * len(ways) + 1.5))
        axes = figure.subplots()
        for i, name in enumerate(next(iter(ways.values()))):  # for what is too narrow for its name
            axes.barh(0, 0, color=plot.COLOURS[i % 4], hatch=HATCHES[i], ec="white", label=name)
        axes.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=len(HATCHES), fontsize=9)
        for place, times in enumerate(found.values()):
            at = 0.0
            for i, (name, ms) in enumerate(times.items()):
                colour = plot.COLOURS[i % 4]
                axes.barh(place, ms, 0.6, left=at, color=colour, hatch=HATCHES[i], ec="white")
                if ms > 0.08 * max(whole.values()):
                    box = {"facecolor": colour, "edgecolor": "none", "pad": 1.5}
                    axes.text(
                        at + ms / 2, place, f"{name}\n{ms:.2f}", ha="center", va="center",
                        color="white", fontsize=9, fontweight="bold", bbox=box,
                    )  # fmt: skip
                at += ms
            axes.text(at, place, f"  {at:.2f} ms", va="center")
        axes.set_yticks(range(len(found)), list(found))
        axes.invert_yaxis()
        axes.set(xlim=(0, 1.15 * max(whole.values())), xlabel="ms an image on one core")
        axes.set_title("The time that each operator adds", fontsize=11)
        axes.grid(False, axis="y")
    first = next(iter(found))
    longest = max(found[first], key=lambda name: found[first][name])
    share = 100 * found[first][longest] / whole[first]
    text = (
        f"{first}: {whole[first]:.2f} ms an image on one core, {share:.0f} % of it for '{longest}'."
    )
    return figure, text, found


def own_times(until: Mapping[str, Sequence[float]], names: Sequence[str]) -> dict[str, float]:
    """The time that each operator adds to those before it: differences by rounds, then medians."""
    times, before = {}, [0.0] * len(until[names[0]])
    for name in names:
        pairs = zip(until[name], before, strict=True)
        times[name] = max(0.0, median(a - b for a, b in pairs))
        before = list(until[name])
    return times


def part_times(
    found: Mapping[str, Sequence[float]], boxes: Mapping[str, tuple[float, float, float, float]]
) -> tuple[Figure, str]:
    """Time for decoding parts of an image, in per cent of all of it, beside their shares of the
    pixels. The first entry is the whole image."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    names = list(found)
    whole = found[names[0]]
    shares = {
        name: 100 * median(a / b for a, b in zip(found[name], whole, strict=True)) for name in names
    }
    with plot.style():
        figure = Figure(figsize=(10.5, 0.62 * len(names) + 1.2))
        small, axes = figure.subplots(1, 2, sharey=True, width_ratios=(0.09, 1))
        for place, name in enumerate(names):
            left, top, width, height = boxes[name]
            edge = {"edgecolor": "black", "lw": 1}
            small.add_patch(Rectangle((0, place - 0.36), 1, 0.72, facecolor="none", **edge))
            corner = (left, place - 0.36 + 0.72 * top)
            small.add_patch(Rectangle(corner, width, 0.72 * height, facecolor=ORANGE, **edge))
            axes.barh(place + 0.17, shares[name], 0.34, color=BLUE, label="time")
            axes.barh(place - 0.17, 100 * width * height, 0.34, color=ORANGE, hatch="//",
                      label="pixels")  # fmt: skip
            axes.text(shares[name] + 1, place + 0.17, f"{shares[name]:.0f} %", va="center")
            axes.text(100 * width * height + 1, place - 0.17, f"{100 * width * height:.0f} %",
                      va="center")  # fmt: skip
        small.set(xlim=(-0.05, 1.05), xticks=[])
        small.set_yticks(range(len(names)), names)
        small.spines[["left", "bottom"]].set_visible(False)
        small.tick_params(length=0)
        axes.set(xlim=(0, 118), xlabel="per cent of the whole image")
        axes.invert_yaxis()
        handles, labels = axes.get_legend_handles_labels()
        axes.legend(handles[:2], labels[:2], loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
        axes.set_title("Decoding a part: its pixels and its time", fontsize=11)
        for each in (small, axes):
            each.grid(False)
    told = ", ".join(f"{name} {shares[name]:.0f} %" for name in names[1:])
    return figure, f"Time for a quarter of the pixels, of that for all of them: {told}."


def crop_sheet(images: np.ndarray, says: str) -> tuple[Figure, str]:
    """Crops of one picture in two rows, and a sentence."""
    from matplotlib.figure import Figure

    columns = -(-len(images) // 2)
    with plot.style():
        figure = Figure(figsize=(10.5, 2 * 10.5 / columns * 0.95))
        for axes, pixels in zip(np.ravel(figure.subplots(2, columns)), images, strict=True):
            axes.imshow(pixels, interpolation="nearest")
            axes.axis("off")
    return figure, says


# -- the same picture ------------------------------------------------------------------------------


def same_picture(
    pictures: Mapping[str, np.ndarray], truth: str, which: int, times: int = 20
) -> Figure:
    """One picture through every loader, and below how it differs from that of `truth`."""
    from matplotlib.figure import Figure

    wanted = pictures[truth][which].astype(int)
    with plot.style():
        figure = Figure(figsize=(10.5, 4.5))
        rows: Any = figure.subplots(2, len(pictures))
        for column, (name, pixels) in enumerate(pictures.items()):
            apart = np.abs(pixels[which].astype(int) - wanted)
            rows[0, column].imshow(pixels[which], interpolation="nearest")
            rows[0, column].set_title(name, fontsize=11)
            shown = np.clip(times * apart, 0, 255).astype(np.uint8)
            rows[1, column].imshow(shown, interpolation="nearest")
            text = f"difference × {times}\nmean {apart.mean():.2f}"
            rows[1, column].set_title("the measure" if name == truth else text, fontsize=10)
            for axes in rows[:, column]:
                axes.axis("off")
    return figure
