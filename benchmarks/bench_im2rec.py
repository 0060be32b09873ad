"""Compare packing with `data_prep.im2rec`, with MXNet's im2rec and with `cp -r`, in interleaved
rounds.

    python benchmarks/bench_im2rec.py --mxnet-python /path/to/mxnet-venv/bin/python

Each round times every contestant once, on the same warm files and in another order; start-up is
left out and stated by itself. Printed are medians, and the median of the rounds' ratios with its
interval.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OURS = (
    "import json, sys, time\n"
    "from data_prep.im2rec import main\n"
    "start = time.perf_counter()\n"
    "main(sys.argv[1:])\n"
    "print(json.dumps({'seconds': time.perf_counter() - start}))\n"
)


def make_images(folder: Path, count: int) -> int:
    """Random bytes with the sizes of JPEGs (log-normal, mean 94 KB); returns their sum."""
    rng = random.Random(0)
    noise = rng.randbytes(4_000_000)
    total = 0
    for i in range(count):
        place = folder / f"n{i % 100:08}"
        place.mkdir(parents=True, exist_ok=True)
        size = min(int(rng.lognormvariate(11.35, 0.45)), 1_000_000)
        start = rng.randrange(3_000_000)
        (place / f"n{i % 100:08}_{i}.JPEG").write_bytes(noise[start : start + size])
        total += size
    return total


def timed(command: list[str]) -> float:
    """Run a command that prints its own seconds as the last line, as JSON."""
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])["seconds"])


def timed_copy(images: Path, target: Path) -> float:
    """Seconds of `cp -r`."""
    start = time.perf_counter()
    subprocess.run(["cp", "-r", images, target], check=True)
    return time.perf_counter() - start


def start_up(command: list[str]) -> float:
    """Median wall seconds of a command that does next to nothing."""
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(command, capture_output=True, cwd=ROOT, check=True)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def interval(values: list[float]) -> tuple[float, float, float]:
    """Median and a 95 % interval of it, from 2,000 bootstrap samples."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[50], medians[1949]


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mxnet-python", help="Python of an environment with mxnet 1.9.1 and cv2")
    parser.add_argument("--images", type=int, default=12_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--report", type=Path, help="also write the figures as JSON")
    args = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="bench-im2rec-", dir=args.folder))
    try:
        run(args, work)
    finally:
        shutil.rmtree(work)


def run(args: argparse.Namespace, work: Path) -> None:
    """Make the files, run the rounds, print the table."""
    images, tiny = work / "images", work / "tiny"
    total = make_images(images, args.images)
    make_images(tiny, 1)
    python = [sys.executable, "-c", OURS]
    peer = [args.mxnet_python, str(ROOT / "benchmarks" / "peer_mxnet_im2rec.py")]
    for name, source in (("t", images), ("s", tiny)):
        timed([*python, "--list", "--recursive", "--quiet", str(work / name), str(source)])
    pack = ["--pass-through", "--num-thread"]
    where = [str(work / "t"), str(images)]
    contestants = {
        "ours, 1 thread": [*python, "--no-fsync", *pack, "1", *where],
        "ours, 2 threads": [*python, "--no-fsync", *pack, "2", *where],
        "ours, 1 thread, fsync": [*python, *pack, "1", *where],
    }
    if args.mxnet_python:
        contestants["MXNet, 1 thread"] = [*peer, *pack, "1", *where]
        contestants["MXNet, 2 threads"] = [*peer, *pack, "2", *where]
    seconds: dict[str, list[float]] = {name: [] for name in [*contestants, "cp -r"]}
    for number in range(args.rounds + 1):  # the first round only warms the cache
        order = list(seconds)
        random.Random(number).shuffle(order)
        for name in order:
            for ending in (".rec", ".idx"):
                (work / f"t{ending}").unlink(missing_ok=True)
            shutil.rmtree(work / "copy", ignore_errors=True)
            if name == "cp -r":
                value = timed_copy(images, work / "copy")
            else:
                value = timed(contestants[name])
            os.sync()  # no contestant pays for what another left to be written
            if number:
                seconds[name].append(value)
    print(f"{args.images:,} files, {total / 1e6:,.0f} MB, {args.rounds} rounds, start-up left out")
    for name, values in seconds.items():
        middle = statistics.median(values)
        print(f"{name:24} {middle:7.3f} s  {args.images / middle:9,.0f} images/s")
    base = seconds["ours, 1 thread"]
    for name in [n for n in seconds if n != "ours, 1 thread"]:
        ratios = [other / own for own, other in zip(base, seconds[name], strict=True)]
        middle, low, high = interval(ratios)
        print(f"time of {name} / time of ours with 1 thread: {middle:.2f} ({low:.2f}–{high:.2f})")
    single = ["--no-fsync", "--quiet", *pack, "1", str(work / "s"), str(tiny)]
    begin = start_up([sys.executable, "-m", "data_prep.im2rec", *single])
    print(f"start-up, a list of one image: ours {begin:.2f} s", end="")
    if args.mxnet_python:
        tool = "import mxnet, os, runpy; p = os.path.dirname(mxnet.__file__) + '/tools/im2rec.py'; "
        command = [args.mxnet_python, "-c", tool + "runpy.run_path(p, run_name='__main__')"]
        print(f", MXNet {start_up([*command, *single[2:]]):.2f} s", end="")
    print()
    if args.report:
        args.report.write_text(json.dumps({"images": args.images, "seconds": seconds}, indent=4))


if __name__ == "__main__":
    main()
