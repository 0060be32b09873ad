"""Our crop, decode and resize against plain Pillow: decode the whole image, crop, resize."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image, ImageFilter

from rn50lib import recipe
from rn50lib.data import decode as images


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
