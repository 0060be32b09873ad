"""verify: each thing that can be wrong with a data set is made, and must be found and named."""

import io
import json
import os
import random
import shutil
import struct
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from data_prep import im2rec, tfrecord, verify
from data_prep.checks import images
from data_prep.checks.images import check_image
from data_prep.checks.problems import KINDS
from data_prep.encoding import pack_header
from data_prep.recordwriter import Writer
from data_prep.tfrecordwriter import frame_record, serialize_example
from rn50lib.data.recordio import Reader
from rn50lib.data.tfrecord import find_shards
from tests.conftest import clean_environment
from tests.support import png

CLASSES = ("apple", "pear", "plum")
SPLITS = ("train", "val")
EXIF = b"Exif\0\0II*\0\x08\0\0\0"
CORRUPT_EXIF = b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12"


def picture(seed, mode="RGB", form="JPEG", size=(48, 40), **settings):
    rng = np.random.default_rng(seed)
    small = Image.fromarray(rng.integers(0, 255, (5, 6, 3), np.uint8))
    out = io.BytesIO()
    small.resize(size).convert(mode).save(out, form, **settings)
    return out.getvalue()


@pytest.fixture(scope="session")
def clean_set(tmp_path_factory):
    """A small set as files, records and shards, with which nothing is wrong."""
    root = tmp_path_factory.mktemp("clean") / "set"
    seed = 0
    for split, count in (("train", 5), ("val", 3)):
        for name in CLASSES:
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                seed += 1
                (folder / f"{split}_{i}.JPEG").write_bytes(picture(seed))
    lines = [f"{i}\t{name}\tsome {name}s\n" for i, name in enumerate(CLASSES)]
    (root / "classes.txt").write_text("".join(lines))
    im2rec.ensure_records(root)
    tfrecord.convert(root, shards={"train": 2, "val": 1}, quiet=True)
    return root


