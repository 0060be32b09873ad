"""Notebook 03: its scripts on two ranks."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.conftest import ROOT, SmallDataset
from workshop import programs

LADDER = ["--data", "data", "--image-size", "32", "--batch-size", "4", "--steps", "2",
          "--warm-up", "0", "--workers", "1"]  # fmt: skip


@pytest.mark.acceptance
@pytest.mark.needs("torch", "horovod")
def test_horovod_and_ddp_train_the_same_model(
    roadsigns_small: SmallDataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    (tmp_path / "data").symlink_to(roadsigns_small.folder)
    weights = []
    for name, launcher in (("2_horovod", "horovodrun"), ("2_ddp", "torchrun")):
        shutil.copy(ROOT / "exercises" / "ladder" / f"{name}.py", tmp_path)
        flags = [*LADDER, "--save", f"{name}.pt"]
        words, shown, threads = programs.command(f"{name}.py", flags, 2, launcher)
        programs.run(words, tmp_path, shown, threads)
        weights.append(torch.load(tmp_path / f"{name}.pt"))
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-2, atol=1e-3, msg=name)
