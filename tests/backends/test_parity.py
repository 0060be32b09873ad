"""TensorFlow's step equals PyTorch's: layers, gradients, updates, statistics, checkpoints.

PyTorch's step is compared with the paper's network in float64 in test_torch.py.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50lib import checkpoint
from rn50lib.resnet import Network, resnet, tiny
from tests.backends.test_step import built, start
from tests.backends.test_torch import batch, busy_arrays, train_losses
from tests.support import TINY, Ended, Photos, strict_json

pytestmark = [pytest.mark.slow, pytest.mark.needs("torch", "tensorflow")]

BACKENDS = ("torch", "tensorflow")
NETWORKS = [
    pytest.param(tiny(6), id="tiny-v1.5"),
    pytest.param(tiny(6, "v1"), id="tiny-v1", marks=pytest.mark.acceptance),
    pytest.param(resnet(18, 10), id="resnet18", marks=pytest.mark.acceptance),
    pytest.param(resnet(50, 1000), id="resnet50-v1.5", marks=pytest.mark.acceptance),
    pytest.param(resnet(50, 1000, "v1"), id="resnet50-v1", marks=pytest.mark.acceptance),
]


def both(net: Network, arrays: dict[str, np.ndarray] | None = None) -> list[Any]:
    """PyTorch's step and TensorFlow's at their start, with the same arrays."""
    return [start(built(backend, net), arrays or busy_arrays(net)) for backend in BACKENDS]


def distance(one: np.ndarray, other: np.ndarray) -> float:
    """Return the L2 distance relative to the norm of `one`."""
    return float(np.linalg.norm(one - other) / (np.linalg.norm(one) + 1e-12))


def logits(step: Any, images: np.ndarray) -> np.ndarray:
    if hasattr(step, "named"):
        return step.forward(images, training=False).numpy()
    from tests.backends.test_torch import logits

    return logits(step, images)


@pytest.mark.parametrize("net", NETWORKS)
def test_logits_agree(net: Network) -> None:
    for size in (224,) if net.name == "resnet50" else (33, 48, 50):  # symmetric padding, any size
        images = batch(2, size=size).images
        ours, theirs = (logits(step, images) for step in both(net))
        assert 0.1 < np.abs(ours).max() < 100
        np.testing.assert_allclose(theirs, ours, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("net", NETWORKS)
def test_gradients_agree(net: Network) -> None:
    """A first step at learning rate 0 without decay leaves the gradient in the velocity.

    In one of three small batches a value may be so close to zero that rounding decides a ReLU.
    """
    worst = []
    for seed in range(3):
        steps = both(net)
        for step in steps:
            step.train_step(batch(8, classes=net.num_classes, seed=seed), 0.0)
        ours, theirs = (step.state() for step in steps)
        velocities = [f"velocity/{name}" for name in net.parameters()]
        assert all(np.abs(ours[name]).max() > 0 for name in velocities)
        worst.append(max(distance(ours[name], theirs[name]) for name in velocities))
    assert np.median(worst) < 1e-3, worst


def test_five_steps_and_their_running_statistics_agree() -> None:
    """The learning rate changes, which would reveal a velocity that includes it."""
    net = tiny(6)
    steps = both(net, net.initial_arrays(2))
    one, other = (train_losses(step, (0.01, 0.02, 0.02, 0.002, 0.01)) for step in steps)
    np.testing.assert_allclose(other, one, rtol=1e-3)
    assert np.ptp(one) > 0.05
    ours, theirs = (step.state() for step in steps)
    for name in net.arrays():  # a beta began at 0: all of it is what five gradients made
        allowed = 1e-3 if ".running_" in name else 1e-2
        assert distance(ours[name], theirs[name]) < allowed, name


# --- the command line -----------------------------------------------------------------------------

Run = Callable[..., Ended]


@pytest.fixture
def trained(rn50: Run, photos: Photos, tmp_path: Path) -> Callable[..., Path]:
    """Train with a backend in a new folder; return the checkpoint's prefix."""

    def run(backend: str, name: str, *flags: str) -> Path:
        prefix = tmp_path / name / "m"
        ended = rn50(
            "train", "--data-root", photos.root, "--data-format", "files", *TINY,
            "--backend", backend, "--model-prefix", prefix, "--report", f"{prefix}.json", *flags,
        )  # fmt: skip
        assert ended.status == 0, ended.err
        return prefix

    return run


@pytest.mark.parametrize(
    ("first", "second"),
    [BACKENDS, pytest.param(*BACKENDS[::-1], marks=pytest.mark.acceptance)],
)
def test_checkpoint_of_one_backend_works_in_the_other(
    rn50: Run, trained: Callable[..., Path], photos: Photos, first: str, second: str
) -> None:
    schedule = ("--warmup-epochs", "5", "--lr-step-epochs", "30,60,80")  # whatever -e is
    prefix = trained(first, "one", "-e", "1", *schedule)
    metrics = {}
    for backend in BACKENDS:
        report = f"{prefix}-{backend}.json"
        ended = rn50(
            "train", "--data-root", photos.root, "--only-inference", "--load-epoch", "1", "-e", "1",
            "--model-prefix", prefix, "--backend", backend, "--report", report, "--threads", "1",
            "--data-nthreads", "0",
        )  # fmt: skip
        assert ended.status == 0, ended.err
        metrics[backend] = strict_json(Path(report))["metrics"]
    assert metrics["torch"]["val.top1"] == metrics["tensorflow"]["val.top1"]
    assert metrics["torch"]["val.top5"] == metrics["tensorflow"]["val.top5"]
    assert metrics["torch"]["val.loss"] == pytest.approx(
        metrics["tensorflow"]["val.loss"], rel=1e-2
    )
    resumed = trained(second, "one", "-e", "2", *schedule, "--resume")
    undisturbed = trained(first, "whole", "-e", "2", *schedule)
    ours, theirs = (strict_json(Path(f"{p}.json"))["metrics"] for p in (undisturbed, resumed))
    assert ours["train.loss"][0] == theirs["train.loss"][0]
    assert ours["train.loss"][1] == pytest.approx(theirs["train.loss"][1], rel=0.02)
    assert checkpoint.load(resumed, 2).metrics == theirs
