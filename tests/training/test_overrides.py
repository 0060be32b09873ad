"""Each function that a learner may replace really acts, in a real run, and a bad one is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50lib import checkpoint
from rn50lib.resnet import tiny
from tests.support import TINY, Photos

Run = Callable[..., Any]


@pytest.fixture
def with_override(rn50: Run, photos: Photos, tmp_path: Path) -> Callable[..., Path]:
    """Run one epoch with `code` as an override; return the folder with r.json and checkpoint m."""

    def run(seam: str, code: str, *flags: str) -> Path:
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)  # valid for this very second
        (tmp_path / "mine.py").write_text(code)
        Path("m-0001.safetensors").unlink(missing_ok=True)  # of the run before
        ended = rn50(
            "train", "--data-root", str(photos.root), *TINY, "-e", "1", "--benchmark-iters", "3",
            "--disp-batches", "1", "--run-dir", str(tmp_path), "--report", "r.json",
            "--model-prefix", "m", "--override", f"{seam}=mine.py:{seam}", *flags,
        )  # fmt: skip
        assert ended.status == 0, ended.err
        return tmp_path

    return run


def weights(folder: Path) -> dict[str, np.ndarray]:
    """Return the trained weights."""
    arrays = checkpoint.load(folder / "m", 1).arrays
    return {name: arrays[name] for name in tiny(6).parameters()}


def start() -> dict[str, np.ndarray]:
    arrays = tiny(6).initial_arrays(0)
    return {name: arrays[name] for name in tiny(6).parameters()}


def equal(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return all(np.array_equal(a[name], b[name]) for name in a)


@pytest.mark.needs("torch")
def test_schedule(with_override: Callable[..., Path]) -> None:
    code = "def schedule(progress, global_batch, recipe):\n    return 0.125 * (progress > 0.5)"
    folder = with_override("schedule", code)
    lines = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    rates = [line["lr"] for line in lines if line["phase"] == "train"]
    assert rates == [0.0, 0.125]  # after steps 2 and 3 of 3; the first one fills the caches
    assert not equal(weights(folder), start())


@pytest.mark.needs("torch")
def test_shard(with_override: Callable[..., Path]) -> None:
    code = "def shard(order, rank, size, batch):\n    return order[: 2 * batch].reshape(2, batch)"
    folder = with_override("shard", code)
    lines = [json.loads(line) for line in (folder / "progress.jsonl").read_text().splitlines()]
    assert {line["steps"] for line in lines if line["phase"] == "train"} == {2}


PREDICTOR = """
import torch

def predictor(model, dtype):
    assert isinstance(model, torch.nn.Module) and dtype is torch.float32
    def logits(images_NCHW):
        first = torch.tensor([9.0] + 5 * [0.0])
        return first.expand(len(images_NCHW), 6)
    return logits
"""


@pytest.mark.needs("torch")
def test_predictor(with_override: Callable[..., Path], photos: Photos) -> None:
    """A predictor that always answers with the first class is right for its images only."""
    folder = with_override("predictor", PREDICTOR)
    report = json.loads((folder / "r.json").read_text())
    (top1,) = report["metrics"]["val.top1"]
    shares = [len(list(each.iterdir())) for each in sorted((photos.root / "val").iterdir())]
    assert top1 == pytest.approx(100 * shares[0] / sum(shares))


AUGMENT = """
import os
from pathlib import Path

def augment(seed, width, height, augmentation):
    Path("seen").mkdir(exist_ok=True)
    Path(f"seen/{os.getpid()}-{seed}").touch()
    return (0, 0, width, height), False
