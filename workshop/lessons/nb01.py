"""Notebook 01: labels, a reader of RecordIO, the rate of several readers, and checksums."""

from __future__ import annotations

import io
import numbers
import struct
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
from PIL import Image

from workshop.checks.compare import Mistake, number, refuse, returned, wrong
from workshop.lessons.choice import Function, choose, lesson_check


def labels(folders: Sequence[str]) -> dict[str, int]:
    """Return a dictionary with the label of each name in the list `folders`."""
    return {name: label for label, name in enumerate(sorted(folders))}


FOLDERS = ["dog", "cat-20", "ant", "cat-100"], ["dog", "cat-20", "cat-100"], ["ant", "Zebra"]
LABEL_MISTAKES: tuple[Mistake, ...] = (
    (lambda folders: {name: label for label, name in enumerate(folders)},
     "The labels follow the order of the list, which may differ between train and val.",
     "Sort the names."),
    (lambda folders: {name: label for label, name in enumerate(sorted(folders), 1)},
     "The labels are counted from 1.", "Count from 0, as enumerate(...) does."),
    (lambda folders: {name: label for label, name in enumerate(sorted(folders, key=str.lower))},
     "Capital letters are sorted like lower-case ones.",
     "Sort as sorted(folders) does: Z before a."),
)  # fmt: skip


def item(self: Any, i: int) -> tuple[Image.Image, int]:
    """Return the image, as Pillow opens it, and its label, an int."""
    record = self.read(i)
    (length,) = struct.unpack_from("<I", record, 4)
    (label,) = struct.unpack_from("<f", record, 12)
    return Image.open(io.BytesIO(record[32 : 8 + length])), int(label)


def check_item(records: Any, listed: str, folder: Path) -> Function:
    """Return the `__getitem__` of `records` if it is right for the first records, else `item`.

    `listed` is the list of the records, and `folder` that of its images.
    """
    lines = [line.split("\t") for line in Path(listed).read_text().splitlines()[:12]]

    def judge() -> str:
        for i, (_, label, path) in enumerate(lines):
            try:
                judge_item(records, i, int(float(label)), folder / path)
            except OSError as error:
                wrong(f"Record {i}: Pillow reports {str(error).split(' <')[0]!r}.",
                      "The JPEG is bytes 32 to 8 + length.")  # fmt: skip
            except ValueError as error:
                refuse(("null byte" in str(error), "Image.open takes bytes for a file's name.",
                        "Wrap the bytes in io.BytesIO."))  # fmt: skip
                raise
        return f"{len(lines)} of {len(lines)} records are right."

    return choose("__getitem__", type(records).__getitem__, item, judge)


def judge_item(records: Any, i: int, true: int, file: Path) -> None:
    """Raise Wrong unless record `i` has this label and the image of this file."""
    answer = returned(records[i])
    image, label = answer if isinstance(answer, tuple | list) and len(answer) == 2 else (answer, "")
    if not isinstance(image, Image.Image):
        wrong(f"The first value is of type {type(image).__name__}.",
              "Return the image that Pillow opened.")  # fmt: skip
    own, size = getattr(image, "fp", None), file.stat().st_size  # `fp` is None after a conversion
    length = own.getbuffer().nbytes if isinstance(own, io.BytesIO) and not own.closed else size
    try:
        pixels, exact = (np.asarray(one.convert("RGB")) for one in (image, Image.open(file)))
    except (AssertionError, ValueError):  # by Pillow's version
        wrong("The image is closed.", "Return Image.open(...) without a `with` block.")
    refuse(
        (label == "", "The label is missing.", "Return two values, the image and its label."),
        (not np.array_equal(pixels, exact), f"Record {i}: the image is a different one.",
         "Open the bytes of self.read(i)."),
        (length != size, f"Record {i}: the JPEG has {size:,} bytes, and yours {length:,}.",
         "It ends at byte 8 + length of the record; padding follows."),
        (label != true or not isinstance(label, numbers.Integral),
         f"Record {i}: the label is {label!r}, not {true!r}.",
         "It is the float32 in bytes 12 to 15, after the flag; int() converts it."),
    )  # fmt: skip


def reading_rate(open_file: Function, files: Sequence[Any], readers: int) -> float:
    """Return the files/s at which `readers` threads together open and read `files`."""
    begin = time.perf_counter()
    with ThreadPoolExecutor(readers) as pool:
        list(pool.map(open_file, files))
    return len(files) / (time.perf_counter() - begin)


FILES, READERS, OPENING = 30, (3, 5), 0.02  # of the check: files, threads, s to open a file


def judge_rate(yours: Function) -> str:
    """Raise Wrong unless `yours` opens each file once, in `readers` threads, and times it all."""
    for readers in READERS:
        judge_readers(yours, readers)
    return f"`reading_rate` opens {FILES} files in 3 and in 5 threads, and times all of them."


