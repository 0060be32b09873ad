"""In which order a rank gets the records of shards, worked out without TensorFlow.

tf.data gives the same kind of order: records of several shards in turn, then a shuffle buffer. Here
each of the two is a function of a few lines, so that a lesson can show what they do to the classes
in a batch, and which records two ranks see.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from rn50lib.records.order import epoch_order, stream_shard

AT_ONCE = 16  # shards that are read in turn, as in pipelines.tf_data


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


def interleave(streams: list[np.ndarray], at_once: int = AT_ONCE) -> np.ndarray:
    """One element of each stream in turn, of at most `at_once` streams at a time, as tf.data's
    `interleave` gives them: where a stream has ended, the next one is opened in its place."""
    waiting = [iter(stream.tolist()) for stream in streams]
    places: list[Iterator[int] | None] = [None] * max(1, min(at_once, len(streams)))
    found: list[int] = []
    turn = 0
    while waiting or any(place is not None for place in places):
        if places[turn] is None and waiting:
            places[turn] = waiting.pop(0)
        stream = places[turn]
        if stream is not None:
            element = next(stream, None)
            if element is None:
                places[turn] = None
            else:
                found.append(element)
        turn = (turn + 1) % len(places)
    return np.array(found, np.int64)


def cut(records: int, shards: int) -> np.ndarray:
    """How many records each shard holds, int64 (shards,): as many in each, within one."""
    return np.diff(records * np.arange(shards + 1) // shards)


def owners(records: int, shards: int, workers: int) -> np.ndarray:
    """The rank that reads each record, int64 (records,): all shards laid end to end and cut."""
    counts = cut(records, shards)
    firsts = np.concatenate([[0], np.cumsum(counts)])
    found = np.full(records, -1, np.int64)
    for rank in range(workers):
        for shard, skip, take in stream_shard(counts, rank, workers):
            found[firsts[shard] + skip : firsts[shard] + skip + take] = rank
    return found


def read_by(
    records: int, shards: int, workers: int, rank: int, buffer: int, seed: int = 0
) -> np.ndarray:
    """The records that a rank gets, in its order, int64: shard, then interleave, then shuffle."""
    counts = cut(records, shards)
    firsts = np.concatenate([[0], np.cumsum(counts)])
    streams = [
        np.arange(firsts[shard] + skip, firsts[shard] + skip + take)
        for shard, skip, take in stream_shard(counts, rank, workers)
    ]
    return shuffle_buffer(interleave(streams), buffer, seed + rank)


@dataclass(frozen=True)
class Seen:
    """What an epoch of all ranks together amounts to."""

    way: str
    read: int  # records that were read from the files
    used: int  # of these, trained on
    distinct: int
    never: int
    repeated: int  # records that were trained on more than once


def ways(records: int, workers: int, seed: int = 0) -> list[Seen]:
    """Four ways to share an epoch out among workers, and what each rank then trained on.

    Every worker takes records // workers steps of one record, as a run with a fixed number of steps
    does.
    """
    each = records // workers
    own = [epoch_order(records, seed, 1 + rank) for rank in range(workers)]  # a seed for each rank
    common = epoch_order(records, seed, 0)
    rank_of = owners(records, workers, workers)
    shares = [np.flatnonzero(rank_of == rank) for rank in range(workers)]
    mixed = [share[epoch_order(len(share), seed, 1 + rank)] for rank, share in enumerate(shares)]
    found = {
        "no shard": ([order[:each] for order in own], each * workers),
        "shuffle, then shard": (
            [order[rank::workers][:each] for rank, order in enumerate(own)],
            records * workers,
        ),
        "the same with one seed for all ranks": (
            [common[rank::workers][:each] for rank in range(workers)],
            records * workers,
        ),
        "shard, then shuffle": ([share[:each] for share in mixed], each * workers),
    }
    return [count(way, parts, read, records) for way, (parts, read) in found.items()]


def count(way: str, parts: list[np.ndarray], read: int, records: int) -> Seen:
    """Count how often the ranks' `parts` hold each of the records."""
    times = np.bincount(np.concatenate(parts), minlength=records)
    return Seen(
        way=way,
        read=read,
        used=int(times.sum()),
        distinct=int((times > 0).sum()),
        never=int((times == 0).sum()),
        repeated=int((times > 1).sum()),
    )


def classes_in_batches(labels: np.ndarray, batch: int) -> np.ndarray:
    """How many classes each full batch of a stream of labels holds, int64 (batches,)."""
    full = len(labels) // batch
    return np.array([len(np.unique(row)) for row in labels[: full * batch].reshape(full, batch)])
