"""A number means the same class in folders, records, shards, `classes.txt` and checkpoints,
or nothing is trained, scored or predicted.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open

from data_prep import im2rec, tfrecord, verify
from data_prep.recordwriter import Writer, pack_header
from rn50lib import checkpoint
from rn50lib.data.classes import Classes, kept_rows
from rn50lib.errors import UserError
from tests.support import TINY, Ended, strict_json, write_photo

Run = Callable[..., Ended]
NAMES = ("apple", "pear", "plum")


def photos(root: Path, *names: str) -> Path:
    """Make 8 training and 4 validation images for each class."""
    for split, images in (("train", 8), ("val", 4)):
        for c, name in enumerate(names):
            for i in range(images):
                write_photo(root / split / name / f"{i}.jpg", 8 * c + i, 32 + images, 32)
    return root


def rename(root: Path, **names: str) -> None:
    """Rename class folders: OLD=NEW."""
    for old, new in names.items():
        for split in ("train", "val"):
            (root / split / old).rename(root / split / f".{new}")
    for new in names.values():
        for split in ("train", "val"):
            (root / split / f".{new}").rename(root / split / new)


def write_records(path: Path, labels: list[int], image: Path) -> None:
    """Pack an image with these labels, as a foreign program would: no list, no class names."""
    with Writer(path) as writer:
        for key, label in enumerate(labels):
            writer.write(key, pack_header(label, key, image.read_bytes()))


# -- a data set ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Class folders, records and shards of the same images."""
    root = photos(tmp_path_factory.mktemp("packed"), *NAMES)
    im2rec.ensure_records(root)
    tfrecord.ensure_tfrecord(root)
    return root


def swap_lines(file: Path, *words: tuple[str, str]) -> None:
    """Replace words in a file, all at once."""
    text = file.read_text()
    for i, (old, _) in enumerate(words):
        text = text.replace(old, f"<{i}>")
    for i, (_, new) in enumerate(words):
        text = text.replace(f"<{i}>", new)
    file.write_text(text)


STALE: dict[str, tuple[str, Callable[[Path], Any], tuple[str, ...]]] = {
    "a class is added": (
        "auto",
        lambda root: photos(root, "amber"),
        ("{root}/records/classes.txt (3 classes): none", "{root}/train (4 classes): 'amber'"),
    ),
    "a class is renamed": (
        "auto",
        lambda root: rename(root, pear="zucchini"),
        ("{root}/records/classes.txt (3 classes): 'pear'", "{root}/train (3 classes): 'zucchini'"),
    ),
    "shards of other folders": (
        "tfrecord",
        lambda root: rename(root, apple="quince"),
        ("{root}/tfrecord/classes.txt (3 classes): 'apple'", "{root}/train (3 classes): 'quince'"),
    ),
    "names in another order": (
        "recordio",
        lambda root: swap_lines(root / "records/classes.txt", ("apple", "plum"), ("plum", "apple")),
        ("class 0 is 'plum' in {root}/records/classes.txt", "'apple' in {root}/train"),
    ),
    "classes.txt of something else": (
        "files",
        lambda root: (root / "classes.txt").write_text("cat\ndog\nowl\n"),
        ("in {root}/classes.txt (3 classes): 'cat', 'dog'", "{root}/train (3 classes): 'apple', "),
    ),
    "train and val differ": (
        "files",
        lambda root: shutil.rmtree(root / "val" / "plum"),
        ("{root}/train (3 classes): 'plum'", "{root}/val (2 classes): none", "it may be empty"),
    ),
}


@pytest.mark.parametrize("case", STALE)
def test_statements_that_disagree_are_one_error(
    case: str, packed: Path, tmp_path: Path, rn50: Run
) -> None:
    data_format, change, words = STALE[case]
    root = tmp_path / "set"
    shutil.copytree(packed, root)
    change(root)
    error = rn50("run", "--data-root", root, "--data-format", data_format, *TINY, "--dry-run").error
    assert all(text.format(root=root) in error for text in words), error
    report = verify.verify([root], jobs=0, quiet=True)
    assert not report.good and "class-maps" in {problem.kind for problem in report.problems}


def test_only_names_that_occur_once_keep_their_rows() -> None:
    old, new = Classes(("x", "x", "y", "z"), "old"), Classes(("y", "x", "z", "z"), "new")
    assert kept_rows(old, new) == {0: 2}
    assert not Classes(("x", None), "old").known


