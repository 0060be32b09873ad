"""Check a record file with its index, list and checksums: what is damaged, and do they match."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from data_prep.lists import classes_of_list, read_list
from data_prep.remedies import relist
from data_prep.verifying.folders import RUN, Part
from data_prep.verifying.images import Images
from rn50lib.data.classes import MAX_CLASSES
from rn50lib.data.recordfile import MappedFile, RecordError, crc32c
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


def read_record_file(path: Path, split: str) -> Part:
    """Return the records of PREFIX.rec, compared with PREFIX.idx, .lst and .crc.

    Damaged records are added to the problems and skipped.
    """
    part = Part(form="recordio", split=split, path=path)
    add = part.problems.add
    try:
        file = MappedFile(str(path))
        data = file.data()
    except RecordError as error:
        add("damage", path, str(error))
        return part
    labels: dict[int, tuple[int, float]] = {}  # key and label of a record by its offset
    offset = 0
    while offset < file.size:
        try:
            span = locate(data, offset, file.size)
        except Damage as damage:
            following = _next_record(data, offset, file.size)
            text = f"after {len(labels):,} good records: {damage}; "
            add("damage", path, text + f"{following - offset:,} bytes are lost", offset)
            offset = following
            continue
        is_followed = span.end == file.size or data[span.end : span.end + 4] == MAGIC_BYTES
        if is_followed and any(data[span.parts[-1][1] : span.end]):
            add("damage", path, "its padding to four bytes is not zero", offset)
        try:
            labels[offset] = _read_header(data, span)
        except RecordError as error:
            add("damage", path, str(error), offset)
        offset = span.end
    if not labels:
        add("no-images", path)
    checksums = _checksums(part, [*labels])
    part.contents = "checksums" if checksums else "decoded"
    images = []
    for offset, (key, label) in labels.items():
        name = f"{path}, key {key}, offset {offset:,}"
        good = 0 <= label < MAX_CLASSES and not label % 1
        if not good:
            text = "several labels" if np.isnan(label) else f"the label is {label:g}"
            add("label", name, text)
        images.append((name, int(label) if good else -1, offset, checksums.get(offset)))
    for first in range(0, len(images), RUN):
        part.tasks.append((check_records, str(path), images[first : first + RUN]))
    _check_index(part, {offset: key for offset, (key, _) in labels.items()})
    _check_list(part, dict(labels.values()))
    return part


def check_records(found: Images, path: str, records: list[tuple]) -> None:
    """Check records, each (name, label, offset, checksum or None); runs in a worker."""
    file = MappedFile(path)
    for name, label, offset, wanted in records:
        record = join(file.data(), locate(file.data(), offset, file.size))
        if wanted is not None and (crc := crc32c(record)) != wanted:
            found.problems.add("checksum", name, f"0x{crc:08x} instead of 0x{wanted:08x}")
        found.check(name, label, unpack(record).image)


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
    header = data[start : min(stop, start + HEADER.size)]
    whole = len(header) < HEADER.size or any(header[:4])  # too short, or with several labels
    label, key, _ = unpack(join(data, span) if whole else header)
    return key, label


def _checksums(part: Part, starts: list[int]) -> dict[int, int]:
    """Return offset → checksum of the records from PREFIX.crc; nothing if that is unusable."""
    path_crc, add = checksum_path(part.path), part.problems.add
    if not path_crc.exists():
        add("no-checksums", part.path)
        return {}
    try:
        found: dict[int, int] = dict(read_numbers(path_crc, "--checksums").tolist())
    except RecordError as error:
        add("checksum-file", path_crc, str(error))
        return {}
    matching, text = len(found.keys() & starts), ""
    if 2 * matching < max(len(found), len(starts)):
        text, found = f"most records of {part.path} start at other offsets", {}
    elif matching < len(starts):
        text = f"it lacks {len(starts) - matching:,} of the {len(starts):,} records"
    if text:
        add("checksum-file", path_crc, f"{text}; {relist(part.path, '--checksums')}")
    return found


def _check_index(part: Part, keys: dict[int, int]) -> None:
    """Compare PREFIX.idx with the records, given as their keys by offset."""
    path_idx, add = part.path.with_suffix(".idx"), part.problems.add
    try:
        index: dict[int, int] = dict(read_numbers(path_idx, "--index")[:, ::-1].tolist())
    except RecordError as error:
        add("index", path_idx, str(error))
        return
    if foreign := [offset for offset in index if offset not in keys]:
        text = f"no record starts at {len(foreign):,} of its entries, the first at this offset"
        add("index", path_idx, text, foreign[0])
    if missing := [offset for offset in keys if offset not in index]:
        text = f"it leaves out {len(missing):,} records, the first at this offset"
        add("index", path_idx, text, missing[0])
    counted = sorted(index.values()) == [*range(len(index))]  # keys that merely count
    bad = [offset for offset, key in index.items() if keys.get(offset, key) != key]
    if bad and not counted:
        entries = f"{len(bad):,} entries have" if len(bad) > 1 else "1 entry has"
        text = f"{entries} a key that is not the record's id, the first at this offset"
        add("index", path_idx, text, bad[0])


def _check_list(part: Part, labels: dict[int, float]) -> None:
    """Compare PREFIX.lst, if it is there, with the records' labels by key; read its classes."""
    path_lst, add = part.path.with_suffix(".lst"), part.problems.add
    if not path_lst.exists():
        return
    try:
        entries = read_list(path_lst)
    except (UserError, OSError) as error:
        add("list", path_lst, str(error))
        return
    part.classes = classes_of_list(path_lst, entries)
    missing = [entry for entry in entries if entry.key not in labels]
    if missing or len(entries) != len(labels):
        text = f"it has {len(entries):,} entries, the record file {len(labels):,} whole records"
        if missing:
            text += f"; there is no record for key {missing[0].key} ({missing[0].path})"
        add("list", path_lst, text)
    for entry in entries:
        label = labels.get(entry.key)
        if label is not None and np.float32(entry.labels[0]) != np.float32(label):
            text = f"{entry.path} has the label {entry.labels[0]:g} here, {label:g} in its record"
            add("list", path_lst, text)
