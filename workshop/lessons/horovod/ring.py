"""The ring all-reduce, step by step: simulated on real numbers, and drawn.

Each of N workers has a gradient, cut into N chunks, and talks to its right-hand neighbour only. In
N - 1 steps of scatter-reduce the chunks travel and are added up; then every worker has one chunk
that is complete, and N - 1 steps of all-gather carry those around.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50lib.tools import plot
from workshop.lessons.figures import GREY

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

SCATTER_REDUCE, ALL_GATHER = "scatter-reduce", "all-gather"
GRADIENTS_MB = 102  # of ResNet-50 in float32


@dataclass(frozen=True)
class Message:
    """One chunk on its way; `bytes` of it."""

    step: int
    sender: int
    receiver: int
    chunk: int
    bytes: int


def phase(step: int, workers: int) -> str:
    """What step `step` (counted from 1) of 2 (N - 1) belongs to."""
    return SCATTER_REDUCE if step < workers else ALL_GATHER


def all_reduce(gradients: np.ndarray) -> tuple[list[np.ndarray], list[Message]]:
    """The gradients of all workers (workers, elements) after 0, 1, ... 2 (N - 1) steps, and every
    message that was sent. In each step all workers send at once."""
    workers, elements = gradients.shape
    edges = np.linspace(0, elements, workers + 1).astype(int)  # chunks may differ by one element
    states, messages = [gradients.copy()], []
    for step in range(1, 2 * (workers - 1) + 1):
        before, after = states[-1], states[-1].copy()
        for sender in range(workers):
            receiver = (sender + 1) % workers
            chunk = (sender - step + 1) % workers  # each passes on what it got the step before
            part = slice(edges[chunk], edges[chunk + 1])
            if phase(step, workers) == SCATTER_REDUCE:
                after[receiver, part] = before[receiver, part] + before[sender, part]
            else:
                after[receiver, part] = before[sender, part]
            size = int(before[sender, part].nbytes)
            messages.append(Message(step, sender, receiver, chunk, size))
        states.append(after)
    return states, messages


def contributions(workers: int) -> tuple[np.ndarray, list[Message]]:
    """Whose gradient is in which chunk, by the simulation: bool, (steps + 1, worker, chunk, whose).

    Worker k's gradient is 2 to the power of k, so that a sum tells what it is made of.
    """
    own = np.repeat(2 ** np.arange(workers, dtype=np.int64)[:, None], workers, axis=1)
    states, messages = all_reduce(own)
    bits = np.stack(states)[..., None] >> np.arange(workers)
    return (bits & 1).astype(bool), messages


def after_step(workers: int, step: int) -> tuple[Figure, str]:
    """What every worker holds after `step` steps; a step beyond the last shows the end."""
    from matplotlib.figure import Figure

    step = min(step, 2 * (workers - 1))
    held, messages = contributions(workers)
    with plot.style():
        figure = Figure(figsize=(10.5, 1.6 + 0.62 * workers))
        axes = figure.subplots()
        draw(axes, held[step], [m for m in messages if m.step == step])
        axes.set_title(title(step, workers), loc="left")
        legend(figure, workers)
    return figure, sentence(workers, step)


def draw(axes: Axes, held: np.ndarray, messages: list[Message]) -> None:
    """A row per worker, a box per chunk, in it a stripe for each worker whose part is in it."""
    from matplotlib.patches import Rectangle

    workers = len(held)
    arrived = {(m.receiver, m.chunk) for m in messages}
    sent = {(m.sender, m.chunk) for m in messages}
    for worker in range(workers):
        top = workers - 1 - worker
        for chunk in range(workers):
            inside = held[worker, chunk]
            for k in np.flatnonzero(inside):
                look: dict[str, Any] = {"facecolor": plot.COLOURS[k % 7], "lw": 0}
                if k >= 7:
                    look["hatch"] = "//"
                axes.add_patch(
                    Rectangle((chunk + 0.06 + 0.88 * k / workers, top + 0.08), 0.88 / workers,
                              0.74, **look)
                )  # fmt: skip
            new = (worker, chunk) in arrived
            axes.add_patch(
                Rectangle(
                    (chunk + 0.06, top + 0.08), 0.88, 0.74, fill=False, zorder=4,
                    edgecolor="black" if new else GREY, lw=2.6 if new else 0.7,
                )
            )  # fmt: skip
            if (worker, chunk) in sent:
                axes.text(chunk + 0.97, top + 0.45, "↓", fontsize=12, ha="center", va="center")
            if inside.all():
                axes.text(
                    chunk + 0.5, top + 0.45, "sum", ha="center", va="center", fontsize=8,
                    zorder=5, bbox={"facecolor": "white", "edgecolor": "none", "pad": 1},
                )  # fmt: skip
    axes.set(xlim=(0, workers), ylim=(0, workers))
    axes.grid(False)
    axes.spines[:].set_visible(False)
    middle = np.arange(workers) + 0.5
    axes.set_yticks(middle[::-1] - 0.05, [f"worker {w}" for w in range(workers)])
    axes.set_xticks(middle, [f"chunk {c}" for c in range(workers)])
    axes.tick_params(length=0)


def title(step: int, workers: int) -> str:
    if step == 0:
        return "Before: every worker has its own gradient"
    words = phase(step, workers)
    what = "is added to" if words == SCATTER_REDUCE else "replaces"
    return (
        f"After step {step} of {2 * (workers - 1)}, {words}: what comes from the left-hand"
        f" neighbour {what} one's own"
    )


def legend(figure: Figure, workers: int) -> None:
    from matplotlib.patches import Patch

    patches = [
        Patch(facecolor=plot.COLOURS[k % 7], hatch="//" if k >= 7 else "", label=f"{k}'s part")
        for k in range(workers)
    ]
    patches.append(Patch(facecolor="white", edgecolor="black", lw=2, label="just arrived"))
    patches.append(Patch(alpha=0, label="↓ was sent to the next worker"))
    figure.legend(
        handles=patches, loc="outside lower center", ncols=min(workers + 2, 7), fontsize=8.5
    )


def sentence(workers: int, step: int) -> str:
    """How far it is, and what has been moved."""
    steps = 2 * (workers - 1)
    size = GRADIENTS_MB / workers  # megabytes of one chunk
    moved = step * size
    if step == 0:
        return (
            f"{workers} workers, {steps} steps: in each, every worker sends one chunk of"
            f" {size:.3g} MB (ResNet-50's gradients are {GRADIENTS_MB} MB) to its neighbour."
        )
    words = f"After {step} of {steps} steps every worker has sent {moved:.4g} MB"
    if step < workers - 1:
        return f"{words}; a chunk holds at most {step + 1} of {workers} parts."
    if step == workers - 1:
        return f"{words}; every worker has one complete chunk: the scatter-reduce is done."
    if step < steps:
        return f"{words} and has {step - workers + 2} of {workers} complete chunks."
    return (
        f"{words}, 2 ({workers} - 1) / {workers} = {steps / workers:.3g} times the gradients,"
        " and has the whole sum. It is less than twice the gradients for any number of workers."
    )


def explore() -> None:
    """The ring with its controls: the number of workers, and the step."""
    import ipywidgets

    from workshop import output

    def alt(workers: int, step: int) -> str:
        return f"Chunks of {workers} workers. " + after_step(workers, step)[1]

    widgets = output.explore(
        after_step,
        alt,
        workers=ipywidgets.IntSlider(4, 2, 8),
        step=ipywidgets.IntSlider(3, 0, 6),
    )

    def follow(change: Any) -> None:
        widgets["step"].max = 2 * (change["new"] - 1)

    widgets["workers"].observe(follow, names="value")
