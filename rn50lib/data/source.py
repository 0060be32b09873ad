"""A data set opened for reading: folders, a record file or shards, behind one small interface.

`open_source` detects the form of a data root. The sources that it returns can be pickled.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from rn50lib.data.folder import folder_classes, open_folders, read_class_names
from rn50lib.data.recordfile import Arrays, RecordError, disk_cache, load_arrays
from rn50lib.data.recordio import Reader
from rn50lib.data.tfrecord import (
    IMAGE,
    TFRecordReader,
    example_value,
    find_shards,
    scan_shards,
    sidecar_path,
)
from rn50lib.errors import UserError

SPLITS = ("train", "val")

LARGE = 20_000_000  # bytes of shards from which on their labels are cached
OPEN_SHARDS = 64  # at the same time: each takes a file descriptor


class Source(Protocol):
    """One split of a data set; ``labels`` is int32 of shape (images,), ``classes`` names them."""

    format: ClassVar[str]
    root: Path
    path: Path
    labels: np.ndarray
    classes: tuple[str, ...]

    def __len__(self) -> int: ...

    def read(self, i: int) -> bytes:
        """Return the encoded image i. Raises UserError if it cannot be read."""
        ...

    def name(self, i: int) -> str:
        """Return the file of image i, and its place in it, for error messages."""
        ...


@dataclass
class RecordSource:
    """A split as a record file; image i is the record in line i of the index."""

    root: Path
    path: Path
    labels: np.ndarray = field(repr=False)
    classes: tuple[str, ...]
    _reader: Reader = field(repr=False)
    format: ClassVar[str] = "recordio"

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, i: int) -> str:
        """Return the record file, with key and offset of record i."""
        key, offset = self._reader.keys[i], int(self._reader.offsets[i])
        return f"{self.path}: record with key {key} at offset {offset:,}"

    def read(self, i: int) -> bytes:
        """Return the image in record i. Raises RecordError if the record is damaged."""
        return self._reader[i][1]


@dataclass
class ShardSource:
    """A split as TFRecord shards; image i is record ``i - firsts[s]`` of shard ``s``.

    ``firsts`` is int64 of shape (shards + 1,): the number of the first image of each shard, and
    the images in all.
    """

    root: Path
    path: Path
    labels: np.ndarray = field(repr=False)
    classes: tuple[str, ...]
    shards: tuple[Path, ...] = field(repr=False)
    firsts: np.ndarray = field(repr=False)
    offsets: np.ndarray = field(repr=False)
    _open: dict[int, TFRecordReader] = field(default_factory=dict, repr=False)
    format: ClassVar[str] = "tfrecord"

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, i: int) -> str:
        """Return the shard, with number and offset of the record of image i."""
        shard = self._shard(i)
        position, offset = i - int(self.firsts[shard]), int(self.offsets[i])
        return f"{self.shards[shard]}: record {position} at offset {offset:,}"

    def read(self, i: int) -> bytes:
        """Return the image in record i. Raises UserError if the record is damaged."""
        shard = self._shard(i)
        if shard not in self._open:
            if len(self._open) == OPEN_SHARDS:
                self._open.clear()
            self._open[shard] = TFRecordReader(self.shards[shard])
        data = self._open[shard].read(int(self.offsets[i]))
        return example_value(data, self.name(i), IMAGE)

    def _shard(self, i: int) -> int:
        return int(np.searchsorted(self.firsts, i, side="right")) - 1

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}


def open_source(root: str | os.PathLike, split: str, data_format: str = "auto") -> Source:
    """Open one split, "train" or "val", of the data set under ``root``.

    "recordio" reads SPLIT.rec and .idx in ROOT or ROOT/records; "files" reads the class folders
    ROOT/SPLIT/CLASS/; "tfrecord" the shards in ROOT/tfrecord or ROOT. "auto" takes record files if
    there are any, else files, else shards. Raises UserError, which names the folder or file and the
    remedy, if the data set is missing, has a different layout, or is empty.
    """
    root = _check_root(root)
    form = _detect(root) if data_format == "auto" else data_format
    if form == "files":
        return open_folders(root, split)
    return _open_records(root, split) if form == "recordio" else _open_shards(root, split)


def classes_of(root: str | os.PathLike, data_format: str = "auto") -> tuple[str, ...]:
    """Return the names of the classes of a data root, without reading any image.

    They come from the class folders if there are any for both splits, unless ``data_format`` asks
    for shards. Raises UserError as ``open_source`` does.
    """
    root = _check_root(root)
    folders = [split for split in SPLITS if (root / split).is_dir()]
    form = data_format if data_format == "tfrecord" and _shard_folder(root) else _detect(root)
    if form == "files" or (form == "recordio" and len(folders) == 2):
        return folder_classes(root, folders[0])  # val alone can be scored
    folder = (_shard_folder(root) or root) if form == "tfrecord" else root
    return read_class_names(folder) or open_source(root, "train", form).classes


# -- the data root -------------------------------------------------------------------------------


def _check_root(root: str | os.PathLike) -> Path:
    root = Path(root)
    if not root.is_dir():
        raise UserError(
            f"--data-root {root}: this folder is missing. `python -m data_prep.roadsigns {root}`"
            " draws the built-in data there; `rn50 run` without --data-root draws and uses it"
        )
    return root


def _record_folder(root: Path) -> Path | None:
    """Return the folder with train.rec and val.rec: the root itself, or `records` in it."""
    for folder in (root, root / "records"):
        if any((folder / f"{split}.rec").exists() for split in SPLITS):
            return folder
    return None


def _shard_folder(root: Path) -> Path | None:
    """Return the folder with the shards of a data root: `tfrecord` in it, or the root itself."""
    for folder in (root / "tfrecord", root):
        if any(folder.glob("train-*-of-*")) or any(folder.glob("validation-*-of-*")):
            return folder
    return None


def _detect(root: Path) -> str:
    """Return the form of a data set. Raises UserError if there is none."""
    if _record_folder(root):
        return "recordio"
    if any((root / split).is_dir() for split in SPLITS):
        return "files"
    if _shard_folder(root):
        return "tfrecord"
    raise UserError(
        f"--data-root {root}: it holds neither record files (train.rec, train.idx, val.rec, "
        "val.idx) nor class folders (train/CLASS/*.jpg, val/CLASS/*.jpg) nor TFRecord shards "
        "(train-*-of-*, validation-*-of-*). "
        "`python -m data_prep.roadsigns data/roadsigns` draws the built-in data set"
    )


def _name_classes(names: tuple[str, ...] | None, labels: np.ndarray) -> tuple[str, ...]:
    """Return the names if each label has one, else numbers."""
    count = int(labels.max()) + 1
    return names if names and len(names) >= count else tuple(map(str, range(count)))


# -- record files and shards ---------------------------------------------------------------------


def _open_records(root: Path, split: str) -> RecordSource:
    path = (_record_folder(root) or root / "records") / f"{split}.rec"
    if not path.exists():
        command = f"python -m data_prep.im2rec %s {path.with_suffix('')} {root / split}"
        raise RecordError(
            f"{path}: this record file does not exist: make it with "
            f"`{command % '--list --recursive'}` and then `{command % '--pass-through'}`",
            path,
        )
    reader = Reader(path)
    labels = reader.labels()
    classes = _name_classes(read_class_names(root), labels)
    return RecordSource(root, path, labels, classes, reader)


def _open_shards(root: Path, split: str) -> ShardSource:
    folder = _shard_folder(root) or root / "tfrecord"
    shards = find_shards(folder, split)
    found = _load_labels(folder, split, shards)
    labels = found["labels"].astype(np.int32)
    classes = _name_classes(read_class_names(folder), labels)
    return ShardSource(
        root, folder, labels, classes, tuple(shards), found["firsts"], found["offsets"]
    )


def _load_labels(folder: Path, split: str, shards: list[Path]) -> Arrays:
    """Return the arrays of a split: from the sidecar, else by a scan, which is cached if large."""
    path = sidecar_path(folder, split)
    if (written := load_arrays(path, shards)) is not None:
        return written
    if sum(shard.stat().st_size for shard in shards) < LARGE:
        return scan_shards(shards)
    return disk_cache(path, shards, partial(scan_shards, shards))
