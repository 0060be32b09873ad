"""Figures of notebook 06 about the loss scale: its rule in a simulation, and in a real run.

Each function returns a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50 import plot
from rn50lib import optim
from workshop.lessons.figures import BLUE, ORANGE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LIMIT = 65504.0  # the largest float16


def simulate(
    peaks: Sequence[float] | np.ndarray, start: float, growth_steps: int
) -> tuple[np.ndarray, np.ndarray]:
    """(scale before each step, whether the step overflows) by the library's rule over steps whose
    largest gradient, unscaled, is `peaks`: times the scale it may not be beyond float16."""
    scale, good = start, 0
    scales, skipped = [], []
    for peak in peaks:
        finite = peak * scale <= LIMIT
        scales.append(scale)
        skipped.append(not finite)
        scale, good = optim.loss_scale_update(scale, good, finite, growth_steps)
    return np.array(scales), np.array(skipped)


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
    scales, skipped = simulate(peaks, 2.0**start, growth_steps)
    at = np.arange(steps)
    with plot.style():
        figure = Figure(figsize=(10.5, 4.4))
        top, low = figure.subplots(2, 1, sharex=True, height_ratios=(1.1, 1))
        top.step(at, np.log2(scales), where="post", color=BLUE, marker="")
        top.plot(at[skipped], np.log2(scales[skipped]), "X", ms=7, color=ORANGE,
                 label="overflow: the step is skipped, the scale halves")  # fmt: skip
        top.set(ylabel="loss scale,\npower of two", ylim=(5, 25))
        top.set_title("The dynamic loss scale (the gradients below are made up)", fontsize=11)
        top.legend(fontsize=9, loc="lower right")
        low.plot(at, peaks * scales, "o", ms=2.5, color=BLUE)
        low.plot(at[skipped], (peaks * scales)[skipped], "X", ms=7, color=ORANGE)
        low.axhline(LIMIT, color="black", ls="--", lw=1.2, marker="")
        low.text(steps, LIMIT * 1.3, "65,504, the largest float16", ha="right", fontsize=9)
        low.set(yscale="log", ylabel="largest scaled\ngradient", xlabel="step", ylim=(1e-1, 1e9))
    count = int(skipped.sum())
    return figure, (
        f"From 2^{start}, doubling after {growth_steps} good steps: {count} of {steps} steps are"
        f" skipped, {100 * count / steps:.1f} %; the scale ends at 2^{np.log2(scales[-1]):g}."
    )


Curve = tuple[Sequence[float], Sequence[float], Sequence[float]]  # steps, losses, loss scales


def curves(runs: Mapping[str, Curve]) -> Figure:
    """Loss and loss scale of runs by name, over their steps."""
    from matplotlib.figure import Figure

    with plot.style():
        figure = Figure(figsize=(10.5, 3.7))
        left, right = figure.subplots(1, 2)
        for name, (at, losses, scales) in runs.items():
            left.plot(at, losses, label=name, ms=4)
            right.step(at, np.log2(scales), where="post", ms=4)
        left.set(title="Training loss", xlabel="step", ylabel="cross-entropy")
        right.set(title="Loss scale", xlabel="step", ylabel="power of two")
        for axes in (left, right):
            axes.xaxis.get_major_locator().set_params(integer=True)
        figure.legend(*left.get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


def scaled_run(progress: Sequence[dict[str, Any]], report: dict[str, Any]) -> tuple[Figure, str]:
    """Loss and loss scale of a run of the library, from its progress and its report."""
    lines = [line for line in progress if line["phase"] == "train"]
    at = [line["epoch"] * line["steps"] + line["step"] for line in lines]
    losses, scales = (
        [np.nan if line.get(key) is None else line[key] for line in lines]
        for key in ("loss", "loss_scale")
    )
    found = report["env"]["loss_scale"]
    return curves({"your rule": (at, losses, scales)}), (
        f"your rule: {found['skipped_updates']} of {max(at)} updates skipped, the scale ends at"
        f" {found['scale']:,.0f}."
    )


def own_runs(runs: dict[str, tuple[Sequence[float], Sequence[float]]]) -> tuple[Figure, str]:
    """Loss and loss scale of the learner's own loops. `runs`: name to (losses, scales) by step;
    the scales have one more, the last, and a scale that falls tells of an update left out. The
    loss at the end is the mean of the last five."""
    told = []
    for name, (losses, scales) in runs.items():
        skipped = int(np.sum(np.diff(scales) < 0))
        left_out = f"{skipped or 'none'} {'was' if skipped < 2 else 'were'} left out"
        told.append(
            f"{name}: loss {losses[0]:.2f} -> {np.mean(losses[-5:]):.2f} in {len(losses)} steps,"
            f" of whose updates {left_out}"
        )
    # a scale that backs off by a hair is drawn where it began
    drawn: dict[str, Curve] = {
        name: (range(1, len(losses) + 1), losses, np.exp2(np.round(np.log2(scales[:-1]))).tolist())
        for name, (losses, scales) in runs.items()
    }
    return curves(drawn), ";\n".join(told) + "."
