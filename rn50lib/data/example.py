"""tf.train.Example without TensorFlow: a message of named features, read from its bytes.

The wire format is Protocol Buffers': a tag with a field's number and type, then its bytes. An
Example holds Features (field 1), that a map (field 1) of key (1) and Feature (2), and that a list
of bytes (1), floats (2) or ints (3), whose values are its field 1.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Iterator
from typing import Any

import numpy as np

Feature = list[bytes] | list[int] | list[float]


def parse_example(
    data: Any, names: Collection[str] = (), start: int = 0, stop: int | None = None
) -> dict[str, Feature]:
    """Return name → list of bytes, ints or floats of the Example in ``data[start:stop]``.

    If ``names`` are given, the values of the other features are not read, and are []. ``data`` may
    be any buffer whose items are numbers. Raises ValueError if it holds no Example.
    """
    found: dict[str, Feature] = {}
    stop = len(data) if stop is None else stop
    for _, features_start, features_stop in _parts(data, start, stop, 1):
        for _, entry_start, entry_stop in _parts(data, features_start, features_stop, 1):
            key, feature = "", (entry_stop, entry_stop)
            for field, at, end in _parts(data, entry_start, entry_stop):
                if field == 1:
                    key = bytes(data[at:end]).decode("utf-8", "replace")
                elif field == 2:
                    feature = (at, end)
            lists = (part for part in _parts(data, *feature) if part[0] in (1, 2, 3))
            kind, at, end = next(lists, (1, entry_stop, entry_stop))
            found[key] = _values(data, kind, at, end) if not names or key in names else []
    return found


def _values(data: Any, kind: int, start: int, stop: int) -> Feature:
    """Return the values of a list; numbers may be packed in one piece, or stand one by one."""
    bodies = [bytes(data[at:end]) for _, at, end in _parts(data, start, stop, 1)]
    if kind == 1:
        return bodies
    body = b"".join(bodies)
    if kind == 2:
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
    """Return a number of seven bits a byte, the lowest first, and where it ends."""
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


def find_numbers(data: np.ndarray, starts: np.ndarray, stops: np.ndarray, name: str) -> np.ndarray:
    """Return the one whole number of a feature in each of many Examples of a buffer (uint8), int64.

    It is -1 if the Example is not written in the usual way; that is left to `parse_example`.
    Reads the Examples side by side, one feature of all of them in each step.
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
    """Return where the bytes of the field start and stop that begins with this tag at each place.

    The stop is -1 if there is none.
    """
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
