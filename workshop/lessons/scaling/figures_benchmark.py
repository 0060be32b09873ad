"""Figures of notebook 08 on benchmarks: what a rate is made of, and how it is made to look better.

Each function returns a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rn50lib.metrics import harmonic_mean
from rn50lib.tools import plot
from rn50lib.tools.sides import Side
from workshop.lessons.scaling import sweeps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PINK = plot.COLOURS[:4]
GREY = "#5b6b7a"


def cold_start(seconds: Sequence[float], batch: int) -> tuple[Figure, str]:
    """Milliseconds of each of a process's first steps, and the rate with and without the first."""
    from matplotlib.figure import Figure

    settled = float(np.median(seconds[len(seconds) // 2 :]))
    slow = [s > 1.25 * settled for s in seconds]
    with plot.style():
        figure = Figure(figsize=(10.5, 3.2))
        axes = figure.subplots()
        at = np.arange(1, len(seconds) + 1)
        bars = axes.bar(at, [1000 * s for s in seconds], color=BLUE, width=0.7)
        for bar, late in zip(bars, slow, strict=True):
            if late:
                bar.set(facecolor=ORANGE, hatch="//", edgecolor="white")
        axes.axhline(1000 * settled, color=GREY, ls="--", lw=1.3, marker="",
                     label=f"median of the second half: {1000 * settled:.0f} ms")  # fmt: skip
        axes.set(title="The first steps of a process (hatched: over 1.25 times the median)",
                 xlabel="step", ylabel="milliseconds")  # fmt: skip
        axes.grid(axis="x", visible=False)
        axes.legend()
    every = batch * len(seconds) / sum(seconds)
    later = seconds[len(seconds) // 2 :]
    warm = batch * len(later) / sum(later)
    return figure, (
        f"The first step takes {seconds[0] / settled:.1f} times as long as a later one. Over all"
        f" {len(seconds)} steps the rate is {every:.1f} images per second, over the second half"
        f" {warm:.1f}: without a warm-up this short benchmark would be"
        f" {abs(100 * (every / warm - 1)):.0f} % too {'low' if every < warm else 'high'}."
    )


def one_cell(rates: Sequence[float], title: str) -> tuple[Figure, str]:
    """Every iteration of a cell as a rate, in the order they came, and four ways to name them."""
    from matplotlib.figure import Figure

    found = sweeps.means(rates)
    with plot.style():
        figure = Figure(figsize=(10.5, 3.2))
        axes = figure.subplots()
        axes.plot(range(1, len(rates) + 1), rates, ls="", ms=7, color=GREY, label="an iteration")
        lines = zip(found.items(), (BLUE, ORANGE, GREEN, PINK), ("-", "--", ":", "-."), strict=True)
        for (name, value), colour, dashes in lines:
            axes.axhline(value, color=colour, ls=dashes, lw=1.8, marker="",
                         label=f"{name}: {value:.1f}")  # fmt: skip
        axes.set(title=title, xlabel="iteration", ylabel="images per second")
        axes.xaxis.get_major_locator().set_params(integer=True)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    harmonic = found["harmonic mean"]
    arithmetic, best = (found[name] / harmonic - 1 for name in ("arithmetic mean", "best"))
    return figure, (
        f"{len(rates)} iterations: all images over all seconds are {harmonic:.1f} images a second,"
        f" the harmonic mean. The arithmetic mean is {100 * arithmetic:.1f} % higher, the best"
        f" iteration {100 * best:.0f} %."
    )


def best_of(rates: Sequence[float], tries: int) -> tuple[Figure, str]:
    """How the best of several measurements grows with their number, on one unchanged machine."""
    from matplotlib.figure import Figure

    harmonic = harmonic_mean(list(rates))
    at = np.arange(1, max(30, tries) + 1)
    gain = [100 * (sweeps.expected_best(rates, int(n)) / harmonic - 1) for n in at]
    with plot.style():
        figure = Figure(figsize=(10.5, 3.2))
        axes = figure.subplots()
        axes.plot(at, gain, color=BLUE, lw=2, marker="")
        axes.plot(tries, gain[tries - 1], ls="", marker="*", ms=15, color=ORANGE)
        axes.axhline(0, color=GREY, ls="--", lw=1.2, marker="")
        axes.set(title="“Best of n” on the same machine", xlabel="n, measurements made",
                 ylabel="over the harmonic mean, per cent")  # fmt: skip
    return figure, (
        f"The best of {tries} is expected to be {gain[tries - 1]:.1f} % above the harmonic mean, a"
        f" single measurement {gain[0]:.1f} %: no code has changed, only the patience."
    )


def by_batch(sides: Sequence[Side], key: str = sweeps.VAL) -> tuple[Figure, str]:
    """A rate of one worker over the batch, and the speed-up at equal batches."""
    from matplotlib.figure import Figure

    first, second = sides
    with plot.style():
        figure = Figure(figsize=(10.5, 3.6))
        left, right = figure.subplots(1, 2)
        for side, colour, mark in zip(sides, (BLUE, ORANGE), ("o", "s"), strict=True):
            points = sorted(
                (b, r) for (k, n, b), r in side.rates.items() if (k, n) == (key, 1) and r
            )
            left.plot(*zip(*points, strict=True), color=colour, marker=mark, ms=6, label=side.name)
        rows, _ = sweeps.batch_table(sides, key)
        both = [(row[0], row[-1]) for row in rows if row[-1] is not None]
        right.plot(*zip(*both, strict=True), color=GREEN, marker="^", ms=7)
        for axes, title, unit in (
            (left, "Speed by batch, one worker", "images per second"),
            (right, f"{first.name} over {second.name}", "times, at equal batches"),
        ):
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.set(title=title, xlabel="batch", ylabel=unit)
            axes.set_ylim(bottom=0)
        left.legend()
    batch, equal, best = sweeps.equal_and_best(first, second, key)
    return figure, (
        f"At batch {batch}, which both have, {first.name} is {equal:.2f} times as fast as"
        f" {second.name}; with each one's best batch it is {best:.2f} times."
    )


def weak_and_strong(side: Side, workers: int) -> tuple[Figure, str]:
    """The speed-up of several workers over one: each with the batch of one, or sharing it."""
    from matplotlib.figure import Figure

    batches = sorted({b for k, n, b in side.rates if k == sweeps.TRAIN and n == 1})
    weak = {b: side.weak_scaling(sweeps.TRAIN, workers, b) for b in batches}
    shared = {b: many / one for b, one, many in sweeps.strong(side, workers)}
    with plot.style():
        figure = Figure(figsize=(10.5, 3.2))
        axes = figure.subplots()
        at = np.arange(len(batches))
        for shift, values, label, colour, hatch in (
            (-0.2, weak, "weak: every worker has this batch", BLUE, ""),
            (0.2, shared, "strong: the workers share this batch", ORANGE, "//"),
        ):
            heights = [values.get(b) or 0 for b in batches]
            bars = axes.bar(at + shift, heights, 0.38, color=colour, hatch=hatch, ec="white",
                            label=label)  # fmt: skip
            words = [f"{h:.2f}" if h else "not measured" for h in heights]
            axes.bar_label(bars, words, fontsize=9)
        axes.axhline(workers, color=GREY, ls="--", lw=1.3, marker="", label="perfect")
        axes.set_xticks(at, [str(b) for b in batches])
        axes.set(title=f"{workers} workers against one", xlabel="images in a step of one worker",
                 ylabel="times as fast", ylim=(0, 1.18 * workers))  # fmt: skip
        axes.grid(axis="x", visible=False)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    told = [f"weak {weak[b]:.2f}" for b in batches[-1:] if weak[b]]
    told += [f"strong {shared[b]:.2f}" for b in batches[-1:] if b in shared]
    return figure, (
        f"{workers} workers against one at a batch of {batches[-1]}: {', '.join(told)} times as"
        " fast."
    )


def curves(reports: Mapping[str, dict]) -> tuple[Figure, str]:
    """`rn50 plot`'s figure of reports by name, and where they end."""
    ends = []
    for name, report in reports.items():
        metrics = report["metrics"]
        ends.append(
            f"{name}: training loss {metrics['train.loss'][-1]:.2f}, training top-1"
            f" {metrics['train.top1'][-1]:.1f} %, validation top-1 {metrics['val.top1'][-1]:.1f} %"
        )
    return plot.curves(dict(reports)), "After the last epoch " + "; ".join(ends) + "."
