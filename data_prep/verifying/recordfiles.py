"""Check a record file with its index, list and checksums: what is damaged, and do they match."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from data_prep.lists import read_list
from data_prep.remedies import relist
from data_prep.verifying.folders import RUN, Part
from data_prep.verifying.problems import Problems
from rn50lib.data.classes import read_list as read_list_classes
from rn50lib.data.recordfile import MappedFile, RecordError
from rn50lib.data.recordio import (
    HEADER,
    MAGIC_BYTES,
    Damage,
    Span,
    checksum_path,
    join,
    locate,
    read_numbers,
    unpack,
)
from rn50lib.errors import UserError


def read_record_file(path: Path, split: str, problems: Problems) -> Part:
    """Return the records of PREFIX.rec, compared with PREFIX.idx, .lst and .crc.

    Damaged records are added to the problems and skipped.
    """
    part = Part("recordio", split, path)
    try:
        file = MappedFile(str(path))
        data = file.data()
    except RecordError as error:
        problems.add("damage", path, str(error))
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
            text = f"after {len(starts):,} good records: {damage}; "
            problems.add("damage", path, text + f"{following - offset:,} bytes are lost", offset)
            offset = following
            continue
        is_followed = span.end == file.size or data[span.end : span.end + 4] == MAGIC_BYTES
        if is_followed and any(data[span.parts[-1][1] : span.end]):
            problems.add("damage", path, "its padding to four bytes is not zero", offset)
        try:
            key, label = _read_header(data, span)
        except RecordError as error:
            problems.add("damage", path, str(error), offset)
        else:
            starts.append(offset)
            keys.append(key)
            labels.append(label)
        offset = span.end
    if not starts:
        problems.add("no-images", path)
    places = zip(keys, starts, strict=True)
    part.names = [f"{path}, key {key}, offset {start:,}" for key, start in places]
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
    _check_list(path, dict(zip(keys, labels, strict=True)), problems)
    part.classes, _ = read_list_classes(path.with_suffix(".lst"))
    return part


def _next_record(data: Any, offset: int, size: int) -> int:
    """Return where the next good record starts after damage, followed by another; or the end."""
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
    return size


def _read_header(data: Any, span: Span) -> tuple[int, float]:
    """Return key and label of a record; NaN for several labels. Usually reads no image."""
    start, stop = span.parts[0]
    if len(span.parts) == 1 and stop - start >= HEADER.size:
        flag, value, key, _ = HEADER.unpack_from(data, start)
        if flag == 0:
            return key, value
    label, key, _ = unpack(join(data, span))
    return key, label


def _classes(labels: np.ndarray, names: list[str], problems: Problems) -> np.ndarray:
    """Return the labels as classes; -1 for one that is not a class."""
    good = (labels >= 0) & (labels < 2**31) & (labels == np.floor(labels))
    for i in np.flatnonzero(~good):
        text = "several labels" if np.isnan(labels[i]) else f"the label is {labels[i]:g}"
        problems.add("label", names[i], text)
    return np.where(good, labels, -1).astype(np.int64)


def _checksums(path: Path, starts: list[int], problems: Problems) -> dict[int, int]:
    """Return offset → checksum of the records from PREFIX.crc; nothing if that is unusable."""
    path_crc = checksum_path(path)
    if not path_crc.exists():
        problems.add("no-checksums", path)
        return {}
    try:
        pairs = read_numbers(path_crc, "--checksums")
    except RecordError as error:
        problems.add("checksum-file", path_crc, str(error))
        return {}
    found: dict[int, int] = dict(pairs.tolist())
    matching = sum(start in found for start in starts)
    text = ""
    if 2 * matching < max(len(found), len(starts)):
        text, found = f"most records of {path} start at other offsets", {}
    elif matching < len(starts):
        text = f"it lacks {len(starts) - matching:,} of the {len(starts):,} records"
    if text:
        problems.add("checksum-file", path_crc, f"{text}; {relist(path, '--checksums')}")
    return found


def _check_index(path: Path, starts: np.ndarray, keys: list[int], problems: Problems) -> None:
    path_idx = path.with_suffix(".idx")
    try:
        index_keys, offsets = read_numbers(path_idx, "--index").T
    except RecordError as error:
        problems.add("index", path_idx, str(error))
        return
    for i in np.flatnonzero(~np.isin(offsets, starts))[:100]:
        text = f"key {index_keys[i]}: no record starts there"
        problems.add("index", path_idx, text, int(offsets[i]))
    missing = starts[~np.isin(starts, offsets)]
    if len(missing):
        text = f"it leaves out {len(missing):,} records, the first at this offset"
        problems.add("index", path_idx, text, int(missing[0]))
    if np.array_equal(np.sort(index_keys), np.arange(len(index_keys))):
        return  # keys that merely count
    by_offset = dict(zip(starts.tolist(), keys, strict=True))
    pairs = zip(offsets.tolist(), index_keys.tolist(), strict=True)
    bad = [(offset, key) for offset, key in pairs if by_offset.get(offset, key) != key]
    for offset, key in bad[:100]:
        text = f"it has key {key}, the record's id is {by_offset[offset]}"
        problems.add("index", path_idx, text, offset)


def _check_list(path: Path, labels: dict[int, float], problems: Problems) -> None:
    """Compare with PREFIX.lst, if it is there."""
    path_lst = path.with_suffix(".lst")
    if not path_lst.exists():
        return
    try:
        entries = read_list(path_lst)
    except (UserError, OSError) as error:
        problems.add("list", path_lst, str(error))
        return
    missing = [entry for entry in entries if entry.key not in labels]
    if missing or len(entries) != len(labels):
        text = f"it has {len(entries):,} entries, the record file {len(labels):,} whole records"
        if missing:
            text += f"; there is no record for key {missing[0].key} ({missing[0].path})"
        problems.add("list", path_lst, text)
    for entry in entries:
        label = labels.get(entry.key)
        if label is not None and np.float32(entry.labels[0]) != np.float32(label):
            text = f"{entry.path} has the label {entry.labels[0]:g} here, {label:g} in its record"
            problems.add("list", path_lst, text)
