"""Check TFRecord shards: checksums, indexes, and whether training can use the examples."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from data_prep.verifying.folders import Part
from data_prep.verifying.images import Images
from rn50lib.data.classes import MAX_CLASSES
from rn50lib.data.decode import is_pointer
from rn50lib.data.recordfile import RecordError, read_pairs
from rn50lib.data.tfrecord import (
    IMAGE,
    LABEL,
    SHARDS,
    TFRecordReader,
    example_value,
    find_shards,
    index_path,
)
from rn50lib.errors import UserError


def read_shards(path: Path, split: str) -> Part:
    """Return a shard, or the shards of a split in a folder, with one task for each."""
    part = Part(form="tfrecord", split=split, path=path, contents="checksums")
    try:
        shards = find_shards(path, split) if path.is_dir() else [path]
    except UserError as error:
        part.problems.add("damage", path, str(error))
        shards = sorted(path.glob(SHARDS[split]))  # those that are there
    for shard in shards:
        if shard.exists() and not shard.is_file():  # reading a pipe would wait for its writer
            part.problems.add("damage", shard, "this is not a regular file")
            continue
        if not index_path(shard).exists():
            part.problems.add("no-index", shard)
        part.tasks.append((check_shard, shard))
    return part


def check_shard(found: Images, path: Path) -> None:
    """Check a shard and its index; runs in a worker."""
    offsets: list[int] = []
    try:
        for offset, data in TFRecordReader(path).records():
            offsets.append(offset)
            _check_example(found, path, offset, data)
    except RecordError as error:
        head, size = b"", 0
        with contextlib.suppress(OSError), open(path, "rb") as file:
            head, size = file.read(64), os.path.getsize(path)
        kind = "lfs-pointer" if is_pointer(head) else "damage"
        text = str(error).removeprefix(f"{path}: ").partition("; copy the file")[0]
        lost = size - (error.offset or 0)
        text = f"after {len(offsets):,} good records: {text}; {lost:,} bytes were not read"
        found.problems.add(kind, path, text, error.offset)
        return
    index = index_path(path)
    if not index.exists():
        return
    try:
        pairs = read_pairs(index).tolist()
    except ValueError as error:
        found.problems.add("index", index, f"the index {error}")
        return
    ends = [*offsets[1:], os.path.getsize(path)]
    if pairs != [[offset, end - offset] for offset, end in zip(offsets, ends, strict=False)]:
        text = f"its {len(pairs):,} entries are not those of the {len(offsets):,} records"
        found.problems.add("index", index, text)


def _check_example(found: Images, path: Path, offset: int, data: bytes) -> None:
    """Add an example's image, and what training cannot use."""
    try:
        image = example_value(data, str(path), IMAGE)
        label = example_value(data, str(path), LABEL) - 1  # counted from 1 there
    except UserError as error:
        found.problems.add("example", path, error.args[0], offset)
        return
    good = 0 <= label < MAX_CLASSES
    if not good:
        found.problems.add("label", path, f"the label is {label + 1}; they begin at 1", offset)
    found.check(f"{path}, offset {offset:,}", label if good else -1, image)
