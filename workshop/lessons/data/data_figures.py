"""The figures of the data lesson: what the pictures are like, where labels go, what reading costs.

Each function returns a matplotlib figure; the numbers come from the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rn50lib.tools.plot import COLOURS, MARKERS, style
from workshop.lessons.data.survey import Survey

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HATCHES = ("", "//", "..", "xx", "\\\\", "--", "++")


def shapes_and_sizes(found: Survey, other_mean: float, other_name: str) -> Figure:
    """Left: width against height, a dot per shape. Right: bytes per file, with both means."""
    import matplotlib.pyplot as plt

    with style():
        fig, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.8), width_ratios=(1, 1.25))
        for is_portrait, name in ((False, "landscape"), (True, "portrait")):
            chosen = found.portrait == is_portrait
            shapes, counts = np.unique(
                np.stack([found.width[chosen], found.height[chosen]]), axis=1, return_counts=True
            )
            left.scatter(
                *shapes,
                s=20 + 600 * counts / len(found),
                color=COLOURS[is_portrait],
                marker=MARKERS[is_portrait],
                alpha=0.65,
                label=f"{name}, {100 * chosen.mean():.0f} %",
            )
        left.set(title="Shapes", xlabel="width, pixels", ylabel="height, pixels")
        left.set_aspect("equal")
        left.margins(0.15)
        left.legend(loc="upper right")
        right.hist(found.size / 1000, bins=40, color=COLOURS[0], alpha=0.8)
        means = (
            (found.size.mean() / 1000, "here", COLOURS[0], "-"),
            (other_mean / 1000, other_name, COLOURS[1], "--"),
        )
        for mean, _, colour, line in means:
            right.axvline(mean, color=colour, linestyle=line, linewidth=2, marker="")
        top = right.get_ylim()[1]
        right.set_ylim(0, top * 1.22)
        ahead = means[0][0] < means[1][0]
        for (mean, name, colour, _), is_left in zip(means, (ahead, not ahead), strict=True):
            right.annotate(
                f"mean {name}: {mean:.0f} KB",
                (mean, top * 1.2),
                xytext=(-6 if is_left else 6, 0),
                textcoords="offset points",
                ha="right" if is_left else "left",
                va="top",
                color=colour,
                fontweight="bold",
            )
        right.set(
            title="Size of a file", xlabel="kilobytes (1,000 bytes)", ylabel="number of pictures"
        )
    return fig


def label_lines(train: Mapping[str, int], val: Mapping[str, int]) -> Figure:
    """Two columns of labels, and a line per class from its label in train to that in val."""
    import matplotlib.pyplot as plt

    with style():
        fig, axes = plt.subplots(figsize=(8.5, 0.36 * len(train) + 0.9))
        for name, label in train.items():
            here = val.get(name)
            same = here == label
            axes.text(-0.04, label, f"{name}  {label}", ha="right", va="center")
            if here is None:
                axes.plot(0, label, color="0.45", marker="x", markersize=8)
                axes.text(0.04, label, "not in val", va="center", color="0.35", fontstyle="italic")
                continue
            axes.plot(
                (0, 1),
                (label, here),
                color=COLOURS[0 if same else 1],
                linestyle="-" if same else "--",
                marker="o" if same else "s",
                markersize=6,
            )
            axes.text(1.04, here, f"{here}  {name}", va="center")
        axes.set(xlim=(-0.75, 1.75), ylim=(len(train) - 0.4, -1.3))
        for x, side, part in ((-0.04, "right", "train"), (1.04, "left", "val")):
            axes.text(x, -0.9, f"label in {part}", ha=side, va="center", fontweight="bold")
        axes.axis("off")
        axes.set_title("One missing folder moves every label behind it")
    return fig


def order_strips(rows: Mapping[str, Sequence[int]], classes: int) -> Figure:
    """One strip per row: the labels in the order in which they stand, each class its own shade."""
    import matplotlib.pyplot as plt

    with style():
        fig, all_axes = plt.subplots(
            len(rows), 1, figsize=(10.5, 0.85 * len(rows) + 0.6), squeeze=False
        )
        for axes, (name, labels) in zip(all_axes[:, 0], rows.items(), strict=True):
            axes.imshow(
                np.asarray(labels)[None],
                aspect="auto",
                cmap="cividis",
                vmin=0,
                vmax=classes - 1,
                interpolation="nearest",
            )
            axes.grid(False)
            axes.set_yticks([])
            axes.set_title(name, fontsize=11)
        for axes in all_axes[:-1, 0]:
            axes.set_xticks([])
        all_axes[-1, 0].set_xlabel(
            f"place in the order; the shade is the label, 0 dark to {classes - 1} bright"
        )
    return fig


def opening_cost(
    images: int, points: Mapping[str, float], epochs: Mapping[str, float], readers: int
) -> Figure:
    """Minutes that opening `images` files takes against the time of one opening.

    `points` maps a name to seconds per opening; `epochs` a name to the seconds of a training epoch.
    """
    import matplotlib.pyplot as plt

    seconds = np.logspace(-6, -1.4, 50)
    with style():
        fig, axes = plt.subplots(figsize=(9.5, 4.4))
        for number, colour, line in ((1, COLOURS[0], "-"), (readers, COLOURS[2], "-.")):
            name = "one reader" if number == 1 else f"{number} readers at once"
            axes.plot(
                seconds * 1e3,
                images * seconds / 60 / number,
                color=colour,
                linestyle=line,
                marker="",
                label=name,
            )
        for i, (name, value) in enumerate(points.items()):
            axes.plot(
                value * 1e3,
                images * value / 60,
                color=COLOURS[1],
                marker=MARKERS[i + 1],
                markersize=9,
                linestyle="",
                label=f"{name}: {_short(value)}",
            )
        for name, value in epochs.items():
            axes.axhline(value / 60, color="0.35", linestyle=":", marker="")
            axes.text(1.1e-3, value / 60 * 1.15, f"an epoch on {name}: {value / 60:.1f} min")
        axes.set(
            title=f"Opening {images:,} files, once each",
            xlabel="time of one opening",
            ylabel="time of all",
            xscale="log",
            yscale="log",
            xlim=(1e-3, 40),
        )
        axes.set_xticks((1e-3, 1e-2, 0.1, 1, 10), ("1 µs", "10 µs", "0.1 ms", "1 ms", "10 ms"))
        axes.set_yticks(
            (0.1 / 60, 1 / 60, 1 / 6, 1, 10, 60, 600),
            ("0.1 s", "1 s", "10 s", "1 min", "10 min", "1 h", "10 h"),
        )
        axes.minorticks_off()
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1))
    return fig


def _short(seconds: float) -> str:
    return f"{seconds * 1e6:.0f} µs" if seconds < 1e-4 else f"{seconds * 1e3:.3g} ms"


def hours(rates: Mapping[str, float], images: int, epochs: int, title: str) -> Figure:
    """A bar per rate (images per second): the hours that `epochs` passes over `images` take."""
    import matplotlib.pyplot as plt

    with style():
        fig, axes = plt.subplots(figsize=(9.5, 0.55 * len(rates) + 1.1))
        for i, (name, rate) in enumerate(rates.items()):
            value = images * epochs / rate / 3600
            colour = COLOURS[i % len(COLOURS)]
            axes.barh(name, value, color=colour, hatch=HATCHES[i % len(HATCHES)], edgecolor="white")
            axes.annotate(
                f"{_duration(value)}  ({rate:,.0f} img/s)",
                (value, i),
                xytext=(6, 0),
                textcoords="offset points",
                va="center",
            )
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.set_xlim(0, axes.get_xlim()[1] * 1.3)
        axes.set(title=title, xlabel="hours")
    return fig


def _duration(in_hours: float) -> str:
    if in_hours < 1:
        return f"{in_hours * 60:.1f} min"
    return f"{in_hours:,.1f} h" if in_hours < 72 else f"{in_hours / 24:,.1f} days"
