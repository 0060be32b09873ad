"""Opening image files: which are read, how they become upright RGB pixels of 8 bits, with Pillow.

The rules are in docs/imagenet.md. Every reader of images uses this module, or is tested against it
(`tests/pipelines/test_openers.py`). For a crop, only the crop is resized, and a large JPEG is
decoded at a half, a quarter or an eighth of its size if the crop is still larger than what is asked
for: libjpeg does that in the frequency domain.
"""

from __future__ import annotations

import io
import math
import operator
import re
import struct
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageChops, ImageFile

from rn50lib import hooks
from rn50lib.config import TrainConfig
from rn50lib.data.sampler import image_seed
from rn50lib.data.source import VERIFY
from rn50lib.errors import UserError
from rn50lib.recipe import Box, center_crop_box

if TYPE_CHECKING:
    from rn50lib.data.source import Source

FORMATS = ("JPEG", "MPO", "PNG")  # by the content, whatever the name; MPO is a JPEG with more
Image.MAX_IMAGE_PIXELS = MAX_PIXELS = 2**28  # refuse a decompression bomb, no large photograph
# of broken EXIF blocks, which a few of ImageNet's files have, and of transparent palettes
warnings.filterwarnings("ignore", category=UserWarning, module=r"PIL\.")
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # it is refused

TOO_LARGE = f"has more than {MAX_PIXELS:,} pixels, the most that is decoded; make it smaller"

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


def _segments(data: bytes | memoryview) -> Iterator[tuple[int, int]]:
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


def find_orientation(data: bytes | memoryview) -> int:
    """Return the EXIF orientation of a JPEG or PNG, 1 to 8.

    It is 1, upright, if there is none, or the block is damaged. Nothing is decoded. Source: Exif
    3.0, 4.6.5 (tag 0x0112), and PNG 3, 11.3.4.5 (chunk eXIf).
    """
    if data[:8] == b"\x89PNG\r\n\x1a\n":
        at = 8
        while at + 8 <= len(data):
            size, kind = struct.unpack_from(">I4s", data, at)
            if kind == b"eXIf":
                block = bytes(data[at + 8 : at + 8 + size])
                return _orientation_tag(block.removeprefix(b"Exif\0\0"))  # of older writers
            at += size + 12
        return 1
    for marker, at in _segments(data):
        if marker == 0xE1 and data[at + 4 : at + 10] == b"Exif\0\0":
            end = at + 2 + (data[at + 2] << 8 | data[at + 3])
            return _orientation_tag(data[at + 10 : end])
    return 1


def _orientation_tag(block: bytes | memoryview) -> int:
    """Return the orientation in an EXIF block; 1 if it has none, or is damaged."""
    exif = Image.Exif()
    try:
        exif.load(bytes(block))
        value = exif.get(0x0112)
    except Exception:  # Pillow raises many types for damaged blocks
        return 1
    return value if isinstance(value, int) and 1 <= value <= 8 else 1


RIGHT_TO_LEFT, BOTTOM_UP = (2, 3, 6, 7), (3, 4, 7, 8)
"""The orientations whose images are flipped; from 5 on, rows and columns are exchanged first."""
MIRRORED = (2, 1, 4, 3, 6, 5, 8, 7)  # of orientation 1 to 8, the one whose image is mirrored


def turn(pixels_HWC: np.ndarray, orientation: int) -> np.ndarray:
    """Return the pixels of a stored image, or of a crop of it, upright."""
    if orientation >= 5:
        pixels_HWC = pixels_HWC.swapaxes(0, 1)
    rows = slice(None, None, -1 if orientation in BOTTOM_UP else 1)
    columns = slice(None, None, -1 if orientation in RIGHT_TO_LEFT else 1)
    return pixels_HWC[rows, columns]


def box_as_stored(box: Box, orientation: int, width: int, height: int) -> Box:
    """Return where a `box` of the upright image is in the stored one, of `width` and `height`."""
    left, top, w, h = box
    if orientation >= 5:
        width, height = height, width
    if orientation in RIGHT_TO_LEFT:
        left = width - left - w
    if orientation in BOTTOM_UP:
        top = height - top - h
    return (top, left, h, w) if orientation >= 5 else (left, top, w, h)


def is_pointer(data: bytes) -> bool:
    """Return True for what git-LFS or git-annex leaves in place of a file that is not fetched."""
    return re.match(rb"version https://git-lfs|[./]*(git/)?annex/objects/", data) is not None


def open_image(data: bytes, name: str) -> ImageFile.ImageFile:
    """Read the header of an image file.

    Raises UserError naming `name` if it is not a JPEG or PNG, or has more than `MAX_PIXELS`.
    """
    try:
        opened: ImageFile.ImageFile = Image.open(io.BytesIO(data))  # type: ignore[assignment]
    except Image.DecompressionBombError:
        raise UserError(f"{name} {TOO_LARGE}", VERIFY) from None
    except Exception as error:  # Pillow raises many types for damaged headers
        problem = f"is {'not an image that can be decoded' if data else 'empty'}; leave it out"
        if is_pointer(data):
            problem = "is a pointer of git-LFS or git-annex: fetch the images (git lfs pull)"
        raise UserError(f"{name} {problem}", VERIFY) from error
    if opened.format not in FORMATS:
        raise UserError(
            f"{name} is a {opened.format} image, and only JPEG and PNG are read: convert it, or"
            " leave it out",
            VERIFY,
        )
    if opened.width * opened.height > MAX_PIXELS:
        raise UserError(f"{name} {TOO_LARGE}", VERIFY)
    return opened


