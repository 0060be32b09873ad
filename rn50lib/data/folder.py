"""A split of a data set as class folders of image files, and the names of its classes."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from rn50lib.errors import UserError

IMAGE_EXTENSIONS = (".jpeg", ".jpg", ".png")
"""Extensions of image files, in small letters; capitals count as well. im2rec has the same list."""

OTHER_IMAGES = (".avif", ".bmp", ".gif", ".heic", ".jfif", ".tif", ".tiff", ".webp")
"""Images that no loader here reads; a run reports that they are left out."""

LFS_POINTER = b"version https://git-lfs"
"""The first bytes of a git-LFS pointer: a short text in place of the file itself."""


def refuse_no_image(name: str, data: bytes) -> None:
    """Raise UserError, with the `name` of the image, if it is empty or a git-LFS pointer."""
    if not data:
        raise UserError(f"{name}: this image has no bytes; copy it again or remove it")
    if data.startswith(LFS_POINTER):
        raise UserError(
            f"{name}: this is a git-LFS pointer, not the image; `git lfs pull` fetches the images"
        )


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
    remarks: tuple[str, ...] = ()  # what a reader of the result should know of the folders

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, i: int) -> str:
        """Return the path of image i."""
        start = int(self._ends[i - 1]) if i else 0
        return os.path.join(self.path, os.fsdecode(self._names[start : int(self._ends[i])]))

    def read(self, i: int) -> bytes:
        """Return the bytes of image i. Raises UserError if it is gone or no image."""
        name = self.name(i)
        try:
            with open(name, "rb", buffering=0) as file:
                data = file.read()
        except OSError as error:
            raise UserError(f"{name}: this image cannot be read ({error.strerror})") from None
        if len(data) < 1024:
            refuse_no_image(name, data)
        return data


def open_folders(root: Path, split: str) -> FileSource:
    """Open ROOT/SPLIT/CLASS/.

    Raises UserError, which names the folder and the remedy, if it is missing, holds no images, or
    if train and val do not have the same classes.
    """
    classes = _class_folders(root, split)
    other = "val" if split == "train" else "train"
    others = _class_folders(root, other) if (root / other).is_dir() else classes
    if classes != others:
        only_here, only_there = set(classes) - set(others), set(others) - set(classes)
        inside, lacking = (split, other) if only_here else (other, split)
        raise UserError(
            f"{root}: train and val do not have the same class folders ({split} has {len(classes)},"
            f" {other} has {len(others)}): {min(only_here or only_there)!r} is in {inside} and not "
            f"in {lacking}, so a label would mean one class in training and another in validation. "
            "Make them the same"
        )
    names: list[bytes] = []
    counts, left_out = [], []
    for class_name in classes:
        before = len(names)
        folder = os.path.join(root, split, class_name)
        left_out += _collect(folder, os.fsencode(class_name), names)
        counts.append(len(names) - before)
    if not names:
        raise UserError(
            f"{root / split}: its class folders hold no images ({', '.join(IMAGE_EXTENSIONS)})"
        )
    ends = np.cumsum(np.fromiter(map(len, names), np.int64, len(names)))
    labels = np.repeat(np.arange(len(classes), dtype=np.int32), counts)
    empty = [str(root / split / c) for c, n in zip(classes, counts, strict=True) if not n]
    remarks = [f"note: {_shorten(empty)}: a class without images"] if empty else []
    if left_out:
        why = f"not one of {', '.join(IMAGE_EXTENSIONS)}"
        if min(left_out).lower().endswith(IMAGE_EXTENSIONS):
            why = "a link to nothing" if os.path.islink(min(left_out)) else "no regular file"
        remarks.append(f"note: left out: {_shorten(left_out)}, {why}")
    source = FileSource(
        root, root / split, labels, classes, b"".join(names), ends, remarks=tuple(remarks)
    )
    source.read(0)  # a folder of git-LFS pointers is seen here, not in a worker
    return source


def _shorten(paths: list[str]) -> str:
    return min(paths) + (f" (and {len(paths) - 1} more)" if len(paths) > 1 else "")


def _class_folders(root: Path, split: str) -> tuple[str, ...]:
    """Return the names of a split's class folders, sorted by code point, as im2rec sorts them."""
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


