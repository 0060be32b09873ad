"""Outputs that appear whole, also when the process is killed while it puts them in place."""

import errno
import os
import signal
import subprocess
import sys

import pytest

from data_prep.output import OutputFolder, finish_swap, new_files
from rn50lib.data.source import open_source
from rn50lib.errors import UserError
from rn50lib.files import check_folder


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


def test_failed_run_is_resumed_from_the_same_inputs_only(tmp_path):
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
    assert OutputFolder(out, "a").is_complete() and not OutputFolder(out, "b").is_complete()
    with pytest.raises(ZeroDivisionError), OutputFolder(out, "a") as folder:
        (folder.part / "folder").mkdir()
        (folder.part / "data").write_text("half")
        raise ZeroDivisionError
    with OutputFolder(out, "b") as folder:
        assert not folder.resumed
    assert os.listdir(out) == [".complete"]


def test_files_are_on_the_disk_before_the_folder_is_complete(tmp_path, monkeypatch):
    """Else a power cut may leave a complete folder with empty files."""
    part, synced = tmp_path / "out.part", []
    monkeypatch.setattr(os, "sync", lambda: synced.append(sorted(os.listdir(part))))
    write(tmp_path / "out", "new")
    assert synced == [[".made-from", "data"]]


def test_a_link_that_leads_nowhere_is_no_place_for_data(tmp_path):
    link = tmp_path / "out"
    link.symlink_to(tmp_path / "disk" / "out")  # which is not mounted
    with pytest.raises(
        UserError, match="out: this link leads to .*/disk/out, which is missing: mo"
    ):
        OutputFolder(link, "a")
    with pytest.raises(UserError, match="out/a cannot be written .*out is a link to .*, which is"):
        check_folder(link, f"{link}/a")
    (tmp_path / "train").mkdir()
    with pytest.raises(UserError, match="records is a link that points to nothing; "):
        (tmp_path / "records").symlink_to(tmp_path / "disk")
        open_source(tmp_path, "train")


def test_one_writer_at_a_time(tmp_path):
    with OutputFolder(tmp_path / "out", "a") as folder:
        with pytest.raises(UserError, match="another process is writing this folder"):
            write(tmp_path / "out", "second")
        (folder.part / "data").write_text("first")
    assert (tmp_path / "out" / "data").read_text() == "first"


WAITS = """
import sys
from data_prep.output import OutputFolder
with OutputFolder(sys.argv[1], "a", wait=True) as folder:
    print(folder.finished)
"""


def test_another_process_waits_and_finds_the_folder_made(tmp_path, repository):
    command = [sys.executable, "-c", WAITS, str(tmp_path / "out")]
    with OutputFolder(tmp_path / "out", "a") as folder:
        (folder.part / "data").write_text("first")
        second = subprocess.Popen(
            command, cwd=repository, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        assert "another process is writing this folder" in second.stderr.readline()
    assert second.communicate(timeout=60)[0] == "True\n"
    assert (tmp_path / "out" / "data").read_text() == "first"
    assert os.listdir(tmp_path) == ["out"]


CHILD = """
import os, signal, sys
sys.path.insert(0, sys.argv[3])
from data_prep import output as swap

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
        assert sorted(os.listdir(tmp_path)) == sorted(map(str, range(1, step + 1)))
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert code == 0
    assert "old" in states
    assert states[-2:] == ["new", "new"]


# -- several files ---------------------------------------------------------------------------------

NAMES = ("a.rec", "a.idx")


def write_files(folder, text):
    with new_files(*(folder / name for name in NAMES)) as files:
        for file in files:
            file.write(text.encode())


def read_files(folder):
    assert sorted(os.listdir(folder)) == sorted(NAMES)
    return [(folder / name).read_text() for name in NAMES]


@pytest.mark.parametrize("error", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left")])
def test_new_files_replace_old_ones_unless_something_fails(tmp_path, error):
    write_files(tmp_path, "0\ta long old text")
    write_files(tmp_path, "1\tnew")
    assert read_files(tmp_path) == ["1\tnew", "1\tnew"]
    full = pytest.raises(UserError, match=r"the disk is full, so a\.rec was not written")
    with (
        full if isinstance(error, OSError) else pytest.raises(KeyboardInterrupt),
        new_files(*(tmp_path / name for name in NAMES)) as files,
    ):
        files[0].write(b"newer")
        raise error
    assert read_files(tmp_path) == ["1\tnew", "1\tnew"]


def test_leftovers_of_a_killed_process_are_removed(tmp_path, repository):
    code = (
        "import os, sys; from data_prep.output import new_files\n"
        "with new_files(*sys.argv[1:]) as files: os.kill(os.getpid(), 9)"
    )
    paths = [str(tmp_path / name) for name in NAMES]
    subprocess.run([sys.executable, "-c", code, *paths], cwd=repository, timeout=60)
    assert len(os.listdir(tmp_path)) == 2
    write_files(tmp_path, "1\tnew")
    assert read_files(tmp_path) == ["1\tnew", "1\tnew"]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_the_draft_of_a_running_process_is_left_alone(tmp_path, repository, elsewhere):
    """Also that of one in another container, whose number is not in /proc here."""
    code = (
        f"import os, sys; from data_prep.output import new_files\n"
        f"os.getpid = lambda here=os.getpid(): 10**9 if {elsewhere} else here\n"
        "with new_files(*sys.argv[1:]) as files:\n"
        "    print([file.write(b'2\\tlater') for file in files], flush=True)\n"
        "    input()"
    )
    paths = [str(tmp_path / name) for name in NAMES]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    other = subprocess.Popen([sys.executable, "-c", code, *paths], cwd=repository, **pipes)
    other.stdout.readline()
    write_files(tmp_path, "1\tnew")
    other.communicate("go on\n", timeout=60)
    assert other.returncode == 0
    assert read_files(tmp_path) == ["2\tlater", "2\tlater"]
