"""Two workers: ours and scripts with Horovod or DDP, plain and tuned; in turns.

    python benchmarks/parallel.py --rounds 10 --size 64 --batch 16 --dtype float32

All have one core per worker, the same batch per worker and the same allocator setting; images are
synthetic. `rn50 run` on one worker and one core shows what sharing costs. With --peer this program
is one worker of a peer.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rounds import arguments, environment, print_table, run_rounds, summarise

HOROVOD = ["-m", "horovod.runner.launch", "--gloo", "-np", "2", "--network-interface", "lo"]
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"]
OURS = {"rn50 DDP": (2, "ddp"), "rn50 Horovod": (2, "horovod"), "rn50, 1 worker": (1, "local")}
PEERS = {"tuned DDP": TORCHRUN, "plain DDP": TORCHRUN, "plain Horovod": HOROVOD}
PAIRS = (
    ("rn50 DDP", "tuned DDP"), ("rn50 DDP", "plain DDP"), ("rn50 Horovod", "plain Horovod"),
)  # fmt: skip


def seconds_per_step(args: argparse.Namespace, name: str) -> float:
    """Return the seconds per step of a contestant, without the first step."""
    shared = ["--size", args.size, "--batch", args.batch, "--dtype", args.dtype]
    if name in PEERS:
        command = [*PEERS[name], sys.executable, __file__, "--peer", name, *shared,
                   "--steps", args.steps]  # fmt: skip
        line = next(x for x in run(command).splitlines() if "seconds [" in x)
        return statistics.fmean(json.loads(line[line.index("[", line.index("seconds")) :]))
    n, comm = OURS[name]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        command = ["-m", "rn50", "run", "--run-dir", folder, "--loader", "synthetic", "--no-val",
                   "-e", "1", "--num-classes", "1000", "--image-shape", args.size, "-b", args.batch,
                   "--dtype", args.dtype, "-n", n, "--benchmark-iters", args.steps + 1, "--threads",
                   "1", *(["--comm", comm, "--set", "bind=core"] if n > 1 else [])]  # fmt: skip
        run(command, one_core=n == 1)
        return json.loads(report.read_text())["metrics"]["train.time"][0]


def run(words: list[object], one_core: bool = False) -> str:
    """Run a Python program, on one core if asked to, and return what it printed."""
    command = ["taskset", "-c", str(min(os.sched_getaffinity(0)))] if one_core else []
    command += [sys.executable, *map(str, words)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment(1))
    return done.stdout


def work_as_peer(args: argparse.Namespace) -> None:
    """Train as one worker of a peer; rank 0 prints the seconds of each step as JSON."""
    import peers
    import torch
    import torch.distributed.nn  # before a group exists: imported later, it would hold on to it
    from torch.nn import functional as F

    if args.peer == "plain Horovod":
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
    model, tuned = peers.ResNet50(), args.peer == "tuned DDP"
    optimizer = torch.optim.SGD(
        model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4, fused=tuned or None
    )
    if args.peer == "plain Horovod":
        hvd.broadcast_parameters(model.state_dict(), root_rank=0)
        optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    else:
        # tuned: gradients are views of the buckets that are sent, running statistics are not sent,
        # and the graph is known to be the same in every step, as ResNet-50's is
        model = torch.nn.parallel.DistributedDataParallel(
            model.to(memory_format=torch.channels_last), broadcast_buffers=not tuned,
            gradient_as_bucket_view=tuned, static_graph=tuned,
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
    if args.peer != "plain Horovod":
        del model  # it refers to the group, whose threads end with the last reference
        torch.distributed.destroy_process_group()


def main() -> None:
    """Run the comparison."""
    parser = arguments(__doc__)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16, help="per worker")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--peer", choices=tuple(PEERS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.peer:
        return work_as_peer(args)
    work = {name: functools.partial(seconds_per_step, args, name) for name in (*OURS, *PEERS)
            if not args.only or any(part in name for part in args.only)}  # fmt: skip
    what = f"2 workers, {args.size} px, batch {args.batch} per worker, {args.dtype}"
    print(f"seconds per step, {what}")
    seconds = run_rounds(work, args.rounds)
    print_table(seconds, next(iter(work)), args.batch, "img")
    summarise(seconds, PAIRS, what)


if __name__ == "__main__":
    main()
