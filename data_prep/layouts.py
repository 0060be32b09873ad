"""Finds out in which of its forms ImageNet lies in a folder, and how to unpack it."""

from __future__ import annotations

import csv
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from data_prep.devkit import DEVKIT, Devkit, read_devkit
from data_prep.unpacking import class_of_tar, name_and_class, open_parquet, safe_members
from rn50lib.data.folder import IMAGE_EXTENSIONS
from rn50lib.errors import UserError

TRAIN_TAR, VAL_TAR = "ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar"
_WNID = re.compile(r"n\d{8}")


@dataclass
class Plan:
    """What is to be done: the form found, the classes in label order, the tasks for the workers.

    ``words`` says what a class is in words, ``expected`` how many images of a split there must be,
    where that is known. ``archives`` are the files whose checksums are known.
    """

    form: str
    wnids: list[str] = field(default_factory=list)
    words: dict[str, str] = field(default_factory=dict)
    tasks: list[list] = field(default_factory=list)
    images: dict[str, int] = field(default_factory=dict)
    size: int = 0
    expected: dict[str, int] = field(default_factory=dict)
    archives: list[Path] = field(default_factory=list)
    inputs: list[Path] = field(default_factory=list)


def make_plan(source: Path, devkit: Path | None = None) -> Plan:
    """Look at the folder and make the plan.

    Raises UserError if the folder holds none of the forms, or nothing says the classes of its
    validation images.
    """
    if not source.is_dir():
        raise UserError(f"{source}: there is no such folder")
    kaggle = _first_folder(source / "ILSVRC/Data/CLS-LOC", source / "Data/CLS-LOC")
    shards = {split: _parquet_shards(source, split) for split in ("train", "validation")}
    if (source / TRAIN_TAR).exists() or (source / VAL_TAR).exists():
        return _plan_archives(source, read_devkit(source, devkit))
    if any(shards.values()):
        return _plan_parquet(source, shards, devkit)
    if kaggle:
        return _plan_kaggle(source, kaggle, devkit)
    train = _first_folder(source / "train-jpeg", source / "train")
    val = _first_folder(source / "val-jpeg", source / "val")
    if train or val:
        kit = read_devkit(source, devkit)
        plan = _plan_folders("class folders", train, val, kit.words if kit else {}, kit)
        plan.inputs.append(source)
        return plan
    raise UserError(
        f"{source}: ImageNet is not here in any form known: {TRAIN_TAR} and {VAL_TAR} with "
        f"{DEVKIT}.tar.gz, folders train-jpeg and val-jpeg, Kaggle's ILSVRC/Data/CLS-LOC, or "
        "Hugging Face's parquet files"
    )


def _first_folder(*paths: Path) -> Path | None:
    return next((path for path in paths if path.is_dir()), None)


# -- the forms -----------------------------------------------------------------------------------