@pytest.fixture
def root(clean_set, tmp_path, monkeypatch):
    """A copy of it to spoil."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return shutil.copytree(clean_set, tmp_path / "set")


def files_only(root):
    """Without the records and shards, which would differ from spoilt files."""
    shutil.rmtree(root / "records")
    shutil.rmtree(root / "tfrecord")
    return root


def found(*paths, jobs=0):
    """{(kind, where, offset)}, and the report; nothing is raised, whatever is there."""
    report = verify.verify(list(paths), jobs=jobs, quiet=True)
    return {(p.kind, p.where, p.offset) for p in report.problems}, report


def test_a_clean_set(root):
    problems, report = found(root)
    assert problems == set()
    assert report.good
    described = [(p.form, p.split, len(p), verify.counts_per_class(p)) for p in report.parts]
    assert described == [
        ("files", "train", 15, dict.fromkeys(CLASSES, 5)),
        ("files", "val", 9, dict.fromkeys(CLASSES, 3)),
        ("recordio", "train", 15, dict.fromkeys(CLASSES, 5)),
        ("recordio", "val", 9, dict.fromkeys(CLASSES, 3)),
        ("tfrecord", "train", 15, dict.fromkeys("012", 5)),
        ("tfrecord", "val", 9, dict.fromkeys("012", 3)),
    ]


# -- images --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "kinds"),
    [
        ("good.JPEG", picture(1), []),
        ("good.png", picture(1, form="PNG"), []),
        ("zero.jpg", b"", ["empty-file"]),
        ("lfs.jpg", b"version https://git-lfs.github.com/spec/v1\noid x\n", ["lfs-pointer"]),
        ("text.jpg", b"hello world", ["no-image"]),
        ("page.jpg", b"<html>not found</html>", ["no-image"]),
        ("gif.jpg", picture(1, "P", "GIF"), ["no-image"]),
        ("webp.jpg", picture(1, form="WEBP"), ["no-image"]),
        ("cut.jpg", picture(1)[:-200], ["undecodable"]),
        ("head.jpg", picture(1)[:100], ["undecodable"]),
        ("deep.png", png(16, 0, (0x4000,)), ["deep", "grey"]),
        ("cut.png", picture(1, form="PNG")[:-100], ["undecodable"]),
        ("cmyk.JPEG", picture(1, "CMYK"), ["cmyk"]),
        ("png.JPEG", picture(1, form="PNG"), ["png-as-jpeg"]),
        ("jpeg.png", picture(1), ["jpeg-as-png"]),
        ("grey.jpg", picture(1, "L"), ["grey"]),
        ("exif.jpg", picture(1, exif=CORRUPT_EXIF), ["exif"]),
        ("progressive.jpg", picture(1, progressive=True), []),
        ("cut-cmyk.jpg", picture(1, "CMYK")[:-200], ["cmyk", "undecodable"]),
    ],
)
def test_images(name, data, kinds):
    assert [kind for kind, _ in check_image(data, name)] == kinds


def test_image_that_exif_says_to_turn():
    exif = Image.Exif()
    exif[0x0112] = 6
    assert check_image(picture(1, exif=exif), "x.jpg") == [("turned", "orientation 6")]


def test_image_with_damage_inside_is_told():
    """The second half of the data is gone, but the end marker is there."""
    data = picture(1, size=(300, 200), quality=95)
    kinds = [kind for kind, _ in check_image(data[: len(data) // 2] + b"\xff\xd9", "x.jpg")]
    # Without libjpeg-turbo's own words, Pillow takes this for a whole image.
    assert kinds == (["decoder-warning"] if images.simplejpeg else [])


def test_an_image_is_said_with_its_path(root):
    files_only(root)
    folder = root / "train" / "pear"
    (folder / "cut.jpg").write_bytes(picture(1)[:-300])
    (folder / "zero.jpg").write_bytes(b"")
    (folder / "fifo.jpg").symlink_to("/nowhere")
    problems, report = found(root)
    assert problems == {
        ("undecodable", str(folder / "cut.jpg"), None),
        ("empty-file", str(folder / "zero.jpg"), None),
        ("unreadable", str(folder / "fifo.jpg"), None),
    }
    assert not report.good


def test_odd_images_are_notes_in_every_form(root):
    files_only(root)
    folder = root / "train" / "pear"
    odd = {"cmyk": picture(90, "CMYK"), "png-as-jpeg": picture(91, form="PNG")}
    odd |= {"grey": picture(92, "L"), "exif": picture(93, exif=CORRUPT_EXIF)}
    deep = png(16, 2, (0x4000, 0x8000, 0xC000))
    (folder / "deep.png").write_bytes(deep)
    for kind, data in odd.items():
        (folder / f"{kind}.JPEG").write_bytes(data)
    im2rec.ensure_records(root)
    tfrecord.convert(root, shards={"train": 1, "val": 1}, quiet=True)
    problems, report = found(root)
    assert report.good
    kinds = sorted(kind for kind, _, _ in problems)
    # A record has no file name, so that a PNG is at home in it.
    assert kinds == sorted(["cmyk", "grey", "exif", "deep"] * 3 + ["png-as-jpeg"])


# -- folders and classes -------------------------------------------------------------------------


def spoil_flat(root):
    shutil.copy(root / "val/pear/val_0.JPEG", root / "val" / "flat.JPEG")
    return {("flat", str(root / "val"), None)}


def spoil_nested(root):
    shutil.copytree(root / "train/pear", root / "train/apple/pear")
    return {("nested", str(root / "train/apple/pear"), None)}


def spoil_class_missing_in_val(root):
    shutil.rmtree(root / "val/plum")
    return {("class-maps", str(root / "val"), None), ("class-list", str(root / "val"), None)}


def spoil_class_list(root):
    (root / "classes.txt").write_text("0\tapple\t\n1\tplum\t\n2\tpear\t\n")
    return {("class-list", str(root / s), None) for s in ("train", "val")}


def spoil_short_class_list(root):
    (root / "classes.txt").write_text("apple\npear\n")
    return {("class-list", str(root / s), None) for s in ("train", "val")}


def spoil_empty_class(root):
    for image in (root / "val/plum").iterdir():
        image.unlink()
    return {("empty-class", str(root / "val/plum"), None)}


def spoil_other_files(root):
    (root / "train/pear/.DS_Store").write_bytes(b"x")
    (root / "train/pear/notes.txt").write_bytes(b"x")
    return {("other-file", str(root / "train/pear"), None)}


def spoil_no_images(root):
    shutil.rmtree(root / "val")
    (root / "val").mkdir()
    return {("no-images", str(root / "val"), None)}


def spoil_leak(root):
    shutil.copy(root / "train/pear/train_0.JPEG", root / "val/pear/leak.JPEG")
    return {("leak", str(root / "val/pear/leak.JPEG"), None)}


def spoil_conflict(root):
    shutil.copy(root / "train/pear/train_0.JPEG", root / "train/plum/same.JPEG")
    return {("conflict", str(root / "train/plum/same.JPEG"), None)}


def spoil_repeated(root):
    shutil.copy(root / "train/pear/train_0.JPEG", root / "train/pear/z.JPEG")
    return {("repeated", str(root / "train/pear/z.JPEG"), None)}


@pytest.mark.parametrize(
    "spoil", [value for name, value in sorted(globals().items()) if name.startswith("spoil_")]
)
def test_folders(root, spoil):
    expected = spoil(files_only(root))
    problems, report = found(root)
    assert problems == expected
    assert report.good == all(KINDS[kind].level != "error" for kind, _, _ in expected)


def test_a_leak_of_fewer_than_one_in_a_thousand_is_a_warning():
    from data_prep.checks.compare import find_repeats
    from data_prep.checks.folders import Part

    def part(split, digests):
        names = [f"{split}{i}" for i in range(len(digests))]
        labels = np.zeros(len(digests), np.int64)
        return Part("files", split, None, names, labels, np.array(digests, np.int64) * 2 + 1)

    for leaks, kind in ((1, "few-leaks"), (2, "leak")):
        problems = []
        find_repeats([part("train", range(5)), part("val", range(5 - leaks, 2000))], problems)
        assert {p.kind for p in problems} == {kind if leaks * 1000 < 1995 else "leak"}
        assert len(problems) == leaks


def test_imagenets_counts_are_known():
    from data_prep.checks.compare import compare_classes
    from data_prep.checks.folders import Part

    classes = tuple(f"n{i:08}" for i in range(1000))
    labels = np.repeat(np.arange(1000), 50)
    part = Part("files", "val", __import__("pathlib").Path("val"), labels=labels, classes=classes)
    problems = []
    compare_classes([part], part.path, problems)
    assert problems == []
    part.labels = labels[:-1]
    compare_classes([part], part.path, problems)
    assert [p.line() for p in problems] == [
        "val: 49,999 images; ILSVRC 2012 has 50,000",
        "val, class n00000999: 49 images, 50 to 50 are usual",
    ]


# -- record files --------------------------------------------------------------------------------


def records(root):
    return root / "records" / "train.rec"


def test_damaged_records_are_found_and_the_rest_is_read(root):
    rec = records(root)
    offsets = Reader(rec).offsets.tolist()
    data = bytearray(rec.read_bytes())
    data[offsets[4]] ^= 1  # the magic
    data[offsets[9] + 4] ^= 0x40  # the length
    rec.write_bytes(data)
    problems, report = found(rec)
    first, second = sorted(offset for kind, _, offset in problems if kind == "damage")
    assert first == offsets[4]
    # A wrong length shows where the next record should start.
    assert offsets[9] < second < offsets[11]
    assert len(report.parts[0]) >= 13
    texts = [p.text for p in report.problems if p.kind == "damage"]
    assert "after 4 good records: " in texts[0]
    assert ("list", str(rec.with_suffix(".lst")), None) in problems
    assert ("index", str(rec.with_suffix(".idx")), offsets[4]) in problems


def test_cut_record_file(root):
    rec = records(root)
    offsets = Reader(rec).offsets.tolist()
    rec.write_bytes(rec.read_bytes()[: offsets[10] + 50])
    problems, report = found(rec)
    assert ("damage", str(rec), offsets[10]) in problems
    assert len(report.parts[0]) == 10
    assert not report.good


@pytest.fixture
def alone(root):
    """A record file with nothing to compare it with but its checksums."""
    files_alone = root / "alone"
    files_alone.mkdir()
    for path in (root / "records").glob("train.*"):
        shutil.copy(path, files_alone)
    return files_alone / "train.rec"


@pytest.mark.slow
def test_any_changed_byte_of_a_record_file_is_found(alone):
    """Most of them lie in pixels, and decode to another picture."""
    whole = alone.read_bytes()
    rng = random.Random(0)
    passed = []
    for at in rng.sample(range(len(whole)), 90):
        data = bytearray(whole)
        data[at] ^= 1 << rng.randrange(8)
        alone.write_bytes(data)
        if found(alone)[1].good:
            passed.append(at)
    assert passed == []


def flip_a_pixel(rec, number=3):
    """Another colour of one record's picture: it decodes without a word. Returns its offset."""
    offset = Reader(rec).offsets.tolist()[number]
    data = bytearray(rec.read_bytes())
    at = data.index(b"\xff\xda", offset) + 30
    data[at] ^= 4
    rec.write_bytes(data)
    return offset


