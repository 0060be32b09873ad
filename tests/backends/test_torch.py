"""The PyTorch step against independent ground truth: the paper's network, NumPy, timm."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from rn50lib import run_setup as backends
from rn50lib.data import Batch
from rn50lib.distributed import Comm
from rn50lib.errors import UserError
from rn50lib.hardware import Gpu
from rn50lib.resnet import Network, resnet, tiny
from tests.support import LAPTOP, full

pytestmark = pytest.mark.needs("torch")

RGB_MEAN = np.array([123.675, 116.28, 103.53], np.float32)
RGB_STD = np.array([58.395, 57.12, 57.375], np.float32)


def build(net: Network | None = None, **fields: Any) -> Any:
    from rn50lib.torch.train_step import TorchStep

    net = net or tiny(6)
    return TorchStep(full(net.num_classes, **fields), net, Comm())


def batch(n: int = 4, size: int = 32, classes: int = 6, valid: int | None = None, seed: int = 0):
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, size, size, 3), dtype=np.uint8)
    labels = rng.integers(0, classes, n, dtype=np.int32)
    return Batch(images, labels, n if valid is None else valid)


def train_losses(step: Any, rates: Sequence[float]) -> list[float]:
    """Train a step at each of some learning rates; return the mean losses of their batches."""
    seen = []
    for i, lr in enumerate(rates):
        step.train_step(batch(8, seed=i), lr)
        sums = step.pop_metrics()
        seen.append(sums[0] / sums[-1])
    return seen


def busy_arrays(net: Network, seed: int = 1) -> dict[str, np.ndarray]:
    """Weights in which every array matters: no batch norm is the identity.

    The last one of each block is small, so that the signal stays of order one through 50 layers.
    """
    rng = np.random.default_rng(seed)
    arrays = net.initial_arrays(seed)
    last = {f"{block.convs[-1].norm}.gamma" for block in net.blocks()}
    for name, array in arrays.items():
        if name.endswith((".gamma", ".running_var")):
            size = 0.2 if name in last else 1
            arrays[name] = (size * rng.uniform(0.5, 1.5, array.shape)).astype(np.float32)
        elif name.endswith((".beta", ".running_mean", ".bias")):
            arrays[name] = rng.normal(0, 0.2, array.shape).astype(np.float32)
    return arrays


# --- the network ----------------------------------------------------------------------------------


def by_the_paper(
    w: dict[str, Any], x_NCHW: Any, stages: tuple[int, ...], version: str, train: bool = False
) -> Any:
    """Return the logits of a ResNet as written in He et al. 2015, with the reference's change."""
    import torch
    from torch.nn import functional as F

    def conv(x: Any, name: str, stride: int, padding: int, norm: str) -> Any:
        x = F.conv2d(x, w[name + ".weight"], stride=stride, padding=padding)
        shape = (1, -1, 1, 1)
        mean, var = (w[f"{norm}.running_{s}"].view(shape) for s in ("mean", "var"))
        if train:
            mean = x.mean(dim=(0, 2, 3), keepdim=True)
            var = ((x - mean) ** 2).mean(dim=(0, 2, 3), keepdim=True)
        gamma, beta = (w[f"{norm}.{s}"].view(shape) for s in ("gamma", "beta"))
        return (x - mean) / torch.sqrt(var + 1e-5) * gamma + beta

    x = F.relu(conv(x_NCHW, "conv1", 2, 3, "bn1"))
    x = F.max_pool2d(x, 3, 2, 1)
    for s, blocks in enumerate(stages, start=1):
        for b in range(blocks):
            at, down = f"layer{s}.{b}", 2 if s > 1 and b == 0 else 1
            if f"{at}.conv3.weight" in w:
                first, second = (down, 1) if version == "v1" else (1, down)
                y = F.relu(conv(x, f"{at}.conv1", first, 0, f"{at}.bn1"))
                y = F.relu(conv(y, f"{at}.conv2", second, 1, f"{at}.bn2"))
                y = conv(y, f"{at}.conv3", 1, 0, f"{at}.bn3")
            else:
                y = F.relu(conv(x, f"{at}.conv1", down, 1, f"{at}.bn1"))
                y = conv(y, f"{at}.conv2", 1, 1, f"{at}.bn2")
            if f"{at}.downsample.weight" in w:
                x = conv(x, f"{at}.downsample", down, 0, f"{at}.downsample_bn")
            x = F.relu(x + y)
    return x.mean(dim=(2, 3)) @ w["fc.weight"].T + w["fc.bias"]


