"""What notebook 06 computes: rounding to a format, gradients by size, traffic, sums; and what it
measures in processes of its own."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from rn50 import launch
from rn50lib import resnet as network
from rn50lib.resnet import Network, resnet
from tests.conftest import clean_environment
from tests.support import TINY, Photos, full
from workshop.lessons.precision import (
    figures,
    gradients,
    loss_scale,
    memory,
    roofline,
)
from workshop.lessons.precision.gradients import BFLOAT16, FLOAT16

# --- formats --------------------------------------------------------------------------------------


def test_limits_of_the_formats() -> None:
    half = np.finfo(np.float16)
    assert 2.0**FLOAT16.lowest == half.smallest_normal
    assert 2.0**FLOAT16.tiny == half.smallest_subnormal
    assert 2.0**FLOAT16.highest < float(half.max) < 2.0 ** (FLOAT16.highest + 1)
    assert 2.0**BFLOAT16.lowest == np.finfo(np.float32).smallest_normal


# --- gradients ------------------------------------------------------------------------------------


def test_gradients_are_counted_by_powers_of_two() -> None:
    values = np.array([0.0, 1.0, -1.5, 2.0, 2.0**-26, -(2.0**-25), 2.0**-20, 1e-30], np.float32)
    counts = gradients.count(values)
    item = gradients.Gradients("x", counts)
    assert counts.sum() == 7  # the zero is left out
    assert counts[0 - gradients.LOWEST] == 2 and counts[-26 - gradients.LOWEST] == 1
    assert item.vanish(FLOAT16) == 2 / 7  # 2^-26 and 1e-30
    assert item.vanish(FLOAT16, 1) == 1 / 7
    assert item.vanish(BFLOAT16) == 0
    assert item.overflow(FLOAT16, 14) == 0 and item.overflow(FLOAT16, 15) == 1 / 7


@pytest.mark.needs("torch")
def test_what_vanishes_is_what_rounds_to_zero() -> None:
    rng = np.random.default_rng(1)
    values = np.exp2(rng.uniform(-40, 10, 20_000)).astype(np.float32)
    item = gradients.Gradients("x", gradients.count(values))
    import torch

    for scale in (0, 7, 16):
        for to in (FLOAT16, BFLOAT16):
            scaled = torch.tensor(values * np.float32(2.0**scale))
            rounded = scaled.to(getattr(torch, to.name)).double().numpy()
            assert item.vanish(to, scale) == np.mean(rounded == 0)
            assert item.overflow(to, scale) == pytest.approx(np.mean(np.isinf(rounded)), abs=1e-3)


def test_the_sentence_about_gradients_says_what_the_bars_show() -> None:
    counts = np.zeros(gradients.HIGHEST - gradients.LOWEST + 1, int)
    counts[[-30 - gradients.LOWEST, -5 - gradients.LOWEST]] = 1, 3
    kinds = [gradients.Gradients(name, counts) for name in ("here", "there")]
    _, text = figures.gradients(kinds, 0)
    assert "without a loss scale: 25.0 % become zero of those here" in text
    _, text = figures.gradients(kinds, 22)
    assert "2^22 = 4,194,304: 0.0 % become zero and 75 % infinite of those here" in text
    _, text = figures.gradients(kinds, 0, "bfloat16")
    assert "0.0 % become zero" in text


# --- the loss scale -------------------------------------------------------------------------------


def test_the_rule_in_a_simulation() -> None:
    scales, skipped = loss_scale.simulate([1.0] * 8, start=2.0**18, growth_steps=3)
    # 2^18 and 2^17 and 2^16 overflow (65,536 > 65,504); three good steps double it, too far
    powers = [18, 17, 16, 15, 15, 15, 16, 15]
    assert np.log2(scales).tolist() == powers
    assert skipped.tolist() == [p > 15 for p in powers]
    _, text = loss_scale.rule(16, 60)
    assert text.startswith("From 2^16, doubling after 60 good steps: ")


def test_runs_with_a_loss_scale_are_told_from_their_reports() -> None:
    lines = [
        {"phase": "train", "epoch": 0, "step": 2, "steps": 4, "loss": 2.0, "loss_scale": 8.0},
        {"phase": "train", "epoch": 0, "step": 4, "steps": 4, "loss": 1.0, "loss_scale": 16.0},
    ]
    report = {"env": {"loss_scale": {"scale": 16.0, "skipped_updates": 1}}}
    _, text = loss_scale.scaled_run(lines, report)
    assert text == "your rule: 1 of 4 updates skipped, the scale ends at 16."


def test_the_learners_own_loops_are_told_from_their_scales() -> None:
    _, text = loss_scale.own_runs(
        {
            "a": ([2.0, 2.0, 1.5, 1.0], [8.0, 4.0, 4.0, 8.0, 4.0]),
            "b": ([2.0, 1.0], [1.0, 1.0, 1.0]),
        }
    )
    assert text == (
        "a: loss 2.00 -> 1.62 in 4 steps, of whose updates 2 were left out;\n"
        "b: loss 2.00 -> 1.50 in 2 steps, of whose updates none was left out."
    )


# --- memory ---------------------------------------------------------------------------------------


def test_memory_in_words() -> None:
    net = resnet(50)
    _, text = memory.parts(net, 224, [("float32", 96), ("float16", 208)], 16e9)
    assert text.startswith("float32 with 96: 9.2 GB (90 % activations); float16 with 208: 10.3 GB")


def test_what_all_batches_need_drops_out() -> None:
    points = {("float32", 2): 900, ("float32", 6): 1300, ("bfloat16", 2): 700, ("bfloat16", 6): 860}
    found = memory.Peaks(points, full(image_shape=32))
    assert found.batches == [2, 6] and found.dtypes == ["float32", "bfloat16"]
    assert (found.per_image("float32"), found.per_image("bfloat16")) == (100, 40)


# --- the roofline ---------------------------------------------------------------------------------

# one stage of one basic block of 4 channels on 32 x 32: the stem gives 16 x 16, the pooling 8 x 8
HAND = Network("hand", "v1.5", 3, "basic", (1,), width=4)


def test_work_and_traffic_of_a_small_network_by_hand() -> None:
    found = roofline.count(HAND, 32, 2, "bfloat16")
    macs = 2 * (4 * 3 * 49 * 16 * 16 + 2 * (4 * 4 * 9 * 8 * 8))
    assert found["convolution"].flops == 6 * macs
    through = 2 * (3 * 32 * 32 + 4 * 16 * 16 + 2 * (4 * 8 * 8 + 4 * 8 * 8))
    weights = 4 * 3 * 49 + 2 * 4 * 4 * 9
    assert found["convolution"].bytes == 3 * 2 * (through + weights)
    assert found["batch norm"].bytes == 2 * 8 * 2 * (4 * 16 * 16 + 2 * 4 * 8 * 8)
    assert found["addition"].bytes == 2 * 6 * 2 * 4 * 8 * 8
    assert found["last layer"].flops == 6 * 2 * 4 * 3
    wide = roofline.count(HAND, 32, 2, "float32")
    for kind in ("convolution", "batch norm", "ReLU", "addition", "pooling"):
        assert wide[kind].bytes == 2 * found[kind].bytes
        assert wide[kind].intensity == found[kind].intensity / 2
    assert wide["last layer"] == found["last layer"]  # float32 in both


@pytest.mark.parametrize("net", [network.tiny(), resnet(18, 10), resnet(50), resnet(50, 7, "v1")])
def test_inputs_and_work_of_convolutions_agree_with_the_networks(net: Network) -> None:
    inputs, size = roofline.conv_inputs(net, 64), {x.name: x.size for x in net.layers(64)}
    for conv in net.convolutions():
        side = math.isqrt(inputs[conv.name] // conv.in_channels)
        assert conv.out_size(side) == size[conv.name]
    work = roofline.count(net, 64, 1, "float32")
    assert work["convolution"].flops + work["last layer"].flops == net.train_flops(64)


def by_layer() -> roofline.LayerTimes:
    """Convolutions 80 of 100 ms, and 20 of 60 in 16 bits, with 20 ms of casts."""
    names = (*roofline.KINDS, roofline.REST)
    slow = dict(zip(names, (80, 10, 4, 2, 2, 2, 0), strict=True))
    fast = dict(zip(names, (20, 8, 4, 2, 2, 4, 20), strict=True))
    parts = {
        dtype: {kind: [value / 1000] * 3 for kind, value in values.items()}
        for dtype, values in (("float32", slow), ("bfloat16", fast))
    }
    steps = {"float32": [0.09, 0.1, 0.11], "bfloat16": [0.045, 0.05, 0.055]}
    return roofline.LayerTimes(
        parts, steps, {"float32": 1e11, "bfloat16": 5e11}, 1e10, full(network="resnet")
    )


def test_where_a_speed_up_comes_from() -> None:
    found = by_layer()
    assert found.only("convolution") == pytest.approx(100 / 40)
    _, text = roofline.comparison(found)
    assert text == (
        "Convolutions are 80 % of the step in float32; in bfloat16 they take 60 ms less, and the"
        " whole step 40 ms less. Were they free, the step would be 5.0 times as fast."
    )
    assert roofline.difference(-4) == "4 ms more"
    rows = roofline.rows(found, "bfloat16")
    assert rows[0][-2:] == [20, pytest.approx(100 / 3)] and rows[-1][1:5] == [None] * 4
    text = roofline.limits(found)
    assert "in bfloat16, 5 times as many" in text and "memory bounds every kind" in text


def test_a_floor_is_the_larger_of_both_limits() -> None:
    work = roofline.Work(flops=100, bytes=10)
    assert work.floor(peak=10, bandwidth=10) == 10
    assert work.floor(peak=1000, bandwidth=10) == 1
    assert work.intensity == 10


def test_the_roofline_of_a_v100_lies_above_the_published_speeds() -> None:
    """And near them, by the data sheet: so the sum that the lesson does is of the right size."""
    v100 = roofline.Device("V100", {"float32": 15.7e12, "float16": 125e12}, 900e9)
    net = resnet(50)
    for dtype, batch, published in (("float32", 96, 400.2), ("float16", 208, 1442.6)):
        limit = 1 / sum(roofline.bound(v100, net, 224, batch, dtype).values())
        assert 0.7 * limit < published < limit
    _, text = roofline.bounds(v100, net, 224, 96)
    assert "4.0 times as fast, where the arithmetic alone would be 8.0 times" in text


def test_layers_that_are_no_multiple_of_8() -> None:
    assert roofline.channel_rows(resnet(50, 1000)) == [["conv1", 3, 64]]
    assert roofline.channel_rows(resnet(18, 12))[-1] == ["fc", 512, 12]


# --- in processes of their own --------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_gradients_of_a_real_checkpoint(photos: Photos, tmp_path: Path) -> None:
    """There are no more than the convolutions have outputs and weights, and not many fewer."""
    argv = [*launch.program("train"), *TINY, "--data-root", str(photos.root), "-e", "1", "--no-val"]
    argv += ["--model-prefix", "model", "--benchmark-iters", "2"]
    done = subprocess.run(
        argv, cwd=tmp_path, env=clean_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = gradients.look(tmp_path / "model", 1)
    net, size = found.experiment.to_network(), found.experiment.image_shape
    flowing, of_weights = found.kinds
    outputs = sum(x.activations for x in net.layers(size) if x.kind == "conv")
    pixels = found.experiment.batch_size * outputs
    assert 0.3 * pixels < flowing.counts.sum() <= pixels  # ReLU's zeros are left out
    weights = sum(math.prod(s) for n, s in net.parameters().items() if len(s) == 4)
    assert 0.5 * weights < of_weights.counts.sum() <= weights and found.loss > 0


PROCESSES = """
import json
from rn50lib.config import Experiment
from workshop import output
from workshop.lessons.precision import memory, roofline

output.Slot.html = lambda *words: None
asked = Experiment(profile="ci", network="tiny", image_shape=64, threads=1)
peaks = memory.measure(asked, (2, 66), ("float32",))
layers = roofline.measure(asked, ("float32", "bfloat16"), rounds=1)
print(json.dumps({
    "per_image": peaks.per_image("float32"),
    "predicted": peaks.predicted_per_image("float32"),
    "parts": {d: {k: layers.seconds(d, k) for k in p} for d, p in layers.parts.items()},
    "steps": {dtype: min(layers.steps[dtype]) for dtype in layers.dtypes},
    "peaks": layers.peaks, "bandwidth": layers.bandwidth,
}))
"""


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_what_the_measuring_processes_say() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROCESSES], env=clean_environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["per_image"] == pytest.approx(found["predicted"], rel=0.5)
    for parts in found["parts"].values():
        assert set(parts) == {*roofline.KINDS, roofline.REST}
        assert all(parts[k] > 0 for k in ("convolution", "batch norm", "ReLU", "addition"))
    assert set(found["steps"]) == set(found["peaks"]) == {"float32", "bfloat16"}
    assert min(*found["steps"].values(), *found["peaks"].values(), found["bandwidth"]) > 0