@pytest.mark.needs("torch")
def test_labels_without_names_are_compared_by_their_number(tmp_path: Path, rn50: Run) -> None:
    image = tmp_path / "a.jpg"
    write_photo(image, 3)
    root = tmp_path / "foreign"
    root.mkdir()
    write_records(root / "train", [0, 1, 2] * 8, image)
    write_records(root / "val", [0, 1] * 4, image)
    run = ("train", "--data-root", root, *TINY, "-e", "1", "--run-dir", "r")
    error = rn50(*run).error
    assert f"{root}/train.rec (3 classes)" in error and f"{root}/val.rec (2 classes)" in error
    (root / "classes.txt").write_text("a\nb\n")
    assert f"{root}/train.rec (3 classes)" in rn50(*run).error
    (root / "classes.txt").write_text("2\tc\n0\ta\n1\tb\n")
    ended = rn50(*run)
    assert ended.status == 0, ended.err
    assert strict_json(Path("r/report.json"))["env"]["classes"] == {
        "names": ["a", "b", "c"], "count": 3, "origin": f"{root}/classes.txt",
    }  # fmt: skip
    (root / "classes.txt").write_text("1\ta\n2\tb\n3\tc\n")
    assert f"{root}/classes.txt: the class numbers should be 0 to 2" in rn50(*run).error


def test_records_of_an_earlier_list_are_named(packed: Path, tmp_path: Path, rn50: Run) -> None:
    root = tmp_path / "records"
    shutil.copytree(packed / "records", root)
    for file in (root / "train.lst", root / "val.lst", root / "classes.txt"):
        file.unlink()
    images = photos(tmp_path / "new", "amber", *NAMES)
    for split in ("train", "val"):  # and then pack only one of them
        im2rec.main(["--list", "--recursive", str(root / split), str(images / split)])
    im2rec.main(["--pass-through", str(root / "train"), str(images / "train")])
    error = rn50("train", "--data-root", root, *TINY, "-e", "1").error
    assert f"{root}/val.rec was not packed from {root}/val.lst" in error


# -- im2rec --------------------------------------------------------------------------------------


def refused(*arguments: str) -> str:
    """Return the error of im2rec."""
    with pytest.raises(UserError) as caught:
        im2rec.main([*arguments])
    return str(caught.value)


def test_lists_of_two_splits_must_have_the_same_classes(
    tmp_path: Path,
) -> None:
    root = photos(tmp_path / "set", "a", "b", "c")

    def command(split: str) -> list[str]:
        return ["--list", "--recursive", str(root / "records" / split), str(root / split)]

    for image in (root / "val" / "a").iterdir():
        image.unlink()
    error = refused(*command("val"))
    assert f"{root}/val/a: this class folder holds no images" in error
    assert not (root / "records").exists()
    im2rec.main(command("train"))
    (root / "val" / "a").rmdir()
    error = refused(*command("val"))
    assert f"only in {root}/val (2 classes): none" in error
    assert f"only in {root}/records/train.lst (3 classes): 'a'" in error
    assert not (root / "records/val.lst").exists()
    shutil.rmtree(root / "train" / "a")  # what the error says: the same folders, both lists again
    for name in ("classes.txt", "train.lst"):
        assert f"{root}/records/{name}" in error
        (root / "records" / name).unlink()
    for split in ("train", "val"):
        im2rec.main(command(split))
    assert (root / "records/classes.txt").read_text() == "0\tb\t\n1\tc\t\n"


def test_classes_are_written_once_with_their_words(
    tmp_path: Path,
) -> None:
    root = photos(tmp_path / "set", "n01", os.fsdecode(b"n\xff2"))
    (root / "classes.txt").write_bytes(b"0\tn01\tfish, big\n1\tn\xff2\tbird\n")
    im2rec.ensure_records(root)
    written = root / "records" / "classes.txt"
    assert written.read_bytes() == (root / "classes.txt").read_bytes()
    written.write_text("0\tbird\t\n1\tfish\t\n")
    error = refused("--pass-through", str(root / "records/train"), str(root / "train"))
    assert f"only in {root}/records/train.lst (2 classes): 'n01'" in error
    assert f"only in {written} (2 classes): 'bird', 'fish'" in error
    assert written.read_text() == "0\tbird\t\n1\tfish\t\n"


# -- a checkpoint --------------------------------------------------------------------------------

torch = pytest.mark.needs("torch")


