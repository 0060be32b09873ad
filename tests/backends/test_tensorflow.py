"""What is TensorFlow's own in its step. That it computes what PyTorch computes: test_parity.py."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50lib import hooks as overrides
from rn50lib import optim
from rn50lib.data import Batch
from rn50lib.distributed import Local
from rn50lib.errors import UserError
from rn50lib.resnet import Network, tiny
from tests.conftest import ROOT, clean_environment
from tests.support import TINY, Photos, full


def build(net: Network | None = None, **fields: Any) -> Any:
    from rn50lib.tensorflow.train_step import TensorflowStep

    net = net or tiny(6)
    return TensorflowStep(full(net.num_classes, backend="tensorflow", **fields), net, Local())


def batch(n: int = 4, size: int = 32, classes: int = 6, valid: int | None = None, seed: int = 0):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, size, size, 3), dtype=np.uint8)
    labels = rng.integers(0, classes, n, dtype=np.int32)
    return Batch(images, labels, n if valid is None else valid)


@pytest.fixture(scope="module")
def built() -> Any:
    """A step without decay. Its graphs are traced once for all tests: that is what costs time."""
    return build(wd=0.0)


@pytest.fixture
def step(built: Any) -> Any:
    """`built` as it was at its start."""
    renew(built)
    return built


def renew(step: Any) -> None:
    start = tiny(6).initial_arrays(0)
    still = {f"velocity/{name}": np.zeros_like(start[name]) for name in tiny(6).parameters()}
    step.load(start | still)
    step.pop_metrics()


def test_where_tensorflow_is_missing_the_run_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    from rn50lib.train_step import build_step

    monkeypatch.setitem(sys.modules, "tensorflow", None)
    for name in [name for name in sys.modules if name.startswith("rn50lib.tensorflow")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(UserError, match="--backend tensorflow: .* does not import.*make setup"):
        build_step(full(backend="tensorflow"), tiny(6), Local())


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
class TestStep:
    def test_a_run_starts_from_the_network_s_initial_arrays(self) -> None:
        state = build(seed=3).state()
        wanted = tiny(6).initial_arrays(seed=3)
        held = {name: array for name, array in state.items() if "velocity/" not in name}
        assert list(held) == list(wanted)
        for name, array in wanted.items():
            np.testing.assert_array_equal(held[name], array)
        velocities = [n.removeprefix("velocity/") for n in state if "velocity/" in n]
        assert velocities == list(tiny(6).parameters())
        assert all(a.dtype == np.float32 and a.flags.c_contiguous for a in state.values())

    def test_the_update_is_sgd_s(self) -> None:
        """With momentum and decay, while the learning rate changes."""
        seen: list[dict[str, np.ndarray]] = []

        def note(gradients: list[np.ndarray], comm: Any) -> list[np.ndarray]:
            seen.append({n: g.copy() for n, g in zip(names, gradients, strict=True)})
            return gradients

        from rn50lib.tensorflow.gradient_sync import OverriddenExchange
        from rn50lib.tensorflow.model import to_canonical

        names = list(tiny(6).parameters())
        step = build(wd=0.01, mom=0.9)
        step.exchange = OverriddenExchange(note, Local())
        state = step.state()
        for i, lr in enumerate((0.1, 0.1, 0.01)):
            step.train_step(batch(4, seed=i), lr)
            for name in names:
                state[name], state[f"velocity/{name}"] = optim.sgd(
                    state[name], to_canonical(seen[i][name]), state[f"velocity/{name}"],
                    lr, 0.9, 0.01,
                )  # fmt: skip
            after = step.state()
            for name in names:
                np.testing.assert_allclose(after[name], state[name], rtol=1e-5, atol=1e-6)
                velocity = f"velocity/{name}"
                np.testing.assert_allclose(after[velocity], state[velocity], rtol=1e-4, atol=1e-5)

    def test_a_graph_is_traced_once_per_shape(self, step: Any) -> None:
        graphs = (step.train_graph, step.eval_graph, step.predict_graph)
        before = [g.experimental_get_tracing_count() for g in graphs]
        for i, lr in enumerate((0.1, 0.2, 0.3)):
            step.train_step(batch(3, seed=i), lr)
            step.eval_step(batch(3, seed=i, valid=3 - i))
            step.predict(batch(3, seed=i).images)
        after = [g.experimental_get_tracing_count() for g in graphs]
        assert [b - a for a, b in zip(before, after, strict=True)] == [1, 1, 1]

    def test_sums_count_hits_and_losses(self) -> None:
        step = build(tiny(12))
        images = batch(16).images
        probabilities = step.predict(images)
        assert probabilities.shape == (16, 12) and probabilities.dtype == np.float32
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
        # of the first image the best class is the label, of the next the second best, ...
        order = np.argsort(-probabilities, axis=1)
        labels = order[np.arange(16), np.arange(16) % 12].astype(np.int32)
        loss = -np.log(probabilities[np.arange(16), labels].astype(float))
        step.eval_step(Batch(images, labels, 16))
        np.testing.assert_allclose(step.pop_metrics(), [loss.sum(), 2, 5 + 4, 16], rtol=1e-4)
        assert not step.pop_metrics().any()  # reading starts anew

    def test_padded_rows_count_nowhere(self, step: Any) -> None:
        whole = batch(8)
        step.eval_step(batch(8, valid=5))
        sums = step.pop_metrics()
        other = np.r_[whole.images[:5], whole.images[:3]]  # other padding, the same sums
        step.eval_step(Batch(other, np.r_[whole.labels[:5], [5, 5, 5]].astype(np.int32), 5))
        np.testing.assert_allclose(sums, step.pop_metrics(), rtol=1e-5)
        assert sums[3] == 5
        step.eval_step(batch(8, valid=0))  # a rank that only fills up
        assert step.pop_metrics().tolist() == [0, 0, 0, 0]

    def test_validation_changes_nothing(self, step: Any) -> None:
        before = step.state()
        step.eval_step(batch(8))
        assert all(np.array_equal(before[name], array) for name, array in step.state().items())

    def test_without_metrics_nothing_is_added_up(self) -> None:
        step = build(no_metrics=True)
        step.train_step(batch(), 0.1)
        step.eval_step(batch())
        assert not step.pop_metrics().any()

    def test_batches_may_be_any_kind_of_array(self, step: Any) -> None:
        import tensorflow as tf

        losses = []
        given = batch(8)
        for make in (np.asarray, tf.constant, pytest.importorskip("torch").from_numpy):
            renew(step)
            step.train_step(Batch(make(given.images), make(given.labels), 8), 0.1)
            losses.append(step.pop_metrics()[0])
        assert losses[0] == losses[1] == losses[2] > 0

    def test_a_loaded_state_goes_on_bit_for_bit(self, step: Any) -> None:
        """On the CPU, with the same number of threads."""
        for i in range(3):
            step.train_step(batch(8, seed=i), 0.1)
        halfway = step.state()
        made = []
        for other in (step, build(seed=9, wd=0.0)):
            other.load(halfway)
            for i in range(3, 6):
                other.train_step(batch(8, seed=i), 0.05)
            made.append(other.state())
        left, right = made
        assert all(np.array_equal(left[name], right[name]) for name in left)
        assert np.abs(left["velocity/fc.weight"]).max() > 0

    def test_in_bfloat16_the_last_layer_and_all_variables_stay_in_float32(self) -> None:
        import tensorflow as tf

        step = build(dtype="bfloat16")
        held = [*step.named.values(), *step.velocity.values()]
        assert {variable.dtype for variable in held} == {tf.float32}
        graph = step.train_graph.get_concrete_function(
            *(tf.constant(a) for a in (batch(4).images, batch(4).labels))
        ).graph
        made = {}
        for op in graph.get_operations():
            made.setdefault(op.type, set()).update(tensor.dtype for tensor in op.outputs[:1])
        assert made["Conv2D"] == made["FusedBatchNormV3"] == made["Relu"] == {tf.bfloat16}
        losses = "SparseSoftmaxCrossEntropyWithLogits"
        assert made["MatMul"] == made[losses] == {tf.float32}

    def test_it_learns(self, step: Any) -> None:
        given = batch(8)
        for _ in range(30):
            step.train_step(given, 0.05)
        step.pop_metrics()
        step.train_step(given, 0.0)
        loss, top1, _, examples = step.pop_metrics()
        assert top1 == examples == 8 and loss / examples < 0.2

    def test_other_threads_than_the_process_began_with_are_refused(self, step: Any) -> None:
        step.predict(batch(8).images)
        with pytest.raises(UserError, match="--threads 3: TensorFlow has already begun"):
            build(threads=3)


@pytest.mark.slow
@pytest.mark.needs("tensorflow")
class TestSeams:
    @pytest.fixture(autouse=True)
    def undo(self) -> Any:
        yield
        overrides.install(())

    def install(self, folder: Path, seam: str, code: str) -> None:
        file = folder / "mine.py"
        file.write_text(code)
        overrides.install((f"{seam}={file}:{seam}",))

    def test_a_learner_s_exchange_is_what_the_update_gets(self, step: Any, tmp_path: Path) -> None:
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
        for said, function in wrong.items():  # each is told as its own error, not TensorFlow's
            doubled.exchange.function = function
            with pytest.raises((NameError, UserError), match=said):
                doubled.train_step(batch(8), 0.0)

    def test_decay_acts_on_its_group_alone(self, step: Any, tmp_path: Path) -> None:
        code = (
            "def decay_groups(names):\n"
            "    rest = [n for n in names if n != 'fc.weight']\n"
            "    return ['fc.weight'], rest\n"
        )
        self.install(tmp_path, "decay_groups", code)
        decayed = build(wd=0.5)
        for each in (step, decayed):
            each.train_step(batch(8), 0.0)
        wanted, made = step.state(), decayed.state()
        for name in tiny(6).parameters():
            more = 0.5 * wanted[name] if name == "fc.weight" else 0
            np.testing.assert_allclose(
                made[f"velocity/{name}"], wanted[f"velocity/{name}"] + more, rtol=1e-5, atol=1e-6
            )

    def test_a_parameter_in_no_group_is_refused(self, tmp_path: Path) -> None:
        self.install(tmp_path, "decay_groups", "def decay_groups(names):\n    return names[1:], []")
        with pytest.raises(UserError, match="52 \\+ 0 names .* each of the 53 parameters"):
            build()

    def test_the_start_is_what_the_broadcast_gives(self, tmp_path: Path) -> None:
        code = (
            "def broadcast_start(arrays, comm):\n"
            "    return {name: array + 1 for name, array in arrays.items()}\n"
        )
        self.install(tmp_path, "broadcast_start", code)
        state, start = build().state(), tiny(6).initial_arrays(0)
        assert all(np.array_equal(state[name], array + 1) for name, array in start.items())


# --- in processes of their own --------------------------------------------------------------------

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
    assert "oneDNN" not in done.stderr  # TensorFlow's notes at its start are no part of a run
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


@pytest.mark.acceptance
@pytest.mark.needs("tensorflow", "tf_keras")
def test_everything_holds_under_keras_2() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m",
               "not acceptance", "tests/backends/test_tensorflow.py",
               "tests/backends/test_parity.py"]  # fmt: skip
    env = clean_environment(TF_USE_LEGACY_KERAS="1")
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-4000:]


@pytest.mark.needs("tensorflow")
@pytest.mark.parametrize("flags", [("--profile-trace", "t.json"), ("--cuda-graphs",)])
def test_what_is_pytorch_s_alone_is_refused(rn50: Any, photos: Photos, flags: list[str]) -> None:
    ended = rn50("train", "--data-root", photos.root, *TINY, "--backend", "tensorflow", *flags)
    assert ended.status == 2 and f"{flags[0]}: PyTorch's" in ended.error
    assert not Path("t.json").exists()