def doubles(arrays: dict[str, np.ndarray], images: np.ndarray) -> tuple[dict[str, Any], Any]:
    """Return weights and normalised images as float64 tensors."""
    import torch

    normalised = ((images - RGB_MEAN) / RGB_STD).transpose(0, 3, 1, 2)
    held = {name: torch.from_numpy(array).double() for name, array in arrays.items()}
    return held, torch.from_numpy(normalised).double()


def logits(step: Any, images: np.ndarray) -> np.ndarray:
    import torch

    step.model.eval()
    with torch.no_grad():
        inputs, _ = step.inputs(Batch(images, np.zeros(len(images), np.int32), len(images)))
        return step.forward(inputs).cpu().numpy()


@pytest.mark.parametrize(
    "net",
    [tiny(6), tiny(6, "v1"), resnet(18, 10), resnet(50, 10), resnet(50, 10, "v1")],
    ids=lambda net: f"{net.name}-{net.version}",
)
def test_logits_match_the_papers_network(net: Network) -> None:
    arrays = busy_arrays(net)
    step = build(net)
    step.load(arrays)
    images = batch(2, size=48).images
    wanted = by_the_paper(*doubles(arrays, images), net.stages, net.version).numpy()
    np.testing.assert_allclose(logits(step, images), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.acceptance
@pytest.mark.needs("timm")
def test_logits_match_timms_resnet50() -> None:
    import torch

    from benchmarks import measure

    measure.import_torchvision()  # which timm imports
    import timm

    peer = timm.create_model("resnet50").eval()
    net = resnet(50)
    arrays = busy_arrays(net)
    ours_to_timm = {"gamma": "weight", "beta": "bias"}
    theirs = {}
    for name, array in arrays.items():
        owner, _, part = name.rpartition(".")
        owner = owner.replace("downsample_bn", "downsample.1")
        if owner.endswith("downsample"):
            owner += ".0"
        theirs[f"{owner}.{ours_to_timm.get(part, part)}"] = torch.from_numpy(array)
    missing, unexpected = peer.load_state_dict(theirs, strict=False)
    assert not unexpected and all(name.endswith("num_batches_tracked") for name in missing)
    step = build(net)
    step.load(arrays)
    images = batch(4, size=224).images
    with torch.no_grad():
        inputs = torch.from_numpy(((images - RGB_MEAN) / RGB_STD).transpose(0, 3, 1, 2).copy())
        wanted = peer(inputs).numpy()
    assert 0.1 < np.abs(wanted).max() < 100
    np.testing.assert_allclose(logits(step, images), wanted, rtol=1e-4, atol=1e-4)


# --- the step -------------------------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [0.9, 0.0])
def test_step_applies_the_rule_to_exchanged_gradients(momentum: float) -> None:
    import torch

    step = build(wd=0.01, mom=momentum)
    named = [n for n in tiny(6).arrays() if ".running_" not in n]
    seen: list[dict[str, np.ndarray]] = []

    def exchange() -> None:
        """Pretend that a second worker has gradients three times as large."""
        from rn50lib.torch.model import tensors

        with torch.no_grad():
            for parameter in step.model.parameters():
                parameter.grad *= 2
        by_name = tensors(step.model)
        seen.append({n: by_name[n].grad.cpu().numpy().copy() for n in named})

    step.sync = exchange
    state = step.state()
    for i, lr in enumerate((0.0, 0.05, 0.1, 0.01)):
        step.train_step(batch(4, seed=i), lr)
        for name in named:
            velocity = momentum * state[f"velocity/{name}"] + seen[i][name] + 0.01 * state[name]
            state[name], state[f"velocity/{name}"] = state[name] - lr * velocity, velocity
        after = step.state()
        for name in named:
            np.testing.assert_allclose(after[name], state[name], rtol=1e-5, atol=1e-6)
            key = f"velocity/{name}"
            if momentum:  # else no later step reads it
                np.testing.assert_allclose(after[key], state[key], rtol=1e-4, atol=1e-5)
    assert len(seen) == 4


@pytest.mark.parametrize("version", ["v1", "v1.5"])
def test_gradients_match_the_papers_network(version: str) -> None:
    """Compare every parameter's gradient with a float64 forward pass and the batch's statistics."""
    import torch
    from torch.nn import functional as F

    from rn50lib.torch.model import tensors

    net, given = tiny(6, version), batch(6, size=64)
    step = build(net)
    arrays = busy_arrays(net)
    step.load(arrays)
    made: dict[str, np.ndarray] = {}

    def keep() -> None:
        named = tensors(step.model).items()
        made.update({n: t.grad.cpu().numpy().copy() for n, t in named if t.grad is not None})

    step.sync = keep
    step.train_step(given, 0.0)
    weights, images = doubles(arrays, given.images)
    for name in net.parameters():
        weights[name].requires_grad_()
    output = by_the_paper(weights, images, net.stages, version, train=True)
    loss = F.cross_entropy(output, torch.from_numpy(given.labels).long())
    loss.backward()
    assert step.pop_metrics()[0] == pytest.approx(6 * loss.item(), rel=1e-5)
    assert made.keys() == net.parameters().keys()
    for name, gradient in made.items():
        wanted = weights[name].grad.numpy()
        np.testing.assert_allclose(gradient, wanted, rtol=1e-3, atol=1e-3 * np.abs(wanted).max())


@pytest.mark.slow  # the profiler starts
def test_only_the_loop_waits_for_the_device() -> None:
    """`.item()`, `float()` and `if` of a tensor wait for a GPU; its own kernel reads on a CPU."""
    import torch

    step = build(loss_scale="dynamic", macrobatch_size=8)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        step.train_step(batch(), 0.1)
        step.train_step(batch(), 0.1)
        step.eval_step(batch(valid=3))
    reads = [event for event in profile.events() if event.name == "aten::_local_scalar_dense"]
    callers = [event.cpu_parent.cpu_parent for event in reads]
    assert {caller and caller.name for caller in callers} <= {"aten::_fused_sgd_"}


def test_running_statistics_move_by_a_tenth() -> None:
    import torch
    from torch.nn import functional as F

    step = build()
    given = batch(4)
    images, _ = step.inputs(given)
    weight = torch.from_numpy(step.state()["conv1.weight"])
    out = F.conv2d(images.cpu(), weight, stride=2, padding=3)
    step.model.eval()  # as a compiled validation, or your own predictor, leaves it
    step.train_step(given, 0.0)
    state = step.state()
    np.testing.assert_allclose(
        state["bn1.running_mean"], 0.1 * out.mean(dim=(0, 2, 3)), rtol=1e-4, atol=1e-6
    )
    np.testing.assert_allclose(
        state["bn1.running_var"], 0.9 + 0.1 * out.var(dim=(0, 2, 3)), rtol=1e-4
    )


def test_logits_are_computed_in_float32_from_the_pool_on() -> None:
    import torch

    step = build()
    x = torch.rand((2, step.net.features, 7, 7)).bfloat16()
    with torch.autocast("cpu", torch.bfloat16):
        logits = step.model.head(x)
    assert torch.equal(logits, step.model.fc(x.float().mean(dim=(2, 3))))


def test_bfloat16_is_close_to_float32() -> None:
    arrays, given = busy_arrays(tiny(6)), batch(16)
    made, losses = {}, {}
    for dtype in ("float32", "bfloat16"):
        step = build(dtype=dtype)
        step.load(arrays)
        made[dtype] = logits(step, given.images)
        step.train_step(given, 0.01)
        losses[dtype] = step.pop_metrics()[0]
        assert all(array.dtype == np.float32 for array in step.state().values())
    scale = np.abs(made["float32"]).max()
    difference = np.abs(made["bfloat16"] - made["float32"]).max()
    assert 0 < difference < 0.05 * scale  # 8 bits of mantissa: different numbers, but close
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)


def test_unreachable_gpu_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A driver too old for PyTorch's CUDA, for example, does not silently train on the CPU."""
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert backends.build_step(full(), tiny(6), Comm()).device == "cpu"
    gpu = Gpu(0, "a GPU", 2**34, (8, 0), "550.54", "GPU-0")
    monkeypatch.setattr(backends, "machine", lambda: dataclasses.replace(LAPTOP, gpus=(gpu,)))
    with pytest.raises(UserError, match="does not reach the GPU that nvidia-smi lists"):
        backends.build_step(full(), tiny(6), Comm())
