"""Check encoded images: what they are, whether they decode, and what is unusual about them.

Runs in worker processes. A JPEG is decoded at an eighth of its size, which still reads all its
data.
"""

from __future__ import annotations

import io
import os
import re
import warnings
import zlib
from typing import Any

from PIL import Image

from data_prep.encoding import ImageInfo, image_info
from rn50lib.data.folder import LFS_POINTER
from rn50lib.data.recordfile import MappedFile, crc32c
from rn50lib.data.recordio import HEADER, join, locate, unpack_header

try:
    import simplejpeg
except ImportError:  # no wheel for this platform: Pillow is used
    simplejpeg = None

Finding = tuple[str, str]
"""A kind of problem and details."""

_OTHER_FORMATS = {
    b"GIF8": "a GIF",
    b"RIFF": "a WebP",
    b"BM": "a BMP",
    b"II*\0": "a TIFF",
    b"MM\0*": "a TIFF",
    b"<": "a text, perhaps a web page",
    b"{": "a text",
}


def check_image(data: bytes, name: str = "") -> list[Finding]:
    """Return what is wrong with, or unusual about, one encoded image; nothing for most.

    ``name`` is its file name, whose extension is compared with its format; "" is not compared.
    """
    if not data:
        return [("empty-file", "")]
    if data.startswith(LFS_POINTER):
        return [("lfs-pointer", "")]
    info = image_info(data)
    if info is None:
        return [_not_an_image(data)]
    extension = os.path.splitext(name)[1].lower()
    is_jpeg, is_png = info.format == "JPEG", info.format == "PNG"
    checks = [
        ("png-as-jpeg", "", is_png and extension in (".jpg", ".jpeg")),
        ("jpeg-as-png", "", is_jpeg and extension == ".png"),
        ("cmyk", "", is_jpeg and info.channels == 4),
        ("deep", f"{info.bits} bits", is_png and info.bits > 8),
        ("grey", "", info.channels == 1),
    ]
    return [(kind, text) for kind, text, applies in checks if applies] + _decode(data, info)


def _not_an_image(data: bytes) -> Finding:
    for start, what in _OTHER_FORMATS.items():
        if data.startswith(start):
            return ("no-image", f"this looks like {what}")
    if data.startswith((b"\xff\xd8\xff", b"\x89PNG")):
        return ("undecodable", "its header is damaged or cut short")
    return ("no-image", f"it starts with {data[:8]!r}")


def _decode(data: bytes, info: ImageInfo) -> list[Finding]:
    has_exif = b"Exif\0\0" in data[:65536]
    complaint = ""
    if simplejpeg is not None and info.format == "JPEG" and info.channels != 4:
        complaint = _decode_strictly(data, info)
        if not complaint and not has_exif:
            return []
    found: list[Finding] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            image = Image.open(io.BytesIO(data))
            if has_exif:
                found += _check_exif(image)
            if complaint or info.format == "PNG" or info.channels == 4 or simplejpeg is None:
                image.draft(image.mode, (info.width // 8 or 1, info.height // 8 or 1))
                image.load()
        except Exception as error:  # Pillow raises many types for damaged images
            return [("undecodable", _one_line(error))]
        if any("EXIF" in str(warning.message) for warning in caught) and not found:
            found.append(("exif", ""))
    if complaint:
        found.append(("decoder-warning", complaint))
    return found


def _decode_strictly(data: bytes, info: ImageInfo) -> str:
    """Decode with libjpeg-turbo, small and grey; return its complaint, or ""."""
    small = {"min_height": info.height // 8 or 1, "min_width": info.width // 8 or 1}
    try:
        simplejpeg.decode_jpeg(data, "GRAY", fastdct=True, fastupsample=True, **small)
    except Exception as error:
        return _one_line(error)
    return ""


def _check_exif(image: Image.Image) -> list[Finding]:
    try:
        orientation = image.getexif().get(0x0112, 1)
    except Exception as error:  # as for images
        return [("exif", _one_line(error))]
    return [("turned", f"orientation {orientation}")] if orientation in range(2, 9) else []


def _one_line(error: Exception) -> str:
    text = re.sub(r"\s+", " ", str(error)).strip()
    return re.sub(r"<_io\.BytesIO object at \w+>", "it", text)[:200] or type(error).__name__


def digest(data: bytes) -> int:
    """Return a 63-bit number that is the same for the same bytes, and hardly ever for others."""
    return (zlib.crc32(data) << 31) | (len(data) & 0x7FFFFFFF)


def check_files(folder: str, names: list[str]) -> dict[str, list]:
    """Check image files; return their digests (-1 if unreadable) and (number, *finding)."""
    answer: dict[str, list] = {"digests": [], "found": []}
    for number, name in enumerate(names):
        try:
            with open(os.path.join(folder, name), "rb", buffering=0) as file:
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
        crc = wanted if wanted is None else crc32c()(0, record)
        if crc != wanted:
            text = f"0x{crc:08x} instead of 0x{wanted:08x}"
            answer["found"].append([number, "checksum", text])
        # A record may be too short even for its header.
        image = unpack_header(record)[1] if len(record) >= HEADER.size else b""
        _add_image(answer, number, image, "")
    return answer


def _add_image(answer: dict[str, Any], number: int, data: bytes, name: str) -> None:
    answer["found"] += [[number, *finding] for finding in check_image(data, name)]
    answer["digests"].append(digest(data))
