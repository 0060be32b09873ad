"""verify: each thing that can be wrong with a data set is made, and must be found and named."""

import io
import os
import random
import shutil
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from data_prep import im2rec, tfrecord, verify
from data_prep.recordwriter import Writer, pack_header
from data_prep.tfrecordwriter import frame_record, serialize_example
from data_prep.verifying import images
from data_prep.verifying.images import check_image
from data_prep.verifying.problems import KINDS
from rn50lib.data.recordio import Reader
from rn50lib.data.source import open_source
from rn50lib.data.tfrecord import find_shards, index_path
from rn50lib.errors import UserError
from tests.conftest import clean_environment
from tests.data_prep.conftest import make_image
from tests.records import known
from tests.support import png

CLASSES = ("apple", "pear", "plum")
CORRUPT_EXIF = b"Exif\0\0MM\0*\0\0\0\x08\xff\xff\x01\x12"


@pytest.fixture(scope="session")
def clean_set(tmp_path_factory):
    """A small set without problems as files, records and shards."""
    root = tmp_path_factory.mktemp("clean") / "set"
    seed = 0
    for split, count in (("train", 5), ("val", 3)):
        for name in CLASSES:
            folder = root / split / name
            folder.mkdir(parents=True)
            for i in range(count):
                seed += 1
                (folder / f"{split}_{i}.JPEG").write_bytes(make_image(seed))
    lines = [f"{i}\t{name}\tsome {name}s\n" for i, name in enumerate(CLASSES)]
    (root / "classes.txt").write_text("".join(lines))
    im2rec.ensure_records(root)
    tfrecord.convert(root, shards={"train": 2, "val": 1}, quiet=True)
    return root


@pytest.fixture
def root(clean_set, tmp_path, monkeypatch):
    """A copy of it to damage."""
    monkeypatch.setattr(os, "fsync", lambda _: None)
    return shutil.copytree(clean_set, tmp_path / "set")


def files_only(root):
    """A copy without records and shards, which would differ from damaged files."""
    shutil.rmtree(root / "records")
    shutil.rmtree(root / "tfrecord")
    return root


def found(*paths, jobs=0):
    """Return {(kind, where, offset)} and the report; verify never raises."""
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
        ("tfrecord", "train", 15, dict.fromkeys(CLASSES, 5)),
        ("tfrecord", "val", 9, dict.fromkeys(CLASSES, 3)),
    ]


# -- images --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "data", "kinds"),
    [
        ("good.JPEG", make_image(1), []),
        ("good.png", make_image(1, form="PNG"), []),
        ("zero.jpg", b"", ["empty-file"]),
        ("lfs.jpg", b"version https://git-lfs.github.com/spec/v1\noid x\n", ["lfs-pointer"]),
        ("annex.jpg", b"/annex/objects/SHA256E-s9--ab.jpg\n", ["lfs-pointer"]),
        ("link.jpg", b"../../.git/annex/objects/Xw/0k/SHA256E-s9--ab.jpg", ["lfs-pointer"]),
        ("page.jpg", b"<html>not found</html>", ["no-image"]),
        ("webp.jpg", make_image(1, form="WEBP"), ["no-image"]),
        ("cut.jpg", make_image(1)[:-200], ["undecodable"]),
        ("head.jpg", make_image(1)[:100], ["undecodable"]),
        ("deep.png", png(16, 0, (0x4000,)), ["grey"]),
        ("cut.png", make_image(1, form="PNG")[:-100], ["undecodable"]),
        ("end.png", make_image(1, form="PNG")[:-10], ["decoder-warning"]),  # Pillow reads it
        ("cmyk.JPEG", make_image(1, "CMYK"), ["cmyk"]),
        ("png.JPEG", make_image(1, form="PNG"), ["png-as-jpeg"]),
        ("grey.jpg", make_image(1, "L"), ["grey"]),
        ("exif.jpg", make_image(1, exif=CORRUPT_EXIF), []),
        ("progressive.jpg", make_image(1, progressive=True), []),
        ("cut-cmyk.jpg", make_image(1, "CMYK")[:-200], ["cmyk", "undecodable"]),
    ],
)
def test_images(name, data, kinds):
    assert [kind for kind, _ in check_image(data, name)] == kinds


def test_small_pngs_that_differ_are_not_the_same():
    """A CRC-32 over PNG files, which end with their own, has 65,536 values."""
    rng = np.random.default_rng(0)
    found = set()
    for _ in range(3000):
        out = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (8, 8), np.uint8)).save(out, "PNG", compress_level=0)
        found.add(images.digest(out.getvalue()))
    assert len(found) == 3000 and images.digest(b"") == 0


