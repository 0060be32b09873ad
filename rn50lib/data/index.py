"""The lists next to a record file, one line with two whole numbers for each record.

`PREFIX.idx` says where each record starts (`key <tab> offset`), so that records can be read in any
order. `PREFIX.crc` has a checksum of each (`offset <tab> CRC-32C` of image header and image),
because RecordIO has none: im2rec writes it next to the three files that MXNet knows.
"""

from __future__ import annotations

import contextlib
import os
import warnings
from pathlib import Path

import numpy as np

from rn50lib.data.framing import RecordError, checksum_path


def prefix_of(path_rec: str | os.PathLike) -> str:
    """Return ``data/train`` for ``data/train.rec``: what im2rec calls PREFIX."""
    return os.path.splitext(os.fspath(path_rec))[0]


def checksum_remedy(path_rec: str | os.PathLike) -> str:
    """Return how to get checksums for the records as they are now, as the end of a message."""
    return f"`python -m data_prep.im2rec --checksums {prefix_of(path_rec)}` writes the checksums"


def index_remedy(path_rec: str | os.PathLike) -> str:
    """Return how to get a right index, as the end of a message."""
    return f"`python -m data_prep.im2rec --index {prefix_of(path_rec)}` writes the index again"


def read_index(
    path_idx: str | os.PathLike, path_rec: str | os.PathLike | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Return keys and byte offsets, int64 of shape (records,), in the order of the lines.

    Raises RecordError, which names the file and the remedy, if the file is missing, holds anything
    but `key <tab> offset`, or has a key twice.
    """
    remedy = index_remedy(path_rec or path_idx)
    try:
        keys, offsets = np.ascontiguousarray(read_pairs(path_idx).T)
    except ValueError as error:
        raise RecordError(f"{path_idx}: the index {error}; {remedy}", path_idx) from None
    values, counts = np.unique(keys, return_counts=True)
    if len(values) < len(keys):
        key = values[counts.argmax()]
        raise RecordError(f"{path_idx}: the key {key} is there twice; {remedy}", path_idx)
    return keys, offsets


def read_checksums(path_rec: str | os.PathLike) -> np.ndarray | None:
    """Return offset and checksum of each record, int64 (records, 2); None without such a file.

    Raises RecordError, with the remedy, if the file cannot be read.
    """
    path = checksum_path(path_rec)
    if not path.exists():
        return None
    try:
        return read_pairs(path)
    except ValueError as error:
        text = f"{path}: the checksum file {error}; {checksum_remedy(path_rec)}"
        raise RecordError(text, path) from None


def checksums_at(path_rec: str | os.PathLike, offsets: np.ndarray) -> np.ndarray | None:
    """Return the checksums of the records at ``offsets``, int64 of the same shape; None without.

    Raises RecordError if the file cannot be read, or if it belongs to a different record file.
    """
    pairs = read_checksums(path_rec)
    if pairs is None:
        return None
    if not np.array_equal(pairs[:, 0], np.sort(offsets)):
        path = checksum_path(path_rec)
        raise RecordError(
            f"{path}: it does not belong to {path_rec}, which was written later or by another "
            f"program; {checksum_remedy(path_rec)}",
            path,
        )
    return pairs[np.searchsorted(pairs[:, 0], offsets), 1]


def read_pairs(path: str | os.PathLike) -> np.ndarray:
    """Return lines of two whole numbers from 0 on as int64 of shape (lines, 2).

    Raises ValueError, which says what is wrong, as the end of a message.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise ValueError(f"cannot be read ({error.strerror})") from None
    with warnings.catch_warnings(), contextlib.suppress(DeprecationWarning, ValueError):
        warnings.simplefilter("error")  # if it is not a number; np.loadtxt takes twice the time
        numbers = np.fromstring(data, np.int64, sep=" ")
        lines = data.count(b"\n") + (not data.endswith(b"\n"))
        if 0 < len(numbers) == 2 * lines and numbers.min() >= 0 and numbers.max() < 2**63 - 1:
            return numbers.reshape(-1, 2)
    raise ValueError("does not hold two whole numbers in each line")
