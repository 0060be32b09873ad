"""A data set opened for reading: folders, a record file or shards, behind one small interface.

`open_source` detects the form of a data root. Each form is a class, listed in `FORMS`; its sources
can be pickled.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections import Counter
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar

import numpy as np

from rn50lib.data.classes import (
    MAX_CLASSES,
    Classes,
    check_agreement,
    read_class_names,
    unnamed,
)
from rn50lib.data.recordfile import RecordError, disk_cache
from rn50lib.data.recordio import Reader
from rn50lib.data.scan import (
    EMPTY,
    FETCH,
    IMAGE_EXTENSIONS,
    SPLITS,
    LeftOut,
    describe_contents,
    list_folder,
    list_split,
)
from rn50lib.data.tfrecord import (
    IMAGE,
    SHARDS,
    TFRecordReader,
    example_value,
    find_shards,
    scan_shards,
    sidecar_path,
)
from rn50lib.errors import UserError, first_names
from rn50lib.files import NAMES

VERIFY = ("verify",)  # the remedy of an image that cannot be used: others may be like it
COMPLETE = (
    "remove the class, or complete it: images in train, a folder in val (it may be empty), and a"
    " line in classes.txt if there is one"
)
OPEN_SHARDS = 64  # at the same time: each takes a file descriptor


@dataclass
class Source:
    """One split of a data set. A subclass is one form of storing it.

    `labels` is int32 of shape (images,), numbers of `classes`; `left_out` counts what the scan of
    the folders left out. A form has a name for `--data-format`, a description of its `layout`, the
    `folders` of a data root that may hold it, and a `pattern` of its files' names for each split.
    """

    root: Path
    path: Path
    labels: np.ndarray = field(repr=False)
    classes: Classes
    left_out: LeftOut = field(default_factory=LeftOut, repr=False, kw_only=True)
    format: ClassVar[str]
    layout: ClassVar[str]
    folders: ClassVar[tuple[str, ...]]
    pattern: ClassVar[dict[str, str]]

    def __len__(self) -> int:
        return len(self.labels)

    def read(self, i: int) -> bytes:
        """Return the encoded image i. Raises UserError if it cannot be read."""
        raise NotImplementedError

    def name(self, i: int) -> str:
        """Return the file of image i, and its place in it, for error messages."""
        raise NotImplementedError

    @classmethod
    def open(cls, root: Path, split: str) -> Source:
        """Open one split of a data root. Raises UserError if it is missing or inconsistent."""
        raise NotImplementedError

    @classmethod
    def holds(cls, folder: Path, split: str) -> bool:
        """Return True if a folder holds a split in this form.

        A dangling link counts: a missing record file is no reason to read a different form.
        """
        return next(glob.iglob(cls.pattern[split], root_dir=folder), None) is not None

    @classmethod
    def find(cls, root: Path) -> Path | None:
        """Return the folder of a data root that holds one of the splits in this form."""
        folders = [root / name for name in cls.folders]
        for folder in folders:
            if folder.is_symlink() and not folder.exists():
                raise UserError(
                    f"{folder} is a link that points to nothing; {FETCH}, remove"
                    " it, or use --data-format"
                )
        found = (f for f in folders if any(cls.holds(f, split) for split in SPLITS))
        return next(found, None)

    @classmethod
    def describe_missing(cls, folder: Path, split: str) -> str:
        """Return what is wrong with a split that is not there: "expected ..., found train/"."""
        if (folder / split).is_symlink() and not (folder / split).exists():
            return f"{folder / split} is a link that points to nothing; {FETCH}, or remove it"
        return f"expected {cls.layout}, found {describe_contents(folder, 10)}"


def open_source(root: str | os.PathLike, split: str, data_format: str = "auto") -> Source:
    """Open one split, "train" or "val", of the data set under ``root``.

    "auto" takes record files if there are any, else class folders, else TFRecord shards. Raises
    UserError, which names the folder or file and the remedy, if the data set is missing, has a
    different layout, or is empty.
    """
    root = _check_root(root)
    return _form(root, data_format).open(root, split)


def describe_changes(source: Source, split: str) -> str:
    """Return the classes of which newer class folders hold other images than a pack.

    Names are compared if the pack's list is next to it, otherwise numbers. Older folders are not
    listed: a pack spares that, and has fewer images if unusable ones were skipped.
    """
    home = _home(source.root)
    folder, packed = home / split, getattr(source, "shards", [source.path])
    if source.format == "files" or not folder.is_dir() or not source.classes.known:
        return ""
    oldest = min(os.stat(path).st_mtime for path in packed)
    names = list_folder(folder).folders
    newer = [name for name in names if os.stat(folder / name).st_mtime > oldest]
    counts = np.bincount(source.labels, minlength=len(source.classes))
    count_of = dict(zip(source.classes, counts, strict=True))
    listed = _listed_images(source.path) if newer else {}
    changed = []
    for name in newer:
        images = set(list_folder(folder / name).images)
        before, count = listed.get(name), count_of.get(name, 0)
        if before is None:
            if len(images) != count:
                changed.append(f"{name} {len(images):,} instead of {count:,}")
        elif images != before:
            new, gone = len(images - before), len(before - images)
            changed.append(f"{name} {new:,} new and {gone:,} gone")
    if not changed:
        return ""
    return (
        f"{folder} is newer than {source.path} and has other images ({first_names(changed)}): list"
        f" and pack again, or pass --data-root {home} --data-format files"
    )


def _listed_images(path: Path) -> dict[str, set[str]]:
    """Return the images of each class folder in the list next to a record file, if there is one."""
    found: dict[str, set[str]] = {}
    with contextlib.suppress(OSError, IndexError):
        for line in path.with_suffix(".lst").read_text("utf-8", NAMES).splitlines():
            image = Path(line.split("\t")[2])
            found.setdefault(image.parent.name, set()).add(image.name)
    return found


# -- the data root -------------------------------------------------------------------------------


def _home(root: Path) -> Path:
    """Return the folder that may hold the class folders of records or shards."""
    return root.parent if root.name in ("records", "tfrecord") else root


def _check_root(root: str | os.PathLike) -> Path:
    if not Path(root).is_dir():
        what = "a file" if Path(root).exists() else "missing"
        raise UserError(
            f"--data-root {root} is {what}: pass the folder that holds the data",
            ("draw", root) if what == "missing" and Path(root).name == "roadsigns" else (),
        )
    return Path(root)


def forms_in(root: Path) -> list[str]:
    """Return the names of the forms in which a data set is there."""
    return [name for name, form in FORMS.items() if form.find(root)]


def _form(root: Path, data_format: str) -> type[Source]:
    """Return the form with a name; "auto" is the first that is there. Raises UserError."""
    if data_format != "auto":
        return FORMS[data_format]
    if forms := forms_in(root):
        return FORMS[forms[0]]
    raise UserError(f"--data-root {root}: {_describe_other(root)}")


def _describe_other(root: Path) -> str:
    """Return what a folder without a data set is, and the next step."""
    there, whole = describe_contents(root), root.absolute().parent
    if root.absolute().name in SPLITS and forms_in(whole):
        return f"this is one split of a data set: pass {whole}"
    listing = list_folder(root)
    folders = [root / name for name in listing.folders if os.access(root / name, os.R_OK | os.X_OK)]
    if inside := [folder for folder in folders if forms_in(folder)]:
        return f"it holds the folder of a data set: pass {inside[0]}"
    classes = any(list_folder(folder).images for folder in folders)
    if classes or listing.images:
        return (
            f"it holds {'class folders' if classes else 'images'} ({there}): make train/CLASS and"
            " val/CLASS in it, and move most images of each class to train, the others to val"
        )
    layouts = " or ".join(form.layout for form in FORMS.values())
    return f"expected {layouts}, found {there}; rename what is there, or pass a different folder"


# -- classes -------------------------------------------------------------------------------------


def _stated_classes(root: Path, form: type[Source]) -> list[Classes]:
    """Return what `classes.txt` and class folders state about the classes of a data root."""
    place = form.find(root) or root
    found = [read_class_names(folder) for folder in dict.fromkeys((place, root))]
    if not any(found):
        found.append(read_class_names(_home(root)))
    for split in SPLITS:
        if (root / split).is_dir() and (form is FileSource or list_split(root / split)[0]):
            found.append(_class_folders(root, split)[0])
    return [classes for classes in found if classes is not None]


def _check_labels(root: Path, form: type[Source], path: Path, labels: np.ndarray) -> Classes:
    """Return the classes of records or shards. Raises UserError if their labels do not fit."""
    count = int(labels.max()) + 1
    if count > MAX_CLASSES:
        raise UserError(
            f"{path}: an image has the label {count - 1}, which is not a class; pack again"
        )
    stated = [*_stated_classes(root, form), unnamed(count, path, seen=True)]
    return check_agreement(stated, f"--data-root {root}")


def _check_list(path: Path, labels: np.ndarray) -> None:
    """Raise UserError if records were not packed from the list next to them, by their classes.

    A class may have fewer images than in the list, because bad ones can be skipped.
    """
    path_lst = path.with_suffix(".lst")
    try:
        with open(path_lst, "rb") as file:
            listed = Counter(float(line.split(b"\t")[1]) for line in file)
    except (OSError, ValueError, IndexError):  # there is none, or it is something else
        return
    packed = Counter(labels.tolist())
    for label in sorted(listed | packed):
        if packed[label] > listed[label] or not packed[label]:
            raise UserError(
                f"{path} was not packed from {path_lst}: it holds {packed[label]:,} images of class"
                f" {label:g}, the list {listed[label]:,}; pack the images again, or remove the list"
            )


# -- class folders -------------------------------------------------------------------------------


@dataclass
class FileSource(Source):
    """A split as class folders of image files: the label of an image is the rank of its folder."""

    paths: np.ndarray = field(repr=False)  # relative, as bytes: light to hand to workers
    format = "files"
    layout = "class folders (train/CLASS/*.jpg, val/CLASS/*.jpg)"
    folders = ("",)
    pattern = {split: f"{split}/" for split in SPLITS}

    def name(self, i: int) -> str:
        return os.path.join(self.path, self.paths[i].decode(errors=NAMES))

    def read(self, i: int) -> bytes:
        name = self.name(i)
        try:
            with open(name, "rb", buffering=0) as file:
                return file.read()
        except OSError as error:
            raise UserError(f"{name}: this image cannot be read ({error.strerror})") from None

    @classmethod
    def open(cls, root: Path, split: str) -> FileSource:
        """Open ROOT/SPLIT/CLASS/. Raise UserError unless train, val and `classes.txt` agree."""
        classes, left_out = _class_folders(root, split)
        images = [_images_of(root / split, name, left_out) for name in classes]
        check_agreement(_stated_classes(root, cls), f"--data-root {root}", COMPLETE)
        paths = [
            f"{name}/{image}".encode(errors=NAMES)
            for name, found in zip(classes, images, strict=True)
            for image in found
        ]
        if not paths:
            raise UserError(
                f"{root / split}: its class folders hold no images ({', '.join(IMAGE_EXTENSIONS)})"
                f"{left_out.note}"
            )
        labels = np.repeat(np.arange(len(classes), dtype=np.int32), [*map(len, images)])
        return cls(root, root / split, labels, classes, np.array(paths), left_out=left_out)


def _class_folders(root: Path, split: str) -> tuple[Classes, LeftOut]:
    """Return the class folders of a split, and what is next to them. Raise UserError if none."""
    folder = root / split
    if not folder.is_dir():
        missing = FileSource.describe_missing(root, split)
        without = "; a training can do without it (--no-val)" if split == "val" else ""
        raise UserError(f"{folder}: this folder does not exist; {missing}{without}")
    names, left_out = list_split(folder)
    if names:
        return Classes(tuple(names), str(folder)), left_out
    raise UserError(
        f"{folder}: it holds no class folders, but {describe_contents(folder)}; sort the images"
        " into one folder for each class",
        ("sort_imagenet",) if split == "val" else (),
    )


def _images_of(folder: Path, name: str, left_out: LeftOut) -> list[str]:
    """Return the names of a class's images, sorted; add what else is there to `left_out`."""
    listing = list_folder(folder / name)
    if listing.folders:
        raise UserError(
            f"{folder / name / listing.folders[0]}: this is a folder inside a class folder; the"
            " layout is train/CLASS/*.jpg, with nothing deeper. Move its images up, or the folder"
            " out"
        )
    for entry, reason in listing.left_out:
        left_out.add(reason, os.path.join(name, entry))
    if not listing.images and folder.name == "train":
        raise UserError(
            f"{folder / name}: this class has no images to train on{left_out.note}; add some, or"
            " remove the folder from train and val"
        )
    if not listing.images:
        left_out.add(EMPTY, name)
    return listing.images


