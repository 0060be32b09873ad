"""The figure of `rn50 compare`: speed over workers or batches, and weak scaling."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from rn50lib.errors import UserError
from rn50lib.tools import plot
from rn50lib.tools.sides import RATES, Side

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WORDS = {"train.total_ips": "training", "val.total_ips": "inference"}
Line = tuple[str, list[tuple[int, float]]]  # what it holds fixed, and its points


def rates(sides: Sequence[Side]) -> Figure:
    """Speed over workers, weak scaling, and speed over batches, for each metric as far as there is
    something to draw. Raises UserError where no side has a speed."""
    from matplotlib.figure import Figure

    panels = [
        (key, axis)
        for key in RATES
        for axis in ("workers", "efficiency", "batch")
        if worth(sides, key, axis)
    ]
    if not panels:
        names = ", ".join(side.name for side in sides)
        raise UserError(f"--output: no speed in {names} to draw; `rn50 plot` draws their curves")
    columns = 2 if len(panels) == 4 else min(len(panels), 3)
    rows = -(-len(panels) // columns)
    with plot.style():
        figure = Figure(figsize=(max(7.0, 4.6 * columns), 3.6 * rows))
        grid = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes, (key, axis) in zip(grid, panels, strict=False):
            draw(axes, sides, key, axis)
        for axes in grid[len(panels) :]:
            axes.remove()
        handles = dict[str, object]()
        for axes in figure.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=3)
    return figure


def worth(sides: Sequence[Side], key: str, axis: str) -> bool:
    """Whether a panel shows more than a point: or, by batch, all there is of a metric."""
    points = {x for side in sides for _, line in lines(side, key, axis) for x, _ in line}
    several = {cell[1] for side in sides for cell in side.rates if cell[0] == key}
    return len(points) > 1 or (axis == "batch" and len(points) == 1 and len(several) == 1)


def lines(side: Side, key: str, axis: str) -> list[Line]:
    """A side's lines in a panel: one per batch, or over the batches those of the fewest workers."""
    cells = {cell: rate for cell, rate in side.rates.items() if cell[0] == key and rate}
    if not cells:
        return []
    if axis == "batch":
        n = min(cell[1] for cell in cells)
        return [(f"n {n}", sorted((c[2], rate) for c, rate in cells.items() if c[1] == n))]
    found = []
    for batch in sorted({cell[2] for cell in cells}):
        here = sorted((c[1], rate) for c, rate in cells.items() if c[2] == batch)
        if axis == "efficiency":
            weak = [(n, side.weak_scaling(key, n, batch)) for n, _ in here]
            here = [(n, 100 * times / n) for n, times in weak if times]
            if len(here) < 2:
                continue
        found.append((f"batch {batch}", here))
    return found


def draw(axes: Axes, sides: Sequence[Side], key: str, axis: str) -> None:
    """One panel; a side keeps its colour and marker in all, a line is named at its end."""
    ticks: set[int] = set()
    for i, side in enumerate(sides):
        for name, points in lines(side, key, axis):
            ticks |= {x for x, _ in points}
            axes.plot(*zip(*points, strict=True), label=side.name, color=plot.COLOURS[i % 7],
                      marker=plot.MARKERS[i % 7], ms=6)  # fmt: skip
            if axis == "workers" and len(points) > 1:
                axes.annotate(name, points[-1], (-4, 5), textcoords="offset points", fontsize=8,
                              ha="right")  # fmt: skip
    axes.set_xscale("log", base=2)
    shown = apart(sorted(ticks))
    axes.set_xticks(shown, [str(x) for x in shown])
    axes.minorticks_off()
    if axis == "efficiency":
        axes.set(title=f"Weak scaling, {WORDS[key]}", xlabel="workers", ylim=(0, 106),
                 ylabel="per cent of perfect speed")  # fmt: skip
    else:
        told = f"Speed by {axis}, {WORDS[key]}"
        axes.set(title=told, ylabel="images per second",
                 xlabel="workers" if axis == "workers" else "batch per worker")  # fmt: skip
        axes.set_ylim(bottom=0)


def apart(ticks: list[int]) -> list[int]:
    """Those ticks whose labels do not run into the one before, on an axis of powers of two."""
    least = (math.log2(ticks[-1]) - math.log2(ticks[0])) / 12
    kept: list[int] = []
    for tick in ticks:
        if not kept or math.log2(tick) - math.log2(kept[-1]) >= least:
            kept.append(tick)
    return kept
