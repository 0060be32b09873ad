"""The `.idx` beside a record file: one line `key <tab> offset` for each record, read at once into
two arrays.

It says where each record starts, so that any of them can be read without reading those before it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rn50lib.records.framing import RecordError


@dataclass(frozen=True)
class Index:
    """Keys and byte offsets, int64 arrays of shape (records,), in the order of the lines."""

    keys: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.keys)


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


def read_index(path_idx: str | os.PathLike, path_rec: str | os.PathLike | None = None) -> Index:
    """Read an index file whole.

    Raises RecordError, which names the file, the line and the remedy, if the file is missing,
    empty, or holds a line that is not `key <tab> offset` with whole numbers from 0 on, or a key
    twice.
    """
    path_rec = prefix_of(path_idx) + ".rec" if path_rec is None else path_rec
    remedy = index_remedy(path_rec)
    try:
        data = Path(path_idx).read_bytes()
    except FileNotFoundError:
        raise RecordError(
            f"{path_idx}: the index of {path_rec} is missing: {remedy}", path_idx
        ) from None
    except OSError as error:
        raise RecordError(
            f"{path_idx}: the index cannot be read ({error.strerror})", path_idx
        ) from None
    pairs = read_pairs(data)
    if isinstance(pairs, str):
        raise RecordError(f"{path_idx}: {pairs}: {remedy}", path_idx)
    keys, offsets = np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])
    sorted_keys = np.sort(keys)
    twice = np.flatnonzero(sorted_keys[1:] == sorted_keys[:-1])
    if len(twice):
        raise RecordError(
            f"{path_idx}: the key {sorted_keys[twice[0]]} stands there twice: {remedy}", path_idx
        )
    return Index(keys, offsets)


def read_pairs(
    data: bytes, what: str = "index", line: str = "key <tab> offset"
) -> np.ndarray | str:
    """Lines of two whole numbers from 0 on with a tab between, as int64 of shape (lines, 2); or
    what is wrong with them."""
    tokens = data.split()
    try:
        lines = data.count(b"\n") + (not data.endswith(b"\n"))
        if not tokens or data.count(b"\t") != lines or len(tokens) != 2 * lines:
            raise ValueError
        pairs = np.array(tokens).astype(np.int64).reshape(-1, 2)
        if pairs.min() < 0:
            raise ValueError
    except (ValueError, OverflowError):
        return _bad_line(data, what, line)
    return pairs


def _bad_line(data: bytes, what: str, form: str) -> str:
    """Say which line is wrong; the quick way above only knows that one is."""
    if not data.strip():
        return f"the {what} is empty"
    if data.startswith(b"version https://git-lfs"):
        return f"this is a git-LFS pointer, not the {what} itself (`git lfs pull` fetches it)"
    for number, line in enumerate(data.splitlines(), start=1):
        fields = line.split(b"\t")
        if len(fields) != 2 or not all(f.strip().isdigit() and len(f) < 19 for f in fields):
            shown = line[:60].decode("utf-8", "replace")
            return f"line {number} is {shown!r}, not `{form}`"
    return f"some line is not `{form}`"