# -- record files --------------------------------------------------------------------------------


@dataclass
class RecordSource(Source):
    """A split as a record file; image i is the record in line i of the index."""

    _reader: Reader = field(repr=False)
    format = "recordio"
    layout = "record files (train.rec, train.idx, val.rec, val.idx)"
    folders = ("", "records")
    pattern = {split: f"{split}.rec" for split in SPLITS}

    def name(self, i: int) -> str:
        key, offset = self._reader.keys[i], int(self._reader.offsets[i])
        return f"{self.path}: record with key {key} at offset {offset:,}"

    def read(self, i: int) -> bytes:
        return self._reader[i][1]

    @classmethod
    def open(cls, root: Path, split: str) -> RecordSource:
        """Open SPLIT.rec and SPLIT.idx in ROOT or ROOT/records."""
        folder = cls.find(root) or root / "records"
        path = folder / f"{split}.rec"
        if not os.path.lexists(path):
            problem = f"{path}: this record file does not exist"
            if folder.is_dir():
                problem += f"; {cls.describe_missing(folder, split)}"
            home = next((r for r in (root, root.parent) if (r / split).is_dir()), root)
            raise RecordError(problem, remedy=("pack", path.with_suffix(""), home / split))
        reader = Reader(path)
        labels = reader.labels()
        _check_list(path, labels)
        return cls(root, path, labels, _check_labels(root, cls, path, labels), reader)


