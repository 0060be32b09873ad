"""RecordIO files: read their records at random or in order, from many processes.

The format is MXNet's and DALI's: `PREFIX.rec` holds the records, `PREFIX.idx` has a line
`key <tab> offset` for each. RecordIO has no checksums: those are in `PREFIX.crc`, our own, with
`offset <tab> CRC-32C` of each record's image header and image.
"""

from __future__ import annotations

import functools
import math
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rn50lib.data.recordfile import (
    Arrays,
    MappedFile,
    RecordError,
    crc32c,
    disk_cache,
    read_pairs,
)

MAGIC = 0xCED7230A  # at the start of every part of a record, little-endian
MAGIC_BYTES = struct.pack("<I", MAGIC)
PART = struct.Struct("<II")  # the magic, then flag and length of the part
LENGTH_BITS = 29
MAX_PAYLOAD = (1 << LENGTH_BITS) - 1  # bytes that one record can hold

WHOLE, FIRST, MIDDLE, LAST = range(4)  # the 3-bit flag: the place of a part in its record
HEADER = struct.Struct("<IfQQ")  # of an image: number of labels or 0 for one, label, key, 0
START_BYTES = PART.size + HEADER.size  # before the image, if it has one label


# -- one record ----------------------------------------------------------------------------------


class Record(NamedTuple):
    """What a record holds; the label is NaN if there are several."""

    label: float
    key: int
    image: bytes


def unpack(record: bytes) -> Record:
    """Return what a record holds. Raises RecordError if it is too short."""
    if len(record) < HEADER.size:
        raise RecordError(f"a record of {len(record)} bytes is too short for the image header")
    count, label, key, _ = HEADER.unpack_from(record)
    end = HEADER.size + 4 * count
    if end > len(record):
        raise RecordError(f"a record of {len(record):,} bytes announces {count:,} labels")
    if count == 1:
        (label,) = struct.unpack_from("<f", record, HEADER.size)
    return Record(label if count < 2 else math.nan, key, record[end:])


class Span(NamedTuple):
    """The place of a record in its file: its parts as (start, stop), and its end."""

    parts: tuple[tuple[int, int], ...]
    end: int


class Damage(Exception):
    """The reason why a record cannot be read; the caller adds file, place and remedy."""


def locate(data: bytes, offset: int, size: int) -> Span:
    """Return where the parts of the record at ``offset`` are in ``data``. Raise Damage."""
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


def checksum_path(path_rec: str | os.PathLike) -> Path:
    """Return ``data/train.crc``, the file with the checksums, for ``data/train.rec``."""
    return Path(path_rec).with_suffix(".crc")


def read_numbers(path: Path, flag: str) -> np.ndarray:
    """Return an index or a file of checksums, int64 of shape (records, 2).

    Raises RecordError, with the remedy, if it is missing, is not such a list, or has a key twice.
    """
    try:
        pairs = read_pairs(path)
        if not np.diff(np.sort(pairs[:, 0])).all():
            raise ValueError("has a key twice")
    except ValueError as error:
        problem = f"{path}: this list {error}"
        raise RecordError(problem, remedy=("relist", path, flag)) from None
    return pairs


# -- reading -------------------------------------------------------------------------------------


