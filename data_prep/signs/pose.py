"""A flat sign in space: projection and perspective warp."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image


@dataclass(frozen=True)
class Pose:
    """The place of a sign: centre and diameter in pixels, roll, yaw, pitch in radians."""

    x: float
    y: float
    diameter: float
    roll: float
    yaw: float
    pitch: float
    distance: float  # of the camera, in diameters

    def project(self, u: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return image coordinates of points (u, v) on the sign, with its edge at distance 1."""
        cr, sr = np.cos(self.roll), np.sin(self.roll)
        cy, sy = np.cos(self.yaw), np.sin(self.yaw)
        cp, sp = np.cos(self.pitch), np.sin(self.pitch)
        x, y = u * cr - v * sr, u * sr + v * cr
        x, z = x * cy, x * sy
        y, z = y * cp - z * sp, y * sp + z * cp
        near = 2 * self.distance / (2 * self.distance + z)
        half = self.diameter / 2
        return self.x + half * x * near, self.y + half * y * near

    def corners(self) -> np.ndarray:
        """Return the corners of the square around the sign, (4, 2) from the upper left."""
        x, y = self.project(np.array([-1, 1, 1, -1.0]), np.array([-1, -1, 1, 1.0]))
        return np.stack([x, y], axis=1)


def _homography(quad: np.ndarray) -> np.ndarray:
    """Return the 3 x 3 map from the unit square to `quad`, (4, 2) clockwise from the upper left.

    After Heckbert, Fundamentals of Texture Mapping and Image Warping (1989), section 2.2.3.
    """
    (x0, y0), (x1, y1), (x2, y2), (x3, y3) = quad.tolist()
    dx1, dx2, dx3 = x1 - x2, x3 - x2, x0 - x1 + x2 - x3
    dy1, dy2, dy3 = y1 - y2, y3 - y2, y0 - y1 + y2 - y3
    det = dx1 * dy2 - dx2 * dy1
    g, h = (dx3 * dy2 - dx2 * dy3) / det, (dx1 * dy3 - dx3 * dy1) / det
    x, y = [x1 - x0 + g * x1, x3 - x0 + h * x3, x0], [y1 - y0 + g * y1, y3 - y0 + h * y3, y0]
    return np.array([x, y, [g, h, 1]])


def warp(
    source: Image.Image, quad: np.ndarray, sharp: bool = True
) -> tuple[Image.Image, tuple[int, int]]:
    """Return `source` with its corners at `quad`, and the position of the upper left corner."""
    left, top = np.floor(quad.min(axis=0)).astype(int) - 1
    right, bottom = np.ceil(quad.max(axis=0)).astype(int) + 2
    back = np.linalg.inv(_homography(quad - (left, top)))
    back[0] *= source.width
    back[1] *= source.height
    back /= back[2, 2]
    size = (int(right - left), int(bottom - top))
    coefficients = back.ravel()[:8].tolist()
    resample = Image.Resampling.BICUBIC if sharp else Image.Resampling.BILINEAR
    method = Image.Transform.PERSPECTIVE
    return source.transform(size, method, coefficients, resample), (int(left), int(top))
