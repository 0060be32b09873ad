"""A data set opened for reading: folders, a record file or shards, behind one small interface.

`open_source` finds out which form a data root has and says in one line what is wrong with it if it
has none; what it returns can be handed to worker processes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np

from rn50lib.errors import UserError
from rn50lib.records.imageinfo import LFS_POINTER
from rn50lib.records.recordio import Reader, RecordError
from rn50lib.records.shards import count_images, open_shards, shard_folder

IMAGE_EXTENSIONS = (".jpeg", ".jpg", ".png")
"""Extensions of image files, in small letters; capitals count as well. im2rec has the same list."""

SPLITS = ("train", "val")
FORMATS = ("auto", "files", "recordio", "tfrecord")


class Source(Protocol):
    """One split of a data set. Images are numbered from 0; ``labels`` is int32 of shape (images,).

    ``classes`` names the labels ("0", "1", … where the names are not known). ``read`` returns the
    encoded image as bytes of its own, ``name`` what an error message calls it.
    """

    format: str
    root: Path
    path: Path
    labels: np.ndarray
    classes: tuple[str, ...]

    def __len__(self) -> int: ...

    def read(self, i: int) -> bytes: ...

    def name(self, i: int) -> str: ...


@dataclass(frozen=True)
class Description:
    """What a data root holds, found without reading any image."""

    root: Path
    formats: tuple[str, ...]
    train_images: int
    val_images: int
    classes: tuple[str, ...]


@dataclass
class FileSource:
    """A split as class folders of image files: the label of an image is the rank of its folder."""

    root: Path
    path: Path
    labels: np.ndarray = field(repr=False)
    classes: tuple[str, ...]
    _names: bytes = field(repr=False)  # all relative paths in one piece: light to hand to workers
    _ends: np.ndarray = field(repr=False)
    format: str = "files"

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, i: int) -> str:
        """The path of image i."""
        start = int(self._ends[i - 1]) if i else 0
        return os.path.join(self.path, os.fsdecode(self._names[start : int(self._ends[i])]))

    def read(self, i: int) -> bytes:
        """The bytes of image i. Raises UserError if it is gone, empty or a git-LFS pointer."""
        name = self.name(i)
        try:
            with open(name, "rb", buffering=0) as file:
                data = file.read()
        except OSError as error:
            raise UserError(f"{name}: this image cannot be read ({error.strerror})") from None
        if len(data) < 1024:
            _refuse_no_image(name, data)
        return data


@dataclass
class RecordSource:
    """A split as a record file; image i is the record in line i of the index."""

    root: Path
    path: Path
    labels: np.ndarray = field(repr=False)
    classes: tuple[str, ...]
    _reader: Reader = field(repr=False)
    format: str = "recordio"

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, i: int) -> str:
        """The record file, with key and offset of record i."""
        key, offset = self._reader.keys[i], int(self._reader.offsets[i])
        return f"{self.path}: record with key {key} at offset {offset:,}"

    def read(self, i: int) -> bytes:
        """The image in record i. Raises RecordError if the record is damaged."""
        image = self._reader[i][1]
        if len(image) < 1024:
            _refuse_no_image(self.name(i), image)
        return image


def _refuse_no_image(name: str, data: bytes) -> None:
    if not data:
        raise UserError(f"{name}: this image has no bytes; copy it again or remove it")
    if data.startswith(LFS_POINTER):
        raise UserError(
            f"{name}: this is a git-LFS pointer, not the image; `git lfs pull` fetches the images"
        )


def open_source(root: str | os.PathLike, split: str, data_format: str = "auto") -> Source:
    """Open one split, "train" or "val", of the data set under ``root``.

    "recordio" reads ROOT/SPLIT.rec and .idx, or ROOT/records/SPLIT.rec and .idx; "files" reads the
    class folders ROOT/SPLIT/CLASS/; "tfrecord" the shards in ROOT/tfrecord or in ROOT. "auto" takes
    record files where there are any, else files, and shards where there is nothing else.
    Raises UserError, which names the folder or file and the remedy, if the data set is not there,
    is not laid out so, is empty, or if its train and val parts do not have the same classes.
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
    return _open_files(root, split)


def describe(root: str | os.PathLike, data_format: str = "auto") -> Description:
    """Say what is under a data root without reading the images: formats, counts and classes.

    The numbers are those of the class folders where there are any, else of the record files, else
    of the shards; of the shards too where ``data_format`` asks for them. Raises UserError as
    ``open_source`` does if the data set cannot be used.
    """
    root = _check_root(root)
    formats = []
    if all((root / split).is_dir() for split in SPLITS):
        formats.append("files")
    if _record_folder(root):
        formats.append("recordio")
    if shards := shard_folder(root):
        formats.append("tfrecord")
    if not formats:
        raise _neither(root)
    if shards and (data_format == "tfrecord" or formats == ["tfrecord"]):
        has_val = any(shards.glob("validation-*-of-*"))  # a run with --no-val does without
        counts = [count_images(root, "train"), count_images(root, "val") if has_val else 0]
        classes = read_class_names(shards) or open_shards(root, "train", None).classes
        return Description(root, tuple(formats), counts[0], counts[1], classes)
    if "files" in formats:
        train, val = (_open_files(root, split) for split in SPLITS)
        return Description(root, tuple(formats), len(train), len(val), train.classes)
    counts = [len(Reader(_record_path(root, split))) for split in SPLITS]
    classes = read_class_names(root) or _open_records(root, "train").classes
    return Description(root, tuple(formats), counts[0], counts[1], classes)


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
    """The folder with train.rec and val.rec: the root itself, or `records` in it."""
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


