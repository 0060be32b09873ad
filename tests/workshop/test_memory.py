"""Memory of a training step: counted by hand, by autograd, and by the kernel as a run goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rn50lib.resnet import Network, resnet, tiny
from tests.conftest import clean_environment
from workshop import memory

GB = 2**30
# one basic block, 4 channels wide, 3 classes: at 32 pixels the stem gives 4 x 16 x 16 = 1,024
# elements, the pooling 256, each convolution of the block 256
HAND = Network("hand", "v1.5", 3, "basic", (1,), width=4)
PARAMETERS = (4 * 3 * 49 + 8) + 2 * (4 * 4 * 9 + 8) + (4 * 3 + 3)
RUNNING = 3 * 2 * 4
CONVS = 4 * 3 * 49 + 2 * 4 * 4 * 9
STATISTICS = 3 * 2 * 4 * 4  # mean and deviation of 4 channels in 3 batch norms, float32


@pytest.mark.parametrize("dtype", ["float32", "tf32"])
def test_parts_of_a_small_network_by_hand(dtype: str) -> None:
    found = memory.predict(HAND, 32, 2, dtype)
    assert found.weights == 4 * (PARAMETERS + RUNNING)
    assert found.gradients == found.momentum == 4 * PARAMETERS
    assert found.images == 2 * 3 * 32 * 32
    convolutions = rectified = 1024 + 256 + 256
    image = 4 * (3 * 32 * 32 + convolutions + rectified) + 256 * (4 + 8) + 4 * 4 + (4 * 3 + 8)
    assert found.activations == 2 * image + STATISTICS
    assert found.workspace == 2 * 2 * 4 * 1024
    assert found.total == sum(vars(found).values())


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sixteen_bits_halve_the_activations_only(dtype: str) -> None:
    found = memory.predict(HAND, 32, 2, dtype)
    assert found.weights == 4 * (PARAMETERS + RUNNING) + 2 * CONVS
    assert found.gradients == found.momentum == 4 * PARAMETERS
    assert found.images == 2 * 3 * 32 * 32 * (1 + 4)
    kept = 1024 + 256 + 256
    image = 2 * (3 * 32 * 32 + kept + kept) + 256 * (2 + 8) + 4 * 4 + (4 * 3 + 8)
    assert found.activations == 2 * image + STATISTICS


SAVED = """
import torch
from torch.nn import functional as F
from rn50lib.torch.model import ResNet
from rn50lib.resnet import resnet, tiny

def kept(net, size, batch, dtype):
    model = ResNet(net).to(memory_format=torch.channels_last)
    images = torch.randn(batch, 3, size, size).to(memory_format=torch.channels_last)
    own = {t.untyped_storage().data_ptr() for t in [*model.parameters(), *model.buffers()]}
    held = {}  # by storage: what two layers keep is there once

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            held[storage.data_ptr()] = (storage.nbytes(), tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == "bfloat16"):
            logits = model(images)
        F.cross_entropy(logits, torch.zeros(batch, dtype=torch.int64))
    return sum(size for size, _ in held.values())

for net, size in ((tiny(), 32), (resnet(18, 10), 64), (resnet(50), 64)):
    for dtype in ("float32", "bfloat16"):
        print(net.name, dtype, (kept(net, size, 5, dtype) - kept(net, size, 2, dtype)) / 3)
"""


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_autograd_stores_the_predicted_activations() -> None:
    """Compare with PyTorch's list of the tensors saved for the backward pass, byte by byte."""
    done = subprocess.run(
        [sys.executable, "-c", SAVED], capture_output=True, text=True, env=clean_environment()
    )
    assert done.returncode == 0, done.stderr
    looked_at = ((tiny(), 32), (resnet(18, 10), 64), (resnet(50), 64))
    nets = {net.name: (net, size) for net, size in looked_at}
    lines = done.stdout.splitlines()
    assert len(lines) == 6
    for line in lines:
        name, dtype, measured = line.split()
        net, size = nets[name]
        one, two = (memory.predict(net, size, batch, dtype).activations for batch in (1, 2))
        assert two - one == pytest.approx(float(measured), rel=0.02), line
