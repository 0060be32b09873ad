"""Packing and reading record files: ours, MXNet's and TensorFlow's, in interleaved rounds.

    python benchmarks/records.py im2rec --mxnet-python PYTHON
    python benchmarks/records.py read --mxnet-python PYTHON
    python benchmarks/records.py tfrecord

Start-up is not timed. All read the same JPEGs of 94 KB. Ours syncs its files to the disk, writes
checksums and, for TFRecord, reads the size of every image; the peers do none of that. Both readers
return bytes and take a CRC of each payload.
"""

from __future__ import annotations

import argparse
import functools
import shutil
import sys
import tempfile
from pathlib import Path

import loader_images
from rounds import ROOT, arguments, print_table, run_rounds, summarise, timed


def command(args: argparse.Namespace, job: str, name: str, *words: object) -> list[str]:
    """Return the command of a contestant by its name, "ours" or the peer's."""
    python = args.mxnet_python if name.startswith("MXNet") else sys.executable
    who = "ours" if name.startswith("ours") else "peer"
    return [python, f"{ROOT}/benchmarks/contestant_records.py", job, who, *map(str, words)]


def commands(args: argparse.Namespace, work: Path) -> dict[str, list[str]]:
    """Return the contestants' commands by name."""
    images, prefix = args.root / "train", work / "t"
    if args.job == "tfrecord":
        listing = work / "list"
        paths = enumerate(sorted(images.rglob("*.jpg")))
        listing.write_text("".join(f"{i % 1000}\t{path}\n" for i, path in paths))
        return {name: command(args, "tfrecord", name, listing, work / name)
                for name in ("ours", "TensorFlow")}  # fmt: skip
    names = ["ours", *(["MXNet"] if args.mxnet_python else [])]
    listed = ["--list", "--recursive", "--quiet", prefix, images]
    timed(command(args, "im2rec", "ours", *listed), "seconds")
    found = {}
    for threads in (1, 2):
        pack = ["--pass-through", "--num-thread", threads, prefix, images]
        found |= {f"{name}, {threads} threads": command(args, "im2rec", name, *pack)
                  for name in names}  # fmt: skip
    if args.job == "im2rec":
        return found
    timed(found["ours, 1 threads"], "seconds")
    return {f"{name}, {how}": command(args, how, name, prefix)
            for how in ("order", "random") for name in names}  # fmt: skip


def main() -> None:
    """Run the comparison."""
    parser = arguments(__doc__)
    parser.add_argument("job", choices=("im2rec", "read", "tfrecord"))
    parser.add_argument("--mxnet-python", help="Python of an environment with mxnet 1.9.1 and cv2")
    parser.add_argument("--images", type=int, default=2400)
    parser.add_argument("--root", type=Path, default=ROOT / "data" / "loader-images")
    args = parser.parse_args()
    measure = "cpu_seconds" if args.cpu else "seconds"
    count, size = loader_images.make(args.root, args.images)
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        found = commands(args, work)

        def clear() -> None:
            for suffix in (".rec", ".idx") if args.job == "im2rec" else ():
                (work / f"t{suffix}").unlink(missing_ok=True)
            shutil.rmtree(work / "ours", ignore_errors=True)

        contestants = {name: functools.partial(timed, c, measure) for name, c in found.items()}
        print(f"{args.job}, {count:,} images of {size / 1000:.1f} KB, {measure}")
        seconds = run_rounds(contestants, args.rounds, clear)
    print_table(seconds, next(iter(seconds)), count, "images")
    own = [name for name in seconds if name.startswith("ours")]
    pairs = [(a, a.replace("ours", peer)) for a in own for peer in ("MXNet", "TensorFlow")]
    summarise(seconds, pairs, args.job)


if __name__ == "__main__":
    main()
