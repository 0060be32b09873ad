"""Decoding an image file to a square of uint8 RGB pixels, with Pillow.

Only the crop is resized, and a large JPEG is decoded at a half, a quarter or an eighth of its size
if the crop is still larger than what is asked for: libjpeg does that in the frequency domain.
"""

from __future__ import annotations

import io
import struct
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageFile, UnidentifiedImageError

from rn50lib import hooks
from rn50lib.config import TrainConfig
from rn50lib.data.sampler import image_seed
from rn50lib.data.source import refuse_no_image
from rn50lib.errors import UserError
from rn50lib.recipe import Box, center_crop_box, rotation

if TYPE_CHECKING:
    from rn50lib.data.source import Source

Image.MAX_IMAGE_PIXELS = MAX_PIXELS = 2**28  # refuse a decompression bomb, no large photograph
# a few of ImageNet's files have broken EXIF blocks; their pixels are fine
warnings.filterwarnings("ignore", "Corrupt EXIF data", UserWarning, "PIL")

VERIFY = "remove it, or let `python -m data_prep.verify` list what is wrong with the data set"

OVERSAMPLE = 2
"""How many times the pixels that the network gets are decoded of a validation image, per side: so
that all loaders give the same image, although libjpeg decodes at a part of the size."""

SIZE = struct.Struct(">HHB")  # height, width, components: from a frame's fifth byte on


def find_frame(data: bytes) -> int | None:
    """Return the place of a JPEG's start of frame (ITU T.81, B.1), None if there is none."""
    for marker, at in _segments(data):
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return at if at + 10 <= len(data) else None
    return None


