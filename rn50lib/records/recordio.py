"""RecordIO files: read their records at random or in order, from many processes.

The format is MXNet's and DALI's: `PREFIX.rec` holds the records, `PREFIX.idx` says where each
starts.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator

import numpy as np

from rn50lib.records.checksums import checksum_path, checksums_at, crc32c
from rn50lib.records.framing import (
    HEADER,
    MAGIC,
    MAGIC_BYTES,
    Damage,
    Header,
    RecordError,
    Span,
    join,
    unpack_header,
)
from rn50lib.records.index import Index, index_remedy, pack_remedy, prefix_of, read_index
from rn50lib.records.mapped import MappedFile

Labels = int | float | np.ndarray
"""A record's label: an int where it is whole, as classes are; an array where there are several."""


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
        self._size = self._file.size
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
            index = read_index(self.path_idx, self.path_rec)
            by_offset = np.argsort(index.offsets, kind="stable")
            starts = index.offsets[by_offset]
            stops = np.append(starts[1:], self._size)
            self._stops = np.empty_like(stops)
            self._stops[by_offset] = stops
            # Indexes that were made from a .rec alone number the records as they stand there.
            self._counted = bool(np.array_equal(index.keys[by_offset], np.arange(len(index))))
            self._index = index
            self._check_index(starts, stops, by_offset)
            self._load_checksums(index.offsets)
        return self._index

    def _load_checksums(self, offsets: np.ndarray) -> None:
        try:
            self._checksums = checksums_at(self.path_rec, offsets)
        except RecordError as error:
            self.unchecked = str(error)

    @property
    def has_checksums(self) -> bool:
        """Whether what is read is compared with checksums."""
        self._load_index()
        return self._checksums is not None

    def _check(self, position: int, span: Span, image: bytes) -> None:
        """Compare the record at a position, whose last bytes are ``image``, with its checksum."""
        if self._checksums is None:
            return
        extend = crc32c()
        start, stop = span.parts[0]
        if len(span.parts) == 1:
            crc = extend(extend(0, self._file.data()[start : stop - len(image)]), image)
        else:
            crc = extend(0, join(self._file.data(), span))
        if crc != self._checksums[position]:
            offset = int(self.offsets[position])
            raise RecordError(
                f"{self.path_rec}: the record with key {self.keys[position]} at offset {offset:,} "
                f"is not as it was packed: its checksum is 0x{crc:08x}, but "
                f"{checksum_path(self.path_rec)} says 0x{int(self._checksums[position]):08x}: "
                f"{pack_remedy(self.path_rec)}; if it is meant to be so, `python -m "
                f"data_prep.im2rec --checksums {prefix_of(self.path_rec)}` writes the checksums of "
                "what is there",
                self.path_rec,
                offset,
            )

    def _check_index(self, starts: np.ndarray, stops: np.ndarray, by_offset: np.ndarray) -> None:
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
        if starts[0] != 0:
            raise self._misfit(0, "it has no entry for the record at offset 0")
        bad = np.flatnonzero(stops - starts < 8)
        if len(bad):
            position = int(by_offset[bad[0]])
            if starts[-1] > self._size - 8:
                raise self._beyond_end(starts)
            raise self._misfit(
                int(starts[bad[0]]),
                f"its entry for key {self.keys[position]} leaves no room for a record",
            )
        count = len(starts)
        for number in {0, count - 1, *range(0, count, max(1, count // 16))}:
            self._locate(int(by_offset[number]))

    def _misfit(self, offset: int, reason: str) -> RecordError:
        return RecordError(
            f"{self.path_idx} does not belong to {self.path_rec}: {reason}: "
            f"{index_remedy(self.path_rec)}",
            self.path_rec,
            offset,
        )

    def _beyond_end(self, starts: np.ndarray) -> RecordError:
        """The error for an index that goes beyond the file's end: which of the two is wrong?"""
        # which raises where the file itself is damaged
        there = [offset for offset, _ in self._file.spans()]
        offset = int(starts[-1])
        if not np.array_equal(starts[starts < self._size], there):
            return self._misfit(offset, f"offset {offset:,} is beyond the file's end")
        return RecordError(
            f"{self.path_rec}: the file ends after {len(there):,} good records, but "
            f"{self.path_idx} lists {len(starts):,}: {pack_remedy(self.path_rec)}",
            self.path_rec,
            offset,
            len(there),
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
        return len(self._load_index())

    # -- records --------------------------------------------------------------------------------

    def _locate(self, position: int) -> Span:
        index = self._index or self._load_index()
        offset = int(index.offsets[position])
        try:
            span = self._file.locate(offset)
            if span.end == self._stops[position]:
                return span
        except Damage as damage:
            # Either the file is damaged there, or the index points to where no record starts: a
            # walk from the file's start meets the damage in the one case and passes it in the
            # other.
            deque(self._file.spans(), 0)
            raise self._misfit(offset, f"at offset {offset:,}, {damage.reason}") from None
        deque(self._file.spans(), 0)
        raise self._misfit(
            offset,
            f"the record at offset {offset:,} ends at {span.end:,}, "
            f"but the index goes on at {self._stops[position]:,}",
        )

    def read(self, position: int) -> bytes:
        """The record at a position of the index: its header and the encoded image."""
        record = join(self._file.data(), span := self._locate(position))
        self._check(position, span, record)
        return record

    def __getitem__(self, position: int) -> tuple[Labels, bytes]:
        """(label, encoded image) of the record at a position of the index."""
        if not -len(self) <= position < len(self):
            raise IndexError(f"{self.path_rec} holds {len(self)} records, not {position}")
        span = self._locate(position)
        header, image = self._unpack(span)
        self._check(position, span, image)
        key = self._index.keys[position]  # type: ignore[union-attr]
        if header.id != key and not self._counted:
            offset = int(self.offsets[position])
            raise self._misfit(
                offset,
                f"the record at offset {offset:,} has the id {header.id}, the index says {key}",
            )
        return _label(header), image

    def _unpack(self, span: Span) -> tuple[Header, bytes]:
        data = self._file.data()
        start, stop = span.parts[0]
        if len(span.parts) == 1 and stop - start >= HEADER.size:
            flag, label, id_, id2 = HEADER.unpack_from(data, start)
            if flag == 0:  # the usual case, with one copy of the image
                return Header(0, label, id_, id2), data[start + HEADER.size : stop]
        try:
            return unpack_header(join(data, span))
        except RecordError as error:
            raise self._file.damaged(Damage(start - 8, str(error))) from None

    def __iter__(self) -> Iterator[tuple[Labels, bytes]]:
        """(label, encoded image) of all records in the order of the file; needs no index."""
        for _, span in self._file.spans():
            header, image = self._unpack(span)
            yield _label(header), image

    def payloads(self) -> Iterator[tuple[int, bytes]]:
        """(offset, header and image) of all records in the order of the file; needs no index."""
        for offset, span in self._file.spans():
            yield offset, join(self._file.data(), span)

    def headers(self) -> Iterator[tuple[int, Header]]:
        """(offset, header) of all records in the order of the file; needs no index."""
        for offset, span in self._file.spans():
            yield offset, self._unpack(span)[0]

    def labels(self) -> np.ndarray:
        """The class of every record, int32 of shape (records,), in the order of the index.

        Only the headers are read. Raises RecordError if a record is damaged, has several labels, or
        has one that is no class (a whole number from 0 on).
        """
        offsets, stops = self.offsets, self._stops
        words = np.frombuffer(self._file.data(), "<u4", count=self._size // 4)
        # A header in one piece starts 8 bytes into its record; the few others are read one by one.
        fits = (offsets % 4 == 0) & (stops - offsets >= 8 + HEADER.size)
        at = np.where(fits, offsets, 0) // 4 if len(words) >= 8 else np.zeros(0, np.int64)
        lengths = words[at + 1].astype(np.int64)
        plain = fits & (words[at] == MAGIC) & (words[at + 2] == 0)
        plain &= offsets + 8 + (lengths + 3) // 4 * 4 == stops  # a part's flag would make it longer
        with np.errstate(invalid="ignore"):  # a damaged label may be any bit pattern
            labels = words[at + 3].view("<f4").astype(np.float64)
        del words  # else the map could not be closed
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
        return labels.astype(np.int32)


def _label(header: Header) -> Labels:
    if isinstance(header.label, tuple):
        return np.array(header.label, dtype=np.float32)
    return int(header.label) if header.label.is_integer() else header.label
