"""The ring all-reduce of notebook 03: NumPy's sum is the truth."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest

from workshop.lessons import nb03


@pytest.mark.parametrize("workers", range(2, 9))
def test_every_worker_ends_with_the_sum(workers: int) -> None:
    rng = np.random.default_rng(workers)
    gradients = rng.integers(-99, 99, (workers, 12 * workers)).astype(np.float64)
    states = nb03.all_reduce(gradients)
    assert len(states) == 2 * (workers - 1) + 1
    assert np.array_equal(states[0], gradients)
    assert np.array_equal(states[-1], np.tile(gradients.sum(axis=0), (workers, 1)))
    whole = (states[workers - 1] == gradients.sum(axis=0)).reshape(workers, workers, 12)
    assert (whole.all(axis=2).sum(axis=1) >= 1).all()  # a complete chunk each, half-way


def test_chunks_need_not_be_equal() -> None:
    gradients = np.arange(30, dtype=np.int64).reshape(3, 10) ** 2
    assert (nb03.all_reduce(gradients)[-1] == gradients.sum(axis=0)).all()


@pytest.mark.parametrize(("workers", "step"), [(2, 0), (2, 1), (4, 2), (4, 3), (8, 14), (3, 99)])
def test_drawing_names_complete_chunks(workers: int, step: int) -> None:
    figure, text = nb03.draw_ring(workers, step)
    figure.savefig(os.devnull, format="png")
    texts = [text.get_text() for axes in figure.axes for text in axes.texts]
    assert len(texts) == workers**2
    steps = min(step, 2 * (workers - 1))  # each sends a chunk of 102.2 MB / workers
    assert f"sent {102.2 * steps / workers:.4g} MB, {steps / workers:.3g} times" in text
    complete = workers * max(0, steps - workers + 2)
    assert texts.count("sum") == complete


def test_step_slider_ends_at_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[str, Any] = {}
    monkeypatch.setattr(nb03.output, "explore", lambda draw, **more: shown.update(more))
    nb03.explore_ring()
    workers, step = shown["workers"], shown["step"]
    for count in (8, 2, 4):
        workers.value = count
        assert step.max == 2 * (count - 1) and step.value <= step.max
