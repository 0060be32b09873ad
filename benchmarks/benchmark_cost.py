"""What `rn50 benchmark` adds to what it measures: the same cell by it and by `rn50 run`, in turns.

    python benchmarks/benchmark_cost.py --rounds 10 --size 64 --batch 32 --dtype float32

Both train ResNet-50 on synthetic images with the same flags; compared are the seconds per iteration
that each reports. The sweep's own time beyond the measured iterations is shown apart.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rounds import print_table, run_rounds

PROGRAM = [sys.executable, "-m", "rn50"]


def flags(args: argparse.Namespace) -> list[str]:
    """What both are given."""
    return ["--loader", "synthetic", "--network", args.network, "--image-shape", str(args.size),
            "-b", str(args.batch), "--dtype", args.dtype, "-n", "1", "-e", "2",
            "--benchmark-iters", str(args.steps + 1), "--no-val"]  # fmt: skip


def by_run(args: argparse.Namespace) -> float:
    """Seconds of an iteration in the second epoch, as `rn50 run` reports it."""
    with tempfile.TemporaryDirectory() as folder:
        command = [*PROGRAM, "run", "--run-dir", folder, "--no-metrics", *flags(args)]
        subprocess.run(command, check=True, capture_output=True)
        report = json.loads((Path(folder) / "report.json").read_text())
    return report["metrics"]["train.time"][1]


def by_benchmark(args: argparse.Namespace, beyond: list[float]) -> float:
    """The same, as `rn50 benchmark` reports it; adds to `beyond` the other seconds it took."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "out.json"
        begin = time.perf_counter()
        command = [*PROGRAM, "benchmark", "-o", str(file), "-w", "1", *flags(args)]
        env = os.environ | {"RN50_RUNS": folder}
        subprocess.run(command, check=True, capture_output=True, env=env)
        whole = time.perf_counter() - begin
        rate = json.loads(file.read_text())["metrics"]["1"][str(args.batch)]["train.total_ips"]
    seconds = args.batch / rate
    beyond.append(whole - 2 * args.steps * seconds)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--network", default="resnet", choices=("resnet", "tiny"))
    parser.add_argument("--size", type=int, default=64, help="pixels (64)")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--steps", type=int, default=20, help="iterations that are timed (20)")
    parser.add_argument("--dtype", default="float32")
    args = parser.parse_args()
    beyond: list[float] = []
    contestants = {
        "rn50 run": lambda: by_run(args),
        "rn50 benchmark": lambda: by_benchmark(args, beyond),
    }
    seconds = run_rounds(contestants, args.rounds)
    print_table(seconds, "rn50 run", args.batch, "img")
    other = statistics.median(beyond)
    print(
        f"a benchmark of one cell takes {other:.1f} s beyond its iterations: start, warm-up, file"
    )


if __name__ == "__main__":
    main()
