"""Write record files: single records, or the images of a list with several threads."""

from __future__ import annotations

import contextlib
import os
import stat
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from data_prep.common import Progress
from data_prep.lists import Entry
from data_prep.output import new_files
from rn50lib.data.decode import is_pointer
from rn50lib.data.recordfile import crc32c
from rn50lib.data.recordio import (
    FIRST,
    HEADER,
    LAST,
    LENGTH_BITS,
    MAGIC,
    MAX_PAYLOAD,
    MIDDLE,
    PART,
    WHOLE,
    checksum_path,
)
from rn50lib.errors import UserError

RUN_BYTES = 512 << 10
"""Bytes of images that a thread reads and frames at a time."""

Bad = list[tuple[str, str]]
"""Images that cannot be packed: path and reason."""


def pack_header(label: float, key: int, image: bytes) -> bytes:
    """Return the record for an image: header and image. `key` is that of the index and list."""
    return HEADER.pack(0, label, key, 0) + image


def frame(payload: bytes) -> bytes:
    """Frame one record: magic, flag and length, the payload, zeros up to a multiple of four bytes.

    If the payload contains the magic at an offset divisible by four, a part ends there and those
    four bytes are left out; the reader inserts them again. Raises UserError for more than
    MAX_PAYLOAD bytes.
    """
    if len(payload) > MAX_PAYLOAD:
        raise UserError(
            f"an image of {len(payload):,} bytes does not fit into RecordIO, which holds at most "
            f"{MAX_PAYLOAD:,} bytes in a record: make the image smaller or leave it out"
        )
    words = np.frombuffer(payload, "<u4", len(payload) // 4)
    cuts = (4 * np.flatnonzero(words == MAGIC)).tolist()
    pieces: list[bytes] = []
    start = 0
    for number, stop in enumerate([*cuts, len(payload)]):
        flag = FIRST if number == 0 else MIDDLE
        if stop == len(payload):
            flag = LAST if cuts else WHOLE
        pieces += [PART.pack(MAGIC, (flag << LENGTH_BITS) | (stop - start)), payload[start:stop]]
        start = stop + 4
    pieces.append(bytes(-len(payload) % 4))
    return b"".join(pieces)


class Writer:
    """A context manager that writes PREFIX.rec, .idx and .crc.

    The files appear, complete, if the ``with`` block succeeds. Every record needs its own key.
    Raises UserError if the folder cannot be written to, or the disk is full.
    """

    def __init__(self, prefix: str | os.PathLike) -> None:
        path_rec = Path(f"{os.fspath(prefix)}.rec")
        self.count = self.size = 0  # records and bytes written so far
        self._outputs = new_files(path_rec, path_rec.with_suffix(".idx"), checksum_path(path_rec))

    def __enter__(self) -> Writer:
        self._files = self._outputs.__enter__()
        return self

    def write(self, key: int, payload: bytes) -> None:
        """Append one record: ``pack_header``'s header and the image."""
        self.append(key, frame(payload), crc32c(payload))

    def append(self, key: int, record: bytes, checksum: int) -> None:
        """Append a framed record and the checksum of its payload."""
        self._files[0].write(record)
        self._files[1].write(b"%d\t%d\n" % (key, self.size))
        self._files[2].write(b"%d\t%d\n" % (self.size, checksum))
        self.size += len(record)
        self.count += 1

    def __exit__(self, *error: object) -> None:
        self._outputs.__exit__(*error)  # type: ignore[arg-type]


def check_files(entries: list[Entry], root: str) -> tuple[list[Entry], list[int], Bad]:
    """Return the good entries, their sizes in bytes, and the bad ones, without reading the files.

    Entries that are missing, not regular files, empty, too large, or pointers are bad.
    """
    good: list[Entry] = []
    sizes: list[int] = []
    bad: Bad = []
    for entry in entries:
        path = os.path.join(root, entry.path)
        try:
            status = os.stat(path)
        except OSError as error:
            bad.append((path, error.strerror or str(error)))
            continue
        size = status.st_size
        if not stat.S_ISREG(status.st_mode):
            bad.append((path, "not a regular file"))
        elif size == 0:
            bad.append((path, "the file is empty"))
        elif size > MAX_PAYLOAD - 4096:
            bad.append((path, f"{size:,} bytes are more than a record holds"))
        elif size < 1024 and is_pointer(Path(path).read_bytes()):
            bad.append((path, "a git-LFS or git-annex pointer, not the image"))
        else:
            good.append(entry)
            sizes.append(size)
    return good, sizes, bad


def record_bytes(sizes: list[int]) -> int:
    """Return at most how many bytes the images take in the record file."""
    return sum(sizes) + (PART.size + HEADER.size + 4) * len(sizes)  # 4: padding, rounded up


def pack(
    writer: Writer, root: str, entries: list[Entry], sizes: list[int], threads: int,
    transform: Callable[[bytes], bytes] | None, progress: Progress,
) -> Bad:  # fmt: skip
    """Append the images of a list, unchanged or through ``transform``.

    The file does not depend on the number of threads. Returns the images on which ``transform``
    fails, which are left out. Raises UserError if an image file changed since its size was taken.
    """
    bad: Bad = []

    def frame_image(entry: Entry, size: int) -> tuple[bytes, int]:
        path = os.path.join(root, entry.path)
        try:
            image = Path(path).read_bytes()
        except OSError as error:
            bad.append((path, error.strerror or str(error)))
            return b"", 0
        if len(image) != size:
            raise UserError(f"{path}: the file was changed while it was being packed; start again")
        try:
            image = transform(image) if transform else image
        except UserError as error:
            bad.append((path, str(error).partition(";")[0]))
            return b"", 0
        except Exception as error:  # such as more pixels per side than a JPEG can have
            bad.append((path, f"it cannot be written as a JPEG ({error})"))
            return b"", 0
        payload = pack_header(entry.labels[0], entry.key, image)
        return frame(payload), crc32c(payload)

    runs = list(_cut(entries, sizes))
    framed = in_order(lambda run: [frame_image(*image) for image in run], runs, threads)
    for images, records in zip(runs, framed, strict=True):
        for (entry, _), (record, checksum) in zip(images, records, strict=True):
            if record:
                writer.append(entry.key, record, checksum)
        progress.update(len(images))
    return bad


def _cut(entries: list[Entry], sizes: list[int]) -> Iterator[list[tuple[Entry, int]]]:
    """Yield the images in runs of RUN_BYTES at most, or of one image."""
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
    """Map with several threads that are at most two items each ahead of the consumer."""
    if threads == 1:
        yield from map(function, items)
        return
    with ThreadPoolExecutor(threads) as pool, contextlib.ExitStack() as stack:
        stack.callback(pool.shutdown, cancel_futures=True)  # if an error ends the loop early
        ahead: deque = deque()
        for item in items:
            ahead.append(pool.submit(function, item))
            if len(ahead) > 2 * threads:
                yield ahead.popleft().result()
        while ahead:
            yield ahead.popleft().result()
