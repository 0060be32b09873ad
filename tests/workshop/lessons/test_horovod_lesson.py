"""Notebook 03: its scripts on two ranks, and a machine with a single GPU."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from rn50lib import distributed as comm
from rn50lib import hardware
from tests.conftest import ROOT, SmallDataset
from tests.launch import fake_gpus as fake
from workshop import session
from workshop.programs import run_script

LADDER = ["--data", "data", "--image-size", "32", "--batch-size", "4", "--steps", "2",
          "--warm-up", "0", "--workers", "1"]  # fmt: skip


def test_group_of_one_is_never_apart() -> None:
    assert comm.max_difference({"w": np.arange(3.0)}, comm.connect()) == 0.0


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
        assert session.hide_single_gpu("gpu" if count else "auto") == profile
        assert len(hardware.machine().gpus) == (0 if count == 1 else count)
        assert ("one GPU" in capsys.readouterr().out) == (count == 1)
        assert (os.environ["CUDA_VISIBLE_DEVICES"] == "") == (count == 1)
    finally:
        hardware.machine.cache_clear()


AT_EXIT = """
import atexit, os, pathlib

def threads():
    names = [file.read_text() for file in pathlib.Path("/proc/self/task").glob("*/comm")]
    left = [name.strip() for name in names if "gloo" in name]
    pathlib.Path("left-" + os.environ["RANK"]).write_text(" ".join(left))

if "RANK" in os.environ:
    atexit.register(threads)
"""


def write_scripts(notebook: str, folder: Path) -> None:
    """Write the scripts of a notebook as it leaves them: a later cell replaces an earlier file."""
    text = (ROOT / "notebooks" / "source" / f"{notebook}.py").read_text()
    for cell in re.split(r"^# %%(?!writefile).*\n", text, flags=re.MULTILINE):
        if cell.startswith("# %%writefile"):
            line, _, script = cell.partition("\n")
            (folder / Path(line).name).write_text(script)


@pytest.mark.acceptance
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("ladder/2_ddp.py", LADDER),
        ("08_benchmark_and_scaling/bench.py", ["--size", "32", "--batches", "2", "--steps", "2"]),
    ],
)
def test_ddp_script_ends_without_threads_of_its_group(
    script: str,
    arguments: list[str],
    roadsigns_small: SmallDataset,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A thread of Gloo that is left when Python shuts down can abort the process."""
    notebook, _, name = script.rpartition("/")
    if notebook == "ladder":
        shutil.copy(ROOT / "exercises" / script, tmp_path)
    else:
        write_scripts(notebook, tmp_path)
    (tmp_path / "data").symlink_to(roadsigns_small.folder)
    (tmp_path / "sitecustomize.py").write_text(AT_EXIT)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tmp_path), str(ROOT)]))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run_script(tmp_path / name, *arguments, np=2, launcher="torchrun")
    assert [(tmp_path / f"left-{rank}").read_text() for rank in (0, 1)] == ["", ""]


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
