"""The same file and crop through every loader: the same pixels, and the same predictions.

The truth is Pillow with antialiasing, from the whole decoded image.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rn50lib import recipe
from rn50lib.data import open_pipeline, sampler
from rn50lib.data.source import Source, open_source
from tests.pipelines.conftest import by_pillow
from tests.support import full

pytestmark = pytest.mark.needs("torch", "tensorflow", "dali")

LOADERS = {
    "native, torch": {"loader": "native", "backend": "torch"},
    "native, tensorflow": {"loader": "native", "backend": "tensorflow"},
    "dali": {"loader": "dali", "backend": "torch"},
}


def validation(source: Source, loader: str, **fields: Any) -> np.ndarray:
    """Return all validation images of one loader, in order."""
    config = full(**LOADERS[loader], num_classes=len(source.classes), **fields)
    pipeline = open_pipeline(config, source, "val", 0, 1)
    try:
        return np.concatenate([np.asarray(b.images)[: b.valid] for b in pipeline.epoch(0)])
    finally:
        pipeline.close()


def photograph(rng: np.random.Generator, width: int, height: int) -> Image.Image:
    """Return noise on every scale, like the detail of photos."""
    total = np.full((height, width, 3), 128.0)
    for scale, strength in ((1, 8), (2, 8), (4, 10), (16, 25), (64, 40)):
        small = rng.normal(size=(height // scale + 2, width // scale + 2, 3)).astype(np.float32)
        for c in range(3):
            layer = Image.fromarray(small[..., c]).resize((width, height), Image.Resampling.BICUBIC)
            total[..., c] += strength * np.asarray(layer)
    return Image.fromarray(np.clip(total, 0, 255).astype(np.uint8))


@pytest.mark.slow
def test_every_loader_matches_pillow(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for split, i in itertools.product(("train", "val"), range(3)):
        path = tmp_path / split / "a" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        photograph(rng, *((300, 225), (210, 340), (160, 160))[i]).save(path, quality=90)
    source = open_source(tmp_path, "val", "files")
    for size, resize in ((128, 146), (64, 73)):  # the second is decoded at a part of the size
        wanted = np.stack([by_pillow(source.read(i), size, resize) for i in range(3)])
        for loader in LOADERS:
            made = validation(source, loader, image_shape=size, val_resize=resize)
            difference = np.abs(made.astype(float) - wanted).mean(axis=(1, 2, 3))
            assert difference.max() <= 3, (loader, size, difference)


@pytest.mark.slow
@pytest.mark.parametrize("loader", LOADERS)
def test_training_crops_match_pillow(tmp_path: Path, loader: str) -> None:
    """Fast decoding changes pixels by a mean of 1 to 2 of 255.

    If PyTorch's loader decodes at reduced size, its crop is rounded to the pixels of that size.
    DALI draws its own crops, so here its only crop is the whole image.
    """
    only = {"crop_area": 1.0} if loader == "dali" else {}
    rng = np.random.default_rng(0)
    path = tmp_path / "train" / "a"
    path.mkdir(parents=True)
    for i in range(8):
        photograph(rng, 300, 225).save(path / f"{i}.jpg", quality=90)
    source = open_source(tmp_path, "train", "files")
    for size in (128, 48):
        config = full(**LOADERS[loader], **only, image_shape=size, batch_size=8)
        pipeline = open_pipeline(config, source, "train", 0, 1)
        try:
            made = np.concatenate([np.asarray(b.images) for b in pipeline.epoch(0)]).astype(float)
        finally:
            pipeline.close()
        numbers = sampler.epoch_order(8, config.seed, 0).tolist()
        augmentation = config.augmentation
        for number, pixels in zip(numbers, made, strict=True):
            seed = sampler.image_seed(config.seed, 0, number)
            (left, top, w, h), mirror = recipe.augment(seed, 300, 225, augmentation)
            image = Image.open(path / f"{number}.jpg")
            box = (left, top, left + w, top + h)
            if loader == "native, torch":
                part = next(p for p in (4, 2, 1) if min(w, h) >= p * size or p == 1)
                box = tuple(round(side / part) * part for side in box)
            wanted = np.asarray(image.resize((size, size), Image.Resampling.BILINEAR, box=box))
            straight, mirrored = (np.abs(pixels - w).mean() for w in (wanted, wanted[:, ::-1]))
            difference = mirrored if mirror else straight
            limit = 3.0
            if loader == "dali":  # a shift of half a pixel makes 1.9 at size 128
                difference, limit = min(straight, mirrored), 1.5
            assert difference <= limit, (size, number, difference)
            assert difference > 0.5  # else it was not decoded in a hurry
