"""Communication between workers: rank, size, broadcast, sum and barrier, on NumPy arrays."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from rn50lib.errors import UserError, first_names
from rn50lib.lifetime import Wait, watch_waits


class Comm:
    """A group of `size` workers; this one is number `rank`, and `local_rank` on its own host.

    This class is a group of one. Horovod and torch.distributed replace `sum_vector` and
    `broadcast_vector`. Arrays of the same type travel as one long vector: every message costs its
    latency, and a model has hundreds of small arrays.
    """

    rank = 0
    size = 1
    local_rank = 0

    def others(self) -> str:
        """Return the other ranks in words: 'rank 1', 'ranks 1, 2, 3 and 60 more'."""
        numbers = [str(rank) for rank in range(self.size) if rank != self.rank]
        return f"rank{'s' * (len(numbers) != 1)} {first_names(numbers, 8)}"

    def sum_vector(self, vector: np.ndarray) -> np.ndarray:
        """Return the sum of the vector over all ranks, on every rank."""
        return vector

    def broadcast_vector(self, vector: np.ndarray) -> np.ndarray:
        """Return rank 0's vector, on every rank."""
        return vector

    def broadcast(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return rank 0's arrays, by name, on every rank."""
        with Wait(self.others):
            values = joined(list(arrays.values()), self.broadcast_vector)
        return dict(zip(arrays, values, strict=True))

    def sum(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the sum of each array over all ranks, on every rank."""
        with Wait(self.others):
            return joined(arrays, self.sum_vector)

    def stack(self, vector: np.ndarray) -> np.ndarray:
        """Return the vectors of all ranks, which are equally long, as rows, on every rank."""
        table = np.zeros((self.size, len(vector)), vector.dtype)
        table[self.rank] = vector
        return self.sum([table])[0]

    def barrier(self) -> None:
        """Return when every rank has called this."""
        self.sum([np.zeros(1, np.float32)])


def joined(
    arrays: Sequence[np.ndarray], exchange: Callable[[np.ndarray], np.ndarray]
) -> list[np.ndarray]:
    """Apply `exchange` to the arrays, in one call for all that have the same type."""
    arrays = [np.asarray(array) for array in arrays]
    results: list[np.ndarray] = list(arrays)
    for dtype in sorted({array.dtype for array in arrays}, key=str):
        which = [i for i, array in enumerate(arrays) if array.dtype == dtype]
        whole = exchange(np.concatenate([arrays[i].ravel() for i in which]))
        ends = np.cumsum([arrays[i].size for i in which])[:-1]
        for i, part in zip(which, np.split(whole, ends), strict=True):
            results[i] = part.reshape(arrays[i].shape)
    return results


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
    """Return, on every rank, the largest difference between any rank's arrays and rank 0's."""
    first = comm.broadcast(arrays)
    mine = max(float(np.abs(arrays[name] - first[name]).max()) for name in arrays)
    return float(comm.stack(np.array([mine])).max())
