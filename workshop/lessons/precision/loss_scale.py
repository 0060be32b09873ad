"""Figures of notebook 06 about the loss scale: its rule in a simulation, and in a real run.

Each function returns a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50lib import optim
from rn50lib.tools import plot
from workshop.lessons.figures import BLUE, ORANGE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIMIT = 65504.0  # the largest float16


@dataclass(frozen=True)
class Simulated:
    """Scales before each step, and whether the step's gradients overflowed."""

    scales: np.ndarray
    skipped: np.ndarray


def simulate(peaks: Sequence[float] | np.ndarray, start: float, growth_steps: int) -> Simulated:
    """The library's rule over steps whose largest gradient, unscaled, is `peaks`: a step overflows
    where that times the scale is beyond float16."""
    scale, good = start, 0
    scales, skipped = [], []
    for peak in peaks:
        finite = peak * scale <= LIMIT
        scales.append(scale)
        skipped.append(not finite)
        scale, good = optim.loss_scale_update(scale, good, finite, growth_steps)
    return Simulated(np.array(scales), np.array(skipped))


def largest_gradients(steps: int, seed: int = 0) -> np.ndarray:
    """A made-up course of the largest gradient of each step: it falls by a factor of 30 as training
    settles, jumps about by half, and in two places leaps up."""
    rng = np.random.default_rng(seed)
    course = (
        4.0 * np.exp(-3.4 * np.arange(steps) / steps) * np.exp(0.4 * rng.standard_normal(steps))
    )
    course[[steps // 3, 3 * steps // 4]] *= 40
    return course


def rule(start: int, growth_steps: int, steps: int = 400) -> tuple[Figure, str]:
    """The rule at work on made-up gradients: the scale, and how near to the limit they come.

    `start` is the power of two of the first scale.
    """
    from matplotlib.figure import Figure

    peaks = largest_gradients(steps)
    found = simulate(peaks, 2.0**start, growth_steps)
    at = np.arange(steps)
    with plot.style():
        figure = Figure(figsize=(10.5, 4.4))
        top, low = figure.subplots(2, 1, sharex=True, height_ratios=(1.1, 1))
        top.step(at, np.log2(found.scales), where="post", color=BLUE, marker="")
        top.plot(at[found.skipped], np.log2(found.scales[found.skipped]), "X", ms=7, color=ORANGE,
                 label="overflow: the step is skipped, the scale halves")  # fmt: skip
        top.set(ylabel="loss scale,\npower of two", ylim=(5, 25))
        top.set_title("The dynamic loss scale (the gradients below are made up)", fontsize=11)
        top.legend(fontsize=9, loc="lower right")
        low.plot(at, peaks * found.scales, "o", ms=2.5, color=BLUE)
        low.plot(at[found.skipped], (peaks * found.scales)[found.skipped], "X", ms=7, color=ORANGE)
        low.axhline(LIMIT, color="black", ls="--", lw=1.2, marker="")
        low.text(steps, LIMIT * 1.3, "65,504, the largest float16", ha="right", fontsize=9)
        low.set(yscale="log", ylabel="largest scaled\ngradient", xlabel="step", ylim=(1e-1, 1e9))
    count = int(found.skipped.sum())
    return figure, (
        f"From 2^{start}, doubling after {growth_steps} good steps: {count} of {steps} steps are"
        f" skipped, {100 * count / steps:.1f} %; the scale ends at 2^{np.log2(found.scales[-1]):g}."
    )


def scaled_runs(runs: dict[str, tuple[list[dict[str, Any]], dict[str, Any]]]) -> tuple[Figure, str]:
    """Loss and loss scale of real runs, over their steps. `runs`: name to (progress, report)."""
    from matplotlib.figure import Figure

    told = []
    with plot.style():
        figure = Figure(figsize=(10.5, 3.5))
        left, right = figure.subplots(1, 2)
        for place, (name, (progress, report)) in enumerate(runs.items()):
            lines = [line for line in progress if line["phase"] == "train"]
            at = [line["epoch"] * line["steps"] + line["step"] for line in lines]
            style = {"color": plot.COLOURS[place], "marker": plot.MARKERS[place], "ms": 4}
            left.plot(at, [number(line.get("loss")) for line in lines], label=name, **style)
            scales = [line.get("loss_scale") for line in lines]
            if any(scales):
                right.step(
                    at, np.log2([number(s) for s in scales]), where="post", label=name, **style
                )
            found = report["env"].get("loss_scale")
            updates = max(at, default=0)
            if found:
                told.append(
                    f"{name}: {found['skipped_updates']} of {updates} updates skipped, the scale"
                    f" ends at {found['scale']:,.0f}"
                )
        left.set(title="Training loss", xlabel="step", ylabel="cross-entropy")
        right.set(title="Loss scale", xlabel="step", ylabel="power of two")
        left.legend(fontsize=9)
        if right.has_data():
            right.legend(fontsize=9)
    return figure, "; ".join(told) + "."


def number(value: float | None) -> float:
    return float("nan") if value is None else float(value)


def own_runs(runs: dict[str, tuple[Sequence[float], Sequence[float]]]) -> tuple[Figure, str]:
    """Loss and loss scale of the learner's own loops. `runs`: name to (losses, scales) by step;
    the scales have one more, the last, and a scale that falls tells of an update left out."""
    from matplotlib.figure import Figure

    told = []
    with plot.style():
        figure = Figure(figsize=(10.5, 3.7))
        left, right = figure.subplots(1, 2)
        for place, (name, (losses, scales)) in enumerate(runs.items()):
            at, powers = np.arange(1, len(losses) + 1), np.round(np.log2(scales[:-1]))
            style = {"color": plot.COLOURS[place], "marker": plot.MARKERS[place], "ms": 4}
            left.plot(at, losses, label=name, **style)
            right.step(at, powers, where="post", label=name, **style)
            skipped = int(np.sum(np.diff(scales) < 0))
            told.append(
                f"{name}: loss {losses[0]:.2f} to {losses[-1]:.2f} in {len(losses)} steps,"
                f" of whose updates {skipped or 'none'} {'was' if skipped < 2 else 'were'} left out"
            )
        left.set(title="Training loss", xlabel="step", ylabel="cross-entropy")
        right.set(title="Loss scale", xlabel="step", ylabel="power of two")
        for axes in (left, right):
            axes.xaxis.get_major_locator().set_params(integer=True)
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure, ";\n".join(told) + "."
