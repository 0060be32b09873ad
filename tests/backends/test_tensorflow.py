"""TensorFlow-specific behaviour of the step; test_parity.py compares it with PyTorch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50lib.distributed import Comm
from rn50lib.errors import UserError
from rn50lib.resnet import Network, tiny
from tests.backends.test_torch import batch
from tests.conftest import ROOT, clean_environment
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


# --- in separate processes ------------------------------------------------------------------------

THREE_STEPS = """
import sys
import numpy as np
from tests.backends.test_tensorflow import batch, build
step = build(wd=0.0)
for i in range(3):
    step.train_step(batch(8, seed=i), 0.01)
np.savez(sys.argv[1], keras=step.versions()["keras"], sums=step.pop_metrics(), **step.state())
"""


def three_steps(result: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    env = clean_environment(**environment)
    return subprocess.run(
        [sys.executable, "-c", THREE_STEPS, str(result)], env=env, cwd=ROOT,
        capture_output=True, text=True,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.needs("tensorflow", "tf_keras")
def test_keras_2_computes_the_same_numbers(step: Any, tmp_path: Path) -> None:
    done = three_steps(tmp_path / "keras2.npz", TF_USE_LEGACY_KERAS="1")
    assert done.returncode == 0, done.stderr
    assert "oneDNN" not in done.stderr  # TensorFlow's start-up notes are not shown
    for i in range(3):
        step.train_step(batch(8, seed=i), 0.01)
    wanted = step.state() | {"sums": step.pop_metrics()}
    with np.load(tmp_path / "keras2.npz") as held:
        assert str(held["keras"]).startswith("2.")
        for name, array in wanted.items():
            np.testing.assert_allclose(held[name], array, rtol=1e-4, atol=1e-6, err_msg=name)


@pytest.mark.acceptance
@pytest.mark.needs("tensorflow")
def test_keras_on_another_framework_is_refused(tmp_path: Path) -> None:
    done = three_steps(tmp_path / "none.npz", KERAS_BACKEND="torch")
    assert "UserError: --backend tensorflow: Keras is set to torch here: unset" in done.stderr
