"""Communication between workers: rank, size, broadcast, sum and barrier, on NumPy arrays."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from rn50lib.errors import UserError


class Comm(Protocol):
    """A group of `size` workers; this one is number `rank`, and `local_rank` on its own host."""

    rank: int
    size: int
    local_rank: int

    def broadcast(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return rank 0's arrays, by name, on every rank."""
        ...

    def sum(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Return the sum of each array over all ranks, on every rank."""
        ...

    def barrier(self) -> None:
        """Return when every rank has called this."""
        ...


class Local:
    """A group of one worker."""

    rank = 0
    size = 1
    local_rank = 0

    def broadcast(self, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:  # noqa: D102
        return arrays

    def sum(self, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:  # noqa: D102
        return list(arrays)

    def barrier(self) -> None:  # noqa: D102
        return None


def connect(name: str = "local", backend: str = "torch", timeout: float | None = None) -> Comm:
    """Return the group of this process: 'local' (one worker), 'horovod' or 'ddp'.

    A rank that does not answer for `timeout` seconds fails the others (default: the library's).
    Raises UserError if the library is missing or the process was not started as a worker.
    """
    if name == "horovod":
        from rn50lib.distributed.horovod import Horovod

        return Horovod(backend, timeout)
    if name == "ddp":
        from rn50lib.distributed.ddp import Ddp

        return Ddp(timeout)
    return Local()


def own_gpu(local_rank: int, visible: int) -> int:
    """Return the index of this worker's GPU among the `visible` ones of its process.

    It is 0 if a batch system shows each worker only its own GPU.
    """
    return local_rank % visible


def choose_gpu(backend: str, local_rank: int) -> None:
    """Select this worker's GPU, if there is one, before anything uses a GPU."""
    if backend == "torch":
        import torch

        if torch.cuda.is_available():
            torch.cuda.set_device(own_gpu(local_rank, torch.cuda.device_count()))
        return
    from rn50lib.tf import tf

    gpus = tf.config.list_physical_devices("GPU")
    if gpus:
        tf.config.set_visible_devices([gpus[own_gpu(local_rank, len(gpus))]], "GPU")


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
    lengths = np.zeros(comm.size, np.int64)
    lengths[comm.rank] = len(mine)
    (lengths,) = comm.sum([lengths])
    table = np.zeros((comm.size, lengths.max()), np.int32)
    table[comm.rank, : len(mine)] = mine
    (table,) = comm.sum([table])
    return [bytes(row[:n].tolist()).decode() for row, n in zip(table, lengths, strict=True)]


def max_difference(arrays: dict[str, np.ndarray], comm: Comm) -> float:
    """Return, on every rank, the largest difference between any rank's arrays and rank 0's."""
    first = comm.broadcast(arrays)
    mine = np.zeros(comm.size)
    mine[comm.rank] = max(float(np.abs(arrays[name] - first[name]).max()) for name in arrays)
    (table,) = comm.sum([mine])
    return float(table.max())


def average(gradients: Sequence[np.ndarray], comm: Comm) -> list[np.ndarray]:
    """Average every gradient over all ranks: sum, then divide by their number."""
    if comm.size == 1:
        return list(gradients)
    return [total / comm.size for total in comm.sum(gradients)]


def broadcast_start(arrays: dict[str, np.ndarray], comm: Comm) -> dict[str, np.ndarray]:
    """Return rank 0's initial weights on every rank, so that all ranks start alike."""
    return comm.broadcast(arrays) if comm.size > 1 else arrays


def learners_average(
    function: Callable[..., Any], gradients: list[np.ndarray], comm: Comm
) -> list[np.ndarray]:
    """Average gradients by a learner's `exchange_gradients`.

    Raises UserError unless it returns an array of the same shape for each gradient.
    """
    averaged = list(function(gradients, comm))
    if len(averaged) != len(gradients):
        raise UserError(
            f"exchange_gradients returned {len(averaged)} arrays for {len(gradients)} gradients"
        )
    arrays = [np.asarray(new, old.dtype) for new, old in zip(averaged, gradients, strict=True)]
    for new, old in zip(arrays, gradients, strict=True):
        if new.shape != old.shape:
            raise UserError(
                f"exchange_gradients made shape {new.shape} of a gradient of shape {old.shape}"
            )
    return arrays
