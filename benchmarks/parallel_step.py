"""Two workers: ours and scripts with Horovod or DDP, plain and tuned; in turns.

    python benchmarks/parallel_step.py --rounds 10 --size 64 --batch 16 --dtype float32

All have one core a worker, the same batch per worker and the same allocator setting; images are
synthetic. `rn50 run` on one worker and one core shows what sharing costs.
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
from collections.abc import Callable
from pathlib import Path

from rounds import environment, print_table, run_rounds, summarise

HERE = Path(__file__).resolve().parent
LAUNCHERS = {
    "horovod": ["-m", "horovod.runner.launch", "--gloo", "-np", "2", "--network-interface", "lo"],
    "ddp": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "--no-python"],
}
OURS = {"rn50 DDP": (2, "ddp"), "rn50 Horovod": (2, "horovod"), "rn50, 1 worker": (1, "local")}
PEERS = {"tuned DDP": "tuned-ddp", "plain DDP": "ddp", "plain Horovod": "horovod"}
PAIRS = (
    ("rn50 DDP", "tuned DDP"), ("rn50 DDP", "plain DDP"), ("rn50 Horovod", "plain Horovod"),
)  # fmt: skip


def ours(args: argparse.Namespace, name: str) -> float:
    """Return the seconds a step of `rn50 run`, without the first one."""
    n, comm = OURS[name]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "r.json"
        command = [sys.executable, "-m", "rn50", "run", "--run-dir", folder, "--loader",
                   "synthetic", "--no-val", "-e", "1", "--num-classes", "1000", "--image-shape",
                   str(args.size), "-b", str(args.batch), "--dtype", args.dtype, "-n", str(n),
                   "--benchmark-iters", str(args.steps + 1), "--report", str(report)]  # fmt: skip
        if n == 1:
            command = ["taskset", "-c", str(min(os.sched_getaffinity(0))), *command]
            command += ["--threads", "1"]
        else:
            command += ["--comm", comm, "--bind", "core"]
        subprocess.run(command, check=True, capture_output=True, env=environment(1))
        return json.loads(report.read_text())["metrics"]["train.time"][0]


def peer(args: argparse.Namespace, name: str) -> float:
    """Return the seconds a step of a script of others."""
    launcher = LAUNCHERS["horovod" if PEERS[name] == "horovod" else "ddp"]
    command = [sys.executable, *launcher, sys.executable, str(HERE / "peer_parallel.py"),
               PEERS[name], "--size", str(args.size), "--batch", str(args.batch), "--dtype",
               args.dtype, "--steps", str(args.steps)]  # fmt: skip
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment(1))
    line = next(x for x in done.stdout.splitlines() if "seconds [" in x)
    return statistics.fmean(json.loads(line[line.index("[", line.index("seconds")) :]))


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16, help="per worker")
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--only", nargs="+", help="contestants (default: all)")
    args = parser.parse_args()
    contestants: dict[str, Callable[[], float]] = {
        name: functools.partial(function, args, name)
        for function, names in ((ours, OURS), (peer, PEERS))
        for name in names
        if not args.only or any(part in name for part in args.only)
    }
    what = f"2 workers, {args.size} px, batch {args.batch} per worker, {args.dtype}"
    print(f"seconds a step, {what}")
    seconds = run_rounds(contestants, args.rounds)
    print_table(seconds, next(iter(contestants)), args.batch, "img")
    summarise(seconds, PAIRS, what)


if __name__ == "__main__":
    main()
