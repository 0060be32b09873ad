"""Record files whose reader looks at no checksum are checked before it reads them, once.

DALI trains on whatever decodes. So each file is read through before, and the result is kept beside
its index as `NAME.checked` with the file's size, time and inode; a file that was written or copied
since is checked again. Where nothing can be written there, the result is kept in the user's cache.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from rn50lib.files import write_file
from rn50lib.records.framing import checksum_path
from rn50lib.records.recordio import Reader
from rn50lib.records.tfrecord import TFRecordReader

LARGE = 500_000_000
"""Bytes from which on checking takes long enough to say what is being done."""


def check_once(files: Sequence[tuple[Path, Path]], rank: int, size: int) -> None:
    """Check record files or shards, each given with its index, unless that was done before.

    All ranks of a machine call this; they begin at different files, and one that finds a file in
    another one's hands waits for its result. Record files without checksums are left out: nothing
    could be seen there. Raises RecordError for the first damaged record.
    """
    left = [pair for pair in files if not _is_known(*pair)]
    stored = sum(path.stat().st_size for path, _ in left)
    if rank == 0 and stored >= LARGE:
        print(
            f"{left[0][0].parent}: looking at the checksums of {len(left)} files, "
            f"{stored / 1e9:.1f} GB, because DALI does not; this is done once",
            file=sys.stderr,
        )
    first = len(left) * rank // size
    for path, index in [*left[first:], *left[:first]]:
        with _held(path):
            if not _is_known(path, index):
                before = _state(path)
                _read_through(path)
                if _state(path) == before:
                    _keep(path, index, before)


def _read_through(path: Path) -> None:
    """Raise RecordError if a record is damaged."""
    if path.suffix != ".rec":
        for _ in TFRecordReader(path).records():
            pass
        return
    reader = Reader(path)
    for position in reader.offsets.argsort().tolist():
        reader[position]


def _state(path: Path) -> str:
    """What changes when a file is written again or copied; for RecordIO with its checksums."""
    found = []
    for file in (path, checksum_path(path)) if path.suffix == ".rec" else (path,):
        status = file.stat()
        found.append(f"{status.st_size} {status.st_mtime_ns} {status.st_ino}\n")
    return "".join(found)


def _notes(path: Path, index: Path) -> Iterator[Path]:
    """Where the result may be kept."""
    yield index.with_suffix(".checked")
    with contextlib.suppress(RuntimeError):  # no home
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
        yield cache / "rn50" / "checked" / name


def _is_known(path: Path, index: Path) -> bool:
    """Whether there is nothing left to find out about a file."""
    if path.suffix == ".rec" and not checksum_path(path).exists():
        return True
    state = _state(path)
    for note in _notes(path, index):
        with contextlib.suppress(OSError):
            if note.read_text(errors="replace") == state:
                return True
    return False


def _keep(path: Path, index: Path, state: str) -> None:
    for note in _notes(path, index):
        try:
            write_file(note, state)
            return
        except OSError:  # a data folder that is only to be read, a full disk: the next one
            continue


@contextlib.contextmanager
def _held(path: Path) -> Iterator[None]:
    """Keep the other ranks of this machine waiting. Some network file systems have no such lock:
    there each rank checks for itself."""
    with open(path, "rb") as file:
        with contextlib.suppress(OSError):
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
