"""Our training step, or prediction, against timm's: interleaved pairs of processes, their ratios.

    python benchmarks/train_step.py --pairs 10 --size 224 --batch 16 --dtype float32
    python benchmarks/train_step.py --pairs 10 --batch 32 --dtype bfloat16 --inference

Ours runs as `rn50 run` does, with the allocator setting that `launch` gives its ranks; timm's as a
user runs it, or with the same setting. Both on synthetic images, so that no input is timed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from rn50lib.launch import ALLOCATOR

HERE = Path(__file__).resolve().parent


def ours(args: argparse.Namespace) -> float:
    """Images per second of our step, from the report of a run."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "r.json"
        command = [sys.executable, "-m", "rn50lib.cli", "run", "--run-dir", folder,
                   "--loader", "synthetic", "-e", "1", "--num-classes", "1000",
                   "--only-inference" if args.inference else "--no-val",
                   "--image-shape", str(args.size), "-b", str(args.batch), "--dtype", args.dtype,
                   "--benchmark-iters", str(args.steps + 1), "--report", str(report)]  # fmt: skip
        env = dict(os.environ)
        env["PYTHONPATH"] = str(HERE.parent)
        if args.plain:  # any glibc.malloc setting of the user's own is left alone by launch
            env["GLIBC_TUNABLES"] = "glibc.malloc.tcache_count=7"
        subprocess.run(command, check=True, capture_output=True, env=env)
        phase = "val" if args.inference else "train"
        return json.loads(report.read_text())["metrics"][f"{phase}.total_ips"][0]


def timm(args: argparse.Namespace) -> float:
    """Images per second of timm's step."""
    command = [sys.executable, str(HERE / "timm_step.py"), "--size", str(args.size),
               "--batch", str(args.batch), "--dtype", args.dtype,
               "--steps", str(args.steps), *(["--inference"] * args.inference)]  # fmt: skip
    env = os.environ | ({"GLIBC_TUNABLES": ALLOCATOR} if args.same_allocator else {})
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=env)
    return args.batch / statistics.fmean(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32")
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--inference", action="store_true", help="predict instead of training")
    parser.add_argument("--same-allocator", action="store_true", help="give timm our setting too")
    parser.add_argument("--plain", action="store_true", help="take our setting away from ours")
    args = parser.parse_args()
    ratios, mine, theirs = [], [], []
    for _ in range(args.pairs):
        mine.append(ours(args))
        theirs.append(timm(args))
        ratios.append(mine[-1] / theirs[-1])
        print(
            f"ours {mine[-1]:6.2f}  timm {theirs[-1]:6.2f} img/s  ratio {ratios[-1]:.3f}",
            flush=True,
        )
    print(
        f"median: ours {statistics.median(mine):.2f}, timm {statistics.median(theirs):.2f} img/s,"
        f" ratio {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f},"
        f" n = {args.pairs}), {args.size} px, batch {args.batch}, {args.dtype},"
        f" {'inference' if args.inference else 'training'}"
    )


if __name__ == "__main__":
    main()
