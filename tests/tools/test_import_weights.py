"""Weights of torchvision and timm, in and out, against models with their names and their own."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rn50lib import checkpoint
from tests.support import Ended

pytestmark = pytest.mark.needs("torch")

Run = Callable[..., Ended]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of torchvision's transforms
BLOCKS = {18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}


def theirs(depth: int, classes: int) -> Any:
    """Return a ResNet with torchvision's names and random weights, written from its documentation.

    No array of a batch norm is without effect.
    """
    import torch
    from torch import nn

    torch.manual_seed(1)
    wide = 4 if depth >= 50 else 1

    class Block(nn.Module):
        def __init__(self, channels: int, width: int, stride: int) -> None:
            super().__init__()
            shapes = [(channels, width, 3, stride), (width, width, 3, 1)]
            if wide == 4:
                last = (width, 4 * width, 1, 1)
                shapes = [(channels, width, 1, 1), (width, width, 3, stride), last]
            for i, (n, out, kernel, step) in enumerate(shapes, 1):
                conv = nn.Conv2d(n, out, kernel, step, kernel // 2, bias=False)
                self.add_module(f"conv{i}", conv)
                self.add_module(f"bn{i}", nn.BatchNorm2d(out))
            self.count, self.downsample = len(shapes), None
            if stride > 1 or channels != wide * width:
                projection = nn.Conv2d(channels, wide * width, 1, stride, bias=False)
                self.downsample = nn.Sequential(projection, nn.BatchNorm2d(wide * width))

        def forward(self, x: Any) -> Any:
            y = x
            for i in range(1, self.count + 1):
                y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
                y = y.relu() if i < self.count else y
            return (y + (x if self.downsample is None else self.downsample(x))).relu()

    model = nn.Sequential()
    model.add_module("conv1", nn.Conv2d(3, 64, 7, 2, 3, bias=False))
    model.add_module("bn1", nn.BatchNorm2d(64))
    model.add_module("relu", nn.ReLU())
    model.add_module("maxpool", nn.MaxPool2d(3, 2, 1))
    channels = 64
    for s, count in enumerate(BLOCKS[depth]):
        stage = nn.Sequential()
        for i in range(count):
            stage.append(Block(channels, 64 * 2**s, 2 if s and not i else 1))
            channels = 64 * 2**s * wide
        model.add_module(f"layer{s + 1}", stage)
    model.add_module("avgpool", nn.AdaptiveAvgPool2d(1))
    model.add_module("flatten", nn.Flatten())
    model.add_module("fc", nn.Linear(channels, classes))
    return busy(model)


def busy(model: Any) -> Any:
    """Set the arrays of batch norms to values as after a training."""
    import torch

    random = torch.Generator().manual_seed(1)
    for name, tensor in model.state_dict().items():
        if name.endswith("running_var") or (tensor.dim() == 1 and name.endswith("weight")):
            tensor.uniform_(0.5, 1.5, generator=random)
        elif tensor.dim() == 1:
            tensor.normal_(0, 0.2, generator=random)
    return model.eval()


def logits(model: Any, images: Any = None, pixels: int = 64) -> Any:
    import torch

    if images is None:
        images = torch.randn(2, 3, pixels, pixels, generator=torch.Generator().manual_seed(2))
    with torch.no_grad():
        return model(images)


def ours(prefix: Path) -> Any:
    from rn50lib.torch.model import ResNet, load_arrays

    model = ResNet(checkpoint.read_network(prefix))
    load_arrays(model, checkpoint.load(prefix, 0).arrays)
    return model.eval()


def there_and_back(rn50: Run, folder: Path, library: str, suffix: str, model: Any) -> None:
    """Import a model's weights and export them again, with bit-identical logits both times."""
    import torch
    from safetensors.torch import load_file, save_file

    file, back = folder / f"given{suffix}", folder / f"back{suffix}"
    if suffix == ".pth":  # as torchvision's reference and timm's train.py leave it
        weights = {f"module.{name}": tensor for name, tensor in model.state_dict().items()}
        torch.save({"model": weights, "args": argparse.Namespace(lr=0.1), "epoch": 3}, file)
    else:
        save_file(model.state_dict(), file)
    expected = logits(model)
    ended = rn50("import", library, file, "-o", folder / "new" / "p")
    assert ended.status == 0, ended.err
    assert "new/p-0000.safetensors" in ended.out
    assert torch.equal(logits(ours(folder / "new" / "p")), expected)
    assert rn50("export", folder / "new" / "p", "--out", back).out.strip() == str(back)
    weights = torch.load(back, weights_only=True) if suffix == ".pth" else load_file(back)
    for tensor in model.state_dict().values():
        tensor.zero_()
    model.load_state_dict(weights, strict=True)
    assert torch.equal(logits(model), expected)


@pytest.mark.parametrize(("depth", "suffix"), [(18, ".pth"), (50, ".safetensors")])
def test_logits_are_the_same_to_the_bit(rn50: Run, tmp_path: Path, depth: int, suffix: str) -> None:
    there_and_back(rn50, tmp_path, "torchvision", suffix, theirs(depth, 7))
    net = checkpoint.read_network(tmp_path / "new" / "p")
    assert (net.name, net.version, net.num_classes) == (f"resnet{depth}", "v1.5", 7)


