"""The scaling model: its parts against hand-computed numbers, its arithmetic against a simulation,
its errors on published rows against a second computation, and `rn50 scale` as a user calls it."""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from rn50.scaling import Cluster, Training, links, predict
from rn50.scaling.check import MODEL, fit, load, outcomes, parameter
from rn50.scaling.links import Link
from rn50.scaling.model import all_reduce_s, expected_max
from rn50lib.resnet import resnet
from tests.launch.cluster_simulation import simulate

Rn50 = Callable[..., Any]
V100 = Training(1442.6, 208)
DGX = Cluster(*links.parse("nvlink+100g"))
SLOW = Cluster(Link("a", 1e9, 10e-6), Link("b", 1e8, 50e-6), start_s=0.0)


# --- the parts ------------------------------------------------------------------------------------


def test_a_ring_takes_what_one_computes_by_hand() -> None:
    # 4 workers, 8 MB, 1 GB/s, 10 us: 6 steps of 2 MB, each 2 ms + 10 us
    assert all_reduce_s(SLOW, 4, 8e6) == pytest.approx(6 * (0.002 + 10e-6))
    assert all_reduce_s(SLOW, 1, 8e6) == 0
    assert all_reduce_s(replace(SLOW, start_s=1.0), 4, 8e6) == pytest.approx(1 + 6 * 0.00201)


def test_a_hierarchical_all_reduce_takes_what_one_computes_by_hand() -> None:
    # 3 hosts of 8, 24 MB. In a host: 2 x 7 steps of 3 MB at 1 GB/s. Between: each GPU's 3 MB in a
    # ring of 3, 4 steps of 1 MB, with an eighth of 100 MB/s.
    in_host = 14 * (0.003 + 10e-6)
    between = 4 * (1e6 / (1e8 / 8) + 50e-6)
    assert all_reduce_s(SLOW, 24, 24e6) == pytest.approx(in_host + between)
    # one ring through all: 46 steps of 1 MB, each as slow as the network
    ring = replace(SLOW, algorithm="ring")
    assert all_reduce_s(ring, 24, 24e6) == pytest.approx(46 * (0.01 + 50e-6))


def test_messages_hold_every_gradient_once() -> None:
    for depth, layer_bytes in itertools.product((18, 50), (2, 4)):
        training = Training(100, 32, layer_bytes, resnet(depth))
        found = training.buckets
        assert sum(b.size for b in found) == resnet(depth).num_parameters * layer_bytes
        assert all(b.size >= 25 * 2**20 for b in found[:-1])
        ready = [b.ready for b in found]
        assert ready == sorted(ready) and ready[0] > 1 / 3 and ready[-1] == pytest.approx(1)
    # the fully-connected layer is first: it does little work, and its gradient is there at once
    first = Training(100, 32, 4, resnet(50), bucket_bytes=1).buckets[0]
    assert first.size == 4 * (2048 * 1000 + 1000) and first.ready < 0.335


def test_the_slowest_of_n() -> None:
    assert expected_max(1) == pytest.approx(0, abs=1e-9)
    assert expected_max(2) == pytest.approx(1 / math.sqrt(math.pi), abs=1e-6)
    assert expected_max(3) == pytest.approx(1.5 / math.sqrt(math.pi), abs=1e-6)
    drawn = np.random.default_rng(0).standard_normal((4000, 64)).max(axis=1).mean()
    assert expected_max(64) == pytest.approx(drawn, abs=0.03)
    # Blom's approximation, which is good to about one per cent
    blom = NormalDist().inv_cdf((4096 - 0.375) / (4096 + 0.25))
    assert expected_max(4096) == pytest.approx(blom, rel=0.02)


# --- the step -------------------------------------------------------------------------------------


def test_one_gpu_takes_exactly_what_was_measured() -> None:
    for overlap, noise, contention in itertools.product((True, False), (0, 0.2), (0, 1e-5)):
        cluster = replace(DGX, overlap=overlap, noise=noise, contention_s=contention)
        step = predict(V100, cluster, 1)
        assert step.ips == pytest.approx(1442.6) and step.efficiency == pytest.approx(1)
        assert step.hours() == pytest.approx(90 * 1_281_167 / 1442.6 / 3600)


