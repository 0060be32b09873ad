"""Where outputs go: a file is replaced whole, a link is followed, what is no file stays as it is; a
prefix belongs to one run; a full disk is told in one line."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import clean_environment
from tests.support import TINY, Photos

Run = Callable[..., Any]
TRAIN = ("train", *TINY, "--benchmark-iters", "2", "--no-val", "--loader", "synthetic",
         "--num-classes", "6")  # fmt: skip
IM2REC = "data_prep.im2rec"
PNG = b"\x89PNG"


class Stream:
    """A FIFO or a terminal with somebody who reads it; `path` is a symlink to it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.received = b""
        if kind == "fifo":
            self.target = folder / "a-fifo"
            os.mkfifo(self.target)
            self.end = os.open(self.target, os.O_RDONLY | os.O_NONBLOCK)
            os.set_blocking(self.end, True)
            self.other = os.open(self.target, os.O_WRONLY)  # or the reader sees an end at once
        else:
            self.end, self.other = os.openpty()
            tty.setraw(self.other)
            self.target = Path(os.ttyname(self.other))
        self.mode = stat.S_IFMT(self.target.stat().st_mode)
        self.reader = threading.Thread(target=self.read)
        self.reader.start()

    def link(self, name: str) -> str:
        Path(name).symlink_to(self.target)
        return name

    def read(self) -> None:
        try:
            while data := os.read(self.end, 1 << 16):
                self.received += data
        except OSError:  # a terminal's way to say that its other end is closed
            pass

    def close(self) -> bytes:
        """What arrived; fails where the link or what it leads to was replaced."""
        os.close(self.other)
        self.reader.join()
        os.close(self.end)
        return self.received


@pytest.fixture(params=["fifo", "terminal"])
def stream(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Stream]:
    made = Stream(tmp_path, request.param)
    yield made
    if made.reader.is_alive():
        made.close()


def assert_untouched(stream: Stream, name: str) -> None:
    assert Path(name).is_symlink() and os.path.realpath(name) == str(stream.target)
    assert stat.S_IFMT(stream.target.stat().st_mode) == stream.mode != stat.S_IFREG


def test_an_output_goes_into_what_is_no_file(rn50: Run, stream: Stream) -> None:
    assert rn50("scale", "-o", stream.link("s.png")).status == 0
    assert_untouched(stream, "s.png")
    assert stream.close().startswith(PNG)


@pytest.mark.needs("torch")
def test_a_report_goes_into_what_is_no_file_once(rn50: Run, stream: Stream) -> None:
    ended = rn50(*TRAIN, "-e", "2", "--report", stream.link("r.json"))
    assert ended.status == 0, ended.err
    assert_untouched(stream, "r.json")
    assert len(json.loads(stream.close())["metrics"]["train.loss"]) == 2


@pytest.mark.needs("torch")
@pytest.mark.slow
def test_a_trace_goes_into_what_is_no_file(rn50: Run, stream: Stream) -> None:
    ended = rn50(*TRAIN, "-e", "1", "--profile-trace", stream.link("t.json"))
    assert ended.status == 0, ended.err
    assert_untouched(stream, "t.json")
    assert json.loads(stream.close())["traceEvents"]


@pytest.mark.needs("torch")
@pytest.mark.slow
def test_scores_and_predictions_go_into_what_is_no_file(
    rn50: Run, trained: Path, photos: Photos, stream: Stream
) -> None:
    """A FIFO cannot be read back by the one who wrote into it: `score` used to wait for ever."""
    flags = ("--data-root", str(photos.root), *TINY)
    scored = rn50("score", trained / "m", "2", *flags, "--report", stream.link("r.json"))
    assert scored.status == 0 and "val.top1" in scored.out
    picture = str(photos.files("val")[0])
    assert rn50("predict", trained / "m", "2", picture, "-o", stream.link("p.npz")).status == 0
    assert_untouched(stream, "r.json")
    assert_untouched(stream, "p.npz")
    report, end = json.JSONDecoder().raw_decode(stream.close().decode("latin-1"))
    assert report["metrics"]["val.top1"]
    assert stream.received[end:].lstrip().startswith(b"PK")


