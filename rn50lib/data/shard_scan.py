"""Labels and offsets of TFRecord shards that come without a sidecar, and the values of examples.

Two kinds of examples are known: the field's, with an encoded image and a label from 1 on, and the
slides', with raw pixels and a label from 0 on as a float.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from rn50lib.data.recordfile import Arrays
from rn50lib.data.tfrecord import Shard, TFRecordReader, parse_example
from rn50lib.errors import UserError

IMAGE, LABEL, SYNSET = "image/encoded", "image/class/label", "image/class/synset"
RAW, RAW_LABEL, HEIGHT, WIDTH = "img_raw", "label", "height", "width"
WRITE_AGAIN = "write the shards again with `python -m data_prep.tfrecord`"


def scan_shards(shards: list[Shard]) -> Arrays:
    """Return what `shards.split_arrays` makes of these shards, read from their records.

    Raises RecordError for a damaged shard, UserError for examples of no known kind.
    """
    raw = None
    offsets, labels, names = [], [], {}
    for shard in shards:
        reader = TFRecordReader(shard.path)
        found, raw = _read_labels(reader, raw)
        offsets.append(reader.offsets)
        labels.append(found)
        for label, position in zip(*np.unique(found, return_index=True), strict=True):
            if not raw and int(label) not in names:
                span = reader.spans[position].tolist()
                text = _parse(reader.file.data(), reader.path, (SYNSET,), *span).get(SYNSET)
                name = text[0] if text and isinstance(text[0], bytes) else b""
                names[int(label)] = name.decode("utf-8", "replace")
    classes = [names.get(label, "") for label in range(max(names, default=-1) + 1)]
    return split_arrays(offsets, np.concatenate(labels), classes, bool(raw))


def split_arrays(
    offsets: list[np.ndarray], labels: np.ndarray, classes: Sequence[str], raw: bool
) -> Arrays:
    """Return `offsets` (int64) and `labels` (int32) of all records of a split, and its `classes`.

    `firsts` are the number of the first record of each shard, and of the records in all; `raw` says
    that the examples are the slides'.
    """
    return {
        "offsets": np.concatenate(offsets),
        "labels": labels.astype(np.int32),
        "firsts": np.cumsum([0, *map(len, offsets)], dtype=np.int64),
        "classes": np.array(classes, np.str_),
        "raw": np.array(raw),
    }


def example_values(data: Any, name: str, keys: Sequence[str], *span: int) -> list[Any]:
    """Return the one value of each of these features of an Example.

    Raises UserError, with the `name` of the record, if there is none, or not of the right type.
    """
    found = _parse(data, name, keys, *span)
    for key in keys:
        wanted, kind = (bytes, "bytes") if key in (IMAGE, RAW) else ((int, float), "a number")
        if len(found.get(key, ())) != 1 or not isinstance(found[key][0], wanted):
            raise UserError(f"{name}: this example should have one {key}, {kind}; {WRITE_AGAIN}")
    return [found[key][0] for key in keys]


def _parse(data: Any, name: str, keys: Sequence[str], *span: int) -> dict[str, Any]:
    try:
        return parse_example(data, keys, *span)
    except ValueError as error:
        text = f"{name}: its data is no tf.train.Example ({error}); {WRITE_AGAIN}"
        raise UserError(text) from None


def _read_labels(reader: TFRecordReader, raw: bool | None) -> tuple[np.ndarray, bool]:
    """Return the labels of a shard, from 0 on, int32, and whether its examples are the slides'.

    ``raw`` is the kind of the previous shards, None at the first.
    """
    name = f"{reader.path}: record 0 at offset 0"
    raw = _check_kind(_parse(reader.read_at(0), name, (LABEL,)), raw, name)
    key, first = (RAW_LABEL, 0) if raw else (LABEL, 1)
    labels = np.full(len(reader.spans), -1, np.int64)
    if not raw:
        data = np.frombuffer(reader.file.data(len(labels)), np.uint8)
        starts, stops = reader.spans.T
        labels = find_numbers(data, starts, stops, LABEL) - 1
    for position in np.flatnonzero((labels < 0) | (labels >= 2**31)).tolist():
        name = f"{reader.path}: record {position} at offset {int(reader.offsets[position]):,}"
        span = reader.spans[position].tolist()
        (label,) = example_values(reader.file.data(), name, (key,), *span)
        if not first <= label < 2**31 or label != int(label):
            remark = "; here labels count from 1, and 0 is unused" if label == 0 else ""
            raise UserError(f"{name}: the label {label:g} is no class{remark}; {WRITE_AGAIN}")
        labels[position] = int(label) - first
    return labels.astype(np.int32), raw


def _check_kind(features: dict[str, Any], before: bool | None, name: str) -> bool:
    """Return True if an example is the slides'. Raises UserError if it differs from ``before``."""
    if IMAGE not in features and RAW not in features:
        shown = ", ".join(sorted(features)) or "no features at all"
        raise UserError(f"{name}: this example has {shown}, not {IMAGE} or {RAW}; {WRITE_AGAIN}")
    raw = IMAGE not in features
    if before not in (None, raw):
        raise UserError(
            f"{name}: this example is of a different kind than those before; all shards must be "
            "written with the same --schema"
        )
    return raw


