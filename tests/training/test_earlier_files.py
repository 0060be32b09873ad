"""Files of an earlier rn50 can still be read: see tests/fixtures/earlier/README.md."""

from __future__ import annotations

import lzma
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support import Photos, strict_json

EARLIER = Path(__file__).parents[1] / "fixtures" / "earlier"


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A new folder with the files, the checkpoint unpacked."""
    for file in EARLIER.glob("*.json*"):
        shutil.copy(file, tmp_path)
    packed = EARLIER / "model-0002.safetensors.xz"
    (tmp_path / "model-0002.safetensors").write_bytes(lzma.decompress(packed.read_bytes()))
    return tmp_path


@pytest.mark.needs("torch")
def test_earlier_checkpoint_gives_the_same_score(
    rn50: Callable[..., Any], photos: Photos, earlier: Path
) -> None:
    scored = rn50("train", "--only-inference", "--model-prefix", "model", "--load-epoch", "2",
                  "-e", "1", "--data-root", photos.root, "--dtype", "float32", "--data-nthreads",
                  "0", "--threads", "1", "--report", "s.json")  # fmt: skip
    assert scored.status == 0, scored.err
    metrics = strict_json(earlier / "s.json")["metrics"]
    assert metrics["val.loss"][0] == pytest.approx(4.765756, rel=1e-4)
    assert metrics["val.top5"][0] == pytest.approx(84.2105, abs=1e-3)


@pytest.mark.needs("torch")
def test_earlier_run_resumes(rn50: Callable[..., Any], photos: Photos, earlier: Path) -> None:
    resumed = rn50("train", "--network", "tiny", "--image-shape", "32", "-b", "8", "--dtype",
                   "float16", "--recipe", "reference", "--seed", "7", "--data-root", photos.root,
                   "--data-nthreads", "0", "--threads", "1", "-e", "3", "--model-prefix", "model",
                   "--resume", "--report", "again.json")  # fmt: skip
    assert resumed.status == 0, resumed.err
    assert "model-0002.safetensors: 2 epochs are done" in resumed.err
    then, now = (strict_json(earlier / name)["metrics"] for name in ("report.json", "again.json"))
    for name, values in then.items():
        assert now[name][:2] == values and len(now[name]) == 3, name
