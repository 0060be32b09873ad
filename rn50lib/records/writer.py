"""Writes a record file and its index; both appear together, complete, or not at all."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType

from rn50lib.errors import UserError
from rn50lib.records.framing import frame
from rn50lib.records.publish import OutputSet


class Writer:
    """Writes `PREFIX.rec` and `PREFIX.idx`; both appear, complete, when the `with` block ends well.

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
        self._outputs = OutputSet(self.path_rec, self.path_idx, fsync=fsync)
        self._keys: set[int] = set()
        self._offset = 0

    def __enter__(self) -> Writer:
        self._outputs.__enter__()
        self._rec, self._idx = (io.BufferedWriter(f, 1 << 20) for f in self._outputs.files)
        return self

    def write(self, key: int, payload: bytes) -> None:
        """Append one record (``pack_header``'s header and the image) under a key of its own."""
        if key in self._keys:
            raise UserError(
                f"{self.path_idx}: the key {key} comes twice; every record needs its own"
            )
        self._keys.add(key)
        framed = self._framing(payload)
        self._idx.write(b"%d\t%d\n" % (key, self._offset))
        self._rec.write(framed)
        self._offset += len(framed)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            try:
                self._rec.flush()
                self._idx.flush()
            except OSError as failed:
                self._outputs.__exit__(type(failed), failed, failed.__traceback__)
                raise
        self._outputs.__exit__(kind, error, trace)
