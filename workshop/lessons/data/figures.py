"""Figures of notebook 01: what the pictures are like, what training sees of them, what it costs.

They call the recipe's own functions and the input's own decoder, so they show what training sees.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from rn50.plot import COLOURS, MARKERS, style
from rn50lib import recipe
from rn50lib.data.decode import crop, eight_bits, open_image
from rn50lib.data.sampler import image_seed
from workshop.lessons.data.survey import Survey
from workshop.lessons.figures import HATCHES

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))


def shapes_and_sizes(found: Survey, other_kb: float, other_name: str) -> Figure:
    """Left: width against height, a dot per shape. Right: kilobytes per file, with both means."""
    import matplotlib.pyplot as plt

    with style():
        fig, (left, right) = plt.subplots(1, 2, figsize=(10.5, 3.8), width_ratios=(1, 1.25))
        for i, name in enumerate(("landscape", "portrait")):
            chosen = found.portrait == bool(i)
            both = np.stack([found.width[chosen], found.height[chosen]])
            shapes, counts = np.unique(both, axis=1, return_counts=True)
            left.scatter(
                *shapes, s=20 + 600 * counts / len(found), color=COLOURS[i], marker=MARKERS[i],
                alpha=0.65, label=f"{name}, {100 * chosen.mean():.0f} %",
            )  # fmt: skip
        left.set(title="Shapes", xlabel="width, pixels", ylabel="height, pixels", aspect="equal")
        left.margins(0.15)
        left.legend(loc="upper right")
        right.hist(found.size / 1000, bins=40, color=COLOURS[0], alpha=0.8)
        means = {"here": found.size.mean() / 1000, other_name: other_kb}
        for i, (name, mean) in enumerate(means.items()):
            label = f"mean {name}: {mean:.0f} KB"
            right.axvline(mean, color=COLOURS[i], ls=LINES[i], lw=2, marker="", label=label)
        right.set(title="Size of a file", xlabel="kilobytes", ylabel="number of pictures")
        right.legend(loc="upper right")
    return fig


def hours(rates: Mapping[str, float], images: int, epochs: int, title: str) -> Figure:
    """A bar per rate (images per second): the hours that `epochs` passes over `images` take."""
    import matplotlib.pyplot as plt

    with style():
        fig, axes = plt.subplots(figsize=(9.5, 0.55 * len(rates) + 1.1))
        values = [images * epochs / rate / 3600 for rate in rates.values()]
        bars = axes.barh(
            list(rates), values, color=COLOURS[: len(rates)], hatch=HATCHES[: len(rates)], ec="w"
        )
        labels = [
            f" {duration(value)}  ({rate:,.0f} img/s)"
            for value, rate in zip(values, rates.values(), strict=True)
        ]
        axes.bar_label(bars, labels)
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.set_xlim(0, axes.get_xlim()[1] * 1.3)
        axes.set(title=title, xlabel="hours")
    return fig


def duration(in_hours: float) -> str:
    """Hours for people."""
    if in_hours < 1:
        return f"{in_hours * 60:.1f} min"
    return f"{in_hours:,.1f} h" if in_hours < 72 else f"{in_hours / 24:,.1f} days"


# --- crops ----------------------------------------------------------------------------------------


def training_crops(
    picture: bytes, augmentation: recipe.Augmentation, seed: int, size: int, count: int = 6
) -> tuple[Figure, list[float]]:
    """The picture with the boxes of its first `count` epochs, and beside it what the model gets.

    Returns the figure and each crop's share of the picture's area.
    """
    import matplotlib.pyplot as plt

    width, height = open_image(picture, "the picture").size
    whole = np.asarray(eight_bits(Image.open(io.BytesIO(picture))).convert("RGB"))
    shares = []
    with style():
        fig = plt.figure(figsize=(11, 4.3))
        grid = fig.add_gridspec(2, count // 2 + 2, width_ratios=(1, 1, *[0.72] * (count // 2)))
        axes = show(fig.add_subplot(grid[:, :2]), whole, f"{width} × {height} pixels on disk")
        for i in range(count):
            box, mirror = recipe.augment(image_seed(seed, i, 0), width, height, augmentation)
            shares.append(box[2] * box[3] / (width * height))
            outline(axes, box, i)
            pixels = crop(open_image(picture, "the picture"), box, size, "the picture")
            row, column = divmod(i, count // 2)
            title = f"{i + 1}: {100 * shares[-1]:.0f} %{', mirrored' if mirror else ''}"
            small = fig.add_subplot(grid[row, 2 + column])
            show(small, pixels[:, ::-1] if mirror else pixels, title)
            for spine in small.spines.values():
                spine.set(visible=True, color=COLOURS[i % 7], linewidth=2.5)
    return fig, shares


def show(axes: Any, pixels: np.ndarray, title: str) -> Any:
    axes.imshow(pixels, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    axes.set_title(title, fontsize=10)
    return axes


def outline(axes: Any, box: recipe.Box, number: int) -> None:
    """A numbered box on a picture, its number at another corner than the last one's."""
    from matplotlib.patches import Rectangle

    left, top, width, height = box
    colour = COLOURS[number % len(COLOURS)]
    for edge, line, wide in (("white", "-", 4.0), (colour, LINES[number % len(LINES)], 2.2)):
        axes.add_patch(Rectangle((left, top), width, height, fill=False, ec=edge, ls=line, lw=wide))
    right, below = number % 2, number // 2 % 2
    axes.text(
        left + (width - 5 if right else 5), top + (height - 5 if below else 5), str(number + 1),
        ha="right" if right else "left", va="bottom" if below else "top", color="white",
        fontweight="bold", bbox={"facecolor": colour, "edgecolor": "none", "pad": 2},
    )  # fmt: skip


def crop_shares(
    augmentation: recipe.Augmentation, width: int, height: int, count: int
) -> np.ndarray:
    """The share of the picture's area of `count` random crops, float64 of shape (count,)."""
    boxes = (recipe.augment(i, width, height, augmentation)[0] for i in range(count))
    return np.fromiter((w * h for _, _, w, h in boxes), np.float64, count) / (width * height)
