"""A data set opened for reading: folders, a record file or shards, behind one small interface.

`open_source` detects the form of a data root. The sources that it returns can be pickled.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from rn50lib.config import FORMATS
from rn50lib.data.folder import compare_labels, open_folders, read_class_names, refuse_no_image
from rn50lib.data.recordfile import RecordError
from rn50lib.data.recordio import Reader
from rn50lib.data.shards import open_shards, shard_folder
from rn50lib.errors import UserError

SPLITS = ("train", "val")


class Source(Protocol):
    """One split of a data set. Images are numbered from 0; ``labels`` is int32 of shape (images,).

    ``classes`` names the labels, "0", "1", … if unknown.
    """

    format: str
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
    format: str = "recordio"
    remarks: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, i: int) -> str:
        """Return the record file, with key and offset of record i."""
        key, offset = self._reader.keys[i], int(self._reader.offsets[i])
        return f"{self.path}: record with key {key} at offset {offset:,}"

    def read(self, i: int) -> bytes:
        """Return the image in record i. Raises RecordError if the record is damaged."""
        image = self._reader[i][1]
        if len(image) < 1024:
            refuse_no_image(self.name(i), image)
        return image


def open_source(root: str | os.PathLike, split: str, data_format: str = "auto") -> Source:
    """Open one split, "train" or "val", of the data set under ``root``.

    "recordio" reads ROOT/SPLIT.rec and .idx, or ROOT/records/SPLIT.rec and .idx; "files" reads the
    class folders ROOT/SPLIT/CLASS/; "tfrecord" the shards in ROOT/tfrecord or in ROOT. "auto" takes
    record files if there are any, else files, and shards if there is nothing else. Raises
    UserError, which names the folder or file and the remedy, if the data set is missing, has a
    different layout, is empty, or if its train and val parts do not have the same classes.
    """
    root = _check_root(root)
    if split not in SPLITS:
        raise UserError(f"split {split!r}: a data set has the splits train and val")
    if data_format not in FORMATS:
        raise UserError(f"--data-format {data_format}: choose one of {', '.join(FORMATS)}")
    if data_format == "recordio" or (data_format == "auto" and _record_folder(root)):
        return _open_records(root, split)
    folders = any((root / part).is_dir() for part in SPLITS)
    if data_format == "tfrecord" or (data_format == "auto" and not folders and shard_folder(root)):
        return open_shards(root, split, read_class_names(shard_folder(root) or root))
    if data_format == "auto" and not folders:
        raise _neither(root)
    return open_folders(root, split)


def classes_of(root: str | os.PathLike, data_format: str = "auto") -> tuple[str, ...]:
    """Return the names of the classes of a data root, without reading any image.

    They come from the class folders if there are any, else from the record files, else from the
    shards; from the shards also if ``data_format`` asks for them. Raises UserError as
    ``open_source`` does.
    """
    root = _check_root(root)
    folders, shards = all((root / split).is_dir() for split in SPLITS), shard_folder(root)
    if shards and (data_format == "tfrecord" or not (folders or _record_folder(root))):
        return read_class_names(shards) or open_shards(root, "train", None).classes
    if folders:
        return open_folders(root, "train").classes
    if _record_folder(root):
        return read_class_names(root) or _open_records(root, "train").classes
    for split in SPLITS:  # val alone can be scored
        if (root / split).is_dir():
            return open_folders(root, split).classes
    raise _neither(root)


# -- the data root -------------------------------------------------------------------------------


def _check_root(root: str | os.PathLike) -> Path:
    root = Path(root)
    if not root.exists():
        raise UserError(
            f"--data-root {root}: there is no such folder. `python -m data_prep.roadsigns {root}` "
            "draws the built-in data set there; `rn50 run` without --data-root draws and uses it"
        )
    if not root.is_dir():
        raise UserError(f"--data-root {root}: this is a file; give the folder that holds the data")
    return root


def _record_folder(root: Path) -> Path | None:
    """Return the folder with train.rec and val.rec: the root itself, or `records` in it."""
    for folder in (root, root / "records"):
        if any((folder / f"{split}.rec").exists() for split in SPLITS):
            return folder
    return None


def _neither(root: Path) -> UserError:
    if root.name in SPLITS and any(entry.is_dir() for entry in root.iterdir()):
        return UserError(
            f"--data-root {root}: this is one split; give the folder above it, {root.parent}, "
            "which holds train and val"
        )
    return UserError(
        f"--data-root {root}: it holds neither record files (train.rec, train.idx, val.rec, "
        "val.idx) nor class folders (train/CLASS/*.jpg, val/CLASS/*.jpg) nor TFRecord shards "
        "(train-*-of-*, validation-*-of-*). "
        "`python -m data_prep.roadsigns data/roadsigns` draws the built-in data set"
    )


# -- record files --------------------------------------------------------------------------------


def _open_records(root: Path, split: str) -> RecordSource:
    path = _record_path(root, split)
    reader = Reader(path)
    labels = reader.labels()
    if reader.unchecked:
        print(f"{reader.unchecked}; records are read without checksums", file=sys.stderr)
    names, count = read_class_names(root) or (), int(labels.max()) + 1
    named = len(names) >= count
    others, other = None, path.with_name("val.rec" if split == "train" else "train.rec")
    if other.exists() and (split == "train" or not named):  # scoring reads no training data
        others = Reader(other).labels()
    remarks = compare_labels(root, split, labels, others)
    if not named:
        count = max(count, int(others.max()) + 1) if others is not None else count
        names = tuple(map(str, range(count)))
    return RecordSource(root, path, labels, names, reader, remarks=remarks)


def _record_path(root: Path, split: str) -> Path:
    path = (_record_folder(root) or root / "records") / f"{split}.rec"
    if path.exists():
        return path
    command = f"python -m data_prep.im2rec %s {path.with_suffix('')} {root / split}"
    raise RecordError(
        f"{path}: there is no such record file: make it with `{command % '--list --recursive'}` "
        f"and then `{command % '--pass-through'}`",
        path,
    )
