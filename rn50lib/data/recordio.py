"""RecordIO files: read their records at random or in order, from many processes.

The format is MXNet's and DALI's: `PREFIX.rec` holds the records, `PREFIX.idx` has a line
`key <tab> offset` for each. RecordIO has no checksums, so im2rec also writes `PREFIX.crc`, with
`offset <tab> CRC-32C` of each record's image header and image.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rn50lib.data.recordfile import (
    LARGE,
    Arrays,
    MappedFile,
    RecordError,
    crc32c,
    disk_cache,
    read_pairs,
)

MAGIC = 0xCED7230A
"""The 32-bit number at the start of every part of a record, little-endian."""

MAGIC_BYTES = struct.pack("<I", MAGIC)
HEADER = struct.Struct("<IfQQ")
"""The image header inside a record: flag, float32 label, id, id2. It takes 24 bytes."""

PART = struct.Struct("<II")
LENGTH_BITS = 29
MAX_PAYLOAD = (1 << LENGTH_BITS) - 1
"""Bytes that one record can hold: the length field has 29 bits."""

WHOLE, FIRST, MIDDLE, LAST = range(4)
"""The 3-bit flag above the length: a record in one part, or the place of a part in its record."""

START_BYTES = PART.size + HEADER.size
"""What a record takes before its image, if it has one label."""

Labels = int | float | np.ndarray
"""A record's label: an int if it is whole, as classes are; an array if there are several."""


# -- one record ----------------------------------------------------------------------------------


class Header(NamedTuple):
    """The header of an image record, as MXNet's ``IRHeader``.

    ``flag`` is the number of labels, or 0 for one; ``label`` is a float or a tuple of floats.
    """

    flag: int
    label: float | tuple[float, ...]
    id: int
    id2: int


def unpack_header(record: bytes) -> tuple[Header, bytes]:
    """Return header and image of a record. Raises RecordError if the record is too short."""
    if len(record) < HEADER.size:
        raise RecordError(f"a record of {len(record)} bytes is too short for the image header")
    flag, label, id_, id2 = HEADER.unpack_from(record)
    if flag == 0:
        return Header(flag, label, id_, id2), record[HEADER.size :]
    end = HEADER.size + 4 * flag
    if end > len(record):
        raise RecordError(f"a record of {len(record):,} bytes announces {flag:,} labels")
    labels = struct.unpack_from(f"<{flag}f", record, HEADER.size)
    return Header(flag, labels, id_, id2), record[end:]


class Span(NamedTuple):
    """The place of a record in its file: its parts as (start, stop), and its end."""

    parts: tuple[tuple[int, int], ...]
    end: int


class Damage(Exception):
    """The reason why a record cannot be read; the caller adds file, place and remedy."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def locate(data: bytes, offset: int, size: int) -> Span:
    """Return where the parts are of the record that starts at ``offset``.

    ``data`` may be any buffer (bytes, mmap, memoryview) of ``size`` bytes. Raises Damage if the
    record is damaged.
    """
    parts: list[tuple[int, int]] = []
    at = offset
    while True:
        number = len(parts) + 1
        if at + 8 > size:
            raise Damage(f"only {max(0, size - at)} of the 8 bytes of part {number} are there")
        magic, lrec = PART.unpack_from(data, at)
        flag, length = lrec >> LENGTH_BITS, lrec & MAX_PAYLOAD
        start, stop = at + 8, at + 8 + length
        at = stop + -length % 4
        if magic != MAGIC:
            raise Damage(f"part {number} should begin with 0x{MAGIC:08x}, not with 0x{magic:08x}")
        if flag not in ((MIDDLE, LAST) if parts else (WHOLE, FIRST)):
            raise Damage(f"part {number} of a record cannot have the flag {flag}")
        if at > size:
            raise Damage(f"the record says {length:,} bytes, but only {size - start:,} are there")
        parts.append((start, stop))
        if flag in (WHOLE, LAST):
            return Span(tuple(parts), at)
        if stop != at:  # parts end where the magic was, so only the last may need padding
            raise Damage(f"part {number} of the record has an odd length")


def join(data: bytes, span: Span) -> bytes:
    """Return the payload of a located record, with the magic between its parts."""
    return MAGIC_BYTES.join(data[start:stop] for start, stop in span.parts)


# -- the lists next to a record file -------------------------------------------------------------


def prefix_of(path_rec: str | os.PathLike) -> str:
    """Return ``data/train`` for ``data/train.rec``: im2rec's PREFIX."""
    return os.path.splitext(os.fspath(path_rec))[0]


