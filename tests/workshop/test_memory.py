"""Memory of a training step: counted by hand, by autograd, and by the kernel as a run goes on."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rn50lib.resnet import resnet, tiny
from tests.conftest import clean_environment
from workshop import memory

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


@pytest.mark.acceptance
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
