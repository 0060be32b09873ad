"""TFRecord shards as a source: each record by its number.

Labels and offsets come from the sidecar that `data_prep.tfrecord` writes, else from the shards.
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rn50lib.data.folder import compare_labels
from rn50lib.data.recordfile import Arrays, disk_cache, load_sidecar
from rn50lib.data.shard_scan import (
    HEIGHT,
    IMAGE,
    RAW,
    WIDTH,
    WRITE_AGAIN,
    example_values,
    scan_shards,
)
from rn50lib.data.tfrecord import SPLIT_PREFIX, Shard, TFRecordReader, find_shards
from rn50lib.errors import UserError

LARGE = 20_000_000
"""Bytes of shards from which on their labels are cached: up to 100,000 examples."""

OPEN_SHARDS = 64  # at the same time: each takes a file descriptor


@dataclass
class ShardSource:
    """A split as TFRecord shards; image i is record ``i - firsts[s]`` of shard ``s``.

    ``firsts`` is int64 of shape (shards + 1,): the number of the first image of each shard, and
    the images in all. ``raw`` says that the examples are the slides'.
    """

    root: Path
    path: Path
    labels: np.ndarray = field(repr=False)
    classes: tuple[str, ...]
    shards: tuple[Path, ...] = field(repr=False)
    firsts: np.ndarray = field(repr=False)
    raw: bool
    offsets: np.ndarray = field(repr=False)
    remarks: tuple[str, ...] = ()
    format: str = "tfrecord"
    _open: dict[int, TFRecordReader] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, i: int) -> str:
        """Return the shard, with number and offset of the record of image i."""
        shard = self._shard(i)
        position = i - int(self.firsts[shard])
        return f"{self.shards[shard]}: record {position} at offset {int(self.offsets[i]):,}"

    def read(self, i: int) -> bytes:
        """Return the encoded image in record i; raw pixels come as a PPM image.

        Raises RecordError if the record is damaged, UserError if it holds no image.
        """
        shard = self._shard(i)
        if shard not in self._open:
            if len(self._open) == OPEN_SHARDS:
                self._open.clear()
            self._open[shard] = TFRecordReader(self.shards[shard])
        data = self._open[shard].read_at(int(self.offsets[i]))
        keys = (RAW, HEIGHT, WIDTH) if self.raw else (IMAGE,)
        image, *size = example_values(data, self.name(i), keys)
        if not image:
            raise UserError(f"{self.name(i)}: this image has no bytes; {WRITE_AGAIN}")
        if not self.raw:
            return image
        height, width = size
        if len(image) != 3 * height * width:
            raise UserError(
                f"{self.name(i)}: {RAW} has {len(image):,} bytes, but {HEIGHT} x {WIDTH} x 3 is "
                f"{height:g} x {width:g} x 3; {WRITE_AGAIN}"
            )
        return b"P6 %d %d 255\n" % (width, height) + image

    def find_damage(self, message: str) -> UserError:
        """Return the error for a damaged record whose offset TensorFlow gives in ``message``.

        TensorFlow does not name the shard, and the offset is that of the record or of its data.
        """
        found = re.search(r"record at (\d+)", message)
        offset = int(found[1]) if found else -1
        for i in np.flatnonzero(np.isin(self.offsets, (offset, offset - 12))).tolist():
            try:
                self.read(i)
            except UserError as error:
                return error
        return UserError(f"{self.path}: TensorFlow says: {message}")

    def _shard(self, i: int) -> int:
        return int(np.searchsorted(self.firsts, i, side="right")) - 1

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}


def shard_folder(root: Path) -> Path | None:
    """Return the folder with the shards of a data root: `tfrecord` in it, or the root itself."""
    for folder in (root / "tfrecord", root):
        if any(folder.glob("train-*-of-*")) or any(folder.glob("validation-*-of-*")):
            return folder
    return None


def open_shards(root: Path, split: str, names: tuple[str, ...] | None) -> ShardSource:
    """Open a split; `names` are the classes from classes.txt, None if it is missing.

    Raises UserError, which names the shard and the record, if a shard is missing, empty or damaged,
    if a label is not a class, or if the label map differs from classes.txt or the other split's.
    """
    folder = shard_folder(root) or root / "tfrecord"
    shards = find_shards(folder, split)
    found = _load_split(folder, split, shards)
    other = "val" if split == "train" else "train"
    there: Arrays | None = None
    reads_other = split == "train" or names is None  # scoring reads no training data
    if reads_other and any(folder.glob(f"{SPLIT_PREFIX[other]}-*-of-*")):
        there = _load_split(folder, other, find_shards(folder, other))
    return ShardSource(
        root,
        folder,
        found["labels"],
        _class_names(folder, split, found, there, names),
        tuple(shard.path for shard in shards),
        found["firsts"],
        bool(found["raw"]),
        found["offsets"],
        compare_labels(root, split, found["labels"], there["labels"] if there else None),
    )


def sidecar_path(folder: Path, split: str) -> Path:
    """Return the path of the file with the labels and offsets of a split."""
    return folder / f"{SPLIT_PREFIX[split]}.labels"


def _load_split(folder: Path, split: str, shards: list[Shard]) -> Arrays:
    """Return the arrays of a split: from the sidecar, else by a scan, which is cached if large."""
    files = [shard.path for shard in shards]
    path = sidecar_path(folder, split)
    if (written := load_sidecar(path, files)) is not None:
        return written
    if sum(file.stat().st_size for file in files) < LARGE:
        return scan_shards(shards)
    return disk_cache(path, files, partial(scan_shards, shards))


def _class_names(
    folder: Path, split: str, found: Arrays, other: Arrays | None, names: tuple[str, ...] | None
) -> tuple[str, ...]:
    """Return the classes: those of classes.txt, else the names in the records, else numbers."""
    count = int(found["labels"].max()) + 1
    here, known, elsewhere = found["classes"].tolist(), list(names or ()), "classes.txt"
    if names is not None and count > len(names):
        raise UserError(
            f"{folder}: the {split} shards have labels up to {count}, and classes.txt names "
            f"{len(names)} classes; correct the list, or write the shards again"
        )
    if names is None and other is not None:
        known = other["classes"].tolist()
        elsewhere = f"the {'val' if split == 'train' else 'train'} shards"
        count = max(count, int(other["labels"].max()) + 1)
    for label, (mine, theirs) in enumerate(zip(here, known, strict=False), 1):
        if mine and theirs and mine != theirs:
            raise UserError(
                f"{folder}: label {label} is {mine!r} in the {split} shards and {theirs!r} in "
                f"{elsewhere}: a label must mean one class; write the shards again together, or "
                "correct the list"
            )
    both = itertools.zip_longest(known, here, map(str, range(count)), fillvalue="")
    return names or tuple(theirs or mine or number for theirs, mine, number in both)