def compare_labels(
    root: Path, split: str, labels: np.ndarray, others: np.ndarray | None
) -> tuple[str, ...]:
    """Return notes about the labels of a split whose classes no folder names.

    ``others`` are the labels of the other split, None if there is none. Only the notes of train are
    returned if there are both. Raises UserError if each split has labels that the other has not.
    """
    used = np.unique(labels)
    if others is not None:
        train, val = (used, np.unique(others))[:: 1 if split == "train" else -1]
        only_train, only_val = np.setdiff1d(train, val), np.setdiff1d(val, train)
        if len(only_train) and len(only_val):
            raise UserError(
                f"{root}: train and val do not have the same labels (counted from 0, "
                f"{only_train[0]} is only in train and {only_val[0]} is only in val), so a label "
                "means different classes in the two. Write both again from one list of classes"
            )
        if split == "val":
            return ()
        if len(only_val):
            text = f"class {only_val[0]} (counted from 0) has images in val, none in train"
            return (f"note: {root}: {text}",)
    missing = np.setdiff1d(np.arange(used[-1] + 1), used)
    if not len(missing):
        return ()
    return (
        f"note: {root}: {len(missing):,} of the {used[-1] + 1:,} classes have no image in {split}; "
        f"the first is class {missing[0]} (from 0); the largest label decides how many there are",
    )


def _collect(folder: str, relative: bytes, names: list[bytes]) -> list[str]:
    """Add the paths of a class folder's images, sorted; return the images that are left out."""
    files, left_out = [], []
    with os.scandir(folder) as entries:
        for entry in entries:
            name = entry.name.lower()
            if name.endswith(IMAGE_EXTENSIONS) and entry.is_file():
                files.append(entry.name)
            elif entry.is_dir() and not name.startswith("."):
                _refuse_nested(entry.path)
            elif name.endswith(IMAGE_EXTENSIONS + OTHER_IMAGES) and not name.startswith("."):
                left_out.append(entry.path)
    names.extend(relative + b"/" + os.fsencode(name) for name in sorted(files))
    return left_out


def _refuse_nested(folder: str) -> None:
    """Raise UserError if there are images in a folder, which im2rec would make a class."""
    for path, _, files in os.walk(folder):
        if any(name.lower().endswith(IMAGE_EXTENSIONS) for name in files):
            raise UserError(
                f"{path}: there are images in a folder inside a class folder; the layout is "
                "train/CLASS/*.jpg, with nothing deeper. Move them up, or the folder out"
            )


# -- classes.txt ---------------------------------------------------------------------------------


def read_class_names(root: Path) -> tuple[str, ...] | None:
    """Return the class names in `classes.txt` of the data root or of the folder above, if any.

    Each line is `index <tab> id <tab> words`, or just a name. The id, which is the folder's name,
    names the class; the index, if there is one, gives the order.
    """
    rows = read_class_rows(root)
    if rows is None:
        return None
    if all(len(row) > 1 and row[0].isdigit() for row in rows):
        return tuple(row[1] for row in sorted(rows, key=lambda row: int(row[0])))
    return tuple(row[0] for row in rows)


def read_class_rows(root: Path) -> list[list[str]] | None:
    """Return the columns of each line of `classes.txt`; None if the file is missing."""
    for folder in (root, root.parent):
        try:
            text = (folder / "classes.txt").read_text(encoding="utf-8", errors="replace")
        except OSError:
            continue
        lines = [line for line in text.splitlines() if line.strip()]
        rows = [[column.strip() for column in line.split("\t")] for line in lines]
        return rows[1:] if rows and rows[0][0] == "index" else rows
    return None
