"""Talk between workers: rank, size, broadcast, sum and barrier, whatever carries them.

This layer knows no optimizer and no framework; arrays are NumPy's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rn50lib.errors import UserError


class Comm(Protocol):
    """A group of `size` workers; this one is number `rank`, and `local_rank` on its own host."""

    rank: int
    size: int
    local_rank: int

    def broadcast(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Rank 0's arrays, by name, on every rank."""
        ...

    def sum(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Each array added up over all ranks, on every rank."""
        ...

    def barrier(self) -> None:
        """Return when every rank has come here."""
        ...


class Local:
    """`Comm` for one worker; every exchange returns what it was given."""

    rank = 0
    size = 1
    local_rank = 0

    def broadcast(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return arrays

    def sum(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return list(arrays)

    def barrier(self) -> None:
        return None


def connect(name: str = "local", backend: str = "torch") -> Comm:
    """The group that this process belongs to: 'local' (alone), 'horovod' or 'ddp'.

    Raises UserError when what carries it is missing, or the process was not started as a worker.
    """
    if name == "horovod":
        from rn50lib.distributed.horovod import Horovod

        return Horovod(backend)
    if name == "ddp":
        from rn50lib.distributed.ddp import Ddp

        return Ddp()
    return Local()


def assert_same_across_ranks(facts: Mapping[str, Any], comm: Comm) -> None:
    """Raise UserError, on every rank, if the ranks do not have the same `facts`.

    Ranks that take different numbers of steps wait for each other forever, and ranks that read
    different data sets train without an error.
    """
    if comm.size == 1:
        return
    first, *others = gather(json.dumps({name: str(value) for name, value in facts.items()}), comm)
    for rank, text in enumerate(others, start=1):
        here, there = json.loads(first), json.loads(text)
        for name in here:
            if here[name] != there.get(name):
                raise UserError(
                    f"the ranks disagree on {name}: rank 0 has {here[name]}, rank {rank} has"
                    f" {there.get(name)}: give every host the same data and flags"
                )


def gather(text: str, comm: Comm) -> list[str]:
    """Return the texts of all ranks, on every rank, in the order of the ranks."""
    mine = np.frombuffer(text.encode(), np.uint8).astype(np.int32)  # Horovod adds up no bytes
    lengths = np.zeros(comm.size, np.int64)
    lengths[comm.rank] = len(mine)
    (lengths,) = comm.sum([lengths])
    table = np.zeros((comm.size, lengths.max()), np.int32)
    table[comm.rank, : len(mine)] = mine
    (table,) = comm.sum([table])
    return [bytes(row[:n].tolist()).decode() for row, n in zip(table, lengths, strict=True)]


def max_difference(arrays: dict[str, np.ndarray], comm: Comm) -> float:
    """The largest difference between an array of any rank and rank 0's; 0.0 where all are equal.

    Every rank gets the answer. Ranks that start alike and add the same averaged gradients stay
    equal bit for bit.
    """
    first = comm.broadcast(arrays)
    mine = np.zeros(comm.size)
    mine[comm.rank] = max(float(np.abs(arrays[name] - first[name]).max()) for name in arrays)
    (table,) = comm.sum([mine])
    return float(table.max())


def average(gradients: Sequence[np.ndarray], comm: Comm) -> list[np.ndarray]:
    """Every gradient averaged over all ranks: sum, then divide by their number."""
    if comm.size == 1:
        return list(gradients)
    return [total / comm.size for total in comm.sum(gradients)]


def broadcast_start(arrays: dict[str, np.ndarray], comm: Comm) -> dict[str, np.ndarray]:
    """Rank 0's initial weights on every rank, so that all of them start from the same point."""
    return comm.broadcast(arrays) if comm.size > 1 else arrays
