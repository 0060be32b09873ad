"""Figures of notebook 03 that show what runs measured: curves, mistakes, weak scaling.

Each function returns a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50lib.comm.measure import MB, Measured, sentence
from rn50lib.tools import plot
from workshop.lessons.horovod.scaling_sums import PARTS, Weak, efficiency, wanted_batch
from workshop.lessons.single_gpu.figures_run import by_place, readings

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN = plot.COLOURS[:3]
GREY = "#5b6b7a"
LOOKS = {  # a pattern beside each colour
    "alone": (BLUE, ""),
    "slower": (plot.COLOURS[5], ".."),
    "negotiation": (plot.COLOURS[4], "xx"),
    "copy": (plot.COLOURS[3], "\\\\"),
    "allreduce": (ORANGE, "//"),
    "exchange": (ORANGE, "//"),
    "rest": (GREY, "++"),
}
Lines = Sequence[dict[str, Any]]


# --- curves ---------------------------------------------------------------------------------------


def same_curve(one: Lines, many: Lines, workers: int, batch: int) -> tuple[Figure, str]:
    """The training loss of one worker, and of several that share its batch of `batch` images."""
    from matplotlib.figure import Figure

    with plot.style():
        figure = Figure(figsize=(10.5, 3.4))
        axes = figure.subplots()
        axes.plot(*readings(one), color=GREY, lw=2.4, marker="", label=f"1 worker × {batch}")
        label = f"{workers} workers × {batch // workers}"
        axes.plot(*readings(many), color=ORANGE, lw=1.2, ms=5, mfc="none", label=label)
        axes.set(
            title=f"The same global batch of {batch}", xlabel="progress, epochs",
            ylabel="training loss, nats",
        )  # fmt: skip
        axes.legend()
    here, there = by_place(one), by_place(many)
    both = [place for place in here if place in there]
    apart = [abs(here[place] - there[place]) for place in both]
    change = readings(one)[1]
    return figure, (
        f"At {len(both)} readings the losses differ by {np.mean(apart):.3f} on average, while"
        f" training changes the loss by {abs(change[0] - change[-1]):.2f}."
    )


def curves(runs: Mapping[str, Lines], title: str, rate: bool = False) -> tuple[Figure, str]:
    """Training loss over the epochs of several runs, by name; with `rate` the learning rate too."""
    from matplotlib.figure import Figure

    with plot.style():
        figure = Figure(figsize=(10.5, 3.9))
        panels = figure.subplots(1, 2 if rate else 1, squeeze=False)[0]
        for name, lines in runs.items():
            at, loss = readings(lines)
            panels[0].plot(at, loss, label=name, lw=1.6, markevery=max(1, len(at) // 8), ms=6)
            if rate:
                at, rates = rate_readings(lines)
                panels[1].plot(at, rates, lw=1.6, markevery=max(1, len(at) // 8), ms=6)
        panels[0].set(title=title, xlabel="progress, epochs", ylabel="training loss, nats")
        if rate:
            panels[1].set(title="The learning rate", xlabel="progress, epochs", ylabel="")
            panels[1].set_ylim(bottom=0)
        names = panels[0].get_legend_handles_labels()
        figure.legend(*names, loc="outside lower center", ncols=2 if len(runs) > 3 else 3)
    last = [f"{name} {last_loss(lines):.2f}" for name, lines in runs.items()]
    return figure, f"Mean training loss of the last epoch: {', '.join(last)}."


def rate_readings(lines: Lines) -> tuple[list[float], list[float]]:
    """Progress in epochs, and the learning rate there; the last reading of an epoch has none."""
    train = [line for line in lines if line["phase"] == "train" and line.get("lr") is not None]
    at = [line["epoch"] + line["step"] / line["steps"] for line in train]
    return at, [line["lr"] for line in train]


def last_loss(lines: Lines) -> float:
    """The mean training loss of the last epoch, nats."""
    return float([line["train.loss"] for line in lines if line["phase"] == "epoch"][-1])


# --- mistakes -------------------------------------------------------------------------------------


def who_reads_what(wrong: list[np.ndarray], right: list[np.ndarray]) -> tuple[Figure, str]:
    """Images of an epoch in the order of their number, coloured by how many ranks read them."""
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    count = 1 + max(int(rows.max()) for rows in (*wrong, *right))
    columns = min(100, count)
    lines = -(-count // columns)
    colours = ("#e6e9ec", BLUE, ORANGE)
    shares = []
    with plot.style():
        figure = Figure(figsize=(10.5, 2.9))
        both = figure.subplots(1, 2)
        for axes, rows, title in zip(both, (wrong, right), ("without", "with"), strict=True):
            times = np.zeros(lines * columns, int)
            for part in rows:
                times[np.unique(part)] += 1
            picture = np.minimum(times, 2).reshape(lines, columns)
            axes.imshow(
                picture, cmap=ListedColormap(colours), vmin=0, vmax=2, aspect="auto",
                interpolation="nearest",
            )  # fmt: skip
            shares.append(int((times[:count] > 0).sum()))
            axes.set_title(f"{title} a shard: {shares[-1]:,} of {count:,} images", fontsize=11)
            axes.set(xticks=[], yticks=[])
            axes.set_xlabel("the images of the epoch, row by row", fontsize=9)
            axes.grid(False)
        names = ("read by nobody", "read by one rank", "read by several")
        patches = [
            Patch(facecolor=c, edgecolor="0.6", label=n)
            for c, n in zip(colours, names, strict=True)
        ]
        figure.legend(handles=patches, loc="outside lower center", ncols=3)
    return figure, (
        f"Without a shard the ranks read {shares[0]:,} different images in this epoch, with one"
        f" {shares[1]:,}."
    )


# --- weak scaling ---------------------------------------------------------------------------------


def weak(found: Weak) -> tuple[Figure, str]:
    """The step of one worker above the step of many, in parts that add up to it."""
    from matplotlib.figure import Figure

    with plot.style():
        figure = Figure(figsize=(10.5, 2.9))
        axes = figure.subplots()
        colour, _ = LOOKS["alone"]
        axes.barh(1, 1000 * found.one, 0.55, color=colour, edgecolor="white")
        axes.text(1000 * found.one, 1, f" {1000 * found.one:.0f} ms", va="center")
        at = 0.0
        for part, seconds in found.parts.items():
            colour, hatch = LOOKS[part]
            width = 1000 * seconds
            axes.barh(0, max(0.0, width), 0.55, left=at, color=colour, hatch=hatch,
                      edgecolor="white", label=f"{PARTS[part]}: {width:.0f} ms")  # fmt: skip
            at += width
        end = max(at, 1000 * found.many)
        axes.text(end, 0, f" {1000 * found.many:.0f} ms", va="center")
        axes.set_yticks([1, 0], ["1 worker", f"{found.workers} workers"])
        axes.set(title=f"A step of {found.batch} images per worker", xlabel="milliseconds")
        axes.margins(x=0.12)
        axes.grid(axis="y", visible=False)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure, found.sentence()


def by_batch(found: Weak, batch: int, goal: float = 0.9) -> tuple[Figure, str]:
    """Weak-scaling efficiency over the batch per worker, if what is lost stays as it is."""
    from matplotlib.figure import Figure

    needed = wanted_batch(found.per_image, found.overhead, goal)
    top = max(256, 2 * batch, 2 * found.batch, int(1.4 * needed) if needed else 0)
    at = np.arange(1, top + 1)
    with plot.style():
        figure = Figure(figsize=(10.5, 3.4))
        axes = figure.subplots()
        share = [100 * efficiency(float(b), found.per_image, found.overhead) for b in at]
        axes.plot(at, share, lw=2, marker="", color=BLUE)
        axes.axhline(100 * goal, color=GREY, ls="--", lw=1.2, marker="")
        measured = 100 * found.efficiency
        axes.plot(found.batch, measured, ls="", marker="o", ms=9, color=ORANGE,
                  label=f"measured: {measured:.0f} % with {found.batch}")  # fmt: skip
        computed = 100 * efficiency(batch, found.per_image, found.overhead)
        axes.plot(batch, computed, ls="", marker="X", ms=10, color=GREEN,
                  label=f"computed: {computed:.0f} % with {batch}")  # fmt: skip
        axes.set(
            title="If the same time is lost at every step", xlabel="images per worker and step",
            ylabel="efficiency, per cent", ylim=(0, 104),
        )  # fmt: skip
        axes.legend(loc="lower right")
    return figure, batch_sentence(found, batch, goal)


def batch_sentence(found: Weak, batch: int, goal: float) -> str:
    """The arithmetic of the efficiency at a batch, and the batch that reaches the goal."""
    work, lost = 1000 * batch * found.per_image, 1000 * found.overhead
    if lost <= 0:
        return "Nothing is lost by these measurements, so every batch is as good as any other."
    share = 100 * efficiency(batch, found.per_image, found.overhead)
    needed = wanted_batch(found.per_image, found.overhead, goal)
    return (
        f"{batch} images take {work:.0f} ms, {lost:.0f} ms are lost: {work:.0f} / ({work:.0f} +"
        f" {lost:.0f}) = {share:.0f} %. For {100 * goal:.0f} % it takes {needed} images per worker."
    )


def explore_batch(found: Weak) -> None:
    """The efficiency with a slider for the batch."""
    import ipywidgets

    from workshop import output

    needed = wanted_batch(found.per_image, found.overhead, 0.9) or found.batch
    top = max(256, 2 * needed)

    def draw(batch: int) -> tuple[Figure, str]:
        return by_batch(found, batch)

    def alt(batch: int) -> str:
        return "Weak-scaling efficiency over the batch per worker. " + by_batch(found, batch)[1]

    slider = ipywidgets.IntSlider(needed, 1, top, description="batch per worker")
    output.explore(draw, alt, batch=slider)


def published(axes_rows: Sequence[Sequence[Any]], found: Weak | None) -> tuple[Figure, str]:
    """Efficiency by the number of workers: (workers, precision, img/s, efficiency) as published,
    and one's own beside them."""
    from matplotlib.figure import Figure

    with plot.style():
        figure = Figure(figsize=(10.5, 3.4))
        axes = figure.subplots()
        for precision in dict.fromkeys(row[1] for row in axes_rows):
            chosen = [row for row in axes_rows if row[1] == precision]
            axes.plot([r[0] for r in chosen], [100 * r[3] for r in chosen], lw=1.4, ms=7,
                      label=f"published, V100, {precision}")  # fmt: skip
        if found is not None:
            label = f"yours: {found.workers} workers × {found.batch} images"
            axes.plot(found.workers, 100 * found.efficiency, ls="", marker="*", ms=14,
                      color=GREEN, label=label)  # fmt: skip
        ideal(axes, axes_rows, found)
        axes.legend(loc="lower right")
    words = ", ".join(f"{100 * r[3]:.1f} % in {r[1]}" for r in axes_rows if r[0] == 8)
    own = f" Yours is {100 * found.efficiency:.0f} % with {found.workers}." if found else ""
    return figure, f"Published efficiency of 8 GPUs: {words}.{own}"


