"""One picture from (seed, split, index): scene, sign, what covers it, camera.

image = draw_picture(make_assets(0), seed=0, split="train", index=17)
"""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from data_prep.signs import knobs
from data_prep.signs.assets import FACE_SIZES, Assets
from data_prep.signs.camera import photograph
from data_prep.signs.classes import IDS
from data_prep.signs.light import Light, choose_light
from data_prep.signs.pose import Pose, warp
from data_prep.signs.scene import draw_scene

SPLITS = ("train", "val")
CROP = 224 / 256  # the share of the shorter side that validation looks at


def _face_for(sizes: dict[int, Image.Image], diameter: float) -> Image.Image:
    return sizes[min((s for s in FACE_SIZES if s >= diameter), default=FACE_SIZES[0])]


def _weathered(
    rng: np.random.Generator, assets: Assets, face: Image.Image, light: Light
) -> Image.Image:
    """The face as it hangs there: lit, glossy, dirty, faded, perhaps stickered or in the shade."""
    n = face.width
    if rng.random() < knobs.STICKER:
        face = face.copy()
        draw, ink = ImageDraw.Draw(face), tuple(int(c) for c in rng.integers(40, 250, 3))
        x, y, r = (
            rng.uniform(0.25, 0.75) * n,
            rng.uniform(0.25, 0.75) * n,
            rng.uniform(0.05, 0.1) * n,
        )
        draw.rectangle((x - r, y - r, x + r, y + 0.7 * r), fill=(*ink, 255))
        draw.rectangle(
            (x - 0.7 * r, y - 0.5 * r, x + 0.7 * r, y - 0.2 * r), fill=(240, 240, 236, 255)
        )
    pixels = np.asarray(face)
    rgb = pixels[..., :3].astype(np.float32)
    t = np.linspace(-1, 1, n, dtype=np.float32)
    angle = rng.uniform(0, 2 * np.pi)
    sheen = rng.uniform(0.04, 0.16)
    shade = 1 + sheen * (np.cos(angle) * t[None, :] + np.sin(angle) * t[:, None])
    if n >= 136:
        shade *= assets.sheeting[:n, :n]
    wear = rng.uniform(*knobs.WEAR)
    dirt = assets.dirt[rng.integers(len(assets.dirt))][:n, :n]
    shade *= 1 - wear * np.clip(1.6 * dirt - 0.5, 0, 1)
    if light.lamps < 0.5 and rng.random() < knobs.DAPPLE:
        shade *= (
            1 - rng.uniform(0.2, 0.45) * assets.dapple[rng.integers(len(assets.dapple))][:n, :n]
        )
    fade = wear * rng.uniform(0.05, 0.3)
    if fade:
        rgb += (rgb.mean(axis=2, keepdims=True) * 0.7 + 60 - rgb) * fade
    rgb *= shade[..., None] * np.array(light.sign, np.float32)
    spot = rng.uniform(-0.8, 0.8, 2)
    gloss = np.clip(1 - ((t[None, :] - spot[0]) ** 2 + (t[:, None] - spot[1]) ** 2), 0, 1)
    rgb += (rng.uniform(4, 34) * gloss)[..., None]
    out = np.empty_like(pixels)
    np.clip(rgb, 0, 255, out=rgb)
    out[..., :3] = rgb
    out[..., 3] = pixels[..., 3]
    return Image.fromarray(out, "RGBA")


def _post(image: Image.Image, pose: Pose, light: Light, top: float) -> None:
    """A steel post from `top` (in sign radii from its centre) down out of the picture."""
    half = 0.055
    n = max(2, round(half * pose.diameter))  # as wide as it will be, and a clear pixel either side
    metal = 70 + 130 * np.clip(1 - (np.linspace(-0.65, 1.35, n, dtype=np.float32)) ** 2, 0, 1)
    tint = 0.5 * np.array(light.scene) + 0.3 * np.array(light.sign)
    strip = np.zeros((1, n + 2, 4), np.uint8)
    strip[0, :, :3] = np.clip(np.pad(metal, 1, mode="edge")[:, None] * tint, 0, 255)
    strip[0, 1:-1, 3] = 255
    foot = (image.height - pose.y) / (pose.diameter / 2) + 1.0
    wide = half * (n + 2) / n
    u, v = np.array([-wide, wide, wide, -wide]), np.array([top, top, foot, foot])
    straight = Pose(pose.x, pose.y, pose.diameter, pose.roll * 0.9, pose.yaw * 0.2, 0.0, 50.0)
    quad = np.stack(straight.project(u, v), axis=1)
    patch, corner = warp(Image.fromarray(strip.repeat(8, axis=0), "RGBA"), quad, sharp=False)
    image.paste(patch, corner, patch)


