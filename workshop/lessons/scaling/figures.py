"""What notebook 08 draws: a cold start, speed by batch, curves of training, a predicted step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rn50 import plot
from rn50.compare import Side
from rn50.scaling import PredictedStep
from workshop.lessons.figures import BLUE, GREEN, GREY, ORANGE
from workshop.lessons.scaling import sweeps

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PARTS = {  # of a step, with colour and pattern
    "compute_s": ("compute, as one GPU alone", plot.COLOURS[0], ""),
    "stragglers_s": ("waiting for the slowest", plot.COLOURS[4], ".."),
    "exposed_s": ("exchange that is not hidden", plot.COLOURS[1], "//"),
    "input_wait_s": ("waiting for images", plot.COLOURS[2], "xx"),
    "contention_s": ("sharing a host", plot.COLOURS[3], "\\\\"),
}


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


def prediction(steps: Sequence[PredictedStep]) -> tuple[Figure, str]:
    """Draw the efficiency and the parts of a step over the number of GPUs; the last one counts."""
    from matplotlib.figure import Figure

    at, labels = range(len(steps)), [str(step.gpus) for step in steps]
    share, last = [100 * step.efficiency for step in steps], steps[-1]
    with plot.style():
        figure = Figure(figsize=(10.5, 3.9))
        left, right = figure.subplots(1, 2)
        left.plot(at, share, color=plot.COLOURS[0], lw=1.8)
        left.axhline(100, color=GREY, ls="--", lw=1.2, marker="")
        left.plot(at[-1], share[-1], ls="", marker="*", ms=15, color=plot.COLOURS[1])
        left.set(title="Weak scaling, predicted", ylabel="efficiency, per cent", ylim=(0, 106))
        bottom = np.zeros(len(steps))
        for name, (label, colour, hatch) in PARTS.items():
            heights = np.array([1000 * getattr(step, name) for step in steps])
            if heights.any():
                style = {"label": label, "color": colour, "hatch": hatch, "ec": "white"}
                right.bar(at, heights, bottom=bottom, **style)
                bottom += heights
        right.set(title="Where a step's time goes", ylabel="milliseconds")
        right.grid(axis="x", visible=False)
        for axes in (left, right):
            axes.set_xticks(at, labels, rotation=45 if len(steps) > 8 else 0)
            axes.set_xlabel("GPUs")
        figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    return figure, (
        f"{last.gpus} GPUs are predicted to train {last.ips:,.0f} images per second, which is"
        f" {100 * last.efficiency:.0f} % of perfect speed: a step takes {1000 * last.step_s:.0f} ms"
        f" instead of {1000 * last.compute_s:.0f}."
    )
