"""From the bytes of an image file to a square of uint8 RGB pixels, with Pillow.

Only the crop is resized, and a large JPEG is decoded at a half, a quarter or an eighth of its size
where the crop is still larger than what is asked for: libjpeg does that in the frequency domain.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

from rn50lib.config import Experiment
from rn50lib.errors import UserError
from rn50lib.recipe import Box
from rn50lib.records.imageinfo import eight_bits

Image.MAX_IMAGE_PIXELS = 2**28  # refuse a decompression bomb, not a large photograph
# a few of ImageNet's files have broken EXIF blocks; their pixels are fine
warnings.filterwarnings("ignore", "Corrupt EXIF data", UserWarning, "PIL")


def open_image(data: bytes, name: str) -> ImageFile.ImageFile:
    """Read the header of an image file. Raises UserError naming `name` when it is not an image."""
    try:
        return Image.open(io.BytesIO(data))  # type: ignore[return-value]
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        raise UserError(f"{name} is not an image that can be decoded{_remedy(data)}") from error


SPARE = 2
"""libjpeg can decode at a half, a quarter or an eighth of the size, which is faster, and not quite
what decoding at full size and making small gives. Of a validation image so many times the pixels
are decoded, in width and height, that the network gets: so that all loaders see the same picture
and a network gives the same answers. A training image needs no more than the network gets."""


def quick(experiment: Experiment, train: bool) -> bool:
    """Whether a JPEG is decoded in libjpeg's quick way: a coarser cosine transform, and stored
    colours repeated instead of interpolated.

    It takes a thirteenth less time, and once a picture is small it is off by 0.9 of 255 in the mean
    (at 96 px, of 500 x 375): nothing beside a random crop. Validation is careful, so that a network
    gives the same answers behind every loader; unless it is asked to hurry by `--resample fast`.
    """
    return train or experiment.resample == "fast"


def crop(opened: ImageFile.ImageFile, box: Box, size: int, name: str, spare: int = 1) -> np.ndarray:
    """The `box` (in pixels of the whole image) resized to uint8 (size, size, 3), antialiased, from
    at least `spare` times as many pixels a side where the image has them.

    Grey, palette, CMYK, transparent and 16-bit images become RGB of 8 bits. Raises UserError for
    a damaged image.
    """
    left, top, width, height = box
    full_width, full_height = opened.size
    try:
        # round up: a hair too small a request would decode at half of what the crop needs
        least = spare * size
        wanted = (-(-full_width * least // width), -(-full_height * least // height))
        drafted = opened.draft("RGB", wanted)
        # the exact scale: the size itself is rounded up, and would shift the crop
        scale = drafted[1][2] / full_width if drafted else 1.0
        part = (left * scale, top * scale, (left + width) * scale, (top + height) * scale)
        image = opened if opened.mode == "RGB" else eight_bits(opened).convert("RGB")
        resized = image.resize((size, size), Image.Resampling.BILINEAR, box=part)
        return np.asarray(resized)
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise UserError(f"{name} is damaged and does not decode ({error}); {_VERIFY}") from error


_VERIFY = "remove it, or let `python -m data_prep.verify` list what is wrong with the data set"


def _remedy(data: bytes) -> str:
    if data.startswith(b"version https://git-lfs"):
        return ": it is a git-LFS pointer; run `git lfs pull` where the data came from"
    if not data:
        return f": it is empty; {_VERIFY}"
    return f"; {_VERIFY}"
