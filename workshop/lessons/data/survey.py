"""A look over all pictures of a data set, and the time that reading them takes.

Only the headers of the pictures are decoded, so thousands are looked at in a second or two.
"""

from __future__ import annotations

import io
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from rn50lib.data.source import Source


@dataclass(frozen=True)
class Survey:
    """One entry per picture: width and height in pixels, size in bytes, grey or not, label."""

    width: np.ndarray
    height: np.ndarray
    size: np.ndarray
    grey: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.size)

    @property
    def portrait(self) -> np.ndarray:
        """Whether a picture is higher than wide."""
        return self.height > self.width


def survey(source: Source) -> Survey:
    """Read every picture's header. Raises UserError (or Pillow's error) where one has none."""
    rows = np.empty((len(source), 4), np.int64)
    for i in range(len(source)):
        data = source.read(i)
        with Image.open(io.BytesIO(data)) as image:
            rows[i] = (*image.size, len(data), image.mode == "L")
    return Survey(rows[:, 0], rows[:, 1], rows[:, 2], rows[:, 3] == 1, np.asarray(source.labels))


def read_rate(source: Source, order: Sequence[int]) -> float:
    """Pictures per second when their bytes are read in this order, and nothing is decoded."""
    begin = time.perf_counter()
    for i in order:
        source.read(i)
    return len(order) / (time.perf_counter() - begin)


def in_turn(measures: Sequence[Callable[[], float]], rounds: int) -> list[list[float]]:
    """Each measurement `rounds` times, in turn, so that a slow moment of the machine hits all.

    Returns the values of each measurement; one more round is made first and dropped.
    """
    values = [[measure() for measure in measures] for _ in range(rounds + 1)][1:]
    return [list(column) for column in zip(*values, strict=True)]


def open_time(paths: Sequence[str | os.PathLike]) -> float:
    """Seconds that opening and closing one file takes, the median over the files."""
    seconds = []
    for path in paths:
        begin = time.perf_counter()
        os.close(os.open(path, os.O_RDONLY))
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds)
