"""A file of records, opened by each process for itself: mapped into memory, and read in pieces."""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Callable, Iterator
from typing import Any

from rn50lib.data.framing import Damage, RecordError, Span, locate
from rn50lib.data.index import pack_remedy

GZIP = b"\x1f\x8b\x08"
"""How a gzip file begins (RFC 1952)."""

SPARSE = 32_000
"""Bytes a record from which on reading all of it costs more than its first page alone."""


class MappedFile:
    """A file that is mapped when a process first asks for its bytes; ``size`` is its length in
    bytes.

    ``locate`` finds a record of the file's format, RecordIO unless given. It can be pickled, and
    inherited by a fork: the new process opens the file anew, so that no two processes share a
    handle, and refuses it if it is no longer the file that was opened first. (A file that is cut
    short while it is mapped ends the process, as with every mapping: outputs are therefore written
    beside and renamed, never changed in place.)
    """

    def __init__(
        self,
        path: str,
        remedy: str | None = None,
        locate: Callable[[Any, int, int], Span] = locate,
    ) -> None:
        self.path = path
        self._remedy = remedy or pack_remedy(path)
        self._locate = locate
        self._map: Any = None
        self._file: Any = None
        self._pid = -1
        self._identity = self._stat()
        self.size = self._identity[0]

    def data(self) -> Any:
        """The bytes, as a buffer whose slices are copies. Raises RecordError if there are none."""
        if self._pid == os.getpid():
            return self._map
        if self._stat() != self._identity:
            raise RecordError(
                f"{self.path}: the file was changed after it had been opened; start again",
                self.path,
            )
        if self.size == 0:
            raise RecordError(f"{self.path}: the file is empty: {self._remedy}", self.path, 0, 0)
        self.close()
        self._file = open(self.path, "rb", buffering=0)  # noqa: SIM115 - by close()
        self._map = mmap.mmap(self._file.fileno(), 0, access=mmap.ACCESS_READ)
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file.fileno(), 0, 0, os.POSIX_FADV_RANDOM)
        self._pid = os.getpid()
        self._expect(mmap.MADV_RANDOM)
        return self._map

    def _expect(self, access: int) -> None:
        """Tell the system whether to read ahead. Where records are read at random, that would cost
        a cold data set several times its size."""
        self.data().madvise(access)

    @contextlib.contextmanager
    def read_starts_of(self, records: int) -> Iterator[Any]:
        """The mapped file for who looks at the start of each of so many records, in their order."""
        if records * SPARSE > self.size:
            self._expect(mmap.MADV_SEQUENTIAL)
        yield self.data()
        self._expect(mmap.MADV_RANDOM)

    def read(self, start: int, stop: int) -> bytes:
        """The bytes from ``start`` to ``stop``, or to the file's end, in one piece."""
        if self._pid != os.getpid():
            self.data()
        return os.pread(self._file.fileno(), stop - start, start)

    def locate(self, offset: int) -> Span:
        """Where the parts of the record at an offset stand. Raises Damage if there is none."""
        return self._locate(self.data(), offset, self.size)

    def spans(self) -> Iterator[tuple[int, Span]]:
        """(offset, span) of all records, in the file's order. Raises RecordError at the first place
        that is none."""
        offset = 0
        self._expect(mmap.MADV_SEQUENTIAL)
        while offset < self.size or not offset:
            try:
                span = self.locate(offset)
            except Damage as damage:
                raise self.damaged(damage) from None
            yield offset, span
            offset = span.end
        self._expect(mmap.MADV_RANDOM)

    def damaged(self, damage: Damage) -> RecordError:
        """The error for a damaged record: with file, offset, and how many good ones stand before,
        one behind the other."""
        if damage.offset == 0 and self.read(0, len(GZIP)) == GZIP:
            return RecordError(
                f"{self.path}: the file is compressed with gzip, which cannot be read at random: "
                f"decompress it: `gunzip < {self.path} > {self.path}.new && mv {self.path}.new "
                f"{self.path}`",
                self.path,
                0,
                0,
            )
        good = end = 0
        try:
            while (end := self.locate(end).end) <= damage.offset:
                good += 1
        except Damage:
            pass
        return RecordError(
            f"{self.path}: damaged at offset {damage.offset:,}, after {good:,} good records: "
            f"{damage.reason}: {self._remedy}",
            self.path,
            damage.offset,
            good,
        )

    def close(self) -> None:
        """Let go of the mapping; ``data`` makes it again."""
        for opened in (self._map, self._file):
            if opened is not None:
                opened.close()
        self._map, self._file, self._pid = None, None, -1

    def __del__(self) -> None:
        if self._file is not None:
            self._file.close()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_map": None, "_file": None, "_pid": -1}

    def _stat(self) -> tuple[int, int, int]:
        try:
            status = os.stat(self.path)
        except OSError as error:
            raise RecordError(
                f"{self.path}: the record file cannot be opened ({error.strerror}): {self._remedy}",
                self.path,
            ) from None
        return status.st_size, status.st_mtime_ns, status.st_ino
