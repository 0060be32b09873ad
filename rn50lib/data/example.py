"""tf.train.Example without TensorFlow: a message of named features, read from its bytes.

The wire format is Protocol Buffers': a tag with a field's number and type, then its bytes. An
Example holds Features (field 1), that a map (field 1) of key (1) and Feature (2), and that a list
of bytes (1), floats (2) or ints (3), whose values are its field 1.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

Feature = list[bytes] | list[int] | list[float]

_KINDS = {1: "bytes", 2: "floats", 3: "ints"}


class FeatureSpan(NamedTuple):
    """Where the list of a feature stands in a buffer; ``kind`` is bytes, floats, ints, or empty
    where there is no list."""

    kind: str
    start: int
    stop: int


def parse_example(data: bytes) -> dict[str, Feature]:
    """Name → list of bytes, ints or floats. Raises ValueError if the bytes are no Example."""
    return {name: values(data, span) for name, span in find_features(data, 0, len(data)).items()}


def find_features(data: Any, start: int, stop: int) -> dict[str, FeatureSpan]:
    """Name → position of each feature of the Example in ``data[start:stop]``; images stay unread.

    ``data`` may be any buffer whose items are numbers. Raises ValueError if it holds no Example.
    """
    found: dict[str, FeatureSpan] = {}
    for _, features_start, features_stop in _parts(data, start, stop, 1):
        for _, entry_start, entry_stop in _parts(data, features_start, features_stop, 1):
            key, feature = "", (entry_stop, entry_stop)
            for field, at, end in _parts(data, entry_start, entry_stop):
                if field == 1:
                    key = bytes(data[at:end]).decode("utf-8", "replace")
                elif field == 2:
                    feature = (at, end)
            lists = (part for part in _parts(data, *feature) if part[0] in _KINDS)
            field, at, end = next(lists, (0, entry_stop, entry_stop))
            found[key] = FeatureSpan(_KINDS.get(field, ""), at, end)
    return found


def values(data: Any, span: FeatureSpan) -> Feature:
    """The values of a feature; numbers may be packed in one piece, or stand one by one."""
    bodies = [bytes(data[at:end]) for _, at, end in _parts(data, span.start, span.stop, 1)]
    if span.kind == "bytes":
        return bodies
    body = b"".join(bodies)
    if span.kind == "floats":
        if len(body) % 4:
            raise ValueError(f"a list of floats of {len(body)} bytes")
        return list(struct.unpack(f"<{len(body) // 4}f", body))
    numbers: list[int] = []
    at = 0
    while at < len(body):
        value, at = _read_varint(body, at)
        numbers.append(value - (1 << 64) if value >> 63 else value)
    return numbers


def _parts(data: Any, at: int, end: int, wanted: int = 0) -> Iterator[tuple[int, int, int]]:
    """(field number, start, stop) of the fields of a message, or of those of one number."""
    while at < end:
        tag, at = (data[at], at + 1) if data[at] < 0x80 else _read_varint(data, at)
        field, wire = tag >> 3, tag & 7
        if wire == 2:
            size, at = _read_varint(data, at)
        elif wire == 0:
            size = _read_varint(data, at)[1] - at
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"an unknown wire type {wire}")
        if at + size > end:
            raise ValueError(f"a field says {size:,} bytes where {end - at:,} are left")
        if wanted in (0, field):
            yield field, at, at + size
        at += size


def _read_varint(data: Any, at: int) -> tuple[int, int]:
    """(a number of seven bits a byte, the lowest first; where it ends)."""
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise ValueError("a number that does not end")


# -- many examples at once -----------------------------------------------------------------------


class Spans(NamedTuple):
    """Where something stands in a buffer for each of many examples, int64; -1 where it does not."""

    start: np.ndarray
    stop: np.ndarray


def find_features_of_all(
    data: np.ndarray, examples: Spans, names: Sequence[str]
) -> tuple[np.ndarray, dict[str, Spans]]:
    """As `find_features`, for many Examples of one buffer (uint8) step by step side by side.

    Which of them are written in the usual way, as bool of shape (examples,), and where the features
    of these names stand in those. The others are left to `find_features`.
    """
    features = _bodies(data, examples.start, 0x0A)
    usual = features.stop == examples.stop
    count = len(usual)
    found = {name: Spans(np.full(count, -1), np.full(count, -1)) for name in names}
    at = features.start.copy()
    while len(rows := np.flatnonzero(usual & (at < features.stop))):
        entry = _bodies(data, at[rows], 0x0A)
        key = _bodies(data, entry.start, 0x0A)
        value = _bodies(data, key.stop, 0x12)
        good = (key.stop >= 0) & (value.stop == entry.stop) & (entry.stop <= features.stop[rows])
        for name, spans in found.items():
            text = np.frombuffer(name.encode(), np.uint8)
            same = np.flatnonzero(good & (key.stop - key.start == len(text)))
            same = same[(_bytes(data, key.start[same], len(text)) == text).all(axis=1)]
            spans.start[rows[same]], spans.stop[rows[same]] = value.start[same], value.stop[same]
        usual[rows[~good]] = False
        at[rows] = entry.stop
    return usual, found


def whole_numbers(data: np.ndarray, features: Spans) -> np.ndarray:
    """The one number of each feature, int64; -1 where it is written in another way."""
    numbers = _bodies(data, features.start, 0x1A)
    packed = _bodies(data, numbers.start, 0x0A)
    value, stop = _varints(data, packed.start)
    ends = numbers.stop, packed.stop, stop
    return np.where(np.all([end == features.stop for end in ends], axis=0), value, -1)


def texts(data: np.ndarray, features: Spans) -> Spans:
    """The one text of each feature."""
    texts = _bodies(data, features.start, 0x0A)
    text = _bodies(data, texts.start, 0x0A)
    good = (texts.stop == features.stop) & (text.stop == features.stop)
    return Spans(text.start, np.where(good, text.stop, -1))


def _bytes(data: np.ndarray, starts: np.ndarray, count: int) -> np.ndarray:
    """The `count` bytes from each place on, uint8 of shape (places, count)."""
    return _byte(data, starts[:, None] + np.arange(count))


def _byte(data: np.ndarray, at: np.ndarray) -> np.ndarray:
    """The byte at each place, uint8; that at the end for places behind it."""
    return data.take(at, mode="clip")


def _bodies(data: np.ndarray, at: np.ndarray, tag: int) -> Spans:
    """Where the bytes of the field with this tag stand that begins at each place."""
    has = (_byte(data, at) == tag) & (at >= 0)
    size, start = _varints(data, at + 1)
    return Spans(start, np.where(has & (size >= 0), start + size, -1))


def _varints(data: np.ndarray, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the number at each place, -1 where it is none of at most five bytes; where it ends)."""
    value, stop = np.zeros(len(at), np.int64), at.copy()
    more = np.ones(len(at), bool)
    for shift in range(0, 35, 7):
        byte = _byte(data, stop).astype(np.int64)
        value += np.where(more, (byte & 0x7F) << shift, 0)
        stop += more
        more &= byte >= 0x80
        if not more.any():
            break
    return np.where(more, -1, value), stop
