"""Fuzz the readers of record files and shards: a longer run than the suite has time for.

    python tests/fuzz/fuzz_readers.py recordio --inputs 1000000
    python tests/fuzz/fuzz_readers.py tfrecord --inputs 1000000 --atheris

Every input must give the right records or the reader's own error with an offset. A hang (10 s of
CPU), more than 1 GB of memory, any other exception or a wrong record ends the run and leaves the
input in `fuzz-failure-READER/`. Inputs are random damage to a small good file; with --atheris (a
package to be installed for it) they are guided by coverage and start from that file.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from data_prep.encoding import pack_header
from data_prep.tfrecordwriter import frame_record
from rn50lib.data.recordfile import RecordError
from rn50lib.data.recordio import Reader
from rn50lib.data.tfrecord import TFRecordReader, parse_example
from tests.records import known
from tests.records.test_tfrecord import INDEX, RECORDS, SHARD

EXAMPLE_SHARD = SHARD + frame_record(b"the last one" * 20)


class RecordIO:
    """A record file with its index: bytes of both, the index behind a border."""

    seed = known.REC + b"\n--\n" + known.IDX

    def check(self, folder: Path, data: bytes) -> str:
        """Read everything; return the outcome, and raise if it is not allowed."""
        rec, _, idx = data.rpartition(b"\n--\n")
        (folder / "a.rec").write_bytes(rec)
        (folder / "a.idx").write_bytes(idx)
        outcome = "read"
        try:
            for _ in Reader(folder / "a.rec"):
                pass
        except RecordError as error:
            assert error.path is not None
            outcome = "refused"
        try:
            reader = Reader(folder / "a.rec", folder / "a.idx")
            reader.labels()
        except RecordError:
            pass  # the good file has several labels in one record
        try:
            reader = Reader(folder / "a.rec", folder / "a.idx")
            records = [reader.read(i) for i in range(len(reader))]
            _ = [reader[i] for i in range(len(reader))]
        except RecordError:
            return "refused"
        if idx == known.IDX and rec == known.REC:
            wanted = [pack_header(label, key, image) for key, label, image in known.RECORDS]
            assert records == wanted
        assert sum(map(len, records)) <= len(rec), "more data than the file holds"
        return outcome


class TFRecord:
    """A shard with its index."""

    seed = EXAMPLE_SHARD + b"\n--\n" + INDEX + b"72 256\n"
    whole = (*RECORDS, b"the last one" * 20)

    def check(self, folder: Path, data: bytes) -> str:
        """Read everything; every record that comes must be one of the good ones."""
        shard = data
        (folder / "a").write_bytes(shard)
        outcome = "read"
        try:
            for _, record in TFRecordReader(folder / "a").records():
                assert record in self.whole, "a record that was never written"
        except RecordError as error:
            assert error.offset is not None
            outcome = "refused"
        try:
            parse_example(shard[:200])
        except ValueError:
            pass
        return outcome


def damage(rng: random.Random, data: bytes) -> bytes:
    """Make one to three changes: flip, replace, double, move, cut or insert bytes."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        if not out:
            return bytes(out)
        at, length = rng.randrange(len(out)), rng.choice((1, 2, 4, 8, 40))
        kind = rng.randrange(7)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at : at + length] = rng.randbytes(length)
        elif kind == 2:
            del out[at : at + length]
        elif kind == 3:
            out[at:at] = rng.choice((rng.randbytes(length), known.MAGIC, b"\xff" * 4, b"\0" * 4))
        elif kind == 4:
            other = rng.randrange(len(out))
            out[at : at + length] = out[other : other + length]
        elif kind == 5:
            del out[at:]
        else:
            at -= at % 4
            out[at : at + 4] = rng.choice((known.MAGIC, b"\xff\xff\xff\x1f", b"\0\0\0\x20"))
    return bytes(out)


def main() -> None:
    """The program."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("reader", choices=("recordio", "tfrecord"))
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--atheris", action="store_true")
    args = parser.parse_args()
    target = RecordIO() if args.reader == "recordio" else TFRecord()
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with tempfile.TemporaryDirectory(dir=memory) as name:
        folder = Path(name)
        counts = {"read": 0, "refused": 0}
        start = time.monotonic()

        def one(data: bytes) -> None:
            # of CPU time: a busy machine does not count as a hang
            signal.setitimer(signal.ITIMER_PROF, 10)
            try:
                counts[target.check(folder, data)] += 1
            except BaseException:
                kept = Path(f"fuzz-failure-{args.reader}")
                kept.mkdir(exist_ok=True)
                (kept / str(time.time_ns())).write_bytes(data)
                raise
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used
            assert grown < 1_000_000, "more than 1 GB of memory"

        one(target.seed)
        assert counts["read"] == 1, "the good file must be read"
        if args.atheris:
            import atheris

            corpus = folder / "corpus"
            corpus.mkdir()
            (corpus / "seed").write_bytes(target.seed)
            atheris.instrument_all()
            atheris.Setup([sys.argv[0], f"-runs={args.inputs}", str(corpus)], one)
            atheris.Fuzz()
            return
        rng = random.Random(args.seed)
        for number in range(args.inputs):
            one(damage(rng, target.seed))
            if number % 50_000 == 49_999:
                rate = (number + 1) / (time.monotonic() - start)
                print(f"{number + 1:,} inputs, {rate:,.0f}/s: {counts}", flush=True)
        print(f"{args.inputs:,} inputs, nothing wrong: {counts}")


if __name__ == "__main__":
    main()
