"""Record files that DALI reads are checked before, once: DALI trains on whatever decodes.

The result is kept (see `kept`) next to the index as `NAME.checked`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from rn50lib.data import kept
from rn50lib.data.framing import checksum_path
from rn50lib.data.recordio import Reader
from rn50lib.data.tfrecord import TFRecordReader


def check_once(files: Sequence[tuple[Path, Path]], rank: int, size: int) -> None:
    """Check record files or shards, each given with its index, unless that was done before.

    All ranks of a machine call this; they begin at different files, and wait for each other's
    results. Record files without checksums are left out. Raises RecordError for the first damaged
    record.
    """
    left = []
    for path, index in files:
        sums = [checksum_path(path)] if path.suffix == ".rec" else []
        if all(file.exists() for file in sums):
            note, used = index.with_suffix(".checked"), [path, *sums]
            if kept.load(note, kept.state(used)) is None:
                left.append((note, used))
    stored = sum(used[0].stat().st_size for _, used in left)
    if rank == 0 and stored >= kept.LARGE:
        print(
            f"{left[0][1][0].parent}: looking at the checksums of {len(left)} files, "
            f"{stored / 1e9:.1f} GB, because DALI does not; this is done once",
            file=sys.stderr,
        )
    first = len(left) * rank // size
    for note, used in [*left[first:], *left[:first]]:
        kept.kept(note, used, partial(_read_through, used[0]))


def _read_through(path: Path) -> kept.Arrays:
    """Return nothing. Raises RecordError if a record is damaged."""
    if path.suffix == ".rec":
        reader = Reader(path)
        for position in reader.offsets.argsort().tolist():
            reader.read(position)
    else:
        for _ in TFRecordReader(path).records():
            pass
    return {}
