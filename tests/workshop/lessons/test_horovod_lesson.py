"""What notebook 03 computes beside the runs: mistakes that really are some, sums that add up."""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50lib import distributed as comm
from rn50lib import hardware
from tests.conftest import ROOT, SmallDataset
from tests.launch import fake_gpus as fake
from workshop import session
from workshop.lessons import figures
from workshop.lessons.horovod import scaling, scripts
from workshop.programs import run_script


def test_a_group_of_one_is_never_apart() -> None:
    assert comm.max_difference({"w": np.arange(3.0)}, comm.connect()) == 0.0


# --- sums -----------------------------------------------------------------------------------------

TIMELINE = {"compute": 0.43, "negotiation": 0.02, "copy": 0.01, "allreduce": 0.06, "hidden": 0.03}


def test_the_parts_add_up_to_the_step() -> None:
    found = scaling.explain(0.381, 0.529, 2, 16, TIMELINE)
    assert sum(found.parts.values()) == pytest.approx(0.529)
    assert found.parts["slower"] == pytest.approx(0.049)
    assert found.parts["rest"] == pytest.approx(0.009)
    assert found.efficiency == pytest.approx(0.720, abs=5e-4)
    _, text = scaling.figure(found)
    assert text.endswith("The parts: 381 + 49 + 20 + 10 + 60 + 9 = 529 ms.")
    assert "1.44 times the speed, an efficiency of 72 %" in text


def test_without_a_timeline_all_that_is_lost_is_the_exchange() -> None:
    found = scaling.explain(0.4, 0.5, 2, 16)
    assert found.parts == {"alone": 0.4, "exchange": pytest.approx(0.1)}


def test_a_sum_with_a_negative_part_is_written_as_one() -> None:
    found = scaling.explain(0.381, 0.519, 2, 16, TIMELINE)
    assert found.sentence().endswith("381 + 49 + 20 + 10 + 60 − 1 = 519 ms.")


def test_a_measurement_that_was_disturbed_is_said_so_and_drawn_within_its_axes() -> None:
    found = scaling.explain(0.6, 0.529, 2, 16, TIMELINE)
    figure, text = scaling.figure(found)
    assert text.endswith("measure again.")
    axes = figure.axes[0]
    assert max(bar.get_x() + bar.get_width() for bar in axes.patches) <= axes.get_xlim()[1]
    assert "measure again" not in scaling.explain(0.381, 0.519, 2, 16, TIMELINE).sentence()


@pytest.mark.parametrize("goal", [0.5, 0.8, 0.9, 0.95])
@pytest.mark.parametrize(("per_image", "overhead"), [(0.0238, 0.148), (0.001, 0.01), (0.5, 0.01)])
def test_the_wanted_batch_is_the_smallest_that_reaches_the_goal(
    per_image: float, overhead: float, goal: float
) -> None:
    needed = scaling.wanted_batch(per_image, overhead, goal)
    reached = [
        b for b in range(1, 3000)
        if scaling.efficiency(b, per_image, overhead) >= goal - 1e-12
    ]  # fmt: skip
    assert needed == reached[0]


def test_the_batch_of_a_known_machine() -> None:
    """381 ms for 16 images alone, 529 ms with two: 64 images give about 91 %."""
    found = scaling.explain(0.381, 0.529, 2, 16)
    assert 100 * scaling.efficiency(64, found.per_image, found.overhead) == pytest.approx(
        91, abs=0.2
    )


# --- curves and tables ----------------------------------------------------------------------------


def progress(losses: list[float], steps: int = 10) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for epoch, loss in enumerate(losses):
        reading = {"phase": "train", "epoch": epoch, "steps": steps, "loss": loss}
        lines.append(reading | {"step": 5, "lr": 0.1 * epoch})
        lines.append(reading | {"step": 10, "loss": loss - 0.5})
        lines.append({"phase": "epoch", "epoch": epoch, "train.loss": loss - 0.25})
    return lines


def test_two_curves_are_compared_reading_by_reading() -> None:
    text = scaling.difference(progress([3.0, 2.0]), progress([3.1, 2.3]))
    assert text.startswith("At 4 readings the losses differ by 0.200 on average")
    assert text.endswith("changes the loss by 1.50.")
    assert "too few" in scaling.difference(progress([3.0]), progress([3.1]))


