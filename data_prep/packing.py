"""Pack image files into a record file, in several threads.

What stands in the file, and in which order, does not depend on their number.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

from data_prep.common import Progress
from data_prep.encoding import pack_header
from data_prep.lists import Entry
from data_prep.recordwriter import Writer
from rn50lib.data.folder import LFS_POINTER
from rn50lib.data.recordio import HEADER, MAX_PAYLOAD, PART
from rn50lib.errors import UserError

RUN_BYTES = 512 << 10
"""Bytes of images that a thread reads and frames before they are written."""

FIRST_RUNS = 16
"""So many runs show whether files are waited for: threads take turns in Python, so that they save
that and nothing else."""

Bad = list[tuple[str, str]]
"""Images that cannot be packed: path and reason."""


def describe(bad: Bad, most: int = 10) -> str:
    """A line for each bad image, at most so many."""
    lines = [f"  {path}: {reason}" for path, reason in sorted(bad)[:most]]
    if len(bad) > most:
        lines.append(f"  … and {len(bad) - most:,} more")
    return "\n".join(lines)


def check_files(entries: list[Entry], root: str, bad: Bad) -> tuple[list[Entry], list[int]]:
    """Look at every file without reading it: the good entries and their sizes in bytes.

    What is missing, empty, too large for a record, or a git-LFS pointer is added to ``bad``.
    """
    good, sizes = [], []
    for entry in entries:
        path = f"{root}/{entry.path}"
        try:
            size = os.stat(path).st_size
            reason = _look(path, size)
        except OSError as error:
            reason = error.strerror or str(error)
        if reason:
            bad.append((path, reason))
        else:
            good.append(entry)
            sizes.append(size)
    return good, sizes


def _look(path: str, size: int) -> str | None:
    if size == 0:
        return "the file is empty"
    if size > MAX_PAYLOAD - 4096:
        return f"{size:,} bytes are more than a record holds"
    if size >= 1024:
        return None
    with open(path, "rb") as file:
        is_pointer = file.read(len(LFS_POINTER)) == LFS_POINTER
    return "a git-LFS pointer, not the image (`git lfs pull` fetches it)" if is_pointer else None


def record_bytes(entries: list[Entry], sizes: list[int], pack_label: bool) -> int:
    """Bytes that the images take in the record file, framing and header included, at most."""
    fixed = PART.size + HEADER.size + 4  # 4: padding, rounded up
    labels = sum(len(entry.labels) for entry in entries) if pack_label else 0
    return sum(sizes) + fixed * len(entries) + 4 * labels


class Packer:
    """Packs images of a list, as they are or through a function such as ``Transform.apply``.

    ``bad`` gets the images on which that function fails; they are left out.
    """

    def __init__(
        self,
        writer: Writer,
        root: str,
        pack_label: bool,
        transform: Callable[[bytes], bytes] | None,
        bad: Bad,
    ) -> None:
        self.writer, self.root, self.pack_label = writer, root, pack_label
        self.transform, self.bad = transform, bad

    def pack(
        self, entries: list[Entry], sizes: list[int], threads: int, progress: Progress
    ) -> None:
        """Append all images. Raises UserError if a file is not as it was when the work began.

        Files that are in memory already are packed by one thread, which is faster than several.
        """
        runs = list(_cut(entries, sizes))
        first = 0
        if self.transform is None and threads > 1:
            first = FIRST_RUNS
            start, start_busy = time.perf_counter(), time.thread_time()
            self._append(runs[:first], 1, progress)
            busy = time.thread_time() - start_busy
            if busy > (time.perf_counter() - start) / 2:
                threads = 1
        self._append(runs[first:], threads, progress)

    def _append(
        self, runs: list[list[tuple[Entry, int]]], threads: int, progress: Progress
    ) -> None:
        for images, records in zip(runs, in_order(self._frame, runs, threads), strict=True):
            for (entry, _), (record, checksum) in zip(images, records, strict=True):
                if record:
                    self.writer.append(entry.key, record, checksum)
            progress.add(len(images))

    def _frame(self, images: list[tuple[Entry, int]]) -> list[tuple[bytes, int]]:
        return [self._record(entry, size) for entry, size in images]

    def _record(self, entry: Entry, size: int) -> tuple[bytes, int]:
        """The framed record and its checksum; b"" for an image that does not decode."""
        path = f"{self.root}/{entry.path}"
        with open(path, "rb", buffering=0) as file:
            image = file.read()
        if len(image) != size:
            raise UserError(f"{path}: the file was changed while it was being packed; start again")
        if self.transform is not None:
            try:
                image = self.transform(image)
            except Exception as error:  # a damaged image makes Pillow raise many kinds of errors
                self.bad.append((path, f"it does not decode ({error})"))
                return b"", 0
        several = self.pack_label and len(entry.labels) > 1
        payload = pack_header(entry.labels if several else entry.labels[0], entry.key, image)
        framing = getattr(self.writer.framing, "__name__", "the framing")  # may be a learner's own
        try:
            record, checksum = self.writer.frame(payload)
        except Exception as error:
            raise UserError(f"{path}: {framing} fails on this image: {error!r}") from error
        if not isinstance(record, bytes | bytearray) or not record:
            raise UserError(f"{path}: {framing} gives {record!r:.40} for this image, not a record")
        return record, checksum


def _cut(entries: list[Entry], sizes: list[int]) -> Iterator[list[tuple[Entry, int]]]:
    """The images in runs of RUN_BYTES at most, or of one image."""
    run: list[tuple[Entry, int]] = []
    total = 0
    for entry, size in zip(entries, sizes, strict=True):
        if run and total + size > RUN_BYTES:
            yield run
            run, total = [], 0
        run.append((entry, size))
        total += size
    yield run


def in_order(function: Callable, items: Iterable, threads: int) -> Iterator:
    """``map`` by several threads that are never far ahead of who takes the results."""
    if threads == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool, contextlib.ExitStack() as stack:
        stack.callback(pool.shutdown, cancel_futures=True)  # where an error ends it early
        ahead: deque = deque()
        for item in items:
            ahead.append(pool.submit(function, item))
            if len(ahead) > 2 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
