"""The lists beside a record file, a line of two whole numbers for each record, read into arrays.

`PREFIX.idx` says where each record starts (`key <tab> offset`), so that any of them can be read
without reading those before it. `PREFIX.crc` has a checksum for each (`offset <tab> CRC-32C` of
image header and image), because RecordIO itself has none: im2rec writes it beside the three files
that MXNet knows, which stay as MXNet writes them.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path

import numpy as np

from rn50lib.data.framing import RecordError, checksum_path


def prefix_of(path_rec: str | os.PathLike) -> str:
    """``data/train`` for ``data/train.rec``: what im2rec calls PREFIX."""
    return os.path.splitext(os.fspath(path_rec))[0]


def index_remedy(path_rec: str | os.PathLike) -> str:
    """How to get a right index, as the end of an error message."""
    return f"make the index again with `python -m data_prep.im2rec --index {prefix_of(path_rec)}`"


def pack_remedy(path_rec: str | os.PathLike) -> str:
    """How to get a right record file, as the end of an error message."""
    return (
        f"copy the file again, or pack the images again with "
        f"`python -m data_prep.im2rec --pass-through {prefix_of(path_rec)} IMAGE_FOLDER`"
    )


def checksum_remedy(path_rec: str | os.PathLike) -> str:
    """How to get checksums for the records as they are now, as the end of a message."""
    return (
        f"`python -m data_prep.im2rec --checksums {prefix_of(path_rec)}` writes the checksums anew"
    )


def read_index(
    path_idx: str | os.PathLike, path_rec: str | os.PathLike | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Keys and byte offsets, int64 of shape (records,), in the order of the lines.

    Raises RecordError, which names the file, the line and the remedy, if the file is missing,
    empty, or holds a line that is not `key <tab> offset` with whole numbers from 0 on, or a key
    twice.
    """
    path_rec = prefix_of(path_idx) + ".rec" if path_rec is None else path_rec
    remedy = index_remedy(path_rec)
    if not os.path.exists(path_idx):
        raise RecordError(f"{path_idx}: the index of {path_rec} is missing: {remedy}", path_idx)
    try:
        keys, offsets = np.ascontiguousarray(read_pairs(path_idx, "index", "key\toffset").T)
    except ValueError as error:
        raise RecordError(f"{path_idx}: {error}: {remedy}", path_idx) from None
    sorted_keys = np.sort(keys)
    twice = np.flatnonzero(sorted_keys[1:] == sorted_keys[:-1])
    if len(twice):
        raise RecordError(
            f"{path_idx}: the key {sorted_keys[twice[0]]} stands there twice: {remedy}", path_idx
        )
    return keys, offsets


def read_checksums(path_rec: str | os.PathLike) -> np.ndarray | None:
    """Offset and checksum of each record, int64 of shape (records, 2); None without such a file.

    Raises RecordError, which says what is wrong and how to write it anew, for one that cannot be
    read.
    """
    path = checksum_path(path_rec)
    if not path.exists():
        return None
    try:
        return read_pairs(path, "checksum file", "offset\tchecksum")
    except ValueError as error:
        raise RecordError(f"{path}: {error}; {checksum_remedy(path_rec)}", path) from None


def checksums_at(path_rec: str | os.PathLike, offsets: np.ndarray) -> np.ndarray | None:
    """The checksums of the records at ``offsets``, int64 of the same shape; None without a file.

    Raises RecordError where the file cannot be read, or where it is that of another record file.
    """
    pairs = read_checksums(path_rec)
    if pairs is None:
        return None
    listed, by_offset = pairs[pairs[:, 0].argsort(kind="stable")], offsets.argsort(kind="stable")
    if not np.array_equal(listed[:, 0], offsets[by_offset]):
        path = checksum_path(path_rec)
        raise RecordError(
            f"{path}: it does not belong to {path_rec}, which was written later or by another "
            f"program; {checksum_remedy(path_rec)}",
            path,
        )
    found = np.empty(len(offsets), np.int64)
    found[by_offset] = listed[:, 1]
    return found


def read_pairs(path: str | os.PathLike, what: str, form: str) -> np.ndarray:
    """Lines of two whole numbers from 0 on, as int64 of shape (lines, 2).

    ``what`` the file is, and the ``form`` of a line, whose separator is a tab or a space, are for
    the ValueError, which says what is wrong.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"the {what} cannot be read ({error.strerror})") from None
    separator = b"\t" if "\t" in form else b" "
    lines = data.count(b"\n") + (not data.endswith(b"\n"))
    if data.strip() and data.count(separator) == lines:
        with warnings.catch_warnings(), contextlib.suppress(ValueError, Warning):
            warnings.simplefilter("error")  # at what is no number
            numbers = np.fromstring(data, np.int64, sep=" ")
            if len(numbers) == 2 * lines and numbers.min() >= 0 and numbers.max() < 2**63 - 1:
                return numbers.reshape(-1, 2)
    raise ValueError(_bad_line(data, what, form, separator))


def _bad_line(data: bytes, what: str, form: str, separator: bytes) -> str:
    """Say which line is wrong; the quick way above only knows that one is."""
    form = form.replace("\t", " <tab> ")
    if not data.strip():
        return f"the {what} is empty"
    if data.startswith(b"version https://git-lfs"):
        return f"this is a git-LFS pointer, not the {what} itself (`git lfs pull` fetches it)"
    for number, line in enumerate(data.splitlines(), start=1):
        fields = line.split(separator)
        if len(fields) != 2 or not all(f.strip().isdigit() and len(f) < 19 for f in fields):
            shown = line[:60].decode("utf-8", "replace")
            return f"line {number} is {shown!r}, not `{form}`"
    return f"some line is not `{form}`"