def test_a_changed_picture_is_named_with_key_and_offset(alone):
    offset = flip_a_pixel(alone)
    problems, report = found(alone)
    (where,) = (where for kind, where, _ in problems if kind == "checksum")
    assert where.startswith(f"{alone}, key ") and where.endswith(f", offset {offset:,}")
    assert not report.good
    with pytest.raises(verify.UserError, match="--fix: 1 records are not as they were packed"):
        verify.main([str(alone), "--fix", str(alone.parent / "new"), "--quiet", "--jobs", "1"])


def test_without_checksums_a_folder_beside_tells(root, alone, tmp_path):
    shutil.rmtree(root / "records")
    shutil.rmtree(root / "tfrecord")
    alone.with_suffix(".crc").unlink()
    problems, report = found(root, alone.parent)
    assert problems == {("no-checksums", str(alone), None)} and report.good
    flip_a_pixel(alone)
    elsewhere = shutil.copytree(alone.parent, tmp_path / "elsewhere")
    for place in (alone.parent, elsewhere):
        problems, report = found(root, place)
        assert ("forms", str(place / "train.rec"), None) in problems and not report.good
        (text,) = (p.text for p in report.problems if p.kind == "forms")
        assert f"1 that are not there, the first is {place / 'train.rec'}, key " in text
    other = tmp_path / "other" / "train" / "apple"  # another data set is no form of this one
    other.mkdir(parents=True)
    (other / "x.jpg").write_bytes(picture(999))
    assert "forms" not in {kind for kind, _, _ in found(tmp_path / "other", elsewhere)[0]}


