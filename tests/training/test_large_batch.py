"""Large-batch practice through the command line: a run with all of it, its resume, its presets."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50lib import checkpoint
from tests.support import TINY, Ended, Photos, run_here, strict_json, timeless

Run = Callable[..., Ended]
SMOOTHING = ("--label-smoothing", "0.1")
LARS = ("--optimizer", "lars", "--lr", "3.2")
ALL = (
    *(*TINY, *LARS, *SMOOTHING, "--lr-schedule", "cosine", "--warmup-epochs", "1", "-e", "4"),
    *("--set", "zero_gamma=true", "--set", "bn_decay=false"),
)
BACKENDS = [
    pytest.param("torch", marks=pytest.mark.needs("torch")),
    pytest.param("tensorflow", marks=[pytest.mark.acceptance, pytest.mark.needs("tensorflow")]),
]


@pytest.fixture
def whole(rn50: Run, photos: Photos, tmp_path: Path) -> Callable[[str], Path]:
    """An uninterrupted run: checkpoints m and report r.json in a folder."""

    def train(backend: str) -> Path:
        folder = tmp_path / "whole"
        ended = rn50("train", "--data-root", photos.root, *ALL, "--backend", backend, "--report",
                     folder / "r.json", "--model-prefix", folder / "m")  # fmt: skip
        assert ended.status == 0, ended.err
        return folder

    return train


@pytest.mark.parametrize("backend", BACKENDS)
def test_run_with_all_large_batch_flags_resumes_bit_exactly(
    rn50: Run, photos: Photos, whole: Callable[[str], Path], backend: str, tmp_path: Path
) -> None:
    folder = whole(backend)
    told = strict_json(folder / "r.json")
    losses = told["metrics"]["train.loss"]
    assert losses[-1] < 0.85 * losses[0]
    chosen = {name: told["env"]["axes"][name]["value"] for name in (
        "optimizer", "lr_schedule", "label_smoothing", "zero_gamma", "bn_decay"
    )}  # fmt: skip
    assert list(chosen.values()) == ["lars", "cosine", 0.1, True, False]
    for name in ("m-0002.safetensors", "m-symbol.json"):
        shutil.copy(folder / name, tmp_path)
    ended = rn50("train", "--data-root", photos.root, *ALL, "--backend", backend, "--report",
                 "r.json", "--model-prefix", "m", "--resume")  # fmt: skip
    assert ended.status == 0 and "2 epochs are done" in ended.err, ended.err
    wanted, made = (checkpoint.load(prefix, 4).arrays for prefix in (folder / "m", "m"))
    assert wanted.keys() == made.keys()
    assert all(np.array_equal(wanted[name], made[name]) for name in wanted)
    assert any(array.any() for name, array in made.items() if name.startswith("velocity/"))
    assert timeless(strict_json(tmp_path / "r.json")) == timeless(told)


@pytest.fixture(scope="module")
def started(photos: Photos, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a first epoch with SGD and no smoothing."""
    folder = tmp_path_factory.mktemp("started")
    capture: Any = type("Silent", (), {"readouterr": lambda self: Ended(0, "", "")})()
    run_here(capture, "train", "--data-root", photos.root, *TINY, "-e", "1", "--no-val",
             "--model-prefix", folder / "m")  # fmt: skip
    assert checkpoint.epochs(folder / "m") == [1]
    return folder


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (LARS, "optimizer sgd, this run has lars"),
        (SMOOTHING, "label_smoothing 0.0, this run has 0.1"),
    ],
)
def test_resume_with_a_different_optimizer_is_refused(
    rn50: Run, photos: Photos, started: Path, tmp_path: Path, flags: tuple[str, ...], problem: str
) -> None:
    shutil.copytree(started, tmp_path, dirs_exist_ok=True)
    again = ("train", "--data-root", photos.root, *TINY, "-e", "2", "--no-val", "--model-prefix",
             "m", "--resume")  # fmt: skip
    assert problem in rn50(*again, *flags).error
    # what came before these two were written down was SGD without smoothing
    found = checkpoint.load("m", 1)
    for name in ("optimizer", "label_smoothing"):
        del found.fingerprint[name]
    checkpoint.save("m", found)
    assert problem in rn50(*again, *flags).error
    assert rn50(*again).status == 0
