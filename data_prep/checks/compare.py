"""Compare train with val: do they have the same classes, and does val hold images of train."""

from __future__ import annotations

import numpy as np

from data_prep.checks.folders import Part
from data_prep.checks.problems import Problems

FORMS = ("files", "recordio", "tfrecord")


def compare_classes(parts: list[Part], problems: Problems) -> None:
    """Compare the classes of train with those of val in each form."""
    for form in FORMS:
        splits = {part.split: part for part in parts if part.form == form and len(part)}
        if len(splits) == 2:
            _compare_splits(splits["train"], splits["val"], problems)


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


def find_repeats(parts: list[Part], problems: Problems) -> None:
    """Report the same bytes in train and val, or with several labels.

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
    leaks = []
    for group in np.split(order, borders):
        if len(group) < 2 or digests[group[0]] < 0 or not digests[group[0]] & 0x7FFFFFFF:
            continue  # unread, or empty
        text = f"the same as {names[group[0]]}"
        if in_val[group].any() and not in_val[group].all():
            leaks += [(names[i], text) for i in group if in_val[i]]
        if len(set(labels[group])) > 1:
            problems.add("conflict", names[group[-1]], f"{text}, with another label")
    kind = "few-leaks" if len(leaks) * 1000 < in_val.sum() else "leak"
    for name, text in leaks:
        problems.add(kind, name, text)