def test_a_link_is_followed_and_permissions_stay(rn50: Run, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    target = tmp_path / "place" / "kept"
    target.write_text("old")
    target.chmod(0o640)
    Path("link.png").symlink_to("place/kept")
    Path("new.png").symlink_to("place/made")  # what it leads to is not there yet
    for name, file in (("link.png", target), ("new.png", tmp_path / "place" / "made")):
        assert rn50("scale", "-o", name).status == 0
        assert Path(name).is_symlink() and not file.is_symlink()
        assert file.read_bytes().startswith(PNG)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "place" / "made").stat().st_mode) == 0o666 & ~umask
    assert sorted(os.listdir("place")) == ["kept", "made"]


@pytest.mark.needs("torch")
@pytest.mark.parametrize("file", ["m-symbol.json", "m-0001.safetensors"])
def test_a_checkpoint_is_neither_written_into_a_fifo_nor_read_from_one(
    rn50: Run, trained: Path, photos: Photos, file: str
) -> None:
    os.mkfifo(file)
    assert file in rn50(*TRAIN, "-e", "1", "--model-prefix", "m").error
    assert stat.S_ISFIFO(os.stat(file).st_mode)
    if file != "m-symbol.json":
        Path("m-symbol.json").write_bytes((trained / "m-symbol.json").read_bytes())
    line = rn50("score", "m", "1", "--data-root", str(photos.root), *TINY).error
    assert f"{file} is no regular file" in line


def test_records_are_packed_through_a_link_and_not_into_a_fifo(
    run_cli: Run, photos: Photos, tmp_path: Path
) -> None:
    prefix = tmp_path / "packed"
    listed = ("--list", "--recursive", prefix, photos.root / "train")
    assert run_cli(*listed, module=IM2REC).returncode == 0
    os.mkfifo(tmp_path / "packed.idx")
    pack = ("--pass-through", prefix, photos.root / "train")
    line = run_cli(*pack, module=IM2REC).stderr
    assert "packed.idx is no regular file" in line
    (tmp_path / "packed.idx").unlink()
    (tmp_path / "packed.rec").symlink_to("elsewhere.rec")
    assert run_cli(*pack, module=IM2REC).returncode == 0
    assert (tmp_path / "packed.rec").is_symlink()
    assert (tmp_path / "elsewhere.rec").stat().st_size > 0


def test_shards_behind_a_link_are_replaced_there(
    run_cli: Run, photos: Photos, tmp_path: Path
) -> None:
    (tmp_path / "large").mkdir()
    (tmp_path / "shards").symlink_to("large")
    for seed in ("1", "2"):
        made = run_cli(photos.root, tmp_path / "shards", "--seed", seed, "--train-shards", "1",
                       "--val-shards", "1", "--jobs", "1", module="data_prep.tfrecord")  # fmt: skip
        assert made.returncode == 0, made.stderr
    assert (tmp_path / "shards").is_symlink()
    assert (tmp_path / "large" / "train-00000-of-00001").stat().st_size > 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["large", "shards"]


# --- one prefix, one run --------------------------------------------------------------------------


@pytest.mark.needs("torch")
def test_a_second_run_does_not_overwrite_the_checkpoints_of_the_first(rn50: Run) -> None:
    flags = (*TRAIN, "--model-prefix", "m", "-e")
    assert rn50(*flags, "2").status == 0
    first = Path("m-0001.safetensors").read_bytes()
    for verb in ("train", "run"):
        line = rn50(verb, *flags[1:], "1").error
        assert "up to m-0002.safetensors" in line
        assert "--model-prefix m --resume" in line and "remove m-[0-9]*.safetensors" in line
    assert "checkpoints after epoch 1" in rn50(*flags, "2", "--load-epoch", "1").error
    assert Path("m-0001.safetensors").read_bytes() == first
    assert rn50(*flags, "3", "--resume").status == 0
    assert rn50(*flags, "4", "--load-epoch", "3").status == 0
    assert rn50(*TRAIN, "-e", "1", "--model-prefix", "other").status == 0
    assert not list(Path().glob(".*.lock"))


