"""Compare writing a TFRecord shard with TensorFlow's TFRecordWriter and tf.train.Example.

    python benchmarks/bench_tfrecord.py data/roadsigns/train --images 2400

Both read the same image files in the same order, one process each. Ours also reads height and width
from every image and, where that is said, syncs the file; the peer does neither. Imports are left
out.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
from pathlib import Path

from rounds import ROOT, child, print_table, run_rounds, summarise, timed

SETUP = (
    "from data_prep.shardwriter import prepare\n"
    "import data_prep.tfrecordwriter, rn50lib.data.tfrecord as t\n"
    "t.masked_crc(b'')\n"
    "images = [line.rstrip('\\n').split('\\t') for line in open(sys.argv[2])]\n"
    "images = [[int(label), path, path] for label, path in images]\n"
    "classes = ['n00000000'] * 2000\n"
    "settings = {'out': sys.argv[1], 'schema': 'imagenet', 'size': 0, 'classes': classes,\n"
    "            'words': {'n00000000': 'some words'}, 'records': {}}\n"
    "os.makedirs(sys.argv[1] + '/index', exist_ok=True)\n"
    "if sys.argv[3] == 'no-fsync':\n"
    "    os.fsync = lambda _: None\n"
)
WORK = "prepare(settings)(['train', 'train-00000-of-00001', images])"


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("images_folder", type=Path)
    parser.add_argument("--images", type=int, default=2400)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--cpu", action="store_true", help="compare processor seconds")
    parser.add_argument("--folder", help="where to write")
    args = parser.parse_args()
    measure = "cpu_seconds" if args.cpu else "seconds"
    paths = sorted(path.resolve() for path in args.images_folder.rglob("*.jp*g"))
    paths = (paths * (args.images // len(paths) + 1))[: args.images]
    random.Random(0).shuffle(paths)
    with tempfile.TemporaryDirectory(dir=args.folder) as work:
        listing = Path(work, "list")
        listing.write_text("".join(f"{i % 1000}\t{path}\n" for i, path in enumerate(paths)))
        tf = f"{sys.executable} {ROOT}/benchmarks/peer_tensorflow_write.py {work}/tf < {listing}"
        commands = {
            "ours": child(SETUP, WORK, f"{work}/ours", listing, "no-fsync"),
            "ours, fsync": child(SETUP, WORK, f"{work}/ours", listing, "fsync"),
            "TensorFlow": ["sh", "-c", tf],
        }
        contestants = {name: (lambda c=c: timed(c, measure)) for name, c in commands.items()}

        def clear() -> None:
            Path(work, "tf").unlink(missing_ok=True)
            for old in Path(work).glob("ours/train-*"):
                old.unlink()

        print(f"{len(paths):,} images, one process, {measure}")
        seconds = run_rounds(contestants, args.rounds, clear)
        print_table(seconds, "ours", len(paths), "images")
        pairs = [("ours", "TensorFlow"), ("ours, fsync", "TensorFlow")]
        summarise(seconds, pairs, f"writing TFRecord, {measure}")


if __name__ == "__main__":
    main()
