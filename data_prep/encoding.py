"""The writers' half of the formats: RecordIO's framing and the sidecar of shards."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rn50lib.data.recordfile import read_pairs, save_arrays
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
)
from rn50lib.data.tfrecord import find_shards, index_path, sidecar_path
from rn50lib.errors import UserError


def pack_header(label: float | Sequence[float], index: int, payload: bytes) -> bytes:
    """Return the record for one image: header, labels (float32) if they are a sequence, image.

    ``index`` is the key of the ``.idx`` and ``.lst``.
    """
    if isinstance(label, (int, float)) or not hasattr(label, "__len__"):
        return HEADER.pack(0, float(label), index, 0) + payload  # type: ignore[arg-type]
    count = len(label)
    return HEADER.pack(count, 0.0, index, 0) + struct.pack(f"<{count}f", *label) + payload


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


def write_sidecar(folder: Path, split: str, labels: np.ndarray) -> None:
    """Write the labels of all records, and the offsets from the indexes, of new shards."""
    shards = find_shards(folder, split)
    offsets = [read_pairs(index_path(shard))[:, 0] for shard in shards]
    firsts = np.cumsum([0, *map(len, offsets)], dtype=np.int64)
    found = {"offsets": np.concatenate(offsets), "labels": labels, "firsts": firsts}
    save_arrays(sidecar_path(folder, split), shards, found)
