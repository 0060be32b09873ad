"""Large-batch practice through the command line: a run with all of it, its resume, its presets."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50lib import checkpoint
from rn50lib.recipe import LARGE_BATCH
from tests.support import TINY, Ended, Photos, run_here, strict_json, timeless

Run = Callable[..., Ended]
SMOOTHING = ("--label-smoothing", "0.1")
LARS = ("--optimizer", "lars", "--lr", "3.2")
ALL = (
    *(*TINY, *LARS, *SMOOTHING, "--lr-schedule", "cosine", "--warmup-epochs", "1", "-e", "4"),
    *("--zero-gamma", "--no-bn-decay"),
)
BACKENDS = [
    pytest.param("torch", marks=pytest.mark.needs("torch")),
    pytest.param("tensorflow", marks=[pytest.mark.acceptance, pytest.mark.needs("tensorflow")]),
]


@pytest.fixture
def whole(rn50: Run, photos: Photos, tmp_path: Path) -> Callable[[str], Path]:
    """A run that is left alone: checkpoints m and report r.json in a folder."""

    def train(backend: str) -> Path:
        folder = tmp_path / "whole"
        ended = rn50("train", "--data-root", photos.root, *ALL, "--backend", backend, "--report",
                     folder / "r.json", "--model-prefix", folder / "m")  # fmt: skip
        assert ended.status == 0, ended.err
        return folder

    return train


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_run_with_everything_learns_and_resumes_to_the_last_bit(
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
def test_a_run_is_not_resumed_as_another_kind(
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


@pytest.mark.parametrize("recipe", LARGE_BATCH, ids=lambda recipe: recipe.name)
def test_a_preset_says_where_it_is_from_and_what_it_reached(rn50: Run, recipe: Any) -> None:
    ended = rn50("run", "--preset", recipe.name, "--loader", "synthetic", "--dry-run")
    assert ended.status == 0, ended.err
    _, arithmetic, source, *rest = ended.out.splitlines()
    batch = recipe.global_batch
    n, b = batch // recipe.batch_size, recipe.batch_size
    assert arithmetic.startswith(f"global batch {n} x {b} = {batch}; learning rate {recipe.lr:g} x")
    assert source == f"{recipe.name}: {recipe.source}; {recipe.expected}"
    assert not any("not promised" in line for line in rest)


def test_eight_gpus_make_the_batch_of_256_by_adding_up(rn50: Run) -> None:
    ended = rn50("run", "--preset", "goyal2017", "-n", "8", "--macrobatch-size", "1024", "--loader",
                 "synthetic", "--dry-run")  # fmt: skip
    assert (
        "global batch 8 x 32 x 32 batches per update = 8192; learning rate 0.1 x 8192" in ended.out
    )
    assert "not promised" not in ended.out
    less = rn50("run", "--preset", "goyal2017", "-n", "8", "--loader", "synthetic", "--dry-run")
    assert "published with a global batch of 8192, this run's is 256" in less.out


def test_a_contradiction_is_one_line(rn50: Run) -> None:
    ended = rn50("run", "--recipe", "reference", "--optimizer", "lars", "--loader", "synthetic")
    assert ended.error == (
        "--optimizer lars: the learning rate of the recipe reference is for SGD: pass --lr too,"
        " or --recipe mlperf_lars_8k or mlperf_lars_64k"
    )