def test_more_never_helps_a_step_and_better_never_hurts_it() -> None:
    def step(**changes: Any) -> float:
        return predict(V100, replace(DGX, noise=0.02, input_ips=12e3, **changes), 64).step_s

    sizes = [1, 2, 4, 8, 16, 64, 512, 4096]
    worse = replace(DGX, noise=0.02, input_ips=12e3)
    steps = [predict(V100, worse, n).step_s for n in sizes]
    assert steps == sorted(steps) and steps[-1] > 1.05 * steps[0]
    speeds = [predict(V100, worse, n).ips for n in sizes]
    assert speeds == sorted(speeds)
    for name, values in {
        "bandwidth_share": [1.0, 0.5, 0.1, 0.01],
        "contention_s": [0.0, 1e-6, 1e-4],
        "overlap": [True, False],
    }.items():
        times = [step(**{name: value}) for value in values]
        assert times == sorted(times) and times[-1] > times[0], name
    for key, values in {"noise": [0.0, 0.01, 0.1], "input_ips": [None, 9000, 900]}.items():
        times = [predict(V100, replace(DGX, **{key: v}), 64).step_s for v in values]
        assert times == sorted(times) and times[-1] > times[0], key


def test_without_cost_of_any_kind_scaling_is_perfect() -> None:
    free = Link("free", math.inf, 0.0)
    ideal = Cluster(free, free, start_s=0.0)
    for n, overlap in itertools.product((2, 8, 64, 4096), (True, False)):
        assert predict(V100, replace(ideal, overlap=overlap), n).ips == pytest.approx(n * 1442.6)


def test_the_parts_add_up_and_the_largest_loss_is_named() -> None:
    step = predict(V100, replace(DGX, noise=0.05), 64)
    parts = (step.compute_s, step.stragglers_s, step.exposed_s, step.input_wait_s)
    assert sum(parts) == pytest.approx(step.step_s) and step.limit == "stragglers"
    assert predict(V100, DGX, 8).limit == "compute"
    ten = Cluster(*links.parse("nvlink+10g"))
    assert predict(V100, ten, 64).limit == "exchange"
    # eight GPUs that each want 1442.6 img/s from loaders with 5000 together
    fed = predict(V100, replace(DGX, input_ips=5000), 64)
    assert fed.limit == "input" and fed.ips == pytest.approx(8 * 5000)


# --- the simulation -------------------------------------------------------------------------------

HIDES = replace(V100, bucket_bytes=400_000)  # the last bucket is small: the rest is hidden
GRID = [
    ("overlap", V100, DGX),
    ("all hidden", HIDES, replace(DGX, start_s=0.0)),
    ("one bucket: nothing hidden", replace(V100, bucket_bytes=2**30), DGX),
    ("no overlap", V100, replace(DGX, overlap=False)),
    ("exchange is all", Training(5000, 32), Cluster(*links.parse("pcie+10g"))),
    ("one ring", V100, replace(DGX, algorithm="ring")),
    ("input", V100, replace(DGX, input_ips=5000)),
    ("contention", V100, replace(DGX, contention_s=2e-5)),
]


@pytest.mark.parametrize("name, training, cluster", GRID, ids=[case[0] for case in GRID])
def test_without_noise_model_and_simulation_agree_to_rounding(
    name: str, training: Training, cluster: Cluster
) -> None:
    for n in (1, 2, 8, 16, 64):
        step = predict(training, cluster, n)
        assert step.step_s == pytest.approx(simulate(training, cluster, n, steps=4), rel=1e-6)
        if name == "all hidden" and 1 < n <= 8:
            assert step.exposed_s < 0.02 * step.hidden_s and step.efficiency > 0.999
        if "nothing hidden" in name or name == "no overlap":
            assert step.hidden_s == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("n, steps", [(1, 1000), (2, 500), (8, 250), (64, 30), (512, 12)])
def test_with_stragglers_they_agree_to_one_and_a_half_per_cent(n: int, steps: int) -> None:
    for training, cluster in (
        (V100, DGX),
        (V100, replace(DGX, overlap=False)),
        (Training(400, 32), Cluster(*links.parse("pcie+10g"))),
        (V100, replace(DGX, input_ips=10300)),
    ):
        noisy = replace(cluster, noise=0.05)
        found = simulate(training, noisy, n, steps)
        assert predict(training, noisy, n).step_s == pytest.approx(found, rel=0.015)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", ["hierarchical", "ring"])
def test_4096_workers_without_noise_agree_to_rounding(algorithm: str) -> None:
    cluster = replace(DGX, algorithm=algorithm)
    found = simulate(V100, cluster, 4096, steps=1)
    assert predict(V100, cluster, 4096).step_s == pytest.approx(found, rel=1e-6)


# --- published rows -------------------------------------------------------------------------------


