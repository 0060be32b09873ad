"""The tf.data loader: its batches equal those of PyTorch's loader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50lib.data import Batch
from rn50lib.data.decode import ImageDecoder
from rn50lib.data.source import Source, open_source
from tests.pipelines import test_loaders
from tests.pipelines.test_loaders import labels, pixels
from tests.support import full

pytestmark = [pytest.mark.slow, pytest.mark.needs("tensorflow"), pytest.mark.needs("torch")]


def read(source: Source, split: str = "train", **fields: Any) -> list[Batch]:
    return test_loaders.read("tensorflow", source, split, **fields)


def different(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the mean difference of pixels, image by image."""
    return np.abs(a.astype(float) - b.astype(float)).mean(axis=(1, 2, 3))


# --- the same images as  PyTorch's loader --------------------------------------------------------

TURNED = {"rotate": 25.0, "flip_up_down": True, "seed": 3}


LIMIT = 3  # two decoders differ by 1 or 2, any other error by tens


@pytest.mark.parametrize("data_format", ["files", "recordio"])
@pytest.mark.parametrize("options", [{}, TURNED])
def test_batches_match_the_torch_loader(
    textured: Path, data_format: str, options: dict[str, Any]
) -> None:
    for split, rank in (("train", 1), ("val", 0)):
        source = open_source(textured, split, data_format)
        wanted: dict[str, Any] = {"rank": rank, "size": 2, "batch_size": 3, "epoch": 2} | options
        torch = test_loaders.read("torch", source, split, **wanted)
        made = read(source, split, **wanted)
        assert labels(made) == labels(torch)
        assert [b.valid for b in made] == [b.valid for b in torch]
        assert different(pixels(made), pixels(torch)).max() < LIMIT


@pytest.mark.parametrize("options", [{}, TURNED])
def test_stream_crops_match_the_torch_loader(textured: Path, options: dict[str, Any]) -> None:
    """Records are matched by content: each has exactly one twin."""
    for split in ("train", "val"):
        source = open_source(textured, split, "tfrecord")
        decoder = ImageDecoder(source, split == "train", full(**options))
        wanted = np.stack([decoder.decode(4, i) for i in range(len(source))])
        made = read(source, split, epoch=4, batch_size=3, **options)
        twins = [int(np.argmin(different(wanted, image[None]))) for image in pixels(made)]
        assert sorted(twins) == list(range(12))
        assert different(pixels(made), wanted[twins]).max() < LIMIT
        assert labels(made) == source.labels[twins].tolist()
