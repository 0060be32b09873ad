"""Metrics over workers: sums travel, the division comes last; and whether weights are equal."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rn50lib import metrics
from rn50lib.distributed import Comm
from rn50lib.errors import UserError
from rn50lib.metrics import Meter, metric_sums
from rn50lib.train import check_weights_are_equal
from tests.support import full


class Three(Comm):
    """The third of three workers; the other two have 8 images each."""

    size = 3

    def sum_array(self, array: np.ndarray) -> np.ndarray:
        return array + [16, 8, 8, 8] + [8, 0, 4, 8]


def test_metrics_of_one_worker() -> None:
    metrics = metric_sums(np.array([18.0, 3, 9, 12]), Comm())
    assert metrics == {"loss": 1.5, "top1": 25.0, "top5": 75.0}


def test_a_worker_with_fewer_images_weighs_less() -> None:
    # 2 images, both right: 10 hits of 18 images, while the mean of 100, 0 and 100 would be 66.7
    metrics = metric_sums(np.array([0.0, 2, 2, 2]), Three())
    assert metrics["top1"] == pytest.approx(100 * 10 / 18)
    assert metrics["top5"] == pytest.approx(100 * 14 / 18)
    assert metrics["loss"] == pytest.approx(24 / 18)


def test_no_images_gives_null_metrics() -> None:
    assert metric_sums(np.zeros(4), Comm()) == {"loss": None, "top1": None, "top5": None}


class Two(Comm):
    """One of two workers that do the same."""

    size = 2

    def sum_array(self, array: np.ndarray) -> np.ndarray:
        return 2 * array

    def stack(self, vector: np.ndarray) -> np.ndarray:
        return np.stack([vector, vector])


def test_a_reading_is_of_all_workers_since_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first step, which fills caches, takes 100 s here; the others take 1, 2, 3 and 4 s."""
    now, given = [0.0], iter([100.0, 1.0, 2.0, 3.0, 4.0])
    monkeypatch.setattr(metrics.time, "perf_counter", lambda: now[0])
    readings: dict[int, dict[str, Any]] = {}
    progress: Any = SimpleNamespace(
        phase="train", epoch=0, step=lambda: None, stop=lambda: None, reading=readings.__setitem__
    )
    losses = iter([80.0, 40.0, 16.0 + 8.0, 8.0])  # of the steps 1, 2, 3 and 4, and 5
    step: Any = SimpleNamespace(
        pop_metrics=lambda: np.array([next(losses), 2, 4, 8]), loss_scale_state=dict
    )
    meter = Meter(step, Two(), progress, every=2, done=10)
    for _ in meter.batches(SimpleNamespace(valid=8) for _ in range(5)):
        now[0] += next(given)
        meter.step_done(lr=0.1)
    found = meter.finish(show=True)
    assert {step: line["ips"] for step, line in readings.items()} == {
        12: 2 * 8 / 1, 14: 2 * 16 / (2 + 3), 15: 2 * 8 / 4,
    }  # fmt: skip
    assert [line["loss"] for line in readings.values()] == [(80 + 40) / 16, 24 / 8, 8 / 8]
    assert found["time"] == 10 / 4 and found["total_ips"] == 2 * 32 / 10
    assert found["loss"] == (80 + 40 + 24 + 8) / 32


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_ends_the_run(loss: float) -> None:
    step: Any = SimpleNamespace(pop_metrics=lambda: np.array([loss, 0, 0, 8]))
    meter = Meter(step, Comm(), SimpleNamespace(epoch=4), every=2)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=f"the loss is {loss} in epoch 5, step 0"):
        meter.read()


class Second(Comm):
    """Rank 1 of 2. Rank 0 has zeros."""

    rank, size = 1, 2

    def broadcast_vector(self, vector: np.ndarray) -> np.ndarray:
        return np.zeros_like(vector)


@pytest.mark.parametrize("apart", [0.0, 0.25, math.nan])
def test_weights_that_differ_are_reported(apart: float) -> None:
    """Running statistics and the velocity of a rank are its own."""
    arrays = {"conv1.weight": np.zeros(3), "fc.bias": np.array([0.0, -apart])}
    arrays |= {"bn1.running_mean": np.ones(3), "velocity/fc.bias": np.ones(2)}
    said: list[str] = []
    run: Any = SimpleNamespace(
        comm=Second(), config=full(), report=SimpleNamespace(env={}),
        step=SimpleNamespace(saves=True, state=lambda: arrays),
        progress=SimpleNamespace(say=said.append),
    )  # fmt: skip
    check_weights_are_equal(run)
    known = not math.isnan(apart)
    assert run.report.env == {"weights_apart": apart if known else None}
    line = "the ranks' weights differ by up to 0.25" if known else "the weights are not finite"
    assert [line.partition(":")[0] for line in said] == ([line] if apart else [])
