"""The figure of a prediction: efficiency over the number of GPUs, and where a step's time goes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rn50 import plot
from rn50.scaling.model import PredictedStep

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GREY = "#5b6b7a"
PARTS = {  # of a step, with colour and pattern
    "compute_s": ("compute, as one GPU alone", plot.COLOURS[0], ""),
    "stragglers_s": ("waiting for the slowest", plot.COLOURS[4], ".."),
    "exposed_s": ("exchange that is not hidden", plot.COLOURS[1], "//"),
    "input_wait_s": ("waiting for images", plot.COLOURS[2], "xx"),
    "contention_s": ("sharing a host", plot.COLOURS[3], "\\\\"),
}


def prediction(steps: Sequence[PredictedStep], chosen: int | None = None) -> tuple[Figure, str]:
    """Efficiency, and the parts of a step, over the number of GPUs; `chosen` GPUs are marked."""
    from matplotlib.figure import Figure

    with plot.style():
        figure = Figure(figsize=(10.5, 3.9))
        left, right = figure.subplots(1, 2)
        efficiency(left, steps, chosen)
        parts(right, steps)
        figure.legend(*right.get_legend_handles_labels(), loc="outside lower center", ncols=5)
    marked = next((step for step in steps if step.gpus == chosen), steps[-1])
    return figure, (
        f"{marked.gpus} GPUs are predicted to train {marked.ips:,.0f} images per second, which is"
        f" {100 * marked.efficiency:.0f} % of perfect speed: a step takes"
        f" {1000 * marked.step_s:.0f} ms instead of {1000 * marked.compute_s:.0f}."
    )


def efficiency(axes: Axes, steps: Sequence[PredictedStep], chosen: int | None) -> None:
    at, share = [s.gpus for s in steps], [100 * s.efficiency for s in steps]
    axes.plot(at, share, color=plot.COLOURS[0], lw=1.8)
    axes.axhline(100, color=GREY, ls="--", lw=1.2, marker="")
    if chosen in at:
        axes.plot(chosen, share[at.index(chosen)], ls="", marker="*", ms=15, color=plot.COLOURS[1])
    axes.set_xscale("log", base=2)
    axes.set_xticks(at, [str(n) for n in at], rotation=45 if len(at) > 8 else 0)
    axes.minorticks_off()
    axes.set(
        title="Weak scaling, predicted", xlabel="GPUs", ylabel="efficiency, per cent", ylim=(0, 106)
    )


def parts(axes: Axes, steps: Sequence[PredictedStep]) -> None:
    at = range(len(steps))
    bottom = [0.0] * len(steps)
    for name, (label, colour, hatch) in PARTS.items():
        heights = [1000 * getattr(step, name) for step in steps]
        if any(heights):
            axes.bar(at, heights, bottom=bottom, label=label, color=colour, hatch=hatch, ec="white")
            bottom = [low + height for low, height in zip(bottom, heights, strict=True)]
    axes.set_xticks(at, [str(step.gpus) for step in steps], rotation=45 if len(steps) > 8 else 0)
    axes.set(title="Where a step's time goes", xlabel="GPUs", ylabel="milliseconds")
    axes.grid(axis="x", visible=False)
