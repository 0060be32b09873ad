"""Our loaders beside bare scripts: images per second from 500 x 375 JPEGs, in turns.

    python benchmarks/loaders.py --rounds 10 --sizes 224 64 --cores 1 2
    python benchmarks/loaders.py --rounds 3 --side-by-side 30   # for a machine that others use
    python benchmarks/loaders.py --images 4800   # longer epochs: their start counts less

Every contestant decodes the same files (drawn on first use), crops 5 to 100 % of their area at
random, makes that small and delivers batches of 64 as uint8; the first batch is not timed. Ours
start anew with each epoch, as training needs, and the bare scripts do not. All are held to the same
cores. Contestants of one table do the same work: antialiased, or, with --fast,
without; all but torchvision, which cannot, decode in libjpeg's quick way. The bare torchvision
script needs torchvision 0.28 (see timm in tests/capabilities.toml).
"""

from __future__ import annotations

import argparse
import functools
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
from side_by_side import Program, seconds_a_share

from rn50lib.launch import ALLOCATOR

HERE = Path(__file__).resolve().parent
OURS = {  # name: loader, backend
    "native, torch": ("native", "torch"),
    "native, tensorflow": ("native", "tensorflow"),
    "dali": ("dali", "torch"),
}
BARE = {
    "bare torchvision": ["peer_loader_torchvision.py"],
    "bare tf.data": ["peer_loader_tensorflow.py"],
    "bare DALI": ["peer_loader_dali.py"],  # its batches are only looked at
    "DALI's iterator": ["peer_loader_dali.py", "--iterator"],  # tensors to keep, as ours
}
PAIRS = (  # ours, what it is measured against, by how much it should be faster
    ("native, torch", "bare torchvision", 2.0),
    ("native, torch", "bare tf.data", 1.2),
    ("native, torch", "bare DALI", 1.2),
    ("native, tensorflow", "bare tf.data", 1.0),
    ("dali", "bare DALI", 1.0),
    ("dali", "DALI's iterator", 1.0),
)


def command(args: argparse.Namespace, name: str, epochs: int) -> tuple[list[str], dict[str, str]]:
    """The command of a contestant, held to the cores, and its environment: ours has the allocator
    setting of `rn50 run`."""
    paths = [str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    if name in OURS or args.same_allocator:
        env["GLIBC_TUNABLES"] = ALLOCATOR
    held = ["taskset", "-c", ",".join(str(core) for core in range(args.core_count))]
    if name in BARE:
        script, *flags = BARE[name]
        call = [sys.executable, str(HERE / script), str(args.root), "--size", str(args.size),
                "--workers", str(args.core_count), "--epochs", str(epochs), *flags]  # fmt: skip
        return held + call + ["--fast"] * args.fast, env
    loader, backend = OURS[name]
    call = [sys.executable, "-m", "rn50lib.cli", "train", "--test-io", "-e", str(epochs),
            "--loader", loader, "--backend", backend, "--data-root", str(args.root),
            "--data-format", args.data_format, "--recipe", "reference", "--image-shape",
            str(args.size), "-b", "64", "--data-nthreads", str(args.core_count), "--threads",
            "1"]  # fmt: skip
    return held + call + ["--resample", "fast"] * args.fast, env


def seconds_an_image(args: argparse.Namespace, name: str) -> float:
    """Of one epoch of a contestant that has the cores to itself."""
    call, env = command(args, name, epochs=1)
    said = subprocess.run(call, check=True, capture_output=True, text=True, env=env).stdout
    if name in BARE:
        return json.loads(said.splitlines()[-1])["seconds"]
    rate = re.search(r"epoch 1: ([\d.]+) img/s", said)
    assert rate is not None
    return 1 / float(rate[1])


def contestants(args: argparse.Namespace) -> dict[str, Callable[[], float]]:
    found: dict[str, Callable[[], float]] = {}
    for name in (*OURS, *BARE):
        if args.fast and name in ("native, torch", "bare torchvision"):  # they have no fast variant
            continue
        if "torchvision" in name and not importlib.util.find_spec("torchvision"):
            print("torchvision is not installed: left out", file=sys.stderr)
            continue
        found[name] = functools.partial(seconds_an_image, args, name)
    chosen = args.only or found
    return {k: v for k, v in found.items() if any(part in k for part in chosen)}


def table(args: argparse.Namespace) -> None:
    """One size on one number of cores."""
    how = "fast" if args.fast else "antialiased"
    print(f"{args.size} px, {args.core_count} core(s), {how}, {args.data_format}", flush=True)
    if args.side_by_side:
        beside(args)
        return
    seconds = run_rounds(contestants(args), args.rounds)
    for name, values in seconds.items():
        print(f"  {name:20} {1 / statistics.median(values):7,.0f} img/s")
    for mine, peer, goal in PAIRS:
        if mine in seconds and peer in seconds:
            pairs = zip(seconds[mine], seconds[peer], strict=True)
            middle, low, high = interval([other / own for own, other in pairs])
            print(f"  {mine} / {peer}: {middle:.2f} ({low:.2f} to {high:.2f}), goal {goal}")
    sys.stdout.flush()


def beside(args: argparse.Namespace) -> None:
    """The pairs at the same time on the same cores: the ratio of their processor seconds."""
    there = contestants(args)
    for mine, peer, goal in PAIRS:
        if mine in there and peer in there:
            ratios = []
            for _ in range(args.rounds):
                both = [(mine, "epoch "), (peer, "seconds")]
                programs = [Program(*command(args, name, 100_000), mark) for name, mark in both]
                own, other = seconds_a_share(programs, args.side_by_side)
                ratios.append(other / own)
            middle, low, high = interval(ratios)
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
    parser.add_argument(
        "--side-by-side", type=float, metavar="SECONDS",
        help="run the pairs at the same time, for so long, and compare their processor time",
    )  # fmt: skip
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
