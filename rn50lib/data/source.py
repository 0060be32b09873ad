"""A data set opened for reading: folders, a record file or shards, behind one small interface.

`open_source` detects the form of a data root. The sources that it returns can be pickled.
"""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np

from rn50lib.data.classes import (
    MAX_CLASSES,
    ClassError,
    Classes,
    check_agreement,
    read_class_names,
    read_list,
    unnamed,
)
from rn50lib.data.recordfile import RecordError, disk_cache
from rn50lib.data.recordio import Reader, RecordSource
from rn50lib.data.scan import (
    EMPTY,
    FETCH,
    IMAGE_EXTENSIONS,
    SPLITS,
    LeftOut,
    describe_contents,
    find_lookalikes,
    first_names,
    list_folder,
    list_split,
)
from rn50lib.data.tfrecord import (
    SPLIT_PREFIX,
    ShardSource,
    describe_shards,
    find_shards,
    scan_shards,
    sidecar_path,
)
from rn50lib.errors import UserError, as_command

_ANNEX_POINTER = re.compile(rb"[./]*(git/)?annex/objects/")  # or a link checked out as text


class Source(Protocol):
    """One split of a data set; ``labels`` is int32 of shape (images,), numbers of ``classes``.

    ``left_out`` counts what the scan of the folders left out.
    """

    format: ClassVar[str]
    root: Path
    path: Path
    labels: np.ndarray
    classes: Classes
    left_out: LeftOut

    def __len__(self) -> int: ...

    def read(self, i: int) -> bytes:
        """Return the encoded image i. Raises UserError if it cannot be read."""
        ...

    def name(self, i: int) -> str:
        """Return the file of image i, and its place in it, for error messages."""
        ...


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


def classes_of(root: str | os.PathLike, data_format: str = "auto") -> Classes:
    """Return the classes of a data root; images are opened only if nothing names the classes.

    Raises UserError as ``open_source`` does, ClassError if class folders, lists, `classes.txt`,
    train and val disagree about the number of a class.
    """
    root = _check_root(root)
    form = data_format if data_format in _forms(root) else _detect(root)
    found = _stated_classes(root, form)
    if found and (classes := _agreed(root, found)).known:
        return classes
    splits = [split for split in SPLITS if _has_split(root, split, form)] or SPLITS[:1]
    return _agreed(root, [open_source(root, split, form).classes for split in splits])


def count_images(root: str | os.PathLike, split: str, data_format: str, enough: int) -> int:
    """Return the number of images of a split; of class folders, stop counting at `enough`."""
    root = _check_root(root)
    form = _detect(root) if data_format == "auto" else data_format
    if form != "files":
        return len(open_source(root, split, form))
    found = 0
    for name in _class_folders(root, split):
        found += len(list_folder(root / split / name).images)
        if found >= enough:
            break
    return found


# -- the data root -------------------------------------------------------------------------------


def _check_root(root: str | os.PathLike) -> Path:
    if re.match(r"[a-z0-9]{2,}:/", os.fspath(root)):
        raise UserError(
            f"--data-root {root}: this is an address, and data is read from folders; download it,"
            " or mount it, and pass the folder"
        )
    root = Path(root)
    if root.exists() and not root.is_dir():
        raise UserError(
            f"--data-root {root}: this is a file; pass the folder that holds the data, after"
            " unpacking it if it is an archive"
        )
    if not root.is_dir():
        raise UserError(
            f"--data-root {root}: this folder is missing."
            f" {as_command('python', '-m', 'data_prep.roadsigns', root)} draws the built-in"
            " data there; `rn50 run` without --data-root draws and uses it"
        )
    return root


def _record_folder(root: Path) -> Path | None:
    """Return the folder with train.rec and val.rec: the root itself, or `records` in it."""
    for folder in (root, root / "records"):
        # a dangling link is a record file that is missing, not a reason to take another form
        if any(os.path.lexists(folder / f"{split}.rec") for split in SPLITS):
            return folder
    return None


def _shard_folder(root: Path) -> Path | None:
    """Return the folder with the shards of a data root: `tfrecord` in it, or the root itself."""
    for folder in (root / "tfrecord", root):
        if any(folder.glob("train-*-of-*")) or any(folder.glob("validation-*-of-*")):
            return folder
    return None