def test_what_cannot_be_known_is_said(root, alone, capsys):
    def last_line(*paths):
        assert verify.main([*map(str, paths), "--quiet", "--jobs", "1"]) == 0
        return capsys.readouterr().out.strip().splitlines()[-1]

    assert last_line(root) == last_line(alone) == "Training can trust this data."
    alone.with_suffix(".crc").unlink()
    line = last_line(alone)
    assert f"cannot be known of {alone} (recordio)" in line and "trust" not in line
    files_only(root)
    shutil.rmtree(alone.parent)
    assert f"{root / 'train'} (files), {root / 'val'} (files)" in last_line(root)


def test_checksums_of_another_record_file(root, alone):
    """Another program has packed anew, and left the checksums of before."""
    checksums = alone.with_suffix(".crc")
    shutil.copy(root / "records" / "val.crc", checksums)
    problems, report = found(alone)
    assert problems == {("checksum-file", str(checksums), None)} and report.good
    checksums.write_text("0\tx\n")
    problems, report = found(alone)
    assert problems == {("checksum-file", str(checksums), None)}
    (text,) = (p.text for p in report.problems)
    assert text.startswith("the checksum file does not hold two whole numbers in each line")
    im2rec.main(["--checksums", str(alone.with_suffix(""))])
    assert found(alone)[0] == set()
    assert checksums.read_bytes() == (root / "records" / "train.crc").read_bytes()


def test_index_and_list_of_another_file(root):
    rec = records(root)
    shutil.copy(root / "records/val.idx", rec.with_suffix(".idx"))
    shutil.copy(root / "records/val.lst", rec.with_suffix(".lst"))
    problems, _ = found(rec)
    assert {kind for kind, _, _ in problems} == {"index", "list"}


def test_no_index_is_a_warning(root):
    rec = records(root)
    rec.with_suffix(".idx").unlink()
    problems, report = found(rec)
    assert problems == {("no-index", str(rec), None)}
    assert report.good


