"""Compare packing with `data_prep.im2rec`, with MXNet's im2rec and with `cp -r`, in interleaved
rounds.

    python benchmarks/bench_im2rec.py --mxnet-python /path/to/mxnet-venv/bin/python

Start-up is left out of the rates and stated by itself. Ours bring their files to the disk (fsync)
and write checksums, MXNet does neither; a third row leaves the fsync out. `--cpu` compares
processor seconds instead, for a machine that is busy with other things.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rounds import ROOT, child, print_table, run_rounds, summarise, timed


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


def timed_copy(images: Path, target: Path, measure: str) -> float:
    """Seconds of `cp -r`."""
    start, cpu = time.perf_counter(), sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])
    subprocess.run(["cp", "-r", images, target], check=True)
    if measure == "seconds":
        return time.perf_counter() - start
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2]) - cpu


def start_up(command: list[str]) -> float:
    """Median wall seconds of a command that does next to nothing."""
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        subprocess.run(command, capture_output=True, cwd=ROOT, check=True)
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def run(args: argparse.Namespace, work: Path) -> None:
    """Make the files, run the rounds, print the table."""
    measure = "cpu_seconds" if args.cpu else "seconds"
    images, tiny = work / "images", work / "tiny"
    total = make_images(images, args.images)
    make_images(tiny, 1)
    ours = ("from data_prep.im2rec import main", "main(sys.argv[1:])")
    for name, source in (("t", images), ("s", tiny)):
        listing = ["--list", "--recursive", "--quiet", work / name, source]
        timed(child(*ours, *listing), measure)
    pack, where = ["--pass-through", "--num-thread"], [str(work / "t"), str(images)]
    no_sync = f"import os; os.fsync = lambda file: None; {ours[0]}"
    commands = {
        "ours, 1 thread": child(*ours, *pack, 1, *where),
        "ours, 2 threads": child(*ours, *pack, 2, *where),
        "ours, no fsync": child(no_sync, ours[1], *pack, 1, *where),
    }
    if args.mxnet_python:
        peer = [args.mxnet_python, str(ROOT / "benchmarks" / "peer_mxnet_im2rec.py")]
        commands["MXNet, 1 thread"] = [*peer, *pack, "1", *where]
        commands["MXNet, 2 threads"] = [*peer, *pack, "2", *where]
    contestants = {name: (lambda c=c: timed(c, measure)) for name, c in commands.items()}
    contestants["cp -r"] = lambda: timed_copy(images, work / "copy", measure)

    def clear() -> None:
        for ending in (".rec", ".idx"):
            (work / f"t{ending}").unlink(missing_ok=True)
        shutil.rmtree(work / "copy", ignore_errors=True)

    seconds = run_rounds(contestants, args.rounds, clear)
    print(f"{args.images:,} files, {total / 1e6:,.0f} MB, {args.rounds} rounds, {measure}")
    print_table(seconds, "ours, 1 thread", args.images, "images")
    pairs = [(f"ours, {threads}", f"MXNet, {threads}") for threads in ("1 thread", "2 threads")]
    pairs.append(("ours, no fsync", "MXNet, 1 thread"))
    summarise(seconds, pairs, f"im2rec, {measure}")
    single = ["--quiet", *pack, "1", str(work / "s"), str(tiny)]
    begin = start_up([sys.executable, "-m", "data_prep.im2rec", *single])
    print(f"start-up, a list of one image: ours {begin:.2f} s", end="")
    if args.mxnet_python:
        tool = "import mxnet, os, runpy; p = os.path.dirname(mxnet.__file__) + '/tools/im2rec.py'; "
        command = [args.mxnet_python, "-c", tool + "runpy.run_path(p, run_name='__main__')"]
        print(f", MXNet {start_up([*command, *single[1:]]):.2f} s", end="")
    print()
    if args.report:
        args.report.write_text(json.dumps({"images": args.images, measure: seconds}, indent=4))


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mxnet-python", help="Python of an environment with mxnet 1.9.1 and cv2")
    parser.add_argument("--images", type=int, default=12_000)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cpu", action="store_true", help="compare processor seconds")
    parser.add_argument("--folder", type=Path, help="where to work (default: a temporary folder)")
    parser.add_argument("--report", type=Path, help="also write the figures as JSON")
    args = parser.parse_args()
    work = Path(tempfile.mkdtemp(prefix="bench-im2rec-", dir=args.folder))
    try:
        run(args, work)
    finally:
        shutil.rmtree(work)


if __name__ == "__main__":
    main()
