"""Figures of notebook 06 about time: channels and layout, the roofline, the speed-up by layer.

Each function returns a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rn50lib.network import Network
from rn50lib.tools import plot
from workshop.lessons.precision.roofline import KINDS, REST, Device, Measured, bound
from workshop.lessons.precision.shapes import NCHW, NHWC, Rates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN = plot.COLOURS[:3]
GREY = "#5b6b7a"
COLOURS = {
    "convolution": BLUE, "batch norm": ORANGE, "ReLU": GREEN, "addition": plot.COLOURS[3],
    "pooling": plot.COLOURS[4], "last layer": plot.COLOURS[5], REST: GREY,
}  # fmt: skip
MARKS = dict(zip(COLOURS, plot.MARKERS, strict=True))


# -- shapes ----------------------------------------------------------------------------------------


def channels(found: Rates) -> tuple[Figure, str]:
    """The rate of a convolution over its number of channels, and in the other layout."""
    from matplotlib.figure import Figure

    numbers = found.channels()
    round_ = max(numbers, key=lambda n: n & -n)  # the one with the most factors of two
    told = []
    with plot.style():
        figure = Figure(figsize=(10.5, 3.5))
        axes = figure.subplots(1, len(found.dtypes), squeeze=False)[0]
        for panel, dtype in zip(axes, found.dtypes, strict=True):
            rates = [found.rate(dtype, NHWC, n) for n in numbers]
            colours = [BLUE if n % 8 == 0 else ORANGE for n in numbers]
            hatches = ["" if n % 8 == 0 else "//" for n in numbers]
            labels = [str(n) for n in numbers] + [f"{round_}\n{NCHW}"]
            bars = panel.bar(
                labels, [*rates, found.rate(dtype, NCHW, round_)], 0.72, color=[*colours, GREY],
                hatch=[*hatches, ".."], edgecolor="white",
            )  # fmt: skip
            panel.bar_label(bars, fmt="{:,.0f}", fontsize=8)
            panel.set(xlabel="channels in and out", ylabel="GFLOP per second")
            panel.set_title(f"{dtype}, {NHWC} but for the last", fontsize=11)
            panel.grid(False, axis="x")
            panel.margins(y=0.12)
            odd = [n for n in numbers if n % 8]
            loss = [found.ratio((dtype, NHWC, n), (dtype, NHWC, round_)) for n in odd]
            layout = found.ratio((dtype, NHWC, round_), (dtype, NCHW, round_))
            told.append(
                f"{dtype}: off the multiples of 8 the rate is {min(loss):.2f} to {max(loss):.2f}"
                f" times that of {round_} channels, and {NHWC} is {layout:.2f} times as fast as"
                f" {NCHW}"
            )
    return figure, f"{'; '.join(told)} ({found.rounds} rounds)."


def channel_rows(net: Network) -> list[list[Any]]:
    """(what, channels in, channels out) of every layer of a network whose numbers are not all
    multiples of 8."""
    layers = [(conv.name, conv.in_channels, conv.out_channels) for conv in net.convolutions()]
    layers.append(("fc", net.features, net.num_classes))
    return [list(row) for row in layers if row[1] % 8 or row[2] % 8]


# -- the roofline ----------------------------------------------------------------------------------


def roofline(found: Measured) -> tuple[Figure, str]:
    """Each kind of layer as a point below the two roofs of its precision."""
    from matplotlib.figure import Figure

    with plot.style():
        figure = Figure(figsize=(10.5, 4.3))
        panels = figure.subplots(1, 2, sharex=True, sharey=True)
        for panel, dtype in zip(panels, found.dtypes, strict=True):
            draw_roof(panel, found, dtype)
        panels[0].set_ylabel("GFLOP per second")
        panels[0].legend(fontsize=8.5, loc="lower right")
    slow, fast = found.dtypes
    told = (
        f"A large product of matrices reaches {found.peaks[slow] / 1e9:,.0f} GFLOP/s in {slow} and"
        f" {found.peaks[fast] / 1e9:,.0f} in {fast}, {found.peaks[fast] / found.peaks[slow]:.2g}"
        f" times as many; a copy moves {found.bandwidth / 1e9:.1f} GB/s in either. "
    )
    return figure, told + reached(found)


def draw_roof(axes: Axes, found: Measured, dtype: str) -> None:
    peak, bandwidth = found.peaks[dtype], found.bandwidth
    intensity = np.logspace(-1.2, 3.2, 100)
    roof = np.minimum(peak, intensity * bandwidth) / 1e9
    axes.plot(intensity, roof, marker="", color="black", lw=1.8)
    knee = peak / bandwidth
    axes.text(knee, 1.15 * peak / 1e9, "arithmetic", fontsize=8.5, va="bottom")
    axes.text(0.08, 1.5 * 0.08 * bandwidth / 1e9, "memory", fontsize=8.5, rotation=38,
              rotation_mode="anchor")  # fmt: skip
    for kind, work in found.work(dtype).items():
        seconds = found.seconds(dtype, kind)
        if seconds > 0:
            axes.plot(work.intensity, work.flops / seconds / 1e9, ls="", marker=MARKS[kind], ms=9,
                      color=COLOURS[kind], mec="white", label=kind)  # fmt: skip
    axes.set(xscale="log", yscale="log", xlabel="FLOP per byte")
    axes.set_title(f"{dtype}: the bend is at {knee:.0f} FLOP per byte", fontsize=11)


def reached(found: Measured) -> str:
    """Which kinds lie left of the bend, in the faster precision."""
    fast = found.dtypes[-1]
    knee = found.peaks[fast] / found.bandwidth
    work = found.work(fast)
    left = [kind for kind in KINDS if work[kind].intensity < knee]
    right = [kind for kind in KINDS if kind not in left]
    told = f"In {fast}, memory bounds {', '.join(left) or 'no kind of layer'}"
    return f"{told}; arithmetic bounds {', '.join(right) or 'none'}."


def roofline_rows(found: Measured, dtype: str) -> list[list[Any]]:
    """(kind, GFLOP, GB, FLOP per byte, ms at least, ms measured, per cent of the step)."""
    work = found.work(dtype)
    whole = sum(found.seconds(dtype, kind) for kind in (*KINDS, REST))
    rows: list[list[Any]] = []
    for kind in (*KINDS, REST):
        seconds, item = found.seconds(dtype, kind), work.get(kind)
        counted: list[float | None] = [None] * 4
        if item:
            counted = [item.flops / 1e9, item.bytes / 1e9, item.intensity,
                       1000 * found.floor(dtype, kind)]  # fmt: skip
        rows.append([kind, *counted, 1000 * seconds, 100 * seconds / whole])
    return rows


# -- where the speed-up comes from -----------------------------------------------------------------


def comparison(found: Measured) -> tuple[Figure, str]:
    """The step of both precisions as bars of its parts, and how many times as fast each part is."""
    from matplotlib.figure import Figure

    slow, fast = found.dtypes
    with plot.style():
        figure = Figure(figsize=(10.5, 3.9))
        left, right = figure.subplots(1, 2, width_ratios=(1.5, 1))
        start = np.zeros(2)
        for kind in (*KINDS, REST):
            values = np.array([1000 * found.seconds(dtype, kind) for dtype in (slow, fast)])
            left.barh([slow, fast], values, 0.6, left=start, color=COLOURS[kind], label=kind,
                      edgecolor="white", lw=0.6)  # fmt: skip
            start += values
        left.invert_yaxis()
        left.grid(False, axis="y")
        left.set(xlabel="milliseconds a step")
        left.set_title("A training step, by kind of layer", fontsize=11)
        left.legend(fontsize=8.5, ncols=4, loc="upper center", bbox_to_anchor=(0.5, -0.2))
        seen = [kind for kind in (*KINDS, REST) if found.seconds(fast, kind) > 0]
        times = [found.seconds(slow, kind) / found.seconds(fast, kind) for kind in seen]
        bars = right.barh(seen, times, 0.6, color=[COLOURS[kind] for kind in seen])
        right.bar_label(bars, [f" {value:.2f}" for value in times], fontsize=9)
        right.axvline(1, color="black", lw=1, ls="--", marker="")
        right.margins(x=0.16)
        right.invert_yaxis()
        right.grid(False, axis="y")
        right.set_title(f"Times as fast in {fast}", fontsize=11)
    return figure, comparison_sentence(found)


def comparison_sentence(found: Measured) -> str:
    slow, fast = found.dtypes
    whole = {d: sum(found.seconds(d, kind) for kind in (*KINDS, REST)) for d in (slow, fast)}
    share = found.seconds(slow, "convolution") / whole[slow]
    gained = found.seconds(slow, "convolution") - found.seconds(fast, "convolution")
    saved = whole[slow] - whole[fast]
    told = (
        f"Convolutions are {100 * share:.0f} % of the step in {slow}; in {fast} they take"
        f" {difference(gained)}, and the whole step {difference(saved)}."
    )
    if share < 1:
        told += f" Were they free, the step would be {1 / (1 - share):.1f} times as fast."
    return told


def difference(gained: float) -> str:
    """Seconds that were gained, in words."""
    return f"{1000 * abs(gained):,.0f} ms {'less' if gained >= 0 else 'more'}"


def bounds(device: Device, net: Network, size: int, batch: int) -> tuple[Figure, str]:
    """The least time per image of a device in its two precisions, by kind of layer."""
    from matplotlib.figure import Figure

    slow, fast = device.peaks
    found = {dtype: bound(device, net, size, batch, dtype) for dtype in (slow, fast)}
    with plot.style():
        figure = Figure(figsize=(10.5, 2.9))
        axes = figure.subplots()
        start = np.zeros(2)
        for kind in KINDS:
            values = np.array([1000 * found[dtype][kind] for dtype in (slow, fast)])
            axes.barh([slow, fast], values, 0.6, left=start, color=COLOURS[kind], label=kind,
                      edgecolor="white", lw=0.6)  # fmt: skip
            start += values
        axes.invert_yaxis()
        axes.grid(False, axis="y")
        axes.set(xlabel="milliseconds an image, at least")
        axes.set_title(
            f"{device.name}: the least time for {net.name} at {size} pixels", fontsize=11
        )
        axes.legend(fontsize=8.5, ncols=6, loc="upper center", bbox_to_anchor=(0.5, -0.28))
    total = {dtype: sum(parts.values()) for dtype, parts in found.items()}
    return figure, (
        f"At least {1000 * total[slow]:.2f} ms an image in {slow}, which is {1 / total[slow]:,.0f}"
        f" images per second at most, and {1000 * total[fast]:.2f} ms in {fast},"
        f" {1 / total[fast]:,.0f} at most: {total[slow] / total[fast]:.1f} times as fast, where the"
        f" arithmetic alone would be {device.peaks[fast] / device.peaks[slow]:.1f} times."
    )
