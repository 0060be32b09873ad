"""One server, many clients: a queue of requests played through, batch by batch.

    service = Service((1, 4, 16), (0.010, 0.022, 0.070))  # seconds for a batch of so many
    served = play(poisson(rate=80, count=4000), service, limit=8, wait=0.0)
    served.percentile(99), served.utilisation

The server takes what waits, up to its batch limit, and answers all of the batch at once. With a
waiting time it holds an unfull batch back for so long, counted from its oldest request.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Service:
    """Seconds that the server takes for a batch, as measured for some sizes, in rising order."""

    batches: Sequence[int]
    seconds: Sequence[float]

    def __call__(self, batch: int) -> float:
        """Seconds for a batch; a straight line between the sizes that were measured."""
        return float(np.interp(batch, self.batches, self.seconds))

    def capacity(self, limit: int) -> float:
        """Requests per second that it can answer at most, with batches of up to `limit`."""
        return max(b / self(b) for b in range(1, limit + 1))


@dataclass(frozen=True)
class Served:
    """What became of the requests: when each arrived and was answered (seconds, in order), the
    batches they were answered in, and the seconds that the server worked."""

    arrived: np.ndarray
    answered: np.ndarray
    batches: tuple[int, ...]
    busy: float

    @property
    def latencies(self) -> np.ndarray:
        """Seconds from the arrival to the answer, in order of arrival."""
        return self.answered - self.arrived

    @property
    def utilisation(self) -> float:
        """The share of the time in which the server worked, 0 to 1."""
        return self.busy / float(self.answered[-1])

    @property
    def mean_batch(self) -> float:
        return len(self.arrived) / len(self.batches)

    def percentile(self, per_cent: float) -> float:
        """Return the seconds that `per_cent` of the requests waited at most (nearest rank)."""
        return float(np.percentile(self.latencies, per_cent, method="inverted_cdf"))


def poisson(rate: float, count: int, seed: int = 0) -> np.ndarray:
    """Seconds at which `count` requests arrive that know nothing of each other, `rate` a second."""
    return np.cumsum(np.random.default_rng(seed).exponential(1 / rate, count))


def play(arrived: np.ndarray, service: Service, limit: int = 1, wait: float = 0.0) -> Served:
    """Answer requests in the order of their arrival, in batches of at most `limit`."""
    answered = np.zeros(len(arrived))
    batches, free, busy, first = [], 0.0, 0.0, 0
    while first < len(arrived):
        last = first + limit - 1
        full = arrived[last] if last < len(arrived) else math.inf
        begin = max(free, min(full, arrived[first] + wait))
        count = min(limit, int(np.searchsorted(arrived, begin, side="right")) - first)
        seconds = service(count)
        free = answered[first : first + count] = begin + seconds
        busy += seconds
        batches.append(count)
        first += count
    return Served(arrived, answered, tuple(batches), busy)
