"""Figures of notebook 05: the outputs and the times of DALI's operators.

They return a matplotlib figure and a sentence that says what it shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

from rn50 import plot
from workshop.lessons.figures import stacked

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def outputs(found: Mapping[str, np.ndarray]) -> tuple[Figure, str]:
    """What each operator gives for one image, as pictures, with its shape and bytes."""
    from matplotlib.figure import Figure

    with plot.style():
        figure = Figure(figsize=(10.5, 3.1))
        told = []
        for axes, (name, values) in zip(
            np.ravel(figure.subplots(1, len(found))), found.items(), strict=True
        ):
            shape = " × ".join(map(str, values.shape))
            kilobytes = values.nbytes / 1000
            if values.ndim == 1:  # bytes of a file, as they lie there
                width = int(len(values) ** 0.5)
                axes.imshow(values[: width * width].reshape(width, width), cmap="gray")
            elif values.shape[0] == 3:  # planes: the first one
                axes.imshow(values[0], cmap="gray", interpolation="nearest")
            else:
                axes.imshow(values, interpolation="nearest")
            axes.set(xticks=[], yticks=[])
            axes.grid(False)
            axes.set_title(name, fontsize=11)
            axes.set_xlabel(f"{values.dtype} {shape}\n{kilobytes:,.0f} KB", fontsize=9)
            told.append(f"{name} {kilobytes:,.0f} KB")
    return figure, "What an image takes behind each operator: " + ", ".join(told) + "."


def step_times(
    until: Mapping[str, Sequence[float]], ways: Mapping[str, Sequence[str]]
) -> tuple[Figure, str, dict[str, dict[str, float]]]:
    """Stacked bars of the operators' times; `until` holds ms an image until an operator is done,
    `ways` the operators of each graph in order. Also returns ms by graph and operator."""
    found = {way: own_times(until, names) for way, names in ways.items()}
    figure = stacked(found, "ms an image on one core", "The time that each operator adds")
    first = next(iter(found))
    whole = sum(found[first].values())
    longest = max(found[first], key=lambda name: found[first][name])
    share = 100 * found[first][longest] / whole
    text = f"{first}: {whole:.2f} ms an image on one core, {share:.0f} % of it for '{longest}'."
    return figure, text, found


def own_times(until: Mapping[str, Sequence[float]], names: Sequence[str]) -> dict[str, float]:
    """The time that each operator adds to those before it: differences by rounds, then medians."""
    times, before = {}, [0.0] * len(until[names[0]])
    for name in names:
        pairs = zip(until[name], before, strict=True)
        times[name] = max(0.0, median(a - b for a, b in pairs))
        before = list(until[name])
    return times
