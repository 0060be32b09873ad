"""Check encoded images: what they are, whether they decode, and what is unusual about them.

Runs in worker processes. A JPEG is decoded at an eighth of its size, which still reads all its
data.
"""

from __future__ import annotations

import os
import zlib
from typing import Any

from PIL import Image

from rn50lib.data.decode import TOO_LARGE, find_orientation, open_image
from rn50lib.data.recordfile import MappedFile, crc32c
from rn50lib.data.recordio import HEADER, join, locate, unpack
from rn50lib.data.source import describe_pointer
from rn50lib.errors import UserError

try:
    import simplejpeg
except ImportError:  # no wheel for this platform: Pillow is used
    simplejpeg = None

Finding = tuple[str, str]
"""A kind of problem and details."""


def check_image(data: bytes, name: str = "") -> list[Finding]:
    """Return what is wrong with, or unusual about, one encoded image; nothing for most.

    ``name`` is its file name, whose extension is compared with its format; "" is not compared.
    """
    if not data:
        return [("empty-file", "")]
    if describe_pointer(data):
        return [("lfs-pointer", "")]
    try:
        image = open_image(data, "it")
    except UserError as error:
        return [_not_an_image(data, error)]
    is_jpeg = image.format != "PNG"
    misnamed = not is_jpeg and bool(name) and not name.lower().endswith(".png")
    checks = [
        ("png-as-jpeg", misnamed),
        ("cmyk", image.mode == "CMYK" and "adobe" in image.info),
        ("cmyk-plain", image.mode == "CMYK" and "adobe" not in image.info),
        ("turned", find_orientation(data) != 1),
        ("grey", len(image.getbands()) == 1 and image.mode != "P"),
    ]
    return [(kind, "") for kind, applies in checks if applies] + _decode(data, image, is_jpeg)


def _not_an_image(data: bytes, error: UserError) -> Finding:
    if not data.startswith((b"\xff\xd8\xff", b"\x89PNG")):
        return ("no-image", f"it starts with {data[:8]!r}")
    too_large = TOO_LARGE in str(error)
    return ("undecodable", str(error) if too_large else "its header is damaged or cut short")


def _decode(data: bytes, image: Image.Image, is_jpeg: bool) -> list[Finding]:
    """Decode at an eighth of the size: by libjpeg-turbo, which finds more, then by Pillow."""
    width, height = image.width // 8 or 1, image.height // 8 or 1
    complaint = ""
    if simplejpeg is not None and is_jpeg and image.mode != "CMYK":
        small = {"min_height": height, "min_width": width}
        try:
            simplejpeg.decode_jpeg(data, "GRAY", fastdct=True, fastupsample=True, **small)
            return []
        except Exception as error:
            complaint = _one_line(error)
    try:
        image.draft(image.mode, (width, height))
        image.load()
    except Exception as error:  # Pillow raises many types for damaged images
        return [("undecodable", _one_line(error))]
    return [("decoder-warning", complaint)] if complaint else []


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__


def digest(data: bytes) -> int:
    """Return a 63-bit number that is the same for the same bytes, and hardly ever for others."""
    return (zlib.crc32(data) << 31) | (len(data) & 0x7FFFFFFF)


def check_files(folder: str, names: list[str]) -> dict[str, list]:
    """Check image files; return their digests (-1 if unreadable) and (number, *finding)."""
    answer: dict[str, list] = {"digests": [], "found": []}
    for number, name in enumerate(names):
        path = os.path.join(folder, name)
        try:
            if not os.path.isfile(path):
                raise OSError("not a regular file")
            with open(path, "rb", buffering=0) as file:
                _add_image(answer, number, file.read(), name)
        except OSError as error:
            answer["found"].append([number, "unreadable", error.strerror or str(error)])
            answer["digests"].append(-1)
    return answer


def check_records(path: str, places: list[tuple[int, int | None]]) -> dict[str, list]:
    """Check records given as (offset, checksum or None) in the same way as files."""
    answer: dict[str, list] = {"digests": [], "found": []}
    file = MappedFile(path)
    for number, (offset, wanted) in enumerate(places):
        record = join(file.data(), locate(file.data(), offset, file.size))
        crc = wanted if wanted is None else crc32c(record)
        if crc != wanted:
            text = f"0x{crc:08x} instead of 0x{wanted:08x}"
            answer["found"].append([number, "checksum", text])
        # A record may be too short even for its header.
        image = unpack(record).image if len(record) >= HEADER.size else b""
        _add_image(answer, number, image, "")
    return answer


def _add_image(answer: dict[str, Any], number: int, data: bytes, name: str) -> None:
    answer["found"] += [[number, *finding] for finding in check_image(data, name)]
    answer["digests"].append(digest(data))
