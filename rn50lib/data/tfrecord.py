"""TFRecord shards: the framing with its checksums, the index that DALI wants, and readers of both.

A record is its length (uint64), a checksum of the length, the data, a checksum of the data; a shard
is records one behind the other, and `index/SHARD.idx` says `offset size` of each.
"""

from __future__ import annotations

import functools
import os
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rn50lib.errors import UserError
from rn50lib.data.framing import RecordError, crc32c
from rn50lib.data.index import read_pairs
from rn50lib.data.mapped import MappedFile

FRAMING_BYTES = 16
"""What the framing adds to the data of a record."""

SPLIT_PREFIX = {"train": "train", "val": "validation"}
"""How the field calls the shards of a split: train-00000-of-01024, validation-00000-of-00128."""

_NAME = re.compile(r"(train|validation)-(\d{5})-of-(\d{5})$")
_HEAD = struct.Struct("<QI")
CRC = struct.Struct("<I")


def mask(crc: int) -> int:
    """TFRecord stores no plain checksum, so that a checksum over records stays meaningful."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc(data: bytes) -> int:
    """The checksum that TFRecord stores for ``data``: CRC32C, rotated and shifted."""
    return mask(crc32c()(0, data))


class TFRecordReader:
    """The records of one shard, in order or at random; every checksum is checked.

    An index saves going through the shard to find its records. A reader can be pickled or inherited
    by workers. Raises RecordError, with file, offset and remedy, if the file is damaged.
    """

    def __init__(
        self, path: str | os.PathLike, path_index: str | os.PathLike | None = None
    ) -> None:
        self.path = os.fspath(path)
        self.path_index = path_index
        self.file = MappedFile(self.path)

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """Where the records start, int64."""
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
        """Where the data of the records start and stop, int64 (records, 2): found without index."""
        found, at = [], 0
        with self.file.scan() as data:
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
        """Return where the data of the record start and stop that has this head."""
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


@dataclass(frozen=True)
class Shard:
    """One shard and its index (None where it has none)."""

    path: Path
    index: Path | None


def shard_name(split: str, number: int, count: int) -> str:
    """train-00003-of-00016, validation-00000-of-00004."""
    return f"{SPLIT_PREFIX[split]}-{number:05}-of-{count:05}"


def index_path(shard: Path) -> Path:
    """Return the path of the index of a shard, in a folder that `train-*` does not match."""
    return shard.parent / "index" / f"{shard.name}.idx"


def find_shards(folder: str | os.PathLike, split: str) -> list[Shard]:
    """The shards of a split in a folder, in order.

    Raises UserError if there are none, if some are missing, or if two sets lie in one folder.
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
    shards = []
    for number in range(count):
        path = folder / shard_name(split, number, count)
        index = index_path(path)
        shards.append(Shard(path, index if index.exists() else None))
    return shards
