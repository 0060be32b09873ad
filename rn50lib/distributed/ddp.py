"""A group of workers connected by torch.distributed, started by `torchrun`."""

from __future__ import annotations

import atexit
import os
import time
from datetime import timedelta
from typing import Any

import numpy as np
import torch
from torch import distributed as dist

from rn50lib.distributed import Comm, choose_gpu, ranks
from rn50lib.distributed.launch_env import LaunchEnv, torch_environment
from rn50lib.errors import UserError, first_line
from rn50lib.lifetime import Wait


class Ddp(Comm):
    """`Comm` over torch.distributed: Gloo for arrays in host memory, NCCL for gradients on GPUs.

    Raises UserError if this process was not started as a worker.
    """

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
        store = self.meet(dist.default_pg_timeout.total_seconds() if timeout is None else timeout)
        with Wait(self.others):
            dist.init_process_group(
                "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo",
                timeout=None if timeout is None else timedelta(seconds=timeout),
                store=store, rank=self.rank, world_size=self.size,
            )  # fmt: skip
        # a group that is still open at the interpreter's end can abort it ("terminate called ...")
        atexit.register(leave)

    def meet(self, timeout: float) -> Any:
        """Wait until all ranks have come, and return the store that connects them.

        Raises UserError, which names the ranks that have not come.
        """
        env, end = os.environ, time.monotonic() + timeout
        address, port = env["MASTER_ADDR"], int(env["MASTER_PORT"])
        at = f"at {address}:{port} (MASTER_ADDR:MASTER_PORT)"
        hosts = self.rank == 0 and env.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
        # until the store can tell
        missing = [0] if self.rank else list(range(1, self.size))
        try:
            with Wait(lambda: f"{ranks(missing)} of {self.size} {at}"):
                store = dist.TCPStore(
                    address, port, self.size, hosts, timedelta(seconds=timeout),
                    wait_for_workers=False,
                )  # fmt: skip
                attempt = env.get("TORCHELASTIC_RESTART_COUNT", "0")
                store = dist.PrefixStore(f"rn50/{attempt}", store)
                store.set(str(self.rank), "")
                missing = list(range(self.size))
                while missing := [rank for rank in missing if not store.check([str(rank)])]:
                    if time.monotonic() > end:
                        raise UserError(
                            f"--comm ddp: {ranks(missing)} of {self.size} did not come {at} within"
                            f" {timeout:.0f} s: start all of them, with the same address"
                        )
                    time.sleep(0.05)
        except RuntimeError as error:
            raise UserError(
                f"--comm ddp: rank {self.rank} cannot reach the others {at}: {first_line(error)};"
                " set these variables to the host of rank 0 and to a free port there"
            ) from error
        return store

    def sum_vector(self, vector: np.ndarray) -> np.ndarray:  # noqa: D102
        total = torch.from_numpy(vector.copy())
        with Wait(self.others):
            dist.all_reduce(total)
        return total.numpy()

    def broadcast_vector(self, vector: np.ndarray) -> np.ndarray:  # noqa: D102
        copy = torch.from_numpy(vector.copy())
        with Wait(self.others):
            dist.broadcast(copy, src=0)
        return copy.numpy()


def leave() -> None:
    """Close the group if it is still open."""
    if dist.is_initialized():
        dist.destroy_process_group()
