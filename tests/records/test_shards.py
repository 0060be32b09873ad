"""TFRecord shards as a source: the images and labels of the files, and errors in one line."""

import os
import shutil

import numpy as np
import pytest

from data_prep import tfrecord
from data_prep.tfrecordwriter import frame_record, serialize_example
from rn50lib.data.recordfile import RecordError
from rn50lib.data.source import open_source
from tests.records.conftest import refused
from tests.support import CLASSES, Photos


@pytest.fixture(scope="module")
def packed(photos: Photos, tmp_path_factory):
    """The photos in shards, 3 for training and 2 for validation."""
    root = tmp_path_factory.mktemp("shards")
    counts = {"train": 3, "val": 2}
    tfrecord.convert(
        photos.root, root / "field", shards=counts, jobs=0, data_format="files", quiet=True
    )
    return root


@pytest.fixture
def shards(packed, tmp_path):
    """A copy of the shards in the usual schema that a test may damage."""
    shutil.copytree(packed / "field", tmp_path / "tfrecord")
    return tmp_path / "tfrecord"


def contents(source):
    return sorted((int(label), source.read(i)) for i, label in enumerate(source.labels))


@pytest.mark.parametrize("split", ["train", "val"])
def test_shards_hold_the_same_images_with_the_same_labels(photos, packed, split):
    files = open_source(photos.root, split, "files")
    source = open_source(packed / "field", split, "tfrecord")
    assert (source.format, source.classes.names) == ("tfrecord", CLASSES)
    assert source.labels.dtype == np.int32 and len(source) == len(files)
    assert contents(source) == contents(files)


def test_shards_are_found_in_usual_places(photos, packed, shards):
    assert open_source(shards, "train").format == "tfrecord"  # the folder itself
    assert open_source(shards.parent, "train").path == shards  # or the one above
    assert open_source(shards.parent, "train").classes.names == CLASSES
    (shards.parent / "records").symlink_to(photos.records)
    assert open_source(shards.parent, "train").format == "recordio"
    assert open_source(shards.parent, "train", "tfrecord").format == "tfrecord"
    (shards.parent / "records").unlink()
    for split in ("train", "val"):
        (shards.parent / split).symlink_to(photos.root / split)
    assert open_source(shards.parent, "train").format == "files"


def test_labels_come_from_the_sidecar_while_the_shards_are_as_written(packed, tmp_path):
    shutil.copytree(packed / "field", tmp_path / "tfrecord")  # with the times, as rsync does
    path = tmp_path / "tfrecord" / "train-00000-of-00003"
    wanted, before = open_source(tmp_path, "train"), path.stat()
    data = bytearray(path.read_bytes())
    data[0] ^= 1  # the first length, which a scan of the shard checks
    path.write_bytes(data)
    assert "damaged at offset 0" in refused(tmp_path)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    source = open_source(tmp_path, "train")
    assert source.labels.tolist() == wanted.labels.tolist() and source.classes == wanted.classes
    assert source.read(1) == wanted.read(1) and source.firsts.tolist() == wanted.firsts.tolist()
    with pytest.raises(RecordError, match="damaged at offset 0"):
        source.read(0)
    for split in ("train", "validation"):
        (tmp_path / "tfrecord" / f"{split}.labels").unlink()
    path.write_bytes((packed / "field" / path.name).read_bytes())
    assert contents(open_source(tmp_path, "train")) == contents(wanted)  # as foreign shards


# -- what is wrong, and how it is said -----------------------------------------------------------


def test_a_missing_shard(shards):
    (shards / "train-00001-of-00003").unlink()
    assert "train-00001-of-00003 is missing" in refused(shards)


def test_damage_is_reported_with_file_and_offset(shards):
    path = shards / "train-00001-of-00003"
    lines = (shards / "index" / f"{path.name}.idx").read_text().splitlines()
    offset, size = map(int, lines[4].split())
    data = bytearray(path.read_bytes())
    data[offset + size - 40] ^= 1
    path.write_bytes(data)
    source = open_source(shards, "train")
    assert source.read(16 + 3)
    with pytest.raises(RecordError) as caught:
        source.read(16 + 4)
    assert f"{path}: damaged at offset {offset:,}: " in str(caught.value)
    data[offset] ^= 1  # the length itself: seen at once
    path.write_bytes(data)
    assert f"{path}: damaged at offset {offset:,}" in refused(shards)


def write_shard(folder, *examples, split="train", number=0, count=1):
    folder.mkdir(exist_ok=True)
    path = folder / f"{split}-{number:05}-of-{count:05}"
    path.write_bytes(b"".join(frame_record(serialize_example(e)) for e in examples))
    return path


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ({"image/encoded": b"x"}, "should have one image/class/label, a whole number"),
        ({"image/encoded": b"x", "image/class/label": [1, 2]}, "should have one image/class/label"),
        ({"image/encoded": b"x", "image/class/label": b"dog"}, "should have one image/class/label"),
        (
            {"image/encoded": b"x", "image/class/label": 0},
            "the label is 0, but labels count from 1",
        ),
        ({}, "should have one image/class/label"),
    ],
)
def test_unsupported_examples_are_refused(tmp_path, bad, problem):
    path = write_shard(tmp_path / "s", bad)
    message = refused(tmp_path / "s")
    assert message.startswith(f"{path}: record 0 at offset 0: ") and problem in message


def test_other_writers_order_their_features_differently(tmp_path):
    """The order of a map is not defined: TensorFlow may write the image before the label."""
    forward = serialize_example({"image/encoded": b"i" * 3000})
    backward = serialize_example({"image/class/label": 3})
    inner = forward[3:] + backward[2:]  # the entries of both, image first
    size = bytes([len(inner) & 0x7F | 0x80, len(inner) >> 7])
    (tmp_path / "s").mkdir()
    whole = frame_record(b"\x0a" + size + inner)
    (tmp_path / "s" / "train-00000-of-00001").write_bytes(whole)
    source = open_source(tmp_path / "s", "train")
    assert source.labels.tolist() == [2] and source.read(0) == b"i" * 3000
