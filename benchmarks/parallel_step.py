"""Two workers: ours beside scripts with Horovod or DDP, plain and tuned; in turns.

    python benchmarks/parallel_step.py --rounds 10 --size 64 --batch 16 --dtype float32

All have one core a worker, the same batch per worker and the same allocator setting (--plain: none
has it); images are synthetic. `rn50 run` on one worker and one core shows what sharing costs.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from rounds import print_table, ratios, run_rounds, spread, stated_machine

from rn50lib.launch import ALLOCATOR, with_library

HERE = Path(__file__).resolve().parent
LAUNCHERS = {
    "horovod": ["-m", "horovod.runner.launch", "--gloo", "-np", "2", "--network-interface", "lo"],
    "ddp": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"],
}
PAIRS = (
    ("rn50 DDP", "tuned DDP"), ("rn50 DDP", "plain DDP"), ("rn50 Horovod", "plain Horovod"),
)  # fmt: skip


def environment(plain: bool) -> dict[str, str]:
    # a glibc.malloc setting of the user's own is left alone by `rn50 run`; this one is the default
    tunables = "glibc.malloc.tcache_count=7" if plain else ALLOCATOR
    return with_library(os.environ | {"GLIBC_TUNABLES": tunables, "OMP_NUM_THREADS": "1"})


def ours(args: argparse.Namespace, n: int, comm: str) -> float:
    """Seconds a step of `rn50 run`, the first one left out."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "r.json"
        command = [sys.executable, "-m", "rn50lib.cli", "run", "--run-dir", folder, "--loader",
                   "synthetic", "--no-val", "-e", "1", "--num-classes", "1000", "--image-shape",
                   str(args.size), "-b", str(args.batch), "--dtype", args.dtype, "-n", str(n),
                   "--benchmark-iters", str(args.steps + 1), "--report", str(report)]  # fmt: skip
        if n == 1:
            command = ["taskset", "-c", "0", *command, "--threads", "1"]
        else:
            command += ["--comm", comm, "--bind", "core"]
        subprocess.run(command, check=True, capture_output=True, env=environment(args.plain))
        return json.loads(report.read_text())["metrics"]["train.time"][0]


def bare(args: argparse.Namespace, transport: str) -> float:
    """Seconds a step of the bare script."""
    launcher = LAUNCHERS["horovod" if transport == "horovod" else "ddp"]
    command = [sys.executable, *launcher, sys.executable,
               str(HERE / "peer_parallel.py"), transport, "--size", str(args.size), "--batch",
               str(args.batch), "--dtype", args.dtype, "--steps", str(args.steps)]  # fmt: skip
    done = subprocess.run(
        command, check=True, capture_output=True, text=True, env=environment(args.plain)
    )
    line = next(x for x in done.stdout.splitlines() if "seconds [" in x)
    return statistics.fmean(json.loads(line[line.index("[", line.index("seconds")) :]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16, help="per worker")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--plain", action="store_true", help="glibc's default allocator")
    parser.add_argument("--only", nargs="+", help="contestants (default: all)")
    args = parser.parse_args()
    contestants: dict[str, Callable[[], float]] = {
        "rn50 DDP": lambda: ours(args, 2, "ddp"),
        "tuned DDP": lambda: bare(args, "tuned-ddp"),
        "plain DDP": lambda: bare(args, "ddp"),
        "rn50 Horovod": lambda: ours(args, 2, "horovod"),
        "plain Horovod": lambda: bare(args, "horovod"),
        "rn50, 1 worker": lambda: ours(args, 1, "local"),
    }
    if args.only:
        contestants = {k: v for k, v in contestants.items() if any(o in k for o in args.only)}
    with stated_machine():
        what = f"2 workers, {args.size} px, batch {args.batch} per worker, {args.dtype}"
        print(f"seconds a step, {what}")
        seconds = run_rounds(contestants, args.rounds)
        print_table(seconds, next(iter(contestants)), args.batch, "img")
        for own, peer in PAIRS:
            if own in seconds and peer in seconds:
                faster = spread(ratios(seconds, peer, own))
                print(f"SUMMARY {what}: {own} / {peer} = {faster}, n = {args.rounds}")


if __name__ == "__main__":
    main()