def _segments(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield marker and place of each segment of a JPEG before its image data."""
    if data[:3] != b"\xff\xd8\xff":
        return
    at, end = 2, len(data)
    while at + 4 <= end:
        marker = data[at + 1]
        if data[at] != 0xFF or marker in (0x00, 0xFF):  # skipped, like fill bytes, by libjpeg
            at += 1
        elif marker == 0x01 or 0xD0 <= marker <= 0xD8:  # markers without a length
            at += 2
        elif marker in (0xD9, 0xDA):  # the end, or the image data
            return
        else:
            yield marker, at
            at += 2 + (data[at + 2] << 8 | data[at + 3])


def find_orientation(data: bytes) -> int:
    """Return the EXIF orientation of a JPEG or PNG, 1 to 8.

    It is 1, upright, if there is none, or the block is damaged. Nothing is decoded. Source: Exif
    3.0, 4.6.5 (tag 0x0112), and PNG 3, 11.3.4.5 (chunk eXIf).
    """
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        at = 8
        while at + 8 <= len(data):
            size, kind = struct.unpack_from(">I4s", data, at)
            if kind == b"eXIf":
                return _orientation_tag(data[at + 8 : at + 8 + size])
            at += size + 12
        return 1
    for marker, at in _segments(data):
        if marker == 0xE1 and data[at + 4 : at + 10] == b"Exif\0\0":
            end = at + 2 + (data[at + 2] << 8 | data[at + 3])
            return _orientation_tag(data[at + 10 : end])
    return 1


def _orientation_tag(block: bytes) -> int:
    """Return the orientation in the first directory of an EXIF block (TIFF 6.0, section 2)."""
    try:
        order = {b"II*\0": "<", b"MM\0*": ">"}[block[:4]]
        start = struct.unpack_from(f"{order}I", block, 4)[0]
        for i in range(struct.unpack_from(f"{order}H", block, start)[0]):
            tag, kind, count, value = struct.unpack_from(f"{order}HHI4s", block, start + 2 + 12 * i)
            if tag == 0x0112:
                value = struct.unpack_from(order + {3: "H", 4: "I"}[kind], value)[0]
                return value if count == 1 and 1 <= value <= 8 else 1
    except (struct.error, KeyError):  # the block is cut off, or of another form
        pass
    return 1


def eight_bits(image: Image.Image) -> Image.Image:
    """Return a grey image of 16 bits cut to its upper 8, as libpng, OpenCV and DALI do.

    Any other image is returned as it is. Pillow's own ``convert`` makes everything above 255 white,
    and it cuts colours and grey with transparency itself when it opens them.
    """
    if not image.mode.startswith("I"):
        return image
    return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))


def open_image(data: bytes, name: str) -> ImageFile.ImageFile:
    """Read the header of an image file. Raises UserError naming `name` if it is not an image."""
    try:
        return Image.open(io.BytesIO(data))  # type: ignore[return-value]
    except (UnidentifiedImageError, OSError, ValueError, Image.DecompressionBombError) as error:
        refuse_no_image(name, data)
        raise UserError(f"{name} is not an image that can be decoded; {VERIFY}") from error


def crop(
    opened: ImageFile.ImageFile, box: Box, size: int, name: str, oversample: int = 1
) -> np.ndarray:
    """Return the `box`, in pixels of the whole image, resized to uint8 (size, size, 3).

    It is antialiased, from at least `oversample` times as many pixels per side if the image has
    them. Grey, palette, CMYK, transparent and 16-bit images become RGB of 8 bits. Raises UserError
    for a damaged image.
    """
    left, top, width, height = box
    full_width, full_height = opened.size
    try:
        # round up: a hair too small a request would decode at half of what the crop needs
        least = oversample * size
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


class ImageDecoder:
    """The images of a split as the network gets them; decoded with Pillow, one at a time."""

    def __init__(self, source: Source, train: bool, config: TrainConfig) -> None:
        self.source, self.train = source, train
        self.oversample = 1 if train else OVERSAMPLE
        self.size, self.resize = config.image_shape, config.val_resize
        self.seed = config.seed
        self.augmentation = config.to_recipe().augmentation

    def decode(self, epoch: int, index: int, data: bytes | None = None) -> np.ndarray:
        """Return image `index` in `epoch`, uint8 (size, size, 3).

        `data` is the encoded image, if it is read already. Raises UserError for a bad image.
        """
        pixels = self.decode_crop(self.source.read(index) if data is None else data, epoch, index)
        if self.train and self.augmentation.rotate:
            degrees = rotation(image_seed(self.seed, epoch, index), self.augmentation)
            rotated = Image.fromarray(pixels).rotate(degrees, Image.Resampling.BILINEAR)
            pixels = np.asarray(rotated)
        return pixels

    def decode_crop(self, data: bytes, epoch: int, index: int) -> np.ndarray:
        """Return the crop of an encoded image, resized, and mirrored if that was drawn."""
        name = self.source.name(index)
        opened = open_image(data, name)
        box, mirror = self.sample_crop(epoch, index, *opened.size)
        pixels = crop(opened, box, self.size, name, self.oversample)
        return pixels[:, ::-1] if mirror else pixels

    def sample_crop(self, epoch: int, index: int, width: int, height: int) -> tuple[Box, bool]:
        """Return the crop of image `index` and whether to mirror it; for validation, its centre."""
        if not self.train:
            return center_crop_box(width, height, self.size, self.resize), False
        seed = image_seed(self.seed, epoch, index)
        box, mirror = hooks.get("augment")(seed, width, height, self.augmentation)
        left, top, w, h = box
        if not (0 <= left < left + w <= width and 0 <= top < top + h <= height):
            raise UserError(
                f"--override augment: the crop (left {left}, top {top}, width {w}, height {h}) does"
                f" not lie inside {self.source.name(index)}, which has {width} x {height} pixels"
            )
        return box, mirror

    def find_bad(self, epoch: int, numbers: Iterable[int]) -> UserError | None:
        """Return the error of the first of these images that does not decode; None if all do."""
        try:
            for number in numbers:
                self.decode(epoch, int(number))
        except UserError as error:
            return error
        return None
