"""Two things timed in turns: the ratio of each pair, and how sure its median is."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support import full
from workshop import pairs


@pytest.mark.parametrize(
    ("count", "low", "high"),  # ranks of a 95 % interval, from tables of the sign test
    [(1, 1, 1), (2, 1, 2), (5, 1, 5), (6, 1, 6), (9, 2, 8), (10, 2, 9), (12, 3, 10), (15, 4, 12)],
)
def test_interval_of_a_median(count: int, low: int, high: int) -> None:
    values = [float(i) for i in range(1, count + 1)]
    np.random.default_rng(count).shuffle(values)
    assert pairs.median_interval(values) == ((count + 1) / 2, low, high)


def test_one_ratio_per_pair() -> None:
    measured = pairs.Pairs("a", "b", {"a": [1.0, 2.0], "b": [1.5, 2.0]}, full())
    assert measured.ratios == [1.5, 1.0]


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_two_networks_take_turns() -> None:
    common = {"image_shape": 32, "batch_size": 2, "num_classes": 5, "threads": 1}
    both = {name: dict(network="tiny", resnet_version=name, **common) for name in ("v1", "v1.5")}
    measured = pairs.time_pairs(both, pairs=3, steps=2)
    assert (measured.first, measured.second) == ("v1", "v1.5")
    assert all(len(times) == 3 and min(times) > 0 for times in measured.seconds.values())
    assert measured.experiment.threads == 1
