"""Talk between workers: rank, size, broadcast, sum and barrier, whatever carries them.

This layer knows no optimizer and no framework; arrays are NumPy's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

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
        from rn50lib.comm.horovod import Horovod

        return Horovod(backend)
    if name == "ddp":
        from rn50lib.comm.ddp import Ddp

        return Ddp()
    return Local()


def agree(facts: dict[str, float], comm: Comm, hashed: bool = False) -> None:
    """Raise UserError, on every rank, when the ranks do not have the same `facts`. Values that are
    `hashed` stand for something longer, and are not shown.

    Ranks that do not take the same number of steps wait for each other for ever, and ranks that
    see different data sets train something that nobody asked for; neither says a word by itself.
    """
    if comm.size == 1:
        return
    mine = np.zeros((comm.size, len(facts)))
    mine[comm.rank] = list(facts.values())
    (table,) = comm.sum([mine])
    for name, column in zip(facts, table.T, strict=True):
        if (column != column[0]).any():
            other = int(np.argmax(column != column[0]))
            has = f"rank 0 has {column[0]:g}, rank {other} has {column[other]:g}"
            if hashed:
                has = f"rank {other} has another than rank 0"
            raise UserError(
                f"the ranks disagree on {name}: {has}: give every host the same data and flags"
            )


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