# -- shards --------------------------------------------------------------------------------------


@dataclass
class ShardSource(Source):
    """A split as TFRecord shards; image i is record ``i - firsts[s]`` of shard ``s``.

    ``firsts`` is int64 of shape (shards + 1,): the number of the first image of each shard, and
    the images in all.
    """

    shards: list[Path] = field(repr=False)
    firsts: np.ndarray = field(repr=False)
    offsets: np.ndarray = field(repr=False)
    _open: dict[int, TFRecordReader] = field(default_factory=dict, repr=False)
    format = "tfrecord"
    layout = "TFRecord shards (train-00000-of-NNNNN, validation-00000-of-NNNNN)"
    folders = ("tfrecord", "")
    pattern = SHARDS

    def name(self, i: int) -> str:
        shard = self._shard(i)
        position, offset = i - int(self.firsts[shard]), int(self.offsets[i])
        return f"{self.shards[shard]}: record {position} at offset {offset:,}"

    def read(self, i: int) -> bytes:
        shard = self._shard(i)
        if shard not in self._open:
            if len(self._open) == OPEN_SHARDS:
                self._open.clear()
            self._open[shard] = TFRecordReader(self.shards[shard])
        data = self._open[shard].read(int(self.offsets[i]))
        return example_value(data, self.name(i), IMAGE)

    def _shard(self, i: int) -> int:
        return int(np.searchsorted(self.firsts, i, side="right")) - 1

    @classmethod
    def open(cls, root: Path, split: str) -> ShardSource:
        """Open the shards of a split in ROOT/tfrecord or ROOT."""
        folder = cls.find(root) or root / "tfrecord"
        place = folder if folder.is_dir() else root
        if not cls.holds(place, split):
            missing = cls.describe_missing(place, split)
            raise UserError(
                f"{place}: it holds no shards of {split}; {missing}", ("write_shards", root)
            )
        shards = find_shards(folder, split)
        # data_prep writes the file together with the shards; others are scanned once
        found = disk_cache(sidecar_path(folder, split), shards, partial(scan_shards, shards))
        labels = found["labels"].astype(np.int32)
        classes = _check_labels(root, cls, folder, labels)
        return cls(root, folder, labels, classes, shards, found["firsts"], found["offsets"])


FORMS: dict[str, type[Source]] = {
    form.format: form for form in (RecordSource, FileSource, ShardSource)
}
"""By the name for `--data-format`; "auto" is the first that is there."""
