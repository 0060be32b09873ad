"""tf.data: the batches of PyTorch's loader from files and RecordIO, and what streams promise.

Truth comes from elsewhere: from flat colours that say which picture is which, from PyTorch's loader
(which is tested against plain Pillow), and from a second process.
"""

from __future__ import annotations

import hashlib
import itertools
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from data_prep.tfrecordwriter import frame_record, serialize_example
from rn50lib import hooks as overrides
from rn50lib.data import Batch, open_pipeline
from rn50lib.data.decode import Pictures
from rn50lib.data.source import Source, open_source
from rn50lib.errors import UserError
from tests.pipelines.conftest import ODD
from tests.support import Photos, full, numbers, write_photo

pytestmark = [pytest.mark.slow, pytest.mark.needs("tensorflow"), pytest.mark.needs("torch")]

FORMATS = ("files", "recordio", "tfrecord")


def read(
    source: Source, split: str = "train", epoch: int = 0, rank: int = 0, size: int = 1,
    start_step: int = 0, **fields: Any,
) -> list[Batch]:  # fmt: skip
    fields = {"backend": "tensorflow", "data_nthreads": 2} | fields
    pipeline = open_pipeline(full(test_io=True, **fields), source, split, rank, size)
    batches = list(pipeline.epoch(epoch, start_step))
    assert len(batches) == len(pipeline) - start_step
    pipeline.close()
    return batches


def pixels(batches: list[Batch]) -> np.ndarray:
    return np.concatenate([np.asarray(batch.images)[: batch.valid] for batch in batches])


def labels(batches: list[Batch]) -> list[int]:
    return [int(k) for batch in batches for k in np.asarray(batch.labels)[: batch.valid]]


