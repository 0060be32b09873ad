"""Writes a record file with index and checksums; they appear together, complete, or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from rn50lib.errors import UserError
from rn50lib.records.checksums import checksum_path, crc32c
from rn50lib.records.framing import frame
from rn50lib.records.publish import OutputSet


class Writer:
    """Writes `PREFIX.rec`, `.idx` and, with the usual framing and where google-crc32c is installed,
    `.crc`; they appear, complete, when the `with` block ends well.

    ``framing`` is the function that frames one payload (a seam for the notebooks). Raises UserError
    if a key comes twice, if the folder cannot be written to, or if the disk becomes full.
    """

    def __init__(
        self,
        prefix: str | os.PathLike,
        *,
        framing: Callable[[bytes], bytes] = frame,
        fsync: bool = True,
    ) -> None:
        self.path_rec = Path(f"{os.fspath(prefix)}.rec")
        self.path_idx = Path(f"{os.fspath(prefix)}.idx")
        self._framing = framing
        paths = [self.path_rec, self.path_idx, checksum_path(self.path_rec)]
        self._extend = crc32c() if framing is frame else None
        self._outputs = OutputSet(*paths[: 3 if self._extend else 2], fsync=fsync)
        self._keys: set[int] = set()
        self._offset = 0

    def __enter__(self) -> Writer:
        self._outputs.__enter__()
        self._files = [io.BufferedWriter(file, 1 << 20) for file in self._outputs.files]
        return self

    def write(self, key: int, payload: bytes) -> None:
        """Append one record (``pack_header``'s header and the image) under a key of its own."""
        if key in self._keys:
            raise UserError(
                f"{self.path_idx}: the key {key} comes twice; every record needs its own"
            )
        self._keys.add(key)
        framed = self._framing(payload)
        self._files[0].write(framed)
        self._files[1].write(b"%d\t%d\n" % (key, self._offset))
        if self._extend:
            self._files[2].write(b"%d\t%d\n" % (self._offset, self._extend(0, bytes(payload))))
        self._offset += len(framed)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                for file in self._files:
                    file.flush()
            except OSError as failed:
                self._outputs.__exit__(type(failed), failed, failed.__traceback__)
                raise
        self._outputs.__exit__(kind, error, trace)
        if error is None and not self._extend:  # those of a file that was there before
            checksum_path(self.path_rec).unlink(missing_ok=True)
