"""Pack image files into a record file, as fast as the disk's cache takes them, in several threads.

Threads fill buffers of framed records, half a megabyte each, and write them side by side; what
stands in the file, and in which order, does not depend on their number.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from data_prep.common import Progress
from data_prep.lists import Entry
from rn50lib.errors import UserError
from rn50lib.records.checksums import crc32c, format_checksums
from rn50lib.records.framing import (
    HEADER,
    MAGIC,
    MAGIC_BYTES,
    MAX_PAYLOAD,
    PART,
    frame,
    pack_header,
)
from rn50lib.records.imageinfo import LFS_POINTER

CHUNK_BYTES = 512 << 10
"""Bytes of records that a thread fills before it writes them: they stay in its core's cache."""

WRITE_BYTES = 64 << 10
"""Bytes in one call of the system. Measured on Linux 6.18 and ext4, which takes large pieces of
memory for large writes: 400 MB cost 0.1 s in pieces of 64 KB, and 0.4 to 1.0 s in larger ones."""

_NUMPY_PAYS = 512 << 20  # bytes from which on scanning with NumPy saves more than its import costs


@dataclass
class BadImages:
    """Images that cannot be packed, by name, with the reason."""

    found: list[tuple[str, str]] = field(default_factory=list)

    def add(self, path: str, reason: str) -> None:
        """Remember one."""
        self.found.append((path, reason))

    def text(self, most: int = 10) -> str:
        """All of them in words, at most so many by name."""
        lines = [f"  {path}: {reason}" for path, reason in sorted(self.found)[:most]]
        if len(self.found) > most:
            lines.append(f"  … and {len(self.found) - most:,} more")
        return "\n".join(lines)


def check_files(entries: list[Entry], root: str, bad: BadImages) -> tuple[list[Entry], list[int]]:
    """Look at every file without reading it: the good entries and their sizes in bytes.

    What is missing, empty, too large for a record, or a git-LFS pointer is added to ``bad``.
    """
    good, sizes = [], []
    for entry in entries:
        path = f"{root}/{entry.path}"
        try:
            size = os.stat(path).st_size
            reason = _look(path, size) if not 1024 <= size <= MAX_PAYLOAD - 4096 else None
        except OSError as error:
            reason = error.strerror or str(error)
        if reason:
            bad.add(path, reason)
        else:
            good.append(entry)
            sizes.append(size)
    return good, sizes


def _look(path: str, size: int) -> str | None:
    if size == 0:
        return "the file is empty"
    if size > MAX_PAYLOAD - 4096:
        return f"{size:,} bytes are more than a record holds"
    with open(path, "rb") as file:
        is_pointer = file.read(len(LFS_POINTER)) == LFS_POINTER
    return "a git-LFS pointer, not the image (`git lfs pull` fetches it)" if is_pointer else None


class Filled(NamedTuple):
    """Framed records one behind the other; where each starts (-1: left out), and its checksum."""

    data: memoryview
    starts: list[int]
    checksums: list[int]


class Filler(Protocol):
    """Turns a run of images into framed records."""

    def fill(self, first: int, last: int, buffer: bytearray) -> Filled:
        """The records of images first … last - 1."""


class PassThrough:
    """Frames image files as they are, byte for byte, read straight into the place in the buffer."""

    def __init__(self, entries: list[Entry], sizes: list[int], root: str, pack_label: bool) -> None:
        self.entries, self.sizes, self.root, self.pack_label = entries, sizes, root, pack_label
        self.count_magics = _magic_counter(sum(sizes))

    def fill(self, first: int, last: int, buffer: bytearray) -> Filled:
        """See ``Filler``. Raises UserError if a file is not as it was when the work began."""
        view = memoryview(buffer)
        starts, ends, checksums = [], [], []
        at = 0
        prefix = PART.size
        for entry, size in zip(self.entries[first:last], self.sizes[first:last], strict=True):
            head = label_header(entry, self.pack_label)
            body = at + prefix + len(head)
            end = body + size
            _read_into(f"{self.root}/{entry.path}", view[body : end + 1], size)
            PART.pack_into(buffer, at, MAGIC, end - at - prefix)
            buffer[at + prefix : body] = head
            buffer[end : end + 4] = b"\0\0\0\0"
            starts.append(at)
            ends.append(end)
            checksums.append(checksum(view[at + prefix : end]))
            at = end + (-end % 4)
        if self.count_magics(buffer, at) == len(starts):
            return Filled(view[:at], starts, checksums)
        return _frame_again(buffer, starts, ends, checksums)


