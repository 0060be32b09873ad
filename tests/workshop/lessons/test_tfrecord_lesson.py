"""What notebook 04 computes: orders, shares of time, sizes; and what it asks TensorFlow."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from data_prep.tfrecord import convert
from rn50lib.data.source import open_source
from rn50lib.errors import UserError
from tests.support import Photos, full
from workshop.lessons.tfrecord import data, order, stages, streams

# --- orders ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 7, 50, 80])
def test_a_shuffle_buffer_brings_nothing_forward_by_more_than_its_size(size: int) -> None:
    stream = np.arange(50)
    got = order.shuffle_buffer(stream, size, seed=3)
    assert sorted(got) == list(range(50))
    assert all(place >= element - size + 1 for place, element in enumerate(got))
    if size == 1:
        assert np.array_equal(got, stream)
    else:
        assert not np.array_equal(got, stream)
        assert np.array_equal(got, order.shuffle_buffer(stream, size, seed=3))


def test_classes_in_a_batch_are_counted_in_full_batches() -> None:
    labels = np.array([0, 0, 1, 1, 1, 1, 2])
    assert order.classes_in_batches(labels, 3).tolist() == [2, 1]


def test_sorted_files_and_a_small_buffer_give_batches_of_one_class() -> None:
    labels = np.repeat(np.arange(6), 40)
    _, held = order.buffers(labels, 6, (1, 240), batch=10)
    assert held[1].tolist() == [1] * 24
    assert held[240].mean() > 4


# --- time -----------------------------------------------------------------------------------------


def measured() -> stages.StageRates:
    rates = {"a": [10.0, 20.0, 30.0], "b": [20.0, 30.0, 75.0]}
    return stages.StageRates(rates, {"a": [0.1, 0.2, 0.3], "b": [0.8, 0.85, 0.99]}, full())


def test_variants_are_compared_round_by_round() -> None:
    found = measured()
    assert found.rounds == 3
    assert found.ratios("b", "a") == [2.0, 1.5, 2.5]
    assert found.rows()[0] == ["a", 20.0, 20.0, None, None, None]
    assert found.rows()[1] == ["b", 30.0, 85.0, 2.0, 1.5, 2.5]
    _, text = stages.figure(found, "a device", 50.0)
    assert "from 20.0 images per second with a to 30.0 with all stages, 2.00 times as many" in text
    assert "from 1.50 to 2.50 in 3 rounds" in text
    assert "works 20 % and then 85 %" in text
    assert stages.bottleneck(found).endswith("the input is nearly fast enough.")


# --- data -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shards(photos: Photos, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The photos as TFRecord shards."""
    out = tmp_path_factory.mktemp("shards") / "tfrecord"
    return convert(photos.root, out, shards={"train": 3, "val": 1}, jobs=0, quiet=True)


def test_all_formats_hold_the_same_pictures(photos: Photos, shards: Path) -> None:
    roots = {"files": photos.root, "recordio": photos.root, "tfrecord": shards}
    found = [data.contents(open_source(r, "train", name)) for name, r in roots.items()]
    assert len(found[0]) == 48
    assert found[0] == found[1] == found[2]


def test_a_part_has_the_first_pictures_of_every_class(photos: Photos, tmp_path: Path) -> None:
    for _ in range(2):  # the second time in the place of the first
        root = data.take_part(photos.root, tmp_path / "part", 2)
    part, whole = open_source(root, "train", "files"), photos.files("train")
    assert part.classes == open_source(photos.root, "train", "files").classes
    assert len(part) == 2 * len(part.classes)
    assert part.read(0) == whole[0].read_bytes() and part.read(1) == whole[1].read_bytes()


@pytest.mark.slow
def test_shards_are_made_once_and_the_command_is_shown(
    photos: Photos, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = data.take_part(photos.root, tmp_path / "part", 2)
    assert data.make_shards(root, tmp_path) == root
    assert "python -m data_prep.tfrecord part" in capsys.readouterr().out
    before = sorted((root / "tfrecord").iterdir())
    data.make_shards(root, tmp_path)
    assert "data_prep" not in capsys.readouterr().out
    assert sorted((root / "tfrecord").iterdir()) == before
    assert len(open_source(root, "train", "tfrecord")) == 12


def test_a_root_of_links_shows_the_same_pictures(photos: Photos, tmp_path: Path) -> None:
    root = data.link(photos.root, tmp_path / "links")
    assert data.link(photos.root, tmp_path / "links") == root
    for name in ("files", "recordio"):
        assert len(open_source(root, "train", name)) == 48


def test_raw_pixels_have_lost_the_detail_that_the_jpeg_has(tmp_path: Path) -> None:
    stripes = np.zeros((400, 400, 3), np.uint8)
    stripes[:, ::2] = 255  # finer than 100 pixels can hold
    Image.fromarray(stripes).save(tmp_path / "stripes.jpg", quality=100)
    sharp, soft = data.from_jpeg_and_raw((tmp_path / "stripes.jpg").read_bytes(), 100, 0.01)
    assert sharp.shape == soft.shape == (100, 100, 3)
    assert sharp.std() > 5 * soft.std()


def test_pictures_are_turned_counter_clockwise() -> None:
    pixels = np.zeros((9, 9, 3), np.uint8)
    pixels[4, 8] = 255  # at the right
    level, turned = data.turned([pixels, pixels], [0, 90])
    assert np.array_equal(level, pixels)
    assert turned[0, 4].tolist() == [255] * 3 and turned.sum() == pixels.sum()


# --- TensorFlow, in processes of its own ----------------------------------------------------------

SMALL = {"network": "tiny", "image_shape": 32, "batch_size": 4, "dtype": "float32", "threads": 1,
         "data_nthreads": 1, "recipe": "reference", "data_format": "tfrecord"}  # fmt: skip


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_stages_take_turns_in_front_of_a_paced_device(shards: Path) -> None:
    asked = dict(**SMALL, data_root=str(shards), step=200.0)
    found = stages.compare(asked, rounds=1, steps=2, warm_up=1)
    assert found.variants[:2] == [stages.BY_HAND, "one after the other"]
    assert len(found.variants) == 6
    assert found.rounds == 1
    for name in found.variants:
        assert 0 < found.rate(name) < 201  # no faster than the device
        assert found.share(name) == pytest.approx(found.rate(name) / 2)


@pytest.mark.slow
def test_a_measurement_that_cannot_be_made_says_why(shards: Path) -> None:
    asked = dict(**SMALL | {"batch_size": 48}, data_root=str(shards), step=200.0)
    with pytest.raises(UserError, match="an epoch has 1 steps of 48 images, and a turn takes 4"):
        stages.compare(asked, rounds=1, steps=3, warm_up=1)


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("gpus", [False, True])
def test_what_tensorflow_says_about_records(
    shards: Path, gpus: bool, request: pytest.FixtureRequest
) -> None:
    asked = dict(**SMALL, data_root=str(shards))
    if gpus:  # which the process that reads does not see
        request.getfixturevalue("two_gpus")
        asked = dict(asked, profile="gpu", dtype="float16")
    *epochs, again = streams.look(asked, ranks=2)
    for ranks in epochs:
        together = [number for rank in ranks for number in rank]
        assert [len(rank) for rank in ranks] == [24, 24]
        assert len(set(together)) == len(together)
        assert set(together) <= set(range(48))
    assert again == epochs[0] != epochs[1]