def ideal(axes: Axes, rows: Sequence[Sequence[Any]], found: Weak | None) -> None:
    counts = sorted({row[0] for row in rows} | ({found.workers} if found else set()))
    axes.axhline(100, color=GREY, ls="--", lw=1.2, marker="")
    axes.set_xticks(counts)
    axes.set(title="Weak scaling: the share of perfect speed", xlabel="workers",
             ylabel="efficiency, per cent", ylim=(0, 106))  # fmt: skip


# --- the all-reduce -------------------------------------------------------------------------------


def allreduce(measured: Measured) -> tuple[Figure, str]:
    """Milliseconds of an all-reduce over its size, and the line of latency and bandwidth."""
    from matplotlib.figure import Figure

    sizes = np.asarray(measured.sizes, float)
    with plot.style():
        figure = Figure(figsize=(10.5, 3.4))
        axes = figure.subplots()
        times = 1000 * np.asarray(measured.seconds)
        axes.plot(sizes / MB, times, ls="", ms=7, color=ORANGE, label="measured")
        at = np.geomspace(sizes.min(), sizes.max(), 60)
        fitted = [1000 * measured.predicted(size) for size in at]
        axes.plot(
            at / MB, fitted, marker="", lw=1.4, color=BLUE, label="latency + bytes / bandwidth"
        )
        axes.set(xscale="log", yscale="log", xlabel="size, MB", ylabel="milliseconds")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:g}")
            axis.set_minor_formatter("")
        axes.set_title(f"An all-reduce of {measured.n} workers over {measured.comm}")
        axes.legend()
    return figure, sentence(measured)
