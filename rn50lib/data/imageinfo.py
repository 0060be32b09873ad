"""What an encoded image says about itself in its first bytes: format, width, height, channels.

No decoder is needed for that, and a damaged image gives None instead of an error. `eight_bits` is
for what Pillow has decoded.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from rn50lib.errors import UserError

if TYPE_CHECKING:
    from PIL import Image

LFS_POINTER = b"version https://git-lfs"
"""How a git-LFS pointer begins: a short text that stands where the file itself should be."""


class ImageInfo(NamedTuple):
    """``format`` is "JPEG" or "PNG"; ``channels`` 1 is grey, 3 colour, 4 CMYK or alpha;
    ``bits`` are those of a sample."""

    format: str
    width: int
    height: int
    channels: int
    bits: int = 8


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
        return ImageInfo("PNG", width, height, channels, data[24]) if channels else None
    return None


def _jpeg(data: bytes) -> ImageInfo | None:
    at = find_frame(data)
    if at is None:
        return None
    bits, height, width, channels = _SIZE.unpack_from(data, at + 4)
    return ImageInfo("JPEG", width, height, channels, bits)


def find_frame(data: bytes) -> int | None:
    """Where a JPEG's start of frame stands: 0xff, a marker, two bytes of length, the bits of a
    sample, height, width, channels (ITU T.81, B.1). None where there is none."""
    at, end = 2, len(data)
    while at + 4 <= end and data[at] == 0xFF:
        marker = data[at + 1]
        if marker == 0xFF:  # a fill byte
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return at if at + 10 <= end else None
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a length
            at += 2
        elif marker in (0xD9, 0xDA):  # the end, or the image data, before any frame
            return None
        else:
            at += 2 + (data[at + 2] << 8 | data[at + 3])
    return None


def refuse_no_image(name: str, data: bytes) -> None:
    """Raise UserError for bytes that are no image, which `name` tells where to find."""
    if not data:
        raise UserError(f"{name}: this image has no bytes; copy it again or remove it")
    if data.startswith(LFS_POINTER):
        raise UserError(
            f"{name}: this is a git-LFS pointer, not the image; `git lfs pull` fetches the images"
        )


def eight_bits(image: Image.Image) -> Image.Image:
    """A grey image of 16 bits cut down to its upper 8, as libpng, OpenCV and DALI do; any other as
    it is. Pillow's own ``convert`` makes everything above 255 white instead, and it cuts colours
    and grey with transparency itself when it opens them."""
    if not image.mode.startswith("I"):
        return image
    import numpy as np
    from PIL import Image

    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
