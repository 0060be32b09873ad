import time
from datetime import timedelta

import torch
from torch import distributed as dist

# NCCL's default is 10 minutes; here, it is 8 seconds
dist.init_process_group("gloo", timeout=timedelta(seconds=8))
rank = dist.get_rank()


def prepare():
    """Index the data set, on rank 0 alone."""
    time.sleep(14)


if rank == 0:
    prepare()
ready = torch.ones(1)
dist.all_reduce(ready)
print(f"rank {rank}: {ready.item():.0f} ranks are ready", flush=True)