def _forms(root: Path) -> list[str]:
    """Return the forms in which a data set is there; "auto" takes the first."""
    found = {
        "recordio": _record_folder(root) is not None,
        "files": any((root / split).is_dir() for split in SPLITS),
        "tfrecord": _shard_folder(root) is not None,
    }
    return [form for form, there in found.items() if there]


def _detect(root: Path) -> str:
    """Return the form of a data set. Raises UserError if there is none."""
    if forms := _forms(root):
        return forms[0]
    drawn = "`python -m data_prep.roadsigns data/roadsigns` draws the built-in data set"
    found = describe_lookalikes(root, *SPLITS) or f"found {describe_contents(root)}; {drawn}"
    raise UserError(
        f"--data-root {root}: it holds neither record files (train.rec, train.idx, val.rec, "
        "val.idx) nor class folders (train/CLASS/*.jpg, val/CLASS/*.jpg) nor TFRecord shards "
        f"(train-*-of-*, validation-*-of-*): {found}"
    )


def describe_lookalikes(root: Path, *splits: str, form: str = "") -> str:
    """Return "found valid/, expected val/; ..." with the remedy for splits that are missing.

    ``form`` is "files", "recordio" or "tfrecord", if only that is looked for. Returns "" if nothing
    has a similar name.
    """
    texts = []
    for split in splits:
        found = find_lookalikes(root, split)
        if (root / split).is_symlink() and not (root / split).exists():
            texts.append(f"{root / split} is a link that points to nothing; {FETCH}, or remove it")
        elif found.folders and form in ("", "files"):
            texts.append(_describe_folder(root, found.folders, split))
        elif found.records and form in ("", "recordio"):
            texts.append(_describe_records(root, found.records, split))
        elif found.shards and form in ("", "tfrecord"):
            texts.append(describe_shards(root, found.shards, split))
    if not texts and splits == SPLITS:  # names that say nothing, such as part-0.tfrecord
        found = find_lookalikes(root, None)
        if found.records and form in ("", "recordio"):
            texts.append(_describe_records(root, found.records, "train"))
        elif found.shards and form in ("", "tfrecord"):
            texts.append(describe_shards(root, found.shards, "train"))
    return "; ".join(dict.fromkeys(texts))


def _describe_folder(root: Path, paths: list[str], split: str) -> str:
    path = min(paths, key=lambda path: (path.count(os.sep), "test" in path.lower(), path))
    inner = os.path.join(path, os.path.basename(path))  # archives of Kaggle hold a folder twice
    path = inner if inner in paths else path
    above, name = os.path.split(path)
    if name == split and not any((root / split).is_dir() for split in SPLITS):
        return f"found {path}/: pass --data-root {root / above}"
    link = shlex.join(["ln", "-s", path, str(root / split)])
    return f"found {path}/, expected {split}/: rename it, or link it with `{link}`"


def _describe_records(root: Path, paths: list[str], split: str) -> str:
    place = _record_folder(root) or root
    above, name = os.path.split(paths[0])
    if name == f"{split}.rec" and not _record_folder(root):
        return f"found {paths[0]}: pass --data-root {root / above}"
    return (
        f"found {first_names(paths)}, expected {split}.rec and {split}.idx in {place}: rename both"
        " files, and the .crc if there is one"
    )


def _has_split(root: Path, split: str, form: str) -> bool:
    """Return True if there are record files or shards of a split."""
    if form == "recordio":
        return bool((folder := _record_folder(root)) and (folder / f"{split}.rec").exists())
    folder = _shard_folder(root)
    return bool(folder and any(folder.glob(f"{SPLIT_PREFIX[split]}-*-of-*")))


def format_for_tensorflow(root: str | os.PathLike) -> str:
    """Return which form of a data set TensorFlow reads: class folders, else shards.

    Raises UserError if there are record files alone.
    """
    root = Path(root)
    forms = _forms(root)
    if forms == ["recordio"]:
        raise UserError(
            f"--data-root {root}: it holds record files, and TensorFlow reads class folders or"
            f" TFRecord shards: `python -m data_prep.tfrecord {root}` makes shards of them; or"
            " use --backend torch"
        )
    return "files" if "files" in forms or not forms else "tfrecord"


