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
from rn50lib.errors import UserError, first_line
from rn50lib.lifetime import Wait


class Ddp(Comm):
    """`Comm` over torch.distributed: Gloo for arrays in host memory, NCCL for gradients on GPUs."""

    name = "ddp"

    def __init__(self, timeout: float | None = None) -> None:
        me = LaunchEnv.detect()
        if me is None:
            raise UserError(
                "--comm ddp: this process has no rank: start the workers with torchrun or srun",
                ("workers", "N"),
            )
        os.environ.update(torch_environment(me))
        self.rank, self.size, self.local_rank = me.rank, me.size, me.local_rank
        choose_gpu(self.local_rank)
        try:
            with Wait(self.others):
                dist.init_process_group(
                    "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
                    timeout=None if timeout is None else timedelta(seconds=timeout),
                )
        except (RuntimeError, ValueError) as error:
            where = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
            raise UserError(
                f"--comm ddp: rank {self.rank} of {self.size} cannot reach the others at {where}:"
                f" {first_line(error)}; start all of them, and set MASTER_ADDR and MASTER_PORT to"
                " the host of rank 0 and to a free port there"
            ) from error
        # a group that is still open at the interpreter's end can abort it ("terminate called ...")
        atexit.register(leave)

    def sum_array(self, array: np.ndarray) -> np.ndarray:
        total = torch.from_numpy(array.copy())
        dist.all_reduce(total)
        return total.numpy()

    def broadcast_vector(self, vector: np.ndarray) -> np.ndarray:
        copy = torch.from_numpy(vector.copy())
        dist.broadcast(copy, src=0)
        return copy.numpy()


def leave() -> None:
    """Close the group if it is still open."""
    if dist.is_initialized():
        dist.destroy_process_group()
