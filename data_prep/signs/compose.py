"""One image from (seed, split, index): scene, sign, what covers it, camera.

image = draw_picture(make_assets(0), seed=0, split="train", index=17)
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from data_prep.signs import knobs
from data_prep.signs.assets import FACE_SIZES, GRAIN, GRAIN_LEVELS, Assets, make_assets
from data_prep.signs.classes import IDS, picture_path
from data_prep.signs.light import choose_light
from data_prep.signs.pose import Pose, warp
from data_prep.signs.scene import BILINEAR, FLIP, Shot, draw_scene

SPLITS = ("train", "val")
CROP = 224 / 256  # the share of the shorter side that validation sees


def _face_for(sizes: dict[int, Image.Image], diameter: float) -> Image.Image:
    return sizes[min((s for s in FACE_SIZES if s >= diameter), default=FACE_SIZES[0])]


def _weather(shot: Shot, face: Image.Image) -> Image.Image:
    """Return the face lit, glossy, dirty, faded, and perhaps with a sticker or in the shade."""
    rng, assets, n = shot.rng, shot.assets, face.width
    if rng.random() < knobs.STICKER:
        face = face.copy()
        draw, ink = ImageDraw.Draw(face), tuple(int(c) for c in rng.integers(40, 250, 3))
        x, y = rng.uniform(0.25, 0.75) * n, rng.uniform(0.25, 0.75) * n
        r = rng.uniform(0.05, 0.1) * n
        draw.rectangle((x - r, y - r, x + r, y + 0.7 * r), fill=(*ink, 255))
        inner = (x - 0.7 * r, y - 0.5 * r, x + 0.7 * r, y - 0.2 * r)
        draw.rectangle(inner, fill=(240, 240, 236, 255))
    pixels = np.asarray(face)
    rgb = pixels[..., :3].astype(np.float32)
    t = np.linspace(-1, 1, n, dtype=np.float32)
    angle = rng.uniform(0, 2 * np.pi)
    sheen = rng.uniform(0.04, 0.16)
    shade = 1 + sheen * (np.cos(angle) * t[None, :] + np.sin(angle) * t[:, None])
    if n >= 136:
        shade *= assets.sheeting[:n, :n]
    wear = rng.uniform(*knobs.WEAR)
    shade *= 1 - wear * np.clip(1.6 * shot.pick(assets.dirt)[:n, :n] - 0.5, 0, 1)
    if shot.light.lamps < 0.5 and rng.random() < knobs.DAPPLE:
        shade *= 1 - rng.uniform(0.2, 0.45) * shot.pick(assets.dapple)[:n, :n]
    fade = wear * rng.uniform(0.05, 0.3)
    if fade:
        rgb += (rgb.mean(axis=2, keepdims=True) * 0.7 + 60 - rgb) * fade
    rgb *= shade[..., None] * np.array(shot.light.sign, np.float32)
    spot = rng.uniform(-0.8, 0.8, 2)
    gloss = np.clip(1 - ((t[None, :] - spot[0]) ** 2 + (t[:, None] - spot[1]) ** 2), 0, 1)
    rgb += (rng.uniform(4, 34) * gloss)[..., None]
    out = np.empty_like(pixels)
    np.clip(rgb, 0, 255, out=rgb)
    out[..., :3] = rgb
    out[..., 3] = pixels[..., 3]
    return Image.fromarray(out, "RGBA")


def _add_post(shot: Shot, pose: Pose, top: float) -> None:
    """Add a steel post from `top` (in sign radii from its centre) down out of the image."""
    half = 0.055
    n = max(2, round(half * pose.diameter))  # as wide as it will be, and a clear pixel either side
    metal = 70 + 130 * np.clip(1 - (np.linspace(-0.65, 1.35, n, dtype=np.float32)) ** 2, 0, 1)
    tint = 0.5 * np.array(shot.light.scene) + 0.3 * np.array(shot.light.sign)
    strip = np.zeros((1, n + 2, 4), np.uint8)
    strip[0, :, :3] = np.clip(np.pad(metal, 1, mode="edge")[:, None] * tint, 0, 255)
    strip[0, 1:-1, 3] = 255
    foot = (shot.image.height - pose.y) / (pose.diameter / 2) + 1.0
    wide = half * (n + 2) / n
    u, v = np.array([-wide, wide, wide, -wide]), np.array([top, top, foot, foot])
    straight = Pose(pose.x, pose.y, pose.diameter, pose.roll * 0.9, pose.yaw * 0.2, 0.0, 50.0)
    quad = np.stack(straight.project(u, v), axis=1)
    patch, corner = warp(Image.fromarray(strip.repeat(8, axis=0), "RGBA"), quad, sharp=False)
    shot.image.paste(patch, corner, patch)


def _add_plain(shot: Shot, face: Image.Image, pose: Pose) -> None:
    """Add a face of no class, lit like the scene."""
    shade = shot.rng.uniform(0.75, 1.0)
    r, g, b = (f * shade for f in shot.light.sign)
    lit = face.convert("RGB").convert("RGB", (r, 0, 0, 0, 0, g, 0, 0, 0, 0, b, 0))
    lit.putalpha(face.getchannel("A"))
    _add_face(shot, lit, pose, sharp=False)


def _add_face(shot: Shot, face: Image.Image, pose: Pose, sharp: bool = True) -> None:
    """Add a finished face at its pose, with the thickness of its plate."""
    patch, (x, y) = warp(face, pose.corners(), sharp)
    alpha = patch.getchannel("A")
    rim = tuple(int(70 * f) for f in shot.light.scene)
    depth = max(1, round(0.016 * pose.diameter))
    shot.image.paste(rim, (x + (depth if pose.yaw < 0 else -depth), y + depth // 2), alpha)
    shot.image.paste(patch, (x, y), alpha)


def _choose_pose(rng: np.random.Generator, width: int, height: int) -> Pose:
    side = min(width, height)
    diameter = rng.uniform(*knobs.SIGN_SIZE) * side
    free = max(0.0, side * CROP / 2 - diameter / 2) * knobs.SIGN_OFFSET
    turn = np.radians([knobs.ROLL, knobs.YAW, knobs.PITCH]) * rng.uniform(-1, 1, 3)
    x, y = width / 2 + rng.uniform(-free, free), height / 2 + rng.uniform(-free, free)
    roll, yaw, pitch = turn
    return Pose(x, y, diameter, roll, yaw, pitch, rng.uniform(*knobs.PERSPECTIVE))


def _add_others(shot: Shot, main: Pose) -> None:
    """Add signs of no class, smaller and to the side."""
    rng = shot.rng
    if rng.random() >= knobs.OTHER_SIGNS:
        return
    for _ in range(int(rng.integers(1, 4))):
        side = 1 if rng.random() < 0.5 else -1
        diameter = main.diameter * rng.uniform(0.18, 0.42)
        away = main.diameter * rng.uniform(0.6, 0.9) + diameter * rng.uniform(0.5, 2.5)
        x, y = main.x + side * away, main.y + main.diameter * rng.uniform(-0.3, 0.5)
        pose = Pose(x, y, diameter, main.roll * 0.5, rng.uniform(-0.6, 0.6), 0.0, 4.0)
        _add_post(shot, pose, 0.0)
        _add_plain(shot, _face_for(shot.pick(shot.assets.others), diameter), pose)


def _add_companion(shot: Shot, main: Pose) -> None:
    """Add a plate, or a sign of no class, below the sign on the same post."""
    rng = shot.rng
    if rng.random() >= knobs.COMPANION:
        return
    size = main.diameter * rng.uniform(0.55, 0.8)
    if rng.random() < 0.6:
        face = Image.new("RGBA", (136, 136), (0, 0, 0, 0))
        draw = ImageDraw.Draw(face)
        draw.rounded_rectangle((2, 42, 134, 94), 6, fill=(30, 30, 32, 255))
        draw.rounded_rectangle((5, 45, 131, 91), 5, fill=(244, 244, 240, 255))
        for x in range(20, 110, 14):
            if rng.random() < 0.75:
                draw.rectangle((x, 58, x + 8, 79), fill=(34, 34, 36, 255))
    else:
        face = _face_for(shot.pick(shot.assets.others), size)
    drop = (main.diameter + size * 0.9) / main.diameter
    below = main.project(np.array(0.0), np.array(drop))
    pose = replace(main, x=float(below[0]), y=float(below[1]), diameter=size)
    _add_plain(shot, face, pose)


def _add_twig(shot: Shot, twig: Image.Image, pose: Pose, side: int, reach: float) -> None:
    """Add a twig from the left (`side` -1) or the right that covers `reach` pixels of the sign."""
    rng, scene = shot.rng, shot.light.scene
    size = int(pose.diameter * rng.uniform(0.9, 1.5))
    angle = rng.uniform(-35, 35)
    table = [min(255, int(v * f)) for f in scene for v in range(256)] + list(range(256))
    twig = twig.resize((size, size), BILINEAR).point(table)
    if side > 0:
        twig = twig.transpose(FLIP)
    twig = twig.rotate(side * angle, BILINEAR)
    twig = twig.filter(ImageFilter.BoxBlur(rng.uniform(0.4, 1.6)))
    x = pose.x + side * (pose.diameter / 2 - reach + size * 0.36)
    y = pose.y + rng.uniform(-0.5, 0.4) * pose.diameter
    # The branch continues from the end of the twig to the edge of the image.
    bark = tuple(int(c * f) for c, f in zip((80, 64, 48), scene, strict=True))
    out = np.array([np.cos(np.radians(angle)), -np.sin(np.radians(angle))]) * (side, 1)
    start, end = (x, y) + out * (0.3 * size), (x, y) + out * (0.3 * size + shot.image.width)
    ImageDraw.Draw(shot.image).line([*start, *end], fill=bark, width=max(2, size // 34))
    shot.image.paste(twig, (int(x - size / 2), int(y - size / 2)), twig)


def _occlude(shot: Shot, pose: Pose) -> None:
    """Add leaves or a post between the camera and the sign."""
    rng = shot.rng
    if rng.random() >= knobs.OCCLUDE:
        return
    reach = rng.uniform(*knobs.OCCLUDE_DEPTH) * pose.diameter
    side = 1 if rng.random() < 0.5 else -1
    if rng.random() < 0.75:
        _add_twig(shot, shot.pick(shot.assets.leaves), pose, side, reach)
        return
    width = max(3, int(rng.uniform(0.06, 0.13) * pose.diameter))
    x = int(pose.x + side * (pose.diameter / 2 - reach))
    t = np.linspace(-1, 1, width, dtype=np.float32)
    grey = (70 + 90 * np.clip(1 - (t - 0.3) ** 2, 0, 1))[None, :, None]
    bar = Image.fromarray(np.clip(grey * np.array(shot.light.scene), 0, 255).astype(np.uint8))
    shot.image.paste(bar.resize((width, shot.image.height)), (x - width // 2, 0))


# -- the camera ----------------------------------------------------------------------------------


def _photograph(shot: Shot) -> Image.Image:
    """Return the image with focus, motion, exposure and grain."""
    rng, image = shot.rng, shot.image
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
    noise = rng.uniform(*knobs.NOISE) + (knobs.NIGHT_NOISE if shot.light.name == "night" else 0)
    grain = shot.assets.grain[int(np.argmin(np.abs(np.array(GRAIN_LEVELS) - noise)))]
    height, width = pixels.shape[:2]
    y, x = rng.integers(GRAIN - height + 1), rng.integers(GRAIN - width + 1)
    noisy = pixels + grain[y : y + height, x : x + width]
    np.clip(noisy, 0, 255, out=noisy)
    return Image.fromarray(noisy.astype(np.uint8))


def _streak(image: Image.Image, dx: float, dy: float) -> Image.Image:
    """Return the image in motion: the mean of eight copies along (dx, dy); edges repeat."""
    steps = [(round(k * dy), round(k * dx)) for k in np.linspace(-0.5, 0.5, 8)]
    margin = max(max(abs(y), abs(x)) for y, x in steps)
    pixels = np.asarray(image)
    height, width = pixels.shape[:2]
    wide = np.pad(pixels, ((margin, margin), (margin, margin), (0, 0)), mode="edge")
    total = np.full(pixels.shape, 4, np.uint16)
    for y, x in steps:
        total += wide[margin + y : margin + y + height, margin + x : margin + x + width]
    return Image.fromarray((total >> 3).astype(np.uint8))


# -- the image -----------------------------------------------------------------------------------


def picture_size(rng: np.random.Generator, index: int) -> tuple[int, int]:
    weights = np.array([w for *_, w in knobs.SIZES])
    width, height, _ = knobs.SIZES[rng.choice(len(weights), p=weights / weights.sum())]
    return (height, width) if index % knobs.PORTRAIT_EVERY == 3 else (width, height)


def draw_picture(
    assets: Assets, seed: int, split: str, index: int
) -> tuple[Image.Image, dict[str, int]]:
    """Return image `index` of a split, and the arguments of Pillow's `save` for its JPEG.

    Its class is `IDS[index % len(IDS)]`. Its mode is RGB, or L for every 25th image.
    """
    rng = np.random.default_rng([seed, SPLITS.index(split), index])
    width, height = picture_size(rng, index)
    light = choose_light(rng)
    shot = Shot(rng, assets, light, draw_scene(rng, assets, light, width, height))
    pose = _choose_pose(rng, width, height)
    _add_others(shot, pose)
    _add_post(shot, pose, -0.6)
    _add_companion(shot, pose)
    face = _face_for(assets.faces[IDS[index % len(IDS)]], pose.diameter)
    _add_face(shot, _weather(shot, face), pose)
    _occlude(shot, pose)
    image = _photograph(shot)
    if index % knobs.GREY_EVERY == 7:
        image = image.convert("L")
    quality = int(rng.integers(*knobs.QUALITY, endpoint=True))
    return image, {"quality": quality, "subsampling": 0 if rng.random() < knobs.FULL_CHROMA else 2}


def draw_jpeg(assets: Assets, seed: int, split: str, index: int) -> bytes:
    image, options = draw_picture(assets, seed, split, index)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


def prepare(settings: tuple[Path, Path, int]) -> Callable[[list[tuple[str, int]]], None]:
    """Return the worker's function: it draws images, each given as (split, number).

    ``settings`` are the folder for the images, that for drafts, and the seed.
    """
    folder, drafts, seed = settings
    assets = make_assets(seed)

    def draw(task: list[tuple[str, int]]) -> None:
        draft = drafts / f"{os.getpid()}.jpg"
        for split, index in task:
            draft.write_bytes(draw_jpeg(assets, seed, split, index))
            os.replace(draft, folder / picture_path(split, index))

    return draw
