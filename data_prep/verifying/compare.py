"""Compare train with val: do they have the same classes, and does val hold images of train."""

from __future__ import annotations

import numpy as np

from data_prep.verifying.folders import Part
from data_prep.verifying.problems import Problems
from rn50lib.data.classes import Classes, check_agreement, read_class_names
from rn50lib.errors import UserError

FORMS = {
    "files": "class folders",
    "recordio": "record files with their indexes and lists",
    "tfrecord": "shards with their indexes",
}
PARTS = ("train", "val", "records", "tfrecord")  # folders of a data root


def compare_classes(parts: list[Part], problems: Problems) -> None:
    """Compare what folders, lists, labels and `classes.txt` state about the classes of a root."""
    folders = [part.path if part.path.is_dir() else part.path.parent for part in parts]
    folders += [folder.parent for folder in folders if folder.name in PARTS]
    stated: list[Classes | None] = [part.stated_classes() for part in parts if len(part)]
    try:
        stated += map(read_class_names, dict.fromkeys(folders))
        if found := [classes for classes in stated if classes]:
            agreed = check_agreement(found)
            for part in parts:
                part.classes = part.classes or agreed
    except UserError as error:
        problems.add("class-maps", parts[0].path.parent, str(error))
        return
    for form in FORMS:
        splits = {part.split: part for part in parts if part.form == form and len(part)}
        if len(splits) == 2:
            foreign = sorted(
                {*splits["val"].labels.tolist()} - {*splits["train"].labels.tolist(), -1}
            )
            if foreign:
                text = f"label {foreign[0]} is in val, but train has no image of it"
                problems.add("class-maps", splits["val"].path, text)
        if form != "files" and (train := splits.get("train")):
            for label in np.flatnonzero(train.class_counts() == 0).tolist():
                problems.add("untrained", train.path, f"no image has the label {label}")
    compare_forms(parts, problems)


def compare_forms(parts: list[Part], problems: Problems) -> None:
    """Report records or shards that hold fewer or more images than the folders beside them."""
    folders = {part.split: part for part in parts if part.form == "files" and len(part)}
    for part in parts:
        other = folders.get(part.split)
        if part is not other and other and len(part) != len(other):
            text = f"{len(part):,} images, and {other.path} has {len(other):,}"
            problems.add("packed-before", part.path, text)


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
