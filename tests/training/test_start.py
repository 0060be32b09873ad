"""A run that begins with the weights of a checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50lib import checkpoint
from tests.support import TINY, Ended, strict_json, write_photo

pytestmark = pytest.mark.needs("torch")

Run = Callable[..., Ended]


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


def test_invalid_checkpoints_are_named(rn50: Run, three: Path, trained: Path) -> None:
    missing = begin(rn50, three, Path("none"))
    assert "--init-from none: there is no checkpoint none-NNNN.safetensors" in missing.error
    Path("w.pth").touch()
    assert "rn50 import torchvision" in begin(rn50, three, Path("w.pth")).error
    deeper = rn50("run", "--init-from", trained / "m", "--network", "resnet", "--dry-run")
    assert "--network resnet" in deeper.error and "resnet-tiny" in deeper.error
