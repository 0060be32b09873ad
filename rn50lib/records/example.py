"""tf.train.Example without TensorFlow: a message of named features, read from its bytes.

The wire format is Protocol Buffers' (a tag, a length, the bytes); of the message it needs four
types.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

Feature = list[bytes] | list[int] | list[float]


def parse_example(data: bytes) -> dict[str, Feature]:
    """Name → list of bytes, ints or floats. Raises ValueError if the bytes are no Example."""
    features: dict[str, Feature] = {}
    for field, body in _fields(data):
        if field != 1 or not isinstance(body, bytes):
            continue
        for inner, entry in _fields(body):
            if inner == 1 and isinstance(entry, bytes):
                key, feature = _parse_entry(entry)
                features[key] = feature
    return features


def _fields(data: bytes) -> list[tuple[int, bytes | int]]:
    """(field number, value) of a message: bytes where it has a length, else a number."""
    found: list[tuple[int, bytes | int]] = []
    at, end = 0, len(data)
    while at < end:
        tag, at = _read_varint(data, at)
        wire = tag & 7
        if wire == 0:
            value, at = _read_varint(data, at)
            found.append((tag >> 3, value))
            continue
        if wire == 2:
            size, at = _read_varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"an unknown wire type {wire}")
        if at + size > end:
            raise ValueError(f"a field says {size:,} bytes where {end - at:,} are left")
        found.append((tag >> 3, data[at : at + size]))
        at += size
    return found


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at += 1
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, at
        shift += 7
    raise ValueError("a number that does not end")


def _parse_entry(entry: bytes) -> tuple[str, Feature]:
    key, feature = "", b""
    for field, body in _fields(entry):
        if not isinstance(body, bytes):
            continue
        if field == 1:
            key = body.decode("utf-8", "replace")
        elif field == 2:
            feature = body
    for field, body in _fields(feature):
        if isinstance(body, bytes) and field in (1, 2, 3):
            return key, (_bytes_list, _float_list, _int_list)[field - 1](body)
    return key, []


def _bytes_list(body: bytes) -> list[bytes]:
    return [value for field, value in _fields(body) if field == 1 and isinstance(value, bytes)]


def _float_list(body: bytes) -> list[float]:
    found: list[float] = []
    for field, value in _fields(body):  # packed in one piece, or one by one
        if field == 1 and isinstance(value, bytes):
            if len(value) % 4:
                raise ValueError(f"a list of floats of {len(value)} bytes")
            found += struct.unpack(f"<{len(value) // 4}f", value)
    return found


def _int_list(body: bytes) -> list[int]:
    found: list[int] = []
    for field, value in _fields(body):
        if field != 1:
            continue
        if isinstance(value, int):
            found.append(_signed(value))
            continue
        at = 0
        while at < len(value):
            number, at = _read_varint(value, at)
            found.append(_signed(number))
    return found


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value


# -- looking without copying ---------------------------------------------------------------------


class Span(NamedTuple):
    """Where a feature stands in a buffer: the first value if ``kind`` is "bytes", else the list."""

    kind: str  # bytes, floats or ints
    start: int
    stop: int


_KINDS = {1: "bytes", 2: "floats", 3: "ints"}


def find_features(data: Any, start: int, stop: int) -> dict[str, Span]:
    """Name → position of each feature of the Example in ``data[start:stop]``; images stay unread.

    ``data`` may be any buffer whose items are numbers. Raises ValueError if it holds no Example.
    """
    found: dict[str, Span] = {}
    for _, features_start, features_stop in _parts(data, start, stop):
        for _, entry_start, entry_stop in _parts(data, features_start, features_stop):
            key = ""
            feature = (entry_stop, entry_stop)
            for field, at, end in _parts(data, entry_start, entry_stop):
                if field == 1:
                    key = bytes(data[at:end]).decode("utf-8", "replace")
                else:
                    feature = (at, end)
            for field, at, end in _parts(data, *feature):
                if field == 1:
                    at, end = next(((a, e) for _, a, e in _parts(data, at, end)), (at, at))
                if field in _KINDS:
                    found[key] = Span(_KINDS[field], at, end)
    return found


def numbers(data: Any, span: Span) -> Sequence[float]:
    """The values of a feature of numbers."""
    body = bytes(data[span.start : span.stop])
    return _int_list(body) if span.kind == "ints" else _float_list(body)


def _parts(data: Any, at: int, end: int) -> Iterator[tuple[int, int, int]]:
    """(field number, start, stop) of the parts of a message that have a length."""
    while at < end:
        tag = data[at]
        at += 1
        size = data[at] if at < end else 0
        at += 1
        if size > 0x7F:
            size, at = _read_varint(data, at - 1)
        if tag & 0x87 != 2:
            raise ValueError(f"a tag of 0x{tag:02x} where a part with a length should start")
        if at + size > end:
            raise ValueError(f"a field says {size:,} bytes where {end - at:,} are left")
        yield tag >> 3, at, at + size
        at += size