def test_unreadable_index_and_list(root):
    rec = records(root)
    rec.with_suffix(".idx").write_text("nonsense\n")
    rec.with_suffix(".lst").write_text("nonsense\n")
    problems, _ = found(rec)
    assert problems == {
        ("index", str(rec.with_suffix(".idx")), None),
        ("list", str(rec.with_suffix(".lst")), None),
    }


def test_record_file_without_its_record_file(root):
    records(root).unlink()
    problems, _ = found(root)
    assert ("index", str(root / "records/train.idx"), None) in problems


@pytest.mark.parametrize("label", [-1.0, 0.5, float("nan"), (1.0, 2.0)])
def test_labels_that_are_no_class(tmp_path, label):
    with Writer(tmp_path / "train") as writer:
        writer.write(0, pack_header(0, 0, picture(0)))
        writer.write(1, pack_header(label, 1, picture(1)))
        writer.write(2, b"short")
    problems, report = found(tmp_path / "train.rec")
    assert {kind for kind, _, _ in problems} >= {"label", "damage"}
    assert len(report.parts[0]) == 2


def test_bad_images_in_records_are_said_with_key_and_offset(tmp_path):
    with Writer(tmp_path / "train") as writer:
        writer.write(0, pack_header(0, 0, picture(0)))
        writer.write(7, pack_header(0, 7, picture(1)[:-300]))
    offset = Reader(tmp_path / "train.rec").offsets[1]
    problems, _ = found(tmp_path / "train.rec")
    where = f"{tmp_path / 'train.rec'}, key 7, offset {offset:,}"
    assert problems == {("undecodable", where, None)}


def test_records_of_older_files(root):
    (root / "train/pear/train_0.JPEG").write_bytes(picture(99))
    problems, report = found(root)
    assert {kind for kind, _, _ in problems} == {"forms"}
    texts = {p.where: p.text for p in report.problems}
    assert "it holds other images: 1 that are not there, the first is" in texts[str(records(root))]
    shutil.move(root / "train/pear/train_0.JPEG", root / "train/apple/moved.JPEG")
    shutil.rmtree(root / "tfrecord")
    im2rec.main(["--list", "--recursive", str(root / "records/val"), str(root / "val")])
    problems, report = found(root)
    assert {kind for kind, _, _ in problems} == {"forms"}


def test_records_with_other_labels(root):
    shutil.rmtree(root / "tfrecord")
    for name in ("train", "val"):
        (root / name / "apple").rename(root / name / "zapple")
    (root / "classes.txt").unlink()
    problems, report = found(root)
    assert {kind for kind, _, _ in problems} == {"forms"}
    assert {p.text.rpartition(", ")[2] for p in report.problems} == {
        "some images have other labels"
    }


def test_class_maps_of_two_record_files(tmp_path):
    for split, names in (("train", ("a", "b")), ("val", ("a", "c"))):
        for name in names:
            (tmp_path / split / name).mkdir(parents=True)
            (tmp_path / split / name / "x.jpg").write_bytes(
                picture(f"{split}{name}".__hash__() % 99)
            )
        im2rec.make_list(str(tmp_path / "r" / split), str(tmp_path / split))
        im2rec.pack_all(str(tmp_path / "r" / split), str(tmp_path / split), quiet=True)
    problems, report = found(tmp_path / "r")
    assert ("class-maps", str(tmp_path / "r/val.rec"), None) in problems
    (text,) = {p.text for p in report.problems if p.kind == "class-maps"}
    assert text == "2 classes in train, 2 in val; 'b' is only in train"


# -- shards --------------------------------------------------------------------------------------


def shard(root):
    return find_shards(root / "tfrecord", "train")[0]


def test_damaged_shard(root):
    path, index = shard(root).path, shard(root).index
    offsets = [int(line.split()[0]) for line in index.read_text().splitlines()]
    data = bytearray(path.read_bytes())
    data[offsets[3] + 100] ^= 1
    path.write_bytes(data)
    problems, report = found(root / "tfrecord")
    assert ("damage", str(path), offsets[3]) in problems
    (text,) = {p.text for p in report.problems if p.kind == "damage"}
    assert "after 3 good records: damaged at offset" in text and "the checksum of its data" in text
    assert f"{len(data) - offsets[3]:,} bytes from there on were not read" in text


def test_index_of_another_shard(root):
    first, second = find_shards(root / "tfrecord", "train")
    shutil.copy(second.index, first.index)
    problems, _ = found(root / "tfrecord")
    assert problems == {("index", str(first.index), None)}


