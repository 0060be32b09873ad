"""Figures of a training step with its communication, from Horovod's timeline.

Each function returns a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rn50 import plot
from workshop.lessons.horovod.trace import (
    ALLREDUCE,
    COMPUTE,
    COPY,
    NEGOTIATION,
    PARTS,
    TimedStep,
    groups,
    mean_parts,
    union,
)

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


def step(shown: TimedStep) -> tuple[Figure, str]:
    """A step in three lanes: computation, the groups of tensors that were exchanged together, and
    what the exchange did."""
    from matplotlib.figure import Figure

    together = groups(shown)
    rows = min(MOST_ROWS, len(together))
    left, right = shown.begin, shown.end
    with plot.style():
        figure = Figure(figsize=(11, 2.6 + 0.3 * rows))
        axes = figure.subplots()
        bar(axes, COMPUTE, [(shown.begin, shown.wait)], left, rows + 1.75, 0.5)
        axes.axvline(1000 * (shown.wait - left), color="0.3", ls=":", lw=1.2, marker="")
        for i, group in enumerate(together):
            row = rows + 1 - min(i, rows - 1)
            announced = min(exchange.announced for exchange in group)
            begin = min(exchange.begin for exchange in group)
            end = max(exchange.end for exchange in group)
            bar(axes, NEGOTIATION, [(announced, begin)], left, row - 0.2, 0.4)
            bar(axes, ALLREDUCE, [(begin, end)], left, row - 0.2, 0.4)
            if i < rows - 1 or len(together) <= rows:
                before = end - left > 0.8 * (right - left)
                axes.text(
                    1000 * ((announced if before else end) - left), row,
                    f"  {len(group)} tensors, {size(sum(x.bytes for x in group))}  ",
                    fontsize=8, va="center", ha="right" if before else "left",
                )  # fmt: skip
        spans = {  # a later one is drawn on top
            NEGOTIATION: [(x.announced, x.end) for x in shown.exchanges],
            COPY: [span for x in shown.exchanges for span in x.copies],
            ALLREDUCE: [span for x in shown.exchanges for span in x.reduces],
        }
        for part, found in spans.items():
            bar(axes, part, union(found, left, right), left, 0.15, 0.7)
        names = [f"tensors, group {i + 1}" for i in range(rows)]
        if len(together) > rows:
            names[-1] = "all further tensors"
        ticks = [rows + 2, *range(rows + 1, 1, -1), 0.5]
        axes.set_yticks(ticks, ["computation", *names, "communication"])
        axes.set(
            title="A training step with the exchange of gradients, rank 0",
            xlabel="milliseconds",
            xlim=(0, 1000 * (right - left)),
            ylim=(-0.1, rows + 2.6),
        )
        axes.grid(axis="y", visible=False)
        legend(axes)
    return figure, sentence(shown)


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


def sentence(step: TimedStep) -> str:
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


def table(found: Sequence[TimedStep]) -> tuple[list[list[Any]], list[str]]:
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
