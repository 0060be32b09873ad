"""A run that is killed at any point and resumed ends as the undisturbed one, to the last bit."""

from __future__ import annotations

import contextlib
import io
import random
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from rn50 import cli, launch
from rn50lib import checkpoint
from tests.conftest import clean_environment
from tests.support import TIMES, TINY, Photos, strict_json, timeless

pytestmark = [pytest.mark.needs("torch"), pytest.mark.slow]

Run = Callable[..., Any]
LARGE = pytest.mark.acceptance
# the rate still warms up in the second epoch, so that it depends on the position within it
FLAGS = (*TINY, "-e", "4", "--warmup-epochs", "2", "--lr-step-epochs", "3", "--lr", "0.4")
FILES = ("--model-prefix", "m", "--report", "r.json", "--run-dir", "run")

# An override that sends its own process a signal at a reading that no clock would hit.
HOOK = """
import os, signal
from rn50lib.progress import Progress
from rn50lib.recipe import learning_rate as schedule

number, *point = os.environ["SIGNAL_AT"].split()

def watch(self, line, write=Progress._write):
    write(self, line)
    if [str(line.get(key)) for key in ("phase", "epoch", "step")] == point:
        os.kill(os.getpid(), int(number))

def replace(source, target, rename=os.replace):
    if "-0002.safetensors" in str(target):
        os.kill(os.getpid(), int(number))
    rename(source, target)

Progress._write = watch
if not point:
    os.replace = replace
"""
KILLS = {  # where, and the epochs whose checkpoints are there afterwards
    "train 1 4": [1],
    "": [1],  # before a checkpoint gets its name
    "val 2 2": [1, 2],
    "epoch 3 None": [1, 2, 3, 4],  # before the last report
}


