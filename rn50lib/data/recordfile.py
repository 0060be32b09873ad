"""The common half of RecordIO and TFRecord: files, checksums, lists of numbers, a disk cache."""

from __future__ import annotations

import contextlib
import hashlib
import io
import mmap
import os
import stat
import sys
import warnings
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rn50lib.errors import Remedy, UserError
from rn50lib.files import cache_folder, write_file

GZIP = b"\x1f\x8b\x08"  # the first bytes of a gzip file (RFC 1952)
SPARSE = 32_000  # bytes per record above which reading the whole file costs more than single pages
LARGE = 20_000_000  # bytes of files from which on what was computed from them is cached
Arrays = dict[str, np.ndarray]


class RecordError(UserError):
    """A record file that is damaged at an `offset`, if known, or does not fit its index."""

    def __init__(self, message: str, offset: int | None = None, remedy: Remedy = ()) -> None:
        super().__init__(message, remedy)
        self.offset = offset


def crc32c(data: bytes) -> int:
    """Return the CRC-32C of data, by a package that is imported only if checksums are needed."""
    import google_crc32c

    return google_crc32c.value(data)


def read_pairs(path: str | os.PathLike) -> np.ndarray:
    """Return lines of two whole numbers from 0 on as int64 of shape (lines, 2).

    Raises ValueError, which says what is wrong, as the end of a message.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # if there are none
            pairs = np.loadtxt(path, np.int64, ndmin=2)
        if pairs.shape[1] == 2 and pairs.min() >= 0:
            return pairs
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror or 'it is missing'})") from None
    except (ValueError, UserWarning):
        pass
    raise ValueError("does not hold two whole numbers in each line")


class MappedFile:
    """A file that is opened at the first read; ``size`` is its length in bytes.

    It can be pickled: the new process opens the file again. Raises RecordError if the file cannot
    be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._map: Any = None
        self._file: Any = None
        try:
            found = os.stat(path)
        except OSError as error:
            raise self.error(f"the record file cannot be opened ({error.strerror})") from None
        if stat.S_ISDIR(found.st_mode):
            raise self.error("it is a folder, not a record file")
        self.size = found.st_size

    def data(self, records: int = sys.maxsize) -> Any:
        """Return the mapped file, to be read as a whole, or at the start of so many `records`."""
        if self._map is None:
            try:  # shared, some file systems refuse it
                self._map = mmap.mmap(self._open(), 0, mmap.MAP_PRIVATE, mmap.PROT_READ)
            except OSError as error:
                raise self.error(
                    f"this file system cannot map files ({error.strerror}): copy it to another disk"
                ) from None
        dense = records * SPARSE > self.size
        self._map.madvise(mmap.MADV_SEQUENTIAL if dense else mmap.MADV_RANDOM)
        return self._map

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from ``start`` to ``stop``, or to the end of the file."""
        return os.pread(self._open(), max(0, min(stop, self.size) - start), start)

    def _open(self) -> int:
        if self.size == 0:
            raise self.error("the file is empty; write it again", 0)
        if self._file is None:
            self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115 - closed with this object
            # no reading ahead: with random access it would read several times the data
            with contextlib.suppress(OSError, AttributeError):  # macOS has no such call
                os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        return self._file.fileno()

    def error(self, problem: str, offset: int | None = None, remedy: Remedy = ()) -> RecordError:
        return RecordError(f"{self.path}: {problem}", offset, remedy)

    def damaged(self, offset: int, reason: str, remedy: Remedy = ()) -> RecordError:
        """Return the error for a record that cannot be read; `remedy` is "verify" by default."""
        if offset == 0 and self.read(0, len(GZIP)) == GZIP:
            return self.error("the file is compressed with gzip; decompress it with gunzip", 0)
        return self.error(
            f"damaged at offset {offset:,}: {reason}; copy the file or write it again",
            offset,
            remedy or ("verify", self.path),
        )

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None, "_file": None}


# -- arrays that are saved next to the files they were computed from ------------------------------


def disk_cache(path: Path, files: Sequence[Path], compute: Callable[[], Arrays]) -> Arrays:
    """Return the arrays saved at `path` for `files`; or compute them, and save those of LARGE.

    They are computed again if a file is newer, or its size has changed; those computed here, if its
    time has, too: a file that took its place may be older.
    """
    for place in _places(path):
        with contextlib.suppress(
            OSError, ValueError, KeyError, EOFError, MemoryError, zipfile.BadZipFile
        ):
            saved = place.stat().st_mtime_ns
            if any(file.stat().st_mtime_ns > saved for file in files):
                continue
            with np.load(place, allow_pickle=False) as stored:
                if str(stored["state"]) in (_state(files), _state(files, times=False)):
                    return {name: stored[name] for name in stored.files if name != "state"}
    before, found = [*map(_identity, files)], compute()
    is_same = before == [*map(_identity, files)]  # not replaced in the meantime
    if is_same and sum(file.stat().st_size for file in files) >= LARGE:
        save_arrays(path, files, found, times=True)
    return found


def _identity(file: Path) -> tuple[int, int, int] | None:
    with contextlib.suppress(OSError):  # it is missing: `compute` says so
        state = file.stat()
        return state.st_ino, state.st_size, state.st_mtime_ns
    return None


def save_arrays(path: Path, files: Sequence[Path], arrays: Arrays, times: bool = False) -> None:
    """Save arrays at `path`, or in the user's cache if `path` cannot be written.

    Without the files' `times`, equal files give equal bytes: for what is written with them.
    """
    content = io.BytesIO()
    np.savez(content, allow_pickle=False, state=np.array(_state(files, times)), **arrays)
    for place in _places(path):
        with contextlib.suppress(UserError):  # a read-only folder, a full disk
            write_file(place, content.getvalue())
            return


def _state(files: Sequence[Path], times: bool = True) -> str:
    states = [file.stat() for file in files]
    seconds = [f" {int(state.st_mtime)}" if times else "" for state in states]  # tar keeps no more
    return "".join(f"{s.st_size}{when}\n" for s, when in zip(states, seconds, strict=True))


def _places(path: Path) -> list[Path]:
    with contextlib.suppress(RuntimeError):  # no home
        name = hashlib.sha256(os.fsencode(path.resolve())).hexdigest()[:32]
        return [path, cache_folder() / "kept" / name]
    return [path]
