"""The scene behind the sign: sky, hills, a road in perspective, and what is along it.

The camera looks along the road from about 1.6 m: a thing whose foot is `depth` pixels below the
horizon is `depth / 1.6` pixels high per metre, so that near things are large.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from data_prep.signs import knobs
from data_prep.signs.assets import Assets
from data_prep.signs.light import Light
from data_prep.signs.sprites import Sprite
from data_prep.signs.textures import TEXTURE, smooth_noise

EYE = 1.6  # height of the camera in metres
FLIP = Image.Transpose.FLIP_LEFT_RIGHT
BILINEAR = Image.Resampling.BILINEAR


class Shot(NamedTuple):
    """An image being drawn: its random numbers, its parts, its light and its pixels."""

    rng: np.random.Generator
    assets: Assets
    light: Light
    image: Image.Image

    def pick(self, things: Sequence) -> Any:
        return things[int(self.rng.integers(len(things)))]


class Place(NamedTuple):
    """A kind of surroundings: names of ground textures and of the sprites along the road."""

    name: str
    grounds: tuple[str, ...]
    things: tuple[str, ...]
    hills: tuple[int, ...]  # numbers in RIDGES, far to near
    density: float  # factor on the number of things
    height: float  # of the nearest ridge as a share of the image


RIDGES = ((120, 138, 158), (104, 126, 112), (86, 112, 78), (150, 146, 92), (168, 172, 184))
PLACES = (
    Place("fields", ("grass", "meadow", "wheat"),
          ("trees", "trees", "houses"), (1, 2, 3), 0.8, 0.10),
    Place("forest", ("grass", "soil", "meadow"),
          ("conifers", "conifers", "trees"), (2, 2), 2.2, 0.16),
    Place("mountains", ("grass", "gravel", "snow"),
          ("conifers", "trees", "houses"), (4, 0, 2), 0.8, 0.30),
    Place("village", ("grass", "slabs", "gravel"),
          ("houses", "houses", "trees", "cars"), (1, 2), 1.3, 0.08),
    Place("city", ("slabs", "slabs", "grass"),
          ("towers", "towers", "towers", "trees", "cars"), (0,), 1.8, 0.05),
    Place("motorway", ("grass", "gravel"),
          ("cars", "trees", "towers"), (0, 1), 0.8, 0.08),
)  # fmt: skip


class Road(NamedTuple):
    """The road: `d` pixels below the horizon it goes from vx + d * left to vx + d * right."""

    horizon: int
    vx: float
    left: float
    right: float


def faded(mask: Image.Image, strength: float) -> Image.Image:
    return mask.point([int(v * strength) for v in range(256)])


def _sky(shot: Shot, horizon: int) -> None:
    rng, light, width = shot.rng, shot.light, shot.image.width
    t = (np.linspace(0, 1, horizon, dtype=np.float32) ** rng.uniform(0.7, 1.3))[:, None, None]
    top, bottom = np.array(light.top, np.float32), np.array(light.bottom, np.float32)
    rows = Image.fromarray((top + (bottom - top) * t).astype(np.uint8))
    sky = rows.resize((width, horizon), Image.Resampling.NEAREST)
    if rng.random() < 0.75:
        cloud = shot.pick(shot.assets.clouds)
        x = int(rng.integers(0, cloud.width - width))
        mask = cloud.resize((width, horizon), BILINEAR, (x, 0, x + width, cloud.height))
        if rng.random() < 0.5:
            mask = mask.transpose(FLIP)
        tint = tuple(int(c) for c in light.cloud)
        sky.paste(tint, (0, 0, width, horizon), faded(mask, rng.uniform(0.35, 0.95)))
    if light.name in ("golden", "dusk") and rng.random() < 0.7:
        size = int(rng.uniform(0.8, 1.8) * horizon)
        x, y = int(rng.uniform(0, width)), int(horizon * rng.uniform(0.75, 1.0))
        sun = shot.assets.glow.resize((size, size))
        sky.paste((255, 238, 190), (x - size // 2, y - size // 2), sun)
    shot.image.paste(sky, (0, 0))


def _ridges(shot: Shot, place: Place, horizon: int) -> None:
    """Paint the hills on the horizon, the farthest first, each with less haze."""
    rng, light, image = shot.rng, shot.light, shot.image
    for k, number in enumerate(place.hills):
        near = (k + 1) / len(place.hills)
        top = place.height * image.height * (1.25 - 0.75 * near) * rng.uniform(0.6, 1.2)
        cell, gain = (110, 0.55) if number in (0, 4) else (170, 0.35)  # jagged or smooth
        noise = smooth_noise(rng, 2, image.width, cell, 6, gain)[0]
        crest = horizon - top * (0.25 + 1.2 * (noise - 0.15))
        first = max(0, int(crest.min()) - 1)
        mask = np.clip(np.arange(first, horizon, dtype=np.float32)[:, None] - crest + 0.5, 0, 1)
        if mask.size == 0:
            continue
        colour = np.array(RIDGES[number]) * light.scene
        colour = colour + (np.array(light.bottom) - colour) * (light.haze * (1.1 - 0.55 * near))
        fill = tuple(int(c) for c in np.clip(colour, 0, 255))
        image.paste(fill, (0, first), Image.fromarray((mask * 255).astype(np.uint8)))


def _ground(shot: Shot, place: Place, road: Road) -> None:
    """Paint the ground from the horizon down, with the road, its lines and its edges."""
    rng, width = shot.rng, shot.image.width
    rows = shot.image.height - road.horizon
    d = np.arange(rows, dtype=np.float32)[:, None] + 0.7  # pixels below the horizon
    x = np.arange(width, dtype=np.float32)[None, :] - road.vx
    scale, wrap = TEXTURE * 0.9, 2 * TEXTURE - 1
    u = ((x / d) * scale * 0.5).astype(np.int32) + int(rng.integers(4096))
    v = (rows / d * scale * 0.8).astype(np.int32) + int(rng.integers(4096))
    index = (v & wrap) * (2 * TEXTURE) + (u & wrap)
    texture = shot.assets.ground[shot.pick(place.grounds)]
    ground = np.take(texture.reshape(-1, 3), index, axis=0)

    asphalt = shot.pick(shot.assets.asphalt)
    left, right = road.left * d, road.right * d
    first = int(np.clip(left.min() + road.vx, 0, width))
    last = int(np.clip(right.max() + road.vx, 0, width))
    if last - first > 2:
        part = x[:, first:last]
        on_road = np.clip(part - left + 0.5, 0, 1) * np.clip(right - part + 0.5, 0, 1)
        surface = np.take(asphalt.reshape(-1, 3), index[:, first:last], axis=0).astype(np.float32)
        worn = rng.uniform(150, 245)
        span = road.right - road.left
        lines = np.zeros_like(part)
        for where in (0.035, 0.965):
            lines = np.maximum(lines, _line(part, d, road.left + where * span))
        dashes = (((rows / d * 2.2 + rng.uniform(0, 1)) % 1.0) < 0.5).astype(np.float32)
        lines = np.maximum(lines, dashes * _line(part, d, road.left + 0.5 * span))
        surface += (worn - surface) * (lines * 0.85)[..., None]
        patch = ground[:, first:last].astype(np.float32)
        patch += (surface - patch) * on_road[..., None]
        ground[:, first:last] = patch.astype(np.uint8)
    painted = Image.fromarray(ground)
    if place.name in ("city", "village"):
        _kerbs(painted, road)
    shot.image.paste(_grade(painted, shot.light), (0, road.horizon))


def _line(x: np.ndarray, d: np.ndarray, slope: float) -> np.ndarray:
    reach = np.maximum(0.022 * d, 0.35)
    return np.clip(reach - np.abs(x - slope * d) + 0.5, 0, 1)


def _kerbs(surface: Image.Image, road: Road) -> None:
    draw = ImageDraw.Draw(surface)
    h = surface.height
    for slope, out in ((road.left, -1), (road.right, 1)):
        edge, far = slope * h, (slope + 0.12 * out) * h
        draw.polygon([(road.vx, 0), (road.vx + edge, h), (road.vx + far, h)], fill=(176, 174, 170))
        draw.line([(road.vx, 0), (road.vx + edge, h)], fill=(120, 118, 116), width=1)


def _grade(surface: Image.Image, light: Light, haze: float = 0.0) -> Image.Image:
    """Return colours times the light's factors, blended by `haze` towards the horizon's colour."""
    if light.scene == (1.0, 1.0, 1.0) and haze < 0.03:
        return surface
    r, g, b = (factor * (1 - haze) for factor in light.scene)
    x, y, z = (colour * haze for colour in light.bottom)
    return surface.convert("RGB", (r, 0, 0, x, 0, g, 0, y, 0, 0, b, z))


def _place(shot: Shot, kind: str, road: Road, depth: float) -> None:
    """Add a thing next to the road (a car: on it), its foot `depth` pixels below the horizon."""
    rng, sprite = shot.rng, shot.pick(getattr(shot.assets, kind))
    if kind == "cars":
        side = road.left + (road.right - road.left) * rng.choice((0.25, 0.75))
    else:
        gap = 0.35 + abs(rng.normal(0, 2.2)) * 12 / (depth + 6)
        side = road.left - gap if rng.random() < 0.5 else road.right + gap
    pixels = sprite.metres / EYE * depth * rng.uniform(0.85, 1.15)
    _paste(shot, sprite, road.vx + side * depth, road.horizon + depth, pixels, depth)


def _paste(shot: Shot, sprite: Sprite, x: float, foot: float, pixels: float, depth: float) -> None:
    """Paste a sprite `pixels` high with its foot at (x, foot), in the light, behind the haze."""
    image, light, flip = shot.image, shot.light, shot.rng.random() < 0.5
    colour, mask, lit = sprite.at(pixels)
    height = max(3, int(pixels))
    width = max(2, int(mask.width * pixels / mask.height))
    left, top = int(x - width / 2), int(foot) - height
    # Only what is inside the image is scaled.
    x0, x1 = max(0, -left), min(width, image.width - left)
    y0, y1 = max(0, -top), min(height, image.height - top)
    if x1 - x0 < 2 or y1 - y0 < 2:
        return
    size, corner = (x1 - x0, y1 - y0), (left + x0, top + y0)
    if flip:
        x0, x1 = width - x1, width - x0
    ratio_x, ratio_y = mask.width / width, mask.height / height
    box = (x0 * ratio_x, y0 * ratio_y, x1 * ratio_x, y1 * ratio_y)

    def fit(layer: Image.Image) -> Image.Image:
        part = layer.resize(size, BILINEAR, box)
        return part.transpose(FLIP) if flip else part

    haze = light.haze * float(np.exp(-depth / 40))
    image.paste(_grade(fit(colour), light, haze), corner, fit(mask))
    if lit is not None and light.lamps:
        shine = fit(lit)
        image.paste(shine, corner, shine)


def _lamps(shot: Shot, horizon: int) -> None:
    """Add far lamps out of focus, as they look at dusk and at night."""
    rng, image = shot.rng, shot.image
    colours = ((255, 214, 150), (255, 236, 200), (255, 120, 80), (180, 220, 255), (140, 255, 170))
    for _ in range(int(rng.integers(4, 14))):
        size = int(rng.uniform(5, 22))
        disc = faded(shot.assets.bokeh.resize((size, size), BILINEAR), rng.uniform(0.3, 0.9))
        x = int(rng.uniform(0, image.width))
        y = int(horizon - abs(rng.normal(0, 0.14)) * image.height)
        colour = colours[rng.choice(5, p=(0.42, 0.24, 0.16, 0.12, 0.06))]
        image.paste(colour, (x - size // 2, y - size // 2), disc)


def _headlights(shot: Shot, horizon: int) -> None:
    """Add the light that one's own car throws on the ground."""
    rng, image = shot.rng, shot.image
    width, height = int(image.width * rng.uniform(0.9, 1.4)), int((image.height - horizon) * 1.7)
    pool = faded(shot.assets.glow.resize((width, height)), 0.4)
    x = int(image.width * rng.uniform(0.35, 0.65))
    top = horizon - int(0.25 * height) + (image.height - horizon) // 4
    image.paste((236, 226, 200), (x - width // 2, top), pool)


def draw_scene(
    rng: np.random.Generator, assets: Assets, light: Light, width: int, height: int
) -> Image.Image:
    """Return the whole scene as an RGB image, slightly out of focus as it is behind the sign."""
    place = PLACES[rng.integers(len(PLACES))]
    horizon = int(height * rng.uniform(0.50, 0.74))
    span = rng.uniform(2.2, 4.5)
    left = rng.uniform(-span - 0.3, 0.3)
    road = Road(horizon, width * rng.uniform(0.15, 0.85), left, left + span)
    image = Image.new("RGB", (width, height))
    shot = Shot(rng, assets, light, image)
    _sky(shot, horizon)
    _ridges(shot, place, horizon)
    _ground(shot, place, road)

    count = int(rng.integers(*knobs.OBJECTS, endpoint=True) * place.density)
    depths = np.sort(8 + (0.55 * (height - horizon)) * rng.random(count) ** 2.2)
    if light.lamps and rng.random() < 0.8:
        _lamps(shot, horizon)
    for depth in depths:
        _place(shot, shot.pick(place.things), road, depth)
    for kind, probability in [("lamps", 0.5)] * 3 + [("boards", knobs.BOARDS)]:
        if rng.random() < probability:
            _place(shot, kind, road, rng.uniform(12, 0.45 * (height - horizon) + 12))
    if light.name == "night":
        _headlights(shot, horizon)
    radius = rng.uniform(*knobs.BACKGROUND_BLUR)
    return image.filter(ImageFilter.BoxBlur(radius * 0.8)) if radius > 0.5 else image