def test_the_published_rows_are_those_of_the_notebooks(repository: Path) -> None:
    told = json.loads((repository / "notebooks/expected/published.json").read_text())["results"]
    for precision, name in (("mixed", "fp16"), ("FP32", "fp32")):
        for n, ips in load()["DGX-1", precision].ips.items():
            assert told[f"published.v100.{n}gpu.{name}.ips"]["value"] == ips
    # and the others as they were published
    rows = {key: series.ips for key, series in load().items()}
    assert rows["DLPerf", "mixed"] == {1: 1393.87, 8: 9621.31, 16: 16219.03, 32: 30713.68}
    assert rows["DLPerf", "FP32"] == {1: 392.24, 8: 3006.98, 16: 5758.49, 32: 11331.93}
    assert rows["DGX A100", "mixed"][8] == 26673.72 and rows["DGX A100", "TF32"][8] == 8247.44
    assert all(series.source and series.remark for series in load().values())


def test_only_the_rows_named_are_fitted() -> None:
    fitted = {key: list(series.fit_on) for key, series in load().items()}
    assert fitted["DGX-1", "mixed"] == fitted["DGX-1", "FP32"] == [1, 4]
    assert fitted["DLPerf", "mixed"] == fitted["DLPerf", "FP32"] == [1, 8, 16]
    assert fitted["DGX A100", "mixed"] == fitted["DGX A100", "TF32"] == []
    held_out = [(row.series.name, row.gpus) for row in outcomes() if not row.fitted]
    assert held_out == 2 * [("DGX-1", 8)] + 2 * [("DLPerf", 32)] + 2 * [
        ("DGX A100", 4), ("DGX A100", 8)
    ]  # fmt: skip


@functools.cache
def largest_of(n: int) -> float:
    """The mean largest of n standard normal numbers, from as many as it takes."""
    draws = np.random.default_rng(1).standard_normal((150_000, n), np.float32)
    return float(draws.max(axis=1).mean())


