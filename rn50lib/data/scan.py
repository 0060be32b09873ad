"""The files of a data root: where each form is, which images are taken, what is left out and why.

Every program that looks for images lists folders with `list_folder`, so that all of them take the
same files. A listing is one scandir: it opens no file, and asks the disk about links only.
"""

from __future__ import annotations

import errno
import fnmatch
import glob
import os
import re
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from rn50lib.data.tfrecord import IMAGE, LABEL, SHARDS, TFRecordReader, parse_example, shard_name
from rn50lib.errors import UserError

SPLITS = ("train", "val")


class Form(NamedTuple):
    """A form of a data set: the folders of its root that may hold it, and a pattern per split."""

    folders: tuple[str, ...]
    names: dict[str, str]


FORMS = {
    "recordio": Form(("", "records"), {split: f"{split}.rec" for split in SPLITS}),
    "files": Form(("",), {split: f"{split}/" for split in SPLITS}),
    "tfrecord": Form(("tfrecord", ""), SHARDS),
}
"""By the name for `--data-format`; "auto" is the first that is there."""


def has_split(folder: Path, form: str, split: str) -> bool:
    """Return True if a folder holds a split in this form.

    A dangling link counts: a record file that is missing is no reason to read a different form.
    """
    return next(glob.iglob(FORMS[form].names[split], root_dir=folder), None) is not None


def find_form(root: Path, form: str, splits: Sequence[str] = SPLITS) -> Path | None:
    """Return the folder of a data root that holds one of the splits in this form."""
    folders = [root / name for name in FORMS[form].folders]
    found = (f for f in folders if any(has_split(f, form, split) for split in splits))
    return next(found, None)


# -- images ---------------------------------------------------------------------------------------

# of JPEG and PNG, the formats that every loader reads; or in capitals
IMAGE_EXTENSIONS = (".jpeg", ".jpg", ".png", ".jpe", ".jfif")
OTHER_IMAGES = (
    *(".webp", ".heic", ".heif", ".avif", ".gif", ".bmp", ".dib", ".tif", ".tiff", ".jp2", ".jxl"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".ico", ".svg", ".psd", ".dng", ".cr2", ".nef"),
)

HIDDEN = "hidden files"  # .DS_Store, macOS's ._copies, .ipynb_checkpoints
DANGLING = "dangling links"
UNREADABLE = "links that cannot be followed"
SPECIAL = "special files"  # pipes, devices
OTHER = "non-image files"  # notes.txt, Thumbs.db
LOOSE = "images outside the class folders"
EMPTY = "empty class folders"
BARE = "files without an extension"
ABSENT = "files named after a missing image"  # .a.jpg.icloud, a.jpg.dvc, a.jpg.part, a.jpg_large
UNUSED = "images beyond --num-examples"
HARMLESS = (HIDDEN, OTHER, EMPTY)  # no image is lost by leaving these out

NOT_HERE = (DANGLING, UNREADABLE, ABSENT)
FETCH = "fetch what is missing (`git annex get`, `dvc pull`, a mount, a download)"
CONVERT = "convert the images to JPEG or PNG, and name them .jpg or .png"

_NAMED_AFTER = re.compile(r"\.?(.+\.(?:jpe?g|png|jpe|jfif))[^a-z0-9].*", re.IGNORECASE)

SHOWN = 3  # names for each reason


