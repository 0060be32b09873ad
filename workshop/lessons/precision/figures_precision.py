"""Figures of notebook 06 about numbers: what a format holds, which gradients fit, what is lost.

Each function returns a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50lib.tools import plot
from workshop.lessons.precision.formats import (
    BFLOAT16,
    FLOAT16,
    FORMATS,
    Format,
    lost_share,
    round_to,
)
from workshop.lessons.precision.gradients import Gradients

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE = plot.COLOURS[:4]
GREY = "#5b6b7a"
COLOUR = {"float32": GREY, "tf32": GREEN, "bfloat16": BLUE, "float16": ORANGE}
DASHES = {"float32": ":", "tf32": "-.", "bfloat16": "-", "float16": "--"}


# -- formats ---------------------------------------------------------------------------------------


def formats(exponent: int, mantissa: int) -> tuple[Figure, str]:
    """The relative error of numbers over their size, for a format of one's own and for those that
    exist."""
    from matplotlib.figure import Figure

    yours = Format("yours", exponent, mantissa)
    powers = np.arange(-150, 130)
    with plot.style():
        figure = Figure(figsize=(10.5, 4.1))
        axes = figure.subplots()
        for item in FORMATS.values():
            axes.plot(
                powers, worst_error(item, powers), marker="", lw=1.8, color=COLOUR[item.name],
                ls=DASHES[item.name], label=f"{item.name}: {item.exponent} + {item.mantissa} bits",
            )  # fmt: skip
        axes.plot(
            powers, worst_error(yours, powers), marker="", lw=5, alpha=0.35, color="black",
            label=f"yours: {exponent} + {mantissa} bits", zorder=1,
        )  # fmt: skip
        axes.set(
            title="Which numbers a format holds, and how well", yscale="log", ylim=(1e-8, 4),
            xlabel="size of the number, power of two", ylabel="largest relative error",
        )  # fmt: skip
        axes.text(20, 1.1, "above: lost, as zero or as infinity", va="bottom", fontsize=8.5)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3, fontsize=9)
    return figure, formats_sentence(yours)


def worst_error(item: Format, powers: np.ndarray) -> np.ndarray:
    """The largest relative error of the numbers from 2^power to the next power; 1 where they are
    lost, to zero or to infinity."""
    powers = np.asarray(powers)
    kept = item.half_step * 2.0 ** np.maximum(0, item.lowest - powers)
    return np.where((powers < item.tiny) | (powers > item.highest), 1.0, np.minimum(kept, 1.0))


def formats_sentence(item: Format) -> str:
    """What becomes of four numbers."""
    tries = {"1/3": 1 / 3, "1 + 1/1000": 1.001, "70,000": 7e4, "1e-8": 1e-8}
    became = {name: float(round_to(value, item)) for name, value in tries.items()}
    told = ", ".join(f"{name} becomes {short(value)}" for name, value in became.items())
    return (
        f"1 bit of sign, {item.exponent} of exponent and {item.mantissa} of mantissa are"
        f" {item.bits} bits: up to {item.largest:.3g}, down to {2.0**item.tiny:.2g}, in steps of"
        f" {item.step:.2g} from 1 on. In it {told}."
    )


def short(value: float) -> str:
    if np.isinf(value):
        return "infinite"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


def format_rows() -> list[list[Any]]:
    """(name, bits in memory, exponent, mantissa, largest, smallest with all bits, smallest, step
    from 1)."""
    return [
        [x.name, 32 if x.name == "tf32" else x.bits, x.exponent, x.mantissa, f"{x.largest:.3g}",
         f"{2.0**x.lowest:.2g}", f"{2.0**x.tiny:.2g}", f"1/{2**x.mantissa:,}"]
        for x in FORMATS.values()
    ]  # fmt: skip


# -- gradients -------------------------------------------------------------------------------------


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
    shares = 100 * item.counts / item.total
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


# -- master weights --------------------------------------------------------------------------------


def lost_updates(
    weights: np.ndarray, velocity: np.ndarray, rates: Mapping[str, float], factors: np.ndarray
) -> tuple[Figure, str]:
    """Left, how large the updates of a rate are against their weights; right, which share of them
    changes nothing, over the learning rate, by the format that the weights are kept in.

    `weights` and `velocity` are float32 of one shape; `rates` are named learning rates.
    """
    from matplotlib.figure import Figure

    names = ("float32", "bfloat16", "float16")
    first = next(iter(rates.values()))
    with plot.style():
        figure = Figure(figsize=(10.5, 4.2))
        left, right = figure.subplots(1, 2)
        draw_relative(left, weights, velocity, rates)
        lost = {
            name: [100 * lost_share(weights, factor * first * velocity, FORMATS[name])
                   for factor in factors]
            for name in names
        }  # fmt: skip
        for name in names:
            right.plot(first * factors, lost[name], color=COLOUR[name], ls=DASHES[name],
                       label=f"weights in {name}")  # fmt: skip
        for name, rate in rates.items():
            right.axvline(rate, color="black", lw=0.8, ls=":", marker="")
            right.text(rate, 103, name, ha="center", va="bottom", fontsize=8)
        right.set(
            xscale="log", ylim=(-3, 101), xlabel="learning rate", ylabel="per cent of weights"
        )
        right.set_title("Updates that change nothing\n", fontsize=11)
        figure.legend(*right.get_legend_handles_labels(), loc="outside lower right", ncols=3)
    told = []
    for name, rate in rates.items():
        shares = [
            f"{100 * lost_share(weights, rate * velocity, FORMATS[x]):.0f} % in {x}" for x in names
        ]
        told.append(f"with {name} ({rate:.2g}) {', '.join(shares)}")
    return figure, f"Weights that stay as they are: {'; '.join(told)}."


def draw_relative(
    axes: Axes, weights: np.ndarray, velocity: np.ndarray, rates: Mapping[str, float]
) -> None:
    """How many updates have which size relative to their weight."""
    chosen = (weights != 0) & (velocity != 0)
    ratio = np.abs(velocity[chosen].astype(np.float64) / weights[chosen])
    bins = np.arange(-40, 9)
    ends = list(rates.items())
    for (name, rate), colour, line in zip(
        (ends[0], ends[-1]), (PURPLE, "black"), ("-", "--"), strict=True
    ):
        power = np.log2(rate * ratio)
        counts = np.histogram(power, bins)[0]
        axes.stairs(100 * counts / len(power), bins, color=colour, ls=line, lw=1.8, label=name)
    top = 1.25 * axes.get_ylim()[1]
    axes.set(ylim=(0, top), xlim=(-32, 8))
    for item in (BFLOAT16, FLOAT16):
        at = -item.mantissa - 1
        axes.axvline(at, color=COLOUR[item.name], lw=1.6, ls=DASHES[item.name], marker="")
        side = "left" if item is BFLOAT16 else "right"
        axes.text(at, top * 0.99, f" {item.name} ", ha=side, va="top", fontsize=8.5,
                  color=COLOUR[item.name])  # fmt: skip
    axes.set(xlabel="update / weight, power of two", ylabel="per cent of weights")
    axes.set_title("Left of a format's line, the sum is rounded back\n", fontsize=11)
    axes.legend(fontsize=9, loc="upper left", bbox_to_anchor=(0, 0.9))
