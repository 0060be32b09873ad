"""TFRecord shards and the tf.train.Examples in them, read without TensorFlow.

A record is its length (uint64), a checksum of the length, the data, a checksum of the data; a shard
is a series of records, and `index/SHARD.idx` has a line `offset size` for each. An Example is a
Protocol Buffers message: a tag with a field's number and type, then its bytes. It holds Features
(field 1), that a map (field 1) of key (1) and Feature (2), and that a list of bytes (1), floats (2)
or ints (3), whose values are its field 1.
"""

from __future__ import annotations

import functools
import os
import re
import struct
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rn50lib.data.recordfile import MappedFile, RecordError, crc32c, read_pairs
from rn50lib.errors import UserError

FRAMING_BYTES = 16
"""What the framing adds to the data of a record."""

SPLIT_PREFIX = {"train": "train", "val": "validation"}
"""The first part of the field's shard names: train-00000-of-01024, validation-00000-of-00128."""

_NAME = re.compile(r"(train|validation)-(\d{5})-of-(\d{5})$")
_HEAD = struct.Struct("<QI")
CRC = struct.Struct("<I")


def mask(crc: int) -> int:
    """Return a checksum as TFRecord stores it, so that checksums of records stay meaningful."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc(data: bytes) -> int:
    """Return the checksum that TFRecord stores for ``data``: CRC32C, rotated and shifted."""
    return mask(crc32c()(0, data))


class TFRecordReader:
    """The records of one shard, in order or at random; every checksum is checked.

    With an index, the records need not be found by going through the shard. A reader can be pickled
    or inherited by workers. Raises RecordError, with file and offset, if the file is damaged.
    """

    def __init__(
        self, path: str | os.PathLike, path_index: str | os.PathLike | None = None
    ) -> None:
        self.path = os.fspath(path)
        self.path_index = path_index
        self.file = MappedFile(self.path)

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """The starts of the records, int64."""
        if self.path_index is None:
            return self.spans[:, 0] - _HEAD.size
        try:
            return np.ascontiguousarray(read_pairs(self.path_index)[:, 0])
        except ValueError as error:
            raise RecordError(
                f"{self.path_index}: the index {error}; `python -m data_prep.tfrecord --index "
                f"{os.path.dirname(self.path)}` writes the indexes again",
                self.path_index,
            ) from None

    @functools.cached_property
    def spans(self) -> np.ndarray:
        """Start and stop of the data of each record, int64 (records, 2), found without an index."""
        found, at, data = [], 0, self.file.data()
        while at < self.file.size:
            start, stop = self._locate(data[at : at + _HEAD.size], at)
            found.append((start, stop))
            at = stop + CRC.size
        return np.array(found, np.int64)

    def __len__(self) -> int:
        return len(self.offsets)

    def read(self, position: int) -> bytes:
        """Return the data of the record at a position."""
        if not 0 <= position < len(self):
            raise IndexError(f"{self.path} holds {len(self)} records, not {position}")
        return self.read_at(int(self.offsets[position]))

    def read_at(self, offset: int) -> bytes:
        """Return the data of the record that starts at an offset."""
        start, stop = self._locate(self.file.read(offset, offset + _HEAD.size), offset)
        found = self.file.read(start, stop)
        crc = masked_crc(found)
        (stored,) = CRC.unpack(self.file.read(stop, stop + CRC.size))
        if stored != crc:
            reason = f"the checksum of its data is 0x{stored:08x}, but should be 0x{crc:08x}"
            raise self.file.damaged(offset, reason)
        return found

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, data) of all records in the order of the file; this needs no index."""
        offset = 0
        while offset < self.file.size or not offset:
            data = self.read_at(offset)
            yield offset, data
            offset += len(data) + FRAMING_BYTES

    def __iter__(self) -> Iterator[bytes]:
        for _, data in self.records():
            yield data

    def _locate(self, head: bytes, offset: int) -> tuple[int, int]:
        """Return where the data start and stop of the record that has this head."""
        if len(head) < _HEAD.size:
            raise self.file.damaged(offset, f"the file ends after {len(head)} bytes of a record")
        length, stored = _HEAD.unpack(head)
        crc = masked_crc(head[:8])
        if stored != crc:
            reason = f"the checksum of the length is 0x{stored:08x}, not 0x{crc:08x}"
            raise self.file.damaged(offset, reason)
        start = offset + _HEAD.size
        if start + length + CRC.size > self.file.size:
            reason = f"the record says {length:,} bytes, but the file ends after "
            raise self.file.damaged(offset, f"{reason}{self.file.size - start:,}")
        return start, start + length


# -- the files of a split ------------------------------------------------------------------------


@dataclass(frozen=True)
class Shard:
    """One shard and its index, None if it has none."""

    path: Path
    index: Path | None


