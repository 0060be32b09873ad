"""What an encoded image says about itself in its first bytes: format, width, height, channels.

No decoder is needed for that, and a damaged image gives None instead of an error.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

LFS_POINTER = b"version https://git-lfs"
"""How a git-LFS pointer begins: a short text that stands where the file itself should be."""


class ImageInfo(NamedTuple):
    """``format`` is "JPEG" or "PNG"; ``channels`` 1 is grey, 3 colour, 4 CMYK or alpha."""

    format: str
    width: int
    height: int
    channels: int


_PNG = b"\x89PNG\r\n\x1a\n"
_PNG_CHANNELS = {0: 1, 2: 3, 3: 3, 4: 2, 6: 4}
_SIZE = struct.Struct(">BHHB")


def image_info(data: bytes) -> ImageInfo | None:
    """Read the header of a JPEG or PNG; None if it is neither, or ends before its size is told."""
    if data[:3] == b"\xff\xd8\xff":
        return _jpeg(data)
    if data[:8] == _PNG and data[12:16] == b"IHDR" and len(data) >= 26:
        width, height = struct.unpack_from(">II", data, 16)
        channels = _PNG_CHANNELS.get(data[25])
        return ImageInfo("PNG", width, height, channels) if channels else None
    return None


def _jpeg(data: bytes) -> ImageInfo | None:
    """Walk the segments up to the start of frame (ITU T.81, B.1)."""
    at, end = 2, len(data)
    while at + 4 <= end:
        if data[at] != 0xFF:
            return None
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            if at + 10 > end:
                return None
            _, height, width, channels = _SIZE.unpack_from(data, at + 4)
            return ImageInfo("JPEG", width, height, channels)
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a length
            at += 2
        elif marker in (0xD9, 0xDA):  # the end, or the image data, before any frame
            return None
        else:
            at += 2 + (data[at + 2] << 8 | data[at + 3])
    return None
