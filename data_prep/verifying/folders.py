"""Check class folders: their classes and their images."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from data_prep.verifying.problems import Problems
from rn50lib.data.classes import MAX_CLASSES, Classes, unnamed
from rn50lib.data.scan import (
    DANGLING,
    HARMLESS,
    IMAGE_EXTENSIONS,
    LOOSE,
    LOST_CLASS,
    LeftOut,
    Listing,
    breaks_lines,
    describe_broken_name,
    describe_lost_class,
    is_lost_class,
    list_folder,
)
from rn50lib.errors import UserError

RUN = 64
"""Images in one task."""


@dataclass
class Part:
    """One split in one form: its images, their labels and, once they are read, their digests.

    Attributes:
        names: What each image is called in a report.
        classes: The classes by class folders, or by the list of a record file.
        runs: The tasks for the workers, as (first image, task).
        contents: The proof that the bytes are those that were written: "checksums", or none,
            "decoded".
        left_out: What the scan of the folders did not take.
    """

    form: str
    split: str
    path: Path
    names: list[str] = field(default_factory=list)
    labels: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    digests: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    classes: Classes | None = None
    runs: list[tuple[int, list]] = field(default_factory=list)
    contents: str = "decoded"
    left_out: LeftOut = field(default_factory=LeftOut)

    def __len__(self) -> int:
        return len(self.labels)

    def stated_classes(self) -> Classes:
        """Return the classes, without names if they are unknown."""
        count = min(int(self.labels.max()) + 1, MAX_CLASSES)
        return self.classes or unnamed(count, self.path, seen=True)

    def class_counts(self, classes: int = 0) -> np.ndarray:
        """Return the images of each label, at least ``classes`` long."""
        return np.bincount(self.labels[self.labels >= 0], minlength=classes)


def read_split(path: Path, split: str, problems: Problems) -> Part:
    """Return the images of the class folders in ``path``; add what is wrong with the folders."""
    part = Part("files", split, path)
    labels: list[int] = []
    top = _list(path, problems)
    if top.images:
        problems.add("flat", path, f"{len(top.images):,} images are next to the class folders")
        part.left_out.add(LOOSE, *top.images)
    part.classes = Classes(tuple(top.folders), str(path))
    for name, reason in top.left_out:
        part.left_out.add(reason, name)
        if is_lost_class(name, reason):
            problems.add("lost-class", path / name, LOST_CLASS)
        elif reason == DANGLING:
            problems.add("dangling", path / name)
    for label, name in enumerate(top.folders):
        if breaks_lines(name):
            problems.add("names", path, describe_broken_name(name))
        listing = _list(path / name, problems)
        names = listing.images
        for folder in listing.folders:
            walk = os.walk(path / name / folder)
            names_inside = (file.lower() for _, _, files in walk for file in files)
            inside = sum(file.endswith(IMAGE_EXTENSIONS) for file in names_inside)
            problems.add("nested", path / name / folder, f"{inside:,} images")
        lost = listing.lost()
        if lost:
            problems.add("lost-class", path / name, describe_lost_class(lost))
        elif not names and split == "train" and not listing.folders:
            problems.add("lost-class", path / name, "it has no images to train on")
        elif not names:
            problems.add("empty-class", path / name)
        for file, reason in listing.left_out:
            part.left_out.add(reason, f"{name}/{file}")
            if not lost and reason not in HARMLESS:
                kind = "dangling" if reason == DANGLING else "left-out"
                problems.add(kind, path / name / file)
        for first in range(0, len(names), RUN):
            task = ["files", str(path / name), names[first : first + RUN]]
            part.runs.append((len(part.names) + first, task))
        part.names += [str(path / name / image) for image in names]
        labels += [label] * len(names)
    part.labels = np.array(labels, np.int64)
    part.digests = np.full(len(labels), -1, np.int64)
    if not labels and os.access(path, os.R_OK):
        problems.add("no-images", path)
    return part


def _list(folder: Path, problems: Problems) -> Listing:
    """Return the entries of a folder; nothing, and a problem, if it cannot be read."""
    try:
        return list_folder(folder)
    except UserError as error:
        problems.add("unreadable", folder, str(error))
        return Listing([], [], [])
