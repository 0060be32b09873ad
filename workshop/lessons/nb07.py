"""Notebook 07: new images for the network to classify."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image

NEW_SEED = 4711  # the built-in data set is drawn from seed 0


def draw_signs(
    folder: Path, classes: Sequence[str], count: int = 4, seed: int = NEW_SEED
) -> list[Path]:
    """Draw JPEG files that are not in the data set, and return their paths.

    Args:
        folder: Where to write them; it is created.
        classes: The class names, in the order of the labels.
        count: How many signs to draw, each named after its class.
        seed: The seed of the drawing; the data set uses a different one.

    Returns:
        The signs, then two images without a sign: ``road.jpg`` and ``noise.jpg``.
    """
    from data_prep.signs.assets import make_assets
    from data_prep.signs.compose import draw_jpeg
    from data_prep.signs.light import choose_light
    from data_prep.signs.scene import draw_scene

    folder.mkdir(parents=True, exist_ok=True)
    assets = make_assets(seed)
    files = {}
    for place in range(count):
        label = place * len(classes) // count
        files[classes[label]] = draw_jpeg(assets, seed, "val", label)
    rng = np.random.default_rng(seed)
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
