"""Which rank reads which image when: pure functions of seed, epoch, rank and size.

No function here keeps any state, so that a resumed run, or one with other workers, sees the same
order.
"""

from __future__ import annotations

import numpy as np


def epoch_order(examples: int, seed: int, epoch: int) -> np.ndarray:
    """The order of an epoch: a permutation of range(examples), int64 of shape (examples,).

    It depends on nothing but (seed, epoch). The bit generator's raw numbers are sorted instead of
    calling ``Generator.permutation``, because NumPy promises the former to stay the same for ever
    and the latter not.
    """
    bits = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(examples)
    return np.argsort(bits, kind="stable").astype(np.int64, copy=False)


def shard(order: np.ndarray, rank: int, size: int, batch: int) -> np.ndarray:
    """What one rank reads, int64 of shape (steps, batch).

    Step s takes order[s·G : (s+1)·G] with the global batch G = size · batch, and rank r the rows
    r·batch … (r+1)·batch of that. All ranks have the same number of steps, len(order) // G; what is
    left over at the end is dropped.
    """
    global_batch = size * batch
    steps = len(order) // global_batch
    return order[: steps * global_batch].reshape(steps, size, batch)[:, rank]


def validation_shard(
    examples: int, rank: int, size: int, batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """What one rank validates: indices int64 of shape (steps, batch), and valid int64 of shape
    (steps,).

    Over all ranks every image stands exactly once in the rows below ``valid``, and all ranks have
    the same number of steps. The rows from ``valid`` on only fill the last batches: they repeat the
    last image and count nowhere.
    """
    global_batch = size * batch
    steps = -(-examples // global_batch)
    first = np.arange(steps, dtype=np.int64) * global_batch + rank * batch
    indices = np.minimum(first[:, None] + np.arange(batch), examples - 1)
    return indices, np.clip(examples - first, 0, batch)


def stream_shard(counts: np.ndarray, rank: int, size: int) -> np.ndarray:
    """What one rank reads of shards that are read as streams, int64 of shape (parts, 3).

    Each row is a shard, how many of its records to pass over and how many to take. With all shards
    (of ``counts`` records each) laid end to end, rank r takes the records from floor(N·r / size) to
    floor(N·(r+1) / size): every record once over all ranks, whatever the number of shards.
    """
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    first, last = total * rank // size, total * (rank + 1) // size
    starts = ends - counts
    skip, stop = np.clip(first - starts, 0, counts), np.clip(last - starts, 0, counts)
    parts = np.stack([np.arange(len(ends), dtype=np.int64), skip, stop - skip], axis=1)
    return parts[parts[:, 2] > 0]


def image_seed(seed: int, epoch: int, index: int) -> int:
    """A seed for the augmentation of one image in one epoch, below 2**63.

    Neighbouring arguments give unrelated seeds (the finalizer of SplitMix64 after each).
    """
    mixed = _mix(_mix(_mix(seed) ^ epoch) ^ index)
    return mixed >> 1


_WORD = 0xFFFFFFFFFFFFFFFF


def _mix(value: int) -> int:
    """SplitMix64's step and finalizer (Steele, Lea, Flood 2014): a bijection of 64-bit words."""
    value = (value + 0x9E3779B97F4A7C15) & _WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)
