"""im2rec's `.lst` files: one line `index <tab> label <tab> relative/path` per image."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from data_prep.output import new_files
from rn50lib.data.classes import MAX_CLASSES, Classes, read_class_rows
from rn50lib.data.scan import (
    IMAGE_EXTENSIONS,
    LOOSE,
    LeftOut,
    Listing,
    breaks_lines,
    check_link,
    list_folder,
)
from rn50lib.errors import UserError
from rn50lib.files import write_file


class Entry(NamedTuple):
    """One image of a list: its key, its labels (usually one class) and its path below the root."""

    key: int
    labels: tuple[float, ...]
    path: str


@dataclass(frozen=True)
class Found:
    """The images of a folder in walking order, the labels given to folders, and all others."""

    images: list[tuple[int, str, int]]  # index, relative path, label
    classes: dict[str, int]
    empty: list[str]
    left_out: LeftOut

    def to_classes(self, origin: str) -> Classes | None:
        """Return the classes of the folder `origin`; None if the folders do not name them."""
        folders = ((label, "" if name == "." else name) for name, label in self.classes.items())
        return classes_of_folders(folders, origin)


def find_images(root: str, recursive: bool) -> Found:
    """List the images below ``root`` in the order in which MXNet's im2rec numbers them.

    With ``recursive``, folders are walked in sorted order, and each folder that holds an image gets
    the next label, and images next to the class folders are left out, which MXNet makes a class of
    their own; without, only the root's own images count, with label 0. Hidden files and folders are
    left out. Raises UserError if the root is missing, holds no images, contains itself
    by a link, or has a name with a tab.
    """
    if not os.path.isdir(root):
        raise UserError(f"{root}: there is no such folder of images")
    found = Found([], {}, [], LeftOut())
    for relative, listing in _walk(root):
        files = listing.images
        for name, reason in listing.left_out:
            if recursive and listing.folders:
                check_link(Path(root, relative, name), reason)
            found.left_out.add(reason, os.path.join(relative, name))
        if files and recursive and listing.folders and not relative:  # not a class of their own
            found.left_out.add(LOOSE, *files)
            files = []
        if files and recursive:
            found.classes[relative or "."] = len(found.classes)
        elif recursive and not listing.folders:
            found.empty.append(relative or ".")
        for name in files:
            path = f"{relative}/{name}" if relative else name
            if breaks_lines(path):
                raise UserError(
                    f"{path!r}: a list cannot hold tabs or line breaks; rename the file"
                )
            found.images.append((len(found.images), path, max(0, len(found.classes) - 1)))
        if not recursive:
            break
    if not found.images:
        unsorted = ""
        if LOOSE in found.left_out:
            unsorted = ": sort them into one folder for each class, or leave out --recursive"
        deeper = "" if recursive else " itself (--recursive looks into its subfolders, too)"
        raise UserError(
            f"{root}: no images with the extensions {' '.join(IMAGE_EXTENSIONS)} in this"
            f" folder{deeper}{found.left_out.note}{unsorted}"
        )
    return found


def _walk(root: str) -> Iterator[tuple[str, Listing]]:
    """Yield (relative folder, its entries), parents first."""
    stack: list[tuple[str, tuple[str, ...]]] = [("", (os.path.realpath(root),))]
    while stack:
        relative, above = stack.pop()
        listing = list_folder(os.path.join(root, relative))
        yield relative, listing
        for name in reversed(listing.folders):
            path = f"{relative}/{name}" if relative else name
            is_link = os.path.islink(os.path.join(root, path))
            real = os.path.realpath(os.path.join(root, path)) if is_link else f"{above[-1]}/{name}"
            if real in above:
                raise UserError(
                    f"{os.path.join(root, path)}: this link leads back to a folder that it is in"
                )
            stack.append((path, (*above, real)))


def write_list(path: Path, found: Found) -> None:
    """Write the list of the images found.

    The order is ``random.seed(100)``'s; an image keeps its number from before the shuffling.
    """
    images = list(found.images)
    random.Random(100).shuffle(images)
    with new_files(path) as (file,):
        text = "".join(f"{index}\t{label:f}\t{name}\n" for index, name, label in images)
        file.write(text.encode("utf-8", "surrogateescape"))
    _whole(path).unlink(missing_ok=True)  # an earlier list's


def _whole(path: Path) -> Path:
    return path.with_name(f"{path.name}.all")


def take_off(path: Path, root: str, images: set[str]) -> None:
    """Remove the lines of some images of `root`; PATH.all keeps the first list."""
    if not _whole(path).exists():
        shutil.copy2(path, _whole(path))
    above, names = os.fsencode(root), {*map(os.fsencode, images)}
    with open(path, "rb") as old, new_files(path) as (new,):
        for line in old:
            if os.path.join(above, line.rstrip(b"\r\n").split(b"\t")[-1]) not in names:
                new.write(line)


def read_list(path: str | os.PathLike) -> list[Entry]:
    """Read a whole list. Raises UserError, with the line's number, if a line is not an entry."""
    entries = []
    seen = set()
    with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            if not line.strip():
                continue  # an editor's, at the end
            try:
                key, *labels, image = line.rstrip("\r\n").split("\t")
                entry = Entry(int(key), tuple(map(float, labels)), image)
                if not (labels and image and 0 <= entry.key < 1 << 64):
                    raise ValueError
            except ValueError:
                raise UserError(
                    f"{path}: line {number} is {line.rstrip()[:80]!r}, not `index <tab> label "
                    "<tab> path`; make the list again with --list"
                ) from None
            if entry.key in seen:
                raise UserError(
                    f"{path}: line {number} has the index {entry.key} of an earlier line; "
                    "give every image its own"
                )
            seen.add(entry.key)
            entries.append(entry)
    return entries


