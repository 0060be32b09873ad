"""RecordIO files: read their records at random or in order, from many processes.

The format is MXNet's and DALI's: `PREFIX.rec` holds the records, `PREFIX.idx` says where each
starts.
"""

from __future__ import annotations

import functools
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from rn50lib.data import kept
from rn50lib.data.framing import (
    HEADER,
    MAGIC,
    PART,
    Damage,
    RecordError,
    checksum_path,
    crc32c,
    join,
    locate,
    unpack_header,
)
from rn50lib.data.index import checksum_remedy, checksums_at, prefix_of, read_index
from rn50lib.data.mapped import MappedFile

PLAIN = struct.Struct("<III20x")
"""The start of a record: magic, length (the kind above it is 0 in one part), the header's flag."""

Labels = int | float | np.ndarray
"""A record's label: an int where it is whole, as classes are; an array where there are several."""


class Index(NamedTuple):
    """Keys of the records, where they start and where they stop, int64 of shape (records,), and
    their checksums, if there are any."""

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
            return Index(keys, offsets, stops, checksums_at(self.path_rec, offsets))
        except RecordError as error:
            self.unchecked = str(error)
            return Index(keys, offsets, stops, None)

    @property
    def keys(self) -> np.ndarray:
        """The keys of the records, int64 of shape (records,), in the order of the index."""
        return self.index.keys

    @property
    def offsets(self) -> np.ndarray:
        """Where the records start, int64 of shape (records,), in the order of the index."""
        return self.index.offsets

    def __len__(self) -> int:
        return len(self.index.keys)

    # -- records --------------------------------------------------------------------------------

    def __getitem__(self, position: int) -> tuple[Labels, bytes]:
        """Return (label, encoded image) of the record at a position of the index."""
        head, image = self._pieces(position)
        if not image:
            return self._unpack(int(self.index.offsets[position]), head)
        label = HEADER.unpack(head)[1]
        return (int(label) if label.is_integer() else label), image

    def read(self, position: int) -> bytes:
        """Return the record at a position of the index: its header and the encoded image."""
        return b"".join(self._pieces(position))

    def _pieces(self, position: int) -> tuple[bytes, bytes]:
        """Return header and image of a record with one part and one label, as nearly all are.

        Their image is copied once, and no page of the file is read but its own. Any other record is
        returned as (the whole record, b"").
        """
        _, offsets, stops, checksums = self.index
        start, stop = int(offsets[position]), int(stops[position])
        head, image = b"", b""
        if PLAIN.size <= stop - start and stop <= self._file.size:
            head = self._file.read(start, start + PLAIN.size)
            magic, length, flag = PLAIN.unpack(head)
            end = start + PART.size + length
            if magic == MAGIC and flag == 0 and length > HEADER.size and end + -length % 4 == stop:
                head, image = head[PART.size :], self._file.read(start + PLAIN.size, end)
        if not image:
            try:
                span = locate(self._file.data(), start, self._file.size)
            except Damage as damage:
                raise self._misfit(start, damage.reason) from None
            if span.end != stop:
                ends = f"the record ends at {span.end:,}, by the index at {stop:,}"
                raise self._misfit(start, ends)
            head = join(self._file.data(), span)
        if checksums is not None:
            wanted, found = int(checksums[position]), crc32c()(crc32c()(0, head), image)
            if found != wanted:
                raise self._file.damaged(
                    start,
                    f"the record with key {self.keys[position]} is not as it was packed: its "
                    f"checksum is 0x{found:08x}, {checksum_path(self.path_rec)} says "
                    f"0x{wanted:08x} (if the change was meant, {checksum_remedy(self.path_rec)})",
                )
        return head, image

    def payloads(self) -> Iterator[tuple[int, bytes]]:
        """Yield (offset, header and image) in the order of the file; this needs no index."""
        offset = 0
        with self._file.scan() as data:
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
        """Return the error if file and index do not fit: which is wrong is not known."""
        return self._file.damaged(
            offset,
            f"{reason} (or {self.path_idx} does not belong to it: `python -m data_prep.im2rec "
            f"--index {prefix_of(self.path_rec)}` writes the index again)",
        )

    def labels(self) -> np.ndarray:
        """Return the class of every record, int32 of shape (records,), in the order of the index.

        Only the headers are read, and those of a large file once: they are kept (see `kept`) as
        `PREFIX.labels`. Raises RecordError if a record is damaged, has several labels, or has one
        that is no class (a whole number from 0 on).
        """
        if self._file.size < kept.LARGE:
            return self._find_labels()["labels"]
        note = Path(prefix_of(self.path_rec) + ".labels")
        files = [Path(self.path_rec), Path(self.path_idx)]
        return kept.kept(note, files, self._find_labels)["labels"]

    def _find_labels(self) -> kept.Arrays:
        _, offsets, stops, _ = self.index
        # A header in one piece starts 8 bytes into its record; the few others are read one by one.
        fits = (offsets % 4 == 0) & (stops - offsets >= PLAIN.size) & (stops <= self._file.size)
        if self._file.size < PLAIN.size:
            _ = self[0]  # raises
        at = np.where(fits, offsets, 0) // 4
        with self._file.scan(len(offsets)) as mapped:
            words = np.frombuffer(mapped, "<u4", count=self._file.size // 4)
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
