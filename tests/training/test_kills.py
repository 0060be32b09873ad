"""A run that is killed at any point and resumed ends as the undisturbed one, to the last bit."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from rn50 import launch
from rn50lib import checkpoint
from tests.conftest import clean_environment
from tests.support import TIMES, TINY, Photos, strict_json, timeless

pytestmark = [pytest.mark.needs("torch"), pytest.mark.slow]

Run = Callable[..., Any]
FLAGS = (*TINY, "-e", "4", "--warmup-epochs", "1", "--lr-step-epochs", "2", "--lr", "0.4")
FILES = ("--model-prefix", "m", "--report", "r.json", "--run-dir", "run")

# Kills its own process at a point that no clock would hit; then goes on as the command line does.
DRIVER = """
import builtins, os, signal, sys
from rn50 import cli
from rn50lib import files, report, training

point, argv = sys.argv[1], sys.argv[2:]

def die():
    os.kill(os.getpid(), signal.SIGKILL)

class Half:
    def __init__(self, file):
        self.file = file
    def __enter__(self):
        return self
    def __exit__(self, *error):
        self.file.close()
    def write(self, content):
        self.file.write(content[: len(content) // 2])
        self.file.flush()
        die()

def half_open(name, mode="r"):
    file = builtins.open(name, mode)
    return Half(file) if "w" in mode and "m-0002." in str(name) else file

def at(function, when, before):
    def wrapped(*args):
        if before and when(*args):
            die()
        result = function(*args)
        if when(*args):
            die()
        return result
    return wrapped

second = lambda source, target: "-0002.safetensors" in str(target)
last = lambda written, file: len(written.metrics["val.loss"]) == 4
if point == "in the middle of an epoch":
    training.Timer.step_done = at(
        training.Timer.step_done,
        lambda timer, i, lr: (timer.phase, timer.epoch, i) == ("train", 1, 3), before=False)
elif point == "in validation":
    training.Timer.step_done = at(
        training.Timer.step_done,
        lambda timer, i, lr: (timer.phase, timer.epoch, i) == ("val", 2, 1), before=False)
elif point == "while a checkpoint is written":
    files.open = half_open
elif point == "before a checkpoint gets its name":
    os.replace = at(os.replace, second, before=True)
elif point == "after a checkpoint got its name":
    os.replace = at(os.replace, second, before=False)
elif point == "before the last report":
    report.Report.write = at(report.Report.write, last, before=True)
sys.exit(cli.main(argv))
"""
POINTS = {  # and the epochs whose checkpoints are there afterwards
    "in the middle of an epoch": [1],
    "in validation": [1, 2],
    "while a checkpoint is written": [1],
    "before a checkpoint gets its name": [1],
    "after a checkpoint got its name": [1, 2],
    "before the last report": [1, 2, 3, 4],
}
LARGE_FORM = ("in validation", "after a checkpoint got its name")


@pytest.fixture(scope="module")
def undisturbed(photos: Photos, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that nobody disturbed, in processes of its own."""
    folder = tmp_path_factory.mktemp("undisturbed")
    done = subprocess.run(
        [*launch.program("train"), "--data-root", str(photos.root), *FLAGS, *FILES],
        cwd=folder, env=clean_environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return folder


def assert_same_end(folder: Path, undisturbed: Path, timed: bool = True) -> None:
    """`timed`: an iteration was left to time of every epoch."""
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
    [pytest.param(p, marks=pytest.mark.acceptance) if p in LARGE_FORM else p for p in POINTS],
)
def test_a_run_killed_at_a_chosen_point(
    rn50: Run, photos: Photos, undisturbed: Path, tmp_path: Path, point: str
) -> None:
    flags = ("--data-root", str(photos.root), *FLAGS, *FILES)
    killed = subprocess.run(
        [sys.executable, "-c", DRIVER, point, "train", *flags],
        cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert checkpoint.epochs(tmp_path / "m") == POINTS[point]
    assert rn50("train", *flags, "--resume").status == 0
    assert_same_end(tmp_path, undisturbed, timed=point != "in validation")  # only validated again


TERM = """
import os, signal, sys
from rn50 import cli
from rn50lib import training

number, phase, step, argv = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), sys.argv[4:]
done = training.Timer.step_done

def wrapped(timer, i, lr):
    done(timer, i, lr)
    if (timer.phase, timer.epoch, i) == (phase, 1, step):
        os.kill(os.getpid(), number)

training.Timer.step_done = wrapped
sys.exit(cli.main(argv))
"""


@pytest.mark.parametrize(
    ("phase", "step", "images"), [("train", 0, 8), ("train", 3, 32), ("train", 5, 48),
                                  ("val", 1, 48)]
)  # fmt: skip
def test_a_run_that_is_asked_to_end_goes_on_in_the_middle_of_its_epoch(
    rn50: Run, photos: Photos, undisturbed: Path, tmp_path: Path, phase: str, step: int, images: int
) -> None:
    flags = ("--data-root", str(photos.root), *FLAGS, *FILES)
    ended = subprocess.run(
        [sys.executable, "-c", TERM, "15", phase, str(step), "train", *flags],
        cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert ended.returncode == 143, ended.stderr
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("go on with: rn50 train ") and "--resume" in last
    assert checkpoint.positions(tmp_path / "m") == [(1, 0), (1, images)]
    resumed = rn50("train", *flags, "--resume")
    assert f"1 epoch is done, and {images} images of the next" in resumed.err
    assert_same_end(tmp_path, undisturbed, timed=images < 48)
    assert checkpoint.positions(tmp_path / "m") == [(e, 0) for e in (1, 2, 3, 4)]


def test_a_run_that_writes_checkpoints_in_its_epochs_repeats_little(
    rn50: Run, photos: Photos, undisturbed: Path, tmp_path: Path
) -> None:
    """Killed after 4 of 6 steps, with a checkpoint after every second one."""
    flags = ("--data-root", str(photos.root), *FLAGS, *FILES, "--checkpoint-steps", "2")
    point = "in the middle of an epoch"
    killed = subprocess.run(
        [sys.executable, "-c", DRIVER, point, "train", *flags],
        cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert checkpoint.positions(tmp_path / "m") == [(1, 0), (1, 16)]
    assert rn50("train", *flags, "--resume").status == 0
    assert_same_end(tmp_path, undisturbed)
    told = strict_json(tmp_path / "r.json")["env"]["restarts"]
    assert told["changes"] == [{"epoch": 2, "images": 16, "workers": 1}]
    assert told["images_repeated"] == 8  # the third step; the fourth was not over
    assert told["images_in_tails"] == 0


def test_the_updates_with_checkpoints_are_the_same_after_a_resume(
    photos: Photos, tmp_path: Path
) -> None:
    """Stopped after the third update, and killed after the fourth, which is due for one."""
    flags = ("--data-root", str(photos.root), *FLAGS, *FILES, "--checkpoint-steps", "2", "--resume")
    for number, step, images in ((15, 2, 24), (9, 1, 32)):
        ended = subprocess.run(
            [sys.executable, "-c", TERM, str(number), "train", str(step), "train", *flags],
            cwd=tmp_path, env=clean_environment(), capture_output=True, text=True, timeout=300,
        )  # fmt: skip
        assert ended.returncode in (143, -9), ended.stderr
        assert checkpoint.positions(tmp_path / "m")[-1] == (1, images)


def killed_at_random(photos: Photos, folder: Path, rng: random.Random) -> int:
    """Run to the end with `rn50 run`, killed now and then; returns the number of kills."""
    flags = (*launch.program("run"), "--data-root", str(photos.root), *FLAGS, *FILES)
    kills = 0
    for _ in range(30):
        command = [*flags, "--data-nthreads", "2", "--resume"]
        with open(folder / "log", "ab") as log:
            process = subprocess.Popen(
                command, cwd=folder, env=clean_environment(RN50_RUNS=str(folder)), stdout=log,
                stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        seen: list[psutil.Process] = []
        limit = None if kills >= 3 else moment(folder, rng)
        while process.poll() is None and (limit is None or not limit()):
            seen = psutil.Process(process.pid).children(recursive=True)
            time.sleep(0.002)
        if process.poll() is None:
            kills += 1
            seen = psutil.Process(process.pid).children(recursive=True)
            for victim in [process, *seen] if rng.random() < 0.5 else [process]:
                with contextlib.suppress(psutil.NoSuchProcess):  # it came to its end meanwhile
                    victim.kill()
            process.wait()
            psutil.wait_procs(seen, timeout=60)  # the others end by themselves
            assert not [p for p in seen if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        else:
            assert process.returncode == 0, (folder / "log").read_text()
            return kills
    raise AssertionError("it never came to its end")


def moment(folder: Path, rng: random.Random) -> Callable[[], bool]:
    """When to kill next: some time after a random number of further lines of progress."""
    progress = folder / "run" / "progress.jsonl"

    def count() -> int:
        return progress.read_bytes().count(b"\n") if progress.exists() else 0

    wanted, delay = count() + rng.randint(0, 4), rng.uniform(0, 0.1)
    reached: list[float] = []

    def come() -> bool:
        if not reached and count() >= wanted:
            reached.append(time.monotonic())
        return bool(reached) and time.monotonic() - reached[0] >= delay

    return come


def test_a_run_with_workers_killed_at_random(
    photos: Photos, undisturbed: Path, tmp_path: Path
) -> None:
    kills = killed_at_random(photos, tmp_path, random.Random(1))
    assert kills >= 2
    assert_same_end(tmp_path, undisturbed, timed=False)


@pytest.mark.acceptance
@pytest.mark.parametrize("seed", range(100, 107))
def test_twenty_random_kills(photos: Photos, undisturbed: Path, tmp_path: Path, seed: int) -> None:
    """Seven runs of three kills each."""
    killed_at_random(photos, tmp_path, random.Random(seed))
    assert_same_end(tmp_path, undisturbed, timed=False)


@pytest.mark.acceptance
def test_bfloat16_resumes_to_the_last_bit_as_well(rn50: Run, photos: Photos) -> None:
    flags = ("train", "--data-root", photos.root, *FLAGS, "--dtype", "bfloat16")
    assert rn50(*flags, "--model-prefix", "a").status == 0
    Path("b").mkdir()
    for name in ("a-0002.safetensors", "a-symbol.json"):
        shutil.copy(name, Path("b") / name)
    assert rn50(*flags, "--model-prefix", "b/a", "--resume").status == 0
    ours, theirs = (checkpoint.load(prefix, 4).arrays for prefix in ("a", "b/a"))
    assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
