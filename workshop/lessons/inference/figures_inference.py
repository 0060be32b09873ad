"""Figures of notebook 07: answers and how far to trust them, forms in pairs, speed by batch.

Each function returns a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from rn50lib.records.imageinfo import eight_bits
from rn50lib.tools import plot
from workshop.lessons.inference.inference_sums import line
from workshop.pairs import Pairs, median_interval

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

BLUE, ORANGE, GREEN, PURPLE = plot.COLOURS[:4]
GREY = "#5b6b7a"
EDGES = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)  # of the groups of answers by their probability


# -- answers ---------------------------------------------------------------------------------------


def answers(
    files: Sequence[Path], probabilities: np.ndarray, classes: Sequence[str]
) -> tuple[Figure, str]:
    """Pictures with their three likeliest classes; one named after a class is marked right or
    wrong. `probabilities` float32 (pictures, classes)."""
    from matplotlib.figure import Figure
    from PIL import Image

    told = []
    with plot.style():
        figure = Figure(figsize=(10.5, 3.1))
        grid = figure.subplots(2, len(files), squeeze=False, height_ratios=(1.7, 1))
        for (picture, bars), file, row in zip(grid.T, files, probabilities, strict=True):
            picture.axis("off")
            bars.axis("off")
            picture.imshow(np.asarray(eight_bits(Image.open(file)).convert("RGB")))
            said = classes[int(row.argmax())]
            known = file.stem in classes
            mark = "" if not known else "✓ " if said == file.stem else "✗ "
            colour = "black" if not known else GREEN if said == file.stem else ORANGE
            picture.set_title(f"{mark}{file.stem}", color=colour, fontsize=10, loc="center")
            draw_best(bars, row, classes, file.stem)
            told.append(f"{file.stem}: {said} with {100 * row.max():.0f} %")
    return figure, "; ".join(told) + "."


def draw_best(axes: Axes, row: np.ndarray, classes: Sequence[str], truth: str) -> None:
    """The three likeliest classes as bars, the likeliest on top, the truth in green."""
    for place, label in enumerate(np.argsort(-row, kind="stable")[:3]):
        value = float(row[label])
        inside = value > 0.6
        axes.barh(-place, value, 0.8, color=GREEN if classes[label] == truth else GREY)
        axes.text(
            0.02 if inside else value + 0.02, -place, f"{classes[label]} {100 * value:.0f} %",
            va="center", fontsize=8.5, color="white" if inside else "black",
        )  # fmt: skip
    axes.set(xlim=(0, 1), ylim=(-2.6, 0.6))


def groups(probabilities: np.ndarray, labels: np.ndarray) -> list[tuple[str, int, float, float]]:
    """(group, answers, mean probability, share that is right), by the probability of the answer;
    probabilities and shares in per cent. Groups without an answer are left out."""
    sure, right = probabilities.max(axis=1), probabilities.argmax(axis=1) == labels
    rows = []
    for low, high in zip(EDGES, EDGES[1:], strict=False):
        inside = (sure > low) & (sure <= high)
        if inside.any():
            name = f"{100 * low:.0f} to {100 * high:.0f} %"
            share = 100 * float(right[inside].mean())
            rows.append((name, int(inside.sum()), 100 * float(sure[inside].mean()), share))
    return rows


def trust(probabilities: np.ndarray, labels: np.ndarray) -> tuple[Figure, str]:
    """What the network claims, and how often it is right, for answers of like probability."""
    from matplotlib.figure import Figure

    rows = groups(probabilities, labels)
    names = [f"{name}\n{count:,} pictures" for name, count, _, _ in rows]
    places = np.arange(len(rows))
    with plot.style():
        figure = Figure(figsize=(10.5, 3.3))
        axes = figure.subplots()
        claimed = axes.bar(places - 0.2, [row[2] for row in rows], 0.36, color=GREY,
                           label="mean probability of the answer")  # fmt: skip
        right = axes.bar(places + 0.2, [row[3] for row in rows], 0.36, color=GREEN, hatch="//",
                         edgecolor="white", label="right answers")  # fmt: skip
        for bars in (claimed, right):
            axes.bar_label(bars, fmt="%.0f", fontsize=9)
        axes.set_xticks(places, names)
        axes.grid(False, axis="x")
        axes.set(title="May one believe the probabilities?", ylabel="per cent", ylim=(0, 108))
        axes.legend(loc="upper left")
    name, count, mean, share = rows[-1]
    return figure, (
        f"Of the {count:,} answers with a probability of {name}, {share:.0f} % are right; the"
        f" network claims {mean:.0f} % for them."
    )


# -- forms -----------------------------------------------------------------------------------------


def pairs(timed: Pairs, lines: Mapping[str, float] | None = None) -> tuple[Figure, str]:
    """Two forms of the network in turns: milliseconds a batch, and how many times as fast the
    first is."""
    from matplotlib.figure import Figure

    ratios = timed.ratios
    middle, low, high = median_interval(ratios)
    turns = range(1, len(ratios) + 1)
    batch = timed.experiment.batch_size
    with plot.style():
        figure = Figure(figsize=(10.5, 3.4))
        left, right = figure.subplots(1, 2)
        for name in (timed.second, timed.first):
            left.plot(turns, [1000 * value for value in timed.seconds[name]], ms=6, label=name)
        left.set(title=f"A batch of {batch}, in turns", xlabel="round", ylabel="milliseconds")
        left.set_ylim(0, 1.15 * left.get_ylim()[1])
        left.legend(loc="lower left")
        right.axhspan(low, high, color=BLUE, alpha=0.15, lw=0)
        right.plot(turns, ratios, ls="", ms=6, color=BLUE, label="measured, a dot per round")
        right.axhline(middle, color=BLUE, lw=1.6, marker="", label=f"median {middle:.2f}")
        for name, value in (lines or {}).items():
            right.axhline(
                value, color=ORANGE, lw=1.6, ls="--", marker="", label=f"{name} {value:.2f}"
            )
        right.set(title="How many times as fast", xlabel="round", ylabel="ratio of the two times")
        right.set_ylim(0, 1.2 * max([*ratios, *(lines or {}).values()]))
        right.legend(fontsize=9, loc="lower left")
        for axes in (left, right):
            axes.xaxis.get_major_locator().set_params(integer=True)
    spread = f"between {low:.2f} and {high:.2f}"
    if len(ratios) < 6:
        spread = "too few rounds to say how sure that is"
    return figure, (
        f"{timed.first} is {middle:.2f} times as fast as {timed.second}"
        f" ({len(ratios)} rounds; {spread})."
    )


# -- batches ---------------------------------------------------------------------------------------


def curve(
    yours: Mapping[str, Mapping[int, float]], published: Mapping[str, Mapping[int, float]]
) -> tuple[Figure, str]:
    """Images per second and milliseconds a batch over the batch: of this machine, and published.

    Both maps are by name, then by batch, in images per second. The dashed lines are a fixed time
    for every batch and one for each image, fitted.
    """
    from matplotlib.figure import Figure

    told = []
    with plot.style():
        figure = Figure(figsize=(10.5, 6.2))
        grid = figure.subplots(2, 2)
        titles = ("This machine", "One V100, published")
        for (rate, wait), title, series in zip(grid.T, titles, (yours, published), strict=True):
            marks = zip((BLUE, ORANGE), ("o", "s"), strict=True)
            for (name, rates), (colour, marker) in zip(series.items(), marks, strict=False):
                batches = np.array(sorted(rates))
                ips = np.array([rates[int(batch)] for batch in batches])
                rate.plot(batches, ips, color=colour, marker=marker, ms=6, lw=1.2, label=name)
                wait.plot(batches, 1000 * batches / ips, color=colour, marker=marker, ms=6,
                          lw=1.2, label=name)  # fmt: skip
                if len(rates) > 1:
                    fixed, each = line(rates)
                    fitted = fixed + each * batches
                    rate.plot(batches, batches / fitted, color=colour, ls="--", lw=1.2, marker="")
                    wait.plot(batches, 1000 * fitted, color=colour, ls="--", lw=1.2, marker="")
                    told.append(sentence(f"{title}, {name}", rates))
            rate.set(title=title, ylabel="images per second", xscale="log")
            rate.set_ylim(0, 1.1 * max(ips for rates in series.values() for ips in rates.values()))
            wait.set(xlabel="batch", ylabel="milliseconds a batch", xscale="log", yscale="log")
            plot.plain_numbers(wait.yaxis)
            for axes in (rate, wait):
                ticks = sorted({b for rates in series.values() for b in rates})
                shown = [t for t in ticks if t & (t - 1) == 0]
                axes.set_xticks(shown, [str(t) for t in shown])
                axes.xaxis.minorticks_off()
            rate.legend(fontsize=9)
    return figure, " ".join(told)


def sentence(name: str, rates: Mapping[int, float]) -> str:
    """A curve in words."""
    first, last = min(rates), max(rates)
    fixed, each = line(rates)
    gain = rates[last] / rates[first]
    return (
        f"{name}: {gain:.1f} times as many images per second with {last} at a time as with {first};"
        f" a batch takes about {1000 * fixed:.1f} ms and {1000 * each:.2f} ms an image."
    )


def curve_rows(series: Mapping[str, Mapping[int, float]]) -> list[list[object]]:
    """(name, fixed ms, ms an image, images per second at most, batch that gets half of that)."""
    rows: list[list[object]] = []
    for name, rates in series.items():
        fixed, each = line(rates)
        most, half = (1 / each, fixed / each) if each > 0 else (None, None)
        rows.append([name, 1000 * fixed, 1000 * each, most, half or None])
    return rows
