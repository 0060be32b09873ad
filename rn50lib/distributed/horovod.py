"""A group of workers that Horovod connects, for either framework.

Horovod is asked for plain exchanges only. Its Keras integration is not used anywhere: under Keras 3
it trains without averaging a single gradient, and says nothing.
"""

from __future__ import annotations

import importlib
import os

import numpy as np

from rn50lib.distributed.collectives import Vectors
from rn50lib.distributed.gpu import choose_gpu
from rn50lib.errors import UserError

# Over MPI only the last two apply, and only to a rank whose Python hangs
TIMEOUTS = ("HOROVOD_GLOO_TIMEOUT_SECONDS", "HOROVOD_STALL_CHECK_TIME_SECONDS",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")  # fmt: skip


class Horovod(Vectors):
    """`Comm` over Horovod. `hvd` is the module `horovod.torch` or `horovod.tensorflow`.

    Raises UserError where Horovod is missing or was built without the framework.
    """

    def __init__(self, backend: str, timeout: float | None = None) -> None:
        self.backend = backend
        if timeout is not None:
            os.environ |= dict.fromkeys(TIMEOUTS, str(round(timeout)))
        try:
            if backend == "tensorflow":  # without its notes on how it was built
                importlib.import_module("rn50lib.tensorflow")
            self.hvd = importlib.import_module(f"horovod.{backend}")
        except ImportError as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(
                f"--comm horovod: Horovod does not serve {backend} here ({lines[0]}): run"
                " `make horovod`; `rn50 doctor` says what it was built with"
            ) from error
        self.hvd.init()
        self.rank, self.size = self.hvd.rank(), self.hvd.size()
        self.local_rank = self.hvd.local_rank()
        choose_gpu(backend, self.local_rank)

    def add_up(self, vector: np.ndarray) -> np.ndarray:
        return self._numpy(self.hvd.allreduce(self._tensor(vector), op=self.hvd.Sum))

    def from_first(self, vector: np.ndarray) -> np.ndarray:
        return self._numpy(self.hvd.broadcast(self._tensor(vector), root_rank=0))

    def check_gpu_exchange(self) -> None:
        """Raises UserError where Horovod would abort the process: it was built without CUDA, and is
        to exchange tensors of GPUs."""
        if not self.hvd.cuda_built():
            raise UserError(
                "--comm horovod: Horovod was built without CUDA here and cannot exchange the"
                " gradients of GPUs: use --comm ddp, or build it with the CUDA toolkit and NCCL's"
                " headers: `HOROVOD_GPU_OPERATIONS=NCCL make horovod`"
            )

    def _tensor(self, vector: np.ndarray):  # type: ignore[no-untyped-def]
        if self.backend == "torch":
            import torch

            return torch.from_numpy(vector)
        import tensorflow as tf

        with tf.device("CPU:0"):  # what is in host memory is exchanged in host memory
            return tf.constant(vector)

    def _numpy(self, tensor) -> np.ndarray:  # type: ignore[no-untyped-def]
        return tensor.numpy()
