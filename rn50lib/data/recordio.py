"""RecordIO files: read their records at random or in order, from many processes.

The format is MXNet's and DALI's: `PREFIX.rec` holds the records, `PREFIX.idx` says where each
starts.
"""

from __future__ import annotations

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
    MAGIC_BYTES,
    PART,
    Damage,
    Header,
    RecordError,
    Span,
    checksum_path,
    crc32c,
    join,
    unpack_header,
)
from rn50lib.data.index import (
    checksum_remedy,
    checksums_at,
    index_remedy,
    pack_remedy,
    prefix_of,
    read_index,
)
from rn50lib.data.mapped import MappedFile

PLAIN = struct.Struct(PART.format + HEADER.format[1:])
"""The start of a record: of a whole one the kind, above the length, is 0."""

Labels = int | float | np.ndarray
"""A record's label: an int where it is whole, as classes are; an array where there are several."""


class Index(NamedTuple):
    """Keys of the records, where they start and where they stop, int64 of shape (records,)."""

    keys: np.ndarray
    offsets: np.ndarray
    stops: np.ndarray


class Reader:
    """Random access to a record file by position, which is the order of the lines of its index.

    ``reader[position]`` is (label, image bytes); iterating gives the same for all records in the
    file's own order and needs no index. The file is mapped into memory when a process first reads
    from it, so that a Reader can be pickled or inherited by workers (fork, spawn, forkserver) and
    no two processes share a handle. All returned bytes are copies of their own.

    Where im2rec has left checksums (`PREFIX.crc`), each record that is read is compared with its
    own. ``unchecked`` says why that cannot be done although there are some, else "".

    Raises RecordError, with file, offset, number of good records before it and remedy, where the
    file is damaged, cut short or changed meanwhile, or where the index belongs to another file.
    """

    def __init__(
        self, path_rec: str | os.PathLike, path_idx: str | os.PathLike | None = None
    ) -> None:
        self.path_rec = os.fspath(path_rec)
        self.path_idx = os.fspath(path_idx) if path_idx else prefix_of(path_rec) + ".idx"
        self._file = MappedFile(self.path_rec)
        self._index: Index | None = None
        self._checksums: np.ndarray | None = None
        self.unchecked = ""
        if path_idx is not None or os.path.exists(self.path_idx):
            self._load_index()

    def close(self) -> None:
        """Let go of the mapped file; a later read opens it again."""
        self._file.close()

    # -- the index ------------------------------------------------------------------------------

    def _load_index(self) -> Index:
        if self._index is None:
            keys, offsets = read_index(self.path_idx, self.path_rec)
            by_offset = np.argsort(offsets, kind="stable")
            stops = np.empty_like(offsets)
            stops[by_offset] = np.append(offsets[by_offset[1:]], self._file.size)
            self._index = Index(keys, offsets, stops)
            # Indexes that were made from a .rec alone number the records as they stand there.
            self._counted = bool(np.array_equal(keys[by_offset], np.arange(len(keys))))
            self._check_index(self._index, by_offset)
            try:
                self._checksums = checksums_at(self.path_rec, offsets)
            except RecordError as error:
                self.unchecked = str(error)
        return self._index

    def _check_index(self, index: Index, by_offset: np.ndarray) -> None:
        """Refuse at once an index whose offsets cannot be right; the rest is seen when reading."""
        data = self._file.data()
        if data[:4] != MAGIC_BYTES:
            is_pointer = data[:7] == b"version"
            hint = " (a git-LFS pointer: `git lfs pull` fetches it)" if is_pointer else ""
            raise RecordError(
                f"{self.path_rec}: this is not a record file, for it does not start with the "
                f"magic{hint}: {pack_remedy(self.path_rec)}",
                self.path_rec,
                0,
                0,
            )
        if index.offsets[by_offset[0]] != 0:
            raise self._misfit(0, "it has no entry for the record at offset 0")
        for position in np.flatnonzero(index.stops - index.offsets < 8):
            raise self._misfit(
                int(index.offsets[position]),
                f"its entry for key {index.keys[position]} leaves no room for a record",
            )
        for position in {*by_offset[:: max(1, len(by_offset) // 16)].tolist(), int(by_offset[-1])}:
            self._locate(position)

    def _misfit(self, offset: int, reason: str) -> RecordError:
        """The error where file and index do not fit: which of the two is wrong?

        A walk from the file's start meets what is damaged there, and raises that instead.
        """
        there = [start for start, _ in self._file.spans()]
        listed = np.sort(self.offsets)
        if len(there) < len(listed) and np.array_equal(listed[: len(there)], there):
            return RecordError(
                f"{self.path_rec}: the file ends after {len(there):,} good records, but "
                f"{self.path_idx} lists {len(listed):,}: {pack_remedy(self.path_rec)}",
                self.path_rec,
                offset,
                len(there),
            )
        return RecordError(
            f"{self.path_idx} does not belong to {self.path_rec}: {reason}: "
            f"{index_remedy(self.path_rec)}",
            self.path_rec,
            offset,
        )

    @property
    def keys(self) -> np.ndarray:
        """The keys of the records, int64 of shape (records,), in the order of the index."""
        return self._load_index().keys

    @property
    def offsets(self) -> np.ndarray:
        """Where the records start, int64 of shape (records,), in the order of the index."""
        return self._load_index().offsets

    def __len__(self) -> int:
        return len(self.keys)

    # -- records --------------------------------------------------------------------------------

    def _locate(self, position: int) -> Span:
        index = self._index or self._load_index()
        offset = int(index.offsets[position])
        try:
            span = self._file.locate(offset)
        except Damage as damage:
            raise self._misfit(offset, f"at offset {offset:,}, {damage.reason}") from None
        if span.end == index.stops[position]:
            return span
        raise self._misfit(
            offset,
            f"the record at offset {offset:,} ends at {span.end:,}, "
            f"but the index goes on at {index.stops[position]:,}",
        )

    def read(self, position: int) -> bytes:
        """The record at a position of the index: its header and the encoded image."""
        record = join(self._file.data(), self._locate(position))
        if self._checksums is not None:
            wanted, found = int(self._checksums[position]), crc32c()(0, record)
            if found != wanted:
                raise self._changed(position, wanted, found)
        return record

    def _changed(self, position: int, wanted: int, found: int) -> RecordError:
        offset = int(self.offsets[position])
        return RecordError(
            f"{self.path_rec}: the record with key {self.keys[position]} at offset {offset:,} "
            f"is not as it was packed: its checksum is 0x{found:08x}, but "
            f"{checksum_path(self.path_rec)} says 0x{wanted:08x}: {pack_remedy(self.path_rec)}; if "
            f"it is meant to be so, {checksum_remedy(self.path_rec)}",
            self.path_rec,
            offset,
        )

    def __getitem__(self, position: int) -> tuple[Labels, bytes]:
        """(label, encoded image) of the record at a position of the index."""
        keys, offsets, _ = self._index or self._load_index()
        if not -len(keys) <= position < len(keys):
            raise IndexError(f"{self.path_rec} holds {len(keys)} records, not {position}")
        offset, key = int(offsets[position]), int(keys[position])
        header, image = self._plain(position) or self._unpack(offset, self.read(position))
        if header.id != key and not self._counted:
            raise self._misfit(
                offset,
                f"the record at offset {offset:,} has the id {header.id}, the index says {key}",
            )
        return _label(header), image

    def _plain(self, position: int) -> tuple[Header, bytes] | None:
        """A record as nearly all are: in one part, with one label, undamaged. None for any other.

        The image is copied once, and no page of the file is read but its own.
        """
        _, offsets, stops = self._index or self._load_index()
        offset, stop = int(offsets[position]), int(stops[position])
        head = self._file.read(offset, offset + PLAIN.size)
        if len(head) < PLAIN.size:
            return None
        magic, length, flag, label, id_, id2 = PLAIN.unpack(head)
        end = offset + PART.size + length
        if magic != MAGIC or flag != 0 or length < HEADER.size or end + -length % 4 != stop:
            return None
        image = self._file.read(offset + PLAIN.size, end)
        if self._checksums is not None:
            extend = crc32c()
            if extend(extend(0, head[PART.size :]), image) != self._checksums[position]:
                return None
        return Header(0, label, id_, id2), image

    def _unpack(self, offset: int, record: bytes) -> tuple[Header, bytes]:
        try:
            return unpack_header(record)
        except RecordError as error:
            raise self._file.damaged(Damage(offset, str(error))) from None

    def __iter__(self) -> Iterator[tuple[Labels, bytes]]:
        """(label, encoded image) of all records in the order of the file; needs no index."""
        for offset, record in self.payloads():
            header, image = self._unpack(offset, record)
            yield _label(header), image

    def payloads(self) -> Iterator[tuple[int, bytes]]:
        """(offset, header and image) of all records in the order of the file; needs no index."""
        for offset, span in self._file.spans():
            yield offset, join(self._file.data(), span)

    def headers(self) -> Iterator[tuple[int, Header]]:
        """(offset, header) of all records in the order of the file; needs no index."""
        for offset, record in self.payloads():
            yield offset, self._unpack(offset, record)[0]

    def labels(self) -> np.ndarray:
        """The class of every record, int32 of shape (records,), in the order of the index.

        Only the headers are read, and of a large file once: they are kept (see `kept`) as
        `PREFIX.labels`. Raises RecordError if a record is damaged, has several labels, or has one
        that is no class (a whole number from 0 on).
        """
        self._load_index()
        if self._file.size < kept.LARGE:
            return self._find_labels()["labels"]
        note = Path(prefix_of(self.path_rec) + ".labels")
        files = [Path(self.path_rec), Path(self.path_idx)]
        return kept.kept(note, files, self._find_labels)["labels"]

    def _find_labels(self) -> kept.Arrays:
        _, offsets, stops = self._load_index()
        # A header in one piece starts 8 bytes into its record; the few others are read one by one.
        fits = (offsets % 4 == 0) & (stops - offsets >= 8 + HEADER.size)
        at = np.where(fits, offsets, 0) // 4 if self._file.size >= 32 else np.zeros(0, np.int64)
        with self._file.read_starts_of(len(offsets)) as mapped:
            words = np.frombuffer(mapped, "<u4", count=self._file.size // 4)
            magic, length, flag, label = (words[at + i] for i in range(4))
            del words  # else the map could not be closed
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
            raise RecordError(
                f"{self.path_rec}: the record with key {self.keys[position]} at offset "
                f"{offsets[position]:,} has the label {self[position][0]}, which is no class; "
                "a class is one whole number from 0 on",
                self.path_rec,
                int(offsets[position]),
            )
        return {"labels": labels.astype(np.int32)}


def _label(header: Header) -> Labels:
    if isinstance(header.label, tuple):
        return np.array(header.label, dtype=np.float32)
    return int(header.label) if header.label.is_integer() else header.label
