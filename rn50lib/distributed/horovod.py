"""A group of workers connected by Horovod, for either framework.

Horovod's Keras integration is not used: under Keras 3 it averages no gradient, without an error.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np

from rn50lib.distributed import Comm, choose_gpu
from rn50lib.distributed.launch_env import LaunchEnv
from rn50lib.errors import UserError
from rn50lib.lifetime import Wait

# Over MPI only the last two apply, and only to a rank whose Python hangs
TIMEOUTS = ("HOROVOD_GLOO_TIMEOUT_SECONDS", "HOROVOD_STALL_CHECK_TIME_SECONDS",
            "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS")  # fmt: skip


class Horovod(Comm):
    """`Comm` over Horovod. `hvd` is the module `horovod.torch` or `horovod.tensorflow`."""

    name = "horovod"

    def __init__(self, backend: str, timeout: float | None = None) -> None:
        self.backend = backend
        if timeout is not None:
            os.environ |= dict.fromkeys(TIMEOUTS, str(round(timeout)))
        try:
            self.hvd = importlib.import_module(f"horovod.{backend}")
        except ImportError as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise UserError(
                f"--comm horovod: Horovod does not serve {backend} here ({lines[0]})", ("horovod",)
            ) from error
        me = LaunchEnv.detect()
        if me:
            self.rank, self.size = me.rank, me.size
        with Wait(lambda: f"{self.others()}, to be started by {me.launcher if me else 'MPI'}"):
            self.hvd.init()
        self.rank, self.size = self.hvd.rank(), self.hvd.size()
        self.local_rank = self.hvd.local_rank()
        if backend == "torch":  # `tensorflow.train_step.configure` does it for TensorFlow
            choose_gpu(self.local_rank)

    def sum_array(self, array: np.ndarray) -> np.ndarray:
        return self._call(self.hvd.allreduce, array, op=self.hvd.Sum)

    def broadcast_vector(self, vector: np.ndarray) -> np.ndarray:
        return self._call(self.hvd.broadcast, vector, root_rank=0)

    def check_gpu_exchange(self) -> None:
        """Raise UserError if Horovod would abort the process on tensors of a GPU."""
        if not self.hvd.cuda_built():
            raise UserError(
                "--comm horovod: Horovod was built without CUDA, for gradients in host memory: use"
                " --comm ddp, or install the CUDA toolkit and NCCL's headers and build it again",
                ("horovod",),
            )

    def _call(self, operation: Any, array: np.ndarray, **options: Any) -> np.ndarray:
        if self.backend == "torch":
            import torch

            return operation(torch.from_numpy(array), **options).numpy()
        import tensorflow as tf

        with tf.device("CPU:0"):  # arrays in host memory stay there
            tensor = tf.constant(array)
        return operation(tensor, **options).numpy()
