"""What the camera does to a finished picture: focus, motion, exposure, grain."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageFilter

from data_prep.signs import knobs
from data_prep.signs.assets import GRAIN, GRAIN_LEVELS, Assets
from data_prep.signs.light import Light


def photograph(
    rng: np.random.Generator, assets: Assets, image: Image.Image, light: Light
) -> Image.Image:
    """Focus, motion, exposure and grain."""
    if rng.random() < knobs.DEFOCUS:
        image = image.filter(ImageFilter.BoxBlur(rng.uniform(*knobs.DEFOCUS_RADIUS) * 0.8))
    moved = rng.random() < knobs.MOTION
    length, angle = rng.uniform(*knobs.MOTION_LENGTH), rng.uniform(-0.5, 0.5)
    if moved:
        image = _streak(image, length * np.cos(angle), length * np.sin(angle))
    exposure = rng.uniform(*knobs.EXPOSURE)
    contrast = rng.uniform(0.9, 1.1)
    table = [int(min(255, max(0, 128 + (v * exposure - 128) * contrast))) for v in range(256)]
    pixels = np.asarray(image.point(table * 3))
    noise = rng.uniform(*knobs.NOISE) + (knobs.NIGHT_NOISE if light.name == "night" else 0)
    grain = assets.grain[int(np.argmin(np.abs(np.array(GRAIN_LEVELS) - noise)))]
    height, width = pixels.shape[:2]
    y, x = rng.integers(GRAIN - height + 1), rng.integers(GRAIN - width + 1)
    noisy = pixels + grain[y : y + height, x : x + width]
    np.clip(noisy, 0, 255, out=noisy)
    return Image.fromarray(noisy.astype(np.uint8))


def _streak(image: Image.Image, dx: float, dy: float) -> Image.Image:
    """Motion blur: the mean of eight copies along (dx, dy); edges repeat."""
    steps = [(round(k * dy), round(k * dx)) for k in np.linspace(-0.5, 0.5, 8)]
    margin = max(max(abs(y), abs(x)) for y, x in steps)
    pixels = np.asarray(image)
    height, width = pixels.shape[:2]
    wide = np.pad(pixels, ((margin, margin), (margin, margin), (0, 0)), mode="edge")
    total = np.full(pixels.shape, 4, np.uint16)
    for y, x in steps:
        total += wide[margin + y : margin + y + height, margin + x : margin + x + width]
    return Image.fromarray((total >> 3).astype(np.uint8))