def checksum_path(path_rec: str | os.PathLike) -> Path:
    """Return ``data/train.crc``, the file with the checksums, for ``data/train.rec``."""
    return Path(prefix_of(path_rec) + ".crc")


def index_remedy(path_rec: str | os.PathLike) -> str:
    """Return how to write a correct index, as the end of a message."""
    return f"`python -m data_prep.im2rec --index {prefix_of(path_rec)}` writes the index again"


def checksum_remedy(path_rec: str | os.PathLike) -> str:
    """Return how to write the checksums of the records as they are, as the end of a message."""
    return f"`python -m data_prep.im2rec --checksums {prefix_of(path_rec)}` writes the checksums"


def read_index(
    path_idx: str | os.PathLike, path_rec: str | os.PathLike | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return keys and byte offsets, int64 of shape (records,), in the order of the lines.

    Raises RecordError if the file is missing, is not an index, or has a key twice.
    """
    remedy = index_remedy(path_rec or path_idx)
    try:
        keys, offsets = np.ascontiguousarray(read_pairs(path_idx).T)
    except ValueError as error:
        raise RecordError(f"{path_idx}: the index {error}; {remedy}", path_idx) from None
    values, counts = np.unique(keys, return_counts=True)
    if len(values) < len(keys):
        key = values[counts.argmax()]
        raise RecordError(f"{path_idx}: the key {key} is there twice; {remedy}", path_idx)
    return keys, offsets


def read_checksums(path_rec: str | os.PathLike) -> np.ndarray | None:
    """Return offset and checksum of each record, int64 (records, 2); None without such a file.

    Raises RecordError, with the remedy, if the file cannot be read.
    """
    path = checksum_path(path_rec)
    if not path.exists():
        return None
    try:
        return read_pairs(path)
    except ValueError as error:
        text = f"{path}: the checksum file {error}; {checksum_remedy(path_rec)}"
        raise RecordError(text, path) from None


def _checksums_at(path_rec: str, offsets: np.ndarray) -> np.ndarray | None:
    """Return the checksums of the records at ``offsets``, int64 of the same shape; None without."""
    pairs = read_checksums(path_rec)
    if pairs is None:
        return None
    if not np.array_equal(pairs[:, 0], np.sort(offsets)):
        path = checksum_path(path_rec)
        raise RecordError(
            f"{path}: it does not belong to {path_rec}, which was written later or by another "
            f"program; {checksum_remedy(path_rec)}",
            path,
        )
    return pairs[np.searchsorted(pairs[:, 0], offsets), 1]


# -- reading -------------------------------------------------------------------------------------


class Index(NamedTuple):
    """Keys, starts and stops of the records, int64 (records,); their checksums, or None."""

    keys: np.ndarray
    offsets: np.ndarray
    stops: np.ndarray
    checksums: np.ndarray | None


class Reader:
    """Random access to a record file by position, which is the order of the lines of its index.

    ``reader[position]`` is (label, image bytes); iterating gives the same for all records in the
    file's own order and needs no index. It can be pickled or inherited by workers.

    If there are checksums (`PREFIX.crc`), each record that is read is compared with its own; if
    they cannot be used, ``unchecked`` says why. Raises RecordError, with file, offset and remedy,
    if the file is damaged or was changed, or if the index does not fit.
    """

    def __init__(
        self, path_rec: str | os.PathLike, path_idx: str | os.PathLike | None = None
    ) -> None:
        self.path_rec = os.fspath(path_rec)
        self.path_idx = os.fspath(path_idx) if path_idx else prefix_of(path_rec) + ".idx"
        self.unchecked = ""
        self._file = MappedFile(self.path_rec)

    @functools.cached_property
    def index(self) -> Index:
        """The index and the checksums."""
        keys, offsets = read_index(self.path_idx, self.path_rec)
        by_offset = np.argsort(offsets, kind="stable")
        if offsets[by_offset[0]] != 0:
            raise self._misfit(0, "the index does not list the record there")
        stops = np.empty_like(offsets)
        stops[by_offset] = np.append(offsets[by_offset[1:]], self._file.size)
        try:
            return Index(keys, offsets, stops, _checksums_at(self.path_rec, offsets))
        except RecordError as error:
            self.unchecked = str(error)
            return Index(keys, offsets, stops, None)

    @property
    def keys(self) -> np.ndarray:
        """The keys of the records, int64 of shape (records,), in the order of the index."""
        return self.index.keys

    @property
    def offsets(self) -> np.ndarray:
        """The starts of the records, int64 of shape (records,), in the order of the index."""
        return self.index.offsets

    def __len__(self) -> int:
        return len(self.index.keys)

    def __getitem__(self, position: int) -> tuple[Labels, bytes]:
        """Return (label, encoded image) of the record at a position of the index."""
        return self._unpack(int(self.index.offsets[position]), self.read(position))

    def read(self, position: int) -> bytes:
        """Return the record at a position of the index: its header and the encoded image."""
        _, offsets, stops, checksums = self.index
        start, stop = int(offsets[position]), int(stops[position])
        data = self._file.read(start, stop)  # one read; of a mapped file, one for each page
        try:
            span = locate(data, 0, len(data))
        except Damage as damage:
            raise self._misfit(start, damage.reason) from None
        if span.end != stop - start:
            ends = f"the record ends at {start + span.end:,}, by the index at {stop:,}"
            raise self._misfit(start, ends)
        record = join(data, span)
        if checksums is not None:
            wanted, found = int(checksums[position]), crc32c()(0, record)
            if found != wanted:
                raise self._file.damaged(
                    start,
                    f"the record with key {self.keys[position]} is not as it was packed: its "
                    f"checksum is 0x{found:08x}, {checksum_path(self.path_rec)} says "
                    f"0x{wanted:08x} (if the change was meant, {checksum_remedy(self.path_rec)})",
                )
        return record

    def payloads(self) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, header and image) in the order of the file; this needs no index."""
        offset, data = 0, self._file.data()
        while offset < self._file.size:
            try:
                span = locate(data, offset, self._file.size)
            except Damage as damage:
                raise self._file.damaged(offset, damage.reason) from None
            yield offset, join(data, span)
            offset = span.end

    def __iter__(self) -> Iterator[tuple[Labels, bytes]]:
        for offset, record in self.payloads():
            yield self._unpack(offset, record)

    def _unpack(self, offset: int, record: bytes) -> tuple[Labels, bytes]:
        try:
            header, image = unpack_header(record)
        except RecordError as error:
            raise self._file.damaged(offset, str(error)) from None
        if isinstance(header.label, tuple):
            return np.array(header.label, dtype=np.float32), image
        return (int(header.label) if header.label.is_integer() else header.label), image

    def _misfit(self, offset: int, reason: str) -> RecordError:
        """Return the error if file and index do not fit."""
        belongs = f"(or {self.path_idx} does not belong to it: {index_remedy(self.path_rec)})"
        return self._file.damaged(offset, f"{reason} {belongs}")

    def labels(self) -> np.ndarray:
        """Return the class of every record, int32 of shape (records,), in the order of the index.

        Only the headers are read, and those of a large file once: the labels are cached as
        `PREFIX.labels`. Raises RecordError if a record does not have one whole label from 0 on.
        """
        if self._file.size < LARGE:
            return self._scan_labels()["labels"]
        files = [Path(self.path_rec), Path(self.path_idx)]
        path = Path(prefix_of(self.path_rec) + ".labels")
        return disk_cache(path, files, self._scan_labels)["labels"]

    def _scan_labels(self) -> Arrays:
        _, offsets, stops, _ = self.index
        # A header in one piece starts 8 bytes into its record; the few others are read one by one.
        fits = (offsets % 4 == 0) & (stops - offsets >= START_BYTES) & (stops <= self._file.size)
        if self._file.size < START_BYTES:
            _ = self[0]  # raises
        at = np.where(fits, offsets, 0) // 4
        words = np.frombuffer(self._file.data(len(at)), "<u4", count=self._file.size // 4)
        magic, length, flag, label = (words[at + i] for i in range(4))
        plain = fits & (magic == MAGIC) & (flag == 0)
        # a part's flag, above its length, would make it longer
        plain &= offsets + 8 + (length.astype(np.int64) + 3) // 4 * 4 == stops
        with np.errstate(invalid="ignore"):  # a damaged label may be any bit pattern
            labels = label.view("<f4").astype(np.float64)
        for position in map(int, np.flatnonzero(~plain)):
            label = np.ravel(self[position][0])
            labels[position] = label[0] if len(label) == 1 else np.nan
        is_class = (labels >= 0) & (labels < 2**31) & (labels == np.floor(labels))
        if not is_class.all():
            position = int(np.argmin(is_class))
            raise self._file.error(
                f"the record with key {self.keys[position]} at offset {offsets[position]:,} has the"
                f" label {self[position][0]}, which is no class; a class is one whole number from 0"
                " on",
                int(offsets[position]),
            )
        return {"labels": labels.astype(np.int32)}
