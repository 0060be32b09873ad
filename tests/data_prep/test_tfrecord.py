"""TFRecord shards through the command line, read back by us, by TensorFlow and by DALI."""

import io
import os
import shutil

import pytest
from PIL import Image

from data_prep import im2rec, tfrecord
from rn50lib.data.source import open_source
from rn50lib.data.tfrecord import TFRecordReader, find_shards, parse_example
from rn50lib.errors import UserError
from tests.data_prep.conftest import make_image
from tests.data_prep.test_imagenet import contents
from tests.support import png

pytestmark = pytest.mark.usefixtures("in_this_process")

WORDS = {"n1": "first, a thing", "n2": "second", "ä": "third"}


def make_root(root, train=10, val=4):
    seed = 0
    for split, count in (("train", train), ("val", val)):
        for name in WORDS:
            (root / split / name).mkdir(parents=True)
            for i in range(count):
                seed += 1
                odd = {0: ("CMYK", "JPEG"), 1: ("RGBA", "PNG"), 2: ("L", "JPEG")}.get(i)
                mode, form = odd or ("RGB", "JPEG")
                data = make_image(seed, mode, form, (40 + i, 30))
                (root / split / name / f"{split} {i}.JPEG").write_bytes(data)
    text = "".join(f"{i}\t{name}\t{words}\n" for i, (name, words) in enumerate(WORDS.items()))
    (root / "classes.txt").write_text(text)
    return root


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
        found.append([parse_example(d) for _, d in TFRecordReader(shard).records()])
    return found


def test_every_image_occurs_once_with_all_features(root, shards):
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
    names = {f"train-{i:05}-of-00004" for i in range(4)}
    names |= {f"validation-{i:05}-of-00002" for i in range(2)}
    names |= {".complete", "classes.txt", "index", "train.labels", "validation.labels"}
    assert set(os.listdir(shards)) == names


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
        assert from_records == from_files  # file names come from the records' list


def test_slides_schema_holds_raw_pixels(tmp_path):
    root = make_root(tmp_path / "set", train=4, val=4)
    images = [Image.open(path).convert("RGB") for path in (root / "train").glob("*/*")]
    deep = png(16, 0, (0x40FF,), size=(9, 7))
    (root / "train" / "n1" / "deep.png").write_bytes(deep)
    images.append(Image.new("RGB", (9, 7), (64, 64, 64)))
    tfrecord.main([str(root), "--schema", "slides", "--quiet"])
    examples = [e for shard in read(root / "tfrecord", "train") for e in shard]
    found = {(e["height"][0], e["width"][0], e["img_raw"][0]) for e in examples}
    assert found == {(p.height, p.width, p.tobytes()) for p in images}
    assert type(examples[0]["label"][0]) is float
    tfrecord.main([str(root), "--schema", "slides", "--size", "16", "--quiet"])
    examples = [e for shard in read(root / "tfrecord", "val") for e in shard]
    assert {(e["height"][0], e["width"][0], len(e["img_raw"][0])) for e in examples} == {
        (16, 16, 768)
    }
    assert sorted(e["label"][0] for e in examples) == [0.0] * 4 + [1.0] * 4 + [2.0] * 4


def test_indexes_are_rewritten(shards, capsys):
    before = contents(shards)
    for index in (shards / "index").iterdir():
        index.unlink()
    tfrecord.main(["--index", str(shards)])
    assert contents(shards) == before
    assert "indexes of 42 records" in capsys.readouterr().out


def test_second_call_does_nothing_unless_settings_differ(tmp_path, capsys):
    root = make_root(tmp_path / "set", train=3, val=3)
    tfrecord.main([str(root)])
    first = (root / "tfrecord" / "train-00000-of-00004").stat().st_ino
    tfrecord.main([str(root)])
    assert "already complete" in capsys.readouterr().out
    assert (root / "tfrecord" / "train-00000-of-00004").stat().st_ino == first
    shutil.rmtree(root / "val")
    tfrecord.main([str(root), "--train-shards", "2"])
    assert len(find_shards(root / "tfrecord", "train")) == 2
    (note,) = [line for line in capsys.readouterr().out.splitlines() if "note: " in line]
    assert f"{root} has no val" in note and "--no-val" in note


