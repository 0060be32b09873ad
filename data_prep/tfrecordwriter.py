"""TFRecord written without TensorFlow: an Example's bytes, the framing, the shard and its index."""

from __future__ import annotations

import functools
import io
import os
import struct
from collections.abc import Iterable, Mapping, Sequence

from rn50lib.data.recordfile import crc32c
from rn50lib.data.tfrecord import CRC, mask

Value = bytes | str | int | float | Sequence[bytes] | Sequence[int] | Sequence[float]

_BYTES, _FLOATS, _INTS = 0x0A, 0x12, 0x1A  # fields 1, 2 and 3 of Feature, each with a length
_FIELD_1, _FIELD_2 = 0x0A, 0x12
_LONG = 1024  # values from this length on are not copied


def _varint(value: int) -> bytes:
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(tag: int, body: bytes) -> bytes:
    return bytes((tag,)) + _varint(len(body)) + body


def _feature(value: Value) -> bytes:
    """The bytes of one Feature."""
    values = [value] if isinstance(value, (bytes, str, int, float)) else list(value)
    if all(isinstance(v, (bytes, str)) for v in values):
        parts = [v.encode() if isinstance(v, str) else v for v in values]
        return _field(_BYTES, b"".join(_field(_FIELD_1, part) for part in parts))  # type: ignore[arg-type]
    if all(isinstance(v, int) for v in values):
        packed = b"".join(_varint(v & 0xFFFFFFFFFFFFFFFF) for v in values)  # type: ignore
        return _field(_INTS, _field(_FIELD_1, packed))
    return _field(_FLOATS, _field(_FIELD_1, struct.pack(f"<{len(values)}f", *values)))


@functools.lru_cache(maxsize=8192)
def _small_entry(key: str, kind: str, value: Value) -> bytes:
    """One entry of the map; sizes, classes and constants come again and again.

    ``kind``, the name of the type, keeps 1 and 1.0 apart in the cache.
    """
    return _entry(key, value)


def _entry(key: str, value: Value) -> bytes:
    return _field(_FIELD_1, _field(_FIELD_1, key.encode()) + _field(_FIELD_2, _feature(value)))


def example_pieces(features: Mapping[str, Value]) -> list[bytes]:
    """The bytes of an Example as pieces to be written one behind the other; long values uncopied.

    bytes and str become a bytes list, int an int64 list, float a float list. Features stand sorted
    by key, so that the same features always give the same bytes.
    """
    pieces = [b""]
    for key in sorted(features):
        value = features[key]
        if isinstance(value, bytes) and len(value) >= _LONG:
            pieces += [_long_head(key, len(value)), value]
        elif isinstance(value, (bytes, str, int, float)):
            pieces.append(_small_entry(key, type(value).__name__, value))
        else:
            pieces.append(_entry(key, value))
    total = sum(map(len, pieces))
    pieces[0] = bytes((_FIELD_1,)) + _varint(total)
    return pieces


def _long_head(key: str, size: int) -> bytes:
    """What stands before a long value: four nested lengths."""
    name = _field(_FIELD_1, key.encode())
    value = bytes((_FIELD_1,)) + _varint(size)
    values = bytes((_BYTES,)) + _varint(len(value) + size) + value
    feature = bytes((_FIELD_2,)) + _varint(len(values) + size) + values
    return bytes((_FIELD_1,)) + _varint(len(name) + len(feature) + size) + name + feature


def serialize_example(features: Mapping[str, Value]) -> bytes:
    """The bytes of an Example; see ``example_pieces``."""
    return b"".join(example_pieces(features))


# -- framing -------------------------------------------------------------------------------------


def frame_pieces(pieces: Sequence[bytes]) -> list[bytes]:
    """A framed record, as pieces, from the pieces of its data."""
    extend = crc32c()
    size = struct.pack("<Q", sum(map(len, pieces)))
    crc = 0
    for piece in pieces:
        crc = extend(crc, piece)
    return [size, CRC.pack(mask(extend(0, size))), *pieces, CRC.pack(mask(crc))]


def frame_record(data: bytes) -> bytes:
    """A framed record. Its length is that of the data and 16 bytes."""
    return b"".join(frame_pieces([data]))


def write_records(file: io.FileIO, records: Iterable[Sequence[bytes]]) -> list[tuple[int, int]]:
    """Write records, each given as pieces of its data; returns (offset, size) of each."""
    entries = []
    offset = 0
    for pieces in records:
        framed = frame_pieces(pieces)
        size = sum(map(len, framed))
        # One call for all pieces: no copy into a buffer of ours comes before the system's own.
        written = os.writev(file.fileno(), framed) if len(framed) <= 64 else 0
        if written < size:
            rest = memoryview(b"".join(framed))[written:]
            while rest:
                rest = rest[file.write(rest) :]
        entries.append((offset, size))
        offset += size
    return entries


def format_index(entries: Sequence[tuple[int, int]]) -> bytes:
    """The text of a shard's index, as DALI's tfrecord2idx writes it."""
    return b"".join(b"%d %d\n" % entry for entry in entries)
