"""Notebook 03: its scripts on two ranks, and a machine with a single GPU."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from rn50lib import hardware
from tests.conftest import ROOT, SmallDataset
from tests.launch import fake_gpus as fake
from workshop import opening
from workshop.programs import run_script

LADDER = ["--data", "data", "--image-size", "32", "--batch-size", "4", "--steps", "2",
          "--warm-up", "0", "--workers", "1"]  # fmt: skip


@pytest.mark.parametrize(("count", "profile"), [(0, "auto"), (1, "cpu"), (2, "gpu")])
def test_single_gpu_is_hidden_with_a_note(
    count: int,
    profile: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    fake.install(monkeypatch, [fake.V100] * count)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")  # restored afterwards
    hardware.machine.cache_clear()
    try:
        assert len(hardware.machine().gpus) == count
        assert opening.hide_single_gpu("gpu" if count else "auto") == profile
        assert len(hardware.machine().gpus) == (0 if count == 1 else count)
        assert ("one GPU" in capsys.readouterr().out) == (count == 1)
        assert (os.environ["CUDA_VISIBLE_DEVICES"] == "") == (count == 1)
    finally:
        hardware.machine.cache_clear()


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
        run_script(tmp_path / f"{name}.py", *flags, np=2, launcher=launcher)
        weights.append(torch.load(tmp_path / f"{name}.pt"))
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, rtol=1e-2, atol=1e-3, msg=name)
