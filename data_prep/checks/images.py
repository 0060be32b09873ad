"""Looks at encoded images: what they are, whether they decode, and what is odd about them.

Runs in worker processes; a JPEG is decoded at an eighth of its size, which still reads all its
data.
"""

from __future__ import annotations

import io
import os
import re
import warnings
import zlib
from collections.abc import Callable
from typing import Any

from PIL import Image

from data_prep.encoding import ImageInfo, image_info
from rn50lib.data.folder import LFS_POINTER
from rn50lib.data.recordfile import MappedFile, crc32c
from rn50lib.data.recordio import HEADER, locate, unpack_header
from rn50lib.data.recordio import join as join_record

try:
    import simplejpeg
except ImportError:  # no wheel for this platform: Pillow serves
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
    """What is wrong with, or odd about, one encoded image; an empty list for most.

    ``name`` is its file name, whose extension is compared with what the image is; "" does not.
    """
    if not data:
        return [("empty-file", "")]
    if data.startswith(LFS_POINTER):
        return [("lfs-pointer", "")]
    info = image_info(data)
    if info is None:
        return [_no_image(data)]
    found: list[Finding] = []
    extension = os.path.splitext(name)[1].lower()
    if info.format == "PNG" and extension in (".jpg", ".jpeg"):
        found.append(("png-as-jpeg", ""))
    if info.format == "JPEG" and extension == ".png":
        found.append(("jpeg-as-png", ""))
    if info.format == "JPEG" and info.channels == 4:
        found.append(("cmyk", ""))
    if info.format == "PNG" and info.bits > 8:
        found.append(("deep", f"{info.bits} bits"))
    if info.channels == 1:
        found.append(("grey", ""))
    return found + _decode(data, info)


def _no_image(data: bytes) -> Finding:
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
        except Exception as error:  # damaged images make Pillow raise many kinds
            return [("undecodable", _one_line(error))]
        if any("EXIF" in str(warning.message) for warning in caught) and not found:
            found.append(("exif", ""))
    if complaint:
        found.append(("decoder-warning", complaint))
    return found


def _decode_strictly(data: bytes, info: ImageInfo) -> str:
    """Decode with libjpeg-turbo, small and grey; what it complained about, or ""."""
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
    """A number that is the same for the same bytes, and nearly never for others (63 bits)."""
    return (zlib.crc32(data) << 31) | (len(data) & 0x7FFFFFFF)


# -- the worker ----------------------------------------------------------------------------------


def prepare(settings: dict[str, Any]) -> Callable[[list], dict[str, list]]:
    """The function that checks a run of images: ["files" or "records", where, items].

    For files ``where`` is their folder and the items are names; for records it is the record file
    and the items are [offset, checksum or None]. It answers with the findings as [number, kind,
    details] and with the digest of each image (-1 where it could not be read).
    """
    del settings
    files: dict[str, MappedFile] = {}

    def check(task: list) -> dict[str, list]:
        form, where, items = task
        found, digests = [], []
        if form == "records" and where not in files:
            files[where] = MappedFile(where)
        for number, item in enumerate(items):
            try:
                if form == "files":
                    with open(os.path.join(where, item), "rb", buffering=0) as file:
                        data, name = file.read(), item
                else:
                    record, name = _read_record(files[where], item[0]), ""
                    found += [[number, *finding] for finding in _check_sum(record, item[1])]
                    # b"" where it has not even a header
                    data = unpack_header(record)[1] if len(record) >= HEADER.size else b""
            except OSError as error:
                found.append([number, "unreadable", error.strerror or str(error)])
                digests.append(-1)
                continue
            digests.append(digest(data))
            found += [[number, *finding] for finding in check_image(data, name)]
        return {"found": found, "digests": digests}

    return check


def _read_record(file: MappedFile, offset: int) -> bytes:
    """A record that was found whole before."""
    return join_record(file.data(), locate(file.data(), offset, file.size))


def _check_sum(record: bytes, wanted: int | None) -> list[Finding]:
    if wanted is None:
        return []
    crc = crc32c()(0, record)
    return [] if crc == wanted else [("checksum", f"0x{crc:08x} instead of 0x{wanted:08x}")]
