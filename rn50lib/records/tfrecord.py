"""TFRecord shards: the framing with its checksums, the index that DALI wants, and readers of both.

A record is its length (uint64), a checksum of the length, the data, a checksum of the data; a shard
is records one behind the other, and `index/SHARD.idx` says `offset size` of each.
"""

from __future__ import annotations

import functools
import os
import re
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from rn50lib.records.framing import Damage, RecordError
from rn50lib.records.mapped import MappedFile

FRAMING_BYTES = 16
"""What the framing adds to the data of a record."""

SPLIT_PREFIX = {"train": "train", "val": "validation"}
"""How the field calls the shards of a split: train-00000-of-01024, validation-00000-of-00128."""

_NAME = re.compile(r"(train|validation)-(\d{5})-of-(\d{5})$")
_HEAD = struct.Struct("<QI")
CRC = struct.Struct("<I")
_REMEDY = "copy the file again, or write the shards again with `python -m data_prep.tfrecord ROOT`"


@functools.cache
def crc32c() -> Callable[[int, bytes], int]:
    """google-crc32c's ``extend(crc, data)``, imported only where checksums are needed."""
    try:
        import google_crc32c
    except ImportError:
        raise UserError(
            "TFRecord checksums need the package google-crc32c: `pip install google-crc32c`"
        ) from None
    return google_crc32c.extend


def mask(crc: int) -> int:
    """TFRecord stores no plain checksum, so that a checksum over records stays meaningful."""
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def masked_crc(data: bytes) -> int:
    """The checksum that TFRecord stores for ``data``: CRC32C, rotated and shifted."""
    return mask(crc32c()(0, data))


def locate(data: Any, offset: int, size: int) -> tuple[int, int]:
    """(start, end) of the data of the record at an offset. Raises Damage if there is none."""
    if offset + 12 > size:
        raise Damage(offset, f"only {size - offset} of the 12 bytes of a record's start are there")
    length, stored = _HEAD.unpack_from(data, offset)
    crc = masked_crc(bytes(data[offset : offset + 8]))
    if stored != crc:
        raise Damage(offset, f"the checksum of the length is 0x{stored:08x}, not 0x{crc:08x}")
    start = offset + 12
    if start + length + 4 > size:
        raise Damage(
            offset, f"the record says {length:,} bytes, but the file ends after {size - start:,}"
        )
    return start, start + length


def check_data(data: bytes, stored: int, offset: int) -> None:
    """Raise Damage if the stored checksum is not that of the data."""
    crc = masked_crc(data)
    if stored != crc:
        raise Damage(
            offset, f"the checksum of its data is 0x{stored:08x}, but should be 0x{crc:08x}"
        )


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
        self._file = MappedFile(self.path, _REMEDY)
        self._entries = self._read_index() if self.path_index else None

    def close(self) -> None:
        """Let go of the mapped file; a later read opens it again."""
        self._file.close()

    def __len__(self) -> int:
        if self._entries is None:
            self._entries = [(offset, len(data) + 16) for offset, data in self.records()]
        return len(self._entries)

    def read(self, position: int) -> bytes:
        """The data of the record at a position."""
        count = len(self)
        assert self._entries is not None
        if not 0 <= position < count:
            raise IndexError(f"{self.path} holds {count} records, not {position}")
        offset, size = self._entries[position]
        try:
            return self._read_at(offset, size)
        except Damage as damage:
            raise self._damaged(damage) from None

    @property
    def offsets(self) -> list[int]:
        """Where the records start, as the index says."""
        len(self)
        assert self._entries is not None
        return [offset for offset, _ in self._entries]

    def read_at(self, offset: int) -> bytes:
        """The data of the record that starts at an offset."""
        try:
            return self._read_at(offset)
        except Damage as damage:
            raise self._damaged(damage) from None

    def span_at(self, offset: int) -> tuple[Any, int, int]:
        """The mapped file, and where in it the data of the record at an offset starts and stops.

        The checksum of the data is not looked at: that would read all of it.
        """
        data = self._file.data()
        try:
            return data, *locate(data, offset, self._file.size)
        except Damage as damage:
            raise self._damaged(damage) from None

    def walk(self) -> list[int]:
        """Where the records start, found by going from one to the next; needs no index."""
        offsets: list[int] = []
        offset = 0
        while offset < self._file.size or not offsets:
            offsets.append(offset)
            offset = self.span_at(offset)[2] + 4
        return offsets

    def _read_at(self, offset: int, size: int | None = None) -> bytes:
        data = self._file.data()
        start, end = locate(data, offset, self._file.size)
        if size is not None and end + 4 - offset != size:
            raise self._misfit(
                offset,
                f"the record at offset {offset:,} has {end + 4 - offset:,} bytes, not {size:,}",
            )
        found = data[start:end]
        check_data(found, CRC.unpack_from(data, end)[0], offset)
        return found

    def records(self) -> Iterator[tuple[int, bytes]]:
        """(offset, data) of all records in the order of the file; needs no index."""
        offset = 0
        self._file.data()
        while offset < self._file.size:
            try:
                data = self._read_at(offset)
            except Damage as damage:
                raise self._damaged(damage) from None
            yield offset, data
            offset += len(data) + FRAMING_BYTES

    def __iter__(self) -> Iterator[bytes]:
        for _, data in self.records():
            yield data

    def good_before(self, offset: int) -> int:
        """How many whole records stand, one behind the other, before an offset of the file."""
        count = at = 0
        try:
            while at < offset:
                at = locate(self._file.data(), at, self._file.size)[1] + 4
                count += at <= offset
        except Damage:
            pass
        return count

    def _damaged(self, damage: Damage) -> RecordError:
        good = self.good_before(damage.offset)
        return RecordError(
            f"{self.path}: damaged at offset {damage.offset:,}, after {good:,} good records: "
            f"{damage.reason}: {_REMEDY}",
            self.path,
            damage.offset,
            good,
        )

    def _misfit(self, offset: int, reason: str) -> RecordError:
        return RecordError(
            f"{self.path_index} does not belong to {self.path}: {reason}: write the indexes again "
            f"with `python -m data_prep.tfrecord --index {os.path.dirname(self.path) or '.'}`",
            self.path,
            offset,
        )

    def _read_index(self) -> list[tuple[int, int]]:
        assert self.path_index is not None
        try:
            text = Path(self.path_index).read_text("ascii", "replace")
        except OSError as error:
            raise self._misfit(0, f"the index cannot be read ({error.strerror})") from None
        entries: list[tuple[int, int]] = []
        at = 0
        for number, line in enumerate(text.splitlines(), start=1):
            fields = line.split()
            if len(fields) != 2 or not all(f.isdigit() and len(f) < 19 for f in fields):
                raise self._misfit(at, f"line {number} is {line[:60]!r}, not `offset size`")
            offset, size = map(int, fields)
            if offset != at:
                raise self._misfit(at, f"line {number} has the offset {offset:,}, not {at:,}")
            entries.append((offset, size))
            at += size
        if at != self._file.size:
            for _ in self.records():  # tells a file that was cut short from a wrong index
                pass
            raise self._misfit(at, f"it ends at {at:,}, the file at {self._file.size:,}")
        return entries


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
