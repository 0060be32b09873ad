"""A group of workers that Horovod connects, for either framework.

Horovod is asked for plain exchanges only. Its Keras integration is not used anywhere: under Keras 3
it trains without averaging a single gradient, and says nothing.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from typing import Any

import numpy as np

from rn50lib.comm.gpu import choose_gpu
from rn50lib.comm.vectors import Vectors
from rn50lib.errors import UserError
from rn50lib.launch.launchers import ADDRESSES
from rn50lib.position import State


class Horovod(Vectors):
    """`Comm` over Horovod. `hvd` is the module `horovod.torch` or `horovod.tensorflow`.

    Raises UserError where Horovod is missing or was built without the framework.
    """

    def __init__(self, backend: str) -> None:
        self.backend = backend
        try:
            if backend == "tensorflow":  # without its notes on how it was built
                importlib.import_module("rn50lib.backends.tensorflow")
            self.hvd = importlib.import_module(f"horovod.{backend}")
        except ImportError as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(
                f"--comm horovod: Horovod does not serve {backend} here ({lines[0]}): run"
                " `make horovod`; `rn50 doctor` says what it was built with"
            ) from error
        self.hvd.init()
        self.place()
        choose_gpu(backend, self.local_rank)

    def place(self) -> None:
        """Read rank and size, which an elastic group changes."""
        self.rank, self.size = self.hvd.rank(), self.hvd.size()
        self.local_rank = self.hvd.local_rank()
        host = os.environ.get("HOROVOD_HOSTNAME")
        if "HOROVOD_ELASTIC" in os.environ and host in ADDRESSES:
            # to Horovod each worker of this machine has a host of its own; they have a GPU each
            self.local_rank += ADDRESSES.index(host)

    def add_up(self, vector: np.ndarray) -> np.ndarray:
        return self._numpy(self.hvd.allreduce(self._tensor(vector), op=self.hvd.Sum))

    def from_first(self, vector: np.ndarray) -> np.ndarray:
        return self._numpy(self.hvd.broadcast(self._tensor(vector), root_rank=0))

    def run(self, function: Callable[[State], Any], state: State) -> Any:
        """Call `function(state)`; under an elastic launcher, again whenever workers come or go.

        Horovod raises an error in the exchange that a dead worker is missing from, and an interrupt
        at a commit when a worker waits to join. Then the group forms anew, every worker takes over
        rank 0's state, and the function goes on from its last commit.
        """
        if "HOROVOD_ELASTIC" not in os.environ:
            return function(state)
        from horovod.common.elastic import State as Watched

        group = self

        class Carried(Watched):  # type: ignore[misc, valid-type]
            def save(self) -> None:
                pass  # `state` holds its last commit itself

            def restore(self) -> None:
                state.roll_back()

            def sync(self) -> None:
                state.take(group.hvd.broadcast_object(state.shared()))

            def reset(self) -> None:
                group.place()

        watched = Carried(bcast_object=self.hvd.broadcast_object, get_rank=self.hvd.rank)
        state.on_commit = watched.check_host_updates
        return self.hvd.elastic.run(lambda _: function(state))(watched)

    def _tensor(self, vector: np.ndarray):  # type: ignore[no-untyped-def]
        if self.backend == "torch":
            import torch

            return torch.from_numpy(vector)
        import tensorflow as tf

        with tf.device("CPU:0"):  # what is in host memory is exchanged in host memory
            return tf.constant(vector)

    def _numpy(self, tensor) -> np.ndarray:  # type: ignore[no-untyped-def]
        return tensor.numpy()


def check_gpu_exchange(hvd: Any) -> None:
    """Raises UserError where Horovod would abort the process: it was built without CUDA, and is to
    exchange tensors of GPUs."""
    if not hvd.cuda_built():
        raise UserError(
            "--comm horovod: Horovod was built without CUDA here and cannot exchange the gradients"
            " of GPUs: use --comm ddp, or build it with the CUDA toolkit and NCCL's headers:"
            " `HOROVOD_GPU_OPERATIONS=NCCL make horovod`"
        )