def test_missing_index_and_missing_shard(root):
    first, second = find_shards(root / "tfrecord", "train")
    second.index.unlink()
    problems, report = found(root / "tfrecord")
    assert problems == {("no-index", str(second.path), None)}
    assert report.good
    first.path.unlink()
    problems, report = found(root / "tfrecord")
    assert ("damage", str(root / "tfrecord"), None) in problems


GOOD = {"image/encoded": picture(1), "image/class/label": 1}


@pytest.mark.parametrize(
    ("example", "kind"),
    [
        (b"\xff\xff\xff\xff", "example"),
        (serialize_example({"image/encoded": picture(1)}), "example"),
        (serialize_example({**GOOD, "image/class/label": [1, 2]}), "example"),
        (serialize_example({**GOOD, "image/class/label": b"1"}), "example"),
        (serialize_example({**GOOD, "image/encoded": 3}), "example"),
        (serialize_example({"image/encoded": picture(2), "image/class/label": 0}), "label"),
        (serialize_example({**GOOD, "image/encoded": picture(1)[:-300]}), "undecodable"),
        (
            serialize_example({"height": 2, "width": 2, "img_raw": b"x" * 12, "label": -1.0}),
            "label",
        ),
        (serialize_example({"height": 2, "width": 2, "img_raw": b"x", "label": 1.0}), "example"),
        (serialize_example({"height": 2, "img_raw": b"x" * 12, "label": 1.0}), "example"),
    ],
)
def test_examples_that_training_cannot_use(tmp_path, example, kind):
    path = tmp_path / "train-00000-of-00001"
    path.write_bytes(frame_record(serialize_example(GOOD)) + frame_record(example))
    problems, report = found(path)
    assert {(k, p.level) for k, _, _ in problems for p in report.problems if p.kind == k} == {
        (kind, "error"),
        ("no-index", "warning"),
    }


def test_slides_schema_is_read(root):
    shutil.rmtree(root / "tfrecord")
    tfrecord.convert(root, schema="slides", size=16, data_format="files", quiet=True)
    problems, report = found(root)
    assert problems == set()
    assert verify.counts_per_class(report.parts[-1]) == dict.fromkeys("012", 3)


# -- robust --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_it_finishes_on_any_damage(root):
    """Random damage to every file of a set: always a report."""
    rng = random.Random(0)
    paths = sorted(p for p in root.rglob("*") if p.is_file())
    for _ in range(12):
        for path in rng.sample(paths, 12):
            data = bytearray(path.read_bytes() or b"x")
            kind = rng.randrange(4)
            at = rng.randrange(len(data))
            if kind == 0:
                data[at] ^= 1 << rng.randrange(8)
            elif kind == 1:
                del data[at:]
            elif kind == 2:
                data[at : at + 9] = rng.randbytes(9)
            else:
                data[at:at] = struct.pack("<I", 0xCED7230A) * rng.randrange(3)
            path.write_bytes(data)
        _, report = found(root)
        json.dumps(report.as_json())


def test_a_decoder_that_crashes_costs_one_image(root, monkeypatch, tmp_path, repository):
    """A stand-in for Pillow's bugs: an image on which the worker process dies."""
    files_only(root)
    bad = root / "train/pear/train_3.JPEG"
    stand_in = tmp_path / "code" / "simplejpeg.py"
    stand_in.parent.mkdir()
    stand_in.write_text(
        "import os\n"
        f"BAD = open({str(bad)!r}, 'rb').read()\n"
        "def decode_jpeg(data, *args, **kwargs):\n"
        "    if data == BAD:\n"
        "        os.kill(os.getpid(), 11)\n"
    )
    monkeypatch.syspath_prepend(stand_in.parent)  # workers get this path, too
    problems, report = found(root, jobs=1)
    assert problems == {("crash", str(bad), None)}
    assert {p.text for p in report.problems} == {"killed by signal 11"}


# -- the command ---------------------------------------------------------------------------------


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "data_prep.verify", "--quiet", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
        env=clean_environment(),
    )