# -- classes -------------------------------------------------------------------------------------


def classes_of_list(path: Path, entries: list[Entry]) -> Classes | None:
    """Return the classes of the list at `path`; None unless each folder of images is one class."""
    folders = {(entry.labels, os.path.dirname(entry.path)) for entry in entries}
    for labels, _ in folders:
        if len(labels) != 1 or not labels[0].is_integer() or not 0 <= labels[0] < MAX_CLASSES:
            return None
    return classes_of_folders(((int(label), folder) for (label,), folder in folders), path)


def classes_of_folders(
    folders: Iterable[tuple[int, str]], origin: str | os.PathLike[str]
) -> Classes | None:
    """Return the classes of (label, folder) pairs; None unless each folder is one class."""
    pairs = sorted(set(folders))
    names = [folder.rpartition("/")[2] for _, folder in pairs]
    if len(set(names)) < len(names):
        names = [folder for _, folder in pairs]
    labels = [label for label, _ in pairs]
    if not pairs or "" in names or len({*labels}) < len(pairs) or len({*names}) < len(pairs):
        return None
    by_label = dict(zip(labels, names, strict=True))
    found = tuple(by_label.get(label) for label in range(labels[-1] + 1))
    return Classes(found, os.fspath(origin), seen=True)


def read_words(folder: Path) -> dict[str, str]:
    """Return name -> words from `classes.txt` of a folder, or of the one above."""
    rows = read_class_rows(folder) or read_class_rows(folder.parent) or []
    return {row[1]: row[2] for row in rows if len(row) > 2}


def write_classes(folder: Path, names: Iterable[str], words: Mapping[str, str]) -> None:
    """Write `classes.txt`: index, name and words of each class. Raises UserError."""
    lines = [f"{i}\t{name}\t{words.get(name, '')}\n" for i, name in enumerate(names)]
    for line in lines:
        if line.count("\t") > 2 or line.count("\n") > 1:
            raise UserError(
                f"{folder / 'classes.txt'}: {line!r}: it cannot hold tabs or line breaks; rename"
                " the class"
            )
    write_file(folder / "classes.txt", "".join(lines).encode("utf-8", "surrogateescape"))


def other_list(path: Path) -> Path | None:
    """Return val.lst for train.lst and train.lst for val.lst, if it is there."""
    for one, other in (("train", "val"), ("val", "train")):
        if path.stem.endswith(one):
            found = path.with_name(f"{path.stem.removesuffix(one)}{other}.lst")
            return found if found.is_file() else None
    return None
