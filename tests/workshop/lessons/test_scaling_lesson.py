"""What notebook 08 computes: means, tables, the parts of a predicted step, and what it draws of
them; and that a sweep run from a cell tells its file, or why there is none."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from rn50.compare import published, read
from rn50.published import load
from rn50.scaling import Training
from rn50lib.resnet import resnet
from workshop import output
from workshop.errors import RunFailed
from workshop.lessons.scaling import figures, predictions, readings, sweeps

FP16, FP32 = published("DGX-1/mixed"), published("DGX-1/FP32")
V100 = Training(1442.6, 208)


def drawn(found: tuple[Any, str]) -> tuple[Any, str]:
    found[0].savefig(os.devnull, format="png", dpi=20)
    return found


# --- means ----------------------------------------------------------------------------------------


def test_a_cold_start_is_told_in_per_cent() -> None:
    _, text = drawn(figures.cold_start([1.0, 0.1, 0.1, 0.1], batch=4))
    assert "takes 10.0 times as long" in text
    assert "12.3 images per second, over the second half 40.0" in text
    assert "69 % too low" in text


# --- tables ---------------------------------------------------------------------------------------


def test_the_published_table_is_the_documents() -> None:
    """The numbers stand in the reference's README, speed-up and weak scaling among them."""
    rows, columns = sweeps.training_table([FP16, FP32])
    shown = [[*row[:5], *(f"{value:.2f}" for value in row[5:])] for row in rows]
    assert shown == [
        [1, 208, 1442.6, 96, 400.2, "3.60", "1.00", "1.00"],
        [4, 208, 5391.8, 96, 1558.6, "3.46", "3.74", "3.89"],
        [8, 208, 10263.2, 96, 2957.4, "3.47", "7.11", "7.39"],
    ]
    assert len(columns) == len(rows[0])


def test_equal_batches_are_not_the_best_batches() -> None:
    batch, equal, best = sweeps.equal_and_best(FP16, FP32)
    assert (
        batch == 96 and equal == pytest.approx(3546 / 1282) and best == pytest.approx(3832 / 1282)
    )
    _, text = drawn(figures.by_batch([FP16, FP32]))
    assert "2.77 times" in text and "2.99 times" in text
    rows, columns = sweeps.batch_table([FP16, FP32])
    assert rows[0] == [1, 314, 252, pytest.approx(314 / 252)] and rows[-1] == [
        208,
        3832,
        None,
        None,
    ]
    assert columns[-1].endswith("/ DGX-1/FP32")


def test_a_cell_that_failed_is_nobodys_number(tmp_path: Path) -> None:
    told = {
        "model": "resnet50", "ngpus": [1, 2], "bs": [8, 16], "metric_keys": ["train.total_ips"],
        "metrics": {
            "1": {"8": {"train.total_ips": 40.0}, "16": {"train.total_ips": 50.0}},
            "2": {"8": {"train.total_ips": 60.0}, "16": {"train.total_ips": None}},
        },
    }  # fmt: skip
    (tmp_path / "a.json").write_text(json.dumps(told))
    side = read(str(tmp_path / "a.json"))
    assert side.best_batch(sweeps.TRAIN, 2) == (8, 60.0)
    rows, _ = sweeps.training_table([side, side])
    assert rows[1][6] == pytest.approx(1.5)  # at its own batch, not over the best of one worker


def test_markdown_has_numbers_to_the_right() -> None:
    text = sweeps.markdown([["a", 1.5, None], ["b", 20_000, 3]], ["name", "x", "y"])
    assert text.splitlines() == [
        "| name | x | y |", "| --- | ---: | ---: |", "| a | 1.5 | – |", "| b | 20,000 | 3 |"
    ]  # fmt: skip


# --- the model ------------------------------------------------------------------------------------


def test_the_exchange_by_hand() -> None:
    """512 GPUs are 64 hosts: both algorithms from the links' bandwidths and latencies."""
    figure, text = drawn(predictions.exchange(V100, "nvlink+100g"))
    size = 4 * resnet(50).num_parameters
    ring = 2 * 511 * (14e-6 + size / 512 / 12e9) + 8.4e-6
    levels = 2 * 7 * (3.4e-6 + size / 8 / 120e9) + 2 * 63 * (14e-6 + size / 64 / 12e9) + 8.4e-6
    ends = [line.get_ydata()[-1] for line in figure.axes[0].lines]
    assert ends == pytest.approx([1000 * ring, 1000 * levels], rel=1e-6)
    assert f"{1000 * ring:.0f} ms as one ring" in text


def test_sharing_a_batch_ends_and_keeping_it_does_not() -> None:
    rows = predictions.strong_rows(V100, "nvlink+100g", 1664)
    weak, strong = [row[1] for row in rows], [row[3] for row in rows]
    assert weak == sorted(weak) and strong[3] == pytest.approx(weak[3])  # 8 x 208 = 1,664
    assert max(strong) < weak[-1] / 4 and rows[-1][2] == 3


def test_every_change_makes_it_slower() -> None:
    rows = dict(predictions.changes(V100, "nvlink+100g", 512))
    real = rows.pop("as it is")
    fed = 8000 / (8 * V100.compute_ips)  # eight GPUs of a host share its loaders
    assert rows["loaders that deliver 8,000 img/s a host"] == pytest.approx(100 * fed)
    assert max(rows.values()) < real


