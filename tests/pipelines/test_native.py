"""The native loader: which images come when, what is done to them, and what happens to odd files.

The pictures of the `photos` fixture are flat colours, so a batch itself tells what it holds.
"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from PIL import Image

from data_prep import tfrecord
from rn50lib import recipe
from rn50lib.data import Batch, open_pipeline, sampler
from rn50lib.data.sampler import Plan
from rn50lib.data.source import Source, open_source
from rn50lib.data.tfrecord import TFRecordReader, parse_example
from rn50lib.errors import UserError
from tests.pipelines.conftest import ODD
from tests.support import Photos, full, numbers, write_photo

pytestmark = pytest.mark.needs("torch")

Made = list[tuple[list[int], list[int], int]]  # image numbers, labels, valid


def read(
    source: Source, split: str = "train", epoch: int = 0, rank: int = 0, size: int = 1,
    start_step: int = 0, **fields: Any,
) -> list[Batch]:  # fmt: skip
    pipeline = open_pipeline(full(test_io=True, **fields), source, split, rank, size)
    try:
        batches = list(pipeline.epoch(epoch, start_step))
        assert len(batches) == len(pipeline) - start_step
        return batches
    finally:
        pipeline.close()


def contents(batches: list[Batch]) -> Made:
    return [(numbers(b.images), [int(x) for x in b.labels], b.valid) for b in batches]


def number_of_image(photos: Photos, source: Source, split: str = "train") -> list[int]:
    """The number (colour) of each image of a source: from the file names alone, or, of shards, by
    looking at one record after the other."""
    if source.format == "tfrecord":
        records = [record for path in source.shards for record in TFRecordReader(path)]
        images = [parse_example(record)["image/encoded"][0] for record in records]
        return [numbers(np.asarray(Image.open(io.BytesIO(x)))[None])[0] for x in images]
    files = [str(path.relative_to(photos.root / split)) for path in photos.files(split)]
    if source.format == "files":
        return list(range(len(files)))
    lines = (photos.records / f"{split}.lst").read_text().splitlines()
    return [files.index(line.split("\t")[2]) for line in lines]


@pytest.fixture(scope="module")
def shards(photos: Photos, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("native") / "tfrecord"
    return tfrecord.convert(photos.root, folder, jobs=0, data_format="files", quiet=True)


@pytest.fixture(params=["files", "recordio", "tfrecord"])
def source(request: pytest.FixtureRequest, photos: Photos, shards: Path) -> Source:
    root = shards if request.param == "tfrecord" else photos.root
    return open_source(root, "train", request.param)


# --- order ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("epoch", [0, 3])
def test_the_order_is_the_promised_one_on_every_rank(
    photos: Photos, source: Source, epoch: int
) -> None:
    """Step s takes order[s x G : (s + 1) x G], and rank r the rows from r x B of it."""
    named = number_of_image(photos, source)
    planned = [named[i] for i in sampler.epoch_order(48, seed=5, epoch=epoch)]
    size, batch = 3, 4
    for rank in range(size):
        made = contents(read(source, epoch=epoch, rank=rank, size=size, batch_size=batch, seed=5))
        assert len(made) == 48 // 12
        for step, (shown, labels, valid) in enumerate(made):
            first = step * size * batch + rank * batch
            assert shown == planned[first : first + batch]
            assert labels == [number // 8 for number in shown]  # 8 images a class
            assert valid == batch


def test_epochs_differ_and_each_can_be_read_again(source: Source) -> None:
    first, second = read(source, epoch=0), read(source, epoch=1)
    assert contents(first) != contents(second)
    again = read(source, epoch=0)
    assert all(np.array_equal(a.images, b.images) for a, b in zip(first, again, strict=True))
    assert contents(read(source, epoch=0, seed=1)) != contents(first)


def test_an_epoch_goes_on_from_any_step(source: Source) -> None:
    whole, rest = read(source, epoch=2), read(source, epoch=2, start_step=7)
    assert contents(rest) == contents(whole[7:])
    assert all(np.array_equal(a.images, b.images) for a, b in zip(rest, whole[7:], strict=True))
    assert read(source, epoch=2, start_step=12) == []


def test_benchmark_iterations_cut_both_splits(photos: Photos) -> None:
    for split in ("train", "val"):
        source = open_source(photos.root, split, "files")
        assert len(read(source, split, benchmark_iters=2)) == 2


def test_a_part_of_the_data_holds_every_class_and_stays_the_same(photos: Photos) -> None:
    source = open_source(photos.root, "train", "files")
    parts = [
        {n for shown, _, _ in contents(read(source, epoch=e, num_examples=24)) for n in shown}
        for e in (0, 1)
    ]
    assert parts[0] == parts[1] and len(parts[0]) == 24
    assert {number // 8 for number in parts[0]} == set(range(6))


def test_nothing_is_drawn_without_a_subset(photos: Photos, monkeypatch: pytest.MonkeyPatch) -> None:
    """A permutation of ImageNet's 1.28 million images per split and rank is not free."""
    source, drawn = open_source(photos.root, "train"), []
    real = sampler.epoch_order
    monkeypatch.setattr(sampler, "epoch_order", lambda *args: drawn.append(args) or real(*args))
    for wanted, times in ((None, 0), (len(source), 0), (12, 1)):
        drawn.clear()
        Plan(full(num_examples=wanted), source, "train")
        assert len(drawn) == times, wanted