def test_curves_tell_the_last_epoch_s_loss() -> None:
    runs = {"a": progress([3.0, 2.0]), "b": progress([3.0])}
    _, text = figures.loss_curves(runs, "title", rate=True)
    assert text == "Mean training loss of the last epoch: a 1.75, b 2.75."
    at, rates = figures.readings(runs["a"], "lr")
    assert at == [0.5, 1.5] and rates == pytest.approx([0.0, 0.1])


def test_reports_beside_each_other() -> None:
    def report(n: int, losses: list[float], **env: Any) -> dict[str, Any]:
        axes = {"batch_size": {"value": 32 // n}}
        metrics = {"train.loss": losses, "val.loss": [None] * len(losses)}
        return {"model": "m", "ngpus": n, "metrics": metrics, "env": {"axes": axes} | env}

    both = {"one": report(1, [3.0, 2.0]), "two": report(2, [3.1, 2.1], weights_apart=0.0)}
    rows, columns = scaling.beside(both)
    assert columns == ["last epoch", "one", "two"]
    assert ["train.loss", 2.0, 2.1] in rows and ["batch_size", "32", "16"] in rows
    assert rows[-1] == ["largest difference between the ranks' weights", None, 0.0]
    assert not any(row[0].startswith("val.") for row in rows)


# --- scripts --------------------------------------------------------------------------------------


def test_a_script_that_cannot_be_run_is_passed_over_aloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scripts, "horovod_serves", lambda framework: False)
    scripts.horovodrun(tmp_path / "none.py", np=2)
    assert "`make horovod` builds it" in capsys.readouterr().out


# --- a single GPU ---------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "profile"), [(0, "auto"), (1, "cpu"), (2, "gpu")])
def test_a_lone_gpu_is_hidden_and_this_is_said(
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


# --- the notebooks' scripts -----------------------------------------------------------------------

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


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("script", "arguments"),
    [
        ("03_horovod/train_ddp.py", ["data"]),
        ("08_benchmark_and_scaling/bench.py", ["--size", "32", "--batches", "2", "--steps", "2"]),
        ("peer_parallel.py", ["ddp", "--size", "32", "--batch", "2", "--steps", "1"]),
    ],
)
def test_a_ddp_script_ends_without_threads_of_its_group(
    script: str, arguments: list[str], roadsigns_small: SmallDataset, tmp_path: Path
) -> None:
    """A thread of Gloo that is left when Python shuts down can abort the process."""
    notebook, _, name = script.rpartition("/")
    if notebook:
        write_scripts(notebook, tmp_path)
    else:
        for file in (name, "peers.py"):
            shutil.copy(ROOT / "benchmarks" / file, tmp_path)
    (tmp_path / "data").symlink_to(roadsigns_small.folder / "train")
    (tmp_path / "sitecustomize.py").write_text(AT_EXIT)
    places = os.pathsep.join([str(tmp_path), str(ROOT)])
    env = {"PYTHONPATH": places, "CUDA_VISIBLE_DEVICES": ""}
    run_script(tmp_path / name, *arguments, np=2, launcher="torchrun", env=env)
    assert [(tmp_path / f"left-{rank}").read_text() for rank in (0, 1)] == ["", ""]


@pytest.mark.slow
@pytest.mark.needs("torch", "horovod")
def test_horovod_s_and_ddp_s_script_train_the_same_model(
    roadsigns_small: SmallDataset, tmp_path: Path
) -> None:
    import torch

    write_scripts("03_horovod", tmp_path)
    data, env = roadsigns_small.folder / "train", {"CUDA_VISIBLE_DEVICES": ""}
    run_script(tmp_path / "train.py", data, np=2, env=env)
    run_script(tmp_path / "train_ddp.py", data, np=2, launcher="torchrun", env=env)
    model, model_ddp = (torch.load(tmp_path / name) for name in ("model.pt", "model_ddp.pt"))
    for name, tensor in model.items():
        torch.testing.assert_close(model_ddp[name], tensor, rtol=1e-2, atol=1e-3, msg=name)