class Framed:
    """Frames image files with a function of the learner's; slower, as each file is copied."""

    def __init__(
        self,
        entries: list[Entry],
        root: str,
        pack_label: bool,
        framing: Callable[[bytes], bytes],
    ) -> None:
        self.entries, self.root, self.pack_label = entries, root, pack_label
        self.framing = framing

    def fill(self, first: int, last: int, buffer: bytearray) -> Filled:
        """See ``Filler``; the buffer is not needed here. Raises UserError if the function fails."""
        framed = [self._one(entry) for entry in self.entries[first:last]]
        return join_records(framed, [0] * len(framed))

    def _one(self, entry: Entry) -> bytes:
        path = f"{self.root}/{entry.path}"
        with open(path, "rb") as file:
            payload = label_header(entry, self.pack_label) + file.read()
        name = getattr(self.framing, "__name__", "the framing")
        try:
            record = self.framing(payload)
        except Exception as error:
            raise UserError(f"{path}: {name} fails on this image: {error!r}") from error
        if not isinstance(record, bytes | bytearray) or not record:
            raise UserError(f"{path}: {name} gives {record!r:.40} for this image, not a record")
        return bytes(record)


def checksum(payload: bytes | memoryview) -> int:
    """CRC-32C of a record's payload; 0 where that cannot be computed fast."""
    extend = crc32c()
    return extend(0, bytes(payload)) if extend else 0


def label_header(entry: Entry, pack_label: bool) -> bytes:
    """The image header of an entry; all labels of a list with several, where asked for."""
    if pack_label and len(entry.labels) > 1:
        return pack_header(entry.labels, entry.key, b"")
    return HEADER.pack(0, entry.labels[0], entry.key, 0)