def test_damage_inside_an_image_is_reported():
    """The second half of the data is missing, but the end marker is there."""
    data = make_image(1, size=(300, 200), quality=95)
    kinds = [kind for kind, _ in check_image(data[: len(data) // 2] + b"\xff\xd9", "x.jpg")]
    # Without libjpeg-turbo's own words, Pillow takes this for a whole image.
    assert kinds == (["decoder-warning"] if images.simplejpeg else [])


# -- folders and classes -------------------------------------------------------------------------

TRAIN, VAL = "train/pear/train_0.JPEG", "val/pear/val_0.JPEG"


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (f"cp {VAL} val/flat.JPEG", {("flat", "val")}),
        ("cp -r train/pear train/apple/pear", {("nested", "train/apple/pear")}),
        ("mkdir train/apple/more", {("nested", "train/apple/more")}),
        ("rm -r val/plum", {("class-maps", "")}),
        ("rm val/plum/*", {("empty-class", "val/plum")}),
        ("rm -r val/*", {("no-images", "val")}),
        (f"cp {TRAIN} val/pear/leak.JPEG", {("leak", "val/pear/leak.JPEG")}),
        (f"cp {TRAIN} train/plum/same.JPEG", {("conflict", "train/plum/same.JPEG")}),
        (f"cp {TRAIN} train/pear/z.JPEG", {("twice", "train/pear/z.JPEG")}),
        (f"head -c 300 {TRAIN} > train/pear/cut.jpg", {("undecodable", "train/pear/cut.jpg")}),
        (
            f"mv {TRAIN} $'train/pear/\\xe4.jpg'; mv {VAL} val/pear/ä.jpg",
            {("not-utf8", "train/pear/\udce4.jpg")},
        ),
        (
            "rm classes.txt; for s in train val; do mv $s/plum $s/$'\\xe4'; done",
            {("not-utf8", f"{s}/\udce4/{s}_{i}.JPEG")
             for s, count in (("train", 5), ("val", 3)) for i in range(count)},
        ),
        (f"mv {TRAIN} $'train/pear/a\\tb.jpg'", {("list-names", "train/pear")}),
        ("touch train/pear/zero.jpg", {("empty-file", "train/pear/zero.jpg")}),
        ("ln -s /nowhere train/pear/x.jpg", {("dangling", "train/pear/x.jpg")}),
        ("rm */pear/*", {("lost-class", "train/pear"), ("empty-class", "val/pear")}),
        ("mv train/pear/train_0.JPEG train/pear/0.webp", {("left-out", "train/pear/0.webp")}),
        ("cd train/pear; touch train_0.JPEG.md5 .train_0.JPEG.xmp", set()),
        ("cd train/pear; mv train_0.JPEG train_0", {("left-out", "train/pear/train_0")}),
        (
            "mv train/pear/* train; rm -r train/*/; mv val/pear/* val; rm -r val/*/",
            {(kind, split) for kind in ("flat", "no-images") for split in ("train", "val")},
        ),
        ("mv val valid", {("one-split", ".")}),
        ("mkdir train/.ipynb_checkpoints; touch train/notes.txt val/pear/._x.jpg", set()),
    ],
)  # fmt: skip
def test_problems_of_folders(root, script, expected):
    subprocess.run(["bash", "-ec", script], cwd=files_only(root), check=True)
    problems, report = found(root)
    assert problems == {(kind, str(root / where), None) for kind, where in expected}
    assert report.good == all(KINDS[kind].level != "error" for kind, _ in expected)


def test_packed_data_older_than_the_folders(root):
    (root / "train" / "pear" / "train_0.JPEG").unlink()
    problems, report = found(root)
    packed = {root / "records" / "train.rec", root / "tfrecord"}
    assert problems == {("packed-before", str(path), None) for path in packed}
    assert report.good


def test_records_without_val_are_refused_like_by_a_run(root):
    for path in (root / "records").glob("val.*"):
        path.unlink()
    problems, report = found(root)
    assert problems == {("no-images", str(root), None)} and not report.good
    with pytest.raises(UserError, match=r"records/val\.rec: this record file does not exist"):
        open_source(root, "val")
    for path in (root / "records").glob("train.*"):
        path.unlink()
    assert found(root)[1].good and len(open_source(root, "val")) == 9


def test_labels_without_training_images(tmp_path):
    for split, seed in (("train", 1), ("val", 5)):
        write_records(tmp_path / split, [1, 3], [make_image(seed), make_image(seed + 1)])
    _, report = found(tmp_path)
    texts = [problem.text for problem in report.problems if problem.kind == "untrained"]
    assert texts == ["no image has the label 0", "no image has the label 2"]


def write_records(path, labels, data):
    with Writer(path) as writer:
        for key, (label, image) in enumerate(zip(labels, data, strict=True)):
            writer.write(key, pack_header(label, key, image))


@pytest.mark.parametrize(("leaks", "kind"), [(1, "few-leaks"), (2, "leak")])
def test_few_leaks_are_a_warning(tmp_path, leaks, kind):
    image = make_image(1, size=(8, 8))
    images = [image + i.to_bytes(2, "big") for i in range(1500)]
    write_records(tmp_path / "val", [0] * 1500, images)
    write_records(tmp_path / "train", [0] * (leaks + 1), [*images[:leaks], make_image(2)])
    problems, _ = found(tmp_path)
    assert [k for k, _, _ in problems if "leak" in k] == [kind] * leaks


def test_classes_and_labels_are_compared_between_all_paths(tmp_path):
    images = [make_image(i) for i in range(4)]
    write_records(tmp_path / "train", [0, 0, 1, 1], images)
    for i, image in enumerate(images):  # one was sorted into another class after packing
        folder = tmp_path / "train" / "aaba"[i]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{i}.jpg").write_bytes(image)
    kinds = {problem.kind for problem in verify.verify([tmp_path], 0, True).problems}
    assert "packed-before" in kinds
    for split, classes in (("train", "ab"), ("val", "ac")):
        for name in classes:
            (tmp_path / "set" / split / name).mkdir(parents=True)
            image = make_image(100 * len(split) + ord(name))
            (tmp_path / "set" / split / name / "1.jpg").write_bytes(image)
    both = [tmp_path / "set" / split for split in ("train", "val")]
    kinds = {problem.kind for problem in verify.verify(both, 0, True).problems}
    assert "class-maps" in kinds
    roots = [tmp_path / "set", tmp_path / "other"]  # each has its own classes
    shutil.rmtree(tmp_path / "set" / "val")
    for split in ("train", "val"):
        (tmp_path / "other" / split / "c").mkdir(parents=True)
        (tmp_path / "other" / split / "c" / "1.jpg").write_bytes(make_image(200 + len(split)))
    kinds = {problem.kind for problem in verify.verify(roots, 0, True).problems}
    assert "class-maps" not in kinds


def test_one_damaged_label_is_named_and_takes_no_memory(tmp_path):
    write_records(tmp_path / "train", [0, 1, 1.5e9], [make_image(i) for i in range(3)])
    report = verify.verify([tmp_path], 0, True)
    (text,) = (problem.text for problem in report.problems if problem.kind == "label")
    assert text == "the label is 1.5e+09"


@pytest.mark.parametrize("other", ["train", "another set"])
def test_leaks_are_found_in_a_form_that_has_both_splits(tmp_path, other):
    """Although files come first: those of train alone, or of another data set."""
    image = make_image(1)
    for split in ("train", "val"):
        write_records(tmp_path / split, [0], [image])
    folders = (
        [tmp_path / "train"]
        if other == "train"
        else [tmp_path / other / s for s in ("train", "val")]
    )
    for seed, folder in enumerate(folders):
        (folder / "a").mkdir(parents=True)
        (folder / "a" / "1.jpg").write_bytes(make_image(2 + seed))
    paths = [tmp_path] if other == "train" else [tmp_path / other, tmp_path]
    assert "leak" in [problem.kind for problem in verify.verify(paths, 0, True).problems]


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


@pytest.fixture
def alone(root):
    """A record file that can only be compared with its checksums."""
    files_alone = root / "alone"
    files_alone.mkdir()
    for path in (root / "records").glob("train.*"):
        shutil.copy(path, files_alone)
    return files_alone / "train.rec"


@pytest.mark.slow
def test_any_changed_byte_of_a_record_file_is_found(alone):
    """Most of the bytes are pixels, and decode to a different image."""
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
    """Change a colour in one record's image, which still decodes; return its offset."""
    offset = Reader(rec).offsets.tolist()[number]
    data = bytearray(rec.read_bytes())
    at = data.index(b"\xff\xda", offset) + 30
    data[at] ^= 4
    rec.write_bytes(data)
    return offset


def test_changed_image_is_named_with_key_and_offset(alone):
    offset = flip_a_pixel(alone)
    problems, report = found(alone)
    (where,) = (where for kind, where, _ in problems if kind == "checksum")
    assert where.startswith(f"{alone}, key ") and where.endswith(f", offset {offset:,}")
    assert not report.good


def test_undetectable_damage_is_reported_as_such(root, alone, capsys):
    def last_line(*paths):
        assert verify.main([*map(str, paths), "--quiet", "--jobs", "1"]) == 0
        return capsys.readouterr().out.strip().splitlines()[-1]

    checked, unchecked = last_line(alone).split("; not checked: ")
    assert "15 images decoded, checksums" in checked
    assert "val (missing or not readable)" in unchecked
    assert str(alone) not in unchecked
    alone.with_suffix(".crc").unlink()
    checked, unchecked = last_line(alone).split("; not checked: ")
    assert "checksums" not in checked and f"checksums, in {alone} (recordio)" in unchecked
    checked, unchecked = last_line(root).split("; not checked: ")
    assert f"{root / 'train'} (files), {root / 'val'} (files)" in unchecked
    assert "train and val" in checked and "missing" not in unchecked


def test_checksums_of_another_record_file(root, alone):
    """A different program packed the records again and left the old checksums."""
    checksums = alone.with_suffix(".crc")
    shutil.copy(root / "records" / "val.crc", checksums)
    problems, report = found(alone)
    assert problems == {("checksum-file", str(checksums), None)} and report.good
    checksums.write_text("0\tx\n")
    problems, report = found(alone)
    assert problems == {("checksum-file", str(checksums), None)}
    (text,) = (p.text for p in report.problems)
    assert text.startswith("this list does not hold two whole numbers in each line")
    im2rec.main(["--checksums", str(alone.with_suffix(""))])
    assert found(alone)[0] == set()
    assert checksums.read_bytes() == (root / "records" / "train.crc").read_bytes()


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ("rm train.idx", {("index", "train.idx")}),
        ("echo nonsense > train.idx", {("index", "train.idx")}),
        ("echo nonsense > train.lst", {("list", "train.lst")}),
        ("cp val.lst train.lst", {("list", "train.lst")}),
        ("head -c 5000 train.rec > x; mv x train.rec; rm train.[cil]*",
         {("damage", "train.rec"), ("index", "train.idx"), ("no-checksums", "train.rec")}),
        ("cp val.idx train.idx", {("index", "train.idx")}),
        ("rm train.rec", {("index", "train.idx"), ("one-split", ".")}),
    ],
)  # fmt: skip
def test_problems_of_record_files(root, script, expected):
    folder = root / "records"
    subprocess.run(["bash", "-ec", script], cwd=folder, check=True)
    problems, report = found(folder)
    assert {(kind, where) for kind, where, _ in problems if kind != "class-maps"} == {
        (kind, str(folder / where)) for kind, where in expected
    }
    assert report.good == all(KINDS[kind].level != "error" for kind, _ in expected)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ([4], "1 entry has a key that is not the record's id, the first at this offset"),
        ([4, 9], "2 entries have a key that is not the record's id, the first at this offset"),
    ],
)
def test_keys_of_an_index_that_are_not_the_records(alone, wrong, text):
    index = alone.with_suffix(".idx")
    rows = [line.split("\t") for line in index.read_text().splitlines()]
    changed = [(key if i not in wrong else 100 + i, at) for i, (key, at) in enumerate(rows)]
    index.write_text("".join(f"{key}\t{at}\n" for key, at in changed))
    problems, report = found(alone)
    assert problems == {("index", str(index), int(rows[wrong[0]][1]))}
    assert [problem.text for problem in report.problems] == [text]
    index.write_text("".join(f"{i}\t{at}\n" for i, (_, at) in enumerate(rows)))  # they count
    assert found(alone)[1].good


