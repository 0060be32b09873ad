"""Looks at TFRecord shards: checksums, indexes, and whether training can use the examples."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.checks.folders import Part
from data_prep.checks.images import check_image, digest
from data_prep.checks.problems import Problem
from rn50lib.data.recordfile import RecordError, read_pairs
from rn50lib.data.tfrecord import Shard, TFRecordReader, find_shards, index_path, parse_example
from rn50lib.errors import UserError

FEATURES = ("image/encoded", "image/class/label")
ANSWER_LISTS = ("offsets", "labels", "digests", "found", "problems")
RAW_FEATURES = ("height", "width", "img_raw", "label")


def read_shards(folder: Path, split: str, problems: list[Problem]) -> Part:
    """The shards of a split, one task for each."""
    part = Part("tfrecord", split, folder, contents="checksums")
    try:
        shards = find_shards(folder, split)
    except UserError as error:
        problems.append(Problem("damage", str(folder), str(error).removeprefix(f"{folder}: ")))
        return part
    for shard in shards:
        add_shard(part, shard, problems)
    return part


def add_shard(part: Part, shard: Shard, problems: list[Problem]) -> None:
    """Add one shard as a task; a missing index is said."""
    if shard.index is None:
        problems.append(Problem("no-index", str(shard.path)))
    index = str(shard.index) if shard.index else None
    part.runs.append((0, ["shard", str(shard.path), index]))


def single_shard(path: Path) -> Shard:
    """A shard by its path, with its index where there is one."""
    index = index_path(path)
    return Shard(path, index if index.exists() else None)


def expected_images(task: list) -> int:
    """About how many images a shard holds, for the progress bar: lines of the index, else 100 KB
    each.
    """
    _, path, index = task
    try:
        if index:
            return Path(index).read_bytes().count(b"\n")
        return os.path.getsize(path) // 100_000 + 1
    except OSError:
        return 1


def add_answer(part: Part, task: list, answer: dict, problems: list[Problem]) -> None:
    """Add what a worker found in a shard to the part."""
    path = task[1]
    base = len(part.names)
    part.raw |= answer["raw"]
    part.names += [f"{path}, offset {offset:,}" for offset in answer["offsets"]]
    part.labels = np.append(part.labels, np.array(answer["labels"], np.int64))
    part.digests = np.append(part.digests, np.array(answer["digests"], np.int64))
    for number, kind, text in answer["found"]:
        problems.append(Problem(kind, part.names[base + number], text))
    for kind, where, offset, text in answer["problems"]:
        problems.append(Problem(kind, where, text, offset))


# -- the worker ----------------------------------------------------------------------------------


def prepare(settings: dict[str, Any]) -> Callable[[list], dict[str, Any]]:
    """The function that checks one shard: ["shard", path, index or None]."""
    del settings

    def check(task: list) -> dict[str, Any]:
        _, path, path_index = task
        answer: dict[str, Any] = {name: [] for name in ANSWER_LISTS} | {"raw": False}
        walked = []
        try:
            for offset, data in TFRecordReader(path).records():
                walked.append(offset)
                _check_example(answer, path, offset, data)
        except RecordError as error:
            text = str(error).removeprefix(f"{path}: ").partition("; copy the file")[0]
            text = f"after {len(walked):,} good records: {text}"
            lost = os.path.getsize(path) - (error.offset or 0) if os.path.exists(path) else 0
            text += f"; {lost:,} bytes from there on were not read"
            answer["problems"].append(["damage", path, error.offset, text])
            return answer
        if path_index and (problem := _check_index(path, path_index, walked)):
            answer["problems"].append(["index", path_index, None, problem])
        return answer

    return check


def _check_index(path: str, path_index: str, offsets: list[int]) -> str | None:
    """Return what is wrong with the index of a shard whose records start at these offsets."""
    try:
        pairs = read_pairs(path_index)
    except ValueError as error:
        return f"the index {error}"
    ends = [*offsets[1:], os.path.getsize(path)]
    sizes = [end - offset for offset, end in zip(offsets, ends, strict=True)]
    if pairs.tolist() != [list(pair) for pair in zip(offsets, sizes, strict=True)]:
        return f"its {len(pairs):,} entries are not those of the {len(offsets):,} records"
    return None


def _check_example(answer: dict[str, Any], path: str, offset: int, data: bytes) -> None:
    try:
        example: dict[str, Any] = parse_example(data)  # type: ignore[assignment]
    except ValueError as error:
        answer["problems"].append(["example", path, offset, f"no tf.train.Example: {error}"])
        return
    raw = "img_raw" in example
    answer["raw"] = answer["raw"] or raw
    problem = _check_features(example, RAW_FEATURES if raw else FEATURES)
    if problem:
        answer["problems"].append(["example", path, offset, problem])
        return
    number = len(answer["offsets"])
    answer["offsets"].append(offset)
    if raw:
        (image,), (label,) = example["img_raw"], example["label"]
        (height,), (width,) = example["height"], example["width"]
        if len(image) != height * width * 3:
            text = f"{len(image):,} bytes, not {height} × {width} × 3"
            answer["problems"].append(["example", path, offset, text])
    else:
        (image,), (label,) = example["image/encoded"], example["image/class/label"]
        label -= 1  # counted from 1 here
        answer["found"] += [[number, *finding] for finding in check_image(image)]
    if not (0 <= label < 2**31 and label == int(label)):
        text = f"the label is {label}" if raw else f"the label is {label + 1}; they begin at 1"
        answer["problems"].append(["label", path, offset, text])
        label = -1
    answer["labels"].append(int(label))
    answer["digests"].append(digest(image))


def _check_features(example: dict[str, Any], names: tuple[str, ...]) -> str | None:
    """What of these features is missing or of another type."""
    for name in names:
        values = example.get(name)
        if values is None or len(values) != 1:
            count = "missing" if values is None else f"there {len(values)} times"
            return f"the feature {name} is {count}"
        wanted = bytes if name in ("image/encoded", "img_raw") else int
        if not isinstance(values[0], float if name == "label" else wanted):
            return f"the feature {name} is of another type"
    return None
