"""What notebook 02 computes beside the runs: its drawings' numbers, medians, tables, mistakes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.support import full
from workshop import expected, pairs
from workshop.lessons.single_gpu import figures, reading
from workshop.lessons.single_gpu import schedule as drawn
from workshop.lessons.single_gpu.predictions import Predictions

# --- the schedule ---------------------------------------------------------------------------------


def test_the_schedule_s_sentence_does_the_arithmetic() -> None:
    _, text = drawn.schedule("reference", **drawn.preset_values("reference"))
    assert "8 × 208 = 1,664" in text and "= 0.65." in text
    steps = 1_281_167 // 1664
    assert f"{steps:,} steps" in text and f"{90 * steps:,}." in text
    values = drawn.preset_values("roadsigns") | {"workers": 64, "batch": 256}
    _, text = drawn.schedule("roadsigns", **values)
    assert text.startswith("A global batch of 16,384 is more than")


@pytest.mark.parametrize("workers", [1, 8, 64])
def test_both_curves_stay_in_the_picture(workers: int) -> None:
    figure, _ = drawn.schedule(
        "reference", **drawn.preset_values("reference") | {"workers": workers}
    )
    for axes in figure.axes:
        low, high = axes.get_ylim()
        for line in axes.lines:
            assert low < min(line.get_ydata()) and max(line.get_ydata()) < high


def test_the_schedule_counts_the_pictures_that_are_drawn() -> None:
    from data_prep.roadsigns import TRAIN

    assert drawn.DATA["roadsigns"][1] == TRAIN


# --- pairs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "low", "high"),  # ranks of a 95 % interval, from tables of the sign test
    [(1, 1, 1), (2, 1, 2), (5, 1, 5), (6, 1, 6), (9, 2, 8), (10, 2, 9), (12, 3, 10), (15, 4, 12)],
)
def test_the_interval_of_a_median(count: int, low: int, high: int) -> None:
    values = [float(i) for i in range(1, count + 1)]
    np.random.default_rng(count).shuffle(values)
    assert pairs.median_interval(values) == ((count + 1) / 2, low, high)


def test_a_ratio_per_pair() -> None:
    measured = pairs.Pairs("a", "b", {"a": [1.0, 2.0], "b": [1.5, 2.0]}, full())
    assert measured.ratios == [1.5, 1.0]


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_two_networks_take_turns_in_one_process() -> None:
    common = {"image_shape": 32, "batch_size": 2, "num_classes": 5, "threads": 1}
    both = {name: dict(network="tiny", resnet_version=name, **common) for name in ("v1", "v1.5")}
    measured = pairs.time_pairs(both, pairs=3, steps=2)
    assert (measured.first, measured.second) == ("v1", "v1.5")
    assert all(len(times) == 3 and min(times) > 0 for times in measured.seconds.values())
    assert measured.experiment.threads == 1


# --- reports --------------------------------------------------------------------------------------

REPORT = {
    "model": "resnet-tiny",
    "ngpus": 1,
    "total_duration": 12.5,
    "cmd": ["rn50", "train"],
    "metrics": {"train.top1": [10.0, 20.0], "train.time": [0.5, 0.25], "train.total_ips": [8, 16]},
    "env": {
        "axes": {"lr": {"value": 0.1, "reason": "given"}},
        "seconds": {"step": 7.0, "data": 2.5, "loop": 0.5},
    },
}


def test_tables_hold_what_the_report_says() -> None:
    rows = {row[0]: row[1:] for row in reading.report_rows(REPORT)}
    assert list(rows) == [
        "model", "ngpus", "total_duration", "cmd", "metrics · train.top1", "metrics · train.time",
        "metrics · train.total_ips", "env",
    ]  # fmt: skip
    assert rows["cmd"][0] == "2 words" and rows["metrics · train.top1"][0] == 20.0
    assert reading.axes_rows(REPORT, ("lr", "dtype")) == [["lr", "0.1", "given"]]
    assert reading.first_iterations(REPORT, 11) == 10.0 - 7.5


def test_a_short_run_is_not_laid_beside_a_full_one() -> None:
    axes = {"dtype": {"value": "float32"}, "batch_size": {"value": 4}}
    report = {"model": "resnet50", "metrics": {"val.top1": [10.0, 20.0]}, "env": {"axes": axes}}
    key = "roadsigns.resnet50.float32.top1"
    assert reading.full_run(report, epochs=2)[key] == 20.0
    assert reading.full_run(report, epochs=18)[key] is None
    assert set(reading.full_run(report, 18).values()) == {None}
    assert reading.validated(report, 48) == 48
    axes["benchmark_iters"] = {"value": 2}
    assert reading.validated(report, 48) == 8


def test_a_v100_s_work_is_its_speed_times_the_network_s(repository: Path) -> None:
    axes = {"dtype": "bfloat16", "image_shape": 64, "batch_size": 32}
    report = {
        "model": "resnet50",
        "metrics": {"train.total_ips": [50.0]},
        "env": {
            "axes": {name: {"value": value} for name, value in axes.items()},
            "model_flops": {"per_image": 2e9, "per_second": 1e11},
        },
    }
    rows, columns = reading.beside_published(
        report, expected.load(repository / "notebooks" / "expected")
    )
    assert [len(row) for row in rows] == 3 * [len(columns)]
    assert rows[0][1:7] == ["bfloat16", 64, 32, 50.0, 2.0, 0.1]
    # 4.1 GMAC forward, two operations each, three times that to train: 24.5 GFLOP
    assert rows[1][5] == pytest.approx(24.5, abs=0.1)
    assert rows[1][6] == pytest.approx(1442.6 * 24.5e-3, rel=0.01)


# --- mistakes -------------------------------------------------------------------------------------


def predictions() -> Predictions:
    """Six pictures of four classes: the answers are a, b, a, d, d, b."""
    said = [(0, 0.9), (1, 0.6), (0, 0.8), (3, 0.5), (3, 0.99), (1, 0.7)]
    probabilities = np.zeros((6, 4), np.float32)
    for row, (label, value) in enumerate(said):
        probabilities[row] = (1 - value) / 3
        probabilities[row, label] = value
    labels = np.array([0, 1, 1, 2, 3, 0], np.int32)
    classes = ("a", "speed-1", "speed-2", "speed-3")
    return Predictions(probabilities, labels, classes, None, "m", 1)  # type: ignore[arg-type]


def test_the_surest_answers_come_first_one_of_a_class() -> None:
    found = predictions()
    assert found.top1() == 50.0 and found.top1(2) == 100.0
    assert figures.most_certain(found, right=True, count=9) == [4, 0, 1]
    assert figures.most_certain(found, right=False, count=2) == [2, 5]
    assert figures.most_certain(found, right=False, count=9) == [2, 5, 3]


def test_mistakes_are_counted_by_pair() -> None:
    _, text = figures.confusion(predictions())
    assert text.startswith("3 of 6 answers are wrong; the commonest mistakes take ")
    for mistake in ("a for speed-1 (1 times)", "speed-1 for a (1 times)", "speed-2 for speed-3"):
        assert mistake in text


def test_no_mistakes_is_said_so() -> None:
    assert figures.confusion_sentence(np.diag([3, 4]), ("a", "b")) == (
        "All 7 pictures were named rightly."
    )


def test_a_resumed_run_is_compared_reading_by_reading() -> None:
    def line(epoch: int, step: int, loss: float) -> dict:
        return {"phase": "train", "epoch": epoch, "step": step, "steps": 10, "loss": loss}

    whole = [line(0, 5, 3.0), line(0, 10, 2.0), line(1, 5, 1.5), line(1, 10, 1.0)]
    _, text = figures.resumed(whole, whole[:3], [line(1, 5, 1.5), line(1, 10, 1.01)])
    assert "killed at 1.50 epochs and went on from epoch 1;" in text
    assert "1 of its 2 readings" in text
