"""The bare all-reduce of a PyTorch tensor, as the exchange of gradients uses it: for measuring."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import distributed

from rn50lib.comm.horovod import check_gpu_exchange

Exchange = Callable[[int], Callable[[], object]]


def exchanger(comm: Any) -> tuple[str, str, Exchange]:
    """(device, how, exchange): `exchange(size)` returns a function that adds up a float32 tensor of
    `size` bytes over all ranks, in place, and comes back when that is done.

    The tensor is on this rank's GPU where there is one.
    """
    gpu = torch.cuda.is_available()
    # the group has chosen this worker's GPU
    device = torch.device("cuda", torch.cuda.current_device()) if gpu else torch.device("cpu")
    wait = torch.cuda.synchronize if gpu else lambda: None
    hvd = getattr(comm, "hvd", None)
    if gpu and hvd is not None:
        check_gpu_exchange(hvd)

    def exchange(size: int) -> Callable[[], object]:
        # zeros, because sums of sums of anything else would not stay finite
        tensor = torch.zeros(max(1, size // 4), device=device)

        def reduce() -> None:
            if hvd is not None:
                hvd.allreduce_(tensor, name=f"measured/{size}", op=hvd.Sum)
            else:
                distributed.all_reduce(tensor)
            wait()

        return reduce

    where = torch.cuda.get_device_name(device) if gpu else "host memory"
    return where, "PyTorch tensors in place", exchange