def shard_name(split: str, number: int, count: int) -> str:
    """Return train-00003-of-00016, or validation-00000-of-00004."""
    return f"{SPLIT_PREFIX[split]}-{number:05}-of-{count:05}"


def index_path(shard: Path) -> Path:
    """Return the path of the index of a shard, in a folder that `train-*` does not match."""
    return shard.parent / "index" / f"{shard.name}.idx"


def find_shards(folder: str | os.PathLike, split: str) -> list[Shard]:
    """Return the shards of a split in a folder, in order.

    Raises UserError if there are none, if some are missing, or if there are those of two sets.
    """
    folder = Path(folder)
    found: dict[int, list[int]] = {}
    if folder.is_dir():
        for entry in os.scandir(folder):
            match = _NAME.match(entry.name)
            if match and match[1] == SPLIT_PREFIX[split]:
                found.setdefault(int(match[3]), []).append(int(match[2]))
    prefix = SPLIT_PREFIX[split]
    if not found:
        raise UserError(
            f"{folder}: there are no shards {prefix}-NNNNN-of-NNNNN here; "
            f"`python -m data_prep.tfrecord {folder.parent}` writes them"
        )
    if len(found) > 1:
        counts = " and of ".join(map(str, sorted(found)))
        raise UserError(f"{folder}: there are shards of {counts}; remove those of one set")
    ((count, numbers),) = found.items()
    missing = sorted(set(range(count)) - set(numbers))
    if missing:
        raise UserError(
            f"{folder}: {shard_name(split, missing[0], count)} is missing ({len(numbers)} of "
            f"{count} shards are there); copy it again, or write the shards again with "
            f"`python -m data_prep.tfrecord`"
        )
    paths = [folder / shard_name(split, number, count) for number in range(count)]
    indexes = [index_path(path) for path in paths]
    pairs = zip(paths, indexes, strict=True)
    return [Shard(path, index if index.exists() else None) for path, index in pairs]


# -- one Example ---------------------------------------------------------------------------------

Feature = list[bytes] | list[int] | list[float]


def parse_example(
    data: Any, names: Collection[str] = (), start: int = 0, stop: int | None = None
) -> dict[str, Feature]:
    """Return name → list of bytes, ints or floats of the Example in ``data[start:stop]``.

    If ``names`` are given, the values of the other features are not read, and are []. ``data`` may
    be any buffer whose items are numbers. Raises ValueError if it holds no Example.
    """
    found: dict[str, Feature] = {}
    stop = len(data) if stop is None else stop
    for _, features_start, features_stop in _fields(data, start, stop, 1):
        for _, entry_start, entry_stop in _fields(data, features_start, features_stop, 1):
            key, feature = "", (entry_stop, entry_stop)
            for field, at, end in _fields(data, entry_start, entry_stop):
                if field == 1:
                    key = bytes(data[at:end]).decode("utf-8", "replace")
                elif field == 2:
                    feature = (at, end)
            lists = (part for part in _fields(data, *feature) if part[0] in (1, 2, 3))
            kind, at, end = next(lists, (1, entry_stop, entry_stop))
            found[key] = _values(data, kind, at, end) if not names or key in names else []
    return found


def _values(data: Any, kind: int, start: int, stop: int) -> Feature:
    """Return the values of a list; numbers may be packed in one piece, or be fields one by one."""
    bodies = [bytes(data[at:end]) for _, at, end in _fields(data, start, stop, 1)]
    if kind == 1:
        return bodies
    body = b"".join(bodies)
    if kind == 2:
        if len(body) % 4:
            raise ValueError(f"a list of floats of {len(body)} bytes")
        return list(struct.unpack(f"<{len(body) // 4}f", body))
    numbers: list[int] = []
    at = 0
    while at < len(body):
        value, at = _read_varint(body, at)
        numbers.append(value - (1 << 64) if value >> 63 else value)
    return numbers


def _fields(data: Any, at: int, end: int, wanted: int = 0) -> Iterator[tuple[int, int, int]]:
    """Yield (number, start, stop) of the fields of a message, or of those with one number."""
    while at < end:
        tag, at = (data[at], at + 1) if data[at] < 0x80 else _read_varint(data, at)
        field, wire = tag >> 3, tag & 7
        if wire == 2:
            size, at = _read_varint(data, at)
        elif wire == 0:
            size = _read_varint(data, at)[1] - at
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"an unknown wire type {wire}")
        if at + size > end:
            raise ValueError(f"a field says {size:,} bytes where {end - at:,} are left")
        if wanted in (0, field):
            yield field, at, at + size
        at += size


def _read_varint(data: Any, at: int) -> tuple[int, int]:
    """Return a number of seven bits a byte, the lowest first, and where it ends."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise ValueError("a number that does not end")