def test_a_batch_larger_than_the_data_is_refused(photos: Photos) -> None:
    source = open_source(photos.root, "train", "files")
    with pytest.raises(UserError, match="--batch-size 64: .* 64 images .* gives 48"):
        open_pipeline(full(batch_size=64), source, "train", 0, 1)
    with pytest.raises(UserError, match="--batch-size 16"):
        open_pipeline(full(batch_size=16, num_examples=8), source, "train", 0, 1)


# --- pixels ---------------------------------------------------------------------------------------


def by_position(batches: list[Batch]) -> np.ndarray:
    return np.concatenate([np.asarray(b.images) for b in batches])


def test_augmentation_does_not_depend_on_the_batch_size(textured: Path) -> None:
    source = open_source(textured, "train", "files")
    one = by_position(read(source, batch_size=1, epoch=1))
    assert np.array_equal(one, by_position(read(source, batch_size=6, epoch=1)))
    parts = [by_position(read(source, batch_size=2, epoch=1, rank=r, size=2)) for r in (0, 1)]
    together = np.stack([part.reshape(3, 2, *one.shape[1:]) for part in parts], axis=1)
    assert np.array_equal(one, together.reshape(one.shape))


def test_a_training_image_is_its_crop_mirrored_or_not(textured: Path) -> None:
    """By plain Pillow, from the file: decode, crop, resize, mirror."""
    source = open_source(textured, "train", "files")
    made = by_position(read(source, batch_size=4, epoch=3, seed=2))
    mirrored = 0
    for pixels, index in zip(made, sampler.epoch_order(12, seed=2, epoch=3), strict=True):
        whole = Image.open(source.name(int(index)))
        seed = sampler.image_seed(2, 3, int(index))
        (left, top, width, height), mirror = recipe.augment(seed, *whole.size)
        part = whole.crop((left, top, left + width, top + height))
        wanted = part.resize((32, 32), Image.Resampling.BILINEAR)
        if mirror:
            wanted = wanted.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        assert np.abs(pixels.astype(float) - np.asarray(wanted)).mean() <= 3
        mirrored += mirror
    assert 0 < mirrored < 12


