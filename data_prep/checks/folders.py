"""Check class folders: their classes, their images, and files that do not belong there."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from data_prep.checks.problems import Problems
from rn50lib.data.folder import IMAGE_EXTENSIONS

RUN = 64
"""Images in one task."""


@dataclass
class Part:
    """One split in one form: its images, their labels and, once they are read, their digests.

    Attributes:
        names: What each image is called in a report.
        classes: The names of the labels, if the form itself has them.
        runs: The tasks for the workers, as (first image, task).
        raw: True if the images are pixels, not encoded.
        contents: The proof that the bytes are those that were written: "checksums", "compared" with
            another form, or none, "decoded".
        root: The path that was given on the command line.
    """

    form: str
    split: str
    path: Path
    names: list[str] = field(default_factory=list)
    labels: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    digests: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    classes: tuple[str, ...] | None = None
    runs: list[tuple[int, list]] = field(default_factory=list)
    raw: bool = False
    contents: str = "decoded"
    root: Path = Path()

    def __len__(self) -> int:
        return len(self.labels)

    def class_counts(self, classes: int = 0) -> np.ndarray:
        """Return the images of each label, at least ``classes`` long."""
        return np.bincount(self.labels[self.labels >= 0], minlength=classes)


def read_split(path: Path, split: str, problems: Problems) -> Part:
    """Return the images of the class folders in ``path``; add what is wrong with the folders."""
    part = Part("files", split, path)
    labels: list[int] = []
    folders, images, others = _scan(path, problems)
    if images:
        problems.add("flat", path, f"{len(images):,} images are next to the class folders")
    part.classes = tuple(name for name in folders if not name.startswith("."))
    for label, name in enumerate(part.classes):
        names = _images_of_class(path / name, problems)
        if not names:
            problems.add("empty-class", path / name)
        for first in range(0, len(names), RUN):
            task = ["files", str(path / name), names[first : first + RUN]]
            part.runs.append((len(part.names) + first, task))
        part.names += [str(path / name / image) for image in names]
        labels += [label] * len(names)
    if others:
        problems.add("other-file", path, _some(others))
    part.labels = np.array(labels, np.int64)
    part.digests = np.full(len(labels), -1, np.int64)
    if not labels and os.access(path, os.R_OK):
        problems.add("no-images", path)
    return part


def _images_of_class(folder: Path, problems: Problems) -> list[str]:
    folders, images, others = _scan(folder, problems)
    for name in folders:
        inside = [n for _, _, names in os.walk(folder / name) for n in names if _is_named_image(n)]
        if inside:
            problems.add("nested", folder / name, f"{len(inside):,} images")
    for name in filter(_is_named_image, others):
        problems.add("unreadable", folder / name, "not a regular file")
    others = [name for name in others if not _is_named_image(name)]
    if others:
        problems.add("other-file", folder, _some(others))
    return images


def _scan(folder: Path, problems: Problems) -> tuple[list[str], list[str], list[str]]:
    """Return the names of folders, images and other files, each sorted."""
    found: tuple[list[str], list[str], list[str]] = ([], [], [])
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
    except OSError as error:
        problems.add("unreadable", folder, error.strerror or "")
        return found
    for entry in entries:
        try:
            is_image = _is_named_image(entry.name) and entry.is_file()
            kind = 0 if entry.is_dir() else 1 if is_image else 2
        except OSError:  # a link to itself
            kind = 2
        found[kind].append(entry.name)
    return found


def _is_named_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_EXTENSIONS)


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3:,} more"