@pytest.mark.acceptance
@pytest.mark.needs("timm")
@pytest.mark.parametrize("library", ["torchvision", "timm"])
@pytest.mark.parametrize("depth", [18, 34, 50, 101, 152])
def test_logits_match_torchvision_and_timm(
    rn50: Run, tmp_path: Path, library: str, depth: int
) -> None:
    from benchmarks import measure

    torchvision = measure.import_torchvision()
    import timm

    name = f"resnet{depth}"
    make = getattr(torchvision.models, name) if library == "torchvision" else timm.create_model
    suffix = ".pth" if library == "torchvision" else ".safetensors"
    there_and_back(
        rn50, tmp_path, library, suffix, busy(make() if suffix == ".pth" else make(name))
    )


def test_probabilities_match_torchvision(rn50: Run, tmp_path: Path) -> None:
    """256 x 256 images are not changed by torchvision's Resize(256), so the pixels are the same."""
    import torch

    files, tensors, rng = [], [], np.random.default_rng(5)
    for i in range(6):
        file = tmp_path / "imagenet" / "val" / f"n0144{i // 2}" / f"{i}.JPEG"
        file.parent.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(0, 256, 3) // 2 + rng.integers(0, 128, (8, 8, 3))
        Image.fromarray(coarse.astype(np.uint8)).resize((256, 256)).save(file, quality=95)
        files.append(file)  # Resize(256), CenterCrop(224), ToTensor(), Normalize(MEAN, STD):
        pixels = torch.tensor(np.array(Image.open(file))[16:240, 16:240]) / 255
        tensors.append(((pixels - torch.tensor(MEAN)) / torch.tensor(STD)).permute(2, 0, 1))
    images, model = torch.stack(tensors), theirs(18, 3)
    spread = 2 / logits(model, images).std(0)  # so that a wrong mean changes the answers
    model.fc.weight.data *= spread[:, None]
    model.fc.bias.data -= logits(model, images).mean(0)
    expected = logits(model, images).softmax(1).numpy()
    assert len(set(expected.argmax(1))) > 1
    torch.save(model.state_dict(), "m.pth")
    assert rn50("import", "torchvision", "m.pth", "-o", "m").status == 0
    assert rn50("predict", "m", "0", *files, "-o", "p.npz").status == 0
    with np.load("p.npz") as out:
        np.testing.assert_allclose(out["probabilities"], expected, atol=2e-3)
    flags = ("--data-root", tmp_path / "imagenet", "--data-nthreads", "0", "--threads", "1")
    ended = rn50("score", "m", "0", *flags)
    assert ended.status == 0, ended.err
    right = 100 * (expected.argmax(1) == np.repeat([0, 1, 2], 2)).mean()
    assert float(ended.out.split()[1]) == pytest.approx(right)


# --- what is refused ------------------------------------------------------------------------------


def rename(weights: dict[str, Any]) -> None:  # timm's resnet50d has three convolutions there
    weights["conv1.0.weight"] = weights.pop("conv1.weight")


def shorten(weights: dict[str, Any]) -> None:
    weights["layer4.1.bn2.bias"] = weights["layer4.1.bn2.bias"][:100]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (rename, ["resnet18", "missing: conv1.weight", "not part of it: conv1.0.weight"]),
        (shorten, ["layer4.1.bn2.bias (100,) instead of (512,)"]),
        (lambda weights: weights.pop("fc.weight"), ["its last layer fc"]),
        (lambda weights: weights.update(note="a text"), ["no state dict"]),
    ],
)
def test_different_network_is_refused(rn50: Run, tmp_path: Path, change: Any, words: Any) -> None:
    import torch

    weights = theirs(18, 4).state_dict()
    change(weights)
    torch.save(weights, "m.pth")
    error = rn50("import", "torchvision", "m.pth", "-o", "m").error
    assert "m.pth" in error and all(word in error for word in words), error
    assert [file.name for file in tmp_path.glob("m*")] == ["m.pth"]


def test_existing_files_are_not_overwritten(rn50: Run, trained: Path) -> None:
    before = (trained / "m-0002.safetensors").read_bytes()
    error = rn50("import", "timm", "any.pth", "-o", trained / "m").error
    assert "there already" in error
    assert (trained / "m-0002.safetensors").read_bytes() == before


def test_unsupported_networks_are_not_exported(rn50: Run, trained: Path, tmp_path: Path) -> None:
    from rn50lib.resnet import resnet

    assert "no resnet-tiny" in rn50("export", trained / "m", "2", "-o", "t.pth").error
    net = resnet(50, 2, "v1")
    checkpoint.write_symbol("v1", net)
    identity = {"model": "resnet50 v1", "num_classes": 2}
    checkpoint.save("v1", checkpoint.Checkpoint(0, net.initial_arrays(), identity, {}, {}))
    assert "no resnet50 v1" in rn50("export", "v1", "-o", "v1.pth").error
    assert not list(tmp_path.glob("*.pth"))
