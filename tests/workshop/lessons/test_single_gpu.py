"""What notebook 02 computes beside the runs: its drawings' numbers, medians, tables, mistakes."""

from __future__ import annotations

import numpy as np
import pytest

from rn50lib import network, training
from rn50lib.config import Experiment
from workshop import pairs
from workshop.lessons.single_gpu import figures, reading
from workshop.lessons.single_gpu import network as drawn
from workshop.lessons.single_gpu.predictions import Predictions

V1, V15 = network.resnet(50, version="v1"), network.resnet(50)


# --- the network, drawn ---------------------------------------------------------------------------


def test_the_parts_add_up_to_the_network() -> None:
    rows = drawn.part_rows(V15, 224)
    names, blocks, sizes, channels, macs, parameters = zip(*rows, strict=True)
    assert names == ("stem", "stage 1", "stage 2", "stage 3", "stage 4", "fc")
    assert blocks == (0, 3, 4, 6, 3, 0)
    assert sizes == (56, 56, 28, 14, 7, 1)
    assert channels == (64, 256, 512, 1024, 2048, 1000)
    assert sum(macs) == pytest.approx(V15.macs(224) / 1e6)
    assert sum(parameters) == 25_557_032


@pytest.mark.parametrize(("kernel", "stride"), [(1, 1), (1, 2), (3, 1), (3, 2), (7, 2)])
@pytest.mark.parametrize("size", [7, 8])
def test_pixels_read_are_those_that_change_an_output(kernel: int, stride: int, size: int) -> None:
    conv = network.Conv("conv", 1, 1, kernel, stride)
    expected = np.zeros((size, size), int)
    for pixel in np.ndindex(size, size):
        image = np.zeros((size, size))
        image[pixel] = 1
        padded = np.pad(image, kernel // 2)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel))
        expected[pixel] = np.count_nonzero(windows[::stride, ::stride].sum(axis=(2, 3)))
    assert np.array_equal(drawn.pixels_read(conv, size), expected)


def test_only_v1_leaves_pixels_unread() -> None:
    _, text = drawn.strides([V1, V15])
    assert "1×1 convolution with the stride reads 25 %" in text
    assert "3×3 convolution with the stride reads 100 %" in text


@pytest.mark.parametrize("net", [V1, V15], ids=["v1", "v1.5"])
def test_the_work_in_the_table_is_the_network_s(net: network.Network) -> None:
    counted = {layer.name: layer.macs / 1e6 for layer in net.layers(224)}
    rows = drawn.stride_rows(net, 224)
    assert [row[0] for row in rows] == [net.version] * 3 and rows[0][3] == 56
    for _, name, _, _, _, macs, _ in rows:
        assert macs == counted[name.partition(",")[0]]


def test_the_schedule_s_sentence_does_the_arithmetic() -> None:
    _, text = drawn.schedule("reference", **drawn.preset_values("reference"))
    assert "8 × 208 = 1,664" in text and "= 0.65." in text
    steps = 1_281_167 // 1664
    assert f"{steps:,} steps" in text and f"{90 * steps:,}." in text
    values = drawn.preset_values("roadsigns") | {"workers": 64, "batch": 256}
    _, text = drawn.schedule("roadsigns", **values)
    assert text.startswith("A global batch of 16,384 is more than")


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
    measured = pairs.Pairs("a", "b", {"a": [1.0, 2.0], "b": [1.5, 2.0]}, Experiment())
    assert measured.ratios == [1.5, 1.0]


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_two_networks_take_turns_in_one_process() -> None:
    common = {"image_shape": 32, "batch_size": 2, "num_classes": 5, "threads": 1}
    both = {
        name: Experiment(network="tiny", resnet_version=name, **common) for name in ("v1", "v1.5")
    }
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
    assert reading.iteration_rows(REPORT, 11) == [[1, 10, 0.5, 8], [2, 10, 0.25, 16]]
    assert reading.first_iterations(REPORT, 11) == 10.0 - 7.5


def test_calls_are_found_in_the_order_of_the_source() -> None:
    found = reading.calls(training.train_epoch)
    assert found.index("batches") < found.index("train_step") < found.index("finish")
    assert "item" not in found


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
