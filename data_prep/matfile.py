"""Read an array of structs from a MATLAB 5 file: ImageNet's `meta.mat`.

The format is MathWorks' "MAT-File Format", version 5: elements of type, size and bytes. A matrix
nests elements, and a compressed element is a zlib stream. Only what `meta.mat` holds is read:
little-endian structs of text and numbers. (SciPy would be a large dependency.)
"""

from __future__ import annotations

import math
import struct
import zlib
from typing import Any

_MATRIX, _COMPRESSED = 14, 15
_STRUCT, _CHAR = 2, 4
_NUMBERS = {1: "b", 2: "B", 3: "h", 4: "H", 5: "i", 6: "I", 7: "f", 9: "d", 12: "q", 13: "Q"}
_TEXT = {1: "latin-1", 2: "latin-1", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le"}


def read_structs(data: bytes, name: str) -> list[dict[str, Any]]:
    """Return the variable ``name`` of a MATLAB 5 file: one dictionary per struct of the array.

    Text becomes str, a single number int or float, several a list. Raises ValueError if the bytes
    are not such a file, are damaged, or lack the variable.
    """
    if data[126:128] != b"IM":
        raise ValueError("this is not a MATLAB 5 file")
    try:
        at = 128
        while at < len(data):
            kind, body, at = _element(data, at)
            if kind == _COMPRESSED:
                kind, body, _ = _element(zlib.decompress(body), 0)
            if kind == _MATRIX:
                found, value = _matrix(body)
                if found == name:
                    if isinstance(value, list) and all(isinstance(v, dict) for v in value):
                        return value
                    raise ValueError(f"{name} is not an array of structs")
    except (struct.error, zlib.error, IndexError, KeyError, UnicodeError) as error:
        raise ValueError(f"the file is damaged ({error})") from None
    raise ValueError(f"there is no variable {name} in it")


def _element(data: bytes, at: int) -> tuple[int, bytes, int]:
    """Return (type, bytes, offset of the next element)."""
    (first,) = struct.unpack_from("<I", data, at)
    if first >> 16:  # up to four bytes, packed next to the type
        return first & 0xFFFF, data[at + 4 : at + 4 + (first >> 16)], at + 8
    (size,) = struct.unpack_from("<I", data, at + 4)
    body = data[at + 8 : at + 8 + size]
    if len(body) != size:
        raise ValueError("the file is cut short")
    padding = 0 if first == _COMPRESSED else -size % 8
    return first, body, at + 8 + size + padding


def _matrix(data: bytes) -> tuple[str, Any]:
    """Return (name, value) of a matrix element."""
    if not data:
        return "", []
    _, flags, at = _element(data, 0)
    _, shape, at = _element(data, at)
    _, raw_name, at = _element(data, at)
    count = math.prod(struct.unpack(f"<{len(shape) // 4}i", shape))
    name = raw_name.decode("latin-1")
    if flags[0] == _STRUCT:
        return name, _structs(data, at, count)
    stored, body, _ = _element(data, at) if at < len(data) else (1, b"", at)
    if flags[0] == _CHAR:
        return name, body.decode(_TEXT[stored])
    code = _NUMBERS[stored]
    values = list(struct.unpack(f"<{len(body) // struct.calcsize(code)}{code}", body))
    return name, values[0] if count == 1 and values else values


def _structs(data: bytes, at: int, count: int) -> list[dict[str, Any]]:
    _, raw, at = _element(data, at)
    (width,) = struct.unpack("<i", raw)
    _, raw, at = _element(data, at)
    fields = [
        raw[i : i + width].split(b"\0")[0].decode("latin-1") for i in range(0, len(raw), width)
    ]
    found = []
    for _ in range(count):
        values = {}
        for field in fields:
            _, body, at = _element(data, at)
            values[field] = _matrix(body)[1]
        found.append(values)
    return found