class LeftOut(dict[str, int]):
    """The number of entries that a scan left out for each reason, and the first names of each."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {}

    def add(self, reason: str, *names: str, count: int = 0) -> None:
        """Count entries with these names, or `count` entries without a name."""
        self[reason] = self.get(reason, 0) + (count or len(names))
        kept = self.names.setdefault(reason, [])
        kept += names[: SHOWN - len(kept)]

    def merge(self, other: LeftOut) -> None:
        """Add the entries of a different scan."""
        for reason, count in other.items():
            self.add(reason, *other.names[reason], count=count)

    def __str__(self) -> str:
        """Return "2 dangling links (red/08.jpg, red/09.jpg), 1 .webp image (red/10.webp)"."""
        texts = []
        for reason, count in self.items():
            noun = reason if count != 1 else re.sub(r"(?<!s)s\b", "", reason, count=1)
            names = ", ".join(self.names[reason]) + (", ..." if count > SHOWN else "")
            texts.append(f"{count:,} {noun}" + (f" ({names})" if self.names[reason] else ""))
        return ", ".join(texts)

    @property
    def note(self) -> str:
        """Return "; left out: ..." to end a line about what was found; "" if nothing was."""
        return f"; left out: {self}" if self else ""


class Listing(NamedTuple):
    """The entries of one folder, each sorted by name; `left_out` has (name, reason)."""

    images: list[str]
    folders: list[str]
    left_out: list[tuple[str, str]]

    def lost(self) -> LeftOut | None:
        """Return what was left out if that is why there is no image; None otherwise."""
        found = LeftOut()
        for name, reason in self.left_out:
            if reason not in HARMLESS:
                found.add(reason, name)
        return found if found and not self.images and not self.folders else None

    def count_left_out(self, left_out: LeftOut, folder: Path, place: str) -> None:
        """Add what a class folder leaves out to `left_out`, as entries of `place`.

        Raises UserError if no image of the folder can be read.
        """
        if lost := self.lost():
            raise UserError(f"{folder}: {describe_lost_class(lost)}")
        for name, reason in self.left_out:
            left_out.add(reason, os.path.join(place, name))


def list_folder(folder: str | Path, extensions: Sequence[str] = IMAGE_EXTENSIONS) -> Listing:
    """List a folder. Hidden entries are left out, and files that have none of the `extensions`.

    Raises UserError if the folder cannot be read.
    """
    images: list[str] = []
    folders: list[str] = []
    left_out: list[tuple[str, str]] = []
    endings = tuple(extensions)
    try:
        with os.scandir(os.fspath(folder)) as entries:
            for entry in entries:
                name = entry.name
                kind = HIDDEN if name[0] == "." else _kind(entry)
                if not kind and name.lower().endswith(endings):
                    images.append(name)
                elif kind == "folder":
                    folders.append(name)
                else:
                    left_out.append((name, kind or _describe_file(name)))
    except OSError as error:
        raise UserError(f"{folder}: this folder cannot be read ({error.strerror})") from None
    there = set(images) if left_out else ()
    for i, (name, reason) in enumerate(left_out):
        named_after = _NAMED_AFTER.fullmatch(name)
        if reason in HARMLESS and named_after and named_after[1] not in there:
            left_out[i] = name, ABSENT
    return Listing(sorted(images), sorted(folders), sorted(left_out))


def _describe_file(name: str) -> str:
    """Return the reason to leave out a file that does not have an image's extension."""
    ending = os.path.splitext(name)[1].lower()
    if ending in OTHER_IMAGES or ending in IMAGE_EXTENSIONS:
        return f"{ending} images"
    return OTHER if ending else BARE


def _kind(entry: os.DirEntry[str]) -> str:
    """Return "" for a file, "folder", or the reason to leave an entry out."""
    try:
        if entry.is_file():
            return ""
        if entry.is_dir():
            return "folder"
        entry.stat()
    except FileNotFoundError:
        return DANGLING
    except OSError as error:  # a link to itself, or into a folder that is closed to this user
        return DANGLING if error.errno == errno.ELOOP else UNREADABLE
    return SPECIAL


def list_split(folder: Path) -> tuple[list[str], LeftOut]:
    """Return the class folders of a split, sorted by code point, and what is next to them.

    Raises UserError if a class folder is a link that leads nowhere, or its name breaks lines.
    """
    listing, left_out = list_folder(folder), LeftOut()
    for name, reason in listing.left_out:
        if is_lost_class(name, reason):
            raise UserError(f"{folder / name}: {describe_lost_link(reason)}")
        left_out.add(reason, name)
    for name in listing.folders:
        if breaks_lines(name):
            raise UserError(f"{folder}: {describe_broken_name(name)}")
    if listing.images:
        left_out.add(LOOSE, *listing.images)
    return listing.folders, left_out


def is_lost_class(name: str, reason: str) -> bool:
    """Return True for a link next to class folders that led to one: it has no file's extension."""
    return reason in (DANGLING, UNREADABLE) and not re.search(r"\.[A-Za-z]\w{1,4}$", name)


def breaks_lines(name: str) -> bool:
    """Return True for a name that no list of classes can hold."""
    return any(sign in name for sign in "\t\n\r")


def describe_broken_name(name: str) -> str:
    """Return what is wrong with the name of a class folder, and the remedy."""
    return f"the class {name!r} has a tab or a line break in its name; rename the folder"


def describe_lost_link(reason: str) -> str:
    """Return what is wrong with the link of a class folder, and the remedy."""
    what = "points to nothing" if reason == DANGLING else "cannot be followed"
    return f"this class is a link that {what}, so all its images are missing; {FETCH}, or remove it"


def describe_lost_class(lost: LeftOut) -> str:
    """Return what is wrong with a class whose images are all left out, and the remedy."""
    remedy = FETCH if any(reason in NOT_HERE for reason in lost) else CONVERT
    return f"this class has no image that can be read, only {lost}; {remedy}, or remove the folder"


# -- names that are not those of a data root ------------------------------------------------------

ALIASES = {
    "train": ("train", "training", "trn"),
    "val": ("val", "valid", "validation", "validate", "eval", "dev", "test", "testing"),
}
SHARD_NAME = re.compile(r"\.tfrec(ord)?s?\b|-of-\d+", re.IGNORECASE)
_LIMIT = 50  # folders that are searched


