"""Find in which form a folder holds ImageNet, and plan how to unpack it."""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from data_prep.devkit import DEVKIT, Devkit, read_devkit
from data_prep.unpacking import Item, safe_members
from rn50lib.data.scan import LeftOut, describe_contents, list_folder, list_split
from rn50lib.errors import UserError

TRAIN_TAR, VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
_WNID = re.compile(r"n\d{8}")

Classes = dict[str, list[Item]]
"""The images of a split by class."""


@dataclass
class Plan:
    """The work to do: the form found, the classes in label order, the tasks for the workers.

    ``words`` describes each class, ``images`` counts each split, ``expected`` has the counts that
    the devkit states, and ``left_out`` counts the entries of folders that are not taken.
    """

    form: str
    wnids: list[str] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)
    tasks: list[list] = field(default_factory=list)
    images: dict[str, int] = field(default_factory=dict)
    size: int = 0
    expected: dict[str, int] = field(default_factory=dict)
    inputs: list[Path] = field(default_factory=list)
    left_out: LeftOut = field(default_factory=LeftOut)

    def add_split(self, split: str, classes: Classes) -> None:
        self.tasks += [["items", split, wnid, classes[wnid]] for wnid in sorted(classes)]
        self.images[split] = sum(map(len, classes.values()))

    def needs(self, target: Path) -> int:
        """Return the bytes that the images will take: none if they can be linked."""
        if self.size or self.inputs[0].stat().st_dev == target.stat().st_dev:
            return self.size
        items = (item for task in self.tasks for item in task[3])
        return sum(os.stat(path).st_size for _, path in items)


def make_plan(source: Path, devkit: Path | None = None) -> Plan:
    """Look at the folder and make the plan.

    Raises UserError if the folder holds none of the forms, or nothing gives the classes of its
    validation images.
    """
    if not source.is_dir():
        raise UserError(f"{source}: there is no such folder")
    if (source / TRAIN_TAR).exists() or (source / VAL_TAR).exists():
        return _plan_archives(source, read_devkit(source, devkit))
    kaggle = _first_folder(source / "ILSVRC/Data/CLS-LOC", source / "Data/CLS-LOC")
    root = kaggle or source
    train = _first_folder(root / "train-jpeg", root / "train")
    val = _first_folder(root / "val-jpeg", root / "val")
    if train or val:
        return _plan_folders(source, root, train, val, read_devkit(source, devkit))
    raise UserError(
        f"{source}: ImageNet is not here in any form known: {TRAIN_TAR} and {VAL_TAR} with "
        f"{DEVKIT}.tar.gz, folders train-jpeg and val-jpeg, or Kaggle's ILSVRC/Data/CLS-LOC; found "
        f"{describe_contents(source)}"
    )


def _first_folder(*paths: Path) -> Path | None:
    return next((path for path in paths if path.is_dir()), None)


def _check_known(found: set[str], plan: Plan, where: str | Path) -> None:
    unknown = sorted(found - set(plan.wnids))
    if unknown:
        raise UserError(f"{where}: the class {unknown[0]} is not in the list of classes")


def _by_class(items: list[Item], class_of: Callable[[str], str]) -> Classes:
    found: Classes = {}
    for item in items:
        found.setdefault(class_of(item[0]), []).append(item)
    return found


# -- archives ------------------------------------------------------------------------------------