# -- classes -------------------------------------------------------------------------------------


def _stated_classes(root: Path, form: str) -> list[Classes]:
    """Return what lists, `classes.txt` and class folders state about the classes of a data root."""
    places = {"recordio": _record_folder(root), "tfrecord": _shard_folder(root)}
    place = places.get(form) or root
    found = [read_list(place / f"{split}.lst")[0] for split in SPLITS if form == "recordio"]
    found += [read_class_names(folder) for folder in dict.fromkeys((place, root))]
    if not any(found) and root.name in ("records", "tfrecord"):
        found.append(read_class_names(root.parent))
    for split in SPLITS:
        if (root / split).is_dir() and (form == "files" or list_split(root / split)[0]):
            found.append(_class_folders(root, split))
    return [classes for classes in found if classes is not None]


def _agreed(root: Path, statements: list[Classes]) -> Classes:
    """Return the classes of a data root. Raises ClassError if two statements disagree."""
    return check_agreement(statements, f"--data-root {root}")


def _check_labels(root: Path, form: str, path: Path, labels: np.ndarray) -> Classes:
    """Return the classes of records or shards. Raises UserError if their labels do not fit."""
    count = int(labels.max()) + 1
    if count > MAX_CLASSES:
        raise UserError(
            f"{path}: an image has the label {count - 1}, which is no class; pack again"
        )
    return _agreed(root, [*_stated_classes(root, form), unnamed(count, path, seen=True)])


def _check_list(path: Path, labels: np.ndarray) -> None:
    """Raise ClassError if records were not packed from the list next to them.

    A class may have fewer images than in the list: `im2rec --skip-bad` leaves some out.
    """
    path_lst = path.with_suffix(".lst")
    _, listed = read_list(path_lst)
    packed = dict(
        zip(*(part.tolist() for part in np.unique(labels, return_counts=True)), strict=True)
    )
    for label in sorted({*listed, *packed} if listed else ()):
        images, wanted = packed.get(label, 0), listed.get(label, 0)
        if images > wanted or not images:
            raise ClassError(
                f"{path} was not packed from {path_lst}: it holds {images:,} images of class"
                f" {label}, the list {wanted:,}; pack the images again, or remove the list"
            )


# -- record files and shards ---------------------------------------------------------------------


def _open_records(root: Path, split: str) -> RecordSource:
    path = (_record_folder(root) or root / "records") / f"{split}.rec"
    if not os.path.lexists(path):
        words = ("python", "-m", "data_prep.im2rec"), (path.with_suffix(""), root / split)
        listing = as_command(*words[0], "--list", "--recursive", *words[1])
        packing = as_command(*words[0], "--pass-through", *words[1])
        found = [
            describe_lookalikes(place, split, form="recordio") for place in (root, path.parent)
        ]
        remedy = next(filter(None, found), f"make it with {listing} and then {packing}")
        raise RecordError(f"{path}: this record file does not exist: {remedy}", path)
    reader = Reader(path)
    labels = reader.labels()
    _check_list(path, labels)
    classes = _check_labels(root, "recordio", path, labels)
    return RecordSource(root, path, labels, classes, reader)


def _open_shards(root: Path, split: str) -> ShardSource:
    if not _shard_folder(root) and (text := describe_lookalikes(root, *SPLITS, form="tfrecord")):
        raise UserError(f"{root}: it holds no shards {SPLIT_PREFIX[split]}-NNNNN-of-NNNNN; {text}")
    folder = _shard_folder(root) or root / "tfrecord"
    shards = find_shards(folder, split)
    # written by data_prep for its own shards
    found = disk_cache(sidecar_path(folder, split), shards, partial(scan_shards, shards))
    labels = found["labels"].astype(np.int32)
    classes = _check_labels(root, "tfrecord", folder, labels)
    return ShardSource(
        root, folder, labels, classes, tuple(shards), found["firsts"], found["offsets"]
    )


# -- class folders -------------------------------------------------------------------------------


def refuse_no_image(name: str, data: bytes) -> None:
    """Raise UserError, with the `name` of the image, if it is empty or a pointer."""
    if not data:
        raise UserError(f"{name}: this image has no bytes; copy it again or remove it")
    if pointer := describe_pointer(data):
        raise UserError(f"{name}: this is {pointer}")


