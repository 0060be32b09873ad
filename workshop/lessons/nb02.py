"""The figure of exercise ex02.tune: SGD in a valley, 100 times steeper across than along."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rn50 import plot
from workshop import output
from workshop.checks.ex02 import STEPS, TARGET, valley

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw_valley(lr: float, momentum: float) -> tuple[Figure, str]:
    """Draw both distances over the steps; return the figure and a sentence on where they end."""
    from matplotlib.figure import Figure

    with np.errstate(over="ignore", invalid="ignore"):
        path = np.clip(np.nan_to_num(valley(lr, momentum), nan=1e9), 1e-9, 1e9)
    with plot.style():
        fig = Figure(figsize=(9, 3.4))
        axis = fig.subplots()
        along, across = "along the valley, curvature 1", "across it, curvature 100"
        axis.semilogy(path[:, 0], "ko-", markevery=5, label=along)
        axis.semilogy(path[:, 1], "s-", color=plot.FINDING, markevery=5, label=across)
        axis.axhline(TARGET, color="black", linestyle="--", marker="", label="target")
        axis.set(ylim=(1e-6, 1e2), xlabel="step", ylabel="distance from the bottom")
        axis.legend(loc="lower left")
        said = sentence(float(path[-1].max()))
        end = said.partition(";")[0]
        axis.set_title(f"{end}: learning rate {lr:g}, momentum {momentum:g}")
    return fig, said


def sentence(far: float) -> str:
    """Return where a path ends that is `far` from the bottom after its last step."""
    end = f"After {STEPS} steps the distance is {far:.1e}" if far < 1e6 else "It diverges"
    reached = "reached" if far <= TARGET else "not reached"
    return f"{end}; the target of {TARGET:g} is {reached}."


def explore_valley() -> None:
    """Show the figure with a control for each of the two settings."""
    from ipywidgets import FloatSlider

    output.explore(
        draw_valley,
        alt=lambda lr, momentum: (
            f"Two lines: the distance from the bottom over {STEPS} steps, along the valley and"
            f" across it, with learning rate {lr:g} and momentum {momentum:g}."
        ),
        lr=FloatSlider(value=0.02, min=0.001, max=0.04, step=0.001, readout_format=".3f"),
        momentum=FloatSlider(value=0.9, min=0.0, max=0.98, step=0.01),
    )
