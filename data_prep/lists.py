"""im2rec's `.lst` files: find the images of a folder, number and shuffle them, write and read the
list.

A list has one line `index <tab> label <tab> relative/path` for each image, as MXNet 1.9.1 writes
it.
"""

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

    With ``recursive``, the folders are walked sorted, and each folder that holds an image gets the
    next label; without, only the root's own images count, with label 0. Raises UserError if the
    root is missing, holds no images, has a link that leads back into itself, or a name that no list
    can hold.
    """
    if not os.path.isdir(root):
        raise UserError(f"{root}: there is no such folder of images")
    found = Found([], {}, [])
    if recursive:
        for relative, files, subfolders in _walk(root, extensions):
            if files:
                label = found.classes[relative or "."] = len(found.classes)
                _add(found, relative, files, label)
            elif not subfolders:
                found.empty.append(relative or ".")
    else:
        _, files, _ = next(_walk(root, extensions))
        _add(found, "", files, 0)
    if not found.images:
        deeper = "" if recursive else " itself (--recursive looks into its subfolders, too)"
        raise UserError(
            f"{root}: no images with the extensions {' '.join(extensions)} in this folder{deeper}"
        )
    return found


def _add(found: Found, relative: str, files: list[str], label: int) -> None:
    for name in files:
        path = f"{relative}/{name}" if relative else name
        if "\t" in path or "\n" in path or "\r" in path:
            raise UserError(
                f"{path!r}: a list cannot hold a name with a tab or a line break; rename the file"
            )
        found.images.append((len(found.images), path, label))


def _walk(root: str, extensions: Sequence[str]) -> Iterator[tuple[str, list[str], list[str]]]:
    """(relative folder, sorted image files, sorted subfolders), parents before children."""
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
    """How a list is divided: into ``chunks``, each by ratio into train, val and test."""

    chunks: int = 1
    train_ratio: float = 1.0
    test_ratio: float = 0.0

    def __post_init__(self) -> None:
        if self.chunks < 1:
            raise UserError(f"--chunks {self.chunks}: there must be at least one chunk")
        if not 0 <= self.train_ratio <= 1:
            raise UserError(f"--train-ratio {self.train_ratio}: a ratio lies from 0 to 1")
        if not 0 <= self.test_ratio <= 1 or self.train_ratio + self.test_ratio > 1 + 1e-9:
            raise UserError(
                f"--test-ratio {self.test_ratio}: with --train-ratio {self.train_ratio} this is "
                "more than all images; the two may add up to 1 at most"
            )

    def divide(self, prefix: str, images: list) -> dict[Path, list]:
        """The lists to write, by path; sizes and names are those of MXNet's im2rec."""
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
    """Write the list or lists of the found images; returns how many images each path holds.

    Shuffled as ``random.seed(100)`` shuffles them; an image keeps the number from before.
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
    """Read a list whole. Raises UserError with file and line number where a line is no entry."""
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
                    f"{path}: line {number} has the index {entry.key}, which stands there "
                    "before; every image needs an index of its own"
                )
            seen.add(entry.key)
            entries.append(entry)
    return entries
