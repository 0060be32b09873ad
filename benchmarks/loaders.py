"""Our loaders beside other people's scripts: images per second from 500 x 375 JPEGs, in turns.

    python benchmarks/loaders.py --rounds 10 --sizes 224 64 --cores 1 2
    python benchmarks/loaders.py --images 4800   # longer epochs: their start counts less

Every contestant reads the same files (drawn on first use), crops 5 to 100 % of their area at
random, makes that small and delivers batches of 64 as uint8; the first batch is not timed. All are
held to the same cores and, unless --allocator says otherwise, have the same allocator setting. What
they do is not the same to the bit: ours start anew with each epoch, as training needs, and the
others do not; ours, OpenCV's and TensorFlow's decode in libjpeg's quick way, and at a fraction of
the size where the crop holds more than is needed, but torchvision's loader can do neither, and
DALI's no fraction; OpenCV averages over areas, the rest antialias with a triangle. With --fast
nothing is antialiased, and only those that can do without take part. What decoding alone takes (all
rows of the pictures, by the fastest decoder here) says how much is left to gain.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import itertools
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import loader_images
from rounds import DEFAULT_MALLOC, MALLOCS, environment, print_table, run_rounds, summarise

HERE = Path(__file__).resolve().parent
OURS = {  # name: loader, backend
    "native, torch": ("native", "torch"),
    "native, tensorflow": ("native", "tensorflow"),
    "dali": ("dali", "torch"),
}
PEERS = {
    "simplejpeg + OpenCV": ["peer_loader_pytorch.py", "--opencv"],
    "decoding alone": ["peer_loader_pytorch.py", "--decode"],  # on one core, whatever --cores
    "torchvision": ["peer_loader_pytorch.py"],
    "tf.data": ["peer_loader_tensorflow.py"],
    "bare DALI": ["peer_loader_dali.py"],  # its batches are only looked at
    "DALI's iterator": ["peer_loader_dali.py", "--iterator"],  # tensors to keep, as ours
}
NEEDS = {  # modules that may not be there, and how to get them
    "simplejpeg + OpenCV": ("cv2", "pip install opencv-python-headless"),
    "torchvision": ("torchvision", "pip install --no-deps torchvision==0.28.0"),
}
ALWAYS_ANTIALIASED = ("native, torch", "simplejpeg + OpenCV", "decoding alone", "torchvision")
PAIRS = (  # ours, what it is measured against
    ("native, torch", "simplejpeg + OpenCV"),
    ("native, torch", "torchvision"),
    ("native, torch", "decoding alone"),
    ("native, torch", "tf.data"),
    ("native, torch", "bare DALI"),
    ("native, tensorflow", "tf.data"),
    ("dali", "bare DALI"),
    ("dali", "DALI's iterator"),
)


def command(args: argparse.Namespace, name: str) -> tuple[list[str], dict[str, str]]:
    """The command of a contestant, held to the cores, and its environment."""
    env = environment(name, 1)
    name = name.removesuffix(DEFAULT_MALLOC)
    cores = sorted(os.sched_getaffinity(0))[: args.core_count]
    held = ["taskset", "-c", ",".join(map(str, cores))]
    if name in PEERS:
        script, *flags = PEERS[name]
        call = [sys.executable, str(HERE / script), str(args.root), "--size", str(args.size),
                "--workers", str(args.core_count), *flags]  # fmt: skip
        return held + call + ["--fast"] * args.fast, env
    loader, backend = OURS[name]
    call = [sys.executable, "-m", "rn50", "train", "--test-io", "-e", "1",
            "--loader", loader, "--backend", backend, "--data-root", str(args.root),
            "--data-format", args.data_format, "--recipe", "reference", "--image-shape",
            str(args.size), "-b", "64", "--data-nthreads", str(args.core_count), "--threads",
            "1"]  # fmt: skip
    return held + call + ["--resample", "fast"] * args.fast, env


def seconds_an_image(args: argparse.Namespace, name: str) -> float:
    """Of one epoch of a contestant that has the cores to itself."""
    call, env = command(args, name)
    said = subprocess.run(call, check=True, capture_output=True, text=True, env=env).stdout
    if name.removesuffix(DEFAULT_MALLOC) in PEERS:
        return json.loads(said.splitlines()[-1])["seconds"]
    rate = re.search(r"epoch 1: ([\d.]+) img/s", said)
    assert rate is not None
    return 1 / float(rate[1])


def contestants(args: argparse.Namespace) -> dict[str, Callable[[], float]]:
    found: dict[str, Callable[[], float]] = {}
    for name in (*OURS, *PEERS):
        if args.fast and name in ALWAYS_ANTIALIASED:
            continue
        if args.only and not any(part in name for part in args.only):
            continue
        module, remedy = NEEDS.get(name, ("numpy", ""))
        if not importlib.util.find_spec(module):
            print(f"{name}: left out: `{remedy}`")
            continue
        for end in MALLOCS[args.allocator]:
            found[name + end] = functools.partial(seconds_an_image, args, name + end)
    return found


def table(args: argparse.Namespace) -> None:
    """One size on one number of cores."""
    how = "fast" if args.fast else "antialiased"
    what = f"{args.size} px, {args.core_count} core(s), {how}, {args.data_format}"
    pairs = [(a + end, b + end) for end in MALLOCS[args.allocator] for a, b in PAIRS]
    print(what, flush=True)
    seconds = run_rounds(contestants(args), args.rounds)
    print_table(seconds, next(iter(seconds)), 1, "img")
    summarise(seconds, pairs, what)


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
    parser.add_argument("--allocator", choices=tuple(MALLOCS), default="ours")
    parser.add_argument("--only", nargs="+", help="contestants by a part of their name")
    args = parser.parse_args()
    count, stored = loader_images.make(args.root, args.images)
    print(f"{count:,} JPEGs of {stored / 1000:.1f} KB, {args.rounds} rounds")
    for size, cores in itertools.product(args.sizes, args.cores):
        args.size, args.core_count = size, cores
        table(args)


if __name__ == "__main__":
    main()
