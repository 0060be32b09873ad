"""A queue of ready batches between a loader of uneven speed and a device, played through."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

BATCHES = 600


@dataclass(frozen=True)
class Play:
    """`made[i]`, `taken[i]` and `done[i]`: when batch i was ready, when the device began with it,
    and when it was done with it, in the time that the device needs for a batch."""

    made: np.ndarray
    taken: np.ndarray
    done: np.ndarray

    @property
    def share(self) -> float:
        """The share of the time in which the device worked, 0 to 1."""
        return len(self.done) / float(self.done[-1])

    def waiting(self, times: np.ndarray) -> np.ndarray:
        """How many ready batches lie in the queue at each of these times."""
        return np.searchsorted(self.made, times, "right") - np.searchsorted(
            self.taken, times, "right"
        )


def loader_times(speed: float, jitter: float, seed: int = 0, count: int = BATCHES) -> np.ndarray:
    """Seconds for each batch, in device batches: 1 / `speed` in the mean, and a standard deviation
    of `jitter` times that (a gamma distribution: never negative, at times much longer)."""
    mean = 1 / speed
    if jitter == 0:
        return np.full(count, mean)
    shape = 1 / jitter**2
    drawn = np.random.default_rng(seed).gamma(shape, mean / shape, count)
    return drawn * mean / drawn.mean()  # the same work for every jitter


def play(loading: np.ndarray, depth: int) -> Play:
    """Let the loader work as long as fewer than `depth` ready batches lie in the queue.

    With a depth of 0 it begins with a batch only when the device has done the last one.
    """
    made, taken, done = np.zeros((3, len(loading)))
    free = ended = 0.0  # when the loader, and the device, have done their last batch
    for i, seconds in enumerate(loading):
        begin = free
        if depth == 0:
            begin = max(free, ended)
        elif i >= depth:
            begin = max(free, taken[i - depth])  # there is room again
        free = made[i] = begin + seconds
        taken[i] = max(made[i], ended)
        ended = done[i] = taken[i] + 1.0
    return Play(made, taken, done)
