"""Labels of large record files: read once, and again if the files change."""

from __future__ import annotations

import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from data_prep.recordwriter import Writer, pack_header
from data_prep.tfrecordwriter import format_index, serialize_example, write_records
from rn50lib.data import recordfile
from rn50lib.data.source import open_source
from rn50lib.data.tfrecord import index_path, shard_name

SHARDS = 3


def write(root: Path, form: str, labels: list[int]) -> None:
    """Write a train split whose images are the text of their labels."""
    if form == "recordio":
        (root / "records").mkdir(exist_ok=True)
        with Writer(root / "records" / "train") as writer:
            for key, label in enumerate(labels):
                writer.write(key, pack_header(label, key, b"%d" % label))
        return
    for number in range(SHARDS):
        path = root / "tfrecord" / shard_name("train", number, SHARDS)
        index_path(path).parent.mkdir(parents=True, exist_ok=True)
        with open(path, "wb") as file:
            entries = write_records(file, (
                serialize_example({
                    "image/encoded": b"%d" % label,
                    "image/class/label": label + 1,
                })
                for label in labels[number::SHARDS]
            ))  # fmt: skip
        index_path(path).write_bytes(format_index(entries))


def contents(root: Path, form: str) -> list[tuple[int, bytes]]:
    opened = open_source(root, "train", form)
    return [(int(label), opened.read(i)) for i, label in enumerate(opened.labels)]


def note(root: Path) -> Path:
    (found,) = root.rglob("train*.labels")
    return found


@pytest.fixture(autouse=True)
def all_files_are_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordfile, "LARGE", 1)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize("form", ["recordio", "tfrecord"])
def test_labels_are_cached_until_a_file_changes(tmp_path: Path, form: str) -> None:
    root = tmp_path / "set"
    for labels in ([5, 300, 0, 7, 7, 2, 70_000], [1, 1, 0, 3]):
        root.mkdir(exist_ok=True)
        write(root, form, labels)
        wanted = sorted((label, b"%d" % label) for label in labels)
        assert sorted(contents(root, form)) == wanted
        assert note(root).stat().st_size > 0
        written = note(root).stat().st_mtime_ns
        assert sorted(open_source(root, "train", form).labels.tolist()) == sorted(labels)
        assert note(root).stat().st_mtime_ns == written

    with zipfile.ZipFile(note(root), "w") as file:
        shape = b"{'descr': '<f8', 'fortran_order': False, 'shape': (9999999999999,), }\n"
        file.writestr("state.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(shape)) + shape)
    for damaged in (b"cut short while it was copied", b"", note(root).read_bytes()):
        note(root).write_bytes(damaged)
        assert sorted(contents(root, form)) == wanted
        assert note(root).read_bytes() != damaged


@pytest.mark.parametrize("form", ["recordio", "tfrecord"])
def test_another_pack_of_the_same_size_may_be_older(tmp_path: Path, form: str) -> None:
    """As `rsync -a` leaves it."""
    for labels in ([5, 3, 0, 7], [0, 7, 5, 3]):
        write(tmp_path, form, labels)
        for path in tmp_path.glob("*/train*"):
            if path.suffix != ".labels":
                os.utime(path, (1e9 - 1000 * labels[0],) * 2)
        assert sorted(contents(tmp_path, form)) == sorted((n, b"%d" % n) for n in labels)
        note(tmp_path)


def test_labels_of_a_pack_that_is_replaced_meanwhile_are_not_kept(tmp_path: Path) -> None:
    pack, other = tmp_path / "pack", tmp_path / "other"

    def first_byte() -> dict[str, np.ndarray]:
        found = {"labels": np.array([pack.read_bytes()[0]])}
        if other.exists():
            other.replace(pack)
        return found

    for path, byte in ((pack, b"A"), (other, b"B")):
        path.write_bytes(byte * 100)
    for byte in b"AB":
        found = recordfile.disk_cache(tmp_path / "cache", [pack], first_byte)
        assert found["labels"] == [byte]


def test_records_and_shards_in_one_folder_have_separate_caches(tmp_path: Path) -> None:
    labels = {"recordio": [5, 300, 0], "tfrecord": [1, 1, 0, 3]}
    for form, its in labels.items():
        write(tmp_path, form, its)
    for path in [*tmp_path.glob("records/*"), *tmp_path.glob("tfrecord/*")]:
        path.rename(tmp_path / path.name)
    seen = []
    for _ in range(2):
        for form, its in labels.items():
            assert sorted(k for k, _ in contents(tmp_path, form)) == sorted(its)
        seen.append({path: path.stat().st_mtime_ns for path in tmp_path.glob("*.labels")})
    assert seen[0] == seen[1] and len(seen[0]) == 2


@pytest.mark.parametrize("form", ["recordio", "tfrecord"])
def test_read_only_folder_uses_the_cache_folder(tmp_path: Path, form: str) -> None:
    root = tmp_path / "set"
    root.mkdir()
    write(root, form, [3, 1, 2])
    open_source(root, "train", form)
    there = note(root)
    there.unlink()
    there.mkdir()  # nothing can be written over a folder, not by root either
    for _ in range(2):
        assert sorted(contents(root, form)) == [(1, b"1"), (2, b"2"), (3, b"3")]
    assert len(list((tmp_path / "cache").rglob("kept/*"))) == 1
