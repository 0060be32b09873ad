"""A run that begins with the weights of a checkpoint."""

from __future__ import annotations

import shutil
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


def test_a_resumed_run_needs_its_start_weights_no_more(
    rn50: Run, trained: Path, three: Path, tmp_path: Path
) -> None:
    base = tmp_path / "base"
    base.mkdir()
    for end in ("-0002.safetensors", "-symbol.json"):
        shutil.copy(f"{trained / 'm'}{end}", f"{base / 'm (1)'}{end}")  # a second download's name
    assert begin(rn50, three, base / "m (1)").status == 0
    shutil.rmtree(base)
    for epochs, start in enumerate(("m (1)", "m (1)-0002.safetensors"), start=2):
        ended = begin(rn50, three, base / start, "-e", str(epochs), "--resume")
        assert ended.status == 0 and "resumed from n-" in ended.err, ended.err
        stored = [checkpoint.load("n", epoch).fingerprint["init_from"] for epoch in (1, epochs)]
        assert stored[0] == stored[1]  # with the checksum
    for other in ("other", "m (1)-0001.safetensors"):
        ended = begin(rn50, three, base / other, "-e", "4", "--resume")
        assert "was written with init_from m (1)-0002.safetensors" in ended.error
    Path("damaged-0001.safetensors").touch()
    for prefix in ("fresh", "damaged"):
        ended = begin(rn50, three, base / "m (1)", "--model-prefix", prefix, "--resume")
        assert "--init-from" in ended.error and "there is no checkpoint" in ended.error


def test_invalid_checkpoints_are_named(rn50: Run, three: Path, trained: Path) -> None:
    missing = begin(rn50, three, Path("none"))
    assert "--init-from none: there is no checkpoint none-NNNN.safetensors" in missing.error
    Path("w.pth").touch()
    assert "rn50 import FILE" in begin(rn50, three, Path("w.pth")).error
    deeper = rn50("run", "--init-from", trained / "m", "--network", "resnet", "--dry-run")
    assert "--network resnet" in deeper.error and "resnet-tiny" in deeper.error
