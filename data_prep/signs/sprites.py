"""Objects along a road, drawn with Pillow: trees, houses, cars, lamps, boards, twigs.

Each function draws a new specimen from the random generator that it is given.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from data_prep.signs.textures import smooth_noise
from data_prep.signs.vector import Canvas, Colour, box, line, rounded, smooth


@dataclass(frozen=True)
class Sprite:
    """A thing that stands on the ground, `metres` high, in a few sizes, the largest first.

    A size holds colours (RGB), coverage (L) and what shines at night (RGBA, or None). The colours
    go on beyond the edge of the thing, so that scaling needs no premultiplied alpha.
    """

    metres: float
    sizes: tuple[tuple[Image.Image, Image.Image, Image.Image | None], ...]

    def at(self, pixels: float) -> tuple[Image.Image, Image.Image, Image.Image | None]:
        """Return the smallest size that is at least `pixels` high, else the largest."""
        return next((s for s in reversed(self.sizes) if s[1].height >= pixels), self.sizes[0])


def _sprite(image: Image.Image, metres: float, lit: Image.Image | None = None) -> Sprite:
    """Return a sprite from an RGBA drawing, cropped to what is drawn on it."""
    drawn = image.getbbox()
    image = image.crop(drawn)
    around = image.filter(ImageFilter.BoxBlur(3)).convert("RGB")
    mask = image.getchannel("A")
    around.paste(image.convert("RGB"), (0, 0), mask)
    layers = (around, mask, lit.crop(drawn) if lit else None)
    halves = (tuple(i.reduce(n) if i else None for i in layers) for n in (2, 4))
    return Sprite(metres, (layers, *halves))  # type: ignore[arg-type]


def _shade(colour: Colour, factor: float) -> Colour:
    r, g, b = (int(min(255, max(0, c * factor))) for c in colour)
    return r, g, b


def tree(rng: np.random.Generator, base: Colour) -> Sprite:
    """Draw a broad-leaved tree: a trunk and some two thousand leaves, lit from the upper left."""
    w, h = 360, 440
    image = Image.new("RGBA", (w, h), (*_shade(base, 0.5), 0))
    draw = ImageDraw.Draw(image)
    bark = _shade((96, 76, 58), rng.uniform(0.7, 1.1))
    trunk = [(w * 0.46, h * 0.5), (w * 0.54, h * 0.5), (w * 0.56, h), (w * 0.44, h)]
    draw.polygon(trunk, fill=bark)
    for side in (-1, 1):
        draw.line([(w * 0.5, h * 0.68), (w * (0.5 + 0.2 * side), h * 0.42)], fill=bark, width=10)
    lumps = [(0.5, 0.36, 0.30)] + [
        (0.5 + rng.uniform(-0.26, 0.26), rng.uniform(0.2, 0.52), rng.uniform(0.13, 0.24))
        for _ in range(int(rng.integers(5, 9)))
    ]
    lumps.sort(key=lambda lump: -lump[1])
    for cx, cy, r in lumps:
        n = int(1500 * r)
        angle, radius = rng.uniform(0, 2 * np.pi, n), r * np.sqrt(rng.random(n))
        x, y = cx + radius * np.cos(angle), cy + 0.8 * radius * np.sin(angle)
        light = 0.72 - 0.42 * ((x - cx) * 0.5 + (y - cy)) / r + rng.normal(0, 0.13, n)
        size = rng.uniform(4, 10, n)
        for i in np.argsort(light):
            px, py, s = x[i] * w, y[i] * h, size[i]
            draw.ellipse((px - s, py - s * 0.8, px + s, py + s * 0.8), fill=_shade(base, light[i]))
    return _sprite(image.reduce(2), rng.uniform(5, 11))


def conifer(rng: np.random.Generator, base: Colour) -> Sprite:
    w, h = 260, 480
    image = Image.new("RGBA", (w, h), (*_shade(base, 0.5), 0))
    draw = ImageDraw.Draw(image)
    draw.rectangle((w * 0.47, h * 0.8, w * 0.53, h), fill=(74, 58, 46))
    tiers = int(rng.integers(9, 13))
    for tier in range(tiers, -1, -1):
        top = 0.02 + 0.8 * tier / tiers
        half = 0.06 + 0.42 * (tier / tiers) ** 0.9
        for _ in range(30 + 8 * tier):
            t = rng.uniform(-1, 1)
            x0, y0 = 0.5 + 0.15 * t * half, top
            x1, y1 = 0.5 + t * half, top + 0.13 + rng.uniform(-0.03, 0.03) - 0.05 * abs(t)
            light = 0.75 - 0.3 * t + rng.normal(0, 0.16)
            draw.line([(x0 * w, y0 * h), (x1 * w, y1 * h)], fill=_shade(base, light), width=5)
    return _sprite(image.reduce(2), rng.uniform(7, 15))


def building(rng: np.random.Generator, floors: int, wall: Colour) -> Sprite:
    """Draw a house front with windows; with few floors it has a pitched roof."""
    bays = int(rng.integers(3, 6))
    w, floor = 24 + bays * 38, 46
    roof = 52 if floors <= 3 else 8
    h = roof + floors * floor + 14
    wall_texture = 0.92 + 0.16 * smooth_noise(rng, h, w, 24) + rng.normal(0, 0.02, (h, w))
    pixels = np.clip(np.array(wall)[None, None] * wall_texture[..., None], 0, 255).astype(np.uint8)
    image = Image.fromarray(np.dstack([pixels, np.full((h, w), 255, np.uint8)]), "RGBA")
    lit = Image.new("RGBA", (w, h), (255, 206, 130, 0))
    draw, shine = ImageDraw.Draw(image), ImageDraw.Draw(lit)
    tiles = ((146, 70, 52), (92, 84, 82), (120, 92, 70))[rng.integers(3)]
    tiles = _shade(tiles, rng.uniform(0.8, 1.1))
    draw.rectangle((0, 0, w, roof), fill=(0, 0, 0, 0))
    if floors <= 3:
        inset = rng.uniform(0.02, 0.3) * w
        draw.polygon([(0, roof), (inset, 4), (w - inset, 4), (w, roof)], fill=(*tiles, 255))
        for y in range(12, roof, 8):
            half = inset * (1 - y / roof)
            draw.line([(half, y), (w - half, y)], fill=_shade(tiles, 0.85), width=1)
        cx = int(rng.uniform(0.3, 0.7) * w)
        draw.rectangle((cx, 0, cx + 12, 20), fill=_shade(tiles, 0.7))
    else:
        draw.rectangle((0, roof - 8, w, roof + 4), fill=_shade(wall, 0.7))
    glass, frame = (74, 92, 110), _shade(wall, 1.25)
    shutters = _shade(((70, 96, 84), (110, 60, 50), (70, 84, 110))[rng.integers(3)], 1.0)
    has_shutters, shop = rng.random() < 0.4, rng.random() < 0.4
    for level in range(floors):
        y = roof + level * floor + 10
        ground_floor = level == floors - 1
        for bay in range(bays):
            x = 12 + bay * 38 + 8
            if ground_floor and shop:
                draw.rectangle((x - 6, y, x + 28, y + 40), fill=_shade(glass, 0.8))
                shine.rectangle((x - 6, y, x + 28, y + 40), fill=(255, 226, 170, 235))
                continue
            if ground_floor and bay == bays // 2:
                draw.rectangle((x, y, x + 22, y + 46), fill=_shade(shutters, 0.7))
                continue
            draw.rectangle((x - 2, y - 2, x + 24, y + 30), fill=frame)
            draw.rectangle((x, y, x + 22, y + 28), fill=_shade(glass, rng.uniform(0.7, 1.3)))
            draw.polygon([(x, y), (x + 14, y), (x, y + 18)], fill=_shade(glass, 1.7))
            draw.line([(x + 11, y), (x + 11, y + 28)], fill=frame, width=2)
            draw.line([(x, y + 11), (x + 22, y + 11)], fill=frame, width=2)
            if has_shutters:
                draw.rectangle((x - 9, y - 1, x - 3, y + 29), fill=shutters)
                draw.rectangle((x + 25, y - 1, x + 31, y + 29), fill=shutters)
            if rng.random() < 0.4:
                warm = (255, int(rng.integers(190, 230)), int(rng.integers(110, 180)), 230)
                shine.rectangle((x, y, x + 22, y + 28), fill=warm)
    if shop:
        awning = (roof + (floors - 1) * floor + 2, roof + (floors - 1) * floor + 12)
        hue = ((180, 50, 50), (40, 110, 80), (50, 80, 150), (210, 160, 60))[rng.integers(4)]
        for i, x in enumerate(range(4, w - 4, 9)):
            draw.rectangle((x, awning[0], x + 9, awning[1]), fill=hue if i % 2 else (238, 234, 226))
    return _sprite(image, floors * 3.0 + 1.5, lit)


def car(rng: np.random.Generator, paint: Colour) -> Sprite:
    canvas, lit = Canvas(150), Canvas(150)
    dark = (24, 26, 30)
    canvas.fill(box(-0.85, 0.74, -0.55, 1.0), dark)
    canvas.fill(box(0.55, 0.74, 0.85, 1.0), dark)
    cabin = line((-0.68, -0.5), (0.68, -0.5), (0.9, 0.2), (-0.9, 0.2))
    canvas.fill(rounded(cabin, 0.2), _shade(paint, 0.9))
    window = line((-0.6, -0.4), (0.6, -0.4), (0.74, 0.06), (-0.74, 0.06))
    canvas.fill(rounded(window, 0.12), (60, 76, 90))
    canvas.fill(line((-0.56, -0.36), (0.1, -0.36), (-0.3, 0.02), (-0.68, 0.02)), (120, 140, 156))
    canvas.fill(rounded(box(-0.95, 0.1, 0.95, 0.9), 0.16), paint)
    canvas.fill(line((-0.95, 0.66), (0.95, 0.66), (0.93, 0.86), (-0.93, 0.86)), _shade(paint, 0.7))
    canvas.fill(box(-0.25, 0.42, 0.25, 0.54), (236, 236, 228))
    for side in (-1, 1):
        lamp = line((0.62, 0.24), (0.93, 0.2), (0.93, 0.46), (0.66, 0.44)) * (side, 1)
        canvas.fill(lamp, (170, 20, 24))
        lit.fill(lamp, (255, 50, 40))
    return _sprite(canvas.finish(), 1.5, lit.finish())


def lamp(rng: np.random.Generator) -> Sprite:
    canvas, lit, steel = Canvas(300), Canvas(300), (96, 100, 104)
    canvas.limb(line((-0.3, 1.0), (-0.3, -0.8)), 0.035, steel)
    arm = smooth([(-0.3, -0.7), (-0.24, -0.9), (0.0, -0.95)], closed=False)
    canvas.stroke(arm, 0.03, steel)
    canvas.fill(line((-0.04, -0.97), (0.2, -0.95), (0.18, -0.9), (-0.04, -0.92)), (112, 116, 120))
    lit.disc(0.08, -0.9, 0.07, (255, 232, 180))
    part = (90, 0, 200, 300)
    return _sprite(canvas.finish().crop(part), 6.5, lit.finish().crop(part))


def board(rng: np.random.Generator) -> Sprite:
    """Draw an advertising board: loud colours and shapes, but not a sign."""
    palette = [(228, 60, 60), (36, 92, 170), (250, 196, 40), (40, 150, 110), (240, 240, 236),
               (236, 120, 40), (130, 70, 150), (30, 34, 44)]  # fmt: skip
    colour = [palette[i] for i in rng.permutation(len(palette))]
    canvas = Canvas(240)
    for x in (-0.6, 0.6):
        canvas.limb(line((x, 0.3), (x, 1.0)), 0.06, (90, 92, 96))
    panel = box(-0.97, -0.95, 0.97, 0.42)
    canvas.fill(panel, (70, 72, 76))
    canvas.fill(panel * 0.96 + (0, -0.01), colour[0])
    for i in range(int(rng.integers(2, 4))):
        x, y, r = rng.uniform(-0.6, 0.6), rng.uniform(-0.6, 0.1), rng.uniform(0.14, 0.3)
        if rng.random() < 0.5:
            canvas.disc(x, y, r, colour[1 + i])
            canvas.disc(x, y, 0.6 * r, colour[2 + i])
        else:
            canvas.fill(line((x - 1.5 * r, y), (x, y - r), (x + r, y), (x, y + r)), colour[1 + i])
    for i in range(int(rng.integers(2, 5))):
        y, x = -0.8 + 0.24 * i, rng.uniform(-0.8, -0.1)
        half, width = rng.uniform(0.04, 0.08), rng.uniform(0.3, 0.8)
        canvas.fill(box(x, y - half, x + width, y + half), colour[6])
    return _sprite(canvas.finish(), rng.uniform(3.0, 5.0))


def leaf_cluster(rng: np.random.Generator, base: Colour) -> Image.Image:
    """Draw a twig of large leaves, hanging into the image close to the camera."""
    canvas = Canvas(220)
    twig = smooth([(-0.7, 0.0), (-0.4, -0.05), (0.3, 0.06), (0.6, 0.0)], closed=False)
    canvas.stroke(twig, 0.04, (80, 64, 48))
    leaf = _leaf()
    for _ in range(46):
        x, y = rng.uniform(-0.68, 0.68), np.clip(rng.normal(0, 0.3), -0.68, 0.68)
        angle, size = rng.uniform(0, 2 * np.pi), rng.uniform(0.14, 0.26)
        turn = np.array([[np.cos(angle), np.sin(angle)], [-np.sin(angle), np.cos(angle)]])
        colour = _shade(base, rng.uniform(0.55, 1.25))
        placed = (leaf[:, :1] * turn[0] + leaf[:, 1:] * turn[1]) * size + (x, y)
        canvas.fill(placed, colour)
        canvas.stroke(placed[[0, len(placed) // 2]], 0.012, _shade(colour, 1.25))
    return canvas.finish()


def _leaf() -> np.ndarray:
    t = np.linspace(0, 1, 12)
    upper = np.stack([2 * t - 1, 0.42 * np.sin(np.pi * t) ** 0.8], axis=1)
    return np.concatenate([upper, -upper])
