"""Figures of notebook 07: how far to trust answers, speed by batch, latencies of requests.

Each function returns a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rn50 import plot
from workshop.lessons.figures import BLUE, GREEN, GREY, ORANGE

if TYPE_CHECKING:
    from matplotlib.figure import Figure

EDGES = (0.0, 0.3, 0.5, 0.7, 0.9, 1.0)  # of the groups of answers by their probability


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


def curve(
    yours: Mapping[str, Mapping[int, float]], published: Mapping[str, Mapping[int, float]]
) -> tuple[Figure, str]:
    """Images per second over the batch: of this machine, and published.

    Both maps are by name, then by batch, in images per second.
    """
    from matplotlib.figure import Figure

    told = []
    with plot.style():
        figure = Figure(figsize=(10.5, 3.6))
        titles = ("This machine", "One V100, published")
        for axes, title, series in zip(
            figure.subplots(1, 2), titles, (yours, published), strict=True
        ):
            for name, rates in series.items():
                first, last = min(rates), max(rates)
                axes.plot(*zip(*sorted(rates.items()), strict=True), ms=6, lw=1.2, label=name)
                told.append(
                    f"{title}, {name}: {rates[last] / rates[first]:.1f} times as many images per"
                    f" second with {last} at a time as with {first}."
                )
            axes.set(title=title, xlabel="batch", ylabel="images per second")
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.set_ylim(bottom=0)
            axes.legend(fontsize=9)
    return figure, " ".join(told)


def latencies(seconds: np.ndarray) -> tuple[Figure, str]:
    """How many requests took how long, with the mean and the percentiles."""
    from matplotlib.figure import Figure

    ordered, mean = sorted(1000 * seconds), 1000 * float(np.mean(seconds))
    shares = (50, 90, 95, 99, 100)
    values = np.percentile(ordered, shares, method="inverted_cdf")
    found = dict(zip(shares, values.tolist(), strict=True))
    with plot.style():
        figure = Figure(figsize=(10.5, 3.6))
        axes = figure.subplots()
        share = 100 * np.arange(1, len(ordered) + 1) / len(ordered)
        axes.step(ordered, share, where="post", color=BLUE, marker="", lw=1.8)
        axes.axvline(mean, color=GREY, ls=":", marker="", lw=1.6, label=f"mean {mean:.1f} ms")
        axes.plot(found.values(), found.keys(), "s", color=ORANGE, ms=6, label="percentiles")
        for p, value in found.items():
            axes.annotate(f"p{p}", (value, p), xytext=(5, -9), textcoords="offset points")
        axes.set(title="How many were answered by then", xlabel="milliseconds",
                 ylabel="per cent of the requests")  # fmt: skip
        axes.set_xlim(min(ordered) * 0.9, 1.1 * max(found[99], 1.5 * found[50]))
        axes.legend(loc="lower right")
    told = ", ".join(f"{p} % within {value:.1f} ms" for p, value in found.items())
    return figure, f"The mean is {mean:.1f} ms; {told}."
