"""A training played through, event by event, to check the arithmetic of rn50.scaling.

Every worker is there with a step time of its own, every message of every ring is an event, and so
is every batch that a loader finishes. An event happens when those it waits for have happened:
nobody is told to wait for the slowest, and no formula for a ring or a maximum is used. The times of
all workers are held in one array (hosts, GPUs on a host), so that 4096 of them take a second.

Without noise the two agree to rounding. With noise the model takes means where the simulation draws
numbers, and for one ring through several hosts it makes the slowest worker delay the slowest link,
although that one may still be behind for itself: there the model is up to 4 % too slow.
"""

from __future__ import annotations

import numpy as np

from rn50.scaling.links import Link
from rn50.scaling.model import Cluster, Training

PREFETCHED = 2  # batches that a loader holds ready for each worker
WARM_UP = 2


def simulate(training: Training, cluster: Cluster, n: int, steps: int = 20, seed: int = 0) -> float:
    """Mean seconds of a step of n GPUs over `steps` steps, after a few that are not counted."""
    hosts, on_host = cluster.split(n)
    rng = np.random.default_rng(seed)
    free = np.zeros((hosts, on_host))  # when each worker is through with its step
    loader = Loader(training.batch, cluster.input_ips, hosts, on_host)
    hand_over = cluster.contention_s * training.batch * np.arange(on_host)
    ends = [0.0]
    for _ in range(WARM_UP + steps):
        begin = loader.next(free) + hand_over
        factor = 1 + cluster.noise * rng.standard_normal((hosts, on_host))
        computed = begin + training.compute_s * np.maximum(factor, 0)
        sent = begin  # when each worker is through with the bucket before
        for bucket in training.buckets:
            share = bucket.ready if cluster.overlap else 1.0
            sent = np.maximum(sent, begin + share * (computed - begin))
            if n > 1:
                sent = all_reduce(cluster, bucket.size, sent)
        free = np.maximum(computed, sent)
        ends.append(float(free.max()))
    return (ends[-1] - ends[WARM_UP]) / steps


class Loader:
    """The loaders of all hosts. Each finishes its workers' batches in turn, one after the other,
    and stops while PREFETCHED of them lie ready for each worker."""

    def __init__(self, batch: int, ips: float | None, hosts: int, on_host: int) -> None:
        self.seconds = batch / ips if ips else 0.0
        self.last = np.zeros(hosts)  # when each host's loader was through with its last batch
        self.taken = [np.zeros((hosts, on_host))] * PREFETCHED

    def next(self, asked: np.ndarray) -> np.ndarray:
        """When each worker has its next batch, which it wants at `asked` (hosts, GPUs)."""
        room = self.taken.pop(0)
        ready = np.empty_like(asked)
        for worker in range(asked.shape[1]):
            self.last = np.maximum(self.last, room[:, worker]) + self.seconds
            ready[:, worker] = self.last
        got = np.maximum(asked, ready)
        self.taken.append(got)
        return got


def all_reduce(cluster: Cluster, size: float, ready: np.ndarray) -> np.ndarray:
    """When each worker (hosts, GPUs) has the sum of `size` bytes that it puts in at `ready`."""
    hosts, on_host = ready.shape
    local, between = cluster.local, cluster.between
    at = ready + cluster.start_s
    if hosts == 1:
        return ring(at, 2 * (on_host - 1), seconds(local, size / on_host))
    assert between is not None
    if cluster.algorithm == "ring":  # one ring through all hosts, its first worker's left one is
        chunk = size / ready.size  # on the host before
        hop = np.full(ready.shape, seconds(local, chunk))
        hop[:, 0] = seconds(between, chunk)
        return ring(at.reshape(1, -1), 2 * (ready.size - 1), hop.reshape(1, -1)).reshape(at.shape)
    at = ring(at, on_host - 1, seconds(local, size / on_host))  # reduce-scatter in each host
    # the workers of a host share its adapter, each with a ring of its own to those like it
    hop = between.latency_s + size / on_host / hosts / (between.bytes_per_s / on_host)
    at = ring(at.T, 2 * (hosts - 1), hop).T
    return ring(at, on_host - 1, seconds(local, size / on_host))  # all-gather


def ring(at: np.ndarray, steps: int, hop: float | np.ndarray) -> np.ndarray:
    """When each worker of the rings (rings, workers) is through, if it is ready at `at`.

    In each step a worker receives from its left neighbour, which takes `hop` seconds from when both
    are through with the step before.
    """
    for _ in range(steps):
        at = np.maximum(at, np.roll(at, 1, axis=1)) + hop
    return at


def seconds(link: Link, size: float) -> float:
    return link.latency_s + size / link.bytes_per_s
