"""Re-encode images, as im2rec does without --pass-through."""

from __future__ import annotations

import io

from PIL import Image

from rn50lib.data.decode import decode_image

Image.preinit()  # loads its formats now, not while the first image is timed


def reencode(data: bytes, resize: int = 0, center_crop: bool = False, quality: int = 95) -> bytes:
    """Return an encoded image as an upright RGB JPEG. Raises UserError if it is not an image.

    ``center_crop`` cuts out the square in the middle; then the shorter side becomes ``resize``
    pixels long (0 keeps the size) and the other is rounded down, as in MXNet.
    """
    image = decode_image(data, "it")
    width, height = image.size
    if center_crop:
        side = min(width, height)
        left, top = (width - side) // 2, (height - side) // 2
        image = image.crop((left, top, left + side, top + side))
        width = height = side
    if resize:
        shorter = min(width, height)
        size = (width * resize // shorter, height * resize // shorter)
        image = image.resize(size, Image.Resampling.BILINEAR)
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return out.getvalue()
