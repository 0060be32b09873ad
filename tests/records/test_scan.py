"""What a scan of images takes and leaves out, and names that are not those of a data root."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from PIL import Image

from data_prep import im2rec, tfrecord, verify
from data_prep.tfrecordwriter import frame_record, serialize_example
from rn50lib.data.scan import EMPTY, LeftOut
from rn50lib.data.source import open_source
from rn50lib.errors import UserError
from rn50lib.run_setup import print_sources
from tests.conftest import clean_environment
from tests.records.conftest import refused
from tests.support import TINY, strict_json, write_photo

CLASSES = ("blue", "green", "red")


def draw(root: Path, train: int = 6, val: int = 3) -> Path:
    """Draw a small data set as class folders."""
    for split, count in (("train", train), ("val", val)):
        for label, name in enumerate(CLASSES):
            for i in range(count):
                write_photo(root / split / name / f"{i:02d}.jpg", 10 * label + i)
    return root


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return draw(tmp_path / "set")


LEFT_OUT = {
    "dangling links": 3,
    "hidden files": 3,
    ".webp images": 1,
    ".gif images": 1,
    "non-image files": 1,
    "files without an extension": 1,
    "special files": 1,
}
TAKEN = 3 * 6 + 3 - 1  # three more that are JPEG files, one less that is now a link


def leave_out(train: Path) -> None:
    """Add to a split what no loader reads, and JPEG files with rare extensions."""
    for ending in ("jfif", "JPE", "JPEG"):
        shutil.copy(train / "red/00.jpg", train / f"red/extra.{ending}")
    (train / "red/05.jpg").unlink()
    (train / "red/05.jpg").symlink_to("/nowhere/05.jpg")
    (train / "red/loop.png").symlink_to("loop.png")
    (train / "blue/annex.jpg").symlink_to(".git/annex/objects/1")
    (train / "red/._00.jpg").write_bytes(b"\0\5\x16\7")
    (train / ".DS_Store").touch()
    (train / "blue/.ipynb_checkpoints").mkdir()
    for form in ("webp", "gif"):
        Image.new("RGB", (20, 20)).save(train / f"blue/a.{form}")
    (train / "blue/Thumbs.db").touch()
    (train / "README").touch()
    os.mkfifo(train / "green/x.jpg")


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_run_im2rec_and_verify_count_the_same_left_out_files(
    root: Path, rn50: Callable, capsys: pytest.CaptureFixture
) -> None:
    leave_out(root / "train")
    done = rn50("train", "--data-root", str(root), *TINY, "-e", "1", "--report", "r.json")
    assert done.status == 0, done.err
    (line,) = (line for line in done.err.splitlines() if "left out" in line)
    before = done.err[: done.err.index(line)]
    assert "epoch 1/1" not in before and f"({TAKEN} images, files)" in line
    for reason, count in LEFT_OUT.items():
        assert re.search(rf"\b{count} {reason.replace('s', 's?')}", line), (reason, line)
    assert "blue/annex.jpg" in line and "red/05.jpg" in line
    left_out = strict_json(Path("r.json"))["env"]["left_out"]
    assert left_out == {"train": LEFT_OUT, "val": {}}

    im2rec.main(["--list", "--recursive", str(root / "train"), str(root / "train")])
    printed = capsys.readouterr().out
    assert f"{TAKEN} images in 3 classes; left out: " in printed
    assert sorted(printed.rpartition("left out: ")[2]) == sorted(line.rpartition("out: ")[2] + "\n")

    report = verify.verify([root], jobs=0, quiet=True)
    assert not report.good and [part.left_out for part in report.parts] == [LEFT_OUT, {}]
    problems = [problem.kind for problem in report.problems]
    assert problems.count("dangling") == 3 and problems.count("left-out") == 3


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_images_beyond_num_examples_are_counted(root: Path, rn50: Callable) -> None:
    flags = ["--num-examples", "16", "-e", "1", "--report", "r.json"]
    done = rn50("train", "--data-root", str(root), *TINY, *flags)
    assert "left out: 2 images beyond --num-examples" in done.err
    left_out = strict_json(Path("r.json"))["env"]["left_out"]["train"]
    assert left_out == {"images beyond --num-examples": 2}


@pytest.mark.parametrize("of_pack", [False, True], ids=["root", "pack"])
@pytest.mark.parametrize("pack", [im2rec.ensure_records, tfrecord.ensure_tfrecord])
def test_class_folders_that_changed_after_packing_are_named(
    root: Path, pack: Callable, of_pack: bool, rn50: Callable, capsys: pytest.CaptureFixture
) -> None:
    """Also if the folder of the pack, `photos/records`, is the data root."""
    packed = pack(root)
    form = "recordio" if packed.name == "records" else "tfrecord"
    data_root = packed if of_pack else root
    train = root / "train"

    def printed(newer: bool) -> str:
        for name in CLASSES:
            os.utime(train / name, (0, 0) if not newer else (2**32, 2**32))
        print_sources({"train": open_source(data_root, "train", form)})
        return capsys.readouterr().err

    assert "note" not in printed(newer=True)  # a copy of the data set, with the same images
    (train / "red/00.jpg").unlink()
    shutil.copy(train / "blue/00.jpg", train / "blue/new.jpg")
    _, line = printed(newer=True).splitlines()
    assert f"note: {train} is newer" in line and f"--data-root {root} --data-format files" in line
    changes = ("blue 1 new and 0 gone, red 0 new and 1 gone", "blue 7 instead of 6, red 5 instead")
    assert changes[form == "tfrecord"] in line
    shown = rn50("run", "--data-root", data_root, "--data-format", form, *TINY, "--dry-run")
    assert line.strip() in shown.err
    tfrecord.convert(root, root / "shards", jobs=0)  # of records if there are any, else of folders
    assert (line.strip() in capsys.readouterr().out) == (form == "recordio")
    shutil.copy(train / "blue/00.jpg", train / "red/new.jpg")  # as many as before
    assert ("red 1 new and 1 gone" in printed(newer=True)) == (form == "recordio")
    assert "note" not in printed(newer=False)  # unusable images were skipped when it was packed


def test_skipped_images_are_counted_by_reason(root: Path, capsys: pytest.CaptureFixture) -> None:
    im2rec.main(["--list", "--recursive", str(root / "t"), str(root / "train")])
    (root / "train/red/00.jpg").write_bytes(b"")
    (root / "train/red/01.jpg").unlink()
    (root / "train/blue/01.jpg").unlink()
    im2rec.main(["--pass-through", "--skip-bad", str(root / "t"), str(root / "train")])
    line = capsys.readouterr().out.splitlines()[-1]
    assert "15 records" in line
    assert "left out: 2 images (No such file or directory), 1 image (the file is empty)" in line


# -- a class that disappears ---------------------------------------------------------------------

LOST = {
    "a class folder is a dangling link": "rm -r {split}/green; ln -s /nowhere {split}/green",
    "only webp": "cd {split}/green; for f in *.jpg; do mv $f ${{f%jpg}}webp; done",
    "only heic": "cd {split}/green; for f in *.jpg; do mv $f ${{f%jpg}}HEIC; done",
    "no extensions": "cd {split}/green; for f in *.jpg; do mv $f ${{f%.jpg}}; done",
    "only dangling links": "cd {split}/green; for f in *.jpg; do ln -sf /nowhere/$f $f; done",
}


@pytest.mark.parametrize("script", LOST.values(), ids=LOST)
def test_a_class_that_disappears_is_an_error(root: Path, script: str) -> None:
    im2rec.main(["--list", "--recursive", str(root / "val"), str(root / "val")])
    subprocess.run(["bash", "-ec", script.format(split="train")], cwd=root, check=True)
    with pytest.raises(UserError) as caught:
        open_source(root, "train")
    assert "green" in str(caught.value)
    with pytest.raises(UserError) as caught:
        im2rec.main(["--list", "--recursive", str(root / "train"), str(root / "train")])
    assert "green" in str(caught.value)
    assert "green" in told_by_verify(root)


def test_a_class_that_is_a_dangling_link_in_both_splits_is_an_error(root: Path) -> None:
    for split in ("train", "val"):
        script = LOST["a class folder is a dangling link"].format(split=split)
        subprocess.run(["bash", "-ec", script], cwd=root, check=True)
    lost = f"{root}/train/green: this class is a link to nothing"
    with pytest.raises(UserError, match=lost):
        open_source(root, "train")
    with pytest.raises(UserError, match=lost):
        im2rec.main(["--list", "--recursive", str(root / "train"), str(root / "train")])


def test_a_class_with_a_dot_may_be_a_dangling_link(root: Path) -> None:
    (root / "train" / "002.Gull").symlink_to(root / "nowhere")  # as CUB-200's are called
    with pytest.raises(UserError, match="train/002.Gull: this class is a link to nothing"):
        open_source(root, "train")
    (root / "train" / "002.Gull").rename(root / "train" / "README.md")
    assert open_source(root, "train").left_out


@pytest.mark.parametrize("inside", [(), (".DS_Store",), ("notes.txt",)])
def test_a_class_needs_training_images_but_no_validation_images(
    root: Path, inside: tuple[str, ...]
) -> None:
    for split in ("train", "val"):
        folder = root / split / "green"
        shutil.rmtree(folder)
        folder.mkdir()
        for name in inside:
            (folder / name).touch()
    source = open_source(root, "val")
    assert dict(source.left_out)["empty class folders"] == 1
    assert sorted(set(source.labels.tolist())) == [0, 2]
    with pytest.raises(UserError, match="train/green: this class has no images to train on"):
        open_source(root, "train")


def test_a_scan_opens_no_image(root: Path) -> None:
    """ImageNet has 1.3 million files. The interpreter's own audit events count the opened ones."""
    program = """
import sys
opened = []
def hook(event, args):
    if event == "open" and str(args[0]).endswith(".jpg"):
        opened.append(args[0])
from rn50lib.data.source import open_source
sys.addaudithook(hook)
source = open_source(sys.argv[1], "train")
print(len(source), len(opened))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, root],
        capture_output=True, text=True, check=True, env=clean_environment(),
    )  # fmt: skip
    assert done.stdout.split() == ["18", "0"]


# -- other names ---------------------------------------------------------------------------------


def told_by_verify(root: Path) -> str:
    """Return the errors and warnings of verify in one text."""
    try:
        report = verify.verify([root], jobs=0, quiet=True)
    except UserError as error:
        return str(error)
    return "\n".join(problem.line() for problem in report.problems if problem.level != "note")


@pytest.mark.parametrize(
    ("split", "name", "names"),
    [("val", "valid", "train/, valid/"), ("train", "Train", "Train/, val/")],
)
def test_a_folder_with_a_different_name_is_named(
    root: Path, split: str, name: str, names: str
) -> None:
    (root / split).rename(root / name)
    found = f"expected class folders (train/CLASS/*.jpg, val/CLASS/*.jpg), found {names}"
    assert found in refused(root, split) and found in told_by_verify(root)


def test_counts_have_the_right_number() -> None:
    left_out = LeftOut()
    left_out.add(EMPTY, "red")
    assert str(left_out) == "1 empty class folder (red)"


def test_a_root_without_data_names_what_it_holds(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert refused(root.parent).endswith(f": pass {root}")
    monkeypatch.chdir(root / "val")
    for split in (root / "train", Path()):
        assert refused(split).endswith(f"this is one split of a data set: pass {root}")
    for split, name in (("train", "Train"), ("val", "Valid")):
        (root / split).rename(root / name)
    assert "found Train/, Valid/" in refused(root, "train")
    assert "found Train/, Valid/" in told_by_verify(root)


@pytest.mark.parametrize(("before", "after"), [("val.*", "valid"), ("train.*", "training")])
def test_record_files_with_different_names(root: Path, before: str, after: str) -> None:
    records = im2rec.ensure_records(root)
    for split in ("train", "val"):
        shutil.rmtree(root / split)
    split = before.partition(".")[0]
    for file in list(records.glob(before)):
        file.rename(records / f"{after}{file.suffix}")
    expected = "expected record files (train.rec, train.idx, val.rec, val.idx), found "
    for text in (refused(root, split, "recordio"), told_by_verify(records)):
        assert expected in text and f"{after}.idx" in text.partition(expected)[2]


def test_links_of_splits_and_record_files_that_point_to_nothing(root: Path) -> None:
    """A record file that is not fetched yet is no reason to train on the folders instead."""
    (root / "train").rename(root / "elsewhere")
    (root / "train").symlink_to("/nowhere/train")
    assert f"{root}/train is a link that points to nothing" in refused(root, "train")
    assert f"{root}/train is a link that points to nothing" in told_by_verify(root)
    (root / "train.rec").symlink_to("/nowhere/train.rec")
    assert f"{root}/train.rec: " in refused(root, "train")
    assert f"{root}/train.rec" in told_by_verify(root)


def test_names_of_files_do_not_reach_the_terminal_raw(
    root: Path, capsys: pytest.CaptureFixture
) -> None:
    (root / "train/red/\x1b]0;owned\x07ä.txt").touch()
    im2rec.main(["--list", "--recursive", str(root / "train"), str(root / "train")])
    assert r"(red/\x1b]0;owned\x07\xe4.txt)" in capsys.readouterr().out


KEYS = {
    "image_raw": {"image_raw": b"x", "label": 1},
    "image": {"image": b"x", "image/class/label": 1},
    "jpg": {"jpg": b"x", "cls": b"1"},
}


@pytest.mark.parametrize("keys", KEYS.values(), ids=KEYS)
def test_shards_with_other_keys(tmp_path: Path, keys: dict) -> None:
    (tmp_path / "train-00000-of-00001").write_bytes(frame_record(serialize_example(keys)))
    error = refused(tmp_path, "train")
    assert all(key in error for key in keys) and "`python -m data_prep.tfrecord`" in error
    assert "image/encoded" in error or "image/class/label" in error


@pytest.mark.parametrize(
    ("old", "new"),
    [("train", "train-{:05}-of-00002.tfrecord"), ("validation", "val-{:05}-of-00002")],
)
def test_shards_with_different_names(root: Path, old: str, new: str) -> None:
    shards = {"train": 2, "val": 2}
    folder = tfrecord.convert(root, root / "shards", shards=shards, jobs=0, quiet=True)
    for i in range(2):
        (folder / f"{old}-{i:05}-of-00002").rename(folder / new.format(i))
    expected = "expected TFRecord shards (train-00000-of-NNNNN, validation-00000-of-NNNNN), found "
    assert expected in refused(folder, "train" if old == "train" else "val")
    assert expected in told_by_verify(folder)


def test_compressed_shards_and_too_many(root: Path) -> None:
    folder = tfrecord.convert(root, root / "shards", shards={"train": 1}, jobs=0, quiet=True)
    shard = folder / "train-00000-of-00001"
    shutil.copy(shard, folder / "train-00003-of-00001")
    assert "train-00003-of-00001 does not belong to the set of 1;" in refused(folder, "train")
    (folder / "train-00003-of-00001").unlink()
    subprocess.run(["gzip", shard], check=True)
    error = refused(folder, "train")
    assert "train-00000-of-00001.gz" in error
