"""A file of records that each process opens for itself, and reads in pieces."""

from __future__ import annotations

import contextlib
import mmap
import os
import sys
from collections.abc import Iterator
from typing import Any

from rn50lib.data.framing import RecordError

GZIP = b"\x1f\x8b\x08"
"""How a gzip file begins (RFC 1952)."""

SPARSE = 32_000
"""Bytes per record above which reading the whole file costs more than the page at each record."""


class MappedFile:
    """A file that is opened at the first read; ``size`` is its length in bytes.

    It can be pickled: the new process opens the file again, and refuses it if it is a different one
    by then. Raises RecordError if the file cannot be opened.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._map: Any = None
        self._file: Any = None
        self._identity = self._stat()
        self.size = self._identity[0]

    def data(self) -> Any:
        """Return the mapped file, a buffer whose slices are copies."""
        if self._map is None:
            if self._stat() != self._identity:
                raise self.error("the file was changed after it was opened; start again")
            if self.size == 0:
                raise self.error("the file is empty; write it again", 0)
            self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115 - closed with this object
            self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
            # no reading ahead: with random access it would read several times the data
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
            self._map.madvise(mmap.MADV_RANDOM)
        return self._map

    def read(self, start: int, stop: int) -> bytes:
        """Return the bytes from ``start`` to ``stop``, or to the end of the file."""
        if self._file is None:
            self.data()
        return os.pread(self._file.fileno(), stop - start, start)

    @contextlib.contextmanager
    def scan(self, records: int = sys.maxsize) -> Iterator[Any]:
        """Yield the mapped file to read the start of this many records, from first to last."""
        data = self.data()
        if records * SPARSE > self.size:
            data.madvise(mmap.MADV_SEQUENTIAL)
        yield data
        data.madvise(mmap.MADV_RANDOM)

    def error(self, problem: str, offset: int | None = None) -> RecordError:
        """Return the error for a problem with this file."""
        return RecordError(f"{self.path}: {problem}", self.path, offset)

    def damaged(self, offset: int, reason: str) -> RecordError:
        """Return the error for a record that cannot be read."""
        if offset == 0 and self.read(0, len(GZIP)) == GZIP:
            return self.error(
                "the file is compressed with gzip, which cannot be read at random: decompress it: "
                f"`gunzip < {self.path} > {self.path}.new && mv {self.path}.new {self.path}`",
                0,
            )
        return self.error(
            f"damaged at offset {offset:,}: {reason}; copy the file or write it again. "
            f"`python -m data_prep.verify {self.path}` lists all damage",
            offset,
        )

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None, "_file": None}

    def _stat(self) -> tuple[int, int, int]:
        try:
            status = os.stat(self.path)
        except OSError as error:
            raise RecordError(
                f"{self.path}: the record file cannot be opened ({error.strerror})", self.path
            ) from None
        return status.st_size, status.st_mtime_ns, status.st_ino