"""


@pytest.mark.needs("torch")
def test_augment(with_override: Callable[..., Path]) -> None:
    folder = with_override("augment", AUGMENT)
    assert len(list((folder / "seen").iterdir())) == 24  # 3 batches of 8; none in validation


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_augment_in_the_loader_s_workers(
    with_override: Callable[..., Path], tmp_path: Path
) -> None:
    import os

    folder = with_override("augment", AUGMENT, "--data-nthreads", "2")
    seen = [path.name.split("-") for path in (folder / "seen").iterdir()]
    assert len({seed for _, seed in seen}) == 24
    processes = {int(pid) for pid, _ in seen}
    assert len(processes) == 2 and os.getpid() not in processes


GOOD = "def schedule(progress, global_batch, recipe):\n    return 0.1\n"


@pytest.mark.parametrize(
    ("override", "code", "problem"),
    [
        ("speed=mine.py:schedule", GOOD, "no function 'speed'"),
        ("schedule=nowhere.py:schedule", GOOD, "no file 'nowhere.py'"),
        ("schedule=mine.txt:schedule", GOOD, "not a Python file; its name must end in .py"),
        ("schedule", GOOD, "NAME=FILE:FUNCTION"),
        ("schedule=mine.py", GOOD, "NAME=FILE:FUNCTION"),
        ("schedule=mine.py:other", GOOD, "no function 'other'"),
        ("schedule=mine.py:math", "import math\n", "no function 'math'"),
        ("schedule=mine.py:schedule", "def schedule(progress):\n    return 0\n",
         "must take (progress, global_batch, recipe)"),
        ("schedule=mine.py:schedule", "def schedule(:\n", "does not import"),
        ("schedule=mine.py:schedule", "import nothing_of_that_name\n", "nothing_of_that_name"),
        ("schedule=mine.py:schedule", "raise SystemExit(0)\n", "does not import"),
        ("schedule=mine.py:int", "int = int\n", "int is not a function of the file"),
    ],
)  # fmt: skip
def test_a_bad_override_is_refused_in_one_line(
    rn50: Run, photos: Photos, tmp_path: Path, override: str, code: str, problem: str
) -> None:
    for name in ("mine.py", "mine.txt"):
        (tmp_path / name).write_text(code)
    ended = rn50("train", "--data-root", photos.root, *TINY, "--override", override)
    assert problem in ended.error and f"--override {override}" in ended.error


@pytest.mark.parametrize(
    ("part", "code", "problem"),
    [
        ("schedule", "progress, batch, recipe: None", "a finite number from 0 on, not None"),
        ("schedule", "progress, batch, recipe: float('nan')", "not nan"),
        ("schedule", "progress, batch, recipe: -0.1", "not -0.1"),
        ("schedule", "progress, batch, recipe: 10**400", "not 1000000"),
        ("shard", "order, rank, size, batch: order", "int64 of shape (48,)"),
        ("shard", "order, rank, size, batch: [[0, 1], [2]]", "of shape ()"),
        ("shard", "order, rank, size, batch: order.reshape(-1, batch) + 9", "from 0 to 47"),
        ("shard", "order, rank, size, batch: order.reshape(-1, batch) / 1", "float64"),
        ("shard", "order, rank, size, batch: order.reshape(-1, 2 * batch)", "of shape (3, 16)"),
        ("predictor", "model, kind: None", "logits, a tensor of shape (8, 6)"),
        ("predictor", "model, kind: lambda images: model(images).numpy()", "of shape (8, 6)"),
        ("predictor", "model, kind: lambda images: model(images).argmax(1)", "of shape (8, 6)"),
        ("augment", "seed, width, height, how: (0, 0, 4)", "((left, top, width, height), mirror)"),
        ("augment", "seed, width, height, how: ((0, 0, 4, 4.5), 0)", "whole pixels"),
    ],
)
def test_what_an_override_returns_is_checked(
    rn50: Run, photos: Photos, tmp_path: Path, part: str, code: str, problem: str
) -> None:
    (tmp_path / "mine.py").write_text(f"{part} = lambda {code}\n")
    flags = ("--override", f"{part}=mine.py:{part}", "--data-nthreads", "0")
    ended = rn50("train", "--data-root", photos.root, *TINY, *flags)
    assert f"--override {part}: it must return" in ended.error and problem in ended.error


def test_a_schedule_may_return_a_number_of_numpy(rn50: Run, photos: Photos, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(
        "import numpy\nschedule = lambda progress, batch, recipe: numpy.float32(0.125)\n"
    )
    flags = ("--override", "schedule=mine.py:schedule", "--run-dir", "r", "--no-val")
    assert rn50("run", "--data-root", photos.root, *TINY, *flags).status == 0
    assert '"lr": 0.125' in (tmp_path / "r" / "progress.jsonl").read_text()


@pytest.mark.slow
def test_an_error_in_a_loader_s_worker_ends_the_run(
    run_cli: Run, photos: Photos, tmp_path: Path
) -> None:
    """The traceback keeps the loader's iterator, and with it workers that ignore SIGTERM."""
    (tmp_path / "mine.py").write_text("def augment(seed, width, height, how):\n    1 / 0\n")
    flags = ("--override", "augment=mine.py:augment", "--data-nthreads", "2")
    ended = run_cli("train", "--data-root", photos.root, *TINY, *flags, timeout=60)
    assert ended.returncode == 1 and "ZeroDivisionError" in ended.stderr


def test_sigterm_during_import_gives_143(run_cli: Run, photos: Photos, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import os\nos.kill(os.getpid(), 15)\n" + GOOD)
    flags = ("--data-root", photos.root, *TINY, "--override", "schedule=mine.py:schedule")
    assert run_cli("train", *flags).returncode == 143
