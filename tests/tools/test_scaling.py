"""The scaling model against numbers by hand, and `rn50 scale`."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from rn50.published import load
from rn50.scaling import Cluster, Training, links, predict
from rn50.scaling.links import Link
from rn50.scaling.model import all_reduce_s, expected_max, gradients
from rn50lib.resnet import resnet

Rn50 = Callable[..., Any]
V100 = Training(1442.6, 208)
DGX = Cluster(*links.parse("nvlink+100g"))
SLOW = Cluster(Link("a", 1e9, 10e-6), Link("b", 1e8, 50e-6), start_s=0.0)


def test_all_reduces_by_hand() -> None:
    # 4 workers, 8 MB, 1 GB/s, 10 us: 6 steps of 2 MB, each 2 ms + 10 us
    assert all_reduce_s(SLOW, 4, 8e6) == pytest.approx(6 * (0.002 + 10e-6))
    assert all_reduce_s(SLOW, 1, 8e6) == 0
    # 3 hosts of 8, 24 MB. In a host: 2 x 7 steps of 3 MB at 1 GB/s. Between: each GPU's 3 MB in a
    # ring of 3, 4 steps of 1 MB, with an eighth of 100 MB/s.
    levels = 14 * (0.003 + 10e-6) + 4 * (1e6 / (1e8 / 8) + 50e-6)
    assert all_reduce_s(SLOW, 24, 24e6) == pytest.approx(levels)


def test_buckets_hold_every_gradient_once() -> None:
    for depth, layer_bytes in itertools.product((18, 50), (2, 4)):
        found = Training(100, 32, layer_bytes, resnet(depth)).buckets
        assert sum(b.size for b in found) == resnet(depth).num_parameters * layer_bytes
        # DDP makes buckets of 25 MiB of float32 gradients, then compresses them
        assert all(4 / layer_bytes * b.size >= 25 * 2**20 for b in found[:-1])
        ready = [b.ready for b in found]
        assert ready == sorted(ready) and ready[0] > 1 / 3 and ready[-1] == pytest.approx(1)


def test_expected_maximum_of_n_normals() -> None:
    assert expected_max(1) == pytest.approx(0, abs=1e-9)
    assert expected_max(2) == pytest.approx(1 / math.sqrt(math.pi), abs=1e-6)
    drawn = np.random.default_rng(0).standard_normal((4000, 64)).max(axis=1).mean()
    assert expected_max(64) == pytest.approx(drawn, abs=0.03)


def test_gradients_are_ready_from_a_third_of_the_step_on() -> None:
    """Forward multiplies once with each weight, backward twice; the last layer comes first."""
    ready = [share for share, _ in gradients(resnet(), 224)]
    assert ready[0] == pytest.approx(1 / 3, abs=1e-3) and ready[-1] == pytest.approx(1)
    assert ready == sorted(ready)


def test_one_gpu_matches_the_measurement_and_parts_add_up() -> None:
    assert predict(V100, replace(DGX, noise=0.2), 1).ips == pytest.approx(1442.6)
    step = predict(V100, replace(DGX, noise=0.05), 64)
    parts = (step.compute_s, step.stragglers_s, step.exposed_s, step.input_wait_s)
    assert sum(parts) == pytest.approx(step.step_s) and step.limit == "stragglers"
    assert predict(V100, Cluster(*links.parse("nvlink+10g")), 64).limit == "exchange"
    five = predict(V100, replace(DGX, noise=0.04), 8)
    assert five.limit == "stragglers" and 0.05 < five.stragglers_s / five.compute_s < 0.06
    # eight GPUs that each want 1442.6 img/s from loaders with 5000 together
    fed = predict(V100, replace(DGX, input_ips=5000), 64)
    assert fed.limit == "input" and fed.ips == pytest.approx(8 * 5000)


def test_only_exchange_after_the_backward_pass_is_exposed() -> None:
    """Backward takes two thirds of a step; the last bucket is ready at the end of it."""
    buckets, alone = V100.buckets, V100.compute_s
    times = [all_reduce_s(DGX, 8, bucket.size) for bucket in buckets]
    late = predict(V100, replace(DGX, overlap=False), 8)
    assert late.exposed_s == pytest.approx(sum(times))
    compressed = predict(replace(V100, gradient_bytes=2), DGX, 8)
    assert 0 < compressed.exposed_s < predict(V100, DGX, 8).exposed_s
    early = predict(V100, DGX, 8)
    assert early.exposed_s == pytest.approx(times[-1])  # each earlier one is done by then
    assert early.step_s == pytest.approx(alone + times[-1])


# --- the command ----------------------------------------------------------------------------------

GIVEN = ("--compute-ips", "1442.6", "--batch", "208", "--network", "nvlink+100g")


def test_the_table_has_a_line_for_each_number_of_gpus(rn50: Rn50) -> None:
    text = rn50("scale", "--gpus", "1,8,64,512", *GIVEN, "--price", "2.5").out
    assert "global batch of 106,496" in text
    lines = [line.split() for line in text.splitlines()]
    cluster = replace(DGX, noise=load()["DGX-1", "mixed"].noise)
    for gpus in (1, 8, 64, 512):
        line = next(x for x in lines if x[:1] == [str(gpus)] and len(x) > 9)
        ips = predict(V100, cluster, gpus).ips
        assert line[2] == f"{ips:,.1f}" and line[3] == f"{100 * ips / gpus / 1442.6:.1f}%"
        assert float(line[4]) == pytest.approx(1000 * gpus * 208 / ips, abs=0.01)
        assert sum(map(float, line[5:9])) == pytest.approx(float(line[4]), abs=0.03)
        hours = 90 * 1_281_167 / ips / 3600
        assert float(line[-2]) == pytest.approx(hours, rel=0.005)
        assert line[-1] == f"{hours * gpus * 2.5:,.2f}"


@pytest.mark.parametrize(
    "flags, size, each",
    [
        (GIVEN, 102.2, 4),
        ((*GIVEN, "--gradient-bytes", "2"), 51.1, 2),
        ((), 51.1, 2),  # the published DGX-1 in FP16
        (("--gradient-bytes", "4"), 102.2, 4),
        (("--dtype", "float32"), 102.2, 4),
    ],
)
def test_exchange_has_the_bytes_that_are_sent(
    rn50: Rn50, flags: tuple[str, ...], size: float, each: int
) -> None:
    text = rn50("scale", "--gpus", "1,512", *flags).out
    assert f"exchange  {size} MB (resnet50, {each} bytes per gradient)" in text
    series = load()["DGX-1", "FP32" if "float32" in flags else "mixed"]
    training = Training(series.ips[1], series.batch, each)
    step = predict(training, replace(DGX, noise=series.noise), 512)
    line = next(line.split() for line in text.splitlines() if line.strip().startswith("512 "))
    assert line[2] == f"{step.ips:,.1f}"


@pytest.mark.parametrize(
    "flags, words",
    [
        ("--gpus 1,x", "1,x"),
        ("--gpus 0", "must be at least 1"),
        ("--gpus 12", "multiple of 8"),
        ("--gpus 16 --network nvlink", "--network nvlink+100g"),
        ("--network token-ring", "nvlink+100g"),
        ("--network pcie+fast", "100g"),
        ("--compute-ips -3", "greater than 0"),
        ("--compute-ips 40", "--batch"),
        ("--batch 64", "--compute-ips"),
        ("--dtype bfloat16", "--compute-ips"),
    ],
)
def test_errors_name_the_flag_and_the_remedy(rn50: Rn50, flags: str, words: str) -> None:
    error = rn50("scale", *flags.split()).error
    assert flags.split()[0] in error and words in error
