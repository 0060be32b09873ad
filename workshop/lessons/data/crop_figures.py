"""Figures about crops: the augmentation's boxes on a picture, how large they are, and validation.

They call the recipe's own functions and the input's own decoder, so they show what training sees.
"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from rn50lib import recipe
from rn50lib.pipelines.images import crop, open_image
from rn50lib.tools.plot import COLOURS, MARKERS, style
from rn50lib.records.imageinfo import eight_bits
from rn50lib.records.order import image_seed

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (1, 1)))


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
        axes = _picture(fig.add_subplot(grid[:, :2]), whole, f"{width} × {height} pixels on disk")
        for i in range(count):
            drawn = recipe.augment(image_seed(seed, i, 0), width, height, augmentation)
            box, mirror = drawn
            shares.append(box[2] * box[3] / (width * height))
            _box(axes, box, i, str(i + 1))
            pixels = crop(open_image(picture, "the picture"), box, size, "the picture")
            pixels = pixels[:, ::-1] if mirror else pixels
            row, column = divmod(i, count // 2)
            title = f"{i + 1}: {100 * shares[-1]:.0f} %{', mirrored' if mirror else ''}"
            small = _picture(fig.add_subplot(grid[row, 2 + column]), pixels, title)
            small.title.set_fontsize(9.5)
            for spine in small.spines.values():
                spine.set(visible=True, color=COLOURS[i % 7], linewidth=2.5)
    return fig, shares


def _picture(axes: Any, pixels: np.ndarray, title: str) -> Any:
    axes.imshow(pixels, interpolation="nearest")
    axes.set(xticks=[], yticks=[])
    axes.grid(False)
    axes.set_title(title, fontsize=11)
    return axes


def _box(axes: Any, box: recipe.Box, number: int, label: str) -> None:
    from matplotlib.patches import Rectangle

    left, top, width, height = box
    colour = COLOURS[number % len(COLOURS)]
    line = LINES[number % len(LINES)]
    axes.add_patch(
        Rectangle((left, top), width, height, fill=False, edgecolor="white", linewidth=4, alpha=0.7)
    )
    axes.add_patch(
        Rectangle(
            (left, top), width, height, fill=False, edgecolor=colour, linestyle=line, linewidth=2.2
        )
    )
    right, below = number % 2, number // 2 % 2  # at another corner than the last box's
    axes.text(
        left + (width - 5 if right else 5),
        top + (height - 5 if below else 5),
        label,
        ha="right" if right else "left",
        va="bottom" if below else "top",
        color="white",
        fontweight="bold",
        bbox={"facecolor": colour, "edgecolor": "none", "pad": 2},
    )


def crop_shares(
    augmentation: recipe.Augmentation, width: int, height: int, count: int
) -> np.ndarray:
    """The share of the picture's area of `count` random crops, float64 of shape (count,)."""
    boxes = (recipe.augment(i, width, height, augmentation)[0] for i in range(count))
    return np.fromiter((w * h for _, _, w, h in boxes), np.float64, count) / (width * height)


def share_histogram(shares: Mapping[str, np.ndarray], limit: float) -> Figure:
    """How often a crop has which share of the area, for several settings; `limit` is marked."""
    import matplotlib.pyplot as plt

    edges = np.linspace(0, 1, 51)
    with style():
        fig, axes = plt.subplots(figsize=(9, 3.4))
        for i, (name, values) in enumerate(shares.items()):
            counts = np.histogram(values, edges)[0] / len(values) * 100
            look = {"color": COLOURS[i], "linestyle": LINES[i], "marker": MARKERS[i]}
            axes.step(
                edges[:-1] * 100, counts, where="post", markevery=(2 * i, 6), label=name, **look
            )
        axes.axvline(limit * 100, color="0.35", linestyle=":", marker="")
        axes.set_ylim(0)
        axes.text(limit * 100 + 1, 0.15, f"{100 * limit:.0f} %", color="0.25")
        axes.set(
            title="How large the training crops are",
            xlabel="share of the picture's area, per cent",
            ylabel="crops, per cent of all",
        )
        axes.legend(loc="lower center")
    return fig


def resize_then_crop(picture: bytes, size: int, resize: int) -> np.ndarray:
    """Validation as it is described: the shorter side to `resize`, then the centre, uint8."""
    image = eight_bits(Image.open(io.BytesIO(picture))).convert("RGB")
    scale = resize / min(image.size)
    width, height = (round(side * scale) for side in image.size)
    small = image.resize((width, height), Image.Resampling.BILINEAR)
    left, top = (width - size) // 2, (height - size) // 2
    return np.asarray(small.crop((left, top, left + size, top + size)))


def crop_then_resize(picture: bytes, size: int, resize: int) -> np.ndarray:
    """Validation as the input pipeline does it: only the part that stays is resized, uint8."""
    opened = open_image(picture, "the picture")
    box = recipe.center_crop_box(*opened.size, size, resize)
    return crop(opened, box, size, "the picture")


def validation_figure(picture: bytes, results: Sequence[np.ndarray], box: recipe.Box) -> Figure:
    """The picture with the validation box, the two results, and twenty times their difference."""
    import matplotlib.pyplot as plt

    whole = np.asarray(eight_bits(Image.open(io.BytesIO(picture))).convert("RGB"))
    first, second = results
    difference = np.abs(first.astype(int) - second.astype(int))
    with style():
        fig, axes = plt.subplots(1, 4, figsize=(11, 3), width_ratios=(1.5, 1, 1, 1))
        _picture(axes[0], whole, "the part that stays")
        _box(axes[0], box, 0, f"{box[2]} × {box[3]}")
        _picture(axes[1], first, "resize, then crop")
        _picture(axes[2], second, "crop, then resize")
        _picture(axes[3], np.clip(difference * 20, 0, 255).astype(np.uint8), "difference × 20")
    return fig


def rate(way: Callable[[bytes, int, int], np.ndarray], pictures: list[bytes], size: int) -> float:
    """Pictures per second of one of the two ways of validation above, on one core."""
    begin = time.perf_counter()
    for picture in pictures:
        way(picture, size, recipe.val_resize(size))
    return len(pictures) / (time.perf_counter() - begin)
