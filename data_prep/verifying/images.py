"""Check encoded images: what they are, whether they decode, and what is unusual about them.

Runs in worker processes. A JPEG is decoded at an eighth of its size, which still reads all its
data.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from PIL import Image

from data_prep.verifying.problems import Problems
from rn50lib.data.decode import TOO_LARGE, find_orientation, is_pointer, open_image
from rn50lib.errors import UserError

try:
    import simplejpeg
except ImportError:  # no wheel for this platform: Pillow is used
    simplejpeg = None

Finding = tuple[str, str]
"""A kind of problem and details."""

Task = tuple[Any, ...]
"""A function that a worker calls with the images to fill and the arguments."""


@dataclass
class Images:
    """Images that were read: what a report calls each, its label, its digest; and the problems.

    The label is -1 if it is not a class, the digest if the image could not be read.
    """

    names: list[str] = field(default_factory=list)
    labels: list[int] = field(default_factory=list)
    digests: list[int] = field(default_factory=list)
    problems: Problems = field(default_factory=Problems)

    def add(self, name: str, label: int, digest: int) -> None:
        self.names.append(name)
        self.labels.append(label)
        self.digests.append(digest)

    def check(self, name: str, label: int, data: bytes, file: str = "") -> None:
        """Add an image, and what is wrong with it."""
        self.add(name, label, digest(data))
        for kind, text in check_image(data, file):
            self.problems.add(kind, name, text)


def prepare(settings: None) -> Callable[[Task], Images]:
    """Return the worker's function: it returns the images of a task, and what is wrong."""

    def check(task: Task) -> Images:
        found = Images()
        function, *arguments = task
        function(found, *arguments)
        return found

    return check


def digest(data: bytes) -> int:
    """Return a 63-bit number that is the same for the same bytes, and hardly ever for others."""
    # no CRC-32: a PNG ends with its own, over which the running CRC forgets most of the data
    found = hashlib.blake2b(data, digest_size=8).digest()
    return int.from_bytes(found, "big") >> 1 if data else 0


def check_image(data: bytes, name: str = "") -> list[Finding]:
    """Return what is wrong with, or unusual about, one encoded image; nothing for most.

    ``name`` is its file name, whose extension is compared with its format; "" is not compared.
    """
    if not data:
        return [("empty-file", "")]
    if is_pointer(data):
        return [("lfs-pointer", "")]
    try:
        image = open_image(data, "it")
    except UserError as error:
        if not data.startswith((b"\xff\xd8\xff", b"\x89PNG")):
            return [("no-image", f"it starts with {data[:8]!r}")]
        problem = error.args[0] if TOO_LARGE in str(error) else "its header is damaged or cut short"
        return [("undecodable", problem)]
    cmyk, png = image.mode == "CMYK", image.format == "PNG"
    checks = {
        "png-as-jpeg": png and name and not name.lower().endswith(".png"),
        "cmyk": cmyk and "adobe" in image.info,
        "cmyk-plain": cmyk and "adobe" not in image.info,
        "turned": find_orientation(data) != 1,
        "grey": len(image.getbands()) == 1 and image.mode != "P",
    }
    found = [(kind, "") for kind, applies in checks.items() if applies]
    return found + _decode(data, image, by_turbo=not (cmyk or png))


def _decode(data: bytes, image: Image.Image, by_turbo: bool) -> list[Finding]:
    """Decode at an eighth of the size: by libjpeg-turbo, which finds more, then by Pillow."""
    width, height = image.width // 8 or 1, image.height // 8 or 1
    complaint = ""
    if simplejpeg is not None and by_turbo:
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
    if image.format == "PNG":
        try:
            Image.open(io.BytesIO(data)).verify()  # checksums, which other decoders insist on
        except Exception as error:
            complaint = _one_line(error)
    return [("decoder-warning", complaint)] if complaint else []


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200] or type(error).__name__
