"""Packing and reading record files: ours, MXNet's and TensorFlow's, in turns.

    python benchmarks/records.py im2rec --mxnet-python PYTHON
    python benchmarks/records.py read --mxnet-python PYTHON
    python benchmarks/records.py tfrecord

Start-up is not timed. All read the same road signs (drawn on first use). Ours syncs its files to
the disk, writes checksums and, for TFRecord, reads the size of every image and shuffles; the peers
do none of that. Both readers return bytes and take a CRC of each payload.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import random
import runpy
import shutil
import subprocess
import sys
import tempfile
import zlib
from pathlib import Path

import measure

# --- the contestants: each function returns the work, a function of no arguments ------------------


def im2rec(who: str, words: list[str]):
    """Return the packing of images into records."""
    if who == "ours":
        from data_prep.im2rec import main

        return lambda: main(words)
    import cv2  # noqa: F401  (im2rec imports it, which must not be measure.timed)
    import mxnet

    tool = os.path.join(os.path.dirname(mxnet.__file__), "tools", "im2rec.py")
    sys.argv[1:] = words
    return lambda: runpy.run_path(tool, run_name="__main__")


def read(who: str, prefix: str, shuffled: bool):
    """Return the reading of a record file, with a CRC of each payload."""
    if who == "ours":
        from rn50lib.data.recordio import Reader

        reader = Reader(prefix + ".rec")
        keys, fetch = list(range(len(reader))), reader.read
    else:
        import mxnet

        reader = mxnet.recordio.MXIndexedRecordIO(prefix + ".idx", prefix + ".rec", "r")
        keys, fetch = list(reader.keys), reader.read_idx
        if not shuffled:
            fetch = lambda key: reader.read()  # noqa: E731
    if shuffled:
        random.Random(0).shuffle(keys)
    return lambda: [zlib.crc32(fetch(key)) for key in keys]


def tfrecord(who: str, root: str, out: str):
    """Return the writing of ROOT/train as tf.train.Example, in one shard."""
    if who == "ours":
        from data_prep.tfrecord import convert

        return lambda: convert(root, out, shards={"train": 1}, jobs=0, quiet=True)
    import tensorflow as tf

    folders = sorted(Path(root, "train").iterdir())
    images = [(label, path) for label, folder in enumerate(folders) for path in folder.iterdir()]

    def feature(value):
        if isinstance(value, bytes):
            return tf.train.Feature(bytes_list=tf.train.BytesList(value=[value]))
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

    def example(label, path):
        values = {"encoded": path.read_bytes(), "format": b"JPEG", "colorspace": b"RGB",
                  "channels": 3, "height": 375, "width": 500, "class/label": label + 1,
                  "filename": path.name.encode(), "class/synset": path.parent.name.encode(),
                  "class/text": b"some words"}  # fmt: skip
        features = {f"image/{name}": feature(value) for name, value in values.items()}
        return tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()

    def work():
        with tf.io.TFRecordWriter(out) as writer:
            for image in images:
                writer.write(example(*image))

    return work


def time_job(job: str, who: str, cpu: bool, *words: str) -> float:
    """Do the job once; return the seconds without the start-up."""
    if job == "im2rec":
        work = im2rec(who, list(words))
    elif job == "tfrecord":
        work = tfrecord(who, *words)
    else:
        work = read(who, words[0], shuffled=job == "random")
    with contextlib.redirect_stdout(io.StringIO()):
        return measure.timed(work, cpu)


# --- the comparison -------------------------------------------------------------------------------


def run(args: argparse.Namespace, job: str, name: str, *words: object) -> float:
    """Run a contestant, "ours" or a peer's name, in a new process; return its seconds."""
    task = (job, name, args.cpu, *map(str, words))
    if name != "MXNet":
        return measure.alone(time_job, *task)
    code = f"import records; print(records.time_job{task})"
    shown = subprocess.run([args.mxnet_python, "-c", code], check=True, stdout=subprocess.PIPE,
                           text=True, cwd=Path(__file__).parent)  # fmt: skip
    return float(shown.stdout.splitlines()[-1])


def packers(args: argparse.Namespace, names: list[str], prefix: Path) -> dict:
    """Write the list of images, and return the contestants of im2rec."""
    train = args.root / "train"
    run(args, "im2rec", "ours", "--list", "--recursive", "--quiet", prefix, train)

    def pack(name: str) -> float:
        for suffix in (".rec", ".idx"):
            prefix.with_suffix(suffix).unlink(missing_ok=True)
        return run(args, "im2rec", name, "--pass-through", "--num-thread", 2, prefix, train)

    return {name: functools.partial(pack, name) for name in names}


def readers(args: argparse.Namespace, names: list[str], prefix: Path) -> dict:
    """Pack the images, and return the contestants of read."""
    packers(args, names, prefix)["ours"]()
    return {f"{name}, {how}": functools.partial(run, args, how, name, prefix)
            for how in ("order", "random") for name in names}  # fmt: skip


def writers(args: argparse.Namespace, names: list[str], prefix: Path) -> dict:
    """Return the contestants of tfrecord, which see only the training images."""
    root, out = prefix.with_name("root"), prefix.with_name("out")
    root.mkdir()
    (root / "train").symlink_to((args.root / "train").resolve())

    def write(name: str) -> float:
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        return run(args, "tfrecord", name, root, out / "shards")

    return {name: functools.partial(write, name) for name in ("ours", "TensorFlow")}


def main() -> None:
    """Run the comparison."""
    parser = measure.arguments(__doc__)
    parser.add_argument("job", choices=("im2rec", "read", "tfrecord"))
    parser.add_argument("--mxnet-python", help="Python of an environment with mxnet 1.9.1 and cv2")
    parser.add_argument("--root", type=Path, default=measure.SIGNS)
    parser.add_argument("--cpu", action="store_true", help="compare processor seconds")
    args = parser.parse_args()
    measure.set_environment()
    count = measure.draw_signs(args.root)
    names = ["ours", *(["MXNet"] if args.mxnet_python else [])]
    with tempfile.TemporaryDirectory() as folder:
        make = {"im2rec": packers, "read": readers, "tfrecord": writers}[args.job]
        work = make(args, names, Path(folder, "t"))
        work = {name: work[name] for name in measure.chosen(work, args)}
        seconds = measure.run_rounds(work, args.rounds)
    own = [name for name in seconds if name.startswith("ours")]
    pairs = [(a, a.replace("ours", peer)) for a in own for peer in ("MXNet", "TensorFlow")]
    measure.print_table(seconds, pairs, args.job, count)


if __name__ == "__main__":
    main()
