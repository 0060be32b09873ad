"""Check class folders: their classes and their images."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from data_prep.checks.problems import Problems
from rn50lib.data.source import IMAGE_EXTENSIONS

RUN = 64
"""Images in one task."""


@dataclass
class Part:
    """One split in one form: its images, their labels and, once they are read, their digests.

    Attributes:
        names: What each image is called in a report.
        classes: The names of the labels, if the form itself has them.
        runs: The tasks for the workers, as (first image, task).
        contents: The proof that the bytes are those that were written: "checksums", or none,
            "decoded".
    """

    form: str
    split: str
    path: Path
    names: list[str] = field(default_factory=list)
    labels: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    digests: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    classes: tuple[str, ...] | None = None
    runs: list[tuple[int, list]] = field(default_factory=list)
    contents: str = "decoded"

    def __len__(self) -> int:
        return len(self.labels)

    def class_counts(self, classes: int = 0) -> np.ndarray:
        """Return the images of each label, at least ``classes`` long."""
        return np.bincount(self.labels[self.labels >= 0], minlength=classes)


def read_split(path: Path, split: str, problems: Problems) -> Part:
    """Return the images of the class folders in ``path``; add what is wrong with the folders."""
    part = Part("files", split, path)
    labels: list[int] = []
    folders, images = _scan(path, problems)
    if images:
        problems.add("flat", path, f"{len(images):,} images are next to the class folders")
    part.classes = tuple(name for name in folders if not name.startswith("."))
    for label, name in enumerate(part.classes):
        inner, names = _scan(path / name, problems)
        for folder in inner:
            walk = os.walk(path / name / folder)
            inside = [file for _, _, files in walk for file in files if _is_named_image(file)]
            if inside:
                problems.add("nested", path / name / folder, f"{len(inside):,} images")
        if not names:
            problems.add("empty-class", path / name)
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


def _scan(folder: Path, problems: Problems) -> tuple[list[str], list[str]]:
    """Return the names of folders and of images, each sorted."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        problems.add("unreadable", folder, error.strerror or "")
        return [], []
    folders = [entry.name for entry in entries if os.path.isdir(entry)]
    images = {entry.name for entry in entries if _is_named_image(entry.name)} - set(folders)
    return folders, sorted(images)


def _is_named_image(name: str) -> bool:
    return name.lower().endswith(IMAGE_EXTENSIONS)
