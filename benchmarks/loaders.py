"""Our loaders and those of other scripts: images per second from 500 x 375 JPEGs, in turns.

    python benchmarks/loaders.py --rounds 10 --sizes 224 64 --cores 1 2
    python benchmarks/loaders.py --images 4800   # longer epochs: their start counts less

Every contestant reads the same files (drawn on first use), crops 5 to 100 % of their area at
random, resizes the crop and delivers batches of 64 as uint8; the first batch is not timed. All are
held to the same cores and have the same allocator setting. They do not do exactly the same: ours
start again with each epoch, as training needs, and the others do not; ours, OpenCV's and
TensorFlow's decode in libjpeg's quick way, and at a fraction of the size if the crop holds more
than is needed, but torchvision's loader can do neither, and DALI's no fraction; OpenCV averages
over areas, the rest antialias with a triangle. With --fast nothing is antialiased, and only those
that can do without take part. "Decoding alone" (all rows, by the fastest decoder here) shows how
much is left to gain.
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
from pathlib import Path

import loader_images
from rounds import environment, print_table, run_rounds, summarise

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
    "bare DALI": ["peer_loader_dali.py"],  # its batches are not copied
    "DALI's iterator": ["peer_loader_dali.py", "--iterator"],  # tensors to keep, as ours
}
NEEDS = {  # modules that may be missing, and how to get them
    "simplejpeg + OpenCV": ("cv2", "pip install opencv-python-headless"),
    "torchvision": ("torchvision", "pip install --no-deps torchvision==0.28.0"),
}
ALWAYS_ANTIALIASED = ("native, torch", "simplejpeg + OpenCV", "decoding alone", "torchvision")
PAIRS = (
    *(("native, torch", peer) for peer in list(PEERS)[:5]),
    ("native, tensorflow", "tf.data"),
    ("dali", "bare DALI"),
    ("dali", "DALI's iterator"),
)


def seconds_an_image(args: argparse.Namespace, name: str) -> float:
    """Run a contestant on its cores; return its seconds an image."""
    cores = sorted(os.sched_getaffinity(0))[: args.core_count]
    call = ["taskset", "-c", ",".join(map(str, cores)), sys.executable]
    if name in PEERS:
        script, *flags = PEERS[name]
        call += [str(HERE / script), str(args.root), "--size", str(args.size), "--workers",
                 str(args.core_count), *flags, *["--fast"] * args.fast]  # fmt: skip
    else:
        loader, backend = OURS[name]
        call += ["-m", "rn50", "train", "--test-io", "-e", "1", "--loader", loader, "--backend",
                 backend, "--data-root", str(args.root), "--data-format", args.data_format,
                 "--recipe", "reference", "--image-shape", str(args.size), "-b", "64",
                 "--data-nthreads", str(args.core_count), "--threads", "1"]  # fmt: skip
        call += ["--resample", "fast"] * args.fast
    output = subprocess.run(
        call, check=True, capture_output=True, text=True, env=environment(1)
    ).stdout
    if name in PEERS:
        return json.loads(output.splitlines()[-1])["seconds"]
    return 1 / float(re.findall(r"epoch 1: ([\d.]+) img/s", output)[0])


def contestants(args: argparse.Namespace) -> list[str]:
    """Return the names of those that take part; print who is left out for a missing module."""
    found = []
    for name in (*OURS, *PEERS):
        module, remedy = NEEDS.get(name, ("numpy", ""))
        if (args.fast and name in ALWAYS_ANTIALIASED) or (
            args.only and not any(part in name for part in args.only)
        ):
            continue
        if importlib.util.find_spec(module):
            found.append(name)
        else:
            print(f"{name}: left out: `{remedy}`")
    return found


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--rounds", type=int, default=10)
    add("--sizes", type=int, nargs="+", default=[224, 64])
    add("--cores", type=int, nargs="+", default=[1, 2])
    add("--images", type=int, default=1200)
    add("--root", type=Path, default=HERE.parent / "data" / "loader-images")
    add("--fast", action="store_true", help="compare the variants of --resample fast")
    add("--data-format", default="files", help="what ours read (default: files)")
    add("--only", nargs="+", help="contestants by a part of their name")
    args = parser.parse_args()
    count, stored = loader_images.make(args.root, args.images)
    print(f"{count:,} JPEGs of {stored / 1000:.1f} KB, {args.rounds} rounds")
    for size, cores in itertools.product(args.sizes, args.cores):
        args.size, args.core_count = size, cores
        how = "fast" if args.fast else "antialiased"
        what = f"{args.size} px, {args.core_count} core(s), {how}, {args.data_format}"
        print(what, flush=True)
        work = {name: functools.partial(seconds_an_image, args, name) for name in contestants(args)}
        seconds = run_rounds(work, args.rounds)
        print_table(seconds, next(iter(seconds)), 1, "img")
        summarise(seconds, PAIRS, what)


if __name__ == "__main__":
    main()
