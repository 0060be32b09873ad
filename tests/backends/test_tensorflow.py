"""TensorFlow-specific behaviour of the step; test_parity.py compares it with PyTorch."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from rn50lib.distributed import Comm
from rn50lib.errors import UserError
from rn50lib.resnet import Network, tiny
from tests.backends.test_torch import batch
from tests.support import full


def build(net: Network | None = None, **fields: Any) -> Any:
    from rn50lib.tensorflow.train_step import TensorflowStep

    net = net or tiny(6)
    return TensorflowStep(full(net.num_classes, backend="tensorflow", **fields), net, Comm())


@pytest.fixture(scope="module")
def built() -> Any:
    """A step without decay; its graphs are slow to trace and traced once for all tests."""
    return build(wd=0.0)


@pytest.fixture
def step(built: Any) -> Any:
    """`built` in its initial state."""
    renew(built)
    return built


def renew(step: Any) -> None:
    start = tiny(6).initial_arrays(0)
    still = {f"velocity/{name}": np.zeros_like(start[name]) for name in tiny(6).parameters()}
    step.load(start | still)
    step.pop_metrics()


def test_missing_tensorflow_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    from rn50lib.run_setup import build_step

    monkeypatch.setitem(sys.modules, "tensorflow", None)
    for name in [name for name in sys.modules if name.startswith("rn50lib.tensorflow")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match="--backend tensorflow: .* does not import.*make setup"):
        build_step(full(backend="tensorflow"), tiny(6), Comm())


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
class TestStep:
    def test_a_graph_is_traced_once_per_shape(self, step: Any) -> None:
        graphs = (step.train_graph, step.eval_graph, step.predict_graph)
        before = [g.experimental_get_tracing_count() for g in graphs]
        for i, lr in enumerate((0.1, 0.2, 0.3)):
            step.train_step(batch(3, seed=i), lr)
            step.eval_step(batch(3, seed=i, valid=3 - i))
            step.predict(batch(3, seed=i).images)
        after = [g.experimental_get_tracing_count() for g in graphs]
        assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 1]

    def test_changing_the_thread_count_is_refused(self, step: Any) -> None:
        step.predict(batch(8).images)
        with pytest.raises(UserError, match="--threads 3: TensorFlow has already started"):
            build(threads=3)


# --- in separate processes ------------------------------------------------------------------------
