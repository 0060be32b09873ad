"""What notebook 06 shows of numbers: what a format holds, which gradients fit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50 import plot
from workshop.lessons.figures import BLUE, ORANGE
from workshop.lessons.precision.gradients import BFLOAT16, FLOAT16, FORMATS, Format, Gradients

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

COLOUR = {"bfloat16": BLUE, "float16": ORANGE}


def gradients(kinds: Sequence[Gradients], scale: int, name: str = "float16") -> tuple[Figure, str]:
    """How many gradients have which size, after a loss scale of 2^scale, over what a format
    holds."""
    from matplotlib.figure import Figure

    to = FORMATS[name]
    with plot.style():
        figure = Figure(figsize=(10.5, 4.2))
        named: dict[str, Any] = {}
        for axes, item in zip(np.ravel(figure.subplots(1, len(kinds))), kinds, strict=True):
            draw_gradients(axes, item, scale, to)
            handles, labels = axes.get_legend_handles_labels()
            named |= dict(zip(labels, handles, strict=True))
        figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=4)
    told = [f"{fate(item, to, scale)} of those {item.kind}" for item in kinds]
    at = "without a loss scale" if scale == 0 else f"with a loss scale of 2^{scale} = {2**scale:,}"
    return figure, f"In {name}, {at}: {'; '.join(told)}."


def draw_gradients(axes: Axes, item: Gradients, scale: int, to: Format) -> None:
    """The histogram, its bars coloured by what becomes of them."""
    shares = 100 * item.counts / item.counts.sum()
    powers = item.powers + scale
    lost, high = powers < to.tiny - 1, powers > to.highest
    blurred = (powers >= to.tiny - 1) & (powers < to.lowest)
    for chosen, colour, hatch, label in (
        (~(lost | high | blurred), BLUE, "", "kept"),
        (blurred, "#56B4E9", "..", "kept with fewer bits"),
        (lost, ORANGE, "//", "become zero"),
        (high, "black", "xx", "become infinite"),
    ):
        if shares[chosen].sum() > 0:
            axes.bar(powers[chosen], shares[chosen], 1, align="edge", color=colour, hatch=hatch,
                     edgecolor="white", lw=0.4, label=label)  # fmt: skip
    top = 1.28 * shares.max()
    seen = powers[shares > 0.02]
    axes.set(ylim=(0, top), xlim=(min(-50, seen[0] - 1), max(18, seen[-1] + 2)))
    for row, other in enumerate((FLOAT16, BFLOAT16)):
        low, at = max(other.tiny, axes.get_xlim()[0]), top * (0.965 - 0.07 * row)
        end = min(other.highest + 1, axes.get_xlim()[1])
        axes.plot([low, end], [at, at], marker="", lw=4, color=COLOUR[other.name],
                  solid_capstyle="butt")  # fmt: skip
        axes.text(end, at - 0.012 * top, f"{other.name} ", ha="right", va="top", fontsize=8.5,
                  color=COLOUR[other.name])  # fmt: skip
    axes.set(xlabel="size, power of two", ylabel="per cent of them")
    axes.set_title(f"Gradients {item.kind}", fontsize=11)


def fate(item: Gradients, to: Format, scale: int) -> str:
    """What becomes of a kind of gradients, in words."""
    parts = [f"{100 * item.vanish(to, scale):.1f} % become zero"]
    if (high := item.overflow(to, scale)) > 0:
        parts.append(f"{100 * high:.2g} % infinite")
    return " and ".join(parts)