def test_training_images_are_turned_as_asked(textured: Path) -> None:
    """The slides' augmentation, on top of the same crops; validation images stay as they are."""
    for split in ("train", "val"):
        source = open_source(textured, split, "files")
        level = by_position(read(source, split, batch_size=4))
        over = by_position(read(source, split, batch_size=4, flip_up_down=True))
        turned = by_position(read(source, split, batch_size=4, rotate=30.0))
        if split == "val":
            assert np.array_equal(level, over) and np.array_equal(level, turned)
            continue
        flipped = [np.array_equal(a[::-1], b) for a, b in zip(level, over, strict=True)]
        same = [np.array_equal(a, b) for a, b in zip(level, over, strict=True)]
        assert 0 < sum(flipped) < 12 and sum(flipped) + sum(same) == 12
        angles = []
        for a, b in zip(level, turned, strict=True):
            fits = [
                np.abs(
                    np.asarray(Image.fromarray(a).rotate(d, Image.Resampling.BILINEAR)) - 1.0 * b
                )
                for d in range(-30, 31)
            ]
            angles.append(int(np.argmin([difference.mean() for difference in fits])) - 30)
            assert min(difference.mean() for difference in fits) < 5
        assert len(set(angles)) > 6 and min(angles) < 0 < max(angles)  # each by itself


def test_every_epoch_augments_anew(textured: Path) -> None:
    source = open_source(textured, "train", "files")
    made = []
    for epoch in (0, 1):
        images = by_position(read(source, batch_size=4, epoch=epoch))
        planned = sampler.epoch_order(12, 0, epoch)
        made.append(images[np.argsort(planned)])  # in the order of the files
    different = [not np.array_equal(a, b) for a, b in zip(*made, strict=True)]
    assert all(different)


def test_validation_is_the_same_in_every_epoch_and_by_any_seed(textured: Path) -> None:
    source = open_source(textured, "val", "files")
    first = by_position(read(source, "val", epoch=0))
    assert np.array_equal(first, by_position(read(source, "val", epoch=4, seed=9)))


@pytest.mark.slow
def test_augmentation_and_order_do_not_depend_on_the_workers(textured: Path) -> None:
    source = open_source(textured, "train", "files")
    alone = read(source, epoch=1, data_nthreads=0)
    for workers in (1, 2):
        made = read(source, epoch=1, data_nthreads=workers)
        assert np.array_equal(by_position(alone), by_position(made))
        assert [list(b.labels) for b in alone] == [list(b.labels) for b in made]


# --- odd files ------------------------------------------------------------------------------------


@pytest.mark.parametrize("data_format", ["files", "recordio", "tfrecord"])
def test_odd_images_pass(odd: Path, data_format: str) -> None:
    for split in ("train", "val"):
        source = open_source(odd, split, data_format)
        batches = read(source, split, num_classes=len(ODD), batch_size=1)
        assert len(batches) == len(ODD)
        for batch in batches:
            images, (label,) = np.asarray(batch.images), batch.labels
            assert images.shape == (1, 32, 32, 3) and images.dtype == np.uint8
            mean = images[0].mean(axis=(0, 1))
            assert np.abs(mean - ODD[label].colour).max() < 6, (ODD[label].name, mean)


def bad_set(root: Path, name: str, content: bytes) -> Source:
    for split in ("train", "val"):
        for i in range(7):
            write_photo(root / split / "a" / f"{i}.jpg", i)
    (root / "train" / "a" / name).write_bytes(content)
    return open_source(root, "train", "files")


TEXT = b"this is no picture at all, but a text of some length that somebody renamed. " * 20


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (TEXT, "not an image"),
        (b"", "no bytes"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n", "git lfs pull"),
        ("truncated", "damaged"),
        ("bomb", "not an image"),
    ],
)
def test_a_file_that_is_no_image_is_named(
    tmp_path: Path, content: bytes | str, problem: str
) -> None:
    if content == "truncated":
        write_photo(tmp_path / "whole.jpg", 3, 300, 300)
        content = (tmp_path / "whole.jpg").read_bytes()[:-700]
    elif content == "bomb":  # a PNG of a few bytes that says it has 3.6e9 pixels
        content = png_header(60_000, 60_000)
    assert isinstance(content, bytes)
    source = bad_set(tmp_path, "zz.JPEG", content)
    with pytest.raises(UserError) as error:
        read(source, num_classes=1, batch_size=4)
    message = str(error.value)
    assert "train/a/zz.JPEG" in message and problem in message and "\n" not in message


def png_header(width: int, height: int) -> bytes:
    import struct
    import zlib

    header = b"IHDR" + struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + header + struct.pack(">I", zlib.crc32(header))
    return b"\x89PNG\r\n\x1a\n" + chunk + b"\0" * 2000


