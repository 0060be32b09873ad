"""Output folders that appear whole, also when the process is killed while it puts them in place."""

import os
import signal
import subprocess
import sys

import pytest

from data_prep.output_folder import OutputFolder, finish_swap
from rn50lib.errors import UserError


def write(path, text, stamp="a"):
    with OutputFolder(path, stamp) as folder:
        (folder.part / "data").write_text(text)


def test_folder_is_replaced_as_a_whole(tmp_path):
    out = tmp_path / "out"
    write(out, "old")
    (out / "more").write_text("only in the old one")
    write(out, "new")
    assert (out / "data").read_text() == "new"
    assert not (out / "more").exists()
    assert os.listdir(tmp_path) == ["out"]


def test_a_failed_run_is_resumed_by_one_from_the_same(tmp_path):
    out = tmp_path / "out"
    write(out, "old")
    with pytest.raises(ZeroDivisionError), OutputFolder(out, "a") as folder:
        assert not folder.resumed
        (folder.part / "first half").write_text("done")
        raise ZeroDivisionError
    assert (out / "data").read_text() == "old"
    with OutputFolder(out, "a") as folder:
        assert folder.resumed
        assert (folder.part / "first half").read_text() == "done"
    assert (out / "first half").exists()


def test_a_failed_run_is_not_resumed_by_one_from_something_else(tmp_path):
    out = tmp_path / "out"
    with pytest.raises(ZeroDivisionError), OutputFolder(out, "a") as folder:
        (folder.part / "first half").write_text("done")
        (folder.part / "folder").mkdir()
        raise ZeroDivisionError
    with OutputFolder(out, "b") as folder:
        assert not folder.resumed
    assert sorted(os.listdir(out)) == [".complete", ".made-from"]


def test_is_complete(tmp_path):
    out = tmp_path / "out"
    assert not OutputFolder(out, "a").is_complete()
    write(out, "x")
    assert OutputFolder(out, "a").is_complete()
    assert not OutputFolder(out, "b").is_complete()


def test_one_writer_at_a_time(tmp_path):
    with OutputFolder(tmp_path / "out", "a") as folder:
        with pytest.raises(UserError, match="another process is writing this folder"):
            write(tmp_path / "out", "second")
        (folder.part / "data").write_text("first")
    assert (tmp_path / "out" / "data").read_text() == "first"


CHILD = """
import os, signal, sys
sys.path.insert(0, sys.argv[3])
from data_prep import output_folder as swap

left = int(sys.argv[2])
def killing(function):
    def call(*args, **kwargs):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*args, **kwargs)
    return call

for name in ("replace", "rename", "fsync", "mkdir", "unlink", "rmdir"):
    setattr(os, name, killing(getattr(os, name)))
with swap.OutputFolder(sys.argv[1], "b") as folder:
    (folder.part / "data").write_text("new")
"""


@pytest.mark.slow
def test_killed_at_every_step(tmp_path, repository):
    states = []
    for step in range(1, 60):
        out = tmp_path / str(step)
        write(out, "old")
        child = [sys.executable, "-c", CHILD, str(out), str(step), str(repository)]
        code = subprocess.run(child, timeout=60).returncode
        finish_swap(out)
        states.append((out / "data").read_text())
        assert states[-1] in ("old", "new")
        write(out, "again", "b")
        assert (out / "data").read_text() == "again"
        assert not (tmp_path / f"{step}.part").exists()
        assert not (tmp_path / f"{step}.old").exists()
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert code == 0
    assert "old" in states
    assert states[-2:] == ["new", "new"]
