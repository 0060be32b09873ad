"""im2rec's `.lst` files: one line `index <tab> label <tab> relative/path` per image."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from data_prep.output import new_files
from rn50lib.errors import UserError

EXTENSIONS = (".jpeg", ".jpg", ".png")


class Entry(NamedTuple):
    """One image of a list: its key, its labels (usually one class) and its path below the root."""

    key: int
    labels: tuple[float, ...]
    path: str


@dataclass(frozen=True)
class Found:
    """The images of a folder in walking order, the labels given to folders, and empty folders."""

    images: list[tuple[int, str, int]]  # index, relative path, label
    classes: dict[str, int]
    empty: list[str]


def find_images(root: str, recursive: bool, extensions: Sequence[str] = EXTENSIONS) -> Found:
    """List the images below ``root`` in the order in which MXNet's im2rec numbers them.

    With ``recursive``, folders are walked in sorted order, and each folder that holds an image gets
    the next label; without, only the root's own images count, with label 0. Raises UserError if the
    root is missing, holds no images, contains itself by a link, or has a name with a tab.
    """
    if not os.path.isdir(root):
        raise UserError(f"{root}: there is no such folder of images")
    found = Found([], {}, [])
    for relative, files, subfolders in _walk(root, extensions):
        if files and recursive:
            found.classes[relative or "."] = len(found.classes)
        elif recursive and not subfolders:
            found.empty.append(relative or ".")
        for name in files:
            path = f"{relative}/{name}" if relative else name
            if "\t" in path or "\n" in path or "\r" in path:
                raise UserError(
                    f"{path!r}: a list cannot hold tabs or line breaks; rename the file"
                )
            found.images.append((len(found.images), path, max(0, len(found.classes) - 1)))
        if not recursive:
            break
    if not found.images:
        deeper = "" if recursive else " itself (--recursive looks into its subfolders, too)"
        raise UserError(
            f"{root}: no images with the extensions {' '.join(extensions)} in this folder{deeper}"
        )
    return found


def _walk(root: str, extensions: Sequence[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield (relative folder, sorted image files, sorted subfolders), parents first."""
    stack: list[tuple[str, tuple[str, ...]]] = [("", (os.path.realpath(root),))]
    while stack:
        relative, above = stack.pop()
        files, folders = [], []
        with os.scandir(os.path.join(root, relative)) as entries:
            for entry in entries:
                if entry.is_dir():
                    folders.append((entry.name, entry.is_symlink()))
                elif os.path.splitext(entry.name)[1].lower() in extensions and entry.is_file():
                    files.append(entry.name)
        files.sort()
        folders.sort()
        yield relative, files, [name for name, _ in folders]
        for name, is_link in reversed(folders):
            path = f"{relative}/{name}" if relative else name
            real = os.path.realpath(os.path.join(root, path)) if is_link else f"{above[-1]}/{name}"
            if real in above:
                raise UserError(
                    f"{os.path.join(root, path)}: this link leads back to a folder that it is in"
                )
            stack.append((path, (*above, real)))


@dataclass(frozen=True)
class Split:
    """The division of a list into ``chunks``, and of each by ratio into train, val and test."""

    chunks: int = 1
    train_ratio: float = 1.0
    test_ratio: float = 0.0

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise UserError(f"--chunks {self.chunks}: there must be at least one chunk")
        if not 0 <= self.train_ratio <= 1:
            raise UserError(f"--train-ratio {self.train_ratio}: use a ratio from 0 to 1")
        if not 0 <= self.test_ratio <= 1 or self.train_ratio + self.test_ratio > 1 + 1e-9:
            raise UserError(
                f"--test-ratio {self.test_ratio}: with --train-ratio {self.train_ratio} this is "
                "more than all images; the two may add up to 1 at most"
            )

    def divide(self, prefix: str, images: list) -> dict[Path, list]:
        """Return the lists to write, by path; sizes and names are those of MXNet's im2rec."""
        size = (len(images) + self.chunks - 1) // self.chunks
        lists: dict[Path, list] = {}
        for i in range(self.chunks):
            chunk = images[i * size : (i + 1) * size]
            stem = f"{prefix}_{i}" if self.chunks > 1 else prefix
            if self.train_ratio == 1.0:
                lists[Path(f"{stem}.lst")] = chunk
                continue
            train, test = int(size * self.train_ratio), int(size * self.test_ratio)
            if self.test_ratio:
                lists[Path(f"{stem}_test.lst")] = chunk[:test]
            if self.train_ratio + self.test_ratio < 1.0:
                lists[Path(f"{stem}_val.lst")] = chunk[test + train :]
            lists[Path(f"{stem}_train.lst")] = chunk[test : test + train]
        return lists


def write_lists(
    prefix: str, found: Found, shuffle: bool = True, split: Split | None = None
) -> dict[Path, int]:
    """Write the list or lists of the images found; return the number of images by path.

    The order is ``random.seed(100)``'s; an image keeps its number from before the shuffling.
    """
    images = list(found.images)
    if shuffle:
        random.Random(100).shuffle(images)
    lists = (split or Split()).divide(prefix, images)
    with new_files(*lists) as files:
        for file, chunk in zip(files, lists.values(), strict=True):
            text = "".join(f"{index}\t{label:f}\t{path}\n" for index, path, label in chunk)
            file.write(text.encode("utf-8", "surrogateescape"))
    return {path: len(chunk) for path, chunk in lists.items()}


def read_list(path: str | os.PathLike) -> list[Entry]:
    """Read a whole list. Raises UserError, with the line's number, if a line is not an entry."""
    entries = []
    seen = set()
    with open(path, encoding="utf-8", errors="surrogateescape", newline="\n") as file:
        for number, line in enumerate(file, start=1):
            fields = line.rstrip("\r\n").split("\t")
            try:
                if len(fields) < 3:
                    raise ValueError
                labels = tuple(map(float, fields[1:-1]))
                entry = Entry(int(fields[0]), labels, fields[-1])
                if not 0 <= entry.key < 1 << 64 or not entry.path:
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