@pytest.mark.parametrize("label", [-1.0, 0.5, float("nan"), (1.0, 2.0)])
def test_bad_labels_and_images_in_records(tmp_path, label):
    with Writer(tmp_path / "train") as writer:
        writer.write(0, pack_header(0, 0, make_image(0)))
        writer.write(1, known.pack(label, 1, make_image(1)))
        writer.write(2, b"short")
        writer.write(7, pack_header(0, 7, make_image(2)[:-300]))
    path = tmp_path / "train.rec"
    offsets = Reader(path).offsets
    problems, report = found(path)
    assert len(report.parts[0]) == 3
    places = [f"{path}, key {key}, offset {offsets[i]:,}" for key, i in ((1, 1), (7, 3))]
    assert {("label", places[0], None), ("undecodable", places[1], None)} <= problems
    assert ("damage", str(path), offsets[2]) in problems


# -- shards --------------------------------------------------------------------------------------


def shard(root):
    return find_shards(root / "tfrecord", "train")[0]


def test_damaged_shard(root):
    path = shard(root)
    lines = index_path(path).read_text().splitlines()
    offsets = [int(line.split()[0]) for line in lines]
    data = bytearray(path.read_bytes())
    data[offsets[3] + 100] ^= 1
    path.write_bytes(data)
    problems, report = found(root / "tfrecord")
    assert ("damage", str(path), offsets[3]) in problems
    (text,) = {p.text for p in report.problems if p.kind == "damage"}
    assert "after 3 good records: damaged at offset" in text and "the checksum of its data" in text
    assert f"{len(data) - offsets[3]:,} bytes were not read" in text
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert ("lfs-pointer", str(path), 0) in found(root / "tfrecord")[0]


