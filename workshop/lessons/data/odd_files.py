"""Made twins of the odd files that are met in ImageNet and in folders copied by hand.

`make` returns their bytes; `decode` sends them through the decoder of the training input and says
what came out.
"""

from __future__ import annotations

import io
import struct
import warnings
from dataclasses import dataclass

import numpy as np
from PIL import Image

from rn50lib.data.decode import crop, open_image
from rn50lib.errors import UserError
from rn50lib.recipe import center_crop_box


@dataclass(frozen=True)
class OddFile:
    """One file: its name, what is odd about it, and where that was met."""

    name: str
    what: str
    met: str
    data: bytes


def make(picture: bytes) -> list[OddFile]:
    """The twins, made from the JPEG `picture`; the first one is the picture itself."""
    image = Image.open(io.BytesIO(picture)).convert("RGB")
    pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:{}\nsize {}\n"
    empty_hash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    return [
        OddFile("ordinary.JPEG", "nothing: the picture as it is", "", picture),
        OddFile(
            "cmyk.JPEG",
            "a JPEG in the four colours of a printing press",
            "22 training files, such as n01739381_1309",
            _saved(image.convert("CMYK"), "JPEG", quality=95),
        ),
        OddFile(
            "png.JPEG",
            "a PNG whose name says JPEG",
            "1 training file, n02105855_2933",
            _saved(image, "PNG"),
        ),
        OddFile(
            "exif.JPEG",
            "a corrupt EXIF block",
            "some training files, such as n04152593_17460",
            with_exif(picture, b"MM\0*" + struct.pack(">I", 0x7FFFFFFF) + b"\xff" * 20),
        ),
        OddFile(
            "turned.JPEG",
            "EXIF says: turn me by 90 degrees",
            "pictures of telephones",
            with_exif(picture, _orientation(6)),
        ),
        OddFile(
            "grey.JPEG",
            "one channel instead of three",
            "grey photographs, here and in ImageNet",
            _saved(image.convert("L"), "JPEG", quality=95),
        ),
        OddFile(
            "cut.JPEG",
            "its last third is missing",
            "copies that were interrupted",
            picture[: len(picture) * 2 // 3],
        ),
        OddFile(
            "text.JPEG",
            "a text instead of a picture",
            "error pages saved by a downloader",
            b"<html><body>404: this picture has moved</body></html>\n",
        ),
        OddFile(
            "pointer.JPEG",
            "a git-LFS pointer instead of the file",
            "repositories cloned without git-lfs",
            pointer.format(empty_hash, len(picture)).encode(),
        ),
        OddFile("empty.JPEG", "no bytes at all", "full disks", b""),
    ]


def _saved(image: Image.Image, form: str, **options: int) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **options)
    return out.getvalue()


def with_exif(jpeg: bytes, tiff: bytes) -> bytes:
    """The JPEG with an EXIF block that holds `tiff`, put right behind its first marker."""
    body = b"Exif\0\0" + tiff
    return jpeg[:2] + b"\xff\xe1" + struct.pack(">H", len(body) + 2) + body + jpeg[2:]


def _orientation(value: int) -> bytes:
    """A TIFF block with one entry: Orientation (0x0112), a 16-bit number."""
    entry = struct.pack("<HHIHH", 0x0112, 3, 1, value, 0)
    return b"II*\0" + struct.pack("<IH", 8, 1) + entry + struct.pack("<I", 0)


@dataclass(frozen=True)
class Outcome:
    """What the decoder made of a file. `pixels` is uint8 (size, size, 3), None where it refused."""

    opens_as: str
    pixels: np.ndarray | None
    said: str  # the error, or a warning of the image library, in one line


def decode(data: bytes, name: str, size: int = 224) -> Outcome:
    """Send a file through the training input's decoder: its validation crop, and what was said."""
    opens_as = "–"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            opened = open_image(data, name)
            opens_as = f"{opened.format}, {opened.mode}"
            box = center_crop_box(*opened.size, size)
            pixels = crop(opened, box, size, name)
        except UserError as error:
            return Outcome(opens_as, None, str(error))
    said = f"warning: {' '.join(str(caught[0].message).split())}" if caught else ""
    return Outcome(opens_as, pixels, said)
