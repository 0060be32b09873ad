"""A group of workers connected by torch.distributed, started by `torchrun`."""

from __future__ import annotations

import atexit
import os
from datetime import timedelta

import numpy as np
import torch
from torch import distributed as dist

from rn50lib.distributed import Comm, choose_gpu
from rn50lib.distributed.launch_env import LaunchEnv, torch_environment
from rn50lib.errors import UserError


class Ddp(Comm):
    """`Comm` over torch.distributed: Gloo for arrays in host memory, NCCL for gradients on GPUs.

    Raises UserError if this process was not started as a worker.
    """

    def __init__(self, timeout: float | None = None) -> None:
        me = LaunchEnv.detect()
        if me is not None and me.launcher == "srun":
            os.environ.update(torch_environment(me))
        if "RANK" not in os.environ:
            raise UserError(
                "--comm ddp: this process has no rank: start it with `rn50 run -n N`, or with"
                " torchrun or srun"
            )
        self.local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        choose_gpu(self.local_rank)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
            timeout=None if timeout is None else timedelta(seconds=timeout),
        )
        # a group that is still open at the interpreter's end can abort it ("terminate called ...")
        atexit.register(leave)
        self.rank, self.size = dist.get_rank(), dist.get_world_size()

    def sum_vector(self, vector: np.ndarray) -> np.ndarray:  # noqa: D102
        total = torch.from_numpy(vector.copy())
        dist.all_reduce(total)
        return total.numpy()

    def broadcast_vector(self, vector: np.ndarray) -> np.ndarray:  # noqa: D102
        copy = torch.from_numpy(vector.copy())
        dist.broadcast(copy, src=0)
        return copy.numpy()


def leave() -> None:
    """Close the group if it is still open."""
    if dist.is_initialized():
        dist.destroy_process_group()
