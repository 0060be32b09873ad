"""The time to open a data set of ImageNet's size and to read from it at random, cold and warm.

    python benchmarks/bench_open.py recordio --records 1280000 --bytes 1800
    python benchmarks/bench_open.py tfrecord --records 100000 --bytes 1800
    python benchmarks/bench_open.py recordio --records 20000 --bytes 120000

Writes a data set of random bytes into a temporary folder. Each turn is a new process that opens it
and reads 2,000 records at random: the first time (what an earlier one has cached is deleted) and
again, after the system was asked to forget the files, and with the files in memory. The bytes are
those that came from the disk, by /proc/self/io; memory includes mapped files.
"""

from __future__ import annotations

import functools
import os
import random
import resource
import statistics
import tempfile
import time
from pathlib import Path

import measure

SHARDS = 16
CLASSES = 1000
READS = 2000
TURNS = ("first, cold", "again, cold", "again, warm")


def read_bytes() -> int:
    """Return the bytes that this process has read from the disk."""
    return int(Path("/proc/self/io").read_text().split("read_bytes: ")[1].split()[0])


def open_and_read(root: Path, form: str) -> tuple[float, int, float, int]:
    """Open the data set and read from it.

    Returns the seconds and bytes of opening, the bytes read per byte asked for, and the memory.
    """
    from rn50lib.data.source import open_source

    before, begin = read_bytes(), time.perf_counter()
    source = open_source(root, "train", form)
    opened, after = time.perf_counter() - begin, read_bytes()
    positions = random.Random(0).sample(range(len(source)), READS)
    wanted = sum(len(source.read(i)) for i in positions)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return opened, after - before, (read_bytes() - after) / wanted, peak


def write(root: Path, form: str, records: int, size: int) -> None:
    """Write a train split of `records` random images of `size` bytes, in 1,000 classes."""
    from data_prep.encoding import pack_header
    from data_prep.recordwriter import Writer
    from data_prep.tfrecordwriter import serialize_example, write_records
    from rn50lib.data.tfrecord import shard_name

    payload = random.Random(0).randbytes(size + records)  # each record starts a byte later in it
    if form == "recordio":
        with Writer(root / "train") as writer:
            for i in range(records):
                writer.write(i, pack_header(i % CLASSES, i, payload[i : i + size]))
        return
    for number in range(SHARDS):
        with open(root / shard_name("train", number, SHARDS), "wb") as file:
            write_records(file, (
                serialize_example({
                    "image/encoded": payload[i : i + size],
                    "image/class/label": 1 + i % CLASSES,
                    "image/class/synset": f"n{i % CLASSES:08}",
                    "image/filename": f"{i}.jpg",
                })
                for i in range(number, records, SHARDS)
            ))  # fmt: skip


def open_once(root: Path, form: str, written: set[Path], found: list, turn: str) -> float:
    """Run a turn; note what it read in `found`, and return the seconds of opening."""
    for path in root.rglob("*"):
        if path not in written and turn.startswith("first"):
            path.unlink()
        elif "cold" in turn:
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    found.append(measure.alone(open_and_read, root, form))
    return found[-1][0]


def main() -> None:
    """Run the measurements."""
    parser = measure.arguments(__doc__)
    parser.add_argument("format", choices=("recordio", "tfrecord"))
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=1800)
    args = parser.parse_args()
    measure.set_environment()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write(root, args.format, args.records, args.bytes)
        written = set(root.rglob("*"))
        stored = sum(path.stat().st_size for path in written)
        what = f"{args.format}, {args.records:,} records, {stored / 1e9:.2f} GB on disk"
        print(what)
        found: dict[str, list] = {turn: [] for turn in TURNS}
        turns = {turn: functools.partial(open_once, root, args.format, written, found[turn], turn)
                 for turn in TURNS}  # fmt: skip
        seconds = measure.run_rounds(turns, args.rounds)
    pairs = [(turn, TURNS[0]) for turn in TURNS[1:]]
    measure.print_table(seconds, pairs, what, args.records, "records")
    for turn, measured in found.items():
        opening, share, peak = map(statistics.median, list(zip(*measured, strict=True))[1:])
        print(f"{turn}: reads {opening / 1e6:,.0f} MB to open, and {share:.2f} times the size of"
              f" {READS:,} records; at most {peak / 1e6:,.0f} MB of memory")  # fmt: skip


if __name__ == "__main__":
    main()
