"""Our crop, decode and resize against plain Pillow: decode the whole image, crop, resize."""

from __future__ import annotations

import io
import struct
import warnings
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter

from rn50lib import recipe
from rn50lib.data import decode as images
from tests.support import png_chunk


def photograph(width: int, height: int, seed: int = 0) -> bytes:
    """Return a JPEG with soft shapes, edges and grain, like a photo."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 40 + 2, width // 40 + 2, 3), dtype=np.uint8)
    image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
    for _ in range(12):
        x, y = rng.integers(0, width), rng.integers(0, height)
        w, h = rng.integers(10, width // 3, 2)
        image.paste(tuple(int(c) for c in rng.integers(0, 256, 3)), (x, y, x + w, y + h))
    image = image.filter(ImageFilter.GaussianBlur(0.7))
    noisy = np.asarray(image, np.float32) + rng.normal(0, 4, (height, width, 1))
    buffer = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=90)
    return buffer.getvalue()


def plain(data: bytes, box: recipe.Box, size: int) -> np.ndarray:
    left, top, width, height = box
    whole = Image.open(io.BytesIO(data)).convert("RGB")
    part = whole.crop((left, top, left + width, top + height))
    return np.asarray(part.resize((size, size), Image.Resampling.BILINEAR))


def ours(data: bytes, box: recipe.Box, size: int) -> np.ndarray:
    return images.crop(images.open_image(data, "image"), box, size, "image")


def difference(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.abs(a.astype(float) - b.astype(float)).mean())


@pytest.mark.parametrize("size", [64, 224])
@pytest.mark.parametrize(("width", "height"), [(500, 375), (375, 500), (1600, 1200)])
def test_training_crops_match_pillow(width: int, height: int, size: int) -> None:
    data = photograph(width, height)
    for seed in range(8):
        box, _ = recipe.augment(seed, width, height)
        assert difference(ours(data, box, size), plain(data, box, size)) <= 3, box


def test_an_enlarged_crop_does_not_see_the_pixels_around_it() -> None:
    out, noise = io.BytesIO(), np.random.default_rng(0).integers(0, 256, (64, 64, 3), np.uint8)
    Image.fromarray(noise).save(out, "PNG")
    box = (10, 12, 30, 40)
    assert np.array_equal(ours(out.getvalue(), box, 96), plain(out.getvalue(), box, 96))


def test_a_small_crop_of_a_large_image_is_not_blurred() -> None:
    """Reduced decoding is not used if the crop would have to be enlarged."""
    data = photograph(1600, 1200)
    box = (400, 300, 120, 90)
    assert difference(ours(data, box, 64), plain(data, box, 64)) <= 0.1  # at a half: 1.0


def test_a_reduced_decode_does_not_shift_the_crop() -> None:
    """At an eighth, 257 pixels become 33, the last of which covers one: the scale is not 33:257."""
    ramp = np.tile(np.linspace(0, 255, 257).astype(np.uint8), (257, 1))
    for image in (ramp, ramp.T):
        buffer = io.BytesIO()
        Image.fromarray(image).convert("RGB").save(buffer, "JPEG", quality=95)
        for box in ((0, 0, 256, 256), (0, 0, 257, 257)):
            made, wanted = (f(buffer.getvalue(), box, 32) for f in (ours, plain))
            assert np.abs(made.astype(int) - wanted).max() <= 3


# --- EXIF orientation -----------------------------------------------------------------------------

DOT = Image.new("RGB", (3, 2))


def stored(form: str, block: bytes, before: bytes = b"") -> bytes:
    """Return an image with an EXIF block; `before` it, or before its segment in a JPEG."""
    buffer = io.BytesIO()
    if form == "PNG":
        DOT.save(buffer, form)
        data = buffer.getvalue()
        at = data.index(b"IDAT") - 4
        return data[:at] + png_chunk(b"eXIf", before + block) + data[at:]
    DOT.save(buffer, form, exif=b"Exif\0\0" + block)
    data = buffer.getvalue()
    at = data.find(b"\xff\xe1") if before else 0
    return data[:at] + before + data[at:]


@st.composite
def exif_blocks(draw: st.DrawFn) -> bytes:
    """Draw an EXIF block in either byte order, with other tags, odd types and damage."""
    order = draw(st.sampled_from("<>"))
    types = {1: ("B3x", 1), 3: ("H2x", 3), 4: ("I", 4)}
    value = draw(st.integers(0, 9))
    layout, number = types[draw(st.sampled_from([3, 3, 3, 1, 4]))]
    count = draw(st.sampled_from([1, 1, 1, 0]))
    turned = struct.pack(f"{order}HHI{layout}", 0x0112, number, count, value)
    others = draw(st.lists(st.sampled_from([0x0100, 0x0101, 0x011C, 0x0128]), max_size=4))
    entries = [struct.pack(f"{order}HHIH2x", tag, 3, 1, 6) for tag in others]
    entries.insert(draw(st.integers(0, len(entries))), turned)
    gap = draw(st.sampled_from([0, 0, 2, 10]))
    head = (b"II" if order == "<" else b"MM") + struct.pack(f"{order}HI", 42, 8 + gap)
    block = head + bytes(gap) + struct.pack(f"{order}H", len(entries)) + b"".join(entries)
    block += bytes(4)
    return block[: draw(st.sampled_from([len(block)] * 4 + list(range(len(block)))))]


def pillow_orientation(data: bytes) -> int:
    """Return what Pillow reads; 1 for a damaged block or a number that means nothing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = Image.open(io.BytesIO(data)).getexif().get(0x0112, 1)
    except Exception:  # Pillow raises many types for damaged blocks
        return 1
    return value if value in range(1, 9) else 1


@settings(max_examples=300, deadline=None)
@given(
    exif_blocks(),
    st.sampled_from(["JPEG", "PNG"]),
    st.sampled_from([b"", b"\xff", b"\xff\xfe\0\4hi", b"\xff\xe1\0\6http"]),
)
def test_orientation_is_what_pillow_reads(block: bytes, form: str, before: bytes) -> None:
    if form == "PNG":
        before = b"Exif\0\0" if before == b"\xff" else b""
    data = stored(form, block, before)
    assert images.find_orientation(data) == pillow_orientation(data)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_flipped_image_is_the_mirror_image_also_of_a_turned_one(orientation: int) -> None:
    exif, buffer = Image.Exif(), io.BytesIO()
    exif[0x0112] = orientation
    pixels = np.random.default_rng(0).integers(0, 256, (30, 40, 3), np.uint8)
    Image.fromarray(pixels).save(buffer, "PNG", exif=exif)
    seen = []
    for flip in (0.0, 1.0):
        config: Any = SimpleNamespace(
            image_shape=16, val_resize=18, seed=0, augmentation=recipe.Augmentation(flip=flip)
        )
        source: Any = SimpleNamespace(name=str)
        decoder = images.ImageDecoder(source, True, config)
        seen.append(decoder.decode_crop(buffer.getvalue(), epoch=0, index=0))
    assert np.array_equal(seen[1], seen[0][:, ::-1])


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("form", ["JPEG", "PNG"])
def test_orientation_of_pillows_own_files(form: str, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    buffer = io.BytesIO()
    DOT.save(buffer, form, exif=exif)
    assert images.find_orientation(buffer.getvalue()) == orientation
    for length in range(len(buffer.getvalue())):  # cut off anywhere: an answer, no error
        assert 1 <= images.find_orientation(buffer.getvalue()[:length]) <= 8
