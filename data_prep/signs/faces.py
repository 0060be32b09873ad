"""The faces of the signs: one function per class, and some signs of no class as distractors.

The drawings are our own, after the shapes and colours of the Vienna Convention (1968).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
from PIL import Image

from data_prep.signs.vector import Canvas, Colour, arc, box, join, line, regular, rounded, smooth

RED: Colour = (196, 22, 34)
BLUE: Colour = (0, 84, 166)
YELLOW: Colour = (252, 190, 12)
WHITE: Colour = (246, 246, 242)
BLACK: Colour = (26, 26, 28)
STEEL: Colour = (158, 162, 166)

Face = Callable[[Canvas], None]

# Digits and letters as centre lines in a box 1 wide and 1.6 high, y downwards.
ZERO = [join(arc(0.5, 0.55, 0.38, 0.44, 180, 360), arc(0.5, 1.05, 0.38, 0.44, 0, 180),
             line((0.12, 1.05), (0.12, 0.8), (0.12, 0.55)))]  # fmt: skip
GLYPHS: dict[str, list[np.ndarray]] = {
    "0": ZERO,
    "O": ZERO,
    "3": [join(arc(0.48, 0.46, 0.36, 0.35, 195, 450), line((0.36, 0.81))),
          join(arc(0.47, 1.13, 0.41, 0.36, -90, 168))],
    "5": [line((0.86, 0.11), (0.22, 0.11)), line((0.25, 0.0), (0.17, 0.84)),
          join(arc(0.47, 1.06, 0.41, 0.43, 215, 360), arc(0.47, 1.06, 0.41, 0.43, 0, 150))],
    "8": [arc(0.5, 0.45, 0.335, 0.34, 0, 190), arc(0.5, 0.45, 0.335, 0.34, 180, 370),
          arc(0.5, 1.13, 0.39, 0.36, 0, 190), arc(0.5, 1.13, 0.39, 0.36, 180, 370)],
    "S": [join(arc(0.5, 0.47, 0.38, 0.36, -25, -180), arc(0.5, 0.47, 0.38, 0.33, 180, 105),
               arc(0.5, 1.13, 0.38, 0.36, -75, 90), arc(0.5, 1.13, 0.40, 0.36, 90, 158))],
    "T": [line((0.02, 0.11), (0.98, 0.11)), line((0.5, 0.11), (0.5, 1.6))],
    "P": [line((0.13, 0.0), (0.13, 1.6)),
          join(line((0.13, 0.11), (0.45, 0.11)), arc(0.5, 0.48, 0.37, 0.37, -90, 90),
               line((0.45, 0.85), (0.13, 0.85)))],
}  # fmt: skip


def write(canvas: Canvas, text: str, height: float, colour: Colour, pen: float = 0.22) -> None:
    """Centre `text` on the sign, capitals `height` high; `pen` is the width of the stroke."""
    unit = height / 1.6
    advance = unit * 1.16
    left = -advance * len(text) / 2 + 0.08 * unit
    for i, letter in enumerate(text):
        for path in GLYPHS[letter]:
            canvas.stroke(path * unit + (left + i * advance, -height / 2), pen * unit, colour)


def _ring(canvas: Canvas, colour: Colour, inner: Colour, radius: float = 0.7) -> None:
    canvas.disc(0, 0, 0.98, WHITE)
    canvas.disc(0, 0, 0.945, colour)
    canvas.disc(0, 0, radius, inner)


def _triangle(canvas: Canvas, inner: float, down: bool = False) -> None:
    """Draw a white triangle with a red border, which fills the square from -1 to 1."""
    for radius, corner, colour in ((1.16, 0.2, WHITE), (1.09, 0.18, RED), (inner, 0.06, WHITE)):
        tips = regular(3, radius, 90 if down else -90) + (0, -0.2 if down else 0.2)
        canvas.fill(rounded(tips, corner), colour)


def _warning(canvas: Canvas) -> None:
    _triangle(canvas, 0.78)


def _plate(canvas: Canvas, colour: Colour) -> None:
    canvas.fill(rounded(box(-0.94, -0.94, 0.94, 0.94), 0.14), WHITE)
    canvas.fill(rounded(box(-0.89, -0.89, 0.89, 0.89), 0.12), colour)


def _speed(canvas: Canvas, limit: str) -> None:
    _ring(canvas, RED, WHITE, 0.73)
    write(canvas, limit, 0.88, BLACK, pen=0.25)


def stop(canvas: Canvas) -> None:
    canvas.fill(regular(8, 1.03, 22.5), WHITE)
    canvas.fill(regular(8, 0.97, 22.5), RED)
    write(canvas, "STOP", 0.56, WHITE, pen=0.24)


def give_way(canvas: Canvas) -> None:
    _triangle(canvas, 0.68, down=True)


def no_entry(canvas: Canvas) -> None:
    _ring(canvas, RED, RED)
    canvas.fill(rounded(box(-0.72, -0.17, 0.72, 0.17), 0.03), WHITE)


def priority(canvas: Canvas) -> None:
    for radius, corner, colour in ((1.0, 0.12, BLACK), (0.96, 0.11, WHITE), (0.66, 0.05, YELLOW)):
        canvas.fill(rounded(regular(4, radius), corner), colour)


def bicycle(canvas: Canvas) -> None:
    _ring(canvas, BLUE, BLUE)
    left, right, crank = (-0.42, 0.2), (0.42, 0.2), (-0.05, 0.2)
    for x, y in (left, right):
        canvas.disc(x, y, 0.30, WHITE)
        canvas.disc(x, y, 0.225, BLUE)
    seat, head = (-0.2, -0.18), (0.27, -0.2)
    for path in (
        (left, seat, crank, left), (crank, head), (seat, head),
        (right, (0.22, -0.36), (0.1, -0.38)), (seat, (-0.235, -0.3)),
    ):  # fmt: skip
        canvas.limb(line(*path), 0.065, WHITE)
    canvas.limb(line((-0.34, -0.31), (-0.13, -0.31)), 0.085, WHITE)


def _walker(canvas: Canvas, x: float, y: float, s: float, colour: Colour) -> None:
    """Draw a person walking, `y` at the hip, about 1.3 `s` high."""

    def at(*points: tuple[float, float]) -> np.ndarray:
        return np.array(points) * s + (x, y)

    canvas.disc(x + 0.03 * s, y - 0.66 * s, 0.115 * s, colour)
    body = at((-0.13, -0.5), (0.14, -0.5), (0.11, 0.04), (-0.12, 0.04))
    canvas.fill(rounded(body, 0.06 * s), colour)
    for side in (((-0.05, 0.0), (-0.13, 0.32), (-0.33, 0.6)),
                 ((0.05, 0.0), (0.17, 0.3), (0.27, 0.62))):  # fmt: skip
        canvas.limb(at(*side), 0.125 * s, colour)
    for side in (((-0.1, -0.43), (-0.26, -0.2), (-0.2, 0.02)),
                 ((0.1, -0.43), (0.25, -0.22), (0.38, -0.08))):  # fmt: skip
        canvas.limb(at(*side), 0.09 * s, colour)


def crosswalk(canvas: Canvas) -> None:
    _plate(canvas, BLUE)
    canvas.fill(rounded(line((0, -0.78), (0.8, 0.66), (-0.8, 0.66)), 0.05), WHITE)
    _walker(canvas, 0.02, 0.06, 0.62, BLACK)
    for x in (-0.5, -0.25, 0.0, 0.25, 0.5):
        stripe = line((x - 0.07, 0.47), (x + 0.03, 0.47), (x + 0.07, 0.6), (x - 0.07, 0.6))
        canvas.fill(stripe, BLACK)


def roadworks(canvas: Canvas) -> None:
    _warning(canvas)
    canvas.disc(-0.02, -0.19, 0.085, BLACK)
    canvas.fill(rounded(line((-0.26, 0.12), (-0.1, -0.1), (0.05, -0.04), (-0.1, 0.2)), 0.05), BLACK)
    canvas.limb(line((-0.17, 0.14), (-0.05, 0.27), (-0.12, 0.47)), 0.09, BLACK)
    canvas.limb(line((-0.2, 0.14), (-0.26, 0.3), (-0.38, 0.47)), 0.09, BLACK)
    canvas.limb(line((-0.01, -0.04), (0.1, 0.12), (-0.0, 0.15)), 0.065, BLACK)
    canvas.limb(line((-0.22, 0.06), (0.24, 0.27)), 0.04, BLACK)
    canvas.fill(line((0.2, 0.21), (0.33, 0.31), (0.28, 0.38), (0.16, 0.3)), BLACK)
    canvas.fill(smooth([(0.1, 0.51), (0.2, 0.42), (0.32, 0.36), (0.43, 0.43), (0.52, 0.51)]), BLACK)


def deer(canvas: Canvas) -> None:
    _warning(canvas)
    body = [
        (-0.33, 0.15), (-0.28, 0.05), (-0.12, 0.02), (0.05, 0.02), (0.14, -0.07), (0.19, -0.18),
        (0.26, -0.21), (0.36, -0.13), (0.35, -0.08), (0.27, -0.09), (0.24, 0.03), (0.2, 0.16),
        (0.1, 0.22), (-0.1, 0.19), (-0.25, 0.26),
    ]  # fmt: skip
    offset = np.array([0.0, 0.075])  # of the drawing in the triangle
    canvas.fill(smooth(body) * 0.92 + offset, BLACK)
    for leg in (
        ((0.14, 0.14), (0.3, 0.18), (0.26, 0.32)), ((0.08, 0.16), (0.19, 0.27), (0.1, 0.37)),
        ((-0.24, 0.16), (-0.33, 0.3), (-0.5, 0.42)), ((-0.2, 0.18), (-0.21, 0.33), (-0.34, 0.47)),
        ((-0.31, 0.1), (-0.38, 0.06)),
    ):  # fmt: skip
        canvas.limb(line(*leg) * 0.92 + offset, 0.052, BLACK)
    for antler in (
        ((0.22, -0.2), (0.13, -0.29), (0.12, -0.42)), ((0.13, -0.29), (0.03, -0.31)),
        ((0.24, -0.2), (0.21, -0.31), (0.22, -0.38)),
    ):  # fmt: skip
        canvas.limb(line(*antler) * 0.92 + offset, 0.034, BLACK)


def roundabout(canvas: Canvas) -> None:
    _ring(canvas, BLUE, BLUE)
    for turn in (-90, 30, 150):
        end = turn - 74
        canvas.stroke(arc(0, 0, 0.5, 0.5, turn + 8, end), 0.17, WHITE)
        a = np.radians(end)
        centre = np.array([np.cos(a), np.sin(a)])
        along = np.array([np.sin(a), -np.cos(a)])  # anticlockwise in the image
        tip = 0.5 * centre + 0.24 * along - 0.05 * centre
        head = [0.71 * centre - 0.02 * along, tip, 0.29 * centre - 0.02 * along]
        canvas.fill(np.stack(head), WHITE)


def parking(canvas: Canvas) -> None:
    _plate(canvas, BLUE)
    write(canvas, "P", 1.2, WHITE)


def no_stopping(canvas: Canvas) -> None:
    _ring(canvas, RED, BLUE, 0.76)
    for slope in (-1, 1):
        canvas.stroke(line((-0.56, -0.56 * slope), (0.56, 0.56 * slope)), 0.17, RED)


def end_of_limits(canvas: Canvas) -> None:
    canvas.disc(0, 0, 0.98, STEEL)
    canvas.disc(0, 0, 0.94, WHITE)
    for offset in (-0.24, -0.08, 0.08, 0.24):
        canvas.stroke(line((-0.55, 0.6), (0.55, -0.6)) + offset, 0.07, BLACK)


def ahead(canvas: Canvas) -> None:
    _ring(canvas, BLUE, BLUE)
    canvas.fill(box(-0.11, -0.1, 0.11, 0.65), WHITE)
    canvas.fill(line((0, -0.7), (0.4, -0.12), (0.11, -0.2), (-0.11, -0.2), (-0.4, -0.12)), WHITE)


def back(canvas: Canvas) -> None:
    """Draw the grey back of a round sign that faces the other way."""
    canvas.disc(0, 0, 0.98, (120, 124, 128))
    canvas.disc(0, 0, 0.92, STEEL)
    for y in (-0.4, 0.4):
        canvas.fill(box(-0.85, y - 0.05, 0.85, y + 0.05), (134, 138, 142))


FACES: dict[str, Face] = {
    "bicycle": bicycle,
    "crosswalk": crosswalk,
    "deer": deer,
    "no-entry": no_entry,
    "priority": priority,
    "roadworks": roadworks,
    "roundabout": roundabout,
    "speed-30": partial(_speed, limit="30"),
    "speed-50": partial(_speed, limit="50"),
    "speed-80": partial(_speed, limit="80"),
    "stop": stop,
    "yield": give_way,
}
DISTRACTORS: tuple[Face, ...] = (parking, no_stopping, end_of_limits, ahead, back)


def draw_face(face: Face, size: int) -> Image.Image:
    """Return the face as an RGBA image of `size` x `size` pixels, transparent outside the sign."""
    canvas = Canvas(size)
    face(canvas)
    return canvas.finish()
