"""The tf.data loader: batches equal to PyTorch's loader, raw pixels, and its stages."""

from __future__ import annotations

import itertools
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50lib.data import Batch
from rn50lib.data.decode import Pictures
from rn50lib.data.source import Source, open_source
from tests.pipelines import test_loaders
from tests.pipelines.test_loaders import labels, pixels
from tests.support import Photos, full, numbers

pytestmark = [pytest.mark.slow, pytest.mark.needs("tensorflow"), pytest.mark.needs("torch")]


def read(source: Source, split: str = "train", **fields: Any) -> list[Batch]:
    return test_loaders.read("tensorflow", source, split, **fields)


def different(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the mean difference of pixels, image by image."""
    return np.abs(a.astype(float) - b.astype(float)).mean(axis=(1, 2, 3))


# --- the same images as  PyTorch's loader --------------------------------------------------------

TURNED = {"rotate": 25.0, "flip_up_down": True, "seed": 3}


def limit(options: dict[str, Any]) -> float:
    """Return the tolerance: two decoders differ by 1 or 2.

    Along the edge of a rotated image, TensorFlow mixes the last pixels with the black next to it
    and Pillow does not. Any other error differs by tens.
    """
    return 5 if options else 3


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
        assert different(pixels(made), pixels(torch)).max() < limit(options)


@pytest.mark.parametrize("options", [{}, TURNED])
def test_stream_crops_match_the_torch_loader(textured: Path, options: dict[str, Any]) -> None:
    """Records are matched by content: each has exactly one twin."""
    for split in ("train", "val"):
        source = open_source(textured, split, "tfrecord")
        pictures = Pictures(source, split == "train", full(**options))
        wanted = np.stack([pictures.image(4, i) for i in range(len(source))])
        made = read(source, split, epoch=4, batch_size=3, **options)
        twins = [int(np.argmin(different(wanted, image[None]))) for image in pixels(made)]
        assert sorted(twins) == list(range(12))
        assert different(pixels(made), wanted[twins]).max() < limit(options)
        assert labels(made) == source.labels[twins].tolist()


def test_raw_pixels_train_too(photos: Photos, tmp_path: Path) -> None:
    """The slides' examples contain a square of every image, and a label from 0."""
    from data_prep import tfrecord

    tfrecord.convert(photos.root, tmp_path / "raw", schema="slides", size=50, jobs=0, quiet=True)
    for split, count in (("train", 48), ("val", 19)):
        source = open_source(tmp_path / "raw", split)
        made = read(source, split, batch_size=8, rotate=10.0, flip_up_down=True)
        assert len(labels(made)) == count
        if split == "val":
            assert sorted(numbers(pixels(made))) == list(range(19))
            assert pixels(made).std(axis=(1, 2)).max() < 1  # flat, without black corners


def test_only_reading_shard_after_shard_changes_the_order_of_a_stream(textured: Path) -> None:
    """Every other stage only changes the speed; for files, every stage does."""
    from rn50lib.data.sampler import Plan
    from rn50lib.data.tfdata import Stages, TfData

    ways = [Stages(), *(replace(Stages(), **{f.name: False}) for f in fields(Stages))]
    wanted = {}
    for data_format, way in itertools.product(("files", "tfrecord"), ways):
        source = open_source(textured, "train", data_format)
        experiment = full(backend="tensorflow", data_nthreads=2)
        plan = Plan(experiment, source, "train")
        made = list(TfData(experiment, source, plan, way).epoch(0))
        order = wanted.setdefault((data_format, way.interleave), made)
        assert labels(made) == labels(order)
        assert different(pixels(made), pixels(order)).max() < 3
    assert labels(wanted["files", False]) == labels(wanted["files", True])
