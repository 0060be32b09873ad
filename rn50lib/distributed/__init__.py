"""Communication between workers: rank, size, broadcast, sum and barrier, on NumPy arrays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rn50lib.errors import UserError, first_names
from rn50lib.lifetime import Wait, watch_waits


class Comm:
    """A group of `size` workers; this one is number `rank`, and `local_rank` on its own host.

    This class is a group of one. Horovod and torch.distributed replace `sum_array` and
    `broadcast_vector`.
    """

    name = "local"  # its value of `--comm`
    rank = 0
    size = 1
    local_rank = 0

    def others(self) -> str:
        """Return the other ranks in words: 'rank 1', 'ranks 1, 2, 3 and 60 more'."""
        numbers = [str(rank) for rank in range(self.size) if rank != self.rank]
        return f"rank{'s' * (len(numbers) != 1)} {first_names(numbers, 8)}"

    def sum_array(self, array: np.ndarray) -> np.ndarray:
        """Return the sum of the array over all ranks, on every rank."""
        return array

    def broadcast_vector(self, vector: np.ndarray) -> np.ndarray:
        """Return rank 0's vector, on every rank."""
        return vector

    def broadcast(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return rank 0's arrays, by name and all of one type, on every rank.

        They travel as one vector: each message costs its latency, and a model has hundreds of small
        arrays.
        """
        with Wait(self.others):
            vector = self.broadcast_vector(np.concatenate([a.ravel() for a in arrays.values()]))
        parts = np.split(vector, np.cumsum([a.size for a in arrays.values()])[:-1])
        both = zip(arrays.items(), parts, strict=True)
        return {name: part.reshape(array.shape) for (name, array), part in both}

    def sum(self, array: ArrayLike) -> np.ndarray:
        """Return the sum of the array over all ranks, on every rank."""
        with Wait(self.others):
            return self.sum_array(np.asarray(array))

    def stack(self, vector: np.ndarray) -> np.ndarray:
        """Return the vectors of all ranks, which are equally long, as rows, on every rank."""
        table = np.zeros((self.size, len(vector)), vector.dtype)
        table[self.rank] = vector
        return self.sum(table)

    def barrier(self) -> None:
        """Return when every rank has called this."""
        self.sum(np.zeros(1, np.float32))


def connect(name: str = "local", backend: str = "torch", timeout: float | None = None) -> Comm:
    """Return the group of this process: 'local' (one worker), 'horovod' or 'ddp'.

    A rank that does not answer for `timeout` seconds fails the others (default: the library's).
    Raises UserError if the library is missing or the process was not started as a worker.
    """
    if name in ("horovod", "ddp"):
        watch_waits()
    if name == "horovod":
        from rn50lib.distributed.horovod import Horovod

        return Horovod(backend, timeout)
    if name == "ddp":
        from rn50lib.distributed.ddp import Ddp

        return Ddp(timeout)
    return Comm()


def choose_gpu(local_rank: int) -> None:
    """Select this worker's GPU for PyTorch, if there is one, before anything uses a GPU."""
    import torch

    if torch.cuda.is_available():
        # a batch system may show each worker only its own GPU
        torch.cuda.set_device(local_rank % torch.cuda.device_count())


def assert_same_across_ranks(facts: Mapping[str, Any], comm: Comm) -> None:
    """Raise UserError, on every rank, if the ranks' `facts` differ.

    Ranks with different numbers of steps wait for each other forever, and ranks with different data
    sets train without an error.
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
    """Return the texts of all ranks in order, on every rank."""
    mine = np.frombuffer(text.encode(), np.uint8).astype(np.int32)  # Horovod cannot add bytes
    lengths = comm.stack(np.array([len(mine)]))[:, 0]
    table = comm.stack(np.pad(mine, (0, lengths.max() - len(mine))))
    return [bytes(row[:n].tolist()).decode() for row, n in zip(table, lengths, strict=True)]


def max_difference(arrays: dict[str, np.ndarray], comm: Comm) -> float:
    """Return, on every rank, the largest difference between any rank's arrays and rank 0's.

    It is NaN if a difference is.
    """
    first = comm.broadcast(arrays)
    mine = np.array([np.abs(arrays[name] - first[name]).max() for name in arrays])
    return float(comm.stack(mine).max())