def signalled(
    photos: Photos, folder: Path, number: int, point: str, *flags: str, files: tuple = FILES
) -> Any:
    """Run `rn50 train` to its end, with a signal at some point."""
    (folder / "hook.py").write_text(HOOK)
    return subprocess.run(
        [*launch.program("train"), "--data-root", str(photos.root), *FLAGS, *files, *flags,
         "--disp-batches", "1", "--override", "schedule=hook.py:schedule"],
        cwd=folder, env=clean_environment(SIGNAL_AT=f"{number} {point}"), capture_output=True,
        text=True, timeout=300,
    )  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(photos: Photos, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("undisturbed")
    files = [word if word.startswith("-") else str(folder / word) for word in FILES]
    with contextlib.redirect_stderr(io.StringIO()) as told:
        assert cli.main(["train", "--data-root", str(photos.root), *FLAGS, *files]) == 0, told
    return folder


def assert_same_end(folder: Path, undisturbed: Path, timed: bool = True) -> None:
    """Compare the ends of two runs; `timed` means that every epoch has a timed iteration."""
    ours, theirs = (checkpoint.load(at / "m", 4).arrays for at in (folder, undisturbed))
    assert ours.keys() == theirs.keys()
    for name, array in ours.items():
        np.testing.assert_array_equal(array, theirs[name], err_msg=name)
    resumed, whole = (strict_json(at / "r.json") for at in (folder, undisturbed))
    assert timeless(resumed) == timeless(whole)
    assert list(resumed["metrics"]) == list(whole["metrics"])
    for key, values in resumed["metrics"].items():
        assert len(values) == 4, key
        assert all(v is not None for v in values) or (key.split(".")[1] in TIMES and not timed), key
    left = [path.name for path in folder.rglob("*") if ".tmp" in path.name]
    assert left == []  # nothing half-written stays


@pytest.mark.parametrize(
    "point",
    [pytest.param(p, marks=LARGE if p else ()) for p in KILLS],
)
def test_run_killed_at_a_chosen_point_resumes(
    rn50: Run, photos: Photos, undisturbed: Path, tmp_path: Path, point: str
) -> None:
    killed = signalled(photos, tmp_path, 9, point)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert checkpoint.epochs(tmp_path / "m") == KILLS[point]
    assert rn50("train", "--data-root", photos.root, *FLAGS, *FILES, "--resume").status == 0
    assert_same_end(tmp_path, undisturbed, timed=point.startswith(("train", "epoch")))


@pytest.mark.parametrize(
    ("point", "images"),
    [
        pytest.param("train 1 2", 16, marks=LARGE),  # here within the test below
        pytest.param("train 1 6", 48, marks=LARGE),
        pytest.param("val 1 2", 48, marks=LARGE),
    ],
)
def test_a_run_stopped_by_sigterm_resumes_within_its_epoch(
    rn50: Run, photos: Photos, undisturbed: Path, tmp_path: Path, point: str, images: int
) -> None:
    ended = signalled(photos, tmp_path, 15, point)
    assert ended.returncode == 143, ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("continue with: rn50 train ") and "--resume" in last
    assert last.endswith(" --run-dir run")
    assert checkpoint.positions(tmp_path / "m") == [(1, 0), (1, images)]
    resumed = rn50("train", "--data-root", photos.root, *FLAGS, *FILES, "--resume")
    assert f"1 epoch is done, and {images} images of the next" in resumed.err
    assert_same_end(tmp_path, undisturbed, timed=images < 48)
    assert checkpoint.positions(tmp_path / "m") == [(e, 0) for e in (1, 2, 3, 4)]


def test_a_run_without_checkpoints_ends_at_sigterm(photos: Photos, tmp_path: Path) -> None:
    ended = signalled(photos, tmp_path, 15, "train 1 2", files=("--report", "r.json"))
    assert ended.returncode == 143, ended.stderr
    assert "Traceback" not in ended.stderr and "continue with" not in ended.stderr


def test_checkpoints_within_epochs_are_due_at_the_same_updates_after_a_resume(
    rn50: Run, photos: Photos, undisturbed: Path, tmp_path: Path
) -> None:
    """The run is stopped after update 3 and killed after 5; every second one has a checkpoint."""
    flags = ("--checkpoint-steps", "2", "--resume")
    stopped = signalled(photos, tmp_path, 15, "train 1 3", *flags)
    assert stopped.returncode == 143, stopped.stderr
    assert checkpoint.positions(tmp_path / "m") == [(1, 0), (1, 24)]
    killed = signalled(photos, tmp_path, 9, "train 1 6", *flags)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert checkpoint.positions(tmp_path / "m") == [(1, 0), (1, 32)]
    assert rn50("train", "--data-root", photos.root, *FLAGS, *FILES, *flags).status == 0
    assert_same_end(tmp_path, undisturbed)


@LARGE
@pytest.mark.parametrize("seed", range(100, 107))
def test_workers_killed_at_random_resume(
    photos: Photos, undisturbed: Path, tmp_path: Path, seed: int
) -> None:
    """Kill `rn50 run` three times, which leaves no process, and resume to the end."""
    command = [*launch.program("run"), "--data-root", str(photos.root), *FLAGS, *FILES]
    rng, log = random.Random(seed), open(tmp_path / "log", "ab")
    for seconds in (*(rng.uniform(1, 6) for _ in range(3)), 300):
        process = psutil.Popen(
            [*command, "--data-nthreads", "2", "--resume"], cwd=tmp_path, stdout=log, stderr=log,
            env=clean_environment(RN50_RUNS=str(tmp_path)), start_new_session=True,
        )  # fmt: skip
        with contextlib.suppress(psutil.TimeoutExpired):
            assert process.wait(seconds) == 0, (tmp_path / "log").read_text()
            break
        seen = process.children(recursive=True)
        process.kill()
        process.wait()
        _, alive = psutil.wait_procs(seen, timeout=60)
        assert not alive
    assert_same_end(tmp_path, undisturbed, timed=False)


@LARGE
def test_bfloat16_resumes_to_the_last_bit_as_well(rn50: Run, photos: Photos) -> None:
    flags = ("train", "--data-root", photos.root, *FLAGS, "--dtype", "bfloat16")
    assert rn50(*flags, "--model-prefix", "a").status == 0
    Path("b").mkdir()
    for name in ("a-0002.safetensors", "a-symbol.json"):
        shutil.copy(name, Path("b") / name)
    assert rn50(*flags, "--model-prefix", "b/a", "--resume").status == 0
    ours, theirs = (checkpoint.load(prefix, 4).arrays for prefix in ("a", "b/a"))
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
