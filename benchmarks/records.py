"""Packing and reading record files: ours, MXNet's and TensorFlow's, in interleaved rounds.

    python benchmarks/records.py im2rec --mxnet-python PYTHON
    python benchmarks/records.py read --mxnet-python PYTHON
    python benchmarks/records.py tfrecord

Start-up is not timed. All read the same JPEGs of 94 KB. Ours brings its files to the disk (fsync),
writes checksums and, for TFRecord, reads the size of every image; the peers do none of that. A row
leaves the fsync out. Both readers return bytes and take a CRC of each payload.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
from pathlib import Path

import loader_images
from rounds import ROOT, child, print_table, run_rounds, summarise, timed

READ = """import random, zlib
from rn50lib.data.recordio import Reader
reader = Reader(sys.argv[2] + ".rec")
order = list(range(len(reader)))
if sys.argv[1] == "random":
    random.Random(0).shuffle(order)"""
WRITE = """from data_prep.tfrecordwriter import prepare
import rn50lib.data.tfrecord as tfrecord
tfrecord.masked_crc(b"")
images = [line.rstrip("\\n").split("\\t") for line in open(sys.argv[2])]
images = [[int(label), path, path] for label, path in images]
settings = {"out": sys.argv[1], "schema": "imagenet", "size": 0, "classes": ["n00000000"] * 2000,
            "words": {"n00000000": "some words"}, "records": {}}
os.makedirs(sys.argv[1] + "/index", exist_ok=True)"""
NO_FSYNC = "import os; os.fsync = lambda file: None; "


def commands(args: argparse.Namespace, work: Path) -> dict[str, list[str]]:
    """Return the contestants' commands by name."""
    mxnet = [args.mxnet_python, str(ROOT / "benchmarks" / "peer_mxnet.py")]
    found: dict[str, list[str]] = {}
    if args.job == "tfrecord":
        listing = work / "list"
        paths = sorted((args.root / "train").rglob("*.jpg"))
        listing.write_text("".join(f"{i % 1000}\t{path}\n" for i, path in enumerate(paths)))
        tf = f"{sys.executable} {ROOT}/benchmarks/peer_tensorflow_write.py {work}/peer < {listing}"
        write = "prepare(settings)(['train', 'train-00000-of-00001', images])"
        found["ours"] = child(WRITE, write, work / "ours", listing)
        found["ours, no fsync"] = child(NO_FSYNC + WRITE, write, work / "ours", listing)
        return found | {"TensorFlow": ["sh", "-c", tf]}
    setup, main = "from data_prep.im2rec import main", "main(sys.argv[1:])"
    prefix, images = work / "t", args.root / "train"
    timed(child(setup, main, "--list", "--recursive", "--quiet", prefix, images), "seconds")
    for threads in (1, 2):
        pack = ["--pass-through", "--num-thread", threads, prefix, images]
        found[f"ours, {threads} threads"] = child(setup, main, *pack)
        if threads == 1:
            found["ours, no fsync"] = child(NO_FSYNC + setup, main, *pack)
        if args.mxnet_python:
            found[f"MXNet, {threads} threads"] = [*mxnet, "im2rec", *map(str, pack)]
    if args.job == "im2rec":
        return found
    timed(found["ours, 1 threads"], "seconds")
    found = {}
    for how in ("order", "random"):
        work_ = "for i in order:\n    zlib.crc32(reader.read(i))"
        found[f"ours, {how}"] = child(READ, work_, how, prefix)
        if args.mxnet_python:
            found[f"MXNet, {how}"] = [*mxnet, how, str(prefix)]
    return found


def main() -> None:
    """Run the comparison."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("job", choices=("im2rec", "read", "tfrecord"))
    parser.add_argument("--mxnet-python", help="Python of an environment with mxnet 1.9.1 and cv2")
    parser.add_argument("--images", type=int, default=2400)
    parser.add_argument("--root", type=Path, default=ROOT / "data" / "loader-images")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cpu", action="store_true", help="compare processor seconds")
    args = parser.parse_args()
    measure = "cpu_seconds" if args.cpu else "seconds"
    count, size = loader_images.make(args.root, args.images)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        found = commands(args, work)

        def clear() -> None:
            if args.job != "read":
                (work / "t.rec").unlink(missing_ok=True)
                (work / "t.idx").unlink(missing_ok=True)
                shutil.rmtree(work / "ours", ignore_errors=True)

        contestants = {name: (lambda c=c: timed(c, measure)) for name, c in found.items()}
        print(f"{args.job}, {count:,} images of {size / 1000:.1f} KB, {measure}")
        seconds = run_rounds(contestants, args.rounds, clear)
    print_table(seconds, next(iter(seconds)), count, "images")
    own = [name for name in seconds if name.startswith("ours")]
    peers = [name for name in seconds if not name.startswith("ours")]
    same = [(a, b) for a in own for b in peers if a.split(", ")[1:] == b.split(", ")[1:]]
    summarise(seconds, same + [(a, b) for a in own for b in peers if "fsync" in a], args.job)


if __name__ == "__main__":
    main()
