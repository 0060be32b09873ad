"""Files that DALI reads are checked for damage first: once, by one of several ranks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from data_prep.recordwriter import Writer
from data_prep.tfrecordwriter import format_index, frame_record
from rn50lib.data.checkonce import check_once
from rn50lib.data.framing import RecordError, pack_header
from rn50lib.data.tfrecord import index_path
from tests.conftest import clean_environment
from tests.support import bound_by_permissions


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Path]]:
    """Three shards and a record file, each with its index; the cache is in tmp_path, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = []
    for number in range(3):
        path = tmp_path / "set" / f"train-{number:05}-of-00003"
        index_path(path).parent.mkdir(parents=True, exist_ok=True)
        records = [frame_record(os.urandom(200 + number)) for _ in range(5)]
        path.write_bytes(b"".join(records))
        size = len(records[0])
        index_path(path).write_bytes(format_index([(size * i, size) for i in range(5)]))
        found.append((path, index_path(path)))
    with Writer(tmp_path / "set" / "train") as writer:
        for key in range(5):
            writer.write(key, pack_header(0, key, os.urandom(300)))
    return [*found, (tmp_path / "set/train.rec", tmp_path / "set/train.idx")]


def notes(files: list[tuple[Path, Path]]) -> list[Path]:
    return [index.with_suffix(".checked") for _, index in files]


def change(path: Path) -> None:
    with open(path, "r+b") as file:
        file.seek(700)
        byte = file.read(1)
        file.seek(700)
        file.write(bytes([byte[0] ^ 1]))


@pytest.mark.parametrize("number", range(4))
def test_a_changed_byte_is_found_and_named(files: list[tuple[Path, Path]], number: int) -> None:
    check_once(files, 0, 1)
    path = files[number][0]
    change(path)
    for _ in range(2):  # no result is kept of a damaged file
        with pytest.raises(RecordError, match=f"{path}: .*checksum") as caught:
            check_once(files, 0, 1)
        assert caught.value.path == str(path)
    change(path)
    check_once(files, 0, 1)


def test_it_costs_once(files: list[tuple[Path, Path]]) -> None:
    """A change that leaves size, time and inode as they were shows that nothing is read again."""
    check_once(files, 0, 1)
    assert all(note.is_file() for note in notes(files))
    for path, _ in files:
        before = path.stat()
        change(path)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    check_once(files, 0, 1)
    for path, _ in files:
        copied = path.with_name("copy")
        copied.write_bytes(path.read_bytes())
        os.utime(copied, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
        os.replace(copied, path)
        with pytest.raises(RecordError):
            check_once(files, 0, 1)
        change(path)


def test_record_files_without_checksums_are_left_out(files: list[tuple[Path, Path]]) -> None:
    path, index = files[3]
    path.with_suffix(".crc").unlink()
    change(path)
    check_once(files, 0, 1)
    assert not index.with_suffix(".checked").exists()


RANK = """
import sys
from pathlib import Path
from rn50lib.data.checkonce import check_once
root = Path(sys.argv[1])
files = [(p, p.parent / "index" / f"{p.name}.idx") for p in sorted(root.glob("train-*"))]
check_once([*files, (root / "train.rec", root / "train.idx")], int(sys.argv[2]), 3)
"""


@pytest.mark.slow
@pytest.mark.parametrize("writable", [True, False])
def test_several_ranks_at_once(files: list[tuple[Path, Path]], writable: bool) -> None:
    """In a folder that is only to be read, the results go to the user's cache."""
    root, cache = files[0][0].parent, files[0][0].parent.parent / "cache"
    before = sorted(root.rglob("*"))
    for folder in (root, root / "index"):
        folder.chmod(0o777 if writable else 0o555)
    env = clean_environment() | {"XDG_CACHE_HOME": str(cache)}
    command = [*bound_by_permissions(), sys.executable, "-c", RANK, str(root)]
    ranks = [subprocess.Popen([*command, str(rank)], env=env) for rank in range(3)]
    assert [rank.wait(120) for rank in ranks] == [0, 0, 0]
    kept = notes(files) if writable else sorted(cache.rglob("kept/*"))
    assert len(kept) == 4 and all(note.stat().st_size for note in kept)
    assert sorted(root.rglob("*")) == sorted([*before, *(notes(files) if writable else [])])
    for folder in (root, root / "index"):
        folder.chmod(0o777)
