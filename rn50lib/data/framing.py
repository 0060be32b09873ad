"""RecordIO's bytes: the image header and the framing of a record.

Everything here works on buffers and knows no files, so that a record can be looked at byte by byte.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rn50lib.errors import UserError

MAGIC = 0xCED7230A
"""The 32-bit number at the start of every part of a record, little-endian."""

MAGIC_BYTES = struct.pack("<I", MAGIC)
HEADER = struct.Struct("<IfQQ")
"""The image header inside a record: flag, float32 label, id, id2. It takes 24 bytes."""

PART = struct.Struct("<II")
_LENGTH_BITS = 29
MAX_PAYLOAD = (1 << _LENGTH_BITS) - 1
"""Bytes that one record can hold: the length field has 29 bits."""

WHOLE, FIRST, MIDDLE, LAST = range(4)
"""The 3-bit flag above the length: a record in one part, or the place of a part in its record."""


class RecordError(UserError):
    """A record file that is damaged or does not fit its index.

    Attributes: ``path`` of the file and byte ``offset`` of the record; None if not known.
    """

    def __init__(self, message: str, path: object = None, offset: int | None = None) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset

    def __reduce__(self) -> tuple:
        # An exception that a loader's worker raises travels to the main process by pickle.
        return type(self), (str(self), self.path, self.offset)


@functools.cache
def crc32c() -> Callable[[int, bytes], int]:
    """google-crc32c's ``extend(crc, data)``, imported only where checksums are needed."""
    import google_crc32c

    return google_crc32c.extend


def checksum_path(path_rec: str | os.PathLike) -> Path:
    """``data/train.crc``, the records' checksums, for ``data/train.rec``: see `index`."""
    return Path(os.path.splitext(os.fspath(path_rec))[0] + ".crc")


class Header(NamedTuple):
    """The header of an image record, as MXNet's ``IRHeader``.

    ``flag`` is the number of labels, or 0 for one; ``label`` is a float or a tuple of floats.
    """

    flag: int
    label: float | tuple[float, ...]
    id: int
    id2: int


def pack_header(label: float | Sequence[float], index: int, payload: bytes) -> bytes:
    """Return the record for one image: header, labels (float32) if they are a sequence, image.

    ``index`` is the key of the ``.idx`` and ``.lst``.
    """
    if isinstance(label, (int, float)) or not hasattr(label, "__len__"):
        return HEADER.pack(0, float(label), index, 0) + payload  # type: ignore[arg-type]
    count = len(label)
    return HEADER.pack(count, 0.0, index, 0) + struct.pack(f"<{count}f", *label) + payload


def unpack_header(record: bytes) -> tuple[Header, bytes]:
    """Return the header and the encoded image of a record.

    Raises RecordError if the record is too short for the header, or for the labels it announces.
    """
    if len(record) < HEADER.size:
        raise RecordError(f"a record of {len(record)} bytes is too short for the image header")
    flag, label, id_, id2 = HEADER.unpack_from(record)
    if flag == 0:
        return Header(0, label, id_, id2), record[HEADER.size :]
    end = HEADER.size + 4 * flag
    if end > len(record):
        raise RecordError(f"a record of {len(record):,} bytes announces {flag:,} labels")
    labels = struct.unpack_from(f"<{flag}f", record, HEADER.size)
    return Header(flag, labels, id_, id2), record[end:]


def frame(payload: bytes) -> bytes:
    """Frame one record: magic, flag and length, the payload, zeros up to a multiple of four bytes.

    If the payload holds the magic at an offset divisible by four, a part ends there and those four
    bytes are left out; the reader puts them back. Raises UserError for more than MAX_PAYLOAD bytes.
    """
    if len(payload) > MAX_PAYLOAD:
        raise UserError(
            f"an image of {len(payload):,} bytes does not fit into RecordIO, which holds at most "
            f"{MAX_PAYLOAD:,} bytes in a record: make the image smaller or leave it out"
        )
    words = np.frombuffer(payload, "<u4", len(payload) // 4)
    cuts = (4 * np.flatnonzero(words == MAGIC)).tolist()
    pieces: list[bytes] = []
    start = 0
    for number, stop in enumerate([*cuts, len(payload)]):
        flag = FIRST if number == 0 else MIDDLE
        if stop == len(payload):
            flag = LAST if cuts else WHOLE
        pieces += [PART.pack(MAGIC, (flag << _LENGTH_BITS) | (stop - start)), payload[start:stop]]
        start = stop + 4
    pieces.append(bytes(-len(payload) % 4))
    return b"".join(pieces)


class Span(NamedTuple):
    """Where a record is in its file: its parts as (start, stop), and the end of it all."""

    parts: tuple[tuple[int, int], ...]
    end: int


class Damage(Exception):
    """What is wrong with a record, in words; the caller adds the file, the place and the remedy."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def locate(data: bytes, offset: int, size: int) -> Span:
    """Return where the parts of the record are that starts at ``offset``.

    ``data`` may be any buffer (bytes, mmap, memoryview) of ``size`` bytes. Raises Damage if there
    is no record.
    """
    parts: list[tuple[int, int]] = []
    at = offset
    while True:
        if at + 8 > size:
            raise Damage(
                f"only {max(0, size - at)} of the 8 bytes of part {len(parts) + 1} are there"
            )
        magic, lrec = PART.unpack_from(data, at)
        flag, length = lrec >> _LENGTH_BITS, lrec & MAX_PAYLOAD
        start, stop = at + 8, at + 8 + length
        at = stop + -length % 4
        if magic != MAGIC:
            raise Damage(f"0x{MAGIC:08x} should be at {start - 8:,}, but 0x{magic:08x} is there")
        if flag not in ((MIDDLE, LAST) if parts else (WHOLE, FIRST)):
            raise Damage(f"part {len(parts) + 1} of a record cannot have the flag {flag}")
        if at > size:
            raise Damage(
                f"the record says {length:,} bytes, but the file ends after {size - start:,}"
            )
        parts.append((start, stop))
        if flag in (WHOLE, LAST):
            return Span(tuple(parts), at)
        if stop != at:  # parts end where the magic was, so only the last may need padding
            raise Damage(f"part {len(parts)} of the record has an odd length")


def join(data: bytes, span: Span) -> bytes:
    """Return the payload of a located record, with the magic between its parts."""
    return MAGIC_BYTES.join(data[start:stop] for start, stop in span.parts)
