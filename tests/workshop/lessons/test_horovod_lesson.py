"""What notebook 03 computes beside the runs: mistakes that really are some, sums that add up."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50lib import comm, hardware
from tests.launch import fake_nvidia_smi as fake
from workshop import session
from workshop.lessons import figures
from workshop.lessons.horovod import scaling, scripts


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
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")  # and put back afterwards
    monkeypatch.setenv("PATH", fake.install(tmp_path, [fake.V100] * count))
    hardware.machine.cache_clear()
    try:
        assert len(hardware.machine().gpus) == count
        assert session.hide_single_gpu("gpu" if count else "auto") == profile
        assert len(hardware.machine().gpus) == (0 if count == 1 else count)
        assert ("one GPU" in capsys.readouterr().out) == (count == 1)
        assert (os.environ["CUDA_VISIBLE_DEVICES"] == "") == (count == 1)
    finally:
        hardware.machine.cache_clear()