def different(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The mean difference of pixels, image by image."""
    return np.abs(a.astype(float) - b.astype(float)).mean(axis=(1, 2, 3))


# --- the same pictures as PyTorch's loader --------------------------------------------------------

TURNED = {"rotate": 25.0, "flip_up_down": True, "seed": 3}


def limit(options: dict[str, Any]) -> float:
    """Two decoders differ by 1 or 2; along the edge of a turned image, TensorFlow mixes the last
    pixels with the black beside it and Pillow does not. Anything else differs by tens."""
    return 5 if options else 3


@pytest.mark.parametrize("data_format", ["files", "recordio"])
@pytest.mark.parametrize("options", [{}, TURNED])
def test_batches_are_those_of_the_torch_loader(
    textured: Path, data_format: str, options: dict[str, Any]
) -> None:
    for split, rank in (("train", 1), ("val", 0)):
        source = open_source(textured, split, data_format)
        wanted: dict[str, Any] = {"rank": rank, "size": 2, "batch_size": 3, "epoch": 2} | options
        torch = read(source, split, backend="torch", **wanted | {"data_nthreads": 0})
        made = read(source, split, **wanted)
        assert labels(made) == labels(torch)
        assert [b.valid for b in made] == [b.valid for b in torch]
        assert different(pixels(made), pixels(torch)).max() < limit(options)


@pytest.mark.parametrize("options", [{}, TURNED])
def test_a_stream_crops_each_record_as_the_torch_loader_does(
    textured: Path, options: dict[str, Any]
) -> None:
    """Which record is which is found by looking: each has exactly one twin."""
    for split in ("train", "val"):
        source = open_source(textured, split, "tfrecord")
        pictures = Pictures(source, split == "train", full(**options))
        wanted = np.stack([pictures.image(4, i) for i in range(len(source))])
        made = read(source, split, epoch=4, batch_size=3, **options)
        twins = [int(np.argmin(different(wanted, image[None]))) for image in pixels(made)]
        assert sorted(twins) == list(range(12))
        assert different(pixels(made), wanted[twins]).max() < limit(options)
        assert labels(made) == source.labels[twins].tolist()


def test_large_photographs_that_are_decoded_at_a_part_of_their_size(tmp_path: Path) -> None:
    down, across = np.mgrid[:700, :900]
    for i in range(8):
        image = np.stack([across / 4, down / 3, 127 + 120 * np.sin(across / (20 + i))], axis=-1)
        for split in ("train", "val"):
            path = tmp_path / split / "a" / f"{i}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image.astype(np.uint8)).save(path, quality=95)
    for split, limit in (("train", 5), ("val", 3)):  # PyTorch's training crops begin at a pixel
        source = open_source(tmp_path, split, "files")
        torch = read(source, split, backend="torch", num_classes=1, data_nthreads=0)
        assert different(pixels(read(source, split, num_classes=1)), pixels(torch)).max() < limit


def test_fast_resampling_lets_fine_patterns_through(tmp_path: Path) -> None:
    """Stripes of one pixel are grey from afar. Without antialiasing some of them stay stripes."""
    stripes = np.zeros((60, 60, 3), np.uint8)
    stripes[:, ::2] = 255
    for split in ("train", "val"):
        (tmp_path / split / "a").mkdir(parents=True)
        for i in range(4):
            Image.fromarray(stripes).save(tmp_path / split / "a" / f"{i}.jpg", quality=100)
    source = open_source(tmp_path, "val", "files")
    contrast = {
        how: pixels(read(source, "val", num_classes=1, resample=how)).std()
        for how in ("antialias", "fast")
    }
    assert contrast["antialias"] < 15 < 40 < contrast["fast"]


def test_raw_pixels_train_too(photos: Photos, tmp_path: Path) -> None:
    """The slides' examples: they hold a square of every picture, and a label from 0 on."""
    from data_prep import tfrecord

    tfrecord.convert(photos.root, tmp_path / "raw", schema="slides", size=50, jobs=0, quiet=True)
    for split, count in (("train", 48), ("val", 19)):
        source = open_source(tmp_path / "raw", split)
        made = read(source, split, batch_size=8, rotate=10.0, flip_up_down=True)
        assert len(labels(made)) == count
        if split == "val":
            assert sorted(numbers(pixels(made))) == list(range(19))
            assert pixels(made).std(axis=(1, 2)).max() < 1  # flat, without black corners


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("data_format", ["recordio", "tfrecord"])
def test_an_epoch_goes_on_from_any_step(textured: Path, data_format: str) -> None:
    source = open_source(textured, "train", data_format)
    whole, rest = read(source, epoch=1), read(source, epoch=1, start_step=2)
    assert np.array_equal(pixels(whole)[8:], pixels(rest)) and labels(whole)[8:] == labels(rest)


def test_only_reading_shard_after_shard_changes_the_order_of_a_stream(textured: Path) -> None:
    """Every other stage changes nothing but the speed; of files, each changes nothing at all."""
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


ANOTHER_PROCESS = """
import sys
from tests.pipelines.test_tf_data import hashes, opened
pipelines = opened(sys.argv[1], threads=3)
from tensorflow.python.eager import context
print(context.context()._context_handle, *hashes(pipelines))
"""


def opened(root: str | Path, threads: int) -> list[Any]:
    experiment = full(backend="tensorflow", data_nthreads=threads, seed=7, batch_size=5)
    sources = [open_source(root, "train", data_format) for data_format in ("files", "tfrecord")]
    return [open_pipeline(experiment, source, "train", 0, 2) for source in sources]


def hashes(pipelines: list[Any]) -> list[str]:
    """A hash of all batches of two epochs of each pipeline."""
    found = []
    for pipeline, epoch in itertools.product(pipelines, (0, 3)):
        digest = hashlib.sha256()
        for batch in pipeline.epoch(epoch):
            digest.update(np.asarray(batch.images).tobytes() + np.asarray(batch.labels).tobytes())
        found.append(digest.hexdigest())
    return found


def test_seed_and_epoch_give_the_same_batches_in_any_process(
    textured: Path, repository: Path
) -> None:
    """With another number of threads, too. And opening a pipeline touches no device: the backend
    chooses its GPU after that, which TensorFlow would refuse once it has looked at them."""
    done = subprocess.run(
        [sys.executable, "-c", ANOTHER_PROCESS, str(textured)],
        capture_output=True, text=True, cwd=repository, check=True,
    )  # fmt: skip
    context, *there = done.stdout.split()
    assert context == "None"
    here = hashes(opened(textured, threads=0))
    assert there == here and len(set(here)) == 4


def test_a_part_of_the_data_is_the_same_part_of_every_shard(photos: Photos, tmp_path: Path) -> None:
    from data_prep import tfrecord

    tfrecord.convert(photos.root, tmp_path / "tfrecord", jobs=0, quiet=True)
    source = open_source(tmp_path, "train", "tfrecord")
    parts = [set(numbers(pixels(read(source, epoch=e, num_examples=24)))) for e in (0, 1)]
    assert parts[0] == parts[1] and len(parts[0]) == 24
    assert len(read(source, benchmark_iters=2)) == 2
    assert len(read(open_source(tmp_path, "val"), "val", benchmark_iters=2)) == 2


# --- a learner's functions ------------------------------------------------------------------------

AUGMENT = """
def augment(seed, width, height, augmentation):
    return (0, 0, width // 2, height), False

def outside(seed, width, height, augmentation):
    return (5, 0, width, height), False

def shard(order, rank, size, batch):
    return order[:batch].reshape(1, batch)
"""


@pytest.fixture
def learner(tmp_path: Path) -> Iterator[Any]:
    (tmp_path / "mine.py").write_text(AUGMENT)
    yield lambda seam, name: overrides.install((f"{seam}={tmp_path / 'mine.py'}:{name}",))
    overrides.install(())


@pytest.mark.parametrize("data_format", FORMATS)
def test_a_function_of_ones_own_chooses_the_crops(
    textured: Path, data_format: str, learner: Any
) -> None:
    """Red rises from left to right: no left half is bright."""
    learner("augment", "augment")
    source = open_source(textured, "train", data_format)
    reds = pixels(read(source))[..., 0]
    assert 110 < reds.max() < 140
    learner("augment", "outside")
    with pytest.raises(UserError, match=r"--override augment: the crop \(left 5, top 0"):
        read(source)


def test_a_shard_function_of_ones_own_needs_files_or_records(textured: Path, learner: Any) -> None:
    learner("shard", "shard")
    assert len(read(open_source(textured, "train", "recordio"))) == 1
    with pytest.raises(UserError, match="--override shard: .* use --data-format files"):
        read(open_source(textured, "train", "tfrecord"))


# --- odd and damaged files ------------------------------------------------------------------------


@pytest.mark.parametrize("data_format", FORMATS)
def test_odd_images_pass(odd: Path, data_format: str) -> None:
    for split in ("train", "val"):
        source = open_source(odd, split, data_format)
        made = read(source, split, num_classes=len(ODD), batch_size=len(ODD))
        assert sorted(labels(made)) == list(range(len(ODD)))
        for label, image in zip(labels(made), pixels(made), strict=True):
            mean = image.mean(axis=(0, 1))
            assert np.abs(mean - ODD[label].colour).max() < 6, (ODD[label].name, mean)


def whole_and_cut() -> tuple[bytes, bytes]:
    import io

    out = io.BytesIO()
    noise = np.random.default_rng(0).integers(0, 256, (90, 120, 3), np.uint8)
    Image.fromarray(noise).save(out, "JPEG", quality=90)
    return out.getvalue(), out.getvalue()[: len(out.getvalue()) // 3]


@pytest.mark.parametrize("problem", ["damaged and does not decode", "not an image"])
@pytest.mark.parametrize("data_format", ["files", "tfrecord"])
def test_a_bad_image_is_named(tmp_path: Path, data_format: str, problem: str) -> None:
    whole, cut = whole_and_cut()
    bad = cut if problem.startswith("damaged") else b"<html>no such picture</html>" * 60
    images = [whole, whole, bad, whole]
    if data_format == "files":
        for split, i in itertools.product(("train", "val"), range(4)):
            (tmp_path / split / "a").mkdir(parents=True, exist_ok=True)
            (tmp_path / split / "a" / f"{i}.jpg").write_bytes(images[i])
        name = f"{tmp_path}/val/a/2.jpg"
    else:
        records = [
            frame_record(serialize_example({"image/encoded": image, "image/class/label": 1}))
            for image in images
        ]
        path = tmp_path / "validation-00000-of-00001"
        path.write_bytes(b"".join(records))
        name = f"{path}: record 2 at offset {len(records[0]) + len(records[1]):,}"
    source = open_source(tmp_path, "val", data_format)
    with pytest.raises(UserError) as caught:
        read(source, "val", num_classes=1, batch_size=3)
    message = str(caught.value)
    assert message.startswith(name) and problem in message and "\n" not in message


def test_a_damaged_record_is_named(textured: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(textured / "tfrecord", tmp_path / "tfrecord")
    path = tmp_path / "tfrecord" / "train-00001-of-00003"
    lines = (path.parent / "index" / f"{path.name}.idx").read_text().splitlines()
    offset, size = map(int, lines[2].split())
    data = bytearray(path.read_bytes())
    data[offset + size // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(UserError) as caught:
        read(open_source(tmp_path, "train"))
    assert f"{path}: damaged at offset {offset:,}: " in str(caught.value)


def test_a_file_removed_meanwhile_is_named(tmp_path: Path) -> None:
    for split, i in itertools.product(("train", "val"), range(4)):
        write_photo(tmp_path / split / "a" / f"{i}.jpg", i)
    source = open_source(tmp_path, "train")
    (tmp_path / "train" / "a" / "3.jpg").unlink()
    with pytest.raises(UserError, match=r"train/a/3\.jpg: this image cannot be read"):
        read(source, num_classes=1)
