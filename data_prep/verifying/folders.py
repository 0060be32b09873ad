"""Check class folders: their classes and their images."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from data_prep.verifying.images import Images, Task
from rn50lib.data.classes import MAX_CLASSES, Classes, unnamed
from rn50lib.data.scan import (
    DANGLING,
    HIDDEN,
    IMAGE_EXTENSIONS,
    LOOSE,
    OTHER,
    LeftOut,
    Listing,
    breaks_lines,
    describe_broken_name,
    list_folder,
)
from rn50lib.errors import UserError

RUN = 64
"""Images in one task."""

HARMLESS = (HIDDEN, OTHER)  # no image is lost by leaving these out


@dataclass(kw_only=True)
class Part(Images):
    """One split in one form, and its images, once the workers have read them.

    Attributes:
        classes: The classes by class folders, or by the list of a record file.
        tasks: What the workers read.
        contents: The proof that the bytes are those that were written: "checksums", or none,
            "decoded".
        left_out: What the scan of the folders did not take.
    """

    form: str
    split: str
    path: Path
    classes: Classes | None = None
    tasks: list[Task] = field(default_factory=list)
    contents: str = "decoded"
    left_out: LeftOut = field(default_factory=LeftOut)

    def __len__(self) -> int:
        return len(self.labels)

    def extend(self, images: Images) -> None:
        self.names += images.names
        self.labels += images.labels
        self.digests += images.digests
        self.problems += images.problems

    def stated_classes(self) -> Classes:
        """Return the classes, without names if they are unknown."""
        return self.classes or unnamed(min(max(self.labels) + 1, MAX_CLASSES), self.path, seen=True)

    def class_counts(self, classes: int = 0) -> list[int]:
        """Return the images of each label, at least ``classes`` long."""
        labels = np.array([label for label in self.labels if label >= 0], np.int64)
        return np.bincount(labels, minlength=classes).tolist()


def read_split(path: Path, split: str) -> Part:
    """Return the class folders in ``path``, with a task for the images, and what is wrong."""
    part = Part(form="files", split=split, path=path)
    add = part.problems.add
    top = _list(path, part)
    if top.images:
        add("flat", path, f"{len(top.images):,} images are next to the class folders")
        part.left_out.add(LOOSE, *top.images)
    part.classes = Classes(tuple(top.folders), str(path))
    for name, reason in top.left_out:
        part.left_out.add(reason, name)
        if reason == DANGLING:
            add("dangling", path / name)
    for label, name in enumerate(top.folders):
        if breaks_lines(name):
            add("names", path, describe_broken_name(name))
        folder = path / name
        listing = _list(folder, part)
        for inner in listing.folders:
            files = (file.lower() for _, _, names in os.walk(folder / inner) for file in names)
            inside = sum(file.endswith(IMAGE_EXTENSIONS) for file in files)
            add("nested", folder / inner, f"{inside:,} images")
        if not listing.images and not listing.folders:
            add("lost-class" if split == "train" else "empty-class", folder)
        for file, reason in listing.left_out:
            part.left_out.add(reason, f"{name}/{file}")
            if reason not in HARMLESS:
                add("dangling" if reason == DANGLING else "left-out", folder / file)
        for first in range(0, len(listing.images), RUN):
            images = listing.images[first : first + RUN]
            part.tasks.append((check_files, str(folder), label, images))
    if not part.tasks and os.access(path, os.R_OK):
        add("no-images", path)
    return part


def _list(folder: Path, part: Part) -> Listing:
    """Return the entries of a folder; nothing, and a problem, if it cannot be read."""
    try:
        return list_folder(folder)
    except UserError as error:
        part.problems.add("unreadable", folder, str(error))
        return Listing([], [], [])


def check_files(found: Images, folder: str, label: int, names: list[str]) -> None:
    """Check image files of one class; runs in a worker."""
    for name in names:
        path = os.path.join(folder, name)
        try:
            if not os.path.isfile(path):
                raise OSError("not a regular file")
            with open(path, "rb", buffering=0) as file:
                data = file.read()
        except OSError as error:
            found.add(path, label, -1)
            found.problems.add("unreadable", path, error.strerror or str(error))
        else:
            found.check(path, label, data, name)
            if breaks_lines(name):
                found.problems.add("list-names", folder, f"{name!r} has a tab or a line break")
            if not path.isascii() and path != os.fsencode(path).decode(errors="replace"):
                found.problems.add("not-utf8", path)
