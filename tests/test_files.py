"""Output files are whole, links followed, devices written to; one run per prefix; full disks."""

from __future__ import annotations

import json
import os
import resource
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import clean_environment
from tests.support import TINY, Photos

Run = Callable[..., Any]
TRAIN = ("train", *TINY, "--benchmark-iters", "2", "--no-val", "--loader", "synthetic",
         "--num-classes", "6")  # fmt: skip
PNG = b"\x89PNG"


def output(*argv: object) -> bytes:
    """Return what `rn50` writes to standard output."""
    command = [sys.executable, "-m", "rn50", *map(str, argv)]
    return subprocess.run(
        command, stdout=subprocess.PIPE, env=clean_environment(), check=True
    ).stdout


@pytest.mark.needs("torch")
@pytest.mark.slow
def test_a_device_is_written_to(rn50: Run, trained: Path, photos: Photos) -> None:
    Path("null").symlink_to("/dev/null")
    assert rn50(*TRAIN, "-e", "1", "--report", "null").status == 0
    assert Path("null").is_symlink() and stat.S_ISCHR(os.stat("null").st_mode)
    Path("out.npz").symlink_to("/dev/stdout")
    image = photos.files("val")[0]
    assert b"PK" in output("predict", trained / "m", "2", image, "-o", "out.npz")
    flags = ("--data-root", photos.root, *TINY)
    scored = output("score", trained / "m", "2", *flags, "--report", "/dev/stdout").decode()
    report, end = json.JSONDecoder().raw_decode(scored)
    assert report["metrics"]["val.top1"] and "val.top1" in scored[end:]


@pytest.mark.needs("torch")
def test_links_are_followed_and_permissions_kept(rn50: Run, trained: Path, tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    assert rn50("plot", trained / "report.json", "-o", "place/kept.png").status == 0
    target = tmp_path / "place" / "kept.png"
    target.chmod(0o640)
    Path("link.png").symlink_to("place/kept.png")
    Path("new.png").symlink_to("place/made")  # what it leads to is not there yet
    for name, file in (("link.png", target), ("new.png", tmp_path / "place" / "made")):
        assert rn50("plot", trained / "report.json", "-o", name).status == 0
        assert Path(name).is_symlink() and not file.is_symlink()
        assert file.read_bytes().startswith(PNG)
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    umask = os.umask(0o022)
    os.umask(umask)
    assert stat.S_IMODE((tmp_path / "place" / "made").stat().st_mode) == 0o666 & ~umask
    assert sorted(os.listdir("place")) == ["kept.png", "made"]


@pytest.mark.needs("torch")
def test_a_checkpoint_is_a_regular_file(rn50: Run, trained: Path) -> None:
    os.mkfifo("m-0001.safetensors")
    Path("m-symbol.json").write_bytes((trained / "m-symbol.json").read_bytes())
    assert "m-0001.safetensors is not a regular file" in rn50("score", "m", "1").error
    os.mkfifo("n-symbol.json")
    assert "n-symbol.json" in rn50(*TRAIN, "-e", "1", "--model-prefix", "n").error


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


@pytest.mark.needs("torch")
@pytest.mark.slow
def test_prefix_and_run_folder_are_locked_during_a_run(rn50: Run, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rn50", *TRAIN, "-e", "100000", "--set", "keep=2"]
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
    """Run a module with a limit of `size` bytes for any file, as on a full disk."""
    return subprocess.run(
        [sys.executable, "-m", *map(str, argv)],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (size, size)),
        env=clean_environment(**environment), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_full_disk_for_shards_is_reported(photos: Photos, tmp_path: Path) -> None:
    out = tmp_path / "shards"
    flags = ("data_prep.tfrecord", photos.root, out, "--jobs", "1", "--val-shards", "1")
    ended = limited(5000, *flags, "--train-shards", "1")
    assert ended.returncode == 2 and len(ended.stderr.splitlines()) == 1
    assert "-00000-of-00001: File too large; make room" in ended.stderr
    assert not out.exists()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("command", ["rn50 --help", "rn50 run --help", "data_prep.im2rec --help"])
def test_help_to_a_full_device_is_a_one_line_error(command: str, unbuffered: str) -> None:
    with open("/dev/full", "w") as full:
        ended = subprocess.run(
            [sys.executable, "-m", *command.split()], stdout=full, stderr=subprocess.PIPE,
            env=clean_environment(PYTHONUNBUFFERED=unbuffered), text=True,
        )  # fmt: skip
    assert ended.returncode == 2
    (line,) = ended.stderr.splitlines()
    assert line.startswith("error: standard output") and "No space left" in line