def _read_into(path: str, place: memoryview, size: int) -> None:
    """Read a whole file into its place, which is one byte longer than the file should be."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        count = os.readv(descriptor, [place])
        while 0 < count < size:
            more = os.readv(descriptor, [place[count:]])
            if not more:
                break
            count += more
    finally:
        os.close(descriptor)
    if count != size:
        raise UserError(f"{path}: the file was changed while it was being packed; start again")


def _magic_counter(total: int) -> Callable[[bytearray, int], int]:
    """A function that counts the magics at aligned offsets of a buffer's first bytes."""
    if total >= _NUMPY_PAYS:
        import numpy as np

        def count(buffer: bytearray, size: int) -> int:
            words = np.frombuffer(buffer, "<u4", count=size // 4)
            return int(np.count_nonzero(words == MAGIC))

        return count
    find_all = re.compile(re.escape(MAGIC_BYTES)).finditer
    return lambda buffer, size: sum(hit.start() % 4 == 0 for hit in find_all(buffer, 0, size))


def _frame_again(
    buffer: bytearray, starts: list[int], ends: list[int], checksums: list[int]
) -> Filled:
    """Frame the records of a buffer with the escape, since some image holds the magic."""
    framed = [frame(bytes(buffer[s + PART.size : e])) for s, e in zip(starts, ends, strict=True)]
    return join_records(framed, checksums)


def join_records(framed: list[bytes], checksums: list[int]) -> Filled:
    """Framed records (empty where one is left out) one behind the other."""
    starts, at = [], 0
    for record in framed:
        starts.append(at if record else -1)
        at += len(record)
    return Filled(memoryview(b"".join(framed)), starts, checksums)


def record_sizes(entries: list[Entry], sizes: list[int], pack_label: bool) -> list[int]:
    """Bytes that each image takes in the record file, framing and header included, at most."""
    fixed = PART.size + HEADER.size + 4  # 4: padding, rounded up
    if pack_label:
        return [s + fixed + 4 * len(e.labels) for e, s in zip(entries, sizes, strict=True)]
    return [size + fixed for size in sizes]


def cut_runs(record_bytes: list[int]) -> list[tuple[int, int, int]]:
    """Cut the images into runs (first, last, bytes) of CHUNK_BYTES at most, or of one image."""
    runs = []
    first = total = 0
    for i, size in enumerate(record_bytes):
        if i > first and total + size > CHUNK_BYTES:
            runs.append((first, i, total))
            first, total = i, 0
        total += size
    runs.append((first, len(record_bytes), total))
    return runs


class Packer:
    """Runs the threads: each takes the next run of images, fills its buffer and writes it."""

    def __init__(
        self, filler: Filler, keys: list[int], descriptor: int, progress: Progress
    ) -> None:
        self.filler, self.keys, self.descriptor = filler, keys, descriptor
        self.progress = progress
        self.size = 0  # of the record file so far
        self.count = 0  # records in it
        self._lines: dict[int, bytes] = {}
        self._checksums: dict[int, bytes] = {}
        self._turn = threading.Condition()
        self._next_taken = self._next_placed = 0
        self._error: BaseException | None = None

    def run(self, runs: list[tuple[int, int, int]], threads: int) -> None:
        """Pack all runs. Raises what any thread raised, after all have stopped."""
        workers = [threading.Thread(target=self._work, args=(runs,)) for _ in range(threads - 1)]
        for worker in workers:
            worker.start()
        self._work(runs)
        for worker in workers:
            worker.join()
        if self._error is not None:
            raise self._error

    def index_text(self) -> bytes:
        """The lines of the index, in the order of the records."""
        return b"".join(self._lines[number] for number in sorted(self._lines))

    def checksum_text(self) -> bytes:
        """The lines of the checksum file, in the order of the records."""
        return b"".join(self._checksums[number] for number in sorted(self._checksums))

    def _work(self, runs: list[tuple[int, int, int]]) -> None:
        buffer = bytearray(CHUNK_BYTES + 4096)
        try:
            while self._error is None:
                with self._turn:
                    number = self._next_taken
                    self._next_taken += 1
                if number >= len(runs):
                    return
                first, last, room = runs[number]
                if len(buffer) < room + 64:
                    buffer = bytearray(room + 64)
                data, starts, checksums = self.filler.fill(first, last, buffer)
                base = self._place(number, len(data))
                self._write(data, base)
                keys = self.keys[first:last]
                self._lines[number] = b"".join(
                    [
                        b"%d\t%d\n" % (key, base + start)
                        for key, start in zip(keys, starts, strict=True)
                        if start >= 0
                    ]
                )
                self._checksums[number] = format_checksums(
                    (base + start, crc)
                    for start, crc in zip(starts, checksums, strict=True)
                    if start >= 0
                )
                with self._turn:
                    self.count += sum(start >= 0 for start in starts)
                    self.progress.add(last - first)
        except BaseException as error:
            with self._turn:
                self._error = self._error or error
                self._turn.notify_all()

    def _place(self, number: int, size: int) -> int:
        """Wait until all runs before this one know their size; returns the offset of this one."""
        with self._turn:
            while self._next_placed != number and self._error is None:
                self._turn.wait()
            base = self.size
            self.size += size
            self._next_placed += 1
            self._turn.notify_all()
        return base

    def _write(self, data: memoryview, base: int) -> None:
        while data and self._error is None:
            written = os.pwrite(self.descriptor, data[:WRITE_BYTES], base)
            data, base = data[written:], base + written