def describe_pointer(data: bytes) -> str | None:
    """Return what a version control system left in place of an image; None if it did not."""
    if data.startswith(b"version https://git-lfs"):
        return "a git-LFS pointer, not the image; `git lfs pull` fetches the images"
    if _ANNEX_POINTER.match(data):
        return "a git-annex pointer, not the image; `git annex get` fetches the images"
    return None


@dataclass
class FileSource:
    """A split as class folders of image files: the label of an image is the rank of its folder."""

    root: Path
    path: Path
    labels: np.ndarray = field(repr=False)
    classes: Classes
    _names: bytes = field(repr=False)  # all relative paths in one piece: light to hand to workers
    _ends: np.ndarray = field(repr=False)
    left_out: LeftOut = field(default_factory=LeftOut, repr=False)
    format: ClassVar[str] = "files"

    def __len__(self) -> int:
        return len(self.labels)

    def name(self, i: int) -> str:
        """Return the path of image i."""
        start = int(self._ends[i - 1]) if i else 0
        return os.path.join(self.path, os.fsdecode(self._names[start : int(self._ends[i])]))

    def read(self, i: int) -> bytes:
        """Return the bytes of image i. Raises UserError if it cannot be read."""
        name = self.name(i)
        try:
            with open(name, "rb", buffering=0) as file:
                return file.read()
        except OSError as error:
            raise UserError(f"{name}: this image cannot be read ({error.strerror})") from None


def open_folders(root: Path, split: str) -> FileSource:
    """Open ROOT/SPLIT/CLASS/.

    Raises UserError, which names the folder and the remedy, if it is missing, if a class has no
    images, or if train, val and `classes.txt` do not have the same classes.
    """
    classes = _class_folders(root, split)
    _agreed(root, _stated_classes(root, "files"))
    left_out = list_split(root / split)[1]
    images = [_images_of(root / split, name, left_out) for name in classes]
    paths = [
        os.fsencode(f"{name}/{image}")
        for name, found in zip(classes, images, strict=True)
        for image in found
    ]
    if not paths:
        raise UserError(
            f"{root / split}: its class folders hold no images ({', '.join(IMAGE_EXTENSIONS)})"
            f"{left_out.note}"
        )
    ends = np.cumsum(np.fromiter(map(len, paths), np.int64, len(paths)))
    labels = np.repeat(np.arange(len(classes), dtype=np.int32), [*map(len, images)])
    source = FileSource(root, root / split, labels, classes, b"".join(paths), ends, left_out)
    refuse_no_image(source.name(0), source.read(0))  # a folder of pointers is seen here
    return source


def _class_folders(root: Path, split: str) -> Classes:
    """Return the class folders of a split. Raises UserError if there are none."""
    folder = root / split
    if not folder.is_dir():
        found = describe_lookalikes(root, split, form="files")
        raise UserError(
            f"{folder}: this folder does not exist; "
            + (found or "a data root holds train/CLASS/*.jpg and val/CLASS/*.jpg")
        )
    if names := list_split(folder)[0]:
        return Classes(tuple(names), str(folder))
    raise UserError(
        f"{folder}: it holds no class folders, but {describe_contents(folder)}; sort the images"
        " into one folder for each class. For ImageNet's validation images,"
        " `python -m data_prep.imagenet` does it"
    )


def _images_of(folder: Path, name: str, left_out: LeftOut) -> list[str]:
    """Return the names of a class's images, sorted; add what else is there to `left_out`.

    Raises UserError if it is a folder of folders, which im2rec would make classes, if no image of
    it can be read, or if there is none to train on.
    """
    listing = list_folder(folder / name)
    if listing.folders:
        raise UserError(
            f"{folder / name / listing.folders[0]}: this is a folder inside a class folder; the"
            " layout is train/CLASS/*.jpg, with nothing deeper. Move its images up, or the folder"
            " out"
        )
    listing.count_left_out(left_out, folder / name, name)
    if not listing.images and folder.name == "train":
        raise UserError(
            f"{folder / name}: this class has no images to train on; add some, or remove the folder"
            " from train and val"
        )
    if not listing.images:
        left_out.add(EMPTY, name)
    return listing.images
