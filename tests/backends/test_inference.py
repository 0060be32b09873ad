"""The inference form of the network against the training form with the same weights."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT

pytestmark = pytest.mark.needs("torch")


@pytest.fixture(scope="module")
def model(request: pytest.FixtureRequest):  # type: ignore[no-untyped-def]
    """A small bottleneck network, v1.5 by default, with batch norms as after training."""
    import torch

    from rn50lib import resnet as network
    from rn50lib.torch.model import ResNet, load_arrays, tensors

    torch.manual_seed(0)
    net = network.tiny(10, getattr(request, "param", "v1.5"))
    made = ResNet(net)
    load_arrays(made, net.initial_arrays(0))
    with torch.no_grad():
        for name, tensor in tensors(made).items():
            if name.endswith(("gamma", "running_var")):
                tensor.uniform_(0.5, 2.0)
            elif name.endswith(("beta", "running_mean")):
                tensor.normal_(0, 0.3)
    return made.eval()


@pytest.mark.parametrize("model", ["v1", "v1.5"], indirect=True)
def test_folded_logits_match_the_trained_model(model) -> None:
    import torch

    from rn50lib.torch import inference

    images = torch.randn(5, 3, 64, 64)
    predict = inference.Predictor(model, torch.float32)
    with torch.no_grad():
        expected = model(images)
    got = predict(images)
    assert got.dtype == torch.float32
    assert float((got - expected).abs().max()) < 1e-4 * float(expected.abs().max())


@pytest.mark.slow
def test_a_step_predicts_with_the_weights_it_has(photos) -> None:
    """Prediction uses no stale weights after training or loading."""
    import numpy as np
    import torch

    from rn50lib.data import Batch
    from rn50lib.distributed import Comm
    from rn50lib.torch.train_step import TorchStep
    from tests.support import full

    config = full(network="tiny", num_layers=None, image_shape=32, dtype="float32")
    step = TorchStep(config, config.to_network(), Comm())
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (8, 32, 32, 3), np.uint8)
    batch = Batch(images, np.arange(8, dtype=np.int32) % config.num_classes, 8)

    def expected() -> np.ndarray:
        pixels, _ = step.inputs(batch)
        with torch.no_grad():
            return step.model.eval()(pixels).softmax(1).numpy()

    np.testing.assert_allclose(step.predict(images), expected(), atol=1e-5)
    before, arrays = step.predict(images), step.state()
    for _ in range(3):
        step.train_step(batch, 0.1)
    assert np.abs(step.predict(images) - before).max() > 1e-3
    np.testing.assert_allclose(step.predict(images), expected(), atol=1e-5)
    step.load(arrays)
    np.testing.assert_allclose(step.predict(images), before, atol=1e-6)


@pytest.mark.acceptance
@pytest.mark.needs("engines")
def test_an_engine_that_is_gone_leaves_signals_alone() -> None:
    """OpenVINO's plug-in sets the stack of signal handlers, which must outlive each network."""
    code = """
import gc, signal, threading, torch
from rn50lib import resnet
from rn50lib.torch import inference, model
signal.signal(signal.SIGUSR1, lambda number, frame: print("handled"))
network = [inference.openvino(model.ResNet(resnet.tiny(4)).eval(), torch.float32)]
network[0](torch.zeros(1, 3, 32, 32))
def drop():
    network.clear()
    gc.collect()
    signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
dropped = threading.Thread(target=drop)
dropped.start()
dropped.join()
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert (done.returncode, done.stdout) == (0, "handled\n"), done.stderr