def _plan_archives(source: Path, kit: Devkit | None) -> Plan:
    train, val = source / TRAIN_TAR, source / VAL_TAR
    for split, archive in (("train", train), ("val", val)):
        folder = _first_folder(source / f"{split}-jpeg", source / split)
        if folder and not archive.exists():
            raise UserError(
                f"{folder}: {split} is unpacked here, and the other split is an archive; bring"
                f" {archive.name} back, unpack the other one too, or move this folder away"
            )
    plan = Plan("archives", inputs=[path for path in (train, val) if path.exists()])
    plan.size = sum(path.stat().st_size for path in plan.inputs)
    if kit:
        plan.wnids, plan.words = sorted(kit.words), kit.words
    if train.exists():
        inner = {}
        for member in safe_members(train):
            wnid, extension = os.path.splitext(member.name)
            if extension != ".tar" or not _WNID.fullmatch(wnid) or wnid in inner:
                raise UserError(
                    f"{train}: the member {member.name!r} is not a class such as n01440764.tar,"
                    " or is there twice"
                )
            inner[wnid] = ["tar", "train", wnid, str(train), member.offset_data, member.size]
        plan.wnids = plan.wnids or sorted(inner)
        _check_known(set(inner), plan, train)
        plan.tasks += [inner[wnid] for wnid in sorted(inner)]
        if kit:
            plan.expected["train"] = kit.train_images
        plan.images["train"] = plan.expected.get("train", train.stat().st_size // 115_000)
    if val.exists():
        if kit is None:
            raise UserError(
                f"{val}: the archive does not give the classes of its images; put {DEVKIT}.tar.gz "
                f"into {source}, or name it with --devkit"
            )
        items = [[m.name, str(val), m.offset_data, m.size] for m in safe_members(val)]
        plan.add_split("val", _by_class(items, lambda name: kit.class_of_val(name, val)))
        plan.expected["val"] = len(kit.truth)
    return plan


# -- folders -------------------------------------------------------------------------------------


def _plan_folders(
    source: Path, root: Path, train: Path | None, val: Path | None, kit: Devkit | None
) -> Plan:
    """Plan class folders; val may be flat, with the devkit or Kaggle's LOC_val_solution.csv."""
    splits: dict[str, Classes] = {}
    plan = Plan("class folders", inputs=[root])
    if train:
        splits["train"] = _class_folders(train, plan.left_out)
        if not splits["train"]:
            raise UserError(f"{train}: it holds no class folders such as n01440764")
    if val:
        splits["val"] = _class_folders(val, plan.left_out)
        if not splits["val"]:
            solution = _find_above(source, root, "LOC_val_solution.csv")
            splits["val"] = _flat_val(val, solution, kit, plan.left_out)
    plan.words = kit.words if kit else _read_mapping(source, root)
    plan.wnids = sorted(plan.words) or sorted({wnid for split in splits.values() for wnid in split})
    for split, classes in splits.items():
        _check_known(set(classes), plan, split)
        plan.add_split(split, classes)
        if not plan.images[split]:
            raise UserError(f"{split}: its class folders hold no image{plan.left_out.note}")
    if kit:
        plan.expected = {"train": kit.train_images, "val": len(kit.truth)}
    return plan


def _images_in(folder: Path, left_out: LeftOut) -> list[Item]:
    listing = list_folder(folder)
    for name, reason in listing.left_out:
        left_out.add(reason, f"{folder.name}/{name}")
    for name in listing.folders:
        left_out.add("folders inside class folders", f"{folder.name}/{name}")
    return [[name, str(folder / name)] for name in listing.images]


def _class_folders(folder: Path, left_out: LeftOut) -> Classes:
    names, others = list_split(folder)
    wnids = [name for name in names if _WNID.fullmatch(name)]
    if not wnids:
        return {}  # flat: `_images_in` counts what is there
    left_out.merge(others)
    foreign = [name for name in names if name not in wnids]
    if foreign:
        left_out.add("folders without the name of an ImageNet class", *foreign)
    return {wnid: _images_in(folder / wnid, left_out) for wnid in wnids}


def _flat_val(
    folder: Path, solution: Path | None, kit: Devkit | None, left_out: LeftOut
) -> Classes:
    """Return the images of a flat folder by the class that Kaggle's list or the devkit gives."""
    images = _images_in(folder, left_out)
    if not images:
        raise UserError(f"{folder}: it holds neither class folders nor images")
    if solution:
        with open(solution, newline="", encoding="utf-8") as file:
            truth = {row[0]: row[1].split(" ")[0] for row in csv.reader(file) if len(row) == 2}
        for name, _ in images:
            if not _WNID.fullmatch(truth.get(Path(name).stem, "")):
                raise UserError(f"{solution}: it does not give the class of {name}")
        return _by_class(images, lambda name: truth[Path(name).stem])
    if kit is None:
        raise UserError(
            f"{folder}: the images are in one flat folder, and nothing gives their classes; put "
            f"{DEVKIT}.tar.gz next to it, or name it with --devkit"
        )
    return _by_class(images, lambda name: kit.class_of_val(name, folder))


def _find_above(source: Path, root: Path, name: str) -> Path | None:
    folders = (source, root, *root.parents[:3])
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _read_mapping(source: Path, root: Path) -> dict[str, str]:
    """Return the words of each class from Kaggle's list, if it is there."""
    path = _find_above(source, root, "LOC_synset_mapping.txt")
    text = path.read_text(encoding="utf-8", errors="replace") if path else ""
    pairs = (line.partition(" ") for line in text.splitlines() if line)
    return {wnid: words.strip() for wnid, _, words in pairs}