def judge_readers(yours: Function, readers: int) -> None:
    opened, threads, files = [], set(), [f"{number:02}.jpg" for number in range(FILES)]

    def open_file(file: Any) -> Any:
        threads.add(threading.get_ident())
        time.sleep(OPENING * (file in files))
        opened.append(file)
        return file

    begin = time.perf_counter()
    try:
        rate = yours(open_file, list(files), readers)
    except FileNotFoundError:
        wrong("Files are opened by something other than the argument `open_file`.",
              "Pass `open_file` itself to pool.map: the check has no real files.")  # fmt: skip
    seconds = time.perf_counter() - begin
    if not opened:
        returned(rate)
    here, at_once = FILES / seconds, readers / OPENING
    rate = number(rate, "the result")
    refuse(
        (any(file not in files for file in opened), "Files that are not in `files` were opened.",
         "Use the argument `files`."),
        (sorted(opened) != files,
         f"{len(opened)} calls opened {len(set(opened))} of {FILES} files.",
         "Let pool.map call `open_file` once for each of the `files`."),
        (len(threads) != readers,
         f"With {readers} readers, the number of threads that open files is {len(threads)}.",
         "Call pool.map(open_file, files) in a ThreadPoolExecutor(readers)."),
        (not 0.7 * here < rate < 1.05 * at_once,
         f"The result is {rate:.3g} files/s; this call opened {here:.3g} per second.",
         "Divide len(files) by perf_counter's seconds until all are read: list(pool.map(...))."),
    )  # fmt: skip


def changed(records: Any, sums: dict[int, int]) -> list[int]:
    """Return each `i` for which the checksum of record `i`'s content differs from `sums`.

    `sums` is a dictionary from each of `records.offsets` to the record's checksum.
    """
    found = []
    for i, offset in enumerate(records.offsets):
        record = records.read(i)
        (length,) = struct.unpack_from("<I", record, 4)
        if google_crc32c.value(record[8 : 8 + length]) != sums[offset]:
            found.append(i)
    return found


class Written:
    """Records in memory, some of which have changed since their checksums were computed."""

    def __init__(
        self, lengths: Sequence[int], damaged: Sequence[int] = (), swapped: bool = False
    ) -> None:
        contents = [bytes(range(start, start + n))[::-1] for start, n in enumerate(lengths)]
        self.records = [b"\x0a\x23\xd7\xce" + struct.pack("<I", n) + content + bytes(-n % 4)
                        for n, content in zip(lengths, contents, strict=True)]  # fmt: skip
        starts = np.cumsum([0, *map(len, self.records)]).tolist()
        self.offsets, self.ends = starts[:-1], starts[1:]
        self.sums = dict(zip(self.offsets, map(google_crc32c.value, contents), strict=True))
        for i in damaged:
            record = self.records[i]
            self.records[i] = record[:9] + bytes([record[9] ^ 1]) + record[10:]
        if swapped:
            self.records[:2] = self.records[1::-1]

    def __repr__(self) -> str:
        return f"{len(self)} records"

    def __len__(self) -> int:
        return len(self.records)

    def read(self, i: int) -> bytes:
        return self.records[i]


def of_any(records: Any, sums: dict[int, int]) -> list[int]:
    """Return what a wrong `changed` does, which accepts the checksum of any record."""
    sizes = [struct.unpack_from("<I", records.read(i), 4)[0] for i in range(len(records))]
    contents = [records.read(i)[8 : 8 + size] for i, size in enumerate(sizes)]
    known = set(sums.values())
    return [i for i, content in enumerate(contents) if google_crc32c.value(content) not in known]


DAMAGED = (
    Written([40, 41, 42, 43, 44], [1, 3]), Written([50, 33, 36]), Written([40, 40, 43], [2], True),
)  # fmt: skip
CHANGED_MISTAKES: tuple[Mistake, ...] = (
    (of_any, "It accepts the checksum of any record.", "Compare with sums[records.offsets[i]]."),
    (lambda records, sums: [i for i, right in enumerate(sums.values())
                            if google_crc32c.value(records.read(i)[8:]) != right],
     "The padding is not content.", "The content ends at byte 8 + length."),
    (lambda records, sums: [*range(len(records))], "Every record has a different checksum.",
     "Call google_crc32c.value(record[8 : 8 + length]): the content includes the header."),
    (lambda records, sums: [records.offsets[i] for i in changed(records, sums)],
     "These are positions in the file.", "Return each i, counted from 0."),
    (lambda records, sums: [i in changed(records, sums) for i in range(len(records))],
     "These are True and False.", "Return each i, counted from 0."),
    (lambda records, sums: changed(records, sums)[:1],
     "It stops at the first one.", "Return all of them."),
    (lambda records, sums: [i for i in range(len(records)) if i not in changed(records, sums)],
     "These are the undamaged ones.", "Compare with != instead of ==."),
)  # fmt: skip


check = lesson_check(
    (labels, [(folders,) for folders in FOLDERS], LABEL_MISTAKES),
    (reading_rate, judge_rate),
    (changed, [(records, records.sums) for records in DAMAGED], CHANGED_MISTAKES),
    __getitem__=check_item,
)
