"""TFRecord shards through the command line, read back by us, by TensorFlow and by DALI."""

import io
import os
import random
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from PIL import Image

from data_prep import im2rec, tfrecord
from rn50lib.data.example import parse_example
from rn50lib.data.tfrecord import TFRecordReader, find_shards
from rn50lib.errors import UserError
from tests.conftest import clean_environment
from tests.support import png

WORDS = {"n1": "first, a thing", "n2": "second", "ä": "third"}


def picture(seed, size=(40, 30), mode="RGB", form="JPEG"):
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 255, (size[1], size[0], 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(data).convert(mode).save(out, form)
    return out.getvalue()


def make_root(root, train=10, val=4):
    seed = 0
    for split, count in (("train", train), ("val", val)):
        for name in WORDS:
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                seed += 1
                odd = {0: ("CMYK", "JPEG"), 1: ("RGBA", "PNG"), 2: ("L", "JPEG")}.get(i)
                mode, form = odd or ("RGB", "JPEG")
                data = picture(seed, (40 + i, 30), mode, form)
                (root / split / name / f"{split} {i}.JPEG").write_bytes(data)
    text = "".join(f"{i}\t{name}\t{words}\n" for i, (name, words) in enumerate(WORDS.items()))
    (root / "classes.txt").write_text(text)
    return root


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch):
    """Without --jobs, no worker processes: they would take most of the time of these tests."""
    monkeypatch.setattr(tfrecord, "usable_cores", lambda: 0)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return make_root(tmp_path_factory.mktemp("set"))


@pytest.fixture(scope="module")
def shards(root, tmp_path_factory):
    out = tmp_path_factory.mktemp("out") / "tfrecord"
    tfrecord.main([str(root), str(out), "--train-shards", "4", "--val-shards", "2", "--jobs", "2"])
    return out


def read(out, split):
    """The examples of a split, shard by shard."""
    found = []
    for shard in find_shards(out, split):
        found.append([parse_example(d) for d in TFRecordReader(shard.path, shard.index)])
    return found


def test_every_image_is_there_once_with_all_its_features(root, shards):
    for split, count in (("train", 30), ("val", 12)):
        examples = [e for shard in read(shards, split) for e in shard]
        assert len(examples) == count
        expected = {}
        for label, name in enumerate(sorted(WORDS)):
            for path in (root / split / name).iterdir():
                expected[path.read_bytes()] = (label, name, path.name)
        for example in examples:
            data = example["image/encoded"][0]
            label, name, filename = expected.pop(data)
            image = Image.open(io.BytesIO(data))
            assert example == {
                "image/encoded": [data],
                "image/format": [image.format.encode()],
                "image/colorspace": [b"RGB"],
                "image/channels": [3],
                "image/height": [image.height],
                "image/width": [image.width],
                "image/filename": [filename.encode()],
                "image/class/label": [label + 1],
                "image/class/synset": [name.encode()],
                "image/class/text": [WORDS[name].encode()],
            }
        assert not expected


def test_shards_have_equal_size_and_all_classes(shards):
    sizes = [len(shard) for shard in read(shards, "train")]
    assert sizes == [7, 8, 7, 8]
    labels = [[e["image/class/label"][0] for e in shard] for shard in read(shards, "train")]
    assert all(len(set(shard)) > 1 for shard in labels)
    assert sum(labels, []) != sorted(sum(labels, []))
    assert sorted(os.listdir(shards)) == [
        ".complete",
        "classes.txt",
        "index",
        *(f"train-{i:05}-of-00004" for i in range(4)),
        "train.labels",
        *(f"validation-{i:05}-of-00002" for i in range(2)),
        "validation.labels",
    ]


def contents(folder):
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (".complete", ".made-from")
    }


def test_bytes_depend_on_the_seed_and_not_on_the_number_of_processes(root, shards, tmp_path):
    flags = ["--train-shards", "4", "--val-shards", "2", "--quiet"]
    tfrecord.main([str(root), str(tmp_path / "a"), *flags, "--jobs", "1"])
    assert contents(tmp_path / "a") == contents(shards)
    tfrecord.main([str(root), str(tmp_path / "b"), *flags, "--seed", "1"])
    assert contents(tmp_path / "b").keys() == contents(shards).keys()
    assert contents(tmp_path / "b") != contents(shards)


def test_from_record_files(root, tmp_path):
    im2rec.ensure_records(root)
    flags = ["--train-shards", "2", "--quiet", "--data-format"]
    tfrecord.main([str(root), str(tmp_path / "r"), *flags, "recordio"])
    tfrecord.main([str(root), str(tmp_path / "f"), *flags, "files"])
    for split in ("train", "val"):
        from_records, from_files = (
            sorted(
                (e for shard in read(tmp_path / name, split) for e in shard),
                key=lambda e: e["image/encoded"],
            )
            for name in "rf"
        )
        assert from_records == from_files  # the list beside the records still knows the file names


