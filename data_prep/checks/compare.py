"""Compares the parts of a data set: train with val, files with records, images with images."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from data_prep.checks.folders import Part
from data_prep.checks.problems import Problem
from rn50lib.data.folder import read_class_names

IMAGENET = {"train": (1_281_167, 732, 1300), "val": (50_000, 50, 50)}
"""Images in all, fewest and most in a class, of ILSVRC 2012."""


def compare_classes(parts: list[Part], root: Path, problems: list[Problem]) -> None:
    """Train against val in each form, and each against classes.txt."""
    listed = read_class_names(root)
    for form in ("files", "recordio", "tfrecord"):
        splits = {part.split: part for part in parts if part.form == form}
        train, val = splits.get("train"), splits.get("val")
        if train is not None and val is not None and len(train) and len(val):
            _compare_splits(train, val, problems)
        for part in splits.values():
            _compare_with_list(part, listed, problems)
            _compare_with_imagenet(part, problems)


def _compare_splits(train: Part, val: Part, problems: list[Problem]) -> None:
    if train.classes is not None and val.classes is not None:
        if train.classes != val.classes:
            only = sorted(set(train.classes) ^ set(val.classes))
            text = f"{len(train.classes):,} classes in train, {len(val.classes):,} in val"
            if only:
                inside = "train" if only[0] in train.classes else "val"
                text += f"; {only[0]!r} is only in {inside}"
            else:
                text += ", the same names with other labels"
            problems.append(Problem("class-maps", str(val.path), text))
        return
    foreign = sorted(set(np.unique(val.labels)) - set(np.unique(train.labels)) - {-1})
    if foreign:
        text = f"label {foreign[0]} is in val, but train has no image of it"
        problems.append(Problem("class-maps", str(val.path), text))


def _compare_with_list(part: Part, listed: tuple[str, ...] | None, problems: list[Problem]) -> None:
    if listed is None or not len(part):
        return
    most = int(part.labels.max())
    if most >= len(listed):
        text = f"label {most} occurs, but classes.txt names {len(listed):,} classes"
        problems.append(Problem("class-list", str(part.path), text))
    elif part.classes is not None and part.classes != listed:
        pairs = zip(part.classes, listed, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        text = f"{len(part.classes):,} classes, classes.txt has {len(listed):,}"
        if first is not None:
            text = f"class {first} is {part.classes[first]!r}, in classes.txt {listed[first]!r}"
        problems.append(Problem("class-list", str(part.path), text))
    else:
        counts = np.bincount(part.labels[part.labels >= 0], minlength=len(listed))
        for label in np.flatnonzero(counts == 0):
            if part.form != "files":  # empty folders are said where they are found
                problems.append(Problem("empty-class", str(part.path), listed[label]))


def _compare_with_imagenet(part: Part, problems: list[Problem]) -> None:
    """Where the classes are ImageNet's thousand, the counts are known."""
    names = part.classes or ()
    if len(names) != 1000 or not all(re.fullmatch(r"n\d{8}", name) for name in names):
        return
    if part.split not in IMAGENET:
        return
    total, fewest, most = IMAGENET[part.split]
    counts = np.bincount(part.labels, minlength=1000)
    if len(part) != total:
        text = f"{len(part):,} images; ILSVRC 2012 has {total:,}"
        problems.append(Problem("counts", str(part.path), text))
    for label in np.flatnonzero((counts < fewest) | (counts > most)):
        text = f"{counts[label]:,} images, {fewest:,} to {most:,} are usual"
        problems.append(Problem("counts", f"{part.path}, class {names[label]}", text))


def compare_forms(parts: list[Part], problems: list[Problem]) -> None:
    """Files, records and shards of one split must hold the same images with the same labels."""
    for split in ("train", "val"):
        parts_here = [part for part in parts if part.split == split and len(part)]
        for number, other in enumerate(parts_here):
            first = next((p for p in parts_here[:number] if _same_set(p, other)), None)
            text = _difference(first, other) if first else None
            if first and text:
                text = f"compared with {first.path}, {text}"
                problems.append(Problem("forms", str(other.path), text))


def _same_set(first: Part, other: Part) -> bool:
    """Whether two parts are forms of one data set: they lie in the same folder that was given, or
    one in the other; or most of the images of one are in the other."""
    roots = first.root.resolve(), other.root.resolve()
    if roots[0] == roots[1] or roots[0] in roots[1].parents or roots[1] in roots[0].parents:
        return True
    if first.form == other.form or first.raw or other.raw:
        return False
    return 2 * np.isin(other.digests, first.digests).sum() > len(other)


def _difference(first: Part, other: Part) -> str | None:
    if len(first) != len(other):
        return f"it holds {len(other):,} images, not {len(first):,}"
    if first.raw or other.raw:
        return None  # pixels are other bytes
    unread = (first.digests < 0) | (other.digests < 0)
    foreign = np.flatnonzero((other.digests >= 0) & ~np.isin(other.digests, first.digests))
    if len(foreign) > np.count_nonzero(first.digests < 0):
        name = other.names[foreign[0]]
        return f"it holds other images: {len(foreign):,} that are not there, the first is {name}"
    if unread.any():
        return None  # what could not be read is said elsewhere
    columns = []
    for part in (first, other):
        order = np.lexsort((part.labels, part.digests))
        columns.append((part.digests[order], part.labels[order]))
    if not np.array_equal(columns[0][0], columns[1][0]):
        return "it holds other images"
    if not np.array_equal(columns[0][1], columns[1][1]):
        return "some images have other labels"
    for part in (first, other):
        if part.contents == "decoded":
            part.contents = "compared"
    return None


def find_repeats(parts: list[Part], problems: list[Problem]) -> None:
    """The same bytes in train and val, with several labels, or just several times.

    One form is enough, since the others hold the same images: files if they are there.
    """
    for form in ("files", "recordio", "tfrecord"):
        chosen = [part for part in parts if part.form == form and len(part)]
        if chosen:
            break
    else:
        return
    digests = np.concatenate([part.digests for part in chosen])
    labels = np.concatenate([part.labels for part in chosen])
    source = np.repeat(np.arange(len(chosen)), [len(part) for part in chosen])
    position = np.concatenate([np.arange(len(part)) for part in chosen])
    order = np.argsort(digests, kind="stable")
    borders = np.flatnonzero(np.diff(digests[order])) + 1
    leaks, conflicts, repeats = [], [], []
    for group in np.split(order, borders):
        if len(group) < 2 or digests[group[0]] < 0 or not digests[group[0]] & 0x7FFFFFFF:
            continue
        names = [chosen[source[i]].names[position[i]] for i in group]
        splits = {chosen[source[i]].split for i in group}
        text = f"the same as {names[0]}"
        if {"train", "val"} <= splits:
            leaks += [
                (names[k], text) for k, i in enumerate(group) if chosen[source[i]].split == "val"
            ]
        if len(set(labels[group])) > 1:
            conflicts.append((names[-1], f"{text}, with another label"))
        elif not {"train", "val"} <= splits:
            repeats += [(name, text) for name in names[1:]]
    validation = sum(len(part) for part in chosen if part.split == "val")
    kind = "few-leaks" if len(leaks) * 1000 < validation else "leak"
    problems += [Problem(kind, name, text) for name, text in leaks]
    problems += [Problem("conflict", name, text) for name, text in conflicts]
    problems += [Problem("repeated", name, text) for name, text in repeats]
