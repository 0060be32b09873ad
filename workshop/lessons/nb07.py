"""Notebook 07: new images for the network to classify."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

SEED = 4711  # the built-in data set is drawn from seed 0
COUNT = 4


def draw_signs(folder: Path, classes: Sequence[str]) -> list[Path]:
    """Draw JPEG files that are not in the data set into a new folder, and return their paths.

    These are COUNT signs, named after their classes, then two images without a sign: road.jpg and
    noise.jpg.
    """
    from data_prep.signs.assets import make_assets
    from data_prep.signs.compose import draw_jpeg
    from data_prep.signs.light import choose_light
    from data_prep.signs.scene import draw_scene

    folder.mkdir(parents=True, exist_ok=True)
    assets = make_assets(SEED)
    files = {}
    for label in range(0, len(classes), len(classes) // COUNT):
        files[classes[label]] = draw_jpeg(assets, SEED, "val", label)
    rng = np.random.default_rng(SEED)
    without_sign = {
        "road": draw_scene(rng, assets, choose_light(rng), 500, 375),
        "noise": Image.fromarray(rng.integers(0, 256, (375, 500, 3), np.uint8)),
    }
    for name, image in without_sign.items():
        buffer = io.BytesIO()
        image.save(buffer, "JPEG", quality=90)
        files[name] = buffer.getvalue()
    for name, content in files.items():
        (folder / f"{name}.jpg").write_bytes(content)
    return [folder / f"{name}.jpg" for name in files]
