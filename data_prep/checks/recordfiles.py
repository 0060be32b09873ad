"""Looks at a record file with its index, list and checksums: what is damaged, do they fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from data_prep.checks.folders import RUN, Part
from data_prep.checks.problems import Problem
from data_prep.lists import read_list
from rn50lib.data.recordfile import MappedFile, RecordError
from rn50lib.data.recordio import (
    HEADER,
    MAGIC_BYTES,
    Damage,
    Span,
    checksum_path,
    checksum_remedy,
    join,
    locate,
    read_checksums,
    read_index,
    unpack_header,
)
from rn50lib.errors import UserError


def read_record_file(path: Path, split: str, problems: list[Problem]) -> Part:
    """The records of PREFIX.rec, compared with PREFIX.idx, .lst and .crc; damage is passed over."""
    part = Part("recordio", split, path)
    try:
        file = MappedFile(str(path))
        data = file.data()
    except RecordError as error:
        problems.append(Problem("damage", str(path), str(error).removeprefix(f"{path}: ")))
        return part
    starts: list[int] = []
    keys: list[int] = []
    labels: list[float] = []
    offset = 0
    while offset < file.size:
        try:
            span = locate(data, offset, file.size)
        except Damage as damage:
            following = _next_record(data, offset, file.size)
            lost = (following or file.size) - offset
            text = f"after {len(starts):,} good records: {damage.reason}; {lost:,} bytes are lost"
            problems.append(Problem("damage", str(path), text, offset))
            if following is None:
                break
            offset = following
            continue
        is_followed = span.end == file.size or data[span.end : span.end + 4] == MAGIC_BYTES
        if is_followed and any(data[span.parts[-1][1] : span.end]):
            text = "the bytes that fill it up to a multiple of four are not zero"
            problems.append(Problem("damage", str(path), text, offset))
        label = _read_header(data, span, path, offset, problems)
        if label is not None:
            starts.append(offset)
            keys.append(label[0])
            labels.append(label[1])
        offset = span.end
    if not starts:
        problems.append(Problem("no-images", str(path)))
    part.names = [
        f"{path}, key {key}, offset {start:,}" for key, start in zip(keys, starts, strict=True)
    ]
    part.labels = _classes(np.array(labels, np.float64), part.names, problems)
    part.digests = np.full(len(starts), -1, np.int64)
    checksums = _checksums(path, starts, problems)
    part.contents = "checksums" if checksums else "decoded"
    images = [(start, checksums.get(start)) for start in starts]
    part.runs = [
        (first, ["records", str(path), images[first : first + RUN]])
        for first in range(0, len(starts), RUN)
    ]
    _check_index(path, np.array(starts, np.int64), keys, problems)
    part.classes = _check_list(path, dict(zip(keys, labels, strict=True)), problems)
    return part


def _checksums(path: Path, starts: list[int], problems: list[Problem]) -> dict[int, int]:
    """Offset → checksum of the records, from PREFIX.crc; nothing where that is of no use."""
    path_crc = checksum_path(path)
    try:
        pairs = read_checksums(path)
    except RecordError as error:
        text = str(error).removeprefix(f"{path_crc}: ")
        problems.append(Problem("checksum-file", str(path_crc), text))
        return {}
    if pairs is None:
        problems.append(Problem("no-checksums", str(path)))
        return {}
    found: dict[int, int] = dict(pairs.tolist())
    fitting = sum(start in found for start in starts)
    if 2 * fitting < max(len(found), len(starts)):
        text = f"most records of {path} start elsewhere than here; {checksum_remedy(path)}"
        problems.append(Problem("checksum-file", str(path_crc), text))
        return {}
    if fitting < len(starts):
        text = f"it lacks {len(starts) - fitting:,} of the {len(starts):,} records"
        problems.append(Problem("checksum-file", str(path_crc), f"{text}; {checksum_remedy(path)}"))
    return found


def _next_record(data: Any, offset: int, size: int) -> int | None:
    """Where, behind damage, the next record starts: a magic, a record, and another or the end."""
    at = offset + 4
    while (at := data.find(MAGIC_BYTES, at)) >= 0:
        if at % 4 == 0:
            try:
                end = locate(data, at, size).end
                if end == size or data[end : end + 4] == MAGIC_BYTES:
                    return at
            except Damage:
                pass
        at += 1
    return None


def _read_header(
    data: Any, span: Span, path: Path, offset: int, problems: list[Problem]
) -> tuple[int, float] | None:
    """(key, label) of a record; NaN for several labels. The image itself is not read."""
    start, stop = span.parts[0]
    if len(span.parts) == 1 and stop - start >= HEADER.size:
        flag, value, key, _ = HEADER.unpack_from(data, start)
        if flag == 0:
            return key, value
    try:
        header, _ = unpack_header(join(data, span))
    except RecordError as error:
        problems.append(Problem("damage", str(path), str(error), offset))
        return None
    if isinstance(header.label, float):
        return header.id, header.label
    return header.id, header.label[0] if len(header.label) == 1 else float("nan")


def _classes(labels: np.ndarray, names: list[str], problems: list[Problem]) -> np.ndarray:
    """The labels as classes, -1 where one is none."""
    good = (labels >= 0) & (labels < 2**31) & (labels == np.floor(labels))
    for i in np.flatnonzero(~good):
        text = "several labels" if np.isnan(labels[i]) else f"the label is {labels[i]:g}"
        problems.append(Problem("label", names[i], text))
    return np.where(good, labels, -1).astype(np.int64)


def _check_index(path: Path, starts: np.ndarray, keys: list[int], problems: list[Problem]) -> None:
    path_idx = path.with_suffix(".idx")
    if not path_idx.exists():
        problems.append(Problem("no-index", str(path)))
        return
    try:
        index_keys, offsets = read_index(path_idx, path)
    except RecordError as error:
        problems.append(Problem("index", str(path_idx), str(error).removeprefix(f"{path_idx}: ")))
        return
    wrong = ~np.isin(offsets, starts)
    for i in np.flatnonzero(wrong)[:100]:
        text = f"key {index_keys[i]}: no record starts there"
        problems.append(Problem("index", str(path_idx), text, int(offsets[i])))
    missing = starts[~np.isin(starts, offsets)]
    if len(missing):
        text = f"it leaves out {len(missing):,} records, the first at this offset"
        problems.append(Problem("index", str(path_idx), text, int(missing[0])))
    by_offset = dict(zip(starts.tolist(), keys, strict=True))
    counted = np.array_equal(np.sort(index_keys), np.arange(len(index_keys)))
    if not counted:
        pairs = zip(offsets.tolist(), index_keys.tolist(), strict=True)
        bad = [(offset, key) for offset, key in pairs if by_offset.get(offset, key) != key]
        for offset, key in bad[:100]:
            text = f"it says key {key}, the record's id is {by_offset[offset]}"
            problems.append(Problem("index", str(path_idx), text, offset))


def _check_list(
    path: Path, labels: dict[int, float], problems: list[Problem]
) -> tuple[str, ...] | None:
    """Compare with PREFIX.lst, if it is there; returns the names of the classes that it tells."""
    path_lst = path.with_suffix(".lst")
    if not path_lst.exists():
        return None
    try:
        entries = read_list(path_lst)
    except (UserError, OSError) as error:
        problems.append(Problem("list", str(path_lst), str(error).removeprefix(f"{path_lst}: ")))
        return None
    missing = [entry for entry in entries if entry.key not in labels]
    if missing or len(entries) != len(labels):
        text = f"it has {len(entries):,} entries, the record file {len(labels):,} whole records"
        if missing:
            text += f"; there is no record for key {missing[0].key} ({missing[0].path})"
        problems.append(Problem("list", str(path_lst), text))
    folders: dict[str, float] = {}
    for entry in entries:
        label = labels.get(entry.key)
        if label is not None and np.float32(entry.labels[0]) != np.float32(label):
            text = f"{entry.path} has the label {entry.labels[0]:g} here, {label:g} in its record"
            problems.append(Problem("list", str(path_lst), text))
        folder = entry.path.rpartition("/")[0]
        if folders.setdefault(folder, entry.labels[0]) != entry.labels[0]:
            return None  # the folders are not the classes
    if sorted(folders.values()) != list(range(len(folders))):
        return None
    return tuple(sorted(folders, key=lambda folder: folders[folder]))