@pytest.mark.slow
def test_text_json_and_exit_status(root):
    done = run(root)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Training can trust this data." in done.stdout
    bad = root / "train/pear/bad ä.jpg"
    bad.write_bytes(b"text")
    done = run(files_only(root), "--json")
    assert done.returncode == 1
    report = json.loads(done.stdout)
    assert report["good"] is False
    assert report["levels"] == {"error": 1, "warning": 0, "note": 0}
    assert report["problems"] == [
        {
            "level": "error",
            "kind": "no-image",
            "where": str(bad),
            "offset": None,
            "text": "it starts with b'text'",
        }
    ]
    assert report["parts"][0]["classes"] == {"apple": 5, "pear": 6, "plum": 5}
    done = run(root)
    assert done.returncode == 1
    assert "error: 1 × files that are no JPEG or PNG: convert them, or remove them" in done.stdout
    assert "Training cannot trust this data" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{t}/nowhere"], "{t}/nowhere: there is no such file or folder"),
        (["{t}"], "{t}: neither class folders, nor record files"),
        (["{t}/x.txt"], "{t}/x.txt: neither class folders"),
        (["{t}", "--jobs", "0"], "--jobs 0: give at least one process"),
        (["{t}", "{t}", "--fix", "{t}/out"], "--fix: give one data set to fix at a time"),
    ],
)
def test_bad_commands_get_one_line(tmp_path, arguments, message, error_of):
    (tmp_path / "x.txt").write_text("x")
    error = error_of(verify.main, *(argument.format(t=tmp_path) for argument in arguments))
    assert error.startswith(message.format(t=tmp_path))


# -- --fix ---------------------------------------------------------------------------------------


def add_odd_images(root):
    folder = root / "train" / "pear"
    (folder / "cmyk.JPEG").write_bytes(picture(90, "CMYK"))
    (folder / "png.JPEG").write_bytes(picture(91, form="PNG"))
    (folder / "exif.JPEG").write_bytes(picture(93, exif=CORRUPT_EXIF))
    (folder / "notes.txt").write_text("kept")
    return {"cmyk.JPEG", "png.JPEG"}


def test_fix_of_class_folders(root, tmp_path, capsys):
    wrong = add_odd_images(files_only(root))
    out = tmp_path / "fixed"
    assert verify.main([str(root), "--fix", str(out), "--quiet", "--jobs", "1"]) == 0
    assert "a copy with 2 images re-encoded" in capsys.readouterr().out
    for path in root.rglob("*"):
        if path.is_file() and path.name not in wrong:
            assert (out / path.relative_to(root)).read_bytes() == path.read_bytes()
    for name in wrong:
        image = Image.open(out / "train/pear" / name)
        before = Image.open(root / "train/pear" / name).convert("RGB")
        assert (image.format, image.mode, image.size) == ("JPEG", "RGB", before.size)
        difference = np.asarray(image, int) - np.asarray(before, int)
        assert np.abs(difference).mean() < 2
    problems, _ = found(out)
    assert {kind for kind, _, _ in problems} == {"exif", "other-file"}


def test_fix_of_record_files(root, tmp_path):
    files_only(root)
    add_odd_images(root)
    im2rec.ensure_records(root)
    out = tmp_path / "fixed"
    records_only = root / "records"
    assert verify.main([str(records_only), "--fix", str(out), "--quiet"]) == 0
    assert sorted(p.name for p in out.iterdir() if p.suffix) == [
        f"{split}.{ending}" for split in SPLITS for ending in ("crc", "idx", "lst", "rec")
    ]
    assert (out / "val.rec").read_bytes() == (records_only / "val.rec").read_bytes()
    before, after = Reader(records_only / "train.rec"), Reader(out / "train.rec")
    changed = sum(before[i] != after[i] for i in range(len(before)))
    assert (before.keys.tolist(), before.labels().tolist()) == (
        after.keys.tolist(),
        after.labels().tolist(),
    )
    assert changed == 1  # the CMYK image; a PNG in a record has no wrong name
    assert {kind for kind, _, _ in found(out)[0]} == {"exif"}


def test_fix_needs_a_new_place(root):
    for out in (root, root / "inside"):
        with pytest.raises(verify.UserError, match="--fix"):
            verify.main([str(root), "--fix", str(out), "--quiet", "--jobs", "1"])
    assert not (root / "inside").exists()
    assert not os.path.exists(f"{root}/inside.part")
