"""A run that begins with the weights of a checkpoint, and leaves the first layers as they are."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50lib import checkpoint
from tests.conftest import clean_environment
from tests.support import TINY, Ended, strict_json, write_photo

pytestmark = pytest.mark.needs("torch")

Run = Callable[..., Ended]
STAGES = ("stem", "stage1", "stage2", "stage3", "stage4")
OWNERS = (("conv1.", "bn1."), *((f"layer{i}.",) for i in range(1, 5)))


@pytest.fixture(scope="module")
def three(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data set of three classes."""
    root = tmp_path_factory.mktemp("three")
    for c in range(3):
        for i in range(8):
            write_photo(root / "train" / f"class{c}" / f"{i}.jpg", 8 * c + i)
            write_photo(root / "val" / f"class{c}" / f"{i}.jpg", 8 * c + i)
    return root


def arrays(prefix: str | Path, epoch: int) -> dict[str, np.ndarray]:
    return checkpoint.load(prefix, epoch).arrays


def unchanged(before: dict[str, np.ndarray], after: dict[str, np.ndarray]) -> set[str]:
    """Return the names of the arrays that are bit-identical."""
    return {name for name in after if name in before and np.array_equal(before[name], after[name])}


def first_layers(names: dict[str, np.ndarray], stage: str) -> set[str]:
    """Names of the arrays up to a stage, by the names of the layers."""
    owners = sum(OWNERS[: STAGES.index(stage) + 1], ())
    return {name for name in names if name.startswith(owners)}


def begin(rn50: Callable, root: Path, base: Path, *flags: str) -> Any:
    return rn50("train", "--data-root", root, *TINY, "-e", "1", "--init-from", base,
                "--model-prefix", "n", "--report", "r.json", *flags)  # fmt: skip


def test_different_number_of_classes_gets_a_new_head(rn50: Run, trained: Path, three: Path) -> None:
    ended = begin(rn50, three, trained / "m", "--lr", "0")  # nothing is learnt: the start is seen
    assert ended.status == 0, ended.err
    line = f"{trained / 'm-0002.safetensors'} (6 classes): a new last layer, for 3 classes"
    assert line in ended.err
    before, after = arrays(trained / "m", 2), arrays("n", 1)
    weights = {n for n in before if not n.startswith(("fc.", "velocity/")) and "running_" not in n}
    assert unchanged(before, after) >= weights
    assert after["fc.weight"].shape[0] == 3 and after["fc.weight"].std() > 0
    env = strict_json(Path("r.json"))["env"]
    assert line in env["start"]
    assert env["axes"]["init_from"]["value"] == str(trained / "m-0002.safetensors")


@pytest.mark.parametrize(
    ("backend", "stage"),
    [
        ("torch", "stem"),
        ("torch", "stage2"),
        ("torch", "stage4"),
        pytest.param(
            *("tensorflow", "stage2"), marks=[pytest.mark.needs("tensorflow"), pytest.mark.slow]
        ),
    ],
)
def test_frozen_layers_stay_to_the_bit(
    rn50: Run, run_cli: Callable, trained: Path, three: Path, stage: str, backend: str
) -> None:
    flags = ("--freeze-until", stage, "--backend", backend, "--lr", "0.4", "--wd", "0.1")
    if backend == "tensorflow":  # its threads may be set but once in a process
        done = begin(run_cli, three, trained / "m", *flags)
        assert done.returncode == 0, done.stderr
    else:
        ended = begin(rn50, three, trained / "m", *flags)
        assert ended.status == 0, ended.err
    before, after = arrays(trained / "m", 2), arrays("n", 1)
    frozen = first_layers(before, stage)
    assert unchanged(before, after) == frozen
    velocities = {name.removeprefix("velocity/") for name in after if "velocity/" in name}
    assert velocities == {n for n in after if "/" not in n and "running_" not in n} - frozen


@pytest.mark.slow
def test_frozen_layers_stay_on_two_workers(
    run_cli: Callable, trained: Path, three: Path, tmp_path: Path
) -> None:
    done = run_cli(
        "run", "-n", "2", "--comm", "ddp", "--data-root", three, *TINY, "-b", "4", "-e", "1",
        "--init-from", trained / "m", "--freeze-until", "stage3", "--model-prefix", "n",
        env=clean_environment(),
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    before = arrays(trained / "m", 2)
    assert unchanged(before, arrays(tmp_path / "n", 1)) == first_layers(before, "stage3")


def test_frozen_layers_resume(rn50: Run, trained: Path, three: Path, tmp_path: Path) -> None:
    flags = ("--freeze-until", "stage1", "--lr", "0.1")
    assert begin(rn50, three, trained / "m", *flags, "-e", "2").status == 0
    (tmp_path / "again").mkdir()
    for name in ("n-0001.safetensors", "n-symbol.json"):
        shutil.copy(name, "again")
    again = ("--model-prefix", "again/n", "-e", "2", "--resume")
    ended = begin(rn50, three, trained / "m", *flags, *again)
    assert ended.status == 0 and "n-0001.safetensors: 1 epoch is done" in ended.err
    whole, resumed = arrays("n", 2), arrays("again/n", 2)
    assert unchanged(whole, resumed) == set(whole) == set(resumed)
    other = begin(rn50, three, trained / "m-0001.safetensors", *flags, *again)
    assert "init_from m-0002.safetensors" in other.error and "--init-from" in other.error
    thawed = begin(rn50, three, trained / "m", *again)
    assert "freeze_until stage1" in thawed.error and "--freeze-until" in thawed.error


def test_invalid_checkpoints_are_named(rn50: Run, three: Path, trained: Path) -> None:
    missing = begin(rn50, three, Path("none"))
    assert "--init-from none: there is no checkpoint none-NNNN.safetensors" in missing.error
    Path("w.pth").touch()
    assert "rn50 import torchvision w.pth" in begin(rn50, three, Path("w.pth")).error
    deeper = rn50("run", "--init-from", trained / "m", "--network", "resnet", "--dry-run")
    assert "--network resnet" in deeper.error and "resnet-tiny" in deeper.error
