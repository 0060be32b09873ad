"""The ring all-reduce, step by step: simulated on real numbers, and drawn.

Each of N workers has a gradient, cut into N chunks, and talks to its right-hand neighbour only. In
N - 1 steps of scatter-reduce the chunks travel and are added up; then every worker has one chunk
that is complete, and N - 1 steps of all-gather carry those around.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rn50 import plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SCATTER_REDUCE, ALL_GATHER = "scatter-reduce", "all-gather"
GRADIENTS_MB = 102  # of ResNet-50 in float32


def phase(step: int, workers: int) -> str:
    """What step `step` (counted from 1) of 2 (N - 1) belongs to."""
    return SCATTER_REDUCE if step < workers else ALL_GATHER


def all_reduce(gradients: np.ndarray) -> list[np.ndarray]:
    """The gradients of all workers (workers, elements) after 0, 1, ... 2 (N - 1) steps. In each
    step all workers send one chunk at once."""
    workers, elements = gradients.shape
    edges = np.linspace(0, elements, workers + 1).astype(int)  # chunks may differ by one element
    states = [gradients.copy()]
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
        states.append(after)
    return states


def contributions(workers: int) -> np.ndarray:
    """Whose gradient is in which chunk, by the simulation: bool, (steps + 1, worker, chunk, whose).

    Worker k's gradient is 2 to the power of k, so that a sum tells what it is made of.
    """
    own = np.repeat(2 ** np.arange(workers, dtype=np.int64)[:, None], workers, axis=1)
    bits = np.stack(all_reduce(own))[..., None] >> np.arange(workers)
    return (bits & 1).astype(bool)


def after_step(workers: int, step: int) -> tuple[Figure, str]:
    """What every worker holds after `step` steps: whose parts are in each chunk, and a frame around
    those that have just arrived. A step beyond the last shows the end."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    step = min(step, 2 * (workers - 1))
    held = contributions(workers)
    now, arrived = held[step], (held[step] != held[max(0, step - 1)]).any(axis=2)
    with plot.style():
        figure = Figure(figsize=(10.5, 1.6 + 0.5 * workers))
        axes = figure.subplots()
        axes.imshow(now.sum(axis=2), cmap="Blues", vmin=0, vmax=2 * workers, aspect="auto")
        for worker, chunk in np.ndindex(workers, workers):
            whose = "+".join(map(str, np.flatnonzero(now[worker, chunk])))
            text = "sum" if now[worker, chunk].all() else whose
            axes.text(chunk, worker, text, ha="center", va="center", fontsize=9)
            if arrived[worker, chunk]:
                corner = (chunk - 0.47, worker - 0.45)
                axes.add_patch(Rectangle(corner, 0.94, 0.9, fill=False, lw=2.4))
        axes.set_yticks(range(workers), [f"worker {w}" for w in range(workers)])
        axes.set_xticks(range(workers), [f"chunk {c}" for c in range(workers)])
        axes.grid(False)
        axes.set_title(title(step, workers), loc="left")
        axes.set_xlabel("whose parts are in it; framed: has just arrived from the worker before")
    return figure, sentence(workers, step)


def title(step: int, workers: int) -> str:
    if step == 0:
        return "Before: every worker has its own gradient"
    words = phase(step, workers)
    what = "is added to one's own" if words == SCATTER_REDUCE else "replaces one's own"
    return f"After step {step} of {2 * (workers - 1)}, {words}: what arrives {what}"


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
