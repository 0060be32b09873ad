"""In which order a stream gives its records, worked out without TensorFlow.

A shuffle buffer such as tf.data's is a function of a few lines here, so that a lesson can show what
it does to the classes in a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rn50 import plot

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def shuffle_buffer(stream: np.ndarray, size: int, seed: int) -> np.ndarray:
    """The stream behind a shuffle buffer of `size` elements, as tf.data's `shuffle` works.

    The buffer is filled; then one of its elements is drawn, and the next of the stream takes its
    place. An element can thus come out later by any number of places, and earlier by less than
    `size` only.
    """
    rng = np.random.default_rng(seed)
    buffer = stream[:size].tolist()
    found = []
    for element in stream[size:].tolist():
        place = rng.integers(len(buffer))
        found.append(buffer[place])
        buffer[place] = element
    rng.shuffle(buffer)
    return np.array(found + buffer, stream.dtype)


def classes_in_batches(labels: np.ndarray, batch: int) -> np.ndarray:
    """How many classes each full batch of a stream of labels holds, int64 (batches,)."""
    full = len(labels) // batch
    return np.array([len(np.unique(row)) for row in labels[: full * batch].reshape(full, batch)])


def buffers(
    labels: np.ndarray, classes: int, sizes: tuple[int, ...], batch: int, seed: int = 0
) -> tuple[Figure, dict[int, np.ndarray]]:
    """The classes of the first batches behind shuffle buffers of several sizes, a row each; and how
    many classes each batch of the epoch holds, by size."""
    from matplotlib.figure import Figure

    held = {}
    with plot.style():
        figure = Figure(figsize=(10.5, 0.85 * len(sizes) + 0.6))
        rows = figure.subplots(len(sizes), 1, squeeze=False)[:, 0]
        for axes, size in zip(rows, sizes, strict=True):
            got = shuffle_buffer(labels, size, seed)
            held[size] = classes_in_batches(got, batch)
            axes.imshow(
                got[None, : 12 * batch], aspect="auto", cmap="cividis", vmin=0, vmax=classes - 1,
                interpolation="nearest",
            )  # fmt: skip
            for edge in range(batch, 12 * batch, batch):
                axes.axvline(edge - 0.5, color="white", lw=1.4, marker="")
            axes.set(xticks=[], yticks=[])
            axes.grid(False)
            name = "no shuffle" if size == 1 else f"a buffer of {size:,}"
            axes.set_title(f"{name}: {held[size].mean():.1f} classes in a batch", fontsize=11)
        rows[-1].set_xlabel(f"the first 12 batches of {batch}; the shade is the class")
    return figure, held
