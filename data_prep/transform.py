"""im2rec without --pass-through: decode, crop, resize and re-encode an image with Pillow."""

from __future__ import annotations

import io
from dataclasses import dataclass

from PIL import Image, ImageOps

from rn50lib.data.decode import eight_bits
from rn50lib.errors import UserError

Image.preinit()  # loads its formats now, not while the first image is timed

COLOR, GREY, AS_IS = 1, 0, -1
"""The values of --color, as OpenCV numbers them."""


@dataclass(frozen=True)
class Transform:
    """The changes to each image. ``resize`` 0 keeps the size.

    ``quality`` is 1–100 for JPEG (default 95) and the compression 1–9 for PNG (default 6).
    """

    resize: int = 0
    center_crop: bool = False
    quality: int | None = None
    color: int = COLOR
    encoding: str = ".jpg"

    def __post_init__(self) -> None:
        most = 9 if self.encoding == ".png" else 100
        if self.quality is not None and not 1 <= self.quality <= most:
            raise UserError(f"--quality {self.quality}: use 1 to {most} for {self.encoding}")
        if self.resize < 0:
            raise UserError(f"--resize {self.resize}: pass the shorter side's length in pixels")

    def apply(self, data: bytes) -> bytes:
        """Transform one encoded image. Raises whatever Pillow raises if it is damaged."""
        image: Image.Image = Image.open(io.BytesIO(data))
        if self.color != AS_IS:
            image = eight_bits(_upright(image)).convert("L" if self.color == GREY else "RGB")
        elif image.mode not in ("L", "RGB") and not (
            self.encoding == ".png" and image.mode in ("RGBA", "LA", "I;16")
        ):
            image = eight_bits(image)
            if image.mode != "L":
                image = image.convert("RGBA" if _has_alpha(image, self.encoding) else "RGB")
        if self.center_crop:
            image = _square(image)
        if self.resize:
            image = image.resize(_shorter_side(image.size, self.resize), Image.Resampling.BILINEAR)
        out = io.BytesIO()
        if self.encoding == ".png":
            image.save(out, "PNG", compress_level=self.quality or 6)
        else:
            image.save(out, "JPEG", quality=self.quality or 95)
        return out.getvalue()


def _upright(image: Image.Image) -> Image.Image:
    """Rotate the image as its EXIF block says, as OpenCV does; ignore a corrupt block."""
    try:
        return ImageOps.exif_transpose(image)
    except Exception:  # Pillow raises many types here; the pixels are fine without the block
        image.load()
        return image


def _has_alpha(image: Image.Image, encoding: str) -> bool:
    return encoding == ".png" and ("A" in image.mode or "transparency" in image.info)


def _square(image: Image.Image) -> Image.Image:
    width, height = image.size
    side = min(width, height)
    left, top = (width - side) // 2, (height - side) // 2
    return image.crop((left, top, left + side, top + side))


def _shorter_side(size: tuple[int, int], target: int) -> tuple[int, int]:
    """Apply MXNet's rule: the shorter side becomes ``target``, the other is rounded down."""
    width, height = size
    if height > width:
        return target, height * target // width
    return width * target // height, target
