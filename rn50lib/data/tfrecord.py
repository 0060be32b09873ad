"""TFRecord shards and the tf.train.Examples in them, read without TensorFlow.

A record is its length (uint64), a checksum of the length, the data, a checksum of the data; a shard
is a series of records, and `index/SHARD.idx` has a line `offset size` for each. An Example is a
Protocol Buffers message: a tag with a field's number and type, then its bytes. It holds Features
(field 1), that a map (field 1) of key (1) and Feature (2), and that a list of bytes (1), floats (2)
or ints (3), whose values are its field 1.
"""

from __future__ import annotations

import os
import struct
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rn50lib.data.recordfile import Arrays, MappedFile, crc32c
from rn50lib.errors import UserError

SPLIT_PREFIX = {"train": "train", "val": "validation"}  # validation-00000-of-00128
SHARDS = {s: f"{prefix}-{'[0-9]' * 5}-of-{'[0-9]' * 5}" for s, prefix in SPLIT_PREFIX.items()}
"""The pattern of the names of a split's shards."""

IMAGE, LABEL = "image/encoded", "image/class/label"
_HEAD = struct.Struct("<QI")
CRC = struct.Struct("<I")


def masked_crc(data: bytes) -> int:
    """Return the checksum that TFRecord stores for ``data``: CRC32C, rotated and shifted."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


class TFRecordReader:
    """The records of one shard, in order or by their offset; every checksum is checked.

    A reader can be pickled or inherited by workers. Raises RecordError, with file and offset, if
    the file is damaged.
    """

    def __init__(self, path: str | os.PathLike) -> None:
        self.path = os.fspath(path)
        self.file = MappedFile(self.path)

    def spans(self) -> Iterator[tuple[int, int]]:
        """Yield where the data of each record start and stop, in the order of the file."""
        at, data = 0, self.file.data()
        while at < self.file.size:
            start, stop = self._locate(at, data[at : at + _HEAD.size])
            yield start, stop
            at = stop + CRC.size

    def records(self) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, data) of all records in the order of the file."""
        for start, stop in self.spans():
            yield start - _HEAD.size, self._data(start, stop)

    def read(self, offset: int) -> bytes:
        """Return the data of the record that starts at an offset."""
        return self._data(*self._locate(offset, self.file.read(offset, offset + _HEAD.size)))

    def _locate(self, offset: int, head: bytes) -> tuple[int, int]:
        """Return where the data start and stop of the record at an offset, which has this head."""
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

    def _data(self, start: int, stop: int) -> bytes:
        """Return the data of a record, compared with their checksum."""
        found = self.file.read(start, stop)
        crc = masked_crc(found)
        (stored,) = CRC.unpack(self.file.read(stop, stop + CRC.size))
        if stored != crc:
            reason = f"the checksum of its data is 0x{stored:08x}, but should be 0x{crc:08x}"
            raise self.file.damaged(start - _HEAD.size, reason)
        return found


# -- the files of a split ------------------------------------------------------------------------


def shard_name(split: str, number: int, count: int) -> str:
    """Return train-00003-of-00016, or validation-00000-of-00004."""
    return f"{SPLIT_PREFIX[split]}-{number:05}-of-{count:05}"


def index_path(shard: Path) -> Path:
    """Return the path of the index of a shard, in a folder that `train-*` does not match."""
    return shard.parent / "index" / f"{shard.name}.idx"


def sidecar_path(folder: Path, split: str) -> Path:
    """Return the path of the file with the labels and offsets of a split."""
    return folder / f"{SPLIT_PREFIX[split]}.labels"


def find_shards(folder: str | os.PathLike, split: str) -> list[Path]:
    """Return the shards of a split in order. Raise UserError if one is missing or too many."""
    folder = Path(folder)
    found = {path.name for path in folder.glob(SHARDS[split])}
    if not found:
        raise UserError(
            f"{folder}: the shards {SPLIT_PREFIX[split]}-NNNNN-of-NNNNN are missing here",
            ("write_shards", folder.parent if folder.name == "tfrecord" else folder),
        )
    count = max(int(name[-5:]) for name in found)
    names = [shard_name(split, number, count) for number in range(count)]
    for name in sorted(found ^ {*names}):
        other = f"does not belong to the set of {count}; keep one set"
        problem = "is missing; copy it again" if name in names else other
        raise UserError(f"{folder}: {name} {problem}", ("write_shards",))
    return [folder / name for name in names]


