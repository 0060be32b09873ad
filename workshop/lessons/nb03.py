"""Notebook 03: the ring all-reduce, and how images and gradients reach the GPUs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from rn50 import plot
from workshop import output

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GRADIENTS_MB = 102.2  # of ResNet-50 in float32


def all_reduce(gradients: np.ndarray) -> list[np.ndarray]:
    """Return the gradients of all workers, (workers, elements), after 0, 1, ... 2 (N - 1) steps.

    Worker k sends one chunk to worker k + 1 in every step. In the first N - 1 steps, the
    reduce-scatter, the receiver adds it to its own; in the last N - 1, the all-gather, it keeps it.
    """
    workers, elements = gradients.shape
    edges = np.linspace(0, elements, workers + 1).astype(int)  # chunks may differ by one element
    states = [gradients.copy()]
    for step in range(2 * (workers - 1)):
        before, after = states[-1], states[-1].copy()
        for sender in range(workers):
            receiver = (sender + 1) % workers
            chunk = (sender - step) % workers  # each passes on what it got the step before
            part = slice(edges[chunk], edges[chunk + 1])
            after[receiver, part] = before[sender, part]
            if step < workers - 1:  # reduce-scatter
                after[receiver, part] += before[receiver, part]
        states.append(after)
    return states


def contributions(workers: int) -> np.ndarray:
    """Return whose gradient is in which chunk: bool, (steps + 1, worker, chunk, whose).

    Worker k's gradient is 2 to the power of k, so that the bits of a sum show what is in it.
    """
    own = np.repeat(2 ** np.arange(workers, dtype=np.int64)[:, None], workers, axis=1)
    bits = np.stack(all_reduce(own))[..., None] >> np.arange(workers)
    return (bits & 1).astype(bool)


def draw_ring(workers: int, step: int) -> tuple[Figure, str]:
    """Draw what every worker holds after `step` steps; a step beyond the last shows the end.

    A frame marks what has just arrived. Return the figure and how much has been sent.
    """
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    last = 2 * (workers - 1)
    step = min(step, last)
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
        half = "reduce-scatter" if step < workers else "all-gather"
        axes.set_title(f"After step {step} of {last}, {half}" if step else "Before", loc="left")
        axes.set_xlabel("whose gradients are in it; framed: just arrived from the previous worker")
    sent, complete = step * GRADIENTS_MB / workers, int(now.all(axis=2).sum(axis=1).min())
    return figure, (
        f"After {step} of {last} steps each worker has sent {sent:.4g} MB,"
        f" {step / workers:.3g} times the gradients of ResNet-50, and has at least {complete} of"
        f" {workers} chunks complete."
    )


def explore_ring() -> None:
    """Show the ring with controls for the number of workers and the step."""
    import ipywidgets

    output.explore(
        draw_ring,
        alt=lambda workers, step: f"Chunks of {workers} workers. {draw_ring(workers, step)[1]}",
        workers=ipywidgets.IntSlider(4, 2, 8),
        step=ipywidgets.IntSlider(3, 0, 14),
    )


def draw_phases() -> Figure:
    """Draw the two phases of a step on half a DGX-1: images over PCIe, gradients over NVLink."""
    from matplotlib.figure import Figure

    titles = ("1. Images come over PCIe", "2. Gradients go over NVLink")
    with plot.style():
        figure = Figure(figsize=(10.5, 3.8))
        for axes, title in zip(figure.subplots(1, 2), titles, strict=True):
            images = axes is figure.axes[0]
            box(axes, 1.5, 2.4, "CPU and memory", 3.0)
            box(axes, 0.5, 1.3, "PCIe switch")
            box(axes, 2.5, 1.3, "PCIe switch")
            for gpu in range(4):
                box(axes, gpu, 0.2, f"GPU {gpu}")
                switch = 0.5 if gpu < 2 else 2.5
                arrow(axes, (switch, 1.05), (gpu, 0.45), images, plot.COLOURS[0])
            for switch in (0.5, 2.5):
                arrow(axes, (switch, 2.15), (switch, 1.55), images, plot.COLOURS[0])
            for gpu in range(3):
                arrow(axes, (gpu + 0.36, 0.2), (gpu + 0.64, 0.2), not images, plot.COLOURS[1])
            bend = "arc3,rad=-0.22"  # from the last GPU back to the first
            arrow(axes, (3, -0.05), (0, -0.05), not images, plot.COLOURS[1], bend)
            axes.set(title=title, xlim=(-0.5, 3.5), ylim=(-0.75, 2.8))
            axes.axis("off")
    return figure


def box(axes: Any, x: float, y: float, text: str, width: float = 0.72) -> None:
    """Draw a labelled box with its centre at (x, y)."""
    from matplotlib.patches import Rectangle

    axes.add_patch(Rectangle((x - width / 2, y - 0.25), width, 0.5, fc="#e8edf2", ec="black"))
    axes.text(x, y, text, ha="center", va="center", fontsize=9)


def arrow(
    axes: Any, start: tuple[float, float], end: tuple[float, float], used: bool, colour: str,
    bend: str = "arc3",
) -> None:  # fmt: skip
    """Draw a link as a thick arrow if this phase uses it, as a thin grey line if not."""
    look = {
        "arrowstyle": "-|>" if used else "-",
        "connectionstyle": bend,
        "shrinkA": 0,
        "shrinkB": 0,
    }
    look |= {"color": colour, "lw": 3} if used else {"color": "#b0b7bf", "lw": 1}
    axes.annotate("", end, start, arrowprops=look)
