"""Images whose pixels show their place: red grows from left to right, green from top to bottom."""

from __future__ import annotations

import numpy as np

EDGE = 3  # pixels at each side of a crop, which resizing repeats


def ramps(width: int, height: int, blue: int = 0) -> np.ndarray:
    """Return an image, uint8 (height, width, 3), whose red is the column and green the row."""
    rows, columns = np.mgrid[:height, :width]
    return np.stack([columns, rows, 0 * rows + blue], axis=2).astype(np.uint8)


def boxes(crops: np.ndarray) -> np.ndarray:
    """Return left, top, width and height of crops (n, 3, size, size), in levels of the ramps.

    The width of a mirrored crop is negative.
    """
    size = crops.shape[-1]
    inner = np.arange(EDGE, size - EDGE)
    across, left = np.polyfit(inner + 0.5, crops[:, 0].mean(1)[:, inner].T + 0.5, 1)
    down, top = np.polyfit(inner + 0.5, crops[:, 1].mean(2)[:, inner].T + 0.5, 1)
    return np.stack([left, top, across * size, down * size], axis=1)