def test_slides_schema(root, tmp_path):
    tfrecord.main([str(root), str(tmp_path / "s"), "--schema", "slides", "--quiet"])
    (first, *_), *_ = read(tmp_path / "s", "train")
    assert sorted(first) == ["height", "img_raw", "label", "width"]
    assert len(first["img_raw"][0]) == first["height"][0] * first["width"][0] * 3
    assert type(first["label"][0]) is float
    tfrecord.main([str(root), str(tmp_path / "t"), "--schema", "slides", "--size", "16", "--quiet"])
    examples = [e for shard in read(tmp_path / "t", "val") for e in shard]
    assert {(e["height"][0], e["width"][0], len(e["img_raw"][0])) for e in examples} == {
        (16, 16, 768)
    }
    assert sorted(e["label"][0] for e in examples) == [0.0] * 4 + [1.0] * 4 + [2.0] * 4


def test_raw_pixels_are_those_of_the_image(tmp_path):
    root = make_root(tmp_path / "set", train=4, val=4)
    expected = {
        np.asarray(Image.open(path).convert("RGB")).tobytes()
        for path in (root / "train").glob("*/*")
    }
    deep = png(16, 0, (0x40FF,), size=(9, 7))
    next((root / "train").iterdir()).joinpath("deep.png").write_bytes(deep)
    expected.add(bytes([64]) * (9 * 7 * 3))
    tfrecord.main([str(root), "--schema", "slides", "--data-format", "files", "--quiet"])
    examples = [e for shard in read(root / "tfrecord", "train") for e in shard]
    assert {e["img_raw"][0] for e in examples} == expected


def test_indexes_made_anew(shards, capsys):
    before = contents(shards)
    for index in (shards / "index").iterdir():
        index.unlink()
    tfrecord.main(["--index", str(shards)])
    assert contents(shards) == before
    assert "indexes of 42 records" in capsys.readouterr().out


def test_a_second_call_does_nothing_and_other_settings_replace_the_set(tmp_path, capsys):
    root = make_root(tmp_path / "set", train=3, val=3)
    tfrecord.main([str(root)])
    first = (root / "tfrecord" / "train-00000-of-00004").stat().st_ino
    tfrecord.main([str(root)])
    assert "already complete" in capsys.readouterr().out
    assert (root / "tfrecord" / "train-00000-of-00004").stat().st_ino == first
    tfrecord.main([str(root), "--train-shards", "2"])
    assert len(find_shards(root / "tfrecord", "train")) == 2


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_tensorflows_reader_reads_every_example(root, shards):
    code = """
import sys, zlib, json
import tensorflow as tf
spec = {
    "image/encoded": tf.io.FixedLenFeature([], tf.string),
    "image/class/label": tf.io.FixedLenFeature([], tf.int64),
    "image/height": tf.io.FixedLenFeature([], tf.int64),
    "image/width": tf.io.FixedLenFeature([], tf.int64),
}
found = []
for data in tf.data.TFRecordDataset(tf.io.gfile.glob(sys.argv[1] + "/train-*")):
    e = tf.io.parse_single_example(data, spec)
    image = tf.io.decode_jpeg(e["image/encoded"], channels=3)
    assert image.shape == (e["image/height"], e["image/width"], 3), image.shape
    found.append([zlib.crc32(e["image/encoded"].numpy()), int(e["image/class/label"])])
print(json.dumps(found))
"""
    assert read_by(code, shards) == checksums(shards)


@pytest.mark.slow
@pytest.mark.needs("dali")
def test_dalis_reader_reads_every_example(root, shards):
    code = """
import sys, zlib, json, glob, os
import nvidia.dali.fn as fn, nvidia.dali.tfrecord as tfrec
from nvidia.dali import pipeline_def
paths = sorted(glob.glob(sys.argv[1] + "/train-*"))
indexes = [os.path.join(sys.argv[1], "index", os.path.basename(p) + ".idx") for p in paths]
@pipeline_def(batch_size=1, num_threads=1, device_id=None)
def pipeline():
    read = fn.readers.tfrecord(path=paths, index_path=indexes, name="reader", features={
        "image/encoded": tfrec.FixedLenFeature((), tfrec.string, ""),
        "image/class/label": tfrec.FixedLenFeature([1], tfrec.int64, -1),
    })
    return read["image/encoded"], read["image/class/label"]
p = pipeline()
p.build()
found = []
for _ in range(p.epoch_size("reader")):
    image, label = p.run()
    found.append([zlib.crc32(bytes(image.at(0))), int(label.at(0)[0])])
print(json.dumps(found))
"""
    assert read_by(code, shards) == checksums(shards)


def read_by(code, shards):
    import json

    done = subprocess.run(
        [sys.executable, "-c", code, str(shards)],
        capture_output=True,
        text=True,
        timeout=300,
        env=clean_environment(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES=""),
    )
    assert done.returncode == 0, done.stderr
    return sorted(json.loads(done.stdout.splitlines()[-1]))


def checksums(shards):
    import zlib

    examples = [e for shard in read(shards, "train") for e in shard]
    found = [[zlib.crc32(e["image/encoded"][0]), e["image/class/label"][0]] for e in examples]
    assert len(found) == 30
    return sorted(found)