@pytest.fixture(scope="module")
def fruit(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the data set `set` and the checkpoint m-0001 that was trained on it."""
    from rn50 import cli

    folder = tmp_path_factory.mktemp("fruit")
    root = photos(folder / "set", *NAMES)
    argv = ["train", "--data-root", str(root), *TINY, "-e", "1", "--report", str(folder / "r.json")]
    assert cli.main([*argv, "--model-prefix", str(folder / "m")]) == 0
    return folder


@torch
def test_a_checkpoint_names_its_predictions_without_the_data(
    fruit: Path, tmp_path: Path, rn50: Run
) -> None:
    stated = {"names": list(NAMES), "count": 3, "origin": f"{fruit}/set/train"}
    with safe_open(fruit / "m-0001.safetensors", "numpy") as file:
        metadata = file.metadata()
    assert json.loads(metadata["classes"]) == stated
    assert os.path.isabs(json.loads(metadata["experiment"])["data_root"])
    image = tmp_path / "a.jpg"
    write_photo(image, 3)
    (fruit / "set").rename(fruit / "away")
    try:
        ended = rn50("predict", fruit / "m", "1", image, "-o", "o.npz")
        shown = rn50("predict", fruit / "m", "1", image)
    finally:
        (fruit / "away").rename(fruit / "set")
    assert ended.status == 0, ended.err
    with np.load("o.npz") as arrays:
        assert arrays["classes"].tolist() == list(NAMES)
        best = NAMES[arrays["probabilities"][0].argmax()]
    assert shown.out.startswith(f"{image}: {best} ")


@torch
@pytest.mark.slow
def test_a_checkpoint_is_not_used_with_other_classes(
    fruit: Path, tmp_path: Path, rn50: Run
) -> None:
    root = tmp_path / "set"
    shutil.copytree(fruit / "set", root)
    for file in fruit.glob("m-*"):
        shutil.copy(file, tmp_path)
    found = checkpoint.load("m", 1)
    checkpoint.save("m", replace(found, config={**found.config, "data_root": str(root)}))
    resume = ("--data-root", root, *TINY, "-e", "2", "--model-prefix", "m")
    uses = {
        "resume": ("train", *resume, "--resume"),
        "load": ("train", *resume, "--load-epoch", "1"),
        "score": ("score", "m", "1"),
        "predict": ("predict", "m", "1", "--split", "val"),
    }
    rename(root, plum="cherry")  # as many classes, other names and order
    for use in uses.values():
        ended = rn50(*use)
        error = ended.err.splitlines()[-1]
        assert ended.status == 2 and error.startswith("error: ")
        assert "only in m-0001.safetensors (3 classes): 'plum'" in error, use
        assert f"only in {root}/" in error and "(3 classes): 'cherry'" in error, use
    assert not Path("m-0002.safetensors").exists()
    rename(root, cherry="plum")
    assert rn50(*uses["predict"], "-o", "o.npz").status == 0


@torch
def test_init_from_keeps_the_rows_of_classes_with_the_same_name(
    fruit: Path, tmp_path: Path, rn50: Run
) -> None:
    root = photos(tmp_path / "set", "banana", "cherry", "pear", "plum")
    ended = rn50("train", "--data-root", root, *TINY, "-e", "1", "--lr", "0",
                 "--init-from", fruit / "m", "--model-prefix", "n")  # fmt: skip
    assert ended.status == 0, ended.err
    assert "kept by name: pear, plum; new: banana, cherry" in ended.err
    before, after = checkpoint.load(fruit / "m", 1).arrays, checkpoint.load("n", 1).arrays
    for name in ("fc.weight", "fc.bias"):
        assert np.array_equal(after[name][[2, 3]], before[name][[1, 2]])
    assert not (after["fc.weight"][:2, None] == before["fc.weight"]).all(axis=2).any()


@torch
def test_a_checkpoint_without_names_says_so(fruit: Path, tmp_path: Path, rn50: Run) -> None:
    shutil.copy(fruit / "m-symbol.json", "m-symbol.json")
    checkpoint.save("m", replace(checkpoint.load(fruit / "m", 1), classes=None))
    image = tmp_path / "a.jpg"
    write_photo(image, 3)
    ended = rn50("predict", "m", "1", image)
    assert ended.status == 0 and "m-0001.safetensors has no class names" in ended.err
    assert {word for word in ended.out.split() if word in "012"} == {"0", "1", "2"}
    named = rn50("predict", "m", "1", image, "--data-root", fruit / "set")
    assert all(name in named.out for name in NAMES)
    four = photos(tmp_path / "four", *NAMES, "quince")
    error = rn50("predict", "m", "1", image, "--data-root", four).error
    assert "m-0001.safetensors (3 classes)" in error and f"{four}/train (4 classes)" in error
    error = rn50("score", "m", "1", "--data-root", four).error
    assert "has 4 classes, and the network 3: use the data set of the checkpoint" in error
