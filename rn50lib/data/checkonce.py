"""Record files whose reader looks at no checksum are checked before it reads them, once.

DALI trains on whatever decodes. So each file is read through before, which is kept (see `kept`)
beside its index as `NAME.checked`.
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

    All ranks of a machine call this; they begin at different files, and one that finds a file in
    another one's hands waits for its result. Record files without checksums are left out: nothing
    could be seen there. Raises RecordError for the first damaged record.
    """
    left = [pair for pair in files if not _is_known(*pair)]
    stored = sum(path.stat().st_size for path, _ in left)
    if rank == 0 and stored >= kept.LARGE:
        print(
            f"{left[0][0].parent}: looking at the checksums of {len(left)} files, "
            f"{stored / 1e9:.1f} GB, because DALI does not; this is done once",
            file=sys.stderr,
        )
    first = len(left) * rank // size
    for path, index in [*left[first:], *left[:first]]:
        kept.kept(_note(index), _files(path), partial(_read_through, path))


def _note(index: Path) -> Path:
    return index.with_suffix(".checked")


def _files(path: Path) -> list[Path]:
    """What must be as it was, for a result to hold."""
    return [path, checksum_path(path)] if path.suffix == ".rec" else [path]


def _is_known(path: Path, index: Path) -> bool:
    """Whether there is nothing left to find out about a file."""
    if path.suffix == ".rec" and not checksum_path(path).exists():
        return True
    return kept.load(_note(index), kept.state(_files(path))) is not None


def _read_through(path: Path) -> kept.Arrays:
    """Nothing. Raises RecordError if a record is damaged."""
    if path.suffix == ".rec":
        reader = Reader(path)
        for position in reader.offsets.argsort().tolist():
            reader[position]
    else:
        for _ in TFRecordReader(path).records():
            pass
    return {}
