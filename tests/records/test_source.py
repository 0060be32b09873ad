"""A data root opened: both layouts, the same labels from both, and one clear line where it is
wrong.
"""

import numpy as np
import pytest

from data_prep import im2rec
from rn50lib.data.source import open_source
from tests.records.conftest import refused

CLASSES = ("Zebra", "apple", "stop sign", "ähre")  # in the order of code points


@pytest.fixture
def root(tmp_path):
    """Class folders with 3, 4, 5 and 6 images in train and one fewer in val; record files too."""
    for split, fewer in (("train", 0), ("val", 1)):
        for label, name in enumerate(CLASSES):
            folder = tmp_path / "set" / split / name
            folder.mkdir(parents=True)
            for i in range(3 + label - fewer):
                ending = ("jpg", "JPEG", "png")[i % 3]
                (folder / f"{i} {split}.{ending}").write_bytes(f"{split} {name} {i}".encode() * 100)
            (folder / "notes.txt").write_text("no image")
    return tmp_path / "set"


@pytest.fixture
def packed(root):
    im2rec.ensure_records(root)
    return root


def test_files(root):
    source = open_source(root, "train", "files")
    assert (source.format, source.root, source.path) == ("files", root, root / "train")
    assert source.classes.names == CLASSES
    assert len(source) == 18
    assert source.labels.dtype == np.int32
    assert source.labels.tolist() == [0] * 3 + [1] * 4 + [2] * 5 + [3] * 6
    assert source.name(17) == str(root / "train/ähre/5 train.png")
    assert source.read(17) == "train ähre 5".encode() * 100


def test_records_hold_the_same_images_with_the_same_labels(packed):
    for split in ("train", "val"):
        files = open_source(packed, split, "files")
        records = open_source(packed, split, "recordio")
        assert (records.format, records.path) == ("recordio", packed / f"records/{split}.rec")
        assert records.labels.dtype == np.int32
        assert {(int(k), records.read(i)) for i, k in enumerate(records.labels)} == {
            (int(k), files.read(i)) for i, k in enumerate(files.labels)
        }
        assert len(records) == len(files)


@pytest.mark.parametrize(
    "text",
    [
        "0\tZebra\ta striped horse\n1\tapple\tfruit\n2\tstop sign\t\n3\tähre\tear of corn\n",
        "index\tid\twords\n3\tähre\tx\n2\tstop sign\tx\n1\tapple\tx\n0\tZebra\tx\n",
        "Zebra\napple\n\nstop sign\nähre\n",
    ],
)
def test_class_names(packed, text):
    for path in [packed / "records/classes.txt", *(packed / "records").glob("*.lst")]:
        path.unlink()
    (packed / "classes.txt").write_text(text)
    assert open_source(packed, "train").classes.names == CLASSES
    assert open_source(packed / "records", "val").classes.names == CLASSES


def test_class_names_in_utf16_are_refused(packed):
    names = packed / "records/classes.txt"
    names.write_text("Zebra\napple\nstop sign\nähre\n", encoding="utf-16")
    assert f"{names}: this is not UTF-8" in refused(packed, data_format="recordio")


# -- what is wrong, and how it is said -----------------------------------------------------------


def test_nested_class_folders(root):
    (root / "train/apple/apple").mkdir()
    (root / "train/apple/apple/1.jpg").write_bytes(b"x")
    assert f"{root}/train/apple/apple: this is a folder inside" in refused(root)


def test_a_data_root_that_is_no_folder(tmp_path):
    (tmp_path / "data.zip").touch()
    ends = ": pass the folder that holds the data"
    for root, problem in (
        (tmp_path / "data.zip", "a file"),
        ("s3://bucket/data", "missing"),  # which no program of ours can draw
    ):
        assert refused(root) == f"--data-root {root} is {problem}{ends}"
    root = tmp_path / "nowhere"
    assert refused(root) == f"--data-root {root} is missing{ends}"
    root = tmp_path / "roadsigns"  # the built-in data
    assert refused(root).startswith(f"--data-root {root} is missing{ends}; `python -m data_prep")


def test_names_that_look_the_same(root):
    for split, name in (("train", "caf\u00e9"), ("val", "cafe\u0301")):
        (root / split / "apple").rename(root / split / name)
    error = refused(root)
    assert r"'caf\xe9'" in error and r"'cafe\u0301'" in error


def test_missing_record_file_says_how_to_make_it(root):
    message = refused(root, "train", "recordio")
    prefix = root / "records" / "train"
    assert message.startswith(f"{prefix}.rec: this record file does not exist")
    assert f"`python -m data_prep.im2rec --list --recursive {prefix} {root / 'train'}`" in message
    assert f"`python -m data_prep.im2rec --pass-through {prefix} {root / 'train'}`" in message
    prefix.parent.mkdir(exist_ok=True)
    (prefix.parent / "val.rec").touch()  # a data root of records is next to the folders
    message = refused(prefix.parent, "train", "recordio")
    assert f"--pass-through {prefix} {root / 'train'}`" in message