def read_class_names(root: Path) -> tuple[str, ...] | None:
    """The class names in `classes.txt` of the data root or of the folder above, if there is one.

    Each line is `index <tab> id <tab> words`, or just a name. The id, which is what the folder is
    called, names the class; where there is an index it gives the order.
    """
    rows = _class_rows(root)
    if rows is None:
        return None
    if all(len(row) > 1 and row[0].isdigit() for row in rows):
        return tuple(row[1] for row in sorted(rows, key=lambda row: int(row[0])))
    return tuple(row[0] for row in rows)


def read_class_words(root: Path) -> dict[str, str]:
    """Class id → its words, from the same file; empty where there are none."""
    return {row[1]: row[2] for row in _class_rows(root) or [] if len(row) > 2}


def _class_rows(root: Path) -> list[list[str]] | None:
    for folder in (root, root.parent):
        try:
            text = (folder / "classes.txt").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        lines = [line for line in text.splitlines() if line.strip()]
        rows = [[column.strip() for column in line.split("\t")] for line in lines]
        return rows[1:] if rows and rows[0][0] == "index" else rows
    return None


# -- record files --------------------------------------------------------------------------------


def _open_records(root: Path, split: str) -> RecordSource:
    path = _record_path(root, split)
    reader = Reader(path)
    labels = reader.labels()
    names = read_class_names(root)
    count = int(labels.max()) + 1
    if names is None or len(names) < count:
        names = tuple(str(label) for label in range(_class_count(path.parent, split, count)))
    return RecordSource(root, path, labels, names, reader)


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


def _class_count(folder: Path, split: str, count: int) -> int:
    """The number of classes, where no list names them; val may lack the last ones."""
    other = folder / ("val.rec" if split == "train" else "train.rec")
    if not other.exists():
        return count
    return max(count, int(Reader(other).labels().max()) + 1)


# -- class folders -------------------------------------------------------------------------------


def _open_files(root: Path, split: str) -> FileSource:
    classes = _class_folders(root, split)
    other = "val" if split == "train" else "train"
    if (root / other).is_dir():
        _check_same_classes(root, split, classes, other, _class_folders(root, other))
    names: list[bytes] = []
    counts = []
    for class_name in classes:
        before = len(names)
        _collect(os.path.join(root, split, class_name), os.fsencode(class_name), names)
        counts.append(len(names) - before)
    if not names:
        raise UserError(
            f"{root / split}: its class folders hold no images ({', '.join(IMAGE_EXTENSIONS)})"
        )
    ends = np.cumsum(np.fromiter(map(len, names), np.int64, len(names)))
    labels = np.repeat(np.arange(len(classes), dtype=np.int32), counts)
    source = FileSource(root, root / split, labels, classes, b"".join(names), ends)
    source.read(0)  # a folder of git-LFS pointers is seen here, not in a worker
    return source


def _class_folders(root: Path, split: str) -> tuple[str, ...]:
    """The names of a split's class folders, sorted by code point, as im2rec sorts them."""
    folder = root / split
    if not folder.is_dir():
        raise UserError(
            f"{folder}: there is no such folder; a data root holds train/CLASS/*.jpg and "
            "val/CLASS/*.jpg"
        )
    with os.scandir(folder) as entries:
        found = list(entries)
    classes = tuple(sorted(e.name for e in found if e.is_dir() and not e.name.startswith(".")))
    if classes:
        return classes
    if any(entry.name.lower().endswith(IMAGE_EXTENSIONS) for entry in found):
        raise UserError(
            f"{folder}: the images lie flat in this folder, so nothing says their classes; "
            "sort them into one folder for each class. For ImageNet's validation images, "
            "`python -m data_prep.imagenet` does it"
        )
    raise UserError(f"{folder}: it holds no class folders, so there are no images to read")


def _check_same_classes(
    root: Path, split: str, classes: tuple[str, ...], other: str, other_classes: tuple[str, ...]
) -> None:
    if classes == other_classes:
        return
    here, there = set(classes) - set(other_classes), set(other_classes) - set(classes)
    if here:
        name, inside, lacking = min(here), split, other
    else:
        name, inside, lacking = min(there), other, split
    raise UserError(
        f"{root}: train and val do not have the same class folders ({split} has {len(classes)}, "
        f"{other} has {len(other_classes)}): {name!r} is in {inside} and not in {lacking}, so a "
        "label would mean one class in training and another in validation. Make them the same"
    )


def _collect(folder: str, relative: bytes, names: list[bytes]) -> None:
    """Add the paths of a class folder's images, sorted. Raises UserError if some lie deeper."""
    files = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.lower().endswith(IMAGE_EXTENSIONS) and entry.is_file():
                files.append(entry.name)
            elif not entry.name.startswith(".") and entry.is_dir():
                _refuse_nested(entry.path)
    names.extend(relative + b"/" + os.fsencode(name) for name in sorted(files))


def _refuse_nested(folder: str) -> None:
    """im2rec would make such a folder a class: labels of files and records would differ."""
    for path, _, files in os.walk(folder):
        if any(name.lower().endswith(IMAGE_EXTENSIONS) for name in files):
            raise UserError(
                f"{path}: there are images in a folder inside a class folder; the layout is "
                "train/CLASS/*.jpg, with nothing deeper. Move them up, or the folder out"
            )