def test_shards_are_written_again_if_an_image_changed(tmp_path, root):
    """In place, as by `exiftool -Orientation=1`: with as many bytes."""
    image = next(path for path in (root / "train").rglob("*") if path.is_file())
    whole, status = image.read_bytes(), image.stat()
    shard = tmp_path / "out" / "train-00000-of-00001"
    held = []
    try:
        for data in (whole, whole[:-1] + b"?"):
            image.write_bytes(data)
            flags = ["--train-shards", "1", "--quiet", "--data-format", "files"]
            tfrecord.main([str(root), str(shard.parent), *flags])
            held.append(data in shard.read_bytes())
    finally:
        image.write_bytes(whole)
        os.utime(image, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert held == [True, True]


def test_shards_are_written_again_if_only_a_label_or_the_time_of_records_changed(tmp_path):
    root, same = tmp_path / "set", make_image(0)
    for path in ("train/a/0", "train/a/1", "train/b/2", "val/a/3", "val/b/4"):
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / f"{path}.jpg").write_bytes(same)
    flags = ["--train-shards", "1", "--quiet"]
    for labels in ([0, 0, 1], [0, 1, 1]):
        tfrecord.main([str(root), *flags, "--data-format", "files"])
        assert sorted(open_source(root, "train", "tfrecord").labels) == labels
        if labels == [0, 0, 1]:
            (root / "train" / "a" / "1.jpg").rename(root / "train" / "b" / "1.jpg")
    records, out = im2rec.ensure_records(root), tmp_path / "out"
    made = set()
    for seconds in (1, 2):
        os.utime(records / "train.rec", (seconds, seconds))
        tfrecord.main([str(records), str(out), *flags])
        made.add((out / "train-00000-of-00001").stat().st_mtime_ns)
    assert len(made) == 2


# -- bad input, kills ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["{t}/nowhere"], "--data-root {t}/nowhere is missing"),
        (["{t}", "--size", "30"], "--size 30: pixels, for --schema slides only"),
        (["{shards}", "{t}/out"], "{shards}: it holds shards and nothing to make shards from"),
        (["{root}", "{root}"], "{root}/"),
        (
            ["{t}", "--index"],
            "{t}: the shards train-NNNNN-of-NNNNN are missing here; `python -m"
            " data_prep.tfrecord {t}` writes",
        ),
        (
            ["{root}", "{root}/classes.txt/x"],
            "{root}/classes.txt/x cannot be written (a file is in",
        ),
    ],
)
def test_bad_commands_get_one_line(tmp_path, root, shards, flags, message, error_of):
    places = {"t": tmp_path, "root": root, "shards": shards}
    error = error_of(tfrecord.main, *(flag.format(**places) for flag in flags))
    assert error.startswith(message.format(**places))


def test_shards_of_another_program_are_not_replaced(tmp_path, root, error_of):
    path = tmp_path / "mine" / "train-00000-of-00001"
    path.parent.mkdir()
    path.write_bytes(b"precious")
    error = error_of(tfrecord.main, str(root), str(path.parent))
    assert error.startswith(f"{path}: the output folder is replaced as a whole, and this was not")
    assert path.read_bytes() == b"precious"


def test_the_working_directory_is_not_replaced(tmp_path, root, monkeypatch, error_of):
    monkeypatch.chdir(tmp_path)
    error = error_of(tfrecord.main, str(root), ".", "--quiet")
    assert (
        error == f"{tmp_path}: the working directory is in this folder, which is replaced as a"
        " whole; run the command from elsewhere"
    )
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("schema", ["imagenet", "slides"])
def test_a_bad_image_is_named(tmp_path, schema):
    root = make_root(tmp_path / "set", train=4, val=4)
    bad = root / "train" / "n2" / "bad.jpg"
    bad.write_bytes(b"no image at all" * 100)
    with pytest.raises(UserError) as caught:
        tfrecord.main([str(root), "--schema", schema, "--quiet"])
    assert str(caught.value).startswith(f"{bad} is not an image")
    assert not (root / "tfrecord").exists()
    bad.write_bytes(make_image(1)[:-100])
    if schema == "slides":
        with pytest.raises(UserError, match="is damaged and does not decode"):
            tfrecord.main([str(root), "--schema", schema, "--quiet"])