@pytest.mark.slow
def test_a_bad_file_is_named_through_workers_and_no_worker_stays(tmp_path: Path) -> None:
    source = bad_set(tmp_path, "zz.JPEG", TEXT)
    with pytest.raises(UserError, match="train/a/zz.JPEG is not an image"):
        read(source, num_classes=1, batch_size=4, data_nthreads=2)
    assert workers() == []


def test_memory_that_cannot_be_pinned_is_told(
    photos: Photos, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver's error, raised by hand as the DataLoader passes it on: the rest is ours."""
    from rn50lib.data import torch_loader

    def no_room(*given: Any) -> None:
        raise RuntimeError("Caught AcceleratorError in thread. CUDA error: out of memory")

    monkeypatch.setattr(torch_loader.Batches, "__getitems__", no_room)
    source = open_source(photos.root, "train")
    pipeline = open_pipeline(full(data_nthreads=0), source, "train", 0, 1)
    with pytest.raises(UserError, match="--loader native: no more memory can be pinned .* smaller"):
        next(iter(pipeline.epoch(0)))
    pipeline.close()


@pytest.mark.slow
def test_a_batch_that_is_held_stays_as_it_was(textured: Path) -> None:
    """Through later epochs and one that was broken off, also where only a view is held."""
    source = open_source(textured, "train", "files")
    fields: dict[str, Any] = {"batch_size": 1, "image_shape": 64, "num_classes": 2}
    wanted = [[b.images.numpy().copy() for b in read(source, epoch=e, **fields)] for e in range(3)]
    pipeline = open_pipeline(full(data_nthreads=1, **fields), source, "train", 0, 1)
    held = []
    try:
        for epoch in (0, 1, 2) * 2:
            for step, batch in enumerate(pipeline.epoch(epoch)):
                np.testing.assert_array_equal(batch.images, wanted[epoch][step])
                if step % 3 == 0 or epoch == 2:  # few enough for others to take their place, or all
                    held.append((batch.images[:, 1:].numpy(), wanted[epoch][step][:, 1:]))
                if epoch == 1 and step == 1:
                    break  # the workers go on with what they were asked for
        for view, pixels in held:
            np.testing.assert_array_equal(view, pixels)
    finally:
        pipeline.close()


@pytest.mark.slow
def test_closing_a_pipeline_ends_its_workers(photos: Photos) -> None:
    source = open_source(photos.root, "train", "files")
    pipeline = open_pipeline(full(data_nthreads=2), source, "train", 0, 1)
    batches = pipeline.epoch(0)
    next(batches)
    assert len(workers()) == 2
    pipeline.close()  # in the middle of an epoch
    assert workers() == []


def workers() -> list[psutil.Process]:
    """The loaders' workers below this process; they are the children of a fork server."""
    below = [c for child in psutil.Process().children() for c in child.children()]
    return [p for p in below if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


# --- synthetic ------------------------------------------------------------------------------------


def test_synthetic_images_are_the_same_again_and_again() -> None:
    made = open_pipeline(full(loader="synthetic", benchmark_iters=3), None, "train", 0, 1)
    batches = list(made.epoch(0))
    assert len(made) == len(batches) == 3 and made.examples == 12
    assert batches[0].images.shape == (4, 32, 32, 3) and batches[0].images.dtype == np.uint8
    assert batches[0].labels.dtype == np.int32 and set(batches[0].labels) <= set(range(6))
    assert all(np.array_equal(b.images, batches[0].images) for b in batches)
    assert len(list(made.epoch(1, start_step=2))) == 1
    made.close()


@pytest.mark.parametrize(("iters", "steps"), [(3, 3), (100, 6)])
def test_the_shorter_of_iterations_and_examples_ends_a_synthetic_epoch(
    iters: int, steps: int
) -> None:
    asked = full(loader="synthetic", benchmark_iters=iters, num_examples=24)
    assert len(open_pipeline(asked, None, "train", 0, 1)) == steps
