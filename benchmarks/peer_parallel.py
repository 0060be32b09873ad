"""The peer for many workers: ResNet-50 under Horovod, or under DDP as its manual says or tuned.

    torchrun --nproc-per-node 2 benchmarks/peer_parallel.py tuned-ddp --size 64 --batch 16

Every worker takes cores of its own; rank 0 prints the seconds of each step as JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import time

import peers
import torch
import torch.distributed.nn  # before a group exists: imported later, it would hold on to it
from torch.nn import functional as F

parser = argparse.ArgumentParser()
parser.add_argument("transport", choices=("horovod", "ddp", "tuned-ddp"))
parser.add_argument("--size", type=int, default=64)
parser.add_argument("--batch", type=int, default=16)
parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
parser.add_argument("--steps", type=int, default=8)
args = parser.parse_args()

if args.transport == "horovod":
    import horovod.torch as hvd

    hvd.init()
    rank, size = hvd.rank(), hvd.size()
else:
    torch.distributed.init_process_group("gloo")
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
cores = sorted(os.sched_getaffinity(0))
each = max(1, len(cores) // size)
os.sched_setaffinity(0, cores[rank * each : (rank + 1) * each])
torch.set_num_threads(each)
model = peers.ResNet50()
tuned = args.transport == "tuned-ddp"
optimizer = torch.optim.SGD(
    model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=tuned or None
)
if args.transport == "horovod":
    hvd.broadcast_parameters(model.state_dict(), root_rank=0)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
else:
    # tuned: gradients lie in the buckets that are sent, running statistics stay where they are, and
    # the graph is known to be the same in every step, as ResNet-50's is
    how = ("gradient_as_bucket_view", "static_graph") if tuned else ()
    model = torch.nn.parallel.DistributedDataParallel(
        model.to(memory_format=torch.channels_last), broadcast_buffers=not tuned,
        **dict.fromkeys(how, True),
    )  # fmt: skip
images = torch.rand(args.batch, 3, args.size, args.size).to(memory_format=torch.channels_last)
labels = torch.randint(0, 1000, (args.batch,))
seconds = []
for _ in range(args.steps + 1):
    begin = time.perf_counter()
    with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bfloat16"):
        loss = F.cross_entropy(model(images), labels)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    seconds.append(time.perf_counter() - begin)
if rank == 0:
    print("seconds " + json.dumps(seconds[1:]), flush=True)  # the first step fills caches
if args.transport != "horovod":
    del model  # it refers to the group, whose threads end with the last reference
    torch.distributed.destroy_process_group()
