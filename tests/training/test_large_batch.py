"""Large-batch practice through the command line: a run with all of it, its resume, its presets."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from rn50lib import checkpoint
from tests.support import TINY, Ended, Photos, strict_json, timeless

Run = Callable[..., Ended]
SMOOTHING = ("--label-smoothing", "0.1")
ALL = (
    *(
        *TINY,
        *SMOOTHING,
        "--lr",
        "0.2",
        "--lr-schedule",
        "cosine",
        "--warmup-epochs",
        "1",
        "-e",
        "4",
    ),
    *("--set", "zero_gamma=true", "--set", "bn_decay=false"),
)
BACKENDS = [
    pytest.param("torch", marks=pytest.mark.needs("torch")),
    pytest.param("tensorflow", marks=[pytest.mark.acceptance, pytest.mark.needs("tensorflow")]),
]


@pytest.mark.parametrize("backend", BACKENDS)
def test_run_with_all_large_batch_flags_resumes_bit_exactly(
    rn50: Run, photos: Photos, backend: str, tmp_path: Path
) -> None:
    folder, common = tmp_path / "whole", ("train", "--data-root", photos.root, *ALL)
    ended = rn50(*common, "--backend", backend, "--report", folder / "r.json", "--model-prefix",
                 folder / "m")  # fmt: skip
    assert ended.status == 0, ended.err
    told = strict_json(folder / "r.json")
    losses = told["metrics"]["train.loss"]
    assert losses[-1] < 0.85 * losses[0]
    chosen = {name: told["env"]["axes"][name]["value"] for name in (
        "lr_schedule", "label_smoothing", "zero_gamma", "bn_decay"
    )}  # fmt: skip
    assert list(chosen.values()) == ["cosine", 0.1, True, False]
    for name in ("m-0002.safetensors", "m-symbol.json"):
        shutil.copy(folder / name, tmp_path)
    ended = rn50(*common, "--backend", backend, "--report", "r.json", "--model-prefix", "m",
                 "--resume")  # fmt: skip
    assert ended.status == 0 and "2 epochs are done" in ended.err, ended.err
    wanted, made = (checkpoint.load(prefix, 4).arrays for prefix in (folder / "m", "m"))
    assert wanted.keys() == made.keys()
    assert all(np.array_equal(wanted[name], made[name]) for name in wanted)
    assert any(array.any() for name, array in made.items() if name.startswith("velocity/"))
    assert timeless(strict_json(tmp_path / "r.json")) == timeless(told)
