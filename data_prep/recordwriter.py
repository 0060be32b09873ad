"""Writes a record file with index and checksums; they appear together, complete, or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from data_prep.encoding import frame
from data_prep.output import new_files
from rn50lib.data.recordfile import crc32c
from rn50lib.data.recordio import checksum_path
from rn50lib.errors import UserError


class Writer:
    """Writes `PREFIX.rec`, `.idx` and, with the usual framing, `.crc`; they appear, complete, when
    the `with` block ends well.

    ``framing`` is the function that frames one payload (a seam for the notebooks); what it writes
    may be what no reader gives back, so it gets no checksums. Raises UserError if a key comes
    twice, if the folder cannot be written to, or if the disk becomes full.
    """

    def __init__(
        self, prefix: str | os.PathLike, *, framing: Callable[[bytes], bytes] = frame
    ) -> None:
        self.path_rec = Path(f"{os.fspath(prefix)}.rec")
        self.path_crc = checksum_path(self.path_rec)
        self.count = self.size = 0  # of the records so far, and of their bytes
        self.framing = framing
        self._extend = crc32c() if framing is frame else None
        paths = [self.path_rec, Path(f"{os.fspath(prefix)}.idx")]
        if self._extend:
            paths.append(self.path_crc)
        self._outputs = new_files(*paths)
        self._keys: set[int] = set()

    def __enter__(self) -> Writer:
        self._files = self._outputs.__enter__()
        return self

    def write(self, key: int, payload: bytes) -> None:
        """Append one record (``pack_header``'s header and the image) under a key of its own."""
        if key in self._keys:
            raise UserError(
                f"{self.path_rec.with_suffix('.idx')}: the key {key} comes twice; every record "
                "needs its own"
            )
        self._keys.add(key)
        self.append(key, *self.frame(payload))

    def frame(self, payload: bytes) -> tuple[bytes, int]:
        """The framed record, and the checksum of its payload (0 where none are written)."""
        return self.framing(payload), self._extend(0, payload) if self._extend else 0

    def append(self, key: int, record: bytes, checksum: int) -> None:
        """Append what ``frame`` gave."""
        self._files[0].write(record)
        self._files[1].write(b"%d\t%d\n" % (key, self.size))
        if self._extend:
            self._files[2].write(b"%d\t%d\n" % (self.size, checksum))
        self.size += len(record)
        self.count += 1

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._outputs.__exit__(kind, error, trace)
        if error is None and not self._extend:  # those of a file that was there before
            self.path_crc.unlink(missing_ok=True)
