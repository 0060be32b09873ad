"""JPEGs for the comparison of loaders: noise on every scale, 500 x 375, quality 90, about 94 KB.

A decoder's time depends on the bytes and the pixels, not on what the image shows; but pure noise
would have six times the bytes of a photo.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
from PIL import Image

WIDTH, HEIGHT, CLASSES, SIDE = 500, 375, 10, 1600
STRENGTHS = {1: 19.0, 2: 17.0, 4: 15.0, 8: 16.0, 16: 20.0, 32: 28.0, 64: 40.0}  # by scale in pixels


def texture(rng: np.random.Generator) -> np.ndarray:
    """Return noise on every scale, uint8 (SIDE, SIDE, 3); each image is a window of it."""
    total = np.full((SIDE, SIDE, 3), 128.0, np.float32)
    for scale, strength in STRENGTHS.items():
        small = rng.normal(size=(SIDE // scale, SIDE // scale, 3)).astype(np.float32)
        small = 0.3 * small + 0.7 * small.mean(axis=2, keepdims=True)  # photos are pale
        for channel in range(3):
            layer = Image.fromarray(small[..., channel]).resize((SIDE, SIDE), Image.BICUBIC)
            total[..., channel] += strength * np.asarray(layer)
    return np.clip(total, 0, 255).astype(np.uint8)


def make(root: Path, count: int) -> tuple[int, float]:
    """Draw `count` images into ROOT/train/CLASS, unless they exist; return (count, mean bytes)."""
    rng, sizes = np.random.default_rng(0), []
    whole = Image.fromarray(texture(rng))
    for split, wanted in (("val", CLASSES), ("train", count)):
        sizes = []
        for i in range(wanted):
            path = root / split / f"{i % CLASSES}" / f"{i:05d}.jpg"
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                left, top = rng.integers(SIDE - WIDTH), rng.integers(SIDE - HEIGHT)
                window = whole.crop((left, top, left + WIDTH, top + HEIGHT))
                window.save(path.with_suffix(".part"), "JPEG", quality=90)
                os.replace(path.with_suffix(".part"), path)
            sizes.append(path.stat().st_size)
    return len(sizes), float(np.mean(sizes))
