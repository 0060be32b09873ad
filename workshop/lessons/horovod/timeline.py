"""Figures of a training step with its communication, from Horovod's timeline.

Each function returns a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rn50lib.errors import UserError
from rn50lib.timeline import (
    ALLREDUCE,
    COMPUTE,
    COPY,
    NEGOTIATION,
    PARTS,
    Exchange,
    Step,
    groups,
    mean_parts,
    union,
)
from rn50lib.tools import plot

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LOOKS: dict[str, dict[str, Any]] = {  # a pattern beside each colour
    COMPUTE: {"facecolor": plot.COLOURS[0], "hatch": ""},
    NEGOTIATION: {"facecolor": plot.COLOURS[4], "hatch": "..."},
    COPY: {"facecolor": plot.COLOURS[3], "hatch": "\\\\\\"},
    ALLREDUCE: {"facecolor": plot.COLOURS[1], "hatch": "///"},
}
TITLES = {
    COMPUTE: "computation",
    NEGOTIATION: "negotiation and waiting",
    COPY: "copies into and out of the fusion buffer",
    ALLREDUCE: "all-reduce",
}
MOST_ROWS = 8  # groups of tensors with a row of their own


def steps(found: Sequence[Step], first: int = 0, count: int = 1) -> tuple[Figure, str]:
    """`count` steps from the one at `first` in three lanes: computation, the groups of tensors
    that were exchanged together, and what the exchange did.

    Raises UserError where the timeline shows no such step.
    """
    from matplotlib.figure import Figure

    shown = list(found[first : first + count])
    if not shown:
        raise UserError(f"the timeline shows {len(found)} whole steps; there is no step {first}")
    zero = shown[0].begin
    rows = min(MOST_ROWS, max(len(groups(step)) for step in shown))
    with plot.style():
        figure = Figure(figsize=(11, 2.6 + 0.3 * rows))
        axes = figure.subplots()
        for step in shown:
            draw_step(axes, step, zero, shown[-1].end, rows, label=len(shown) == 1)
        ticks = [rows + 2, *range(rows + 1, 1, -1), 0.5]
        names = [f"tensors, group {i + 1}" for i in range(rows)]
        if max(len(groups(step)) for step in shown) > rows:
            names[-1] = "all further tensors"
        axes.set_yticks(ticks, ["computation", *names, "communication"])
        what = "A training step" if len(shown) == 1 else f"{len(shown)} training steps"
        axes.set(
            title=f"{what} with the exchange of gradients, rank 0",
            xlabel="milliseconds",
            xlim=(0, 1000 * (shown[-1].end - zero)),
            ylim=(-0.1, rows + 2.6),
        )
        axes.grid(axis="y", visible=False)
        legend(axes)
    return figure, step_sentence(shown)


def draw_step(axes: Axes, step: Step, left: float, right: float, rows: int, label: bool) -> None:
    """One step's bars in a figure that goes from time `left` to `right`."""
    bar(axes, COMPUTE, [(step.begin, step.wait)], left, rows + 1.75, 0.5)
    axes.axvline(1000 * (step.wait - left), color="0.3", ls=":", lw=1.2, marker="")
    axes.axvline(1000 * (step.end - left), color="0.3", ls="-", lw=1.0, marker="")
    for i, group in enumerate(groups(step)):
        row = rows + 1 - min(i, rows - 1)
        asked = min(exchange.asked for exchange in group)
        begin = min(exchange.begin for exchange in group)
        end = max(exchange.end for exchange in group)
        bar(axes, NEGOTIATION, [(asked, begin)], left, row - 0.2, 0.4)
        bar(axes, ALLREDUCE, [(begin, end)], left, row - 0.2, 0.4)
        if label and (i < rows - 1 or len(groups(step)) <= rows):
            before = end - left > 0.8 * (right - left)
            axes.text(
                1000 * ((asked if before else end) - left), row,
                f"  {len(group)} tensors, {size(sum(x.bytes for x in group))}  ",
                fontsize=8, va="center", ha="right" if before else "left",
            )  # fmt: skip
    for part, spans in all_spans(step.exchanges).items():
        bar(axes, part, union(spans, step.begin, step.end), left, 0.15, 0.7)


def all_spans(exchanges: Sequence[Exchange]) -> dict[str, list[tuple[float, float]]]:
    """When each part of the exchange went on, over all tensors; a later one is drawn on top."""
    return {
        NEGOTIATION: [(x.asked, x.end) for x in exchanges],
        COPY: [span for x in exchanges for span in x.copies],
        ALLREDUCE: [span for x in exchanges for span in x.reduces],
    }


def bar(
    axes: Axes,
    part: str,
    spans: Sequence[tuple[float, float]],
    zero: float,
    bottom: float,
    height: float,
) -> None:
    """Bars from `begin` to `end` in milliseconds."""
    bars = [(1000 * (a - zero), 1000 * (b - a)) for a, b in spans]
    axes.broken_barh(bars, (bottom, height), edgecolor="white", linewidth=0.3, **LOOKS[part])


def legend(axes: Axes) -> None:
    """What the colours mean, under the axes."""
    from matplotlib.patches import Patch

    patches = [Patch(label=TITLES[part], edgecolor="white", **LOOKS[part]) for part in PARTS]
    axes.legend(
        handles=patches, fontsize=8.5, loc="upper center", bbox_to_anchor=(0.45, -0.22), ncols=4
    )


def step_sentence(shown: Sequence[Step]) -> str:
    step = shown[0]
    together = groups(step)
    exposed = step.end - step.wait
    hidden = sum(step.hidden.values())
    words = (
        f"This step took {1000 * step.seconds:.0f} ms: {1000 * (step.wait - step.begin):.0f} ms of"
        f" computation and {1000 * exposed:.0f} ms in which it only waited for the exchange. Its"
        f" {len(step.exchanges)} tensors went in {len(together)} group(s);"
    )
    if hidden > 0:
        share = 100 * hidden / (hidden + exposed)
        return f"{words} {share:.0f} % of the exchange is hidden beneath the backward pass."
    return f"{words} nothing of the exchange is hidden: it began when the computation was over."


def table(found: Sequence[Step]) -> tuple[list[list[Any]], list[str]]:
    """(rows, columns): each part with what is exposed and what is hidden, milliseconds a step."""
    mean = mean_parts(found)
    total = sum(mean[part] for part in PARTS)
    rows: list[list[Any]] = []
    for part in PARTS:
        hidden = None
        if part != COMPUTE:
            hidden = 1000 * sum(step.hidden[part] for step in found) / len(found)
        rows.append([TITLES[part], 1000 * mean[part], 100 * mean[part] / total, hidden])
    rows.append(["together", 1000 * total, 100.0, 1000 * mean["hidden"]])
    return rows, ["part", "ms of the step", "% of the step", "ms hidden beneath computation"]


def size(count: int) -> str:
    """Bytes for people."""
    for unit, value in (("MB", 1e6), ("kB", 1e3)):
        if count >= value:
            return f"{count / value:.3g} {unit}"
    return f"{count} B"