class Reader:
    """Random access to a record file by position, which is the order of the lines of its index.

    ``reader[position]`` is (label, image bytes). It can be pickled or inherited by workers.

    If there are checksums (`PREFIX.crc`), each record that is read is compared with its own.
    Raises RecordError, with file, offset and remedy, if the file is damaged or was changed, or if
    index or checksums do not fit.
    """

    def __init__(self, path_rec: str | os.PathLike) -> None:
        self.path_rec = os.fspath(path_rec)
        self.path_idx = str(Path(path_rec).with_suffix(".idx"))
        self._file = MappedFile(self.path_rec)

    @functools.cached_property
    def _index(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray | None]:
        """Keys, starts and stops of the records, int64 (records,); their checksums, or None."""
        keys, offsets = np.ascontiguousarray(read_numbers(Path(self.path_idx), "--index").T)
        by_offset = np.argsort(offsets, kind="stable")
        in_order = offsets[by_offset]
        if in_order[0] != 0:
            raise self._misfit(0, "the index does not list the record there")
        stops = np.empty_like(offsets)
        stops[by_offset] = np.append(in_order[1:], self._file.size)
        path = checksum_path(self.path_rec)
        if not path.exists():
            return keys, offsets, stops, None
        pairs = read_numbers(path, "--checksums")
        if not np.array_equal(pairs[:, 0], in_order):
            raise RecordError(
                f"{path}: of {self.path_rec}, it lists other records than {self.path_idx}",
                remedy=("relist", path, "--index", "--checksums"),
            )
        return keys, offsets, stops, pairs[np.searchsorted(in_order, offsets), 1]

    @property
    def keys(self) -> np.ndarray:
        """The keys of the records, int64 of shape (records,), in the order of the index."""
        return self._index[0]

    @property
    def offsets(self) -> np.ndarray:
        """The starts of the records, int64 of shape (records,), in the order of the index."""
        return self._index[1]

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, position: int) -> tuple[float, bytes]:
        """Return (label, encoded image) of the record at a position of the index."""
        record = self.read(position)
        try:
            label, _, image = unpack(record)
        except RecordError as error:
            raise self._file.damaged(int(self.offsets[position]), str(error)) from None
        return label, image

    def read(self, position: int) -> bytes:
        """Return the record at a position of the index: its header and the encoded image."""
        keys, offsets, stops, checksums = self._index
        start, stop = int(offsets[position]), int(stops[position])
        data = self._file.read(start, stop)  # one read; of a mapped file, one for each page
        try:
            span = locate(data, 0, len(data))
        except Damage as damage:
            raise self._misfit(start, str(damage)) from None
        if span.end != stop - start:
            ends = f"the record ends at {start + span.end:,}, by the index at {stop:,}"
            raise self._misfit(start, ends)
        record = join(data, span)
        if checksums is not None and crc32c(record) != checksums[position]:
            path = checksum_path(self.path_rec)
            raise self._file.damaged(
                start,
                f"the record with key {keys[position]} is not as it was packed: its checksum is not"
                f" that in {path}",
                ("recover", self.path_rec, "--checksums"),
            )
        return record

    def payloads(self) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, header and image) in the order of the file; this needs no index."""
        offset, data = 0, self._file.data()
        while offset < self._file.size:
            try:
                span = locate(data, offset, self._file.size)
            except Damage as damage:
                raise self._file.damaged(offset, str(damage)) from None
            yield offset, join(data, span)
            offset = span.end

    def _misfit(self, offset: int, reason: str) -> RecordError:
        """Return the error if file and index do not fit."""
        text = f"{reason} (or {self.path_idx} does not belong to it)"
        return self._file.damaged(offset, text, ("recover", self.path_rec, "--index"))

    def labels(self) -> np.ndarray:
        """Return the class of every record, int32 of shape (records,), in the order of the index.

        Only the headers are read, and those of a large file once: the labels are cached as
        `PREFIX.rec.labels`. Raises RecordError if a record does not have one whole label from 0 on.
        """
        path = Path(self.path_rec)
        files = [path, Path(self.path_idx)]
        return disk_cache(path.with_suffix(".rec.labels"), files, self._read_labels)["labels"]

    def _read_labels(self) -> Arrays:
        keys, offsets, stops, _ = self._index
        labels = np.empty(len(keys), np.float32)
        starts = struct.Struct("<IIIf")  # of a record in one piece with one label: only its header
        data = self._file.data(len(keys))
        for position, (start, stop) in enumerate(
            zip(offsets.tolist(), stops.tolist(), strict=True)
        ):
            if START_BYTES <= stop - start and stop <= self._file.size:
                magic, length, count, label = starts.unpack_from(data, start)
                end = start + PART.size + length + -length % 4
                # a part's flag, above its length, would make it longer
                if magic == MAGIC and count == 0 and end == stop:
                    labels[position] = label
                    continue
            labels[position] = self[position][0]
        is_class = (labels >= 0) & (labels < 2**31) & (labels == np.floor(labels))
        if not is_class.all():
            position = int(np.argmin(is_class))
            label, offset = float(labels[position]), int(offsets[position])
            shown = "no single label" if math.isnan(label) else f"the label {label:g}"
            raise self._file.error(
                f"the record with key {keys[position]} at offset {offset:,} has {shown},"
                " but a class is a whole number from 0 on",
                offset,
            )
        return {"labels": labels.astype(np.int32)}