def test_missing_and_wrong_indexes_and_missing_shards(root):
    folder = root / "tfrecord"
    first, second = find_shards(folder, "train")
    index = index_path(first)
    shutil.copy(index_path(second), index)
    assert found(folder)[0] == {("index", str(index), None)}
    index.unlink()
    problems, report = found(folder)
    assert problems == {("no-index", str(first), None)} and report.good
    second.unlink()
    with first.open("r+b") as file:
        file.truncate(first.stat().st_size - 10)
    damaged = {path for kind, path, _ in found(folder)[0] if kind == "damage"}
    assert damaged == {str(folder), str(first)}  # the others are still read


GOOD = {"image/encoded": make_image(1), "image/class/label": 1}


@pytest.mark.parametrize(
    ("example", "kind"),
    [
        (b"\xff\xff\xff\xff", "example"),
        (serialize_example({"image/encoded": make_image(1)}), "example"),
        (serialize_example({**GOOD, "image/class/label": [1, 2]}), "example"),
        (serialize_example({**GOOD, "image/class/label": b"1"}), "example"),
        (serialize_example({**GOOD, "image/encoded": 3}), "example"),
        (serialize_example({"image/encoded": make_image(2), "image/class/label": 0}), "label"),
        (serialize_example({**GOOD, "image/encoded": make_image(1)[:-300]}), "undecodable"),
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


def test_shards_of_the_slides_schema_can_be_written_again_by_the_remedy(root, capsys):
    out = root / "shards"
    tfrecord.convert(root, out, shards={"train": 1, "val": 1}, schema="slides", quiet=True)
    assert verify.main([str(out), "--quiet", "--jobs", "1"]) == 1
    remedy = "write the shards again, without --schema slides"
    assert f"error: examples without what training needs (24): {remedy}" in capsys.readouterr().out
    tfrecord.convert(root, out, shards={"train": 1, "val": 1}, quiet=True)
    assert found(out)[1].good


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
def test_text_and_exit_status(root):
    done = run(root)
    assert (done.returncode, done.stderr) == (0, "")
    assert "checked: class folders, record files" in done.stdout.splitlines()[-1]
    bad = root / "train/pear/bad ä.jpg"
    bad.write_bytes(b"text")
    done = run(files_only(root))
    assert done.returncode == 1
    assert f"{bad}: it starts with b'text'" in done.stdout
    assert "images in 3 classes, 5–6 each" in done.stdout
    grey = root / "train/pear/grey.jpg"
    grey.write_bytes(make_image(1, "L"))
    lines = run(root).stdout.splitlines()
    assert "note: grey images (1): they are read as colour images" in lines
    assert not any("grey.jpg" in line for line in lines)
    assert f"  {grey}" in run("--all", root).stdout
    grey.unlink()
    assert "1 error, 0 warnings, 0 notes" in done.stdout
    done = run(root)
    assert done.returncode == 1
    assert "error: files that are not JPEG or PNG (1): convert them" in done.stdout
    assert "Do not train on this data" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["{t}/nowhere"], "{t}/nowhere: there is no such file or folder"),
        (["{t}"], "{t}: neither class folders, nor record files"),
        (["{t}/x.txt"], "{t}/x.txt: neither class folders"),
        (["{t}/in/train-00000-of-00001"], "{t}/in/train-00000-of-00001: neither class"),
    ],
)
def test_bad_commands_get_one_line(tmp_path, arguments, message, error_of):
    (tmp_path / "x.txt").write_text("x")
    (tmp_path / "in").mkdir()
    os.mkfifo(tmp_path / "in" / "train-00000-of-00001")  # not waited for
    error = error_of(verify.main, *(argument.format(t=tmp_path) for argument in arguments))
    assert error.startswith(message.format(t=tmp_path))


def test_a_pipe_among_shards_is_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "train-00000-of-00001")
    report = verify.verify([tmp_path], 1)
    assert "is not a regular file" in "".join(one.line() for one in report.problems)