@pytest.mark.needs("torch")
@pytest.mark.slow
def test_prefix_and_run_folder_are_locked_while_a_run_lives(rn50: Run, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rn50", *TRAIN, "-e", "100000", "--keep", "2"]
    running = subprocess.Popen(
        [*command, "--model-prefix", "m", "--run-dir", "r"], cwd=tmp_path, env=clean_environment(),
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        while not list(tmp_path.glob("m-*.safetensors")):
            assert running.poll() is None
            time.sleep(0.1)
        for verb in ("train", "run"):
            line = rn50(verb, *TRAIN[1:], "-e", "1", "--model-prefix", "m", "--resume").error
            assert "--model-prefix m: another run is writing there" in line
            assert f"process {running.pid} on " in line
            line = rn50(verb, *TRAIN[1:], "--model-prefix", "n", "--run-dir", "r").error
            assert "--run-dir r: another run is writing there" in line
            assert not list(tmp_path.glob("n-*"))
    finally:
        running.send_signal(signal.SIGKILL)
        running.wait()
    done = max(int(path.stem[2:6]) for path in tmp_path.glob("m-*.safetensors"))
    flags = ("--model-prefix", "m", "--run-dir", "r", "--resume")
    again = rn50(*TRAIN, "-e", str(done + 1), *flags)
    assert again.status == 0, again.err


# --- no room --------------------------------------------------------------------------------------


def limited(size: int, *argv: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a module where no file may become larger than `size` bytes, as on a full disk."""
    return subprocess.run(
        [sys.executable, "-m", *map(str, argv)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
        env=clean_environment(**environment), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


@pytest.mark.needs("torch")
@pytest.mark.slow
def test_a_run_says_that_the_disk_is_full(tmp_path: Path) -> None:
    """The trace is cut off in the profiler's own file, of which the profiler says nothing."""
    flag = "--profile-trace"
    ended = limited(100_000, "rn50", *TRAIN, "-e", "1", flag, tmp_path / "out")
    assert ended.returncode == 2, ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith(f"error: {flag} {tmp_path / 'out'} cannot be written")
    assert "Traceback" not in ended.stderr


def test_shards_for_which_there_is_no_room(photos: Photos, tmp_path: Path) -> None:
    out = tmp_path / "shards"
    flags = ("data_prep.tfrecord", photos.root, out, "--jobs", "1", "--val-shards", "1")
    ended = limited(5000, *flags, "--train-shards", "1")
    assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 1
    assert "train-00000-of-00001: File too large; make room" in ended.stderr
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["rn50 --help", "rn50 run --help", "data_prep.im2rec --help"])
def test_help_that_nobody_can_read(command: str, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", *command.split()], stdout=full, stderr=subprocess.PIPE,
            env=clean_environment(PYTHONUNBUFFERED=unbuffered), text=True,
        )  # fmt: skip
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: standard output") and "No space left" in line


def test_records_are_packed_where_standard_output_is_closed(photos: Photos, tmp_path: Path) -> None:
    """The file that is opened next would otherwise become standard output."""
    for flags in ("--list --recursive", "--pass-through"):
        command = f"exec {sys.executable} -m data_prep.im2rec {flags} closed {photos.root}/train"
        ended = subprocess.run(
            f"{command} >&- 2>&- <&-", shell=True, cwd=tmp_path, env=clean_environment()
        )
        assert ended.returncode == 0
    assert (tmp_path / "closed.idx").read_text().count("\n") == len(photos.files("train"))