def find_lookalikes(root: Path, split: str | None) -> dict[str, list[str]]:
    """Return the paths, by form, that have a split's name in a different spelling.

    They are relative to the root. The data root and its folders are searched, and nothing deeper.
    If `split` is None, all record files and shards are returned.
    """
    found: dict[str, list[str]] = {form: [] for form in FORMS}
    places = [""]
    for place in places:
        try:
            listing = list_folder(root / place)
        except UserError:
            continue
        if not place:
            places += listing.folders[:_LIMIT]
        if split and place not in SPLITS:  # those hold classes
            inside = (os.path.join(place, name) for name in listing.folders)
            found["files"] += [path for path in inside if path != split and _means(path, split)]
        for name, reason in listing.left_out:
            path = os.path.join(place, name)
            if reason not in (OTHER, BARE) or (split and not _means(path, split)):
                continue
            if name.lower().endswith(".rec"):
                found["recordio"].append(path)
            elif SHARD_NAME.search(name) and not name.endswith(".idx"):
                found["tfrecord"].append(path)
    found["files"].sort(key=lambda path: (path.count(os.sep), "test" in path.lower(), path))
    return found


def _means(path: str, split: str) -> bool:
    """Return True if a name such as "my_valid-0.tfrecord", or else its folder's, is a split's."""
    for part in reversed(path.split(os.sep)):
        words = re.split(r"[^a-z]+", part.lower())
        named = [s for s in SPLITS if any(word in ALIASES[s] for word in words)]
        if named:
            return split in named
    return False


def describe_lookalikes(root: Path, *splits: str, form: str = "") -> str:
    """Return "found valid/, expected val/; ..." with the remedy for splits that are missing.

    If `form` is given, other forms are ignored. Returns "" if nothing has a similar name.
    """
    texts = []
    for split in splits:
        if (root / split).is_symlink() and not (root / split).exists():
            texts.append(f"{root / split} is a link that points to nothing; {FETCH}, or remove it")
        else:
            texts.append(_describe(root, find_lookalikes(root, split), split, form))
    if splits == SPLITS and not any(texts):  # names that say nothing, such as part-0.tfrecord
        texts.append(_describe(root, find_lookalikes(root, None), "train", form))
    return "; ".join(dict.fromkeys(filter(None, texts)))


def _describe(root: Path, found: dict[str, list[str]], split: str, wanted: str) -> str:
    """Return what was found of the first form, what is expected, and the remedy."""
    form = next((form for form in FORMS if found[form] and wanted in ("", form)), None)
    if form is None:
        return ""
    paths = found[form]
    inner = os.path.join(paths[0], os.path.basename(paths[0]))
    if inner in paths:  # archives of Kaggle hold a folder twice
        paths = [inner]
    above, name = os.path.split(paths[0])
    mark = "/" * (form == "files")
    if fnmatch.fnmatch(name + mark, FORMS[form].names[split]) and not find_form(root, form):
        return f"found {first_names(paths)}{mark}: pass --data-root {root / above}"
    if form == "tfrecord":
        return describe_shards(root, paths, split)
    if form == "recordio":
        place = find_form(root, form) or root
        return (
            f"found {first_names(paths)}, expected {split}.rec and {split}.idx in {place}: rename"
            " both files, and the .crc if there is one"
        )
    link = shlex.join(["ln", "-s", paths[0], str(root / split)])
    return f"found {paths[0]}/, expected {split}/: rename it, or link it with `{link}`"


def describe_shards(folder: Path, names: Sequence[str], split: str) -> str:
    """Return "found part-0.tfrecord with the keys image, label; expected ..." with the remedy."""
    found = f"found {first_names(names)}"
    ends = (shard_name(split, i, len(names)) for i in (0, len(names) - 1))
    expected = " to ".join(dict.fromkeys(ends))
    try:
        keys = sorted(parse_example(TFRecordReader(folder / names[0]).read(0)))
    except (UserError, ValueError) as error:
        return f"{found}, expected {expected}; {error}"
    text = f"{found} with the keys {', '.join(keys)}; expected {expected}"
    if IMAGE in keys and LABEL in keys:
        return f"{text}: rename them so, in this order"
    return str(UserError(f"{text} with the keys {IMAGE} and {LABEL}", ("write_shards",)))


def describe_contents(root: Path) -> str:
    """Return the first names in a folder, such as "cat/, dog/, notes.txt and 2 more"."""
    listing = list_folder(root)
    files = [name for name, reason in listing.left_out if reason != HIDDEN]
    names = [*(f"{name}/" for name in listing.folders), *sorted([*listing.images, *files])]
    return first_names(names) if names else "nothing"


def first_names(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - SHOWN:,} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
