"""Looks at class folders: their classes, their images, and what does not belong there."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from data_prep.checks.problems import Problem
from rn50lib.data.folder import IMAGE_EXTENSIONS


@dataclass
class Part:
    """One split in one form: its images, their labels and, once they were read, their digests.

    ``names`` says what an image is called in a report. ``classes`` names the labels where the form
    itself knows them. ``runs`` are the tasks for the workers, as (first image, task). ``raw`` says
    that the images are pixels, not encoded. ``contents`` says how it is known that the bytes are
    those that were written: by "checksums", "compared" with another form, or not, just "decoded".
    ``root`` is the path that was given.
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


RUN = 64
"""Images in one task."""


def read_split(path: Path, split: str, problems: list[Problem]) -> Part:
    """The images of the class folders in ``path``; what is wrong with the folders is added."""
    part = Part("files", split, path)
    labels: list[int] = []
    try:
        entries = sorted(os.scandir(path), key=lambda entry: entry.name)
    except OSError as error:
        problems.append(Problem("unreadable", str(path), error.strerror or ""))
        return part
    flat = [entry.name for entry in entries if _is_image(entry)]
    if flat:
        problems.append(
            Problem("flat", str(path), f"{len(flat):,} images lie beside the class folders")
        )
    folders = [e for e in entries if _is_folder(e) and not e.name.startswith(".")]
    part.classes = tuple(entry.name for entry in folders)
    for label, folder in enumerate(folders):
        names = _images_of_class(Path(folder.path), problems)
        if not names:
            problems.append(Problem("empty-class", folder.path))
        for first in range(0, len(names), RUN):
            task = ["files", folder.path, names[first : first + RUN]]
            part.runs.append((len(part.names) + first, task))
        part.names += [os.path.join(folder.path, name) for name in names]
        labels += [label] * len(names)
    others = [e.name for e in entries if not _is_folder(e) and not _is_image(e)]
    if others:
        problems.append(Problem("other-file", str(path), _some(others)))
    part.labels = np.array(labels, np.int64)
    part.digests = np.full(len(labels), -1, np.int64)
    if not labels:
        problems.append(Problem("no-images", str(path)))
    return part


def _images_of_class(folder: Path, problems: list[Problem]) -> list[str]:
    names, others = [], []
    try:
        entries = list(os.scandir(folder))
    except OSError as error:
        problems.append(Problem("unreadable", str(folder), error.strerror or ""))
        return []
    for entry in entries:
        if _is_folder(entry):
            inside = _count_images(entry.path)
            if inside:
                problems.append(Problem("nested", entry.path, f"{inside:,} images"))
        elif _is_image(entry):
            names.append(entry.name)
        elif entry.name.lower().endswith(IMAGE_EXTENSIONS):
            problems.append(Problem("unreadable", entry.path, "not a regular file"))
        else:
            others.append(entry.name)
    if others:
        problems.append(Problem("other-file", str(folder), _some(sorted(others))))
    return sorted(names)


def _count_images(folder: str) -> int:
    return sum(
        name.lower().endswith(IMAGE_EXTENSIONS) for _, _, names in os.walk(folder) for name in names
    )


def _is_image(entry: os.DirEntry) -> bool:
    try:
        return entry.name.lower().endswith(IMAGE_EXTENSIONS) and entry.is_file()
    except OSError:
        return False


def _is_folder(entry: os.DirEntry) -> bool:
    try:
        return entry.is_dir()
    except OSError:
        return False


def _some(names: list[str]) -> str:
    shown = ", ".join(names[:3])
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3:,} more"
