"""Label smoothing, zero gamma and selective weight decay, in both backends."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from rn50lib.data import Batch
from rn50lib.resnet import tiny
from tests.backends.test_precision import build
from tests.backends.test_torch import batch, busy_arrays

BACKENDS = [
    pytest.param("torch", marks=pytest.mark.needs("torch")),
    pytest.param("tensorflow", marks=[pytest.mark.slow, pytest.mark.needs("torch", "tensorflow")]),
]
EVERYTHING: dict[str, Any] = {
    "bn_decay": False, "label_smoothing": 0.1, "zero_gamma": True, "wd": 0.02, "mom": 0.875,
}  # fmt: skip
NET = tiny(6)


@functools.cache
def built(backend: str) -> Any:
    """A step with everything switched on. TensorFlow's graphs are traced once."""
    return build(backend, **EVERYTHING, **{"loss_scale": "1024"} if backend == "torch" else {})


def start(step: Any, arrays: dict[str, np.ndarray], velocity: dict[str, np.ndarray]) -> None:
    step.load(arrays | {f"velocity/{name}": array for name, array in velocity.items()})
    step.pop_metrics()


def still(arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    return {name: np.zeros_like(arrays[name]) for name in NET.parameters()}


@functools.cache
def true_gradients(seed: int) -> dict[str, np.ndarray]:
    """Return PyTorch's gradients of the smoothed loss: SGD's velocity after a step at rate 0."""
    step = build("torch", wd=0.0, label_smoothing=0.1)
    step.train_step(batch(8, seed=seed), 0.0)
    return {name: step.state()[f"velocity/{name}"] for name in NET.parameters()}


# --- label smoothing ------------------------------------------------------------------------------


def logits(step: Any, images: np.ndarray) -> np.ndarray:
    """Return the logits of a training forward pass, with the batch's own statistics."""
    if hasattr(step, "named"):
        return step.forward(images, training=True).numpy()
    import torch

    step.model.train()
    with torch.no_grad():
        inputs, _ = step.inputs(Batch(images, np.zeros(len(images), np.int32), len(images)))
        return step.forward(inputs).numpy()


@pytest.mark.parametrize("backend", BACKENDS)
def test_labels_are_smoothed_in_training_only(backend: str) -> None:
    step, given = built(backend), batch(8, seed=4)
    start(step, busy_arrays(NET), still(busy_arrays(NET)))
    scores = logits(step, given.images).astype(np.float64)
    step.train_step(given, 0.0)
    assert step.pop_metrics()[0] == pytest.approx(
        smoothed_loss(scores, given.labels, 0.1).sum(), rel=1e-4
    )
    step.eval_step(given)
    own = step.predict(given.images)[np.arange(8), given.labels]
    assert step.pop_metrics()[0] == pytest.approx(-np.log(own.astype(np.float64)).sum(), rel=1e-4)


# --- what decays ----------------------------------------------------------------------------------


@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("backend", "bn_decay"),
    [("torch", True), ("torch", False),
     pytest.param("tensorflow", False, marks=[*BACKENDS[1].marks, pytest.mark.acceptance])],
)  # fmt: skip
def test_what_decays_under_sgd(backend: str, bn_decay: bool) -> None:
    """At rate 0 the velocity is gradient plus decay; a decay of 100 shows what decays."""
    step = build(backend, wd=100.0, bn_decay=bn_decay, label_smoothing=0.1)
    arrays = step.state()
    step.train_step(batch(8, seed=3), 0.0)
    for name, gradient in true_gradients(3).items():
        decay = 100 if bn_decay or name.endswith(".weight") else 0
        wanted = gradient + decay * arrays[name]
        close = {"rtol": 1e-3, "atol": 1e-4} if backend == "torch" else {"rtol": 0.02, "atol": 0.02}
        np.testing.assert_allclose(step.state()[f"velocity/{name}"], wanted, **close)


# --- zero gamma -----------------------------------------------------------------------------------


def smoothed_loss(logits: np.ndarray, labels: np.ndarray, smoothing: float) -> np.ndarray:
    """Return the cross-entropy (N,) of logits (N, classes) with smoothed labels.

    Each label spreads `smoothing` evenly over all classes, its own included (Szegedy et al. 2015,
    arXiv:1512.00567, section 7).
    """
    shifted = logits - logits.max(axis=1, keepdims=True)
    losses = np.log(np.exp(shifted).sum(axis=1, keepdims=True)) - shifted  # -log p of each class
    own = np.take_along_axis(losses, labels[:, None], axis=1)[:, 0]
    return (1 - smoothing) * own + smoothing * losses.mean(axis=1)
