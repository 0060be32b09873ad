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
"""The 32-bit number that stands at the start of every part of a record (little-endian in the file).
"""

MAGIC_BYTES = struct.pack("<I", MAGIC)
HEADER = struct.Struct("<IfQQ")
"""The image header inside a record: flag, float32 label, id, id2. It takes 24 bytes."""

PART = struct.Struct("<II")
_LENGTH_BITS = 29
MAX_PAYLOAD = (1 << _LENGTH_BITS) - 1
"""Bytes that one record can hold: the length field has 29 bits."""

WHOLE, FIRST, MIDDLE, LAST = range(4)
"""The 3-bit flag above the length: a record in one part, or the place of a part in its record."""

FIRST_FLAGS, LATER_FLAGS = (WHOLE, FIRST), (MIDDLE, LAST)


class RecordError(UserError):
    """A record file that is damaged or does not fit its index.

    Attributes: ``path`` of the file, byte ``offset`` of the record in question and ``good``, the
    number of whole records that stand before it in the file; each is None where it has no meaning.
    """

    def __init__(
        self,
        message: str,
        path: object = None,
        offset: int | None = None,
        good: int | None = None,
    ) -> None:
        super().__init__(message)
        self.path = path
        self.offset = offset
        self.good = good

    def __reduce__(self) -> tuple:
        # An exception that a loader's worker raises travels to the main process by pickle.
        return type(self), (str(self), self.path, self.offset, self.good)


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

    ``flag`` is 0 for one label, else the number of labels; ``label`` is a float or a tuple of
    floats.
    """

    flag: int
    label: float | tuple[float, ...]
    id: int
    id2: int


def pack_header(label: float | Sequence[float], index: int, payload: bytes) -> bytes:
    """The record for one image: the 24-byte header, extra labels if there are several, the image.

    A number as label gives flag 0. A sequence of n labels gives flag n and label 0, and the n
    labels follow the header as float32. ``index`` is the key of the ``.idx`` and ``.lst``.
    """
    if isinstance(label, (int, float)) or not hasattr(label, "__len__"):
        return HEADER.pack(0, float(label), index, 0) + payload  # type: ignore[arg-type]
    count = len(label)
    return HEADER.pack(count, 0.0, index, 0) + struct.pack(f"<{count}f", *label) + payload


def unpack_header(record: bytes) -> tuple[Header, bytes]:
    """Take a record apart into its header and the encoded image.

    Raises RecordError if the record is too short to hold the header, or the labels that it
    announces.
    """
    if len(record) < HEADER.size:
        raise RecordError(
            f"a record of {len(record)} bytes is too short for the {HEADER.size}-byte image header"
        )
    flag, label, id_, id2 = HEADER.unpack_from(record)
    if flag == 0:
        return Header(0, label, id_, id2), record[HEADER.size :]
    end = HEADER.size + 4 * flag
    if end > len(record):
        raise RecordError(
            f"a record announces {flag:,} labels but holds only {len(record) - HEADER.size:,} bytes"
        )
    labels = struct.unpack_from(f"<{flag}f", record, HEADER.size)
    return Header(flag, labels, id_, id2), record[end:]


def frame(payload: bytes) -> bytes:
    """Frame one record: magic, flag and length, the payload, zeros up to a multiple of four bytes.

    Where the payload itself holds the magic at an offset divisible by four, a part ends there and
    those four bytes are left out; the reader puts them back between the parts. Raises UserError if
    the payload is longer than the length field can say.
    """
    if len(payload) > MAX_PAYLOAD:
        raise UserError(
            f"an image of {len(payload):,} bytes does not fit into RecordIO, which holds at most "
            f"{MAX_PAYLOAD:,} bytes in a record: make the image smaller or leave it out"
        )
    cuts = aligned_magics(payload)
    pieces: list[bytes] = []
    start = 0
    for number, cut in enumerate(cuts):
        flag = FIRST if number == 0 else MIDDLE
        pieces += [PART.pack(MAGIC, (flag << _LENGTH_BITS) | (cut - start)), payload[start:cut]]
        start = cut + 4
    flag = LAST if cuts else WHOLE
    rest = payload[start:]
    pieces += [PART.pack(MAGIC, (flag << _LENGTH_BITS) | len(rest)), rest]
    pieces.append(bytes(-len(payload) % 4))
    return b"".join(pieces)


def aligned_magics(payload: bytes) -> list[int]:
    """Offsets in ``payload``, divisible by four, at which the whole magic stands."""
    words = np.frombuffer(payload, "<u4", len(payload) // 4)
    return [4 * int(word) for word in (words == MAGIC).nonzero()[0]]


class Span(NamedTuple):
    """Where a record stands in its file: its parts as (start, end) of their bytes, and the end of
    all.
    """

    parts: tuple[tuple[int, int], ...]
    end: int


class Damage(Exception):
    """What is wrong at one offset, in words; the caller adds the file's name and the remedy."""

    def __init__(self, offset: int, reason: str) -> None:
        super().__init__(reason)
        self.offset = offset
        self.reason = reason


def locate(data: bytes, offset: int, size: int) -> Span:
    """Find the parts of the record that starts at ``offset`` of a buffer that is ``size`` bytes
    long.

    ``data`` may be any buffer (bytes, mmap, memoryview). Raises Damage where the bytes are no
    record.
    """
    parts: list[tuple[int, int]] = []
    at, allowed = offset, FIRST_FLAGS
    while True:
        if at + 8 > size:
            there = max(0, size - at)
            raise Damage(offset, f"only {there} of the 8 bytes of part {len(parts) + 1} are there")
        magic, lrec = PART.unpack_from(data, at)
        flag, length = lrec >> _LENGTH_BITS, lrec & MAX_PAYLOAD
        if magic != MAGIC:
            raise Damage(
                offset,
                f"0x{MAGIC:08x} should stand at offset {at:,}, but 0x{magic:08x} stands there",
            )
        if flag not in allowed:
            raise Damage(offset, f"part {len(parts) + 1} of a record cannot have the flag {flag}")
        start = at + 8
        stop = start + length
        at = stop + (-length % 4)
        if at > size:
            raise Damage(
                offset,
                f"the record says {length:,} bytes, but the file ends after {size - start:,}",
            )
        parts.append((start, stop))
        if flag == WHOLE or flag == LAST:
            return Span(tuple(parts), at)
        allowed = LATER_FLAGS
        if stop != at:  # parts end where the magic stood, so only the last may need padding
            raise Damage(offset, f"part {len(parts)} of the record has an odd length")


def join(data: bytes, span: Span) -> bytes:
    """The payload of a located record as bytes of its own, the magic back between parts."""
    if len(span.parts) == 1:
        start, stop = span.parts[0]
        return data[start:stop]
    return MAGIC_BYTES.join(data[start:stop] for start, stop in span.parts)
