"""Encoded images: open one, and re-encode it as im2rec does without --pass-through."""

from __future__ import annotations

import io
import warnings

from PIL import Image, ImageOps

from rn50lib.data.decode import eight_bits

Image.preinit()  # loads its formats now, not while the first image is timed


def open_image(data: bytes) -> Image.Image | None:
    """Read the header of a JPEG or PNG; None if it is neither, or its header is damaged."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of corrupt EXIF blocks; the pixels are fine
            return Image.open(io.BytesIO(data), formats=("JPEG", "PNG"))
    except Exception:  # Pillow raises many types for damaged images
        return None


def reencode(data: bytes, resize: int = 0, center_crop: bool = False, quality: int = 95) -> bytes:
    """Return an encoded image as an RGB JPEG. Raises whatever Pillow raises if it is damaged.

    ``center_crop`` cuts out the square in the middle; then the shorter side becomes ``resize``
    pixels long (0 keeps the size) and the other is rounded down, as in MXNet.
    """
    image = eight_bits(_upright(Image.open(io.BytesIO(data)))).convert("RGB")
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


def _upright(image: Image.Image) -> Image.Image:
    """Rotate the image as its EXIF block says, as OpenCV does; ignore a corrupt block."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # Pillow raises many types here; the pixels are fine without the block
        image.load()
        return image
