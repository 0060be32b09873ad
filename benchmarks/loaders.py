"""Our loaders and those of other scripts: images per second from 500 x 375 JPEGs, in turns.

    python benchmarks/loaders.py --rounds 10 --sizes 224 64 --cores 1 2
    python benchmarks/loaders.py --images 4800   # longer epochs: their start counts less

Every contestant reads the same files (drawn on first use), crops 5 to 100 % of their area at
random, resizes the crop and delivers batches of 64 as uint8; the first batch is not timed. All are
held to the same cores and have the same allocator setting. They do not do exactly the same: ours
start again with each epoch, as training needs, and the others do not; ours, OpenCV's and
TensorFlow's decode with libjpeg's fast transform, and at a fraction of the size if the crop holds
more than is needed, but torchvision's loader can do neither, and DALI's no fraction; OpenCV
averages over areas, the others antialias with a triangle. With --fast nothing is antialiased, and
only those that support this take part.
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
from rounds import ROOT, arguments, environment, print_table, run_rounds, summarise

OURS = {  # name: loader, backend
    "native, torch": ("native", "torch"),
    "native, tensorflow": ("native", "tensorflow"),
    "dali": ("dali", "torch"),
}
PEERS = {"simplejpeg + OpenCV": "opencv", "torchvision": "torchvision", "tf.data": "tfdata",
         "bare DALI": "dali", "DALI's iterator": "dali-iterator"}  # fmt: skip
NEEDS = {  # modules that may be missing, and how to get them
    "simplejpeg + OpenCV": ("cv2", "pip install opencv-python-headless"),
    "torchvision": ("torchvision", "pip install --no-deps torchvision==0.28.0"),
}
ALWAYS_ANTIALIASED = ("native, torch", "simplejpeg + OpenCV", "torchvision")
PAIRS = (
    *(("native, torch", peer) for peer in list(PEERS)[:4]),
    ("native, tensorflow", "tf.data"), ("dali", "bare DALI"), ("dali", "DALI's iterator"),
)  # fmt: skip


def seconds_per_image(args: argparse.Namespace, name: str) -> float:
    """Run a contestant on its cores; return its seconds per image."""
    cores = sorted(os.sched_getaffinity(0))[: args.core_count]
    call = ["taskset", "-c", ",".join(map(str, cores)), sys.executable]
    if name in PEERS:
        call += [f"{ROOT}/benchmarks/contestant_loader.py", PEERS[name], str(args.root), "--size",
                 str(args.size), "--workers", str(args.core_count),
                 *["--fast"] * args.fast]  # fmt: skip
    else:
        loader, backend = OURS[name]
        call += ["-m", "rn50", "train", "--test-io", "-e", "1", "--loader", loader, "--backend",
                 backend, "--data-root", str(args.root), "--data-format", args.data_format,
                 "--recipe", "reference", "--image-shape", str(args.size), "-b", "64",
                 "--data-nthreads", str(args.core_count), "--threads", "1",
                 *["--set", "resample=fast"] * args.fast]  # fmt: skip
    done = subprocess.run(call, check=True, capture_output=True, text=True, env=environment(1))
    if name in PEERS:
        return json.loads(done.stdout.splitlines()[-1])["seconds"]
    return 1 / float(re.findall(r"epoch 1: ([\d.]+) img/s", done.stdout)[0])


def contestants(args: argparse.Namespace) -> list[str]:
    """Return the names of those that take part; print who is left out for a missing module."""
    found = []
    for name in (*OURS, *PEERS):
        module, remedy = NEEDS.get(name, ("numpy", ""))
        chosen = not args.only or any(part in name for part in args.only)
        if not chosen or (args.fast and name in ALWAYS_ANTIALIASED):
            continue
        if importlib.util.find_spec(module):
            found.append(name)
        else:
            print(f"{name}: left out: `{remedy}`")
    return found


def main() -> None:
    """Run the comparison."""
    parser = arguments(__doc__)
    add = parser.add_argument
    add("--sizes", type=int, nargs="+", default=[224, 64])
    add("--cores", type=int, nargs="+", default=[1, 2])
    add("--images", type=int, default=1200)
    add("--root", type=Path, default=ROOT / "data" / "loader-images")
    add("--fast", action="store_true", help="compare the variants of resample=fast")
    add("--data-format", default="files", help="what ours read (default: files)")
    args = parser.parse_args()
    count, stored = loader_images.make(args.root, args.images)
    print(f"{count:,} JPEGs of {stored / 1000:.1f} KB, {args.rounds} rounds")
    for size, cores in itertools.product(args.sizes, args.cores):
        args.size, args.core_count = size, cores
        how = "fast" if args.fast else "antialiased"
        what = f"{args.size} px, {args.core_count} core(s), {how}, {args.data_format}"
        print(what, flush=True)
        work = {n: functools.partial(seconds_per_image, args, n) for n in contestants(args)}
        seconds = run_rounds(work, args.rounds)
        print_table(seconds, next(iter(seconds)), 1, "img")
        summarise(seconds, PAIRS, what)


if __name__ == "__main__":
    main()
