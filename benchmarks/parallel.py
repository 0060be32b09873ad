"""Two workers: ours, and the scripts of good users of DDP and Horovod; in turns.

    python benchmarks/parallel.py --rounds 10 --size 64 --batch 16 --dtype float32

All have one core per worker, the same batch per worker and the same allocator setting; images are
synthetic. `rn50 run` on one worker and one core shows what sharing costs.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

import measure

OURS = {"rn50 DDP": (2, "ddp"), "rn50 Horovod": (2, "horovod"), "rn50, 1 worker": (1, "local")}
PEERS = {
    "DDP": ["torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"],
    "Horovod": ["horovod.runner.launch", "--gloo", "-np", "2", "--network-interface", "lo"],
}
PAIRS = (("rn50 DDP", "DDP"), ("rn50 Horovod", "Horovod"), ("rn50 DDP", "rn50, 1 worker"))


def seconds_per_step(args: argparse.Namespace, name: str) -> float:
    """Return the seconds per step of a contestant, without the first step."""
    if name in PEERS:
        command = [sys.executable, "-m", *PEERS[name], sys.executable, __file__, "--peer",
                   name, "--size", args.size, "--batch", args.batch, "--dtype", args.dtype,
                   "--steps", args.steps]  # fmt: skip
        shown = re.search(r"seconds (\[.*\])", measure.output(command, cores=2))
        return statistics.fmean(json.loads(shown[1]))
    n, comm = OURS[name]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "rn50", "run", "--run-dir", folder, "--loader",
                   "synthetic", "--no-val", "-e", "1", "--num-classes", "1000", "--image-shape",
                   args.size, "-b", args.batch, "--dtype", args.dtype, "-n", n, "--benchmark-iters",
                   args.steps + 1, "--threads", "1",
                   *(["--comm", comm] if n > 1 else [])]  # fmt: skip
        measure.output(command, cores=n)
        report = json.loads(Path(folder, "report.json").read_text())
    return report["metrics"]["train.time"][0]


def work_as_peer(args: argparse.Namespace) -> None:
    """Train as one worker of a peer; rank 0 prints the seconds of each step as JSON."""
    import torch
    import torch.distributed.nn.functional  # if imported later, it keeps the process group open
    from torch.nn import functional as F

    with_horovod = args.peer == "Horovod"
    if with_horovod:
        import horovod.torch as hvd

        hvd.init()
        rank = hvd.rank()
    else:
        torch.distributed.init_process_group("gloo")
        rank = torch.distributed.get_rank()
    torch.set_num_threads(1)
    model = measure.import_torchvision().models.resnet50()
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=True
    )
    if with_horovod:
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    else:
        # gradients are views of the buckets that are sent, running statistics are not sent, and
        # the graph is known to be the same in every step, as ResNet-50's is
        model = torch.nn.parallel.DistributedDataParallel(
            model.to(memory_format=torch.channels_last),  # Horovod sends contiguous tensors only
            broadcast_buffers=False, gradient_as_bucket_view=True, static_graph=True,
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
    if not with_horovod:
        del model  # it keeps the process group open, too
        torch.distributed.destroy_process_group()  # else Gloo can abort Python at its exit


def main() -> None:
    """Run the comparison."""
    parser = measure.arguments(__doc__)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16, help="per worker")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--peer", choices=tuple(PEERS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return work_as_peer(args)
    measure.set_environment()
    work = {name: functools.partial(seconds_per_step, args, name)
            for name in measure.chosen((*OURS, *PEERS), args)}  # fmt: skip
    what = f"2 workers, {args.size} px, batch {args.batch} per worker, {args.dtype}"
    print(f"seconds per step, {what}")
    measure.print_table(measure.run_rounds(work, args.rounds), PAIRS, what, args.batch)


if __name__ == "__main__":
    main()
