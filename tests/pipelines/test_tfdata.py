"""TensorFlow's own decoders on odd images; test_loaders.py has what all loaders promise."""

from __future__ import annotations

import io
import itertools
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from rn50lib import recipe
from rn50lib.data import sampler
from rn50lib.data.source import open_source
from rn50lib.errors import UserError
from tests.pipelines.test_images import photograph
from tests.pipelines.test_loaders import read
from tests.support import full

pytestmark = [pytest.mark.slow, pytest.mark.needs("tensorflow")]


@pytest.mark.parametrize("split", ["train", "val"])
def test_turned_images_are_read_upright(tmp_path: Path, split: str) -> None:
    """Eight orientations, as JPEG and PNG: the crops are those of the image that viewers show."""
    photo = Image.open(io.BytesIO(photograph(300, 200)))
    for folder, form, turned in itertools.product(("train", "val"), ("jpg", "png"), range(1, 9)):
        exif = Image.Exif()
        exif[0x0112] = turned
        path = tmp_path / folder / "a" / f"{form}{turned}.{form}"
        path.parent.mkdir(parents=True, exist_ok=True)
        photo.save(path, exif=exif, **({"quality": 95} if form == "jpg" else {}))
    source = open_source(tmp_path, split, "files")
    config = full(num_classes=1, batch_size=16, image_shape=64, val_resize=73)
    (batch,) = read("tensorflow", source, split, num_classes=1, batch_size=16, image_shape=64,
                    val_resize=73)  # fmt: skip
    order = sampler.epoch_order(16, config.seed, 0) if split == "train" else range(16)
    for number, pixels in zip(map(int, order), np.asarray(batch.images), strict=True):
        upright = ImageOps.exif_transpose(Image.open(source.name(number))).convert("RGB")
        box, mirror = recipe.center_crop_box(*upright.size, 64, 73), False
        if split == "train":
            seed = sampler.image_seed(config.seed, 0, number)
            box, mirror = recipe.augment(seed, *upright.size)
        left, top, width, height = box
        wanted = upright.resize((64, 64), Image.Resampling.BILINEAR,
                                (left, top, left + width, top + height))  # fmt: skip
        wanted = ImageOps.mirror(wanted) if mirror else wanted
        difference = np.abs(pixels.astype(float) - np.asarray(wanted)).mean()
        assert difference < 4, (source.name(number), difference)


def test_an_image_that_only_pillow_decodes_is_named(tmp_path: Path) -> None:
    for split, i in itertools.product(("train", "val"), range(4)):
        path = tmp_path / split / "a" / f"{i}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(photograph(40, 30))
    Image.new("RGB", (40, 30)).save(tmp_path / "val/a/2.jpg", "TIFF")
    with pytest.raises(UserError, match=r"val/a/2\.jpg.*") as caught:
        read("tensorflow", open_source(tmp_path, "val"), "val", num_classes=1)
    assert "\n" not in str(caught.value)
