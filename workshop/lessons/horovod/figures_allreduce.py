"""What an all-reduce costs, drawn from `rn50 doctor --allreduce`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rn50lib.comm import measure
from rn50lib.tools import plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def cost(
    *found: measure.Measured, gradients: int | None = None, dtype: str = "float32"
) -> tuple[Figure, str]:
    """Time against size, a colour per measurement, with the fitted lines; and bus bandwidth.

    `gradients` marks the size of a model's gradients in bytes.
    """
    from matplotlib.figure import Figure

    with plot.style():
        figure = Figure(figsize=(11, 3.9))
        left, right = figure.subplots(1, 2)
        for i, one in enumerate(found):
            colour, marker = plot.COLOURS[i], plot.MARKERS[i]
            sizes, seconds = np.array(one.sizes), np.array(one.seconds)
            label = f"{one.comm}, {one.n} workers"
            left.plot(sizes, 1000 * seconds, ls="", ms=6, color=colour, marker=marker, label=label)
            along = np.geomspace(sizes.min(), sizes.max(), 100)
            line = 1000 * (one.latency_s + along / one.bytes_per_s)
            left.plot(along, line, color=colour, marker="", lw=1.4)
            bus = measure.bus_bandwidth(one.n, 1, 1) * sizes / seconds / 1e9
            right.plot(sizes, bus, color=colour, marker=marker, ms=5, label=label)
        if gradients:
            for axes in (left, right):
                axes.axvline(gradients, color="0.35", ls=":", lw=1.3, marker="")
            left.text(
                gradients, 0.03, f"gradients, {dtype} ", fontsize=8.5, rotation=90, ha="right",
                va="bottom", color="0.25", transform=left.get_xaxis_transform(),
            )  # fmt: skip
        left.set(title="Time of an all-reduce", ylabel="milliseconds", yscale="log")
        right.set(title="Bus bandwidth", ylabel="GB/s", yscale="log")
        for axes in (left, right):
            axes.set(xscale="log", xlabel="size")
            ticks = [2**10, 2**15, 2**20, 2**25]
            axes.set_xticks(ticks, [measure.named(size) for size in ticks])
            axes.set_xticks([], minor=True)
        left.legend(fontsize=9)
    return figure, " ".join(measure.sentence(one) for one in found)