def _plan_archives(source: Path, kit: Devkit | None) -> Plan:
    plan = Plan("archives")
    train, val = source / TRAIN_TAR, source / VAL_TAR
    if kit:
        plan.wnids, plan.words = sorted(kit.words), kit.words
    if train.exists():
        plan.archives.append(train)
        inner = {}
        for member in safe_members(train):
            wnid = class_of_tar(member.name)
            if wnid is None:
                raise UserError(
                    f"{train}: the member {member.name!r} is no class, as n01440764.tar is"
                )
            inner[wnid] = member
        plan.wnids = plan.wnids or sorted(inner)
        _check_known(sorted(inner), plan.wnids, train)
        for wnid in sorted(inner):
            offset, size = inner[wnid].offset_data, inner[wnid].size
            plan.tasks.append(["tar", "train", wnid, str(train), offset, size])
        plan.size += train.stat().st_size
        if kit and any(kit.train_images.values()):
            plan.expected["train"] = sum(kit.train_images.values())
        plan.images["train"] = plan.expected.get("train", train.stat().st_size // 115_000)
    if val.exists():
        plan.archives.append(val)
        if kit is None:
            raise UserError(
                f"{val}: the archive does not say the classes of its images; put {DEVKIT}.tar.gz "
                f"into {source}, or name it with --devkit"
            )
        by_class: dict[str, list] = {}
        for member in safe_members(val):
            wnid = kit.class_of_val(member.name, val)
            by_class.setdefault(wnid, []).append(
                [member.name, str(val), member.offset_data, member.size]
            )
        plan.tasks += [["items", "val", wnid, by_class[wnid]] for wnid in sorted(by_class)]
        plan.images["val"] = sum(map(len, by_class.values()))
        plan.expected["val"] = len(kit.truth)
        plan.size += val.stat().st_size
    plan.inputs += plan.archives
    return plan


def _check_known(found: list[str], known: list[str], where: Path) -> None:
    strange = sorted(set(found) - set(known))
    if strange:
        raise UserError(f"{where}: the class {strange[0]} is not in the list of classes")


def _plan_folders(
    form: str, train: Path | None, val: Path | None, words: dict[str, str], kit: Devkit | None
) -> Plan:
    """Class folders, or flat validation images whose classes the devkit tells."""
    plan = Plan(form, words=words)
    folders: dict[str, dict[str, list]] = {}
    if train:
        folders["train"] = _class_folders(train)
        if not folders["train"]:
            raise UserError(f"{train}: it holds no class folders, as n01440764 is one")
    if val:
        folders["val"] = _class_folders(val) or _flat_val(val, kit)
    _fill(plan, folders)
    if kit:
        plan.expected = {"train": sum(kit.train_images.values()), "val": len(kit.truth)}
    return plan


def _fill(plan: Plan, folders: dict[str, dict[str, list]]) -> None:
    """Classes and tasks from split → class → [name, path]."""
    found = {wnid for split in folders.values() for wnid in split}
    plan.wnids = sorted(plan.words) or sorted(found)
    for split, classes in folders.items():
        _check_known(sorted(classes), plan.wnids, Path(split))
        plan.tasks += [["links", split, wnid, classes[wnid]] for wnid in sorted(classes)]
        plan.images[split] = sum(map(len, classes.values()))


def _images_in(folder: Path) -> list[list[str]]:
    names = [e.name for e in os.scandir(folder) if e.name.lower().endswith(IMAGE_EXTENSIONS)]
    return [[name, str(folder / name)] for name in sorted(names)]


def _class_folders(folder: Path) -> dict[str, list]:
    classes = [e.name for e in os.scandir(folder) if e.is_dir() and _WNID.fullmatch(e.name)]
    return {wnid: _images_in(folder / wnid) for wnid in sorted(classes)}


def _flat_val(folder: Path, kit: Devkit | None) -> dict[str, list]:
    images = _images_in(folder)
    if not images:
        raise UserError(f"{folder}: it holds neither class folders nor images")
    if kit is None:
        raise UserError(
            f"{folder}: the images lie flat in this folder, and nothing says their classes; put "
            f"{DEVKIT}.tar.gz beside it, or name it with --devkit"
        )
    found: dict[str, list] = {}
    for name, path in images:
        found.setdefault(kit.class_of_val(name, folder), []).append([name, path])
    return found


def _plan_kaggle(source: Path, root: Path, devkit: Path | None) -> Plan:
    """Kaggle's tree: class folders for train, flat val with LOC_val_solution.csv."""
    folders = {}
    if (root / "train").is_dir():
        folders["train"] = _class_folders(root / "train")
    if (root / "val").is_dir():
        solution = _beside(source, root, "LOC_val_solution.csv")
        if solution:
            folders["val"] = _kaggle_val(root / "val", solution)
        else:
            kit = read_devkit(source, devkit)
            classes = _class_folders(root / "val")
            folders["val"] = classes or _flat_val(root / "val", kit)
    plan = Plan("Kaggle's tree", words=_read_mapping(source, root))
    _fill(plan, folders)
    plan.inputs.append(root)
    return plan


def _beside(source: Path, root: Path, name: str) -> Path | None:
    folders = (source, root, *root.parents[:3])
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _read_mapping(source: Path, root: Path) -> dict[str, str]:
    """Class → its words, from Kaggle's list where there is one."""
    path = _beside(source, root, "LOC_synset_mapping.txt")
    text = path.read_text(encoding="utf-8", errors="replace") if path else ""
    pairs = (line.partition(" ") for line in text.splitlines() if line)
    return {wnid: words.strip() for wnid, _, words in pairs}


def _kaggle_val(folder: Path, solution: Path) -> dict[str, list]:
    found: dict[str, list] = {}
    truth = {}
    with open(solution, newline="", encoding="utf-8") as file:
        for row in csv.reader(file):
            if len(row) == 2 and row[0] != "ImageId":
                truth[row[0]] = row[1].split(" ")[0]
    for name, path in _images_in(folder):
        wnid = truth.get(os.path.splitext(name)[0], "")
        if not _WNID.fullmatch(wnid):
            raise UserError(f"{solution}: it does not say the class of {name}")
        found.setdefault(wnid, []).append([name, path])
    return found


def _parquet_shards(source: Path, split: str) -> list[Path]:
    for folder in (source, source / "data"):
        found = sorted(folder.glob(f"{split}-*.parquet"))
        if found:
            return found
    return []


def _plan_parquet(source: Path, shards: dict[str, list[Path]], devkit: Path | None) -> Plan:
    """Hugging Face's shards; their label is the rank of the class already."""
    plan = Plan("parquet shards")
    kit = read_devkit(source, devkit)
    plan.words = kit.words if kit else _read_mapping(source, source)
    plan.wnids = sorted(plan.words) or _classes_of_shards(shards)
    for split, name in (("train", "train"), ("validation", "val")):
        for path in shards[split]:
            plan.images[name] = plan.images.get(name, 0) + open_parquet(path).metadata.num_rows
            plan.tasks.append(["parquet", name, str(path)])
            plan.size += path.stat().st_size
            plan.inputs.append(path)
    return plan


def _classes_of_shards(shards: dict[str, list[Path]]) -> list[str]:
    """The classes from the names of the images, which end with them; read from all shards."""
    found: dict[int, str] = {}
    for path in [*shards["validation"], *shards["train"]]:
        file = open_parquet(path)
        for batch in file.iter_batches(columns=["image.path", "label"], batch_size=4096):
            for row in batch.to_pylist():
                _, wnid = name_and_class(row["image"]["path"] or "", str(path))
                if wnid is None:
                    raise UserError(
                        f"{path}: the names of its images do not say their classes; put "
                        f"{DEVKIT}.tar.gz or LOC_synset_mapping.txt beside the shards"
                    )
                if found.setdefault(row["label"], wnid) != wnid:
                    raise UserError(
                        f"{path}: label {row['label']} is both {found[row['label']]} and {wnid}"
                    )
    wnids = [found[label] for label in sorted(found)]
    if wnids != sorted(wnids) or sorted(found) != list(range(len(found))):
        raise UserError(
            "the labels of these shards are not the ranks of their classes; these are not the "
            "shards of the data set imagenet-1k"
        )
    return wnids
