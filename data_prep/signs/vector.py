"""Anti-aliased shapes with Pillow: paths as NumPy arrays, drawn large and reduced.

Coordinates run from -1 to 1 with y downwards, so that a sign's drawing does not depend on its size.
Paths are float arrays of shape (n, 2); angles are degrees, clockwise from the positive x axis.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from PIL import Image, ImageDraw

Colour = tuple[int, int, int]
SUPERSAMPLE = 4


def arc(cx: float, cy: float, rx: float, ry: float, start: float, end: float) -> np.ndarray:
    """Return points on an ellipse from angle `start` to `end`."""
    steps = max(3, int(abs(end - start) / 4) + 1)
    angle = np.radians(np.linspace(start, end, steps))
    return np.stack([cx + rx * np.cos(angle), cy + ry * np.sin(angle)], axis=1)


def line(*points: tuple[float, float]) -> np.ndarray:
    return np.array(points, dtype=float)


def box(left: float, top: float, right: float, bottom: float) -> np.ndarray:
    return line((left, top), (right, top), (right, bottom), (left, bottom))


def join(*paths: np.ndarray) -> np.ndarray:
    return np.concatenate(paths)


def smooth(points: Iterable[tuple[float, float]], closed: bool = True) -> np.ndarray:
    """Return a curve through all `points` (a uniform Catmull-Rom spline)."""
    p = np.array(list(points), dtype=float)
    if closed:
        p = np.concatenate([p[-1:], p, p[:2]])
    else:
        p = np.concatenate([p[:1], p, p[-1:]])
    t = np.linspace(0, 1, 8, endpoint=False)[:, None]
    pieces = []
    for a, b, c, d in zip(p, p[1:], p[2:], p[3:], strict=False):
        square, cube = 2 * a - 5 * b + 4 * c - d, 3 * b - a - 3 * c + d
        pieces.append(0.5 * (2 * b + (c - a) * t + square * t**2 + cube * t**3))
    return np.concatenate(pieces)


def regular(sides: int, radius: float, turn: float = 0.0) -> np.ndarray:
    """Return a regular polygon; its first corner points `turn` degrees clockwise from the right."""
    angle = np.radians(turn + 360 / sides * np.arange(sides))
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def rounded(corners: np.ndarray, radius: float) -> np.ndarray:
    """Return the polygon with its corners rounded by quadratic curves from `radius` before each."""
    before, after = np.roll(corners, 1, axis=0), np.roll(corners, -1, axis=0)
    t = np.linspace(0, 1, 9)[:, None]
    pieces = []
    for a, b, c in zip(before, corners, after, strict=True):
        start = b + (a - b) * min(0.5, radius / float(np.hypot(*(a - b))))
        end = b + (c - b) * min(0.5, radius / float(np.hypot(*(c - b))))
        pieces.append((1 - t) ** 2 * start + 2 * t * (1 - t) * b + t**2 * end)
    return np.concatenate(pieces)


def outline(path: np.ndarray, width: float) -> np.ndarray:
    """Return the polygon of a stroke along `path` with butt ends."""
    step = np.gradient(path, axis=0)
    length = np.maximum(np.hypot(step[:, 0], step[:, 1]), 1e-9)
    normal = np.stack([-step[:, 1], step[:, 0]], axis=1) / length[:, None] * width / 2
    return np.concatenate([path + normal, (path - normal)[::-1]])


class Canvas:
    """A transparent square to draw on; `finish()` gives it as an RGBA image of `size` pixels."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.pixels = size * SUPERSAMPLE
        self.image = Image.new("RGBA", (self.pixels, self.pixels), (0, 0, 0, 0))
        self.draw = ImageDraw.Draw(self.image)

    def _xy(self, path: np.ndarray) -> list[tuple[float, float]]:
        return [tuple(p) for p in ((path + 1) * (self.pixels / 2)).tolist()]

    def fill(self, path: np.ndarray, colour: Colour) -> None:
        self.draw.polygon(self._xy(path), fill=(*colour, 255))

    def disc(self, x: float, y: float, radius: float, colour: Colour) -> None:
        square = self._xy(line((x - radius, y - radius), (x + radius, y + radius)))
        self.draw.ellipse(square, fill=(*colour, 255))

    def stroke(self, path: np.ndarray, width: float, colour: Colour) -> None:
        """Draw a line of `width` along a smooth `path`; use `limb` for a path with corners."""
        self.fill(outline(path, width), colour)

    def limb(self, path: np.ndarray, width: float, colour: Colour) -> None:
        """Draw a line of `width` with round ends and round corners."""
        for a, b in zip(path, path[1:], strict=False):
            self.stroke(np.stack([a, b]), width, colour)
            for x, y in (a, b):
                self.disc(x, y, width / 2, colour)

    def finish(self) -> Image.Image:
        return self.image.reduce(SUPERSAMPLE)
