"""Every pipeline on any number of workers: no image twice, none forgotten in validation, and the
same number of steps for all.

Which image is which is read from the pixels (`tests.support.numbers`), not from the code under
test. The numbers of workers and the batch sizes divide nothing: 48 images to train on, 19 to
validate on.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from data_prep import tfrecord
from rn50lib.data import Batch, open_pipeline
from rn50lib.data.sampler import Plan, stream_shard
from rn50lib.data.source import open_source
from tests.support import Photos, full, numbers
from workshop.lessons.tfrecord.feeding import Feeding

FORMATS = ("files", "recordio", "tfrecord")
SIZES = (1, 2, 3, 5)
BATCH = {1: 7, 2: 5, 3: 7, 5: 2}
TRAIN, VAL = 48, 19

# --- the pure part --------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 40), min_size=1, max_size=9), st.integers(1, 12))
def test_streams_are_cut_without_gap_or_overlap(counts: list[int], size: int) -> None:
    read: dict[tuple[int, int], int] = {}
    lengths = []
    for rank in range(size):
        parts = stream_shard(np.array(counts), rank, size)
        assert parts.dtype == np.int64 and parts.shape[1:] == (3,)
        lengths.append(int(parts[:, 2].sum()))
        for shard, skip, take in parts.tolist():
            assert take > 0 and skip + take <= counts[shard]
            for record in range(skip, skip + take):
                read[shard, record] = read.get((shard, record), 0) + 1
    assert read == {(s, r): 1 for s, count in enumerate(counts) for r in range(count)}
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(1, 2000), st.integers(1, 9), st.integers(1, 50))
def test_each_rank_of_a_stream_has_enough_for_its_steps(images: int, size: int, batch: int) -> None:
    """Training: steps = images // (size x batch); validation fits in as many on all."""
    for rank in range(size):
        count = stream_shard(np.array([images]), rank, size)[:, 2].sum()
        assert count >= images // (size * batch) * batch
        assert count <= -(-images // (size * batch)) * batch


# --- every pipeline -------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def roots(photos: Photos, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A data root for each format; the shards are 3 and 2, fewer than the workers of some tests."""
    shards = tmp_path_factory.mktemp("sharding") / "tfrecord"
    counts = {"train": 3, "val": 2}
    tfrecord.convert(photos.root, shards, shards=counts, jobs=0, data_format="files", quiet=True)
    return {"files": photos.root, "recordio": photos.root, "tfrecord": shards}


Made = list[tuple[list[int], list[int], int]]  # image numbers, labels, valid


def read(
    root: Path, data_format: str, split: str, rank: int, size: int, epoch: int = 0, **fields: Any
) -> Made:
    source = open_source(root, split, data_format)
    pipeline = open_pipeline(full(**fields), source, split, rank, size)
    try:
        made = list(contents(pipeline.epoch(epoch)))
        assert len(made) == len(pipeline)
        return made
    finally:
        pipeline.close()


def contents(batches: Iterator[Batch]) -> Iterator[tuple[list[int], list[int], int]]:
    for batch in batches:
        images, labels = np.asarray(batch.images), np.asarray(batch.labels)
        assert images.dtype == np.uint8 and labels.dtype == np.int32
        yield numbers(images), labels.tolist(), batch.valid


def class_of(number: int, split: str) -> int:
    """Training: 8 images a class; validation: 4 of the first class and 3 of the others."""
    return number // 8 if split == "train" else max(number - 1, 0) // 3


def check(root: Path, data_format: str, size: int, **fields: Any) -> None:
    """All promises, for one pipeline on `size` workers."""
    batch = BATCH[size]
    steps = {"train": TRAIN // (size * batch), "val": -(-VAL // (size * batch))}
    for split in ("train", "val"):
        ranks = [
            read(root, data_format, split, rank, size, batch_size=batch, **fields)
            for rank in range(size)
        ]
        assert [len(made) for made in ranks] == [steps[split]] * size
        batches = [made for rank in ranks for made in rank]
        assert all(len(shown) == len(labels) == batch for shown, labels, _ in batches)
        seen = [n for shown, _, valid in batches for n in shown[:valid]]
        told = [label for _, labels, valid in batches for label in labels[:valid]]
        assert told == [class_of(number, split) for number in seen]
        if split == "train":
            assert all(valid == batch for _, _, valid in batches)
            assert len(seen) == len(set(seen)) == steps["train"] * size * batch
            assert set(seen) <= set(range(TRAIN))
        else:
            assert sorted(seen) == list(range(VAL))


@pytest.mark.needs("torch")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("data_format", FORMATS)
def test_torch_loader(roots: dict[str, Path], data_format: str, size: int) -> None:
    check(roots[data_format], data_format, size)


STREAMS = [("tfrecord", size) for size in SIZES] + [("files", 2), ("recordio", 3)]
OTHERS = [(f, n) for f in ("files", "recordio") for n in SIZES if (f, n) not in STREAMS]


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize(
    ("data_format", "size"),
    [pytest.param(*case, marks=pytest.mark.slow) for case in STREAMS]
    + [pytest.param(*case, marks=pytest.mark.acceptance) for case in OTHERS],
)
def test_tf_data(roots: dict[str, Path], data_format: str, size: int) -> None:
    check(roots[data_format], data_format, size, backend="tensorflow", data_nthreads=2)


@pytest.mark.slow
@pytest.mark.needs("dali")
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("data_format", FORMATS)
def test_dali(roots: dict[str, Path], data_format: str, size: int) -> None:
    check(roots[data_format], data_format, size, loader="dali", epoch=size)


@pytest.mark.parametrize("size", SIZES)
def test_synthetic_gives_all_workers_the_same_number_of_steps(size: int) -> None:
    for split in ("train", "val"):
        fields: dict[str, Any] = {"loader": "synthetic", "batch_size": 7, "num_examples": 100}
        pipelines = [open_pipeline(full(**fields), None, split, r, size) for r in range(size)]
        lengths = {len(list(p.epoch(0))) for p in pipelines}
        assert lengths == {len(pipelines[0])}
        if split == "train":
            assert lengths == {100 // (7 * size)}


def test_feeding_by_hand_follows_the_same_plan(roots: dict[str, Path]) -> None:
    experiment = full(batch_size=7)
    for split in ("train", "val"):
        source = open_source(roots["tfrecord"], split)
        feeding = Feeding(experiment, source, Plan(experiment, source, split, 1, 3))
        made = list(contents(feeding.epoch(0)))
        assert len(feeding) == len(made)
        assert made == read(roots["tfrecord"], "tfrecord", split, 1, 3, batch_size=7)
        feeding.close()
