"""From the bytes of an image file to a square of uint8 RGB pixels, with Pillow.

Only the crop is resized, and a large JPEG is decoded at a half, a quarter or an eighth of its size
where the crop is still larger than what is asked for: libjpeg does that in the frequency domain.
"""

from __future__ import annotations

import io
import warnings

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

from rn50lib import hooks as overrides
from rn50lib.config import TrainConfig
from rn50lib.errors import UserError
from rn50lib.recipe import Box, center_crop_box, turn
from rn50lib.data import order
from rn50lib.data.imageinfo import eight_bits, refuse_no_image
from rn50lib.data.source import Source

Image.MAX_IMAGE_PIXELS = MAX_PIXELS = 2**28  # refuse a decompression bomb, no large photograph
# a few of ImageNet's files have broken EXIF blocks; their pixels are fine
warnings.filterwarnings("ignore", "Corrupt EXIF data", UserWarning, "PIL")

VERIFY = "remove it, or let `python -m data_prep.verify` list what is wrong with the data set"


def open_image(data: bytes, name: str) -> ImageFile.ImageFile:
    """Read the header of an image file. Raises UserError naming `name` when it is not an image."""
    try:
        return Image.open(io.BytesIO(data))  # type: ignore[return-value]
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        refuse_no_image(name, data)
        raise UserError(f"{name} is not an image that can be decoded; {VERIFY}") from error


SPARE = 2
"""libjpeg can decode at a half, a quarter or an eighth of the size, which is faster, and not quite
what decoding at full size and making small gives. Of a validation image so many times the pixels
are decoded, in width and height, that the network gets: so that all loaders see the same picture
and a network gives the same answers. A training image needs no more than the network gets."""


def quick(experiment: TrainConfig, train: bool) -> bool:
    """Whether a JPEG is decoded in libjpeg's quick way: a coarser cosine transform, and stored
    colours repeated instead of interpolated.

    It takes less time, and what it is off by, once a picture is small, is nothing beside a random
    crop. Validation is careful, so that a network gives the same answers behind every loader;
    unless it is asked to hurry by `--resample fast`.
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
        raise UserError(f"{name} is damaged and does not decode ({error}); {VERIFY}") from error


class Pictures:
    """The images of a split as the network gets them; decoded with Pillow, one at a time."""

    def __init__(self, source: Source, train: bool, experiment: TrainConfig) -> None:
        self.source, self.train = source, train
        self.spare = 1 if train else SPARE
        self.size, self.resize = experiment.image_shape, experiment.val_resize
        self.seed = experiment.seed
        self.augmentation = experiment.to_recipe().augmentation

    def image(self, epoch: int, index: int) -> np.ndarray:
        """Image `index` in `epoch`, uint8 (size, size, 3). Raises UserError for a bad image."""
        return self.from_bytes(self.source.read(index), epoch, index)

    def from_bytes(self, data: bytes, epoch: int, index: int) -> np.ndarray:
        """The same from the encoded image, which has been read already."""
        pixels = self.part(data, epoch, index)
        upside_down, degrees = self.turn(epoch, index)
        if upside_down:
            pixels = pixels[::-1]
        if degrees:
            turned = Image.fromarray(pixels).rotate(degrees, Image.Resampling.BILINEAR)
            pixels = np.asarray(turned)
        return pixels

    def part(self, data: bytes, epoch: int, index: int) -> np.ndarray:
        """The crop of an encoded image, made small and mirrored where that was chosen."""
        name = self.source.name(index)
        opened = open_image(data, name)
        box, mirror = self.choose(epoch, index, *opened.size)
        pixels = crop(opened, box, self.size, name, self.spare)
        return pixels[:, ::-1] if mirror else pixels

    def choose(self, epoch: int, index: int, width: int, height: int) -> tuple[Box, bool]:
        """The crop of image `index` and whether to mirror it; for validation, its centre."""
        if not self.train:
            return center_crop_box(width, height, self.size, self.resize), False
        seed = order.image_seed(self.seed, epoch, index)
        box, mirror = overrides.get("augment")(seed, width, height, self.augmentation)
        left, top, w, h = box
        if not (0 <= left < left + w <= width and 0 <= top < top + h <= height):
            raise UserError(
                f"--override augment: the crop (left {left}, top {top}, width {w}, height {h}) does"
                f" not lie inside {self.source.name(index)}, which has {width} x {height} pixels"
            )
        return box, mirror

    def turn(self, epoch: int, index: int) -> tuple[bool, float]:
        """Whether image `index` is turned upside down, and the degrees it is turned by then."""
        if not self.train:
            return False, 0.0
        return turn(order.image_seed(self.seed, epoch, index), self.augmentation)
