"""The cost of opening a data set of ImageNet's size, and reading from it at random, cold and warm.

    python benchmarks/bench_open.py recordio --records 1280000 --bytes 1800
    python benchmarks/bench_open.py tfrecord --records 100000 --bytes 1800
    python benchmarks/bench_open.py recordio --records 20000 --bytes 120000

Writes a data set of random bytes into a temporary folder. Each line is a new process that opens it
and reads 2,000 records at random. Before a cold one the system is asked to forget the files. The
bytes are those that came from the disk, by /proc/self/io; memory includes mapped files.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

from rounds import stated_machine

from data_prep.encoding import pack_header
from data_prep.recordwriter import Writer
from data_prep.tfrecordwriter import format_index, serialize_example, write_records
from rn50lib.data.tfrecord import index_path, shard_name

SHARDS = 16
CLASSES = 1000

CHILD = """
import json, random, resource, sys, time
from rn50lib.data.source import open_source

def read_bytes():
    return int(open("/proc/self/io").read().split("read_bytes: ")[1].split()[0])

before, begin = read_bytes(), time.perf_counter()
source = open_source(sys.argv[1], "train", sys.argv[2])
opened, after = time.perf_counter() - begin, read_bytes()
count = sum(len(source.read(i)) for i in random.Random(0).sample(range(len(source)), 2000))
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps([opened, after - before, count, read_bytes() - after, peak]))
"""


def write(root: Path, form: str, records: int, size: int) -> None:
    """Write a train split of `records` random images of `size` bytes, in 1,000 classes."""
    rng = random.Random(0)
    payload = rng.randbytes(size + records)  # each record starts a byte later in it
    if form == "recordio":
        (root / "records").mkdir()
        with Writer(root / "records" / "train") as writer:
            for i in range(records):
                writer.write(i, pack_header(i % CLASSES, i, payload[i : i + size]))
        return
    for number in range(SHARDS):
        path = root / "tfrecord" / shard_name("train", number, SHARDS)
        index_path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            entries = write_records(file, (
                serialize_example({
                    "image/encoded": payload[i : i + size],
                    "image/class/label": 1 + i % CLASSES,
                    "image/class/synset": f"n{i % CLASSES:08}",
                    "image/filename": f"{i}.jpg",
                })
                for i in range(number, records, SHARDS)
            ))  # fmt: skip
        index_path(path).write_bytes(format_index(entries))


def forget(root: Path) -> None:
    """Ask the system to drop what it holds of the files."""
    os.sync()
    for path in root.rglob("*"):
        if path.is_file():
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def main() -> None:
    """Run the measurements."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("format", choices=("recordio", "tfrecord"))
    parser.add_argument("--records", type=int, default=100_000)
    parser.add_argument("--bytes", type=int, default=1800)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, stated_machine():
        root = Path(folder)
        write(root, args.format, args.records, args.bytes)
        stored = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
        print(f"{args.format}: {args.records:,} records, {stored / 1e9:.2f} GB on disk")
        for name, cold in (("first, cold", True), ("again, cold", True), ("again, warm", False)):
            if cold:
                forget(root)
            command = [sys.executable, "-c", CHILD, folder, args.format]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            opened, at_open, wanted, at_random, peak = json.loads(done.stdout)
            print(f"  {name}: open {opened:.2f} s, {at_open / 1e6:,.0f} MB read; 2,000 at random:")
            print(f"    {at_random / wanted:.2f} times their {wanted / 1e6:,.2f} MB read; at most"
                  f" {peak / 1e6:,.0f} MB of memory", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
