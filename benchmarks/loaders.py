"""Our loaders beside bare scripts: images per second from 500 x 375 JPEGs, in turns.

    python benchmarks/loaders.py --rounds 10 --sizes 224 64 --cores 1 2

Every contestant decodes the same files (drawn on first use), crops 5 to 100 % of their area at
random, makes that small and delivers batches of 64 as uint8; the first batch is not timed. All are
held to the same cores. Contestants of one table do the same work: antialiased, or, with --fast,
without; all but torchvision, which cannot, decode in libjpeg's quick way. The bare torchvision script needs torchvision 0.28 (see timm in tests/capabilities.toml).
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import re
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import loader_images
from rounds import interval, run_rounds

from rn50lib.launch import ALLOCATOR

HERE = Path(__file__).resolve().parent
OURS = {  # name: loader, backend
    "native, torch": ("native", "torch"),
    "native, tensorflow": ("native", "tensorflow"),
    "dali": ("dali", "torch"),
}
BARE = {
    "bare torchvision": "peer_loader_torchvision.py",
    "bare tf.data": "peer_loader_tensorflow.py",
    "bare DALI": "peer_loader_dali.py",
}
PAIRS = (  # ours, what it is measured against, by how much it should be faster
    ("native, torch", "bare torchvision", 2.0),
    ("native, torch", "bare tf.data", 1.2),
    ("native, torch", "bare DALI", 1.2),
    ("native, tensorflow", "bare tf.data", 1.0),
    ("dali", "bare DALI", 1.0),
)


def run(args: argparse.Namespace, command: list[str], allocator: bool) -> str:
    """What a command prints, held to the cores."""
    paths = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    if allocator:
        env["GLIBC_TUNABLES"] = ALLOCATOR
    held = ["taskset", "-c", ",".join(str(core) for core in range(args.core_count)), *command]
    return subprocess.run(held, check=True, capture_output=True, text=True, env=env).stdout


def ours(args: argparse.Namespace, loader: str, backend: str) -> float:
    """Seconds an image of `rn50 train --test-io`, with the allocator setting of `rn50 run`."""
    command = [sys.executable, "-m", "rn50lib.cli", "train", "--test-io", "-e", "1", "--loader",
               loader, "--backend", backend, "--data-root", str(args.root), "--data-format",
               args.data_format, "--recipe", "reference", "--image-shape", str(args.size), "-b",
               "64", "--data-nthreads", str(args.core_count), "--threads", "1"]  # fmt: skip
    if args.fast:
        command += ["--resample", "fast"]
    rate = re.search(r"epoch 1: ([\d.]+) img/s", run(args, command, allocator=True))
    assert rate is not None
    return 1 / float(rate[1])


def bare(args: argparse.Namespace, script: str) -> float:
    """Seconds an image of a bare script."""
    command = [sys.executable, str(HERE / script), str(args.root), "--size", str(args.size),
               "--workers", str(args.core_count), *(["--fast"] if args.fast else [])]  # fmt: skip
    return json.loads(run(args, command, args.same_allocator).splitlines()[-1])["seconds"]


def contestants(args: argparse.Namespace) -> dict[str, Callable[[], float]]:
    found: dict[str, Callable[[], float]] = {}
    for name, (loader, backend) in OURS.items():
        if not (args.fast and name == "native, torch"):  # it has no fast variant
            found[name] = lambda loader=loader, backend=backend: ours(args, loader, backend)
    for name, script in BARE.items():
        if args.fast and "torchvision" in name:
            continue
        if "torchvision" in name and not importlib.util.find_spec("torchvision"):
            print("torchvision is not installed: left out", file=sys.stderr)
            continue
        found[name] = lambda script=script: bare(args, script)
    chosen = args.only or found
    return {k: v for k, v in found.items() if any(part in k for part in chosen)}


def table(args: argparse.Namespace) -> None:
    """One size on one number of cores."""
    how = "fast" if args.fast else "antialiased"
    print(f"{args.size} px, {args.core_count} core(s), {how}, {args.data_format}", flush=True)
    seconds = run_rounds(contestants(args), args.rounds)
    for name, values in seconds.items():
        print(f"  {name:20} {1 / statistics.median(values):7,.0f} img/s")
    for mine, peer, goal in PAIRS:
        if mine in seconds and peer in seconds:
            pairs = zip(seconds[mine], seconds[peer], strict=True)
            middle, low, high = interval([other / own for own, other in pairs])
            print(f"  {mine} / {peer}: {middle:.2f} ({low:.2f} to {high:.2f}), goal {goal}")
    sys.stdout.flush()


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--sizes", type=int, nargs="+", default=[224, 64])
    parser.add_argument("--cores", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--images", type=int, default=1200)
    parser.add_argument("--root", type=Path, default=HERE.parent / "data" / "loader-images")
    parser.add_argument(
        "--fast", action="store_true", help="compare the variants of --resample fast"
    )
    parser.add_argument("--data-format", default="files", help="what ours read (default: files)")
    parser.add_argument("--same-allocator", action="store_true", help="give the bare scripts ours")
    parser.add_argument("--only", nargs="+", help="contestants by a part of their name")
    args = parser.parse_args()
    count, stored = loader_images.make(args.root, args.images)
    print(f"{count:,} JPEGs of {stored / 1000:.1f} KB, {args.rounds} rounds")
    for size, cores in itertools.product(args.sizes, args.cores):
        args.size, args.core_count = size, cores
        table(args)


if __name__ == "__main__":
    main()