def _lit(rng: np.random.Generator, face: Image.Image, light: Light) -> Image.Image:
    """A face of no class in the light of the scene: no need for more care."""
    shade = rng.uniform(0.75, 1.0)
    r, g, b = (f * shade for f in light.sign)
    lit = face.convert("RGB").convert("RGB", (r, 0, 0, 0, 0, g, 0, 0, 0, 0, b, 0))
    lit.putalpha(face.getchannel("A"))
    return lit


def _hang(
    image: Image.Image, face: Image.Image, pose: Pose, light: Light, sharp: bool = True
) -> None:
    """Puts a finished face at its pose, with the thickness of its plate."""
    patch, (x, y) = warp(face, pose.corners(), sharp)
    alpha = patch.getchannel("A")
    rim = tuple(int(70 * f) for f in light.scene)
    depth = max(1, round(0.016 * pose.diameter))
    image.paste(rim, (x + (depth if pose.yaw < 0 else -depth), y + depth // 2), alpha)
    image.paste(patch, (x, y), alpha)


def _pose(rng: np.random.Generator, width: int, height: int) -> Pose:
    side = min(width, height)
    diameter = rng.uniform(*knobs.SIGN_SIZE) * side
    free = max(0.0, side * CROP / 2 - diameter / 2) * knobs.SIGN_OFFSET
    turn = np.radians([knobs.ROLL, knobs.YAW, knobs.PITCH]) * rng.uniform(-1, 1, 3)
    return Pose(
        x=width / 2 + rng.uniform(-free, free),
        y=height / 2 + rng.uniform(-free, free),
        diameter=diameter,
        roll=turn[0],
        yaw=turn[1],
        pitch=turn[2],
        distance=rng.uniform(*knobs.PERSPECTIVE),
    )


def _others(
    rng: np.random.Generator, assets: Assets, image: Image.Image, main: Pose, light: Light
) -> None:
    """Signs of no class, smaller and to the side."""
    if rng.random() >= knobs.OTHER_SIGNS:
        return
    for _ in range(int(rng.integers(1, 4))):
        side = 1 if rng.random() < 0.5 else -1
        diameter = main.diameter * rng.uniform(0.18, 0.42)
        x = main.x + side * (
            main.diameter * rng.uniform(0.6, 0.9) + diameter * rng.uniform(0.5, 2.5)
        )
        pose = Pose(x, main.y + main.diameter * rng.uniform(-0.3, 0.5), diameter, main.roll * 0.5,
                    rng.uniform(-0.6, 0.6), 0.0, 4.0)  # fmt: skip
        _post(image, pose, light, 0.0)
        face = _face_for(assets.others[rng.integers(len(assets.others))], diameter)
        _hang(image, _lit(rng, face, light), pose, light, sharp=False)


def _companion(
    rng: np.random.Generator, assets: Assets, image: Image.Image, main: Pose, light: Light
) -> None:
    """A plate, or a sign of no class, below the sign on the same post."""
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
        face = _face_for(assets.others[rng.integers(len(assets.others))], size)
    drop = (main.diameter + size * 0.9) / main.diameter
    below = main.project(np.array(0.0), np.array(drop))
    pose = replace(main, x=float(below[0]), y=float(below[1]), diameter=size)
    _hang(image, _lit(rng, face, light), pose, light, sharp=False)


def _twig(
    rng: np.random.Generator,
    image: Image.Image,
    twig: Image.Image,
    pose: Pose,
    light: Light,
    side: int,
    reach: float,
) -> None:
    """A twig that comes in from the left (`side` -1) or the right and covers `reach` pixels."""
    size = int(pose.diameter * rng.uniform(0.9, 1.5))
    angle = rng.uniform(-35, 35)
    table = [min(255, int(v * f)) for f in light.scene for v in range(256)] + list(range(256))
    twig = twig.resize((size, size), Image.Resampling.BILINEAR).point(table)
    if side > 0:
        twig = twig.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    twig = twig.rotate(side * angle, Image.Resampling.BILINEAR)
    twig = twig.filter(ImageFilter.BoxBlur(rng.uniform(0.4, 1.6)))
    x = pose.x + side * (pose.diameter / 2 - reach + size * 0.36)
    y = pose.y + rng.uniform(-0.5, 0.4) * pose.diameter
    # The branch goes on from the end of the twig to the edge of the picture.
    bark = tuple(int(c * f) for c, f in zip((80, 64, 48), light.scene, strict=True))
    out = np.array([np.cos(np.radians(angle)), -np.sin(np.radians(angle))]) * (side, 1)
    start, end = (x, y) + out * (0.3 * size), (x, y) + out * (0.3 * size + image.width)
    ImageDraw.Draw(image).line([*start, *end], fill=bark, width=max(2, size // 34))
    image.paste(twig, (int(x - size / 2), int(y - size / 2)), twig)


def _occlude(
    rng: np.random.Generator, assets: Assets, image: Image.Image, pose: Pose, light: Light
) -> None:
    """Leaves or a post between the camera and the sign."""
    if rng.random() >= knobs.OCCLUDE:
        return
    reach = rng.uniform(*knobs.OCCLUDE_DEPTH) * pose.diameter
    side = 1 if rng.random() < 0.5 else -1
    if rng.random() < 0.75:
        number = rng.integers(len(assets.leaves))
        _twig(rng, image, assets.leaves[number], pose, light, side, reach)
    else:
        width = max(3, int(rng.uniform(0.06, 0.13) * pose.diameter))
        x = int(pose.x + side * (pose.diameter / 2 - reach))
        t = np.linspace(-1, 1, width, dtype=np.float32)
        bar = (70 + 90 * np.clip(1 - (t - 0.3) ** 2, 0, 1))[None, :, None] * np.array(light.scene)
        strip = Image.fromarray(np.clip(bar, 0, 255).astype(np.uint8)).resize((width, image.height))
        image.paste(strip, (x - width // 2, 0))


def picture_size(rng: np.random.Generator, index: int) -> tuple[int, int]:
    weights = np.array([w for *_, w in knobs.SIZES])
    width, height, _ = knobs.SIZES[rng.choice(len(weights), p=weights / weights.sum())]
    return (height, width) if index % knobs.PORTRAIT_EVERY == 3 else (width, height)


def draw_picture(
    assets: Assets, seed: int, split: str, index: int
) -> tuple[Image.Image, dict[str, int]]:
    """Picture `index` of a split, and how to write it as a JPEG (arguments of Pillow's `save`).

    Its class is `IDS[index % len(IDS)]`. Mode RGB, or L for every 25th picture.
    """
    rng = np.random.default_rng([seed, SPLITS.index(split), index])
    width, height = picture_size(rng, index)
    light = choose_light(rng)
    image = draw_scene(rng, assets, light, width, height)
    pose = _pose(rng, width, height)
    _others(rng, assets, image, pose, light)
    _post(image, pose, light, -0.6)
    _companion(rng, assets, image, pose, light)
    face = _face_for(assets.faces[IDS[index % len(IDS)]], pose.diameter)
    _hang(image, _weathered(rng, assets, face, light), pose, light)
    _occlude(rng, assets, image, pose, light)
    image = photograph(rng, assets, image, light)
    if index % knobs.GREY_EVERY == 7:
        image = image.convert("L")
    quality = int(rng.integers(*knobs.QUALITY, endpoint=True))
    return image, {"quality": quality, "subsampling": 0 if rng.random() < knobs.FULL_CHROMA else 2}


def draw_jpeg(assets: Assets, seed: int, split: str, index: int) -> bytes:
    """The same picture as the bytes of a JPEG file."""
    image, options = draw_picture(assets, seed, split, index)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()
