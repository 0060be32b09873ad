"""Read an array of structs from a MATLAB 5 file such as ImageNet's `meta.mat`.

The format is MathWorks' "MAT-File Format", version 5: elements of type, size and bytes. A matrix
nests elements, and a compressed element is a zlib stream. (SciPy would be a large dependency.)
"""

from __future__ import annotations

import struct
import zlib
from typing import Any

_INT8, _INT32, _UINT32, _MATRIX, _COMPRESSED = 1, 5, 6, 14, 15
_CELL, _STRUCT, _CHAR = 1, 2, 4
_NUMBERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_TEXT = {1: "latin-1", 2: "latin-1", 16: "utf-8", 17: "utf-16", 18: "utf-32"}


def read_structs(data: bytes, name: str) -> list[dict[str, Any]]:
    """Return the variable ``name`` of a MATLAB 5 file: one dictionary per struct of the array.

    Text becomes str, a single number int or float, several a list. Raises ValueError if the bytes
    are not such a file, are damaged, or lack the variable.
    """
    if len(data) < 128 or data[126:128] not in (b"IM", b"MI"):
        raise ValueError("this is not a MATLAB 5 file")
    order = "<" if data[126:128] == b"IM" else ">"
    try:
        at = 128
        while at < len(data):
            kind, body, at = _element(data, at, order)
            if kind == _COMPRESSED:
                kind, body, _ = _element(zlib.decompress(body), 0, order)
            if kind == _MATRIX:
                found, value = _matrix(body, order)
                if found == name:
                    if isinstance(value, list) and all(isinstance(v, dict) for v in value):
                        return value
                    raise ValueError(f"{name} is not an array of structs")
    except (struct.error, zlib.error, IndexError, KeyError, UnicodeError) as error:
        raise ValueError(f"the file is damaged ({error})") from None
    raise ValueError(f"there is no variable {name} in it")


def _element(data: bytes, at: int, order: str) -> tuple[int, bytes, int]:
    """Return (type, bytes, offset of the next element)."""
    (first,) = struct.unpack_from(order + "I", data, at)
    if first >> 16:  # up to four bytes, packed next to the type
        size = first >> 16
        return first & 0xFFFF, data[at + 4 : at + 4 + size], at + 8
    (size,) = struct.unpack_from(order + "I", data, at + 4)
    body = data[at + 8 : at + 8 + size]
    if len(body) != size:
        raise ValueError("the file is cut short")
    padding = 0 if first == _COMPRESSED else -size % 8
    return first, body, at + 8 + size + padding


def _matrix(data: bytes, order: str) -> tuple[str, Any]:
    """Return (name, value) of a matrix element."""
    if not data:
        return "", []
    _, flags, at = _element(data, 0, order)
    kind = struct.unpack_from(order + "I", flags)[0] & 0xFF
    _, raw, at = _element(data, at, order)
    count = 1
    for size in struct.unpack(f"{order}{len(raw) // 4}i", raw):
        count *= size
    _, raw_name, at = _element(data, at, order)
    name = raw_name.decode("latin-1")
    if kind == _STRUCT:
        return name, _structs(data, at, count, order)
    if kind == _CELL:
        cells = []
        for _ in range(count):
            _, body, at = _element(data, at, order)
            cells.append(_matrix(body, order)[1])
        return name, cells
    stored, body, _ = _element(data, at, order) if at < len(data) else (_INT8, b"", at)
    if kind == _CHAR:
        encoding = _TEXT.get(stored) or ("utf-16-le" if order == "<" else "utf-16-be")
        return name, body.decode(encoding)
    code = _NUMBERS[stored]
    values = list(struct.unpack(f"{order}{len(body) // struct.calcsize(code)}{code}", body))
    return name, values[0] if count == 1 and values else values


def _structs(data: bytes, at: int, count: int, order: str) -> list[dict[str, Any]]:
    _, raw, at = _element(data, at, order)
    (width,) = struct.unpack(order + "i", raw)
    _, raw, at = _element(data, at, order)
    fields = [
        raw[i : i + width].split(b"\0")[0].decode("latin-1") for i in range(0, len(raw), width)
    ]
    found = []
    for _ in range(count):
        values = {}
        for field in fields:
            _, body, at = _element(data, at, order)
            values[field] = _matrix(body, order)[1]
        found.append(values)
    return found