# -- bad input, kills ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["{t}/nowhere"], "--data-root {t}/nowhere: there is no such folder"),
        (["{t}", "--jobs", "0"], "--jobs 0: give a number from 1"),
        (["{t}", "--size", "30"], "--size 30: pixels, for --schema slides only"),
        (["{t}", "--index"], "{t}: there are no shards train-NNNNN-of-NNNNN here"),
    ],
)
def test_bad_commands_get_one_line(tmp_path, flags, message, error_of):
    error = error_of(tfrecord.main, *(flag.format(t=tmp_path) for flag in flags))
    assert error.startswith(message.format(t=tmp_path))


@pytest.mark.parametrize("schema", ["imagenet", "slides"])
def test_a_bad_image_is_named(tmp_path, schema):
    root = make_root(tmp_path / "set", train=4, val=4)
    bad = root / "train" / "n2" / "bad.jpg"
    bad.write_bytes(b"no image at all" * 100)
    with pytest.raises(UserError) as caught:
        tfrecord.main([str(root), "--schema", schema, "--quiet"])
    assert str(caught.value).startswith(f"{bad}: this is not a readable JPEG")
    assert not (root / "tfrecord").exists()
    bad.write_bytes(picture(1)[:500])
    if schema == "slides":
        with pytest.raises(UserError, match="this image does not decode"):
            tfrecord.main([str(root), "--schema", schema, "--quiet"])


def test_output_folder_with_other_things_is_refused(tmp_path):
    root = make_root(tmp_path / "set", train=3, val=3)
    with pytest.raises(UserError, match=r"this is not a shard; choose another folder"):
        tfrecord.main([str(root), str(root)])
    assert (root / "train" / "n1").is_dir()


def test_a_data_set_without_val_is_noted(tmp_path, capsys):
    root = make_root(tmp_path / "set", train=3, val=3)
    shutil.rmtree(root / "val")
    tfrecord.main([str(root)])
    (note,) = [line for line in capsys.readouterr().out.splitlines() if "note: " in line]
    assert f"{root} has no val" in note and "--no-val" in note


def test_shards_are_not_made_from_shards(shards, tmp_path):
    with pytest.raises(UserError, match="nothing to make shards from; --index writes their index"):
        tfrecord.convert(shards, tmp_path / "out")


def test_two_runs_that_need_the_built_in_shards_make_them_once(root, tmp_path):
    """The second one waits; neither is refused."""
    shutil.copytree(root, tmp_path / "set")
    code = "import sys; from data_prep.tfrecord import ensure_tfrecord as e; print(e(sys.argv[1]))"
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path / "set")],
            stdout=subprocess.PIPE, text=True, env=clean_environment(),
        )
        for _ in range(2)
    ]  # fmt: skip
    told = [run.communicate()[0].strip() for run in runs]
    assert told == [str(tmp_path / "set" / "tfrecord")] * 2
    assert [run.returncode for run in runs] == [0, 0]
    assert len(find_shards(tmp_path / "set" / "tfrecord", "train")) == 4


def test_too_little_room(tmp_path, monkeypatch):
    from data_prep import common

    root = make_root(tmp_path / "set", train=3, val=3)
    free = os.statvfs(tmp_path)

    class Small:
        f_bavail, f_frsize = 1, free.f_frsize

    monkeypatch.setattr(common.os, "statvfs", lambda _: Small)
    with pytest.raises(UserError, match=r"writing .*tfrecord needs .* bytes are free"):
        tfrecord.main([str(root)])


@pytest.mark.acceptance
def test_killed_at_20_random_moments(tmp_path):
    """kill -9: the old set or the new one is there; the next run completes it, same bytes."""
    root = make_root(tmp_path / "set", train=400, val=40)
    out = root / "tfrecord"
    flags = ["--train-shards", "12", "--jobs", "2", "--quiet"]
    command = [sys.executable, "-m", "data_prep.tfrecord", str(root), *flags]
    start = time.monotonic()
    subprocess.run([*command, "--seed", "1"], check=True, env=clean_environment())
    whole = time.monotonic() - start
    sets = {1: contents(out)}
    subprocess.run([*command, "--seed", "2"], check=True, env=clean_environment())
    sets[2] = contents(out)
    rng = random.Random(0)
    killed = 0
    for attempt in range(20):
        seed = 1 + attempt % 2
        child = subprocess.Popen([*command, "--seed", str(seed)], env=clean_environment())
        time.sleep(rng.uniform(0, whole))
        child.kill()
        killed += child.wait(timeout=30) == -signal.SIGKILL
        tfrecord.finish_swap(out)
        assert contents(out) in (sets[1], sets[2])
        subprocess.run([*command, "--seed", str(seed)], check=True, env=clean_environment())
        assert contents(out) == sets[seed]
        assert sorted(os.listdir(root)) == ["classes.txt", "tfrecord", "train", "val"]
    assert killed >= 10