def _damaged(name: str, error: Exception) -> UserError:
    return UserError(f"{name} is damaged and does not decode ({error}); leave it out", VERIFY)


def decode_image(data: bytes, name: str) -> Image.Image:
    """Return a whole image, upright, as RGB. Raises UserError naming `name` if it is not one."""
    opened = open_image(data, name)
    try:
        opened.load()
        image = _to_rgb(opened)
    except Exception as error:  # Pillow raises many types for damaged images
        raise _damaged(name, error) from error
    orientation = find_orientation(data)
    return image if orientation == 1 else Image.fromarray(turn(np.asarray(image), orientation))


def _to_rgb(image: Image.Image) -> Image.Image:
    """Return an image as RGB of 8 bits; what is transparent keeps its colour.

    Of 16 bits the upper 8 are used, as by libpng, OpenCV and DALI: Pillow's own ``convert`` makes
    grey above 255 white. CMYK is inverted only if the file has Adobe's marker, as by libjpeg,
    TensorFlow and DALI: Pillow always does it.
    """
    if image.mode.startswith("I"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8)).convert("RGB")
    if image.mode == "CMYK" and "adobe" not in image.info:
        image = ImageChops.invert(image)
    return image if image.mode == "RGB" else image.convert("RGB")


def crop(
    opened: ImageFile.ImageFile, box: Box, size: int, name: str, oversample: int = 1
) -> np.ndarray:
    """Return the `box`, in pixels of the whole image as stored, resized to uint8 (size, size, 3).

    It is antialiased, from at least `oversample` times as many pixels per side if the image has
    them. Raises UserError for a damaged image.
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
        return resize_part(_to_rgb(opened), part, size)
    except Exception as error:  # Pillow raises many types for damaged images
        raise _damaged(name, error) from error


def resize_part(
    image: Image.Image, part: tuple[float, float, float, float], size: int
) -> np.ndarray:
    """Return a part (left, top, right, bottom) of an image, resized to uint8 (size, size, 3).

    As in DALI and TensorFlow, the filter does not see the pixels around it.
    """
    x, y = int(part[0]), int(part[1])
    cut = image.crop((x, y, math.ceil(part[2]), math.ceil(part[3])))
    exact = (part[0] - x, part[1] - y, part[2] - x, part[3] - y)
    return np.asarray(cut.resize((size, size), Image.Resampling.BILINEAR, box=exact))


class ImageDecoder:
    """The images of a split as the network gets them; decoded with Pillow, one at a time."""

    def __init__(self, source: Source, train: bool, config: TrainConfig) -> None:
        self.source, self.train = source, train
        self.oversample = 1 if train else OVERSAMPLE
        self.size, self.resize = config.image_shape, config.val_resize
        self.seed = config.seed
        self.augmentation = config.augmentation

    def decode(self, epoch: int, index: int) -> np.ndarray:
        """Return image `index` in `epoch`, uint8 (size, size, 3). Raise UserError for a bad one."""
        return self.decode_crop(self.source.read(index), epoch, index)

    def decode_crop(self, data: bytes, epoch: int, index: int) -> np.ndarray:
        """Return the crop of an encoded image, resized, upright, and mirrored if that was drawn."""
        name = self.source.name(index)
        opened = open_image(data, name)
        box, turned = self.sample_crop(epoch, index, *opened.size, find_orientation(data))
        return turn(crop(opened, box, self.size, name, self.oversample), turned)

    def sample_crop(
        self, epoch: int, index: int, width: int, height: int, orientation: int
    ) -> tuple[Box, int]:
        """Return the crop of a stored image, and the orientation with which `turn` finishes it.

        In validation it is the centre. A mirrored image is one with a different orientation.
        """
        upright = (height, width) if orientation >= 5 else (width, height)
        box, mirror = center_crop_box(*upright, self.size, self.resize), False
        if self.train:
            seed = image_seed(self.seed, epoch, index)
            made, (wide, high) = hooks.get("augment")(seed, *upright, self.augmentation), upright
            try:
                box, mirror = made
                left, top, w, h = map(operator.index, box)
                box = (left, top, w, h)
            except (TypeError, ValueError):
                raise UserError(
                    "--override augment: it must return ((left, top, width, height), mirror) in"
                    f" whole pixels, and this is {made!r}"
                ) from None
            if not (0 <= left < left + w <= wide and 0 <= top < top + h <= high):
                raise UserError(
                    f"--override augment: the crop (left {left}, top {top}, width {w}, height {h})"
                    f" does not lie inside {self.source.name(index)}, which has {wide} x {high}"
                    " pixels"
                )
        box = box_as_stored(box, orientation, width, height)
        return box, MIRRORED[orientation - 1] if mirror else orientation

    def find_bad(self, epoch: int, numbers: Iterable[int]) -> UserError | None:
        """Return the error of the first of these images that does not decode; None if all do."""
        try:
            for number in numbers:
                self.decode(epoch, int(number))
        except UserError as error:
            return error
        return None
