"""Figures of notebook 04: feeding and computing over time, stages of the input, who reads what.

Each function returns a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50lib.tools import plot
from workshop.lessons.tfrecord import input_order
from workshop.lessons.tfrecord.input_stages import Measured

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN = plot.COLOURS[:3]
GREY = "#5b6b7a"
BATCHES = 5  # shown over time


# -- feeding and computing over time ---------------------------------------------------------------


def busy_share(device_ips: float, input_ips: float, overlap: bool) -> float:
    """The share of time in which the device works, 0 to 1."""
    device, feeding = 1 / device_ips, 1 / input_ips
    return device / max(device, feeding) if overlap else device / (device + feeding)


def over_time(
    device_ips: float, input_ips: float, overlap: bool, batch: int = 32
) -> tuple[Figure, str]:
    """Who works when, for a few batches, and the share of time in which devices would be busy."""
    from matplotlib.figure import Figure

    device, feeding = 1000 * batch / device_ips, 1000 * batch / input_ips  # ms a batch
    with plot.style():
        figure = Figure(figsize=(10.5, 3.4))
        left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
        end = draw_turns(left, device, feeding, overlap)
        left.set(title="Who works when", xlabel="milliseconds", xlim=(0, end), ylim=(-0.5, 1.9))
        left.set_yticks((0, 1), ("device", "input"))
        left.grid(False, axis="y")
        speeds = np.logspace(1, 4.3, 80)
        for way, line in ((False, "-"), (True, "--")):
            shares = [100 * busy_share(float(speed), input_ips, way) for speed in speeds]
            name = "overlapping" if way else "in turn"
            right.plot(speeds, shares, line, marker="", label=name, color=BLUE if way else ORANGE)
        share = busy_share(device_ips, input_ips, overlap)
        right.plot(device_ips, 100 * share, "X", ms=10, color="black", label="this device")
        right.set(
            title="A faster device waits more", xscale="log", ylim=(0, 105),
            xlabel="images per second of the device", ylabel="device at work, per cent",
        )  # fmt: skip
        right.legend(loc="lower left")
    together = share * device_ips
    return figure, (
        f"A batch of {batch} takes the input {feeding:,.0f} ms and the device {device:,.1f} ms. "
        f"{'Overlapping' if overlap else 'In turn'}, that is {together:,.0f} images per second, and"
        f" the device works {100 * share:.0f} % of the time."
    )


def draw_turns(axes: Axes, device: float, feeding: float, overlap: bool) -> float:
    """Bars for a few batches; returns the time at which the last one ends, ms."""
    fed = worked = 0.0  # when the input, and the device, are done with their last batch
    for number in range(BATCHES):
        begin = fed if overlap else max(fed, worked)
        fed = begin + feeding
        start = max(fed, worked)
        worked = start + device
        for row, at, width, colour, hatch in (
            (1, begin, feeding, ORANGE, "//"),
            (0, start, device, BLUE, ""),
        ):
            axes.barh(row, width, 0.62, left=at, color=colour, hatch=hatch, edgecolor="white")
            if width > 0.045 * BATCHES * (device + feeding):
                box = {"facecolor": colour, "edgecolor": "none", "pad": 1.5}
                axes.text(
                    at + width / 2, row, str(number + 1), bbox=box, color="white", ha="center",
                    va="center", fontweight="bold",
                )  # fmt: skip
    return worked


# -- stages ----------------------------------------------------------------------------------------


def stages(measured: Measured, ceiling: float | None, device: str) -> tuple[Figure, str]:
    """A bar per variant of the input with its rounds as dots, the device's speed as a line, and the
    share of time in which the device worked."""
    from matplotlib.figure import Figure

    names = measured.variants
    rates = [measured.rate(name) for name in names]
    with plot.style():
        figure = Figure(figsize=(10.5, 0.55 * len(names) + 1.6))
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.5, 1))
        for place, name in enumerate(names):
            colour = GREY if place == 0 else BLUE
            left.barh(place, rates[place], 0.6, color=colour, hatch="//" if place == 0 else "")
            dots = measured.rates[name]
            left.plot(dots, [place] * len(dots), "o", ms=4.5, mfc="white", mec="black", ls="")
            right.barh(place, measured.share(name), 0.6, color=GREEN)
        top = max([*(rate for row in measured.rates.values() for rate in row), ceiling or 0])
        for place, rate in enumerate(rates):
            left.text(top * 1.08, place, short(rate), va="center")
            share = measured.share(names[place])
            right.text(103, place, f"{share:.0f} %", va="center")
        if ceiling is not None:
            left.axvline(ceiling, color=ORANGE, ls="--", lw=2, marker="")
            left.set_title(f"Images per second; the line is {ceiling:,.1f}", fontsize=11)
        else:
            left.set_title("Images per second", fontsize=11)
        right.set_title("Device at work, per cent", fontsize=11)
        left.set(xlim=(0, top * 1.3), xlabel="a dot per round, the bar is their median")
        right.set(xlim=(0, 120), xlabel=device)
        right.set_xticks((0, 25, 50, 75, 100))
        left.set_yticks(range(len(names)), names)
        left.invert_yaxis()
        for axes in (left, right):
            axes.grid(False, axis="y")
    return figure, stages_sentence(measured, device)


def stages_sentence(measured: Measured, device: str) -> str:
    """From the first variant to the last one, in words."""
    first, last = measured.variants[0], measured.variants[-1]
    gains = measured.ratios(last, first)
    return (
        f"{device}: from {short(measured.rate(first))} images per second with {first} to"
        f" {short(measured.rate(last))} with all stages, {np.median(gains):.2f} times as many (from"
        f" {min(gains):.2f} to {max(gains):.2f} in {measured.rounds} rounds); the device works"
        f" {measured.share(first):.0f} % and then {measured.share(last):.0f} % of the time."
    )


def short(rate: float) -> str:
    """A rate in as many digits as it is worth."""
    return f"{rate:,.0f}" if rate >= 100 else f"{rate:.1f}"


def bottleneck(measured: Measured) -> str:
    """What the time of the loop goes into with all stages."""
    share = measured.share(measured.variants[-1])
    if share >= 95:
        return f"The device works {share:.0f} % of the time: the input is not the bottleneck."
    if share >= 80:
        return f"The device works {share:.0f} % of the time: the input is nearly fast enough."
    return f"The device works {share:.0f} % of the time: the input is still the bottleneck."


# -- who reads what --------------------------------------------------------------------------------


def who_reads(
    labels: np.ndarray,
    classes: int,
    shards: int,
    workers: int,
    buffer: int,
    batch: int = 32,
    seed: int = 0,
) -> tuple[Figure, str]:
    """Which rank reads which part of the shards, and what rank 0's first batches then look like.

    `labels` are those of the records as they stand in the shards, laid end to end.
    """
    from matplotlib.figure import Figure

    rank_of = input_order.owners(len(labels), shards, workers)
    order = input_order.read_by(len(labels), shards, workers, 0, buffer, seed)
    got = labels[order]
    shown = got[: 8 * batch]
    held = input_order.classes_in_batches(got, batch)
    with plot.style():
        figure = Figure(figsize=(10.5, 4.4))
        top, middle, low = figure.subplots(3, 1, height_ratios=(1, 1, 1.5))
        strip(top, rank_of % len(plot.COLOURS), len(plot.COLOURS) - 1, plot.COLOURS)
        top.set_title(f"{shards} shards laid end to end, by the rank that reads them", fontsize=11)
        edges = np.cumsum(input_order.cut(len(labels), shards))[:-1]
        for edge in edges if shards <= 64 else ():
            top.axvline(edge - 0.5, color="white", lw=1.2, marker="")
        for rank in range(workers):
            centre = float(np.flatnonzero(rank_of == rank).mean())
            top.text(centre, 0, str(rank), ha="center", va="center", color="white",
                     fontweight="bold")  # fmt: skip
        strip(middle, shown, classes - 1, "cividis")
        middle.set_title(
            f"Classes of rank 0's first {len(shown)} pictures, {batch} a batch", fontsize=11
        )
        for edge in range(batch, len(shown), batch):
            middle.axvline(edge - 0.5, color="white", lw=1.6, marker="")
        low.bar(range(1, len(held) + 1), held, color=BLUE)
        low.axhline(classes, color=ORANGE, ls="--", marker="")
        low.set(ylim=(0, classes * 1.15), ylabel="classes", xlabel=f"batch of rank 0, {batch} each")
        low.set_title(f"Classes in a batch; there are {classes}", fontsize=11)
        low.xaxis.get_major_locator().set_params(integer=True)
    total = len(labels) // workers
    text = f"Rank 0 reads {len(order):,} of {len(labels):,} records, and no other rank reads them. "
    if not len(held):
        return figure, text + f"They do not fill a batch of {batch}."
    return figure, text + (
        f"With a buffer of {min(buffer, total):,}, its batches hold {held.min()} to {held.max()} of"
        f" {classes} classes, {held.mean():.1f} on average."
    )


def strip(axes: Axes, values: np.ndarray, largest: int, colours: str | Sequence[str]) -> None:
    """A row of colours, of a colour map or of a list."""
    from matplotlib.colors import ListedColormap

    chosen = colours if isinstance(colours, str) else ListedColormap(list(colours))
    axes.imshow(
        np.asarray(values)[None], aspect="auto", cmap=chosen, vmin=0, vmax=max(1, largest),
        interpolation="nearest",
    )  # fmt: skip
    axes.grid(False)
    axes.set_yticks([])
    axes.set_xticks([])


def buffers(
    labels: np.ndarray, classes: int, sizes: tuple[int, ...], batch: int, seed: int = 0
) -> tuple[Figure, dict[int, np.ndarray]]:
    """The classes of the first batches behind shuffle buffers of several sizes, a row each; and how
    many classes each batch of the epoch holds, by size."""
    from matplotlib.figure import Figure

    held = {}
    with plot.style():
        figure = Figure(figsize=(10.5, 0.85 * len(sizes) + 0.6))
        rows = figure.subplots(len(sizes), 1, squeeze=False)[:, 0]
        for axes, size in zip(rows, sizes, strict=True):
            got = input_order.shuffle_buffer(labels, size, seed)
            held[size] = input_order.classes_in_batches(got, batch)
            strip(axes, got[: 12 * batch], classes - 1, "cividis")
            for edge in range(batch, 12 * batch, batch):
                axes.axvline(edge - 0.5, color="white", lw=1.4, marker="")
            name = "no shuffle" if size == 1 else f"a buffer of {size:,}"
            axes.set_title(f"{name}: {held[size].mean():.1f} classes in a batch", fontsize=11)
        rows[-1].set_xlabel(f"the first 12 batches of {batch}; the shade is the class")
    return figure, held


def kilobytes(rows: Mapping[str, tuple[float, float]]) -> tuple[Figure, str]:
    """Kilobytes a picture and pictures per second and core, a pair of bars per way to store it."""
    from matplotlib.figure import Figure

    with plot.style():
        figure = Figure(figsize=(10.5, 0.5 * len(rows) + 1.3))
        pair: Any = figure.subplots(1, 2, sharey=True)
        for axes, column, title, colour in (
            (pair[0], 0, "Kilobytes a picture", BLUE),
            (pair[1], 1, "Pictures a second on one core", GREEN),
        ):
            values = [row[column] for row in rows.values()]
            bars = axes.barh(list(rows), values, 0.6, color=colour)
            axes.bar_label(bars, [f" {value:,.0f}" for value in values])
            axes.margins(x=0.18)
            axes.grid(False)
            axes.set_title(title, fontsize=11)
        pair[0].invert_yaxis()
    told = [
        f"{name}: {kb:,.0f} KB and {ips:,.0f} pictures a second" for name, (kb, ips) in rows.items()
    ]
    return figure, "; ".join(told) + "."
