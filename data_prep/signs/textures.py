"""Surfaces as arrays: ground, clouds, dirt, grain. All follow from the random generator given."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageFilter

from data_prep.signs.vector import Canvas

TEXTURE = 256  # side of a ground texture; it is mirrored, so that it repeats without a seam


def smooth_noise(
    rng: np.random.Generator, height: int, width: int, cell: int, octaves: int = 4,
    gain: float = 0.55,
) -> np.ndarray:  # fmt: skip
    """Return fractal noise, float32 (height, width), mean about 0.5, mostly 0.2 to 0.8."""
    total = np.zeros((height, width), np.float32)
    weight, norm = 1.0, 0.0
    for _ in range(octaves):
        grid = rng.random((height // cell + 3, width // cell + 3), dtype=np.float32)
        layer = Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC)
        total += weight * np.asarray(layer)
        norm += weight
        weight *= gain
        cell = max(1, cell // 2)
    return total / norm


def _mirrored(texture: np.ndarray) -> np.ndarray:
    double = np.concatenate([texture, texture[:, ::-1]], axis=1)
    return np.ascontiguousarray(np.concatenate([double, double[::-1]], axis=0))


def ground_texture(
    rng: np.random.Generator, colour: tuple, rough: float, patch: float, tint: tuple = (0, 0, 0)
) -> np.ndarray:
    """Return a ground texture, uint8 of shape (2 TEXTURE, 2 TEXTURE, 3).

    Fine grain of strength `rough`, and patches of strength `patch` that tend towards `tint`.
    """
    fine = rng.normal(0, rough, (TEXTURE, TEXTURE, 1))
    fine = fine + rng.normal(0, rough / 4, (TEXTURE, TEXTURE, 3))
    large = (smooth_noise(rng, TEXTURE, TEXTURE, 64) - 0.5)[..., None] * patch
    value = np.array(colour) + fine + large * (60 + np.array(tint))
    return _mirrored(np.clip(value, 0, 255).astype(np.uint8))


def slabs(rng: np.random.Generator) -> np.ndarray:
    texture = ground_texture(rng, (158, 152, 144), 9, 0.6)
    for i in range(0, 2 * TEXTURE, 32):
        texture[i : i + 2] = texture[i : i + 2] * 0.72
        texture[:, i : i + 2] = texture[:, i : i + 2] * 0.72
    return texture


def cloud(rng: np.random.Generator, cover: float) -> Image.Image:
    """Return the amount of cloud at each place: mode L."""
    noise = smooth_noise(rng, 300, 1200, 120, octaves=6, gain=0.5)
    alpha = np.clip((noise - (1 - cover)) * 5, 0, 1)
    return Image.fromarray((255 * alpha * alpha * (3 - 2 * alpha)).astype(np.uint8))


def soft_disc(size: int, power: float) -> Image.Image:
    y, x = np.mgrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j]
    return Image.fromarray((255 * np.clip(1 - np.hypot(x, y), 0, 1) ** power).astype(np.uint8))


def bokeh() -> Image.Image:
    canvas = Canvas(48)
    canvas.disc(0, 0, 0.9, (255, 255, 255))
    canvas.disc(0, 0, 0.8, (190, 190, 190))
    return canvas.finish().getchannel("R").filter(ImageFilter.GaussianBlur(0.6))


def sheeting(size: int) -> np.ndarray:
    """Return the honeycomb of retro-reflective sheeting: factors near 1, float32 (size, size)."""
    y, x = np.mgrid[0:size, 0:size] * (2 * np.pi / 16)
    cells = np.cos(x) + np.cos(0.5 * x + 0.866 * y) + np.cos(0.5 * x - 0.866 * y)
    return (1 + 0.05 * np.clip(cells, -1, 1)).astype(np.float32)
