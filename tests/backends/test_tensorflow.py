"""TensorFlow-specific behaviour of the step; test_parity.py compares it with PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50lib import hooks
from rn50lib.distributed import Comm
from rn50lib.errors import UserError
from rn50lib.resnet import Network, tiny
from tests.backends.test_torch import batch
from tests.support import TINY, Photos, full


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
    from rn50lib.train_step import build_step

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


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
class TestSeams:
    @pytest.fixture(autouse=True)
    def undo(self) -> Any:
        yield
        hooks.install(())

    def install(self, folder: Path, seam: str, code: str) -> None:
        file = folder / "mine.py"
        file.write_text(code)
        hooks.install((f"{seam}={file}:{seam}",))

    def test_learners_exchange_feeds_the_update(self, step: Any, tmp_path: Path) -> None:
        code = "def exchange_gradients(gradients, comm):\n    return [2 * g for g in gradients]\n"
        self.install(tmp_path, "exchange_gradients", code)
        doubled = build(wd=0.0)
        for each in (step, doubled):
            each.train_step(batch(8), 0.0)
        wanted, made = step.state(), doubled.state()
        for name in tiny(6).parameters():
            np.testing.assert_array_equal(made[f"velocity/{name}"], 2 * wanted[f"velocity/{name}"])
        wrong = {
            "name 'nothing' is not defined": lambda g, comm: nothing,  # noqa: F821
            "made shape \\(\\) of a gradient of shape": lambda g, comm: [a.sum() for a in g],
            "returned 52 arrays for 53 gradients": lambda g, comm: g[1:],
        }
        for said, function in wrong.items():  # each is reported as its own error, not TensorFlow's
            doubled.sync.function = function
            with pytest.raises((NameError, UserError), match=said):
                doubled.train_step(batch(8), 0.0)


# --- in separate processes ------------------------------------------------------------------------


@pytest.mark.needs("tensorflow")
def test_cuda_graphs_are_refused(rn50: Any, photos: Photos) -> None:
    flags = ("--backend", "tensorflow", "--set", "cuda_graphs=true")
    ended = rn50("train", "--data-root", photos.root, *TINY, *flags)
    assert ended.status == 2 and "--set cuda_graphs" in ended.error and "PyTorch" in ended.error
