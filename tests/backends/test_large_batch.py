"""LARS, label smoothing, zero gamma and selective weight decay, in both backends."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from rn50lib.data import Batch
from rn50lib.resnet import tiny
from tests.backends.test_exchange import distance
from tests.backends.test_precision import LARGE, build, equal, trained
from tests.backends.test_torch import batch, busy_arrays

BACKENDS = [
    pytest.param("torch", marks=pytest.mark.needs("torch")),
    pytest.param("tensorflow", marks=[pytest.mark.slow, pytest.mark.needs("torch", "tensorflow")]),
]
EVERYTHING: dict[str, Any] = {
    "recipe": "mlperf_lars_8k", "zero_gamma": True, "wd": 0.02, "loss_scale": "1024"
}  # fmt: skip
NET = tiny(6)


@functools.cache
def built(backend: str) -> Any:
    """A step with everything switched on. TensorFlow's graphs are traced once."""
    return build(backend, **EVERYTHING)


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


# --- LARS -----------------------------------------------------------------------------------------


def lars(
    weight: np.ndarray, gradient: np.ndarray, velocity: np.ndarray,
    lr: float, momentum: float, weight_decay: float,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """Return weight and velocity after a step: You et al. 2017, algorithm 1; vectors take `lr`."""
    rate = lr
    if weight.ndim > 1:
        length, slope = np.linalg.norm(weight), np.linalg.norm(gradient)
        rate *= 0.001 * length / (slope + weight_decay * length)
    velocity = momentum * velocity + rate * (gradient + weight_decay * weight)
    return weight - velocity, velocity


def test_one_step_of_lars_by_hand() -> None:
    weight, gradient = np.array([[3.0, 4.0]]), np.array([[0.6, 0.8]])  # lengths 5 and 1
    velocity = np.array([[0.1, -0.2]])
    made, moved = lars(weight, gradient, velocity, lr=10, momentum=0.9, weight_decay=0.2)
    # trust 0.001 x 5 / (1 + 0.2 x 5) = 0.0025, so a rate of 0.025; gradient + decay [1.2, 1.6]
    np.testing.assert_allclose(moved, [[0.09 + 0.03, -0.18 + 0.04]])
    np.testing.assert_allclose(made, [[2.88, 4.14]])


@pytest.mark.parametrize(("backend", "allowed"), [
    pytest.param("torch", 1e-5, marks=BACKENDS[0].marks),
    pytest.param("tensorflow", 2e-3, marks=BACKENDS[1].marks),
])  # fmt: skip
def test_lars_step_follows_the_formula(backend: str, allowed: float) -> None:
    """Compare layer by layer, with a given velocity; gamma, beta and bias take plain steps."""
    arrays, dice = busy_arrays(NET), np.random.default_rng(5)
    velocity = {
        name: (0.01 * dice.standard_normal(shape)).astype(np.float32)
        for name, shape in NET.parameters().items()
    }
    step = built(backend)
    start(step, arrays, velocity)
    step.train_step(batch(8, seed=3), 2.0)
    made = step.state()
    for name, gradient in true_gradients(3).items():
        layer = name.endswith(".weight")
        weight, moved = lars(
            arrays[name].astype(np.float64), gradient.astype(np.float64), velocity[name],
            lr=2.0, momentum=0.9, weight_decay=0.02 if layer else 0.0,
        )  # fmt: skip
        for found, wanted in ((made[name], weight), (made[f"velocity/{name}"], moved)):
            error = np.linalg.norm(found - wanted) / np.linalg.norm(wanted)
            assert error < allowed, (name, error)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nonfinite_gradient_changes_nothing(backend: str) -> None:
    """Neither the weights nor the velocity change."""
    step = built(backend)
    start(step, busy_arrays(NET), still(busy_arrays(NET)))
    step.train_step(batch(8, seed=1), 1.0)
    before, skipped = trained(step), step.loss_scale_state()["skipped"]
    images = batch(8, seed=2)
    step.load(step.state() | {"fc.bias": np.full_like(before["fc.bias"], np.inf)})
    step.train_step(images, 1.0)
    after = trained(step)
    assert step.loss_scale_state()["skipped"] == skipped + 1
    assert equal({n: a for n, a in before.items() if n != "fc.bias"}, after)
    step.load(step.state() | {"fc.bias": before["fc.bias"]})
    step.train_step(images, 1.0)
    assert not equal(before, trained(step))
    assert all(np.isfinite(array).all() for array in trained(step).values())


@pytest.mark.parametrize("backend", LARGE)
def test_lars_uses_norms_of_accumulated_gradients(backend: str) -> None:
    """The same images twice, with different labels, give batch norm the same statistics."""
    given = batch(4, seed=1)
    other = Batch(given.images, (given.labels + 1) % 6, 4)
    labels = np.concatenate([given.labels, other.labels])
    both = Batch(np.tile(given.images, (2, 1, 1, 1)), labels, 8)
    whole = build(backend, **EVERYTHING)
    parts = build(backend, **EVERYTHING | {"batch_size": 4, "macrobatch_size": 8})
    for _ in range(2):
        whole.train_step(both, 1.0)
        parts.train_step(given, 1.0)
        parts.train_step(other, 1.0)
    assert distance(trained(whole), trained(parts)) < 1e-3


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
     pytest.param("tensorflow", False, marks=BACKENDS[1].marks)],
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
