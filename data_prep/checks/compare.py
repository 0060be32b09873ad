"""Compare the parts of a data set: train with val, files with records, images with images."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from data_prep.checks.folders import Part
from data_prep.checks.problems import Problems
from rn50lib.data.folder import read_class_names

FORMS = ("files", "recordio", "tfrecord")


def compare_classes(parts: list[Part], root: Path, problems: Problems) -> None:
    """Compare train with val in each form, and each with classes.txt."""
    listed = read_class_names(root)
    for form in FORMS:
        splits = {part.split: part for part in parts if part.form == form and len(part)}
        if len(splits) == 2:
            _compare_splits(splits["train"], splits["val"], problems)
        for part in splits.values():
            if listed is not None:
                _compare_with_list(part, listed, problems)


def _compare_splits(train: Part, val: Part, problems: Problems) -> None:
    if train.classes is not None and val.classes is not None:
        if train.classes != val.classes:
            only = sorted(set(train.classes) ^ set(val.classes))
            text = f"{len(train.classes):,} classes in train, {len(val.classes):,} in val"
            if only:
                inside = "train" if only[0] in train.classes else "val"
                text += f"; {only[0]!r} is only in {inside}"
            else:
                text += ", the same names with different labels"
            problems.add("class-maps", val.path, text)
        return
    foreign = sorted(set(np.unique(val.labels)) - set(np.unique(train.labels)) - {-1})
    if foreign:
        text = f"label {foreign[0]} is in val, but train has no image of it"
        problems.add("class-maps", val.path, text)


def _compare_with_list(part: Part, listed: tuple[str, ...], problems: Problems) -> None:
    most = int(part.labels.max())
    if most >= len(listed):
        text = f"label {most} occurs, but classes.txt names {len(listed):,} classes"
        problems.add("class-list", part.path, text)
    elif part.classes is not None and part.classes != listed:
        pairs = zip(part.classes, listed, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
        text = f"{len(part.classes):,} classes, classes.txt has {len(listed):,}"
        if first is not None:
            text = f"class {first} is {part.classes[first]!r}, in classes.txt {listed[first]!r}"
        problems.add("class-list", part.path, text)
    elif part.form != "files":  # empty folders are already reported
        for label in np.flatnonzero(part.class_counts(len(listed)) == 0):
            problems.add("empty-class", part.path, listed[label])


def compare_forms(parts: list[Part], problems: Problems) -> None:
    """Report files, records and shards of one split with different images or labels."""
    for split in ("train", "val"):
        parts_here = [part for part in parts if part.split == split and len(part)]
        for number, other in enumerate(parts_here):
            first = next((p for p in parts_here[:number] if _same_set(p, other)), None)
            text = _difference(first, other) if first else None
            if first and text:
                problems.add("forms", other.path, f"compared with {first.path}, {text}")


def _same_set(first: Part, other: Part) -> bool:
    """Return True if two parts are forms of one data set.

    They are if one's folder is, or contains, the other's; or if they share most images.
    """
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
        return None  # pixels have other bytes
    unread = (first.digests < 0) | (other.digests < 0)
    foreign = np.flatnonzero((other.digests >= 0) & ~np.isin(other.digests, first.digests))
    if len(foreign) > np.count_nonzero(first.digests < 0):
        name = other.names[foreign[0]]
        return f"it holds {len(foreign):,} images that are not there; the first is {name}"
    if unread.any():
        return None  # what could not be read is already reported
    orders = [np.lexsort((part.labels, part.digests)) for part in (first, other)]
    if not np.array_equal(first.digests[orders[0]], other.digests[orders[1]]):
        return "it holds other images"
    if not np.array_equal(first.labels[orders[0]], other.labels[orders[1]]):
        return "some images have other labels"
    for part in (first, other):
        if part.contents == "decoded":
            part.contents = "compared"
    return None


def find_repeats(parts: list[Part], problems: Problems) -> None:
    """Report the same bytes in train and val, with several labels, or repeated.

    One form is enough, since the others hold the same images: files if they are there.
    """
    forms = [[part for part in parts if part.form == form and len(part)] for form in FORMS]
    chosen = next(filter(None, forms), None)
    if not chosen:
        return
    digests = np.concatenate([part.digests for part in chosen])
    labels = np.concatenate([part.labels for part in chosen])
    names = [name for part in chosen for name in part.names]
    in_val = np.concatenate([np.full(len(part), part.split == "val") for part in chosen])
    order = np.argsort(digests, kind="stable")
    borders = np.flatnonzero(np.diff(digests[order])) + 1
    leaks, conflicts, repeats = [], [], []
    for group in np.split(order, borders):
        if len(group) < 2 or digests[group[0]] < 0 or not digests[group[0]] & 0x7FFFFFFF:
            continue
        text = f"the same as {names[group[0]]}"
        is_leak = in_val[group].any() and not in_val[group].all()
        if is_leak:
            leaks += [(names[i], text) for i in group if in_val[i]]
        if len(set(labels[group])) > 1:
            conflicts.append((names[group[-1]], f"{text}, with another label"))
        elif not is_leak:
            repeats += [(names[i], text) for i in group[1:]]
    kind = "few-leaks" if len(leaks) * 1000 < in_val.sum() else "leak"
    for title, found in ((kind, leaks), ("conflict", conflicts), ("repeated", repeats)):
        for name, text in found:
            problems.add(title, name, text)
