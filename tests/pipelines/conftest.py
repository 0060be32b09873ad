"""Images for the tests of several loaders, as files, RecordIO and TFRecord."""

from __future__ import annotations

import contextlib
import io
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from data_prep import im2rec, tfrecord
from rn50lib import recipe
from tests.support import png, png_chunk


def pack(root: Path) -> Path:
    """Make ROOT/records and ROOT/tfrecord."""
    with contextlib.redirect_stdout(sys.stderr):
        im2rec.ensure_records(root)
        tfrecord.convert(
            root, shards={"train": 3, "val": 2}, jobs=0, data_format="files", quiet=True
        )
    return root


def by_pillow(data: bytes, size: int, resize: int) -> np.ndarray:
    """Return a validation image by Pillow alone, without reduced decoding."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    left, top, width, height = recipe.center_crop_box(*image.size, size, resize)
    box = (left, top, left + width, top + height)
    return np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))


@pytest.fixture(scope="session")
def textured(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """12 images that reveal a wrong crop or mirroring."""
    root = tmp_path_factory.mktemp("textured")
    across, down = np.meshgrid(np.linspace(0, 1, 200), np.linspace(0, 1, 150))
    for split in ("train", "val"):
        for i in range(12):
            waves = np.sin((3 + i) * across) * np.cos((2 + i) * down)
            pixels = np.stack([across * 255, down * 255, 127 + 127 * waves], axis=-1)
            path = root / split / "ab"[i % 2] / f"{i:02d}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels.astype(np.uint8)).save(path, quality=92)
    return pack(root)


class Odd(NamedTuple):
    """An odd file: its name, its colour, and how it is saved from a red image, or its bytes."""

    name: str
    colour: tuple[int, int, int]
    mode: str
    options: dict[str, Any]
    data: bytes = b""


RED, GREY = (200, 40, 128), (98, 98, 98)
EXIF = b"Exif\0\0" + b"MM\0*\0\0\0\x08" + b"\xff" * 40  # a directory of 65,535 broken entries
PALETTE = png_chunk(b"PLTE", bytes([10, 20, 30, *RED]))
ODD = (
    Odd("alpha.png", RED, "RGBA", {}),
    Odd("cmyk.JPEG", RED, "CMYK", {}),
    Odd("dot.png", RED, "RGB", {"size": (1, 1)}),
    Odd("exif.jpg", RED, "RGB", {"exif": EXIF}),
    Odd("grey.jpg", GREY, "L", {}),
    Odd("palette.png", RED, "P", {}),
    Odd("png_inside.JPEG", RED, "RGB", {"format": "PNG"}),
    Odd("progressive.jpg", RED, "RGB", {"progressive": True}),
    Odd("thin.jpg", RED, "RGB", {"size": (2, 300)}),
    # of 16 bits the upper 8 are used, as in OpenCV and DALI
    Odd("grey_16.png", (64, 64, 64), "", {}, png(16, 0, (0x4000,))),
    Odd("grey_16_dark.png", (0, 0, 0), "", {}, png(16, 0, (200,))),
    Odd("grey_16_alpha.png", (64, 64, 64), "", {}, png(16, 4, (0x40FF, 0x8000))),
    Odd("rgb_16.png", (64, 128, 16), "", {}, png(16, 2, (0x40FF, 0x8000, 0x10C0))),
    Odd("rgba_16.png", (64, 128, 16), "", {}, png(16, 6, (0x40FF, 0x8000, 0x10C0, 0))),
    Odd("grey_2.png", (85, 85, 85), "", {}, png(2, 0, (1,))),
    Odd("white_1.png", (255, 255, 255), "", {}, png(1, 0, (1,))),
    Odd("alpha_half.png", RED, "", {}, png(8, 6, (*RED, 128))),
    Odd("palette_1.png", RED, "", {}, png(1, 3, (1,), PALETTE, png_chunk(b"tRNS", b"\xff\0"))),
)


@pytest.fixture(scope="session")
def odd(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Copies of ImageNet's odd files and some more, one per class; all of them decode."""
    root = tmp_path_factory.mktemp("odd")
    for split in ("train", "val"):
        for number, (name, _, mode, options, data) in enumerate(ODD):
            folder = root / split / f"{number:02d}"
            folder.mkdir(parents=True)
            if data:
                (folder / name).write_bytes(data)
                continue
            saved = dict(options)
            image = Image.new("RGB", saved.pop("size", (90, 60)), RED)
            image = image.quantize(8) if mode == "P" else image.convert(mode)
            image.save(folder / name, **saved)
    return pack(root)