# -- labels and offsets --------------------------------------------------------------------------


def scan_shards(shards: Sequence[Path]) -> Arrays:
    """Return `offsets` and `labels` (int64) of all records of a split, read from the shards.

    `firsts` are the number of the first record of each shard, and of the records in all. Labels
    count from 0 here and from 1 in the records. Raises RecordError for a damaged shard, UserError
    for an example without a label, or if a shard's first has no image.
    """
    offsets, labels, firsts = array("q"), array("q"), array("q", [0])  # there may be millions
    for shard in shards:
        reader = TFRecordReader(shard)
        data = memoryview(reader.file.data())
        for number, (start, stop) in enumerate(reader.spans()):
            offset, example = start - _HEAD.size, data[start:stop]
            name = f"{shard}: record {number} at offset {offset:,}"
            label = example_value(example, name, LABEL)
            if not 1 <= label < 2**31:
                problem = f"{name}: the label is {label}, but labels count from 1"
                raise UserError(problem, ("write_shards",))
            if number == 0:  # not in a loader's worker after the first step has started
                example_value(example, name, IMAGE)
            offsets.append(offset)
            labels.append(label - 1)
        firsts.append(len(offsets))
    found = {"offsets": offsets, "labels": labels, "firsts": firsts}
    return {name: np.array(numbers, np.int64) for name, numbers in found.items()}


# -- one Example ---------------------------------------------------------------------------------

Values = list[bytes] | list[int] | list[float]
EMPTY = memoryview(b"")


def example_value(data: bytes | memoryview, name: str, key: str) -> Any:
    """Return the one value of a feature: an image or a label. Raise UserError for any other."""
    example: dict[str, memoryview] = {}
    try:
        for found, feature in _features(data):
            example[found] = feature
            if found == key:
                break
        values = _values(example.get(key, EMPTY))
    except ValueError as error:
        problem = f"{name}: its data is not a tf.train.Example ({error})"
        raise UserError(problem, ("write_shards",)) from None
    if len(values) != 1 or not isinstance(values[0], bytes if key == IMAGE else int):
        kind = "bytes" if key == IMAGE else "a whole number"
        keys = ", ".join(sorted(example)) or "no keys"
        problem = f"{name}: this example should have one {key}, {kind}, and has {keys}"
        raise UserError(problem, ("write_shards",))
    return values[0]


def parse_example(data: bytes | memoryview) -> dict[str, Values]:
    """Return name → list of bytes, ints or floats. Raises ValueError if it holds no Example."""
    return {name: _values(feature) for name, feature in _features(data)}


def _features(data: bytes | memoryview) -> Iterator[tuple[str, memoryview]]:
    """Yield name and Feature of each entry of an Example."""
    for _, features in _fields(memoryview(data), 1):
        for _, entry in _fields(features, 1):
            parts = dict(_fields(entry))
            yield bytes(parts.get(1, EMPTY)).decode("utf-8", "replace"), parts.get(2, EMPTY)


def _values(feature: memoryview) -> Values:
    """Return the values of a Feature's list; numbers may be in one piece, or one by one."""
    lists = (part for part in _fields(feature) if part[0] in (1, 2, 3))
    kind, message = next(lists, (1, EMPTY))
    bodies = [body for _, body in _fields(message, 1)]
    if kind == 1:
        return [bytes(body) for body in bodies]
    packed = b"".join(bodies)
    if kind == 2:
        if len(packed) % 4:
            raise ValueError(f"a list of floats of {len(packed)} bytes")
        return list(struct.unpack(f"<{len(packed) // 4}f", packed))
    numbers: list[int] = []
    at = 0
    while at < len(packed):
        value, at = _read_varint(packed, at)
        numbers.append(value - (1 << 64) if value >> 63 else value)
    return numbers


def _fields(message: memoryview, wanted: int = 0) -> Iterator[tuple[int, memoryview]]:
    """Yield number and content of the fields of a message, or of those with one number."""
    at, end = 0, len(message)
    while at < end:
        tag, at = _read_varint(message, at)
        field, wire = tag >> 3, tag & 7
        if wire == 2:
            size, at = _read_varint(message, at)
        elif wire == 0:
            size = _read_varint(message, at)[1] - at
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"an unknown wire type {wire}")
        if at + size > end:
            raise ValueError(f"a field says {size:,} bytes where {end - at:,} are left")
        if wanted in (0, field):
            yield field, message[at : at + size]
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
