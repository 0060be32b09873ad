"""Figures of notebook 05 about speed: loaders beside a device, who waits for whom, the queue.

Each function returns a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from rn50lib.tools import plot
from workshop.lessons.dali import prefetching
from workshop.lessons.dali.loader_turns import MODEL, Turns
from workshop.lessons.tfrecord.figures_input import BLUE, GREEN, GREY, ORANGE, short

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# -- loaders ---------------------------------------------------------------------------------------


def loaders(measured: Turns, device: float) -> tuple[Figure, str]:
    """Bars of the loaders alone and of the model, with a dot per round and the device's speed as a
    line; beside them how busy each loader keeps a device of that speed."""
    from matplotlib.figure import Figure

    rows: dict[str, list[float]] = dict(measured.alone)
    if measured.model:
        rows = {f"{MODEL}, alone": measured.model, **rows}
    with plot.style():
        figure = Figure(figsize=(10.5, 0.55 * len(rows) + 1.6))
        left, right = figure.subplots(1, 2, sharey=True, width_ratios=(1.5, 1))
        top = max(max(max(values) for values in rows.values()), device)
        for place, (name, values) in enumerate(rows.items()):
            is_model = name not in measured.alone
            colour, hatch = (GREY, "//") if is_model else (BLUE, "")
            left.barh(place, median(values), 0.6, color=colour, hatch=hatch)
            left.plot(values, [place] * len(values), "o", ms=4.5, mfc="white", mec="black", ls="")
            left.text(top * 1.08, place, short(median(values)), va="center")
            if not is_model:
                share = 100 * measured.in_front(name) / device
                right.barh(place, share, 0.6, color=GREEN)
                right.text(103, place, f"{share:.0f} %", va="center")
        left.axvline(device, color=ORANGE, ls="--", lw=2, marker="")
        left.set_title(f"Images per second; the line is {device:,.1f}", fontsize=11)
        left.set(xlim=(0, top * 1.3), xlabel="a dot per round, the bar is their median")
        right.set_title("Paced device at work, per cent", fontsize=11)
        right.set(xlim=(0, 120), xlabel=f"paced at {device:,.1f} img/s")
        left.set_yticks(range(len(rows)), list(rows))
        left.invert_yaxis()
        for axes in (left, right):
            axes.grid(False, axis="y")
    return figure, loaders_sentence(measured, device)


def loaders_sentence(measured: Turns, device: float) -> str:
    """The fastest loader beside the device and the model, in words."""
    best = max(measured.alone, key=measured.rate)
    share = 100 * measured.in_front(best) / device
    text = (
        f"{best} is the fastest here, with {short(measured.rate(best))} images per second alone; a"
        f" device paced at {device:,.1f} works {share:.0f} % of the time behind it."
    )
    if measured.model:
        model = median(measured.model)
        text += (
            f" This machine's own model takes {short(model)} images per second,"
            f" {measured.rate(best) / model:.1f} times fewer than this loader gives."
        )
    return text


def who_waits(
    per_core: Mapping[str, float], loader: str, cores: int, device: float, devices: int
) -> tuple[Figure, str]:
    """What loaders deliver with a number of cores, and what devices of one speed ask for."""
    from matplotlib.figure import Figure

    wanted, given = device * devices, per_core[loader] * cores
    need = wanted / per_core[loader]
    most = 1.25 * max(cores, wanted / min(per_core.values()))
    with plot.style():
        figure = Figure(figsize=(10.5, 3.6))
        axes = figure.subplots()
        for i, (name, rate) in enumerate(per_core.items()):
            axes.plot(
                [0, most], [0, rate * most], marker="", lw=2.8 if name == loader else 1.2,
                ls=("-", "--", "-.", ":")[i % 4], label=f"{name}, {short(rate)} per core",
            )  # fmt: skip
        axes.axhline(wanted, color="black", ls="--", marker="", lw=1.5)
        axes.text(0.01 * most, wanted * 1.02, f"the devices take {short(wanted)}", va="bottom")
        axes.plot(cores, given, "X", ms=11, color="black", label="your choice")
        if given < wanted:
            axes.vlines(cores, given, wanted, color=ORANGE, lw=3, label="missing")
        axes.set(
            title="Images per second that cores deliver and devices take", xlim=(0, most),
            xlabel="cores for the input", ylim=(0, 1.3 * max(wanted, given)),
        )  # fmt: skip
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
        axes.legend(loc="lower right", fontsize=9)
    text = (
        f"{cores} {'core delivers' if cores == 1 else 'cores deliver'} {short(given)} images per"
        f" second with {loader}, the devices take {short(wanted)}: "
    )
    if given < wanted:
        return figure, text + (
            f"they work {100 * given / wanted:.0f} % of the time and wait for the rest. They need"
            f" {need:.1f} cores."
        )
    return figure, text + (
        f"the input waits for them {100 - 100 * wanted / given:.0f} % of the time, and"
        f" {need:.1f} cores would do."
    )


# -- the queue -------------------------------------------------------------------------------------


def queue(depth: int, jitter: float, speed: float, seed: int = 0) -> tuple[Figure, str]:
    """The ready batches over time, and the device's share of work by the depth of the queue."""
    from matplotlib.figure import Figure

    loading = prefetching.loader_times(speed, jitter, seed)
    plays = {d: prefetching.play(loading, d) for d in range(9)}
    this = plays[depth]
    times = np.linspace(0, 60, 1200)
    with plot.style():
        figure = Figure(figsize=(10.5, 3.3))
        left, right = figure.subplots(1, 2, width_ratios=(1.6, 1))
        left.step(times, this.waiting(times), where="post", marker="", color=BLUE)
        idle = np.searchsorted(this.taken, times, "right") == np.searchsorted(
            this.done, times, "right"
        )
        left.fill_between(
            times, 0, 1, where=idle, transform=left.get_xaxis_transform(), color=ORANGE, alpha=0.35,
            step="post", label="the device waits", lw=0,
        )  # fmt: skip
        left.set(
            title="Ready batches in the queue", xlabel="time, in batches of the device",
            ylim=(0, max(depth, 1) + 0.9), xlim=(0, 60),
        )  # fmt: skip
        left.yaxis.get_major_locator().set_params(integer=True)
        left.legend(loc="upper right")
        right.plot(list(plays), [100 * p.share for p in plays.values()], color=BLUE)
        right.plot(depth, 100 * this.share, "X", ms=11, color="black", label="your choice")
        right.axhline(100 * min(1.0, speed), color=ORANGE, ls="--", marker="")
        right.set(
            title="The device's work by depth", xlabel="batches made ahead", ylim=(0, 105),
            ylabel="device at work, per cent",
        )  # fmt: skip
        right.legend(loc="lower right")
    return figure, (
        f"With {depth} {'batch' if depth == 1 else 'batches'} made ahead the device works"
        f" {100 * this.share:.0f} % of the time; no queue lifts it over"
        f" {100 * min(1.0, speed):.0f} %."
    )
