"""Outputs that appear together or not at all, also when the process is killed while it renames
them.
"""

import errno
import os
import signal
import subprocess
import sys

import pytest

from data_prep.output_set import OutputSet
from rn50lib.errors import UserError
from rn50lib.records.renaming import finish_renaming

NAMES = ("a.rec", "a.idx")


def write(folder, text, **settings):
    with OutputSet(*(folder / name for name in NAMES), **settings) as outputs:
        for file in outputs.files:
            file.write(text.encode())


def read(folder):
    return [(folder / name).read_text() for name in NAMES]


@pytest.mark.parametrize("fsync", [True, False])
def test_new_files_replace_old_ones(tmp_path, fsync):
    write(tmp_path, "a long old text", fsync=fsync)
    write(tmp_path, "new", fsync=fsync)
    assert read(tmp_path) == ["new", "new"]
    assert sorted(os.listdir(tmp_path)) == sorted(NAMES)


def test_an_error_leaves_the_old_files(tmp_path):
    write(tmp_path, "old")
    with pytest.raises(KeyboardInterrupt), OutputSet(*(tmp_path / n for n in NAMES)) as outputs:
        outputs.files[0].write(b"new")
        raise KeyboardInterrupt
    assert read(tmp_path) == ["old", "old"]
    assert sorted(os.listdir(tmp_path)) == sorted(NAMES)


def test_leftovers_of_a_killed_process_do_not_get_in(tmp_path):
    (tmp_path / "a.rec.part").write_text("what a killed process had written so far, and it is long")
    write(tmp_path, "new")
    assert read(tmp_path) == ["new", "new"]


# A child that writes "new" over "old" and is signalled at its n-th call of one of these functions:
# killed before it (the call is not made), or terminated after it, which raises SystemExit.
CHILD = """
import fcntl, os, signal, sys
sys.path.insert(0, sys.argv[3])
from pathlib import Path
import data_prep.output_set as publish

left, kill = int(sys.argv[2]), sys.argv[4] == "SIGKILL"
signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
def signalled(function):
    def call(*args, **kwargs):
        global left
        left -= 1
        if kill and left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        result = function(*args, **kwargs)
        if left == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        return result
    return call

for name in ("open", "fstat", "replace", "fsync", "unlink"):
    setattr(os, name, signalled(getattr(os, name)))
fcntl.flock = signalled(fcntl.flock)
Path.unlink = signalled(Path.unlink)
Path.write_text = signalled(Path.write_text)
folder = Path(sys.argv[1])
with publish.OutputSet(folder / "a.rec", folder / "a.idx") as outputs:
    for file in outputs.files:
        file.write(b"new")
"""


def signalled(folder, step, repository, signal_name):
    """The exit status of such a child in a new folder with old files."""
    folder.mkdir()
    write(folder, "old")
    child = [sys.executable, "-c", CHILD, str(folder), str(step), str(repository), signal_name]
    return subprocess.run(child, timeout=60).returncode


@pytest.mark.slow
def test_killed_at_every_step(tmp_path, repository):
    states = []
    for step in range(1, 60):
        folder = tmp_path / str(step)
        code = signalled(folder, step, repository, "SIGKILL")
        finish_renaming(folder / "a.rec")
        states.append(read(folder))
        assert states[-1] in (["old", "old"], ["new", "new"])
        write(folder, "again")
        assert read(folder) == ["again", "again"]
        assert sorted(os.listdir(folder)) == sorted(NAMES)
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert code == 0
    assert ["old", "old"] in states
    assert states[-2:] == [["new", "new"]] * 2


@pytest.mark.slow
def test_terminated_at_every_step(tmp_path, repository):
    """Whole and without leftovers at once: nobody has to finish or to clear up."""
    states = []
    for step in range(1, 60):
        folder = tmp_path / str(step)
        code = signalled(folder, step, repository, "SIGTERM")
        assert sorted(os.listdir(folder)) == sorted(NAMES), step
        states.append(read(folder))
        if code == 0:
            break
        assert code == 143
    assert code == 0
    new = states.index(["new", "new"])
    assert 5 < new < len(states)
    assert states == [["old", "old"]] * new + [["new", "new"]] * (len(states) - new)


def test_one_writer_at_a_time(tmp_path):
    with OutputSet(*(tmp_path / n for n in NAMES)) as outputs:
        with pytest.raises(UserError, match=r"a\.rec: another process is writing this file"):
            write(tmp_path, "second")
        for file in outputs.files:
            file.write(b"first")
    assert read(tmp_path) == ["first", "first"]


def test_full_disk_is_one_line_and_loses_nothing(tmp_path):
    write(tmp_path, "old")
    with (
        pytest.raises(UserError, match=r"the disk is full, so a\.rec was not written") as caught,
        OutputSet(*(tmp_path / n for n in NAMES)),
    ):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "\n" not in str(caught.value)
    assert read(tmp_path) == ["old", "old"]


def test_no_such_folder(tmp_path):
    with pytest.raises(UserError, match="nowhere: there is no such folder to write a.rec to"):
        write(tmp_path / "nowhere", "x")