# -- many examples at once -----------------------------------------------------------------------


def find_numbers(data: np.ndarray, starts: np.ndarray, stops: np.ndarray, name: str) -> np.ndarray:
    """Return the one whole number of a feature in each of many Examples of a buffer (uint8), int64.

    It is -1 if the Example is not written in the usual way; that is left to `parse_example`.
    All Examples are read side by side, one feature of each per step.
    """
    key = np.frombuffer(name.encode(), np.uint8)
    found = np.full(len(starts), -1, np.int64)
    at, ends = _field(data, starts, 0x0A)  # Features
    rows = np.flatnonzero(ends == stops)
    at = at[rows]
    while len(rows):
        entry, entry_stop = _field(data, at, 0x0A)
        text, text_stop = _field(data, entry, 0x0A)
        same = np.flatnonzero((text_stop - text == len(key)) & (text >= 0))
        same = same[(_bytes_at(data, text[same, None] + np.arange(len(key))) == key).all(axis=1)]
        value, usual = text_stop[same], np.ones(len(same), bool)
        for tag in (0x12, 0x1A, 0x0A):  # Feature, list of ints, packed
            value, value_stop = _field(data, value, tag)
            usual &= value_stop == entry_stop[same]
        number, number_stop = _varints(data, value)
        found[rows[same]] = np.where(usual & (number_stop == entry_stop[same]), number, -1)
        left = (entry_stop >= 0) & (entry_stop < stops[rows])
        left[same] = False
        rows, at = rows[left], entry_stop[left]
    return found


def _bytes_at(data: np.ndarray, at: np.ndarray) -> np.ndarray:
    """Return the byte at each place, uint8; the last one for places after the end."""
    return data.take(at, mode="clip")


def _field(data: np.ndarray, at: np.ndarray, tag: int) -> tuple[np.ndarray, np.ndarray]:
    """Return start and stop of the field with this tag at each place; the stop is -1 if none."""
    size, start = _varints(data, at + 1)
    has = (_bytes_at(data, at) == tag) & (at >= 0) & (size >= 0)
    return start, np.where(has, start + size, -1)


def _varints(data: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the number at each place, -1 if it has more than five bytes, and where it ends."""
    value, stop = np.zeros(len(at), np.int64), at.copy()
    more = np.ones(len(at), bool)
    for shift in range(0, 35, 7):
        byte = _bytes_at(data, stop).astype(np.int64)
        value += np.where(more, (byte & 0x7F) << shift, 0)
        stop += more
        more &= byte >= 0x80
        if not more.any():
            break
    return np.where(more, -1, value), stop
