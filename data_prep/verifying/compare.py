"""Compare train with val: do they have the same classes, and does val hold images of train."""

from __future__ import annotations

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
    filled = [part for part in parts if len(part)]
    named = {(part.form, part.split): part for part in filled}
    stated: list[Classes | None] = [part.stated_classes() for part in filled]
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
        train, val = named.get((form, "train")), named.get((form, "val"))
        if train and val and (foreign := {*val.labels} - {*train.labels, -1}):
            text = f"label {min(foreign)} is in val, but train has no image of it"
            problems.add("class-maps", val.path, text)
        if form != "files" and train:
            for label, count in enumerate(train.class_counts()):
                if not count:
                    problems.add("untrained", train.path, f"no image has the label {label}")
    for part in parts:  # the records or shards may be older than the folders
        other = named.get(("files", part.split), part)
        if len(part) != len(other):
            text = f"{len(part):,} images, and {other.path} has {len(other):,}"
            problems.add("packed-before", part.path, text)
        elif labels_differ(part, other):
            text = f"its labels are not those of {other.path}"
            problems.add("packed-before", part.path, text)


def labels_differ(part: Part, other: Part) -> bool:
    """Return True if the labels of two parts with as many images differ.

    Labels are compared image by image if the bytes are the same, otherwise by how many there are.
    """
    pairs = [sorted(zip(one.digests, one.labels, strict=True)) for one in (part, other)]
    if [digest for digest, _ in pairs[0]] == [digest for digest, _ in pairs[1]]:
        return pairs[0] != pairs[1]
    return sorted(part.labels) != sorted(other.labels)  # they were encoded again


def one_form(parts: list[Part]) -> list[Part]:
    """Return the first form that has each split of a root: the others hold the same images.

    If no form has both, return all parts that are not empty.
    """
    filled = [part for part in parts if len(part)]
    forms = [[part for part in filled if part.form == form] for form in FORMS]
    splits = {part.split for part in filled}
    return next((form for form in forms if {part.split for part in form} == splits), filled)


def find_repeats(parts: list[Part], problems: Problems) -> None:
    """Report the same bytes in train and val, or with several labels."""
    chosen = sorted(parts, key=lambda part: part.split)  # train first
    first: dict[int, tuple[str, int, Part]] = {}
    leaks = []
    for part in chosen:
        twice = []
        for name, label, digest in zip(part.names, part.labels, part.digests, strict=True):
            if digest <= 0:
                continue  # unread, or empty
            other, other_label, before = first.setdefault(digest, (name, label, part))
            if before.split != part.split:
                leaks.append((name, f"the same as {other}"))
            elif before is part and label == other_label and name != other:
                twice.append((name, f"the same as {other}"))
            if label != other_label:
                problems.add("conflict", name, f"the same as {other}, with another label")
        for name, text in twice:
            problems.add("twice", name, text)
    validated = sum(len(part) for part in chosen if part.split == "val")
    kind = "few-leaks" if len(leaks) * 1000 < validated else "leak"
    for name, text in leaks:
        problems.add(kind, name, text)
