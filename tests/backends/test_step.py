"""The promises of each backend's step; test_parity.py compares the two."""

from __future__ import annotations

import functools
import math
import sys
from typing import Any

import numpy as np
import pytest

from rn50lib.data import Batch
from rn50lib.distributed import Comm
from rn50lib.errors import UserError
from rn50lib.resnet import Network, tiny
from rn50lib.run_setup import build_step
from tests.backends.test_precision import equal
from tests.backends.test_torch import batch, busy_arrays
from tests.support import full

BACKENDS = [
    pytest.param("torch", marks=pytest.mark.needs("torch")),
    pytest.param("tensorflow", marks=[pytest.mark.slow, pytest.mark.needs("tensorflow")]),
]


def build(backend: str, net: Network | None = None, **fields: Any) -> Any:
    net = net or tiny(6)
    return build_step(full(net.num_classes, backend=backend, wd=0.0, **fields), net, Comm())


@functools.cache
def built(backend: str, net: Network) -> Any:
    """A step for all tests of this process: TensorFlow's graphs are slow to trace."""
    return build(backend, net)


def start(step: Any, arrays: dict[str, np.ndarray]) -> Any:
    """Return the step with these arrays, at rest."""
    still = {f"velocity/{name}": np.zeros_like(arrays[name]) for name in step.net.parameters()}
    step.load(arrays | still)
    step.pop_metrics()
    return step


@pytest.fixture(params=BACKENDS)
def step(request: pytest.FixtureRequest) -> Any:
    return start(built(request.param, tiny(6)), tiny(6).initial_arrays(0))


def test_a_run_starts_from_the_network_s_initial_arrays(step: Any) -> None:
    state = build(step.config.backend, seed=3).state()
    wanted = tiny(6).initial_arrays(seed=3)
    assert equal({n: a for n, a in state.items() if "velocity/" not in n}, wanted)
    velocities = [n.removeprefix("velocity/") for n in state if "velocity/" in n]
    assert velocities == list(tiny(6).parameters())
    assert all(a.dtype == np.float32 and a.flags.c_contiguous for a in state.values())


def test_sums_count_hits_and_losses(step: Any) -> None:
    step.load(busy_arrays(tiny(6)))
    images = batch(12).images
    probabilities = step.predict(images)
    assert probabilities.shape == (12, 6) and probabilities.dtype == np.float32
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    # the label of image i is its (i mod 6)-th best class: two are first, ten are among five
    order = np.argsort(-probabilities, axis=1)
    labels = order[np.arange(12), np.arange(12) % 6].astype(np.int32)
    loss = -np.log(probabilities[np.arange(12), labels].astype(float))
    step.eval_step(Batch(images, labels, 12))
    np.testing.assert_allclose(step.pop_metrics(), [loss.sum(), 2, 10, 12], rtol=1e-4)
    assert not step.pop_metrics().any()  # they start at zero again


def test_padding_does_not_count_and_validation_changes_nothing(step: Any) -> None:
    whole, before = batch(8), step.state()
    step.eval_step(batch(8, valid=5))
    sums = step.pop_metrics()
    step.eval_step(Batch(whole.images[:5], whole.labels[:5], 5))
    np.testing.assert_allclose(sums, step.pop_metrics(), rtol=1e-5)
    step.eval_step(batch(8, valid=0))  # a batch of padding only
    assert not step.pop_metrics().any()
    assert equal(before, step.state())


def test_a_loaded_state_continues_bit_for_bit(step: Any) -> None:
    for i in range(3):
        step.train_step(batch(8, seed=i), 0.1)
    halfway, made = step.state(), []
    for other in (step, build(step.config.backend, seed=9)):
        other.load(halfway)
        for i in range(3, 6):
            other.train_step(batch(8, seed=i), 0.05)
        made.append(other.state())
    assert equal(*made)
    assert np.abs(made[0]["velocity/fc.weight"]).max() > 0


def test_loss_falls(step: Any) -> None:
    given = batch(8)
    for _ in range(30):
        step.train_step(given, 0.05)
    step.pop_metrics()
    step.train_step(given, 0.0)
    loss, top1, *_, examples = step.pop_metrics()
    assert top1 == examples == 8 and loss / examples < 0.2 < math.log(6)


# --- TensorFlow's alone ---------------------------------------------------------------------------


def test_missing_tensorflow_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    for name in [name for name in sys.modules if name.startswith("rn50lib.tensorflow")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match="--backend tensorflow: .* does not import.*make setup"):
        build("tensorflow")


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_a_graph_is_traced_once_per_shape() -> None:
    step = built("tensorflow", tiny(6))
    graphs = (step.train_graph, step.eval_graph, step.predict_graph)
    before = [g.experimental_get_tracing_count() for g in graphs]
    for i, lr in enumerate((0.1, 0.2, 0.3)):  # of 3 images, which no other test has
        step.train_step(batch(3, seed=i), lr)
        step.eval_step(batch(3, seed=i, valid=3 - i))
        step.predict(batch(3, seed=i).images)
    after = [g.experimental_get_tracing_count() for g in graphs]
    assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 1]


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
def test_changing_tensorflow_s_thread_count_is_refused() -> None:
    built("tensorflow", tiny(6)).predict(batch(8).images)
    with pytest.raises(UserError, match="--threads 3: TensorFlow has already started"):
        build("tensorflow", threads=3)