def by_hand(ips: float, batch: int, size: int, n: int, noise: float, nvlink: float) -> float:
    """img/s of n V100s or A100s, written down again: its own buckets, ring and maximum."""
    alone = batch / ips
    layers = list(resnet(50).layers(224))
    total = sum(layer.macs for layer in layers)
    slowest = alone * (1 + noise * largest_of(n))
    on_host, hosts = min(n, 8), max(1, n // 8)
    end, waiting, done = 0.0, 0.0, 0
    for i, layer in enumerate(reversed(layers)):
        done += layer.macs
        waiting += layer.parameters * size
        if waiting >= 26_214_400 or i == len(layers) - 1:
            seconds = 8.4e-6 + 2 * (on_host - 1) * (3.4e-6 + waiting / on_host / nvlink)
            if hosts > 1:
                seconds += 2 * (hosts - 1) * (14e-6 + waiting / hosts / 12e9)
            end = max(end, slowest / 3 * (1 + 2 * done / total)) + seconds
            waiting = 0.0
    return n * batch / max(end, slowest)


def test_check_prints_the_errors_of_a_second_computation(rn50: Rn50) -> None:
    """Each row with its mark, and behind it the errors by the model and by the naive two."""
    text = rn50("scale", "--check").out
    seen = 0
    for (name, precision), series in load().items():
        noise = parameter(name, precision, MODEL)
        nvlink = 240e9 if name == "DGX A100" else 120e9
        size = 4 if "32" in precision else 2
        for n, published in series.ips.items():
            if n == 1:
                continue
            line = next(
                line for line in text.splitlines()
                if line.split()[:1] == [str(n)] and f" {published:.1f} " in line
            )  # fmt: skip
            assert ("fitted" if n in series.fit_on else "held out") in line
            model, *_, perfect = [float(x) for x in re.findall(r"\( *([-+][\d.]+) %\)", line)]
            expected = by_hand(series.ips[1], series.batch, size, n, noise, nvlink)
            assert model == pytest.approx(100 * (expected / published - 1), abs=0.15)
            assert perfect == pytest.approx(100 * (n * series.ips[1] / published - 1), abs=0.051)
            seen += 1
    assert seen == 14
    assert "cannot tell apart" in text and "V100, MXNet 18.12" in text


def test_one_row_and_one_number_are_fitted_exactly() -> None:
    four, eight = outcomes()[:2]
    assert four.fitted and abs(four.error("stragglers")) < 1e-6
    # Amdahl's law by solving it for the serial share
    speedup = 5391.8 / 1442.6
    serial = (4 / speedup - 1) / 3
    assert eight.predicted["Amdahl"] == pytest.approx(1442.6 / (serial + (1 - serial) / 8))


# --- calibration ----------------------------------------------------------------------------------


def test_a_fit_finds_the_noise_that_made_the_rows() -> None:
    for noise in (0.0, 0.004, 0.03, 0.3):
        rows = [(n, predict(V100, replace(DGX, noise=noise), n).ips) for n in (4, 8, 32)]
        assert fit(MODEL, V100, DGX, rows) == pytest.approx(noise, abs=1e-6)


def test_a_measured_all_reduce_gives_the_link() -> None:
    # two workers take two steps of half the data each: the link's own rate is that of the whole
    wire = links.measured(2, 0.001, 1.6e9)
    assert (wire.bytes_per_s, wire.latency_s) == (1.6e9, 0.0005)
    eight = Cluster(links.measured(8, 0.0014, 1e9), start_s=0.0)
    assert all_reduce_s(eight, 8, 1e6) == pytest.approx(0.0014 + 0.001)


# --- the command ----------------------------------------------------------------------------------

GIVEN = ("--compute-ips", "1442.6", "--batch", "208", "--network", "nvlink+100g")


def test_the_table_has_a_line_for_each_number_of_gpus(rn50: Rn50, tmp_path: Path) -> None:
    flags = ("scale", "--gpus", "1,8,64,512", *GIVEN, "--price", "2.5")
    text = rn50(*flags).out
    lines = [line.split() for line in text.splitlines()]
    noise = parameter("DGX-1", "mixed", MODEL)
    for gpus in (1, 8, 64, 512):
        line = next(x for x in lines if x[:1] == [str(gpus)] and len(x) > 10)
        ips = predict(V100, replace(DGX, noise=noise), gpus).ips
        assert line[2] == f"{ips:,.1f}" and line[3] == f"{100 * ips / gpus / 1442.6:.1f}"
        step = float(line[5])
        assert step == pytest.approx(1000 * gpus * 208 / ips, abs=0.01)
        assert sum(map(float, line[6:10])) == pytest.approx(step, abs=0.03)
        hours = 90 * 1_281_167 / ips / 3600
        assert float(line[-2].replace(",", "")) == pytest.approx(hours, rel=0.005)
        assert line[-1] == f"{hours * gpus * 2.5:,.2f}"


def test_the_page_tells_the_errors_that_check_prints(rn50: Rn50, repository: Path) -> None:
    text = " ".join((repository / "docs" / "commands.md").read_text().split())
    found = re.findall(r"(\w+) ([\d.]+ %) \(at most ([\d.]+ %)\)", rn50("scale", "--check").out)
    mean, worst = ({name: row[i] for name, *row in found} for i in (0, 1))
    assert f"misses by {mean['stragglers']} in the mean and {worst['stragglers']} at most" in text
    assert f"misses them by {mean['Amdahl']}, perfect scaling by {mean['perfect']}" in text
    assert f"not hidden misses them by {mean['communication']}" in text


def test_a_large_global_batch_gets_a_remark(rn50: Rn50) -> None:
    assert "global batch of 106,496" in rn50("scale", "--gpus", "512", *GIVEN).out
    assert "global batch" not in rn50("scale", "--gpus", "8", *GIVEN).out


def test_a_picture(rn50: Rn50, tmp_path: Path) -> None:
    assert rn50("scale", "--gpus", "1,8", *GIVEN, "-o", "out/s.svg").status == 0
    assert "<svg" in (tmp_path / "out/s.svg").read_text()


@pytest.mark.parametrize(
    "flags, words",
    [
        (("--gpus", "1,x"), ("--gpus", "1,x")),
        (("--gpus", "0"), ("--gpus", "must be at least 1")),
        (("--gpus", "12"), ("--gpus 12", "multiple of 8", "--gpus-per-host")),
        (("--gpus", "16", "--network", "nvlink"), ("--gpus 16", "--network nvlink+100g")),
        (("--network", "token-ring"), ("--network token-ring", "nvlink+100g")),
        (("--network", "pcie+fast"), ("--network pcie+fast", "100g")),
        (("--compute-ips", "-3"), ("--compute-ips", "greater than 0")),
        (("--compute-ips", "40"), ("--batch",)),
        (("--batch", "64"), ("--batch 64", "--compute-ips")),
        (("--dtype", "bfloat16"), ("--dtype bfloat16", "--compute-ips")),
        (("-o", "x.doc"), ("x.doc",)),
    ],
)  # fmt: skip
def test_what_is_wrong_is_told_in_a_line(
    rn50: Rn50, flags: tuple[str, ...], words: tuple[str, ...]
) -> None:
    ended = rn50("scale", *flags)
    assert ended.status == 2
    assert all(word in ended.err for word in words), ended.err
    assert len(ended.err.strip().splitlines()) == 1 and ended.err.startswith("error: ")
