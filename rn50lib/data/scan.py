"""Folders of images: which files are taken, what is left out, and why.

Every program that looks for images lists folders with `list_folder`, so that all of them take the
same files. A listing is one scandir: it opens no file, and asks the disk about links only.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

from rn50lib.errors import UserError, first_names

SPLITS = ("train", "val")


# -- images ---------------------------------------------------------------------------------------

# of JPEG and PNG, the formats that every loader reads; or in capitals
IMAGE_EXTENSIONS = (".jpeg", ".jpg", ".png", ".jpe", ".jfif")
OTHER_IMAGES = (
    *(".webp", ".heic", ".heif", ".avif", ".gif", ".bmp", ".dib", ".tif", ".tiff", ".jp2", ".jxl"),
    *(".ppm", ".pgm", ".pbm", ".pnm", ".tga", ".ico", ".svg", ".psd", ".dng", ".cr2", ".nef"),
)
OTHER_FILES = (
    *(".txt", ".md", ".csv", ".json", ".xml", ".yaml", ".yml", ".pdf", ".zip", ".tar", ".gz"),
    *(".lst", ".idx", ".rec", ".db", ".lock", ".log", ".part", ".tmp"),
)

IMAGE, FOLDER = "images", "folders"  # not left out
HIDDEN = "hidden files"  # .DS_Store, macOS's ._copies, .ipynb_checkpoints
DANGLING = "dangling links"  # or to themselves, or into a folder that is closed to this user
SPECIAL = "special files"  # pipes, devices
OTHER = "non-image files"  # notes.txt, Thumbs.db
LOOSE = "images outside the class folders"
EMPTY = "empty class folders"
BARE = "files without an extension"
UNUSED = "images beyond --num-examples"

FETCH = "fetch what is missing (`git annex get`, `dvc pull`, a mount, a download)"

SHOWN = 3  # names for each reason


class LeftOut(dict[str, int]):
    """The number of entries that a scan left out for each reason, and the first names of each."""

    def __init__(self) -> None:
        self.names: dict[str, list[str]] = {}

    def add(self, reason: str, *names: str, count: int = 0) -> None:
        """Count entries with these names, or `count` entries without a name."""
        self[reason] = self.get(reason, 0) + (count or len(names))
        kept = self.names.setdefault(reason, [])
        new = names[: SHOWN - len(kept)]
        kept += [name if name.isprintable() else ascii(name)[1:-1] for name in new]

    def merge(self, other: LeftOut) -> None:
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


def list_folder(folder: str | Path) -> Listing:
    """List a folder. Hidden entries are left out, and files that are not images by their names."""
    found: dict[str, list[str]] = {IMAGE: [], FOLDER: []}
    left_out = []
    try:
        with os.scandir(os.fspath(folder)) as entries:
            for entry in entries:
                kind = _describe(entry)
                if kind in found:
                    found[kind].append(entry.name)
                else:
                    left_out.append((entry.name, kind))
    except OSError as error:
        raise UserError(f"{folder}: this folder cannot be read ({error.strerror})") from None
    return Listing(sorted(found[IMAGE]), sorted(found[FOLDER]), sorted(left_out))


def _describe(entry: os.DirEntry[str]) -> str:
    """Return IMAGE, FOLDER, or the reason to leave out an entry of a folder."""
    if entry.name[0] == ".":
        return HIDDEN
    try:
        if entry.is_file():
            if entry.name.lower().endswith(IMAGE_EXTENSIONS):
                return IMAGE
            ending = os.path.splitext(entry.name)[1].lower()
            if ending in OTHER_IMAGES:
                return f"{ending} images"
            return OTHER if ending else BARE
        if entry.is_dir():
            return FOLDER
        entry.stat()
    except OSError:
        return DANGLING
    return SPECIAL


def list_split(folder: Path) -> tuple[list[str], LeftOut]:
    """Return the class folders of a split, sorted by code point, and what is next to them."""
    listing, left_out = list_folder(folder), LeftOut()
    for name, reason in listing.left_out:
        check_link(folder / name, reason)
        left_out.add(reason, name)
    for name in listing.folders:
        if breaks_lines(name):
            raise UserError(f"{folder}: {describe_broken_name(name)}")
    if listing.images:
        left_out.add(LOOSE, *listing.images)
    return listing.folders, left_out


def check_link(path: Path, reason: str) -> None:
    """Raise UserError for a link that led to a class folder: its name is not a file's."""
    files = (*IMAGE_EXTENSIONS, *OTHER_IMAGES, *OTHER_FILES)  # a class may be called 002.Gull
    if reason == DANGLING and not path.name.lower().endswith(files):
        raise UserError(f"{path}: this class is a link to nothing; {FETCH}, or remove it")


def breaks_lines(name: str) -> bool:
    """Return True for a name that no list of classes can hold."""
    return any(sign in name for sign in "\t\n\r")


def describe_broken_name(name: str) -> str:
    return f"the class {name!r} has a tab or a line break in its name; rename the folder"


def describe_contents(root: Path, most: int = 3) -> str:
    """Return the first names in a folder, such as "cat/, dog/, notes.txt and 2 more"."""
    listing = list_folder(root)
    files = [name for name, reason in listing.left_out if reason != HIDDEN]
    names = [*(f"{name}/" for name in listing.folders), *sorted([*listing.images, *files])]
    return first_names(names, most) if names else "nothing"
