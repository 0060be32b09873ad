"""TFRecord shards: the framing with its checksums, the index that DALI wants, and readers of both.

A record is its length (uint64), a checksum of the length, the data, a checksum of the data; a shard
is records one behind the other, and `index/SHARD.idx` says `offset size` of each.
"""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rn50lib.errors import UserError
from rn50lib.data.framing import Damage, RecordError, Span, crc32c
from rn50lib.data.index import read_pairs
from rn50lib.data.mapped import MappedFile

FRAMING_BYTES = 16
"""What the framing adds to the data of a record."""

SPLIT_PREFIX = {"train": "train", "val": "validation"}
"""How the field calls the shards of a split: train-00000-of-01024, validation-00000-of-00128."""

_NAME = re.compile(r"(train|validation)-(\d{5})-of-(\d{5})$")
_HEAD = struct.Struct("<QI")
CRC = struct.Struct("<I")
_REMEDY = "copy the file again, or write the shards again with `python -m data_prep.tfrecord ROOT`"


def mask(crc: int) -> int:
    """TFRecord stores no plain checksum, so that a checksum over records stays meaningful."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc(data: bytes) -> int:
    """The checksum that TFRecord stores for ``data``: CRC32C, rotated and shifted."""
    return mask(crc32c()(0, data))


def locate(data: Any, offset: int, size: int) -> Span:
    """Where the data of the record at an offset stands. Raises Damage if there is none."""
    if offset + 12 > size:
        raise Damage(offset, f"only {size - offset} of the 12 bytes of a record's start are there")
    length, stored = _HEAD.unpack_from(data, offset)
    crc = masked_crc(bytes(data[offset : offset + 8]))
    if stored != crc:
        raise Damage(offset, f"the checksum of the length is 0x{stored:08x}, not 0x{crc:08x}")
    start = offset + 12
    stop = start + length
    if stop + 4 > size:
        raise Damage(
            offset, f"the record says {length:,} bytes, but the file ends after {size - start:,}"
        )
    return Span(((start, stop),), stop + 4)


class TFRecordReader:
    """The records of one shard, in order or, with an index, at random; every checksum is checked.

    Like ``recordio.Reader`` it maps the file in each process anew and can be pickled. Raises
    RecordError, with file, offset, number of good records before it and remedy, where the file is
    damaged or cut short, or where the index belongs to another file.
    """

    def __init__(
        self, path: str | os.PathLike, path_index: str | os.PathLike | None = None
    ) -> None:
        self.path = os.fspath(path)
        self.path_index = os.fspath(path_index) if path_index else None
        self._file = MappedFile(self.path, _REMEDY, locate)
        self._offsets = self._read_index(self.path_index) if self.path_index else None

    def close(self) -> None:
        """Let go of the mapped file; a later read opens it again."""
        self._file.close()

    @property
    def offsets(self) -> np.ndarray:
        """Where the records start, int64: by the index, or found by going from one to the next."""
        if self._offsets is None:
            self._offsets = np.array([offset for offset, _ in self._file.spans()], np.int64)
        return self._offsets

    def __len__(self) -> int:
        return len(self.offsets)

    def read(self, position: int) -> bytes:
        """The data of the record at a position."""
        if not 0 <= position < len(self):
            raise IndexError(f"{self.path} holds {len(self)} records, not {position}")
        offset = int(self.offsets[position])
        data = self.read_at(offset)
        end = offset + len(data) + FRAMING_BYTES
        is_last = position + 1 == len(self)
        following = self._file.size if is_last else int(self.offsets[position + 1])
        if end != following:
            raise self._misfit(
                offset,
                f"the record at offset {offset:,} has {end - offset:,} bytes, not "
                f"{following - offset:,}",
            )
        return data

    def read_at(self, offset: int) -> bytes:
        """The data of the record that starts at an offset."""
        head = self._file.read(offset, offset + _HEAD.size)
        try:
            ((_, stop),) = locate(head, 0, self._file.size - offset).parts
        except Damage as damage:
            raise self._file.damaged(Damage(offset, damage.reason)) from None
        found = self._file.read(offset + _HEAD.size, offset + stop)
        crc = masked_crc(found)
        (stored,) = CRC.unpack(self._file.read(offset + stop, offset + stop + CRC.size))
        if stored != crc:
            reason = f"the checksum of its data is 0x{stored:08x}, but should be 0x{crc:08x}"
            raise self._file.damaged(Damage(offset, reason))
        return found

    def span_at(self, offset: int) -> tuple[Any, int, int]:
        """The mapped file, and where in it the data of the record at an offset starts and stops.

        The checksum of the data is not looked at: that would read all of it.
        """
        try:
            ((start, stop),) = self._file.locate(offset).parts
        except Damage as damage:
            raise self._file.damaged(damage) from None
        return self._file.data(), start, stop

    def spans(self) -> tuple[np.ndarray, np.ndarray]:
        """Where the data of the records start and stop, int64; stop is -1 where the length that
        stands there is not that of the index."""
        starts = self.offsets + 12
        stops = np.append(self.offsets[1:], self._file.size) - 4
        with self.starts() as data:
            words = np.frombuffer(data, np.uint8)[self.offsets[:, None] + np.arange(8)]
        lengths = words.view("<u8")[:, 0]
        return starts, np.where(lengths == (stops - starts).astype(np.uint64), stops, -1)

    def starts(self) -> AbstractContextManager[Any]:
        """The shard as a buffer, for who looks at the start of each of its records."""
        return self._file.read_starts_of(len(self))

    def records(self) -> Iterator[tuple[int, bytes]]:
        """(offset, data) of all records in the order of the file; needs no index."""
        for offset, _ in self._file.spans():
            yield offset, self.read_at(offset)

    def __iter__(self) -> Iterator[bytes]:
        for _, data in self.records():
            yield data

    def _misfit(self, offset: int, reason: str) -> RecordError:
        return RecordError(
            f"{self.path_index} does not belong to {self.path}: {reason}: write the indexes again "
            f"with `python -m data_prep.tfrecord --index {os.path.dirname(self.path) or '.'}`",
            self.path,
            offset,
        )

    def _read_index(self, path_index: str) -> np.ndarray:
        try:
            offsets, sizes = read_pairs(path_index, "index", "offset size").T
        except ValueError as error:
            raise self._misfit(0, str(error)) from None
        ends = np.cumsum(sizes)
        for line in np.flatnonzero(offsets != ends - sizes):
            end = int(ends[line] - sizes[line])
            text = f"line {line + 1} has the offset {offsets[line]:,}, not {end:,}"
            raise self._misfit(end, text)
        if (end := int(ends[-1])) != self._file.size:
            for _ in self.records():  # tells a file that was cut short from a wrong index
                pass
            raise self._misfit(end, f"it ends at {end:,}, the file at {self._file.size:,}")
        return np.ascontiguousarray(offsets)


@dataclass(frozen=True)
class Shard:
    """One shard and its index (None where it has none)."""

    path: Path
    index: Path | None


def shard_name(split: str, number: int, count: int) -> str:
    """train-00003-of-00016, validation-00000-of-00004."""
    return f"{SPLIT_PREFIX[split]}-{number:05}-of-{count:05}"


def index_path(shard: Path) -> Path:
    """Where the index of a shard stands: in a folder that `train-*` does not match."""
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
            f"{count} shards are there); {_REMEDY}"
        )
    shards = []
    for number in range(count):
        path = folder / shard_name(split, number, count)
        index = index_path(path)
        shards.append(Shard(path, index if index.exists() else None))
    return shards
