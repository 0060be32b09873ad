"""Check TFRecord shards: checksums, indexes, and whether training can use the examples."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from data_prep.verifying.folders import Part
from data_prep.verifying.images import check_files, check_image, check_records, digest
from data_prep.verifying.problems import Problems
from rn50lib.data.recordfile import RecordError, read_pairs
from rn50lib.data.source import describe_pointer
from rn50lib.data.tfrecord import TFRecordReader, find_shards, index_path, parse_example
from rn50lib.errors import UserError

FEATURES = {"image/encoded": bytes, "image/class/label": int}
RAW_FEATURES = {"height": int, "width": int, "img_raw": bytes, "label": float}


def read_shards(path: Path, split: str, problems: Problems) -> Part:
    """Return a shard, or the shards of a split in a folder, with one task for each."""
    part = Part("tfrecord", split, path, contents="checksums")
    try:
        shards = find_shards(path, split) if path.is_dir() else [path]
    except UserError as error:
        problems.add("damage", path, str(error))
        return part
    for shard in shards:
        index = index_path(shard)
        if not index.exists():
            problems.add("no-index", shard)
        part.runs.append((0, ["shard", str(shard), str(index) if index.exists() else None]))
    return part


def add_answer(part: Part, path: str, answer: dict[str, Any], problems: Problems) -> None:
    """Add to the part what a worker found in a shard."""
    base = len(part.names)
    part.names += [f"{path}, offset {offset:,}" for offset in answer["offsets"]]
    part.labels = np.append(part.labels, np.array(answer["labels"], np.int64))
    part.digests = np.append(part.digests, np.array(answer["digests"], np.int64))
    for number, kind, text in answer["found"]:
        problems.add(kind, part.names[base + number], text)
    for problem in answer["problems"]:
        problems.add(*problem)


# -- in the worker -------------------------------------------------------------------------------


def check_shard(path: str, path_index: str | None) -> dict[str, Any]:
    keys = ("offsets", "labels", "digests", "found", "problems")
    answer: dict[str, Any] = {key: [] for key in keys}
    walked = []
    try:
        for offset, data in TFRecordReader(path).records():
            walked.append(offset)
            for kind, text in _check_example(answer, offset, data):
                answer["problems"].append([kind, path, text, offset])
    except RecordError as error:
        content = Path(path).read_bytes() if os.path.exists(path) else b""
        kind = "lfs-pointer" if describe_pointer(content) else "damage"
        text = str(error).removeprefix(f"{path}: ").partition("; copy the file")[0]
        lost = len(content) - (error.offset or 0)
        text = f"after {len(walked):,} good records: {text}; {lost:,} bytes were not read"
        answer["problems"].append([kind, path, text, error.offset])
        return answer
    if path_index and (problem := _check_index(path, path_index, walked)):
        answer["problems"].append(["index", path_index, problem])
    return answer


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


def _check_example(answer: dict[str, Any], offset: int, data: bytes) -> list[tuple[str, str]]:
    """Add an example's image to the answer; return what training cannot use."""
    try:
        example: dict[str, Any] = parse_example(data)  # type: ignore[assignment]
    except ValueError as error:
        return [("example", f"not a tf.train.Example: {error}")]
    raw = "img_raw" in example
    problem = _check_features(example, RAW_FEATURES if raw else FEATURES)
    if problem:
        return [("example", problem)]
    number, problems = len(answer["offsets"]), []
    answer["offsets"].append(offset)
    if raw:
        (image,), (label,) = example["img_raw"], example["label"]
        (height,), (width,) = example["height"], example["width"]
        if len(image) != height * width * 3:
            problems.append(("example", f"{len(image):,} bytes, not {height} × {width} × 3"))
    else:
        (image,), (label,) = example["image/encoded"], example["image/class/label"]
        label -= 1  # counted from 1 here
        answer["found"] += [[number, *finding] for finding in check_image(image)]
    if not (0 <= label < 2**31 and label == int(label)):
        text = f"the label is {label}" if raw else f"the label is {label + 1}; they begin at 1"
        problems.append(("label", text))
        label = -1
    answer["labels"].append(int(label))
    answer["digests"].append(digest(image))
    return problems


def _check_features(example: dict[str, Any], types: dict[str, type]) -> str | None:
    """Return which of these features is missing or has the wrong type."""
    for name, type_ in types.items():
        values = example.get(name)
        if values is None or len(values) != 1:
            count = "missing" if values is None else f"there {len(values)} times"
            return f"the feature {name} is {count}; found {', '.join(sorted(example)) or 'none'}"
        if not isinstance(values[0], type_):
            return f"the feature {name} has the wrong type"
    return None


CHECKS: dict[str, Callable[..., dict[str, Any]]] = {
    "files": check_files,
    "records": check_records,
    "shard": check_shard,
}


def prepare(settings: None) -> Callable[[list], dict[str, Any]]:
    """Return the worker's function. A task is the name of a check and its arguments."""
    return lambda task: CHECKS[task[0]](*task[1:])
