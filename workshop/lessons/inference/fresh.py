"""Pictures that were never in the data: road signs drawn anew, and pictures of no sign at all."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

SEED = 4711  # the built-in data is drawn with seed 0
NO_SIGN = ("road", "noise")


def draw(folder: Path, classes: tuple[str, ...], count: int = 4, seed: int = SEED) -> list[Path]:
    """JPEG files in `folder`: `count` signs named by their class, a road without a sign, noise.

    The same program draws them as the data, from another seed.
    """
    from data_prep.signs.assets import make_assets
    from data_prep.signs.compose import draw_jpeg
    from data_prep.signs.light import choose_light
    from data_prep.signs.scene import draw_scene

    folder.mkdir(parents=True, exist_ok=True)
    assets, paths = make_assets(seed), []
    for place in range(count):
        index = place * len(classes) // count
        paths.append(folder / f"{classes[index]}.jpg")
        paths[-1].write_bytes(draw_jpeg(assets, seed, "val", index))
    rng = np.random.default_rng(seed)
    pictures = (
        draw_scene(rng, assets, choose_light(rng), 500, 375),
        Image.fromarray(rng.integers(0, 256, (375, 500, 3), np.uint8)),
    )
    for name, picture in zip(NO_SIGN, pictures, strict=True):
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=90)
        paths.append(folder / f"{name}.jpg")
        paths[-1].write_bytes(buffer.getvalue())
    return paths