def test_the_readings_part_where_no_row_holds_them_together() -> None:
    rows, _ = predictions.by_reading(V100, "nvlink+100g", (8, 512))
    near, far = rows[-1][2:]
    assert near < 10 < far  # points between the highest and the lowest


def test_this_machine_predicted_without_a_fit() -> None:
    """An all-reduce of two that takes 1 ms and 1 ns a byte, after 0.2 s of computing."""
    own = Training(40.0, 8, 4, resnet(50, 12), 64)
    here = predictions.predict_here(own, 2, 1e-3, 1e9, ips=60.0)
    rows = dict(here.rows())
    assert rows["computing, as one worker alone (measured)"] == pytest.approx(200)
    assert rows["a step, measured"] == pytest.approx(1000 * 16 / 60)
    assert rows["a step, predicted"] + rows["what the model does not know of"] == pytest.approx(
        rows["a step, measured"]
    )
    last = own.buckets[-1].size  # nothing is left that could hide it
    assert here.predicted.exposed_s >= 1e-3 + last / 1e9 - 1e-9
    assert here.error == pytest.approx(here.predicted.ips / 60 - 1)


def test_every_held_out_row_is_in_the_table() -> None:
    rows, columns = predictions.held_out_rows()
    assert len(rows) == 8 and len(columns) == len(rows[0])
    dlperf = next(row for row in rows if row[0] == "DLPerf mixed")
    assert dlperf[1:3] == [32, 30713.68] and dlperf[-1] == "+45.2"  # 32 x 1393.87


def test_the_picture_and_the_sentence_say_the_same() -> None:
    given = {"gpus": 64, "batch": 208, "price": 2.0, "ips": 1442.6, "noise": 0.02}
    found = predictions.predicted(network="nvlink+100g", overlap=True, **given)
    figure, sentence = drawn(found)
    left, right = figure.axes
    step = predictions.steps(64, 208, "nvlink+100g", True, 1442.6, noise=0.02)[-1]
    assert left.lines[0].get_ydata()[-1] == pytest.approx(100 * step.efficiency)
    top = max(bar.get_y() + bar.get_height() for bar in right.patches)
    assert top == pytest.approx(1000 * step.step_s)
    assert f"{step.ips:,.0f} images per second" in sentence
    cost = 90 * 1_281_167 / step.ips / 3600 * 64 * 2
    assert f"{cost:,.0f} at 2 for each GPU" in sentence and "minutes" in sentence
    slower = predictions.predicted(network="pcie+10g", overlap=False, **given)[1]
    assert share(slower) < share(sentence)


def share(sentence: str) -> int:
    return int(re.findall(r"(\d+) % of perfect", sentence)[0])


def test_the_controls_start_with_a_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr(output.Slot, "update", lambda self, data, metadata=None: shown.append(data))
    monkeypatch.setattr("IPython.display.display", lambda *args, **kwargs: None)
    predictions.explore(1442.6, 208, noise=0.02)
    assert any("<img " in data.get("text/html", "") for data in shown)
    assert any("90 epochs of ImageNet" in data["text/plain"] for data in shown)


# --- published rows -------------------------------------------------------------------------------


def test_each_number_is_fitted_to_the_rows_that_may_be_fitted(repository: Path) -> None:
    for key, series in load().items():
        assert readings.parameter(*key, readings.MODEL) == pytest.approx(series.noise, rel=1e-6)
    four, eight = readings.outcomes()[:2]
    assert four.fitted and abs(four.error("stragglers")) < 1e-4 and not eight.fitted
    # Amdahl's law by solving it for the serial share
    serial = (4 / (5391.8 / 1442.6) - 1) / 3
    assert eight.predicted["Amdahl"] == pytest.approx(1442.6 / (serial + (1 - serial) / 8))
    page = " ".join((repository / "docs" / "commands.md").read_text().split())
    found = re.findall(r"(\w+) ([\d.]+ %) \(at most ([\d.]+ %)\)", readings.verdict())
    mean, worst = ({name: row[i] for name, *row in found} for i in (0, 1))
    assert f"{mean['stragglers']} in the mean and {worst['stragglers']} at most" in page
    assert f"law misses them by {mean['Amdahl']}, perfect scaling by {mean['perfect']}" in page


# --- with real processes --------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_a_sweep_from_a_cell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr(output.Slot, "html", lambda self, html, text: shown.append(text))
    monkeypatch.setenv("RN50_RUNS", str(tmp_path / "runs"))
    flags = ["-n", 1, "-b", "4,24", "-i", 6, "-e", 2, "-w", 1, "--num-examples", 24, "--no-val",
             "--step", "paced:2000", "--loader", "synthetic", "--network", "tiny",
             "--image-shape", 32, "--threads", 1]  # fmt: skip
    found = sweeps.run(tmp_path / "a.json", *flags, status=1)
    assert found["metrics"]["1"]["24"][sweeps.TRAIN] is None
    assert shown[0].startswith("$ rn50 benchmark -n 1 -b 4,24") and "failed" in shown[-1]
    with pytest.raises(RunFailed, match="exit status 2"):
        sweeps.run(tmp_path / "b.json", "-w", 3)
