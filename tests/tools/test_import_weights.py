"""Weights of torchvision and timm, in and out, against models with their names and their own."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from rn50.predict import trained_as
from rn50lib import checkpoint
from rn50lib.resnet import resnet
from tests.backends.test_torch import busy_arrays, by_the_paper
from tests.support import Ended

pytestmark = pytest.mark.needs("torch")

Run = Callable[..., Ended]
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of torchvision's transforms


def theirs(arrays: dict[str, np.ndarray]) -> dict[str, Any]:
    """Return a state dict with the names of torchvision and timm."""
    import torch

    found = {}
    for name, array in arrays.items():
        owner, _, part = name.rpartition(".")
        owner = owner.replace("downsample_bn", "downsample.1")
        owner += ".0" * owner.endswith("downsample")
        part = {"gamma": "weight", "beta": "bias"}.get(part, part)
        found[f"{owner}.{part}"] = torch.from_numpy(array)
        if part == "running_var":
            found[f"{owner}.num_batches_tracked"] = torch.tensor(7)
    return found


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


def ours(prefix: Path) -> Any:
    from rn50lib.torch.model import ResNet, load_arrays

    model = ResNet(checkpoint.read_network(prefix))
    load_arrays(model, checkpoint.load(prefix, 0).arrays)
    return model.eval()


def there_and_back(rn50: Run, folder: Path, suffix: str, weights: dict[str, Any]) -> None:
    """Import weights to folder/new/p and export them again: all are bit for bit the same."""
    import torch
    from safetensors.torch import load_file, save_file

    file, back = folder / f"given{suffix}", folder / f"back{suffix}"
    if suffix == ".pth":  # as torchvision's reference and timm's train.py leave it
        wrapped = {f"module.{name}": tensor for name, tensor in weights.items()}
        torch.save({"model": wrapped, "args": argparse.Namespace(lr=0.1), "epoch": 3}, file)
    else:
        save_file(weights, file)
    ended = rn50("import", file, "-o", folder / "new" / "p")
    assert ended.status == 0, ended.err
    assert "new/p-0000.safetensors" in ended.out
    assert rn50("export", folder / "new" / "p", "--out", back).out.strip() == str(back)
    found = torch.load(back, weights_only=True) if suffix == ".pth" else load_file(back)
    assert found.keys() == weights.keys()
    for name, tensor in weights.items():
        assert torch.equal(found[name], tensor) or name.endswith("num_batches_tracked"), name


@pytest.mark.parametrize(("depth", "suffix"), [(18, ".pth"), (50, ".safetensors")])
def test_weights_are_the_same_to_the_bit(
    rn50: Run, tmp_path: Path, depth: int, suffix: str
) -> None:
    arrays = busy_arrays(resnet(depth, 7))
    there_and_back(rn50, tmp_path, suffix, theirs(arrays))
    net = checkpoint.read_network(tmp_path / "new" / "p")
    assert (net.name, net.version, net.num_classes) == (f"resnet{depth}", "v1.5", 7)
    held = checkpoint.load(tmp_path / "new" / "p", 0).arrays
    assert all(np.array_equal(held[name], array) for name, array in arrays.items())


@pytest.mark.acceptance
@pytest.mark.needs("timm")
@pytest.mark.parametrize("library", ["torchvision", "timm"])
@pytest.mark.parametrize("depth", [18, 34, 50, 101, 152])
def test_logits_match_torchvision_and_timm(
    rn50: Run, tmp_path: Path, library: str, depth: int
) -> None:
    import torch

    from benchmarks import measure

    torchvision = measure.import_torchvision()
    import timm

    name = f"resnet{depth}"
    make = getattr(torchvision.models, name) if library == "torchvision" else timm.create_model
    model = busy(make() if library == "torchvision" else make(name))
    suffix = ".pth" if library == "torchvision" else ".safetensors"
    there_and_back(rn50, tmp_path, suffix, model.state_dict())
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(ours(tmp_path / "new" / "p")(images), model(images))


def test_probabilities_match_torchvision(rn50: Run, tmp_path: Path) -> None:
    """256 x 256 images are not changed by torchvision's Resize(256), so the pixels are the same."""
    import torch

    files, tensors, rng = [], [], np.random.default_rng(6)
    for i in range(3):
        file = tmp_path / "imagenet" / "val" / f"n0144{i}" / f"{i}.JPEG"
        file.parent.mkdir(parents=True, exist_ok=True)
        coarse = rng.integers(0, 256, 3) // 2 + rng.integers(0, 128, (8, 8, 3))
        Image.fromarray(coarse.astype(np.uint8)).resize((256, 256)).save(file, quality=95)
        files.append(file)  # Resize(256), CenterCrop(224), ToTensor(), Normalize(MEAN, STD):
        pixels = torch.tensor(np.array(Image.open(file))[16:240, 16:240]) / 255
        tensors.append(((pixels - torch.tensor(MEAN)) / torch.tensor(STD)).permute(2, 0, 1))
    arrays = busy_arrays(resnet(18, 3))

    def logits() -> Any:
        weights = {name: torch.from_numpy(array) for name, array in arrays.items()}
        return by_the_paper(weights, torch.stack(tensors), (2, 2, 2, 2), "v1.5")

    arrays["fc.weight"] *= 2 / logits().std(0).numpy()[:, None]  # a wrong mean changes the answers
    arrays["fc.bias"] -= logits().mean(0).numpy()
    expected = logits().softmax(1).numpy()
    assert len(set(expected.argmax(1))) > 1
    torch.save(theirs(arrays), "m.pth")
    assert rn50("import", "m.pth", "-o", "m").status == 0
    assert rn50("predict", "m", "0", *files, "-o", "p.npz").status == 0
    with np.load("p.npz") as out:
        np.testing.assert_allclose(out["probabilities"], expected, atol=2e-3)
    flags = ("--data-root", tmp_path / "imagenet", "--data-nthreads", "0", "--threads", "1")
    ended = rn50("score", "m", "0", *flags)
    assert ended.status == 0, ended.err
    right = 100 * (expected.argmax(1) == np.arange(3)).mean()
    assert 0 < right < 100
    assert float(ended.out.split()[1]) == pytest.approx(right)


# --- files of training programs -------------------------------------------------------------------


def under(prefix: str, weights: dict[str, Any]) -> dict[str, Any]:
    return {f"{prefix}{name}": tensor for name, tensor in weights.items()}


def averaged(weights: dict[str, Any]) -> dict[str, Any]:
    """Different weights of the same network: the file's second set."""
    return {name: tensor + 1 for name, tensor in weights.items()}


def inside(weights: dict[str, Any]) -> dict[str, Any]:
    """torch.compile of each stage, under FSDP."""
    found = {re.sub(r"^(layer\d)", r"\1._orig_mod", name): t for name, t in weights.items()}
    return under("_fsdp_wrapped_module.", found)


def torchvision_ema(weights: dict[str, Any]) -> dict[str, Any]:
    import torch

    ema = {"n_averaged": torch.tensor(9), **under("module.", averaged(weights))}
    return {"model": under("module.", weights), "model_ema": ema, "epoch": 3}


def timm_ema(weights: dict[str, Any]) -> dict[str, Any]:
    return {"arch": "resnet18", "state_dict": weights, "state_dict_ema": averaged(weights)}


def queue() -> dict[str, Any]:
    import torch

    return {"queue": torch.zeros(4, 8)}


@pytest.mark.parametrize(
    ("make", "flags", "ema", "printed"),
    [
        *[(lambda w, p=prefix: under(p, w), [], False, "")
          for prefix in ("model.", "backbone.", "net.module.encoder.")],
        (inside, [], False, ""),
        (lambda w: {"ema": {"module": averaged(w), "updates": 9}}, [], True, "ema.module."),
        (lambda w: under("encoder.", w) | queue(), ["--num-classes", "7"], False, ": queue."),
    ],
)  # fmt: skip
def test_prefixes_are_removed(
    rn50: Run, tmp_path: Path, make: Any, flags: list[str], ema: bool, printed: str
) -> None:
    import torch

    arrays = busy_arrays(resnet(18, 4))
    weights = theirs(arrays)
    torch.save(make(weights), "m.pth")
    ended = rn50("import", "m.pth", "-o", "m", *flags)
    assert ended.status == 0, ended.err
    assert printed in ended.out
    held = checkpoint.load(tmp_path / "m", 0).arrays
    head = resnet(18, 7).initial_arrays() if "--num-classes" in flags else arrays
    for name in ("conv1.weight", "layer3.1.bn2.gamma", "layer4.0.downsample.weight"):
        assert np.array_equal(held[name], arrays[name] + ema), name
    for name in ("fc.weight", "fc.bias"):
        assert np.array_equal(held[name], head[name] + ema), name


def test_scoring_takes_the_settings_of_the_import(rn50: Run, tmp_path: Path) -> None:
    import torch

    torch.save(theirs(busy_arrays(resnet(18, 4))), "m.pth")
    sizes = ("--image-shape", "64", "--val-resize", "70")
    assert rn50("import", "m.pth", "-o", "m", *sizes).status == 0
    config = trained_as("m", 0)
    assert (config.image_shape, config.val_resize, config.dtype) == (64, 70, "float32")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (torchvision_ema, "model.module, model_ema.module"),
        (timm_ema, "state_dict, state_dict_ema"),
        (lambda w: w | under("old.", w), "without a prefix, old"),
    ],
)
def test_several_networks_are_refused(rn50: Run, tmp_path: Path, make: Any, named: str) -> None:
    import torch

    torch.save(make(theirs(busy_arrays(resnet(18, 4)))), "m.pth")
    error = rn50("import", "m.pth", "-o", "m").error
    assert f"m.pth holds several networks: {named}; save" in error
    assert [file.name for file in tmp_path.glob("m*")] == ["m.pth"]


# --- what is refused ------------------------------------------------------------------------------


def rename(weights: dict[str, Any]) -> None:  # timm's resnet50d has three convolutions there
    weights["conv1.0.weight"] = weights.pop("conv1.weight")


def shorten(weights: dict[str, Any]) -> None:
    weights["layer4.1.bn2.bias"] = weights["layer4.1.bn2.bias"][:100]


def move(weights: dict[str, Any]) -> None:  # other names for the layers
    for name in [name for name in weights if name.startswith(("layer", "conv", "bn"))]:
        weights[f"stem.{name}"] = weights.pop(name)
        weights[f"stem.{name.replace('layer', 'stage')}"] = weights.pop(f"stem.{name}")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (rename, ["resnet18", "missing: conv1.weight", "not part of it: conv1.0.weight"]),
        (shorten, ["layer4.1.bn2.bias (100,) instead of (512,)"]),
        (lambda weights: weights.pop("fc.weight"), ["its last layer fc", "--num-classes"]),
        (lambda weights: [weights.pop(name) for name in list(weights)], ["found the keys none"]),
        (move, ["found the keys fc.bias, fc.weight, stem.bn1.bias", "expected conv1.weight"]),
    ],
)
def test_different_network_is_refused(rn50: Run, tmp_path: Path, change: Any, words: Any) -> None:
    import torch

    weights = theirs(busy_arrays(resnet(18, 4)))
    change(weights)
    torch.save(weights, "m.pth")
    error = rn50("import", "m.pth", "-o", "m").error
    assert "m.pth" in error and all(word in error for word in words), error
    assert [file.name for file in tmp_path.glob("m*")] == ["m.pth"]


def cut(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100_000])


def download_page(file: Path) -> None:
    file.write_text("<!DOCTYPE html><title>404 Not Found</title>")


def sparse(file: Path) -> None:
    import torch

    weights = torch.load(file)
    torch.save(weights | {"conv1.weight": weights["conv1.weight"].to_sparse()}, file)


def script(file: Path) -> None:
    import torch

    torch.jit.save(torch.jit.script(torch.nn.ReLU()), file)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (cut, "is damaged, or holds no weights: PytorchStreamReader failed reading zip archive:"
         " failed finding central directory$"),
        (download_page, "is not a file of torch.save: it starts with b'<!DOCTYPE html>"),
        (sparse, "holds quantized or sparse arrays, such as conv1.weight: import"),
        (script, "TorchScript archives passed to ``torch.load``$"),
    ],
)  # fmt: skip
@pytest.mark.filterwarnings("error:.*torch.load")
def test_a_file_of_a_different_kind_is_one_line(
    rn50: Run, tmp_path: Path, change: Any, words: str
) -> None:
    import torch

    torch.save(theirs(busy_arrays(resnet(18, 4))), "m.pth")
    change(tmp_path / "m.pth")
    ended = rn50("import", "m.pth", "-o", "m")
    assert ended.err.splitlines() == [f"error: {ended.error}"]
    assert re.search(words, ended.error)


def test_existing_files_are_not_overwritten(rn50: Run, trained: Path) -> None:
    before = (trained / "m-0002.safetensors").read_bytes()
    error = rn50("import", "any.pth", "-o", trained / "m").error
    assert "there already" in error
    assert (trained / "m-0002.safetensors").read_bytes() == before


def test_unsupported_networks_are_not_exported(rn50: Run, trained: Path, tmp_path: Path) -> None:
    assert "no resnet-tiny" in rn50("export", trained / "m", "2", "-o", "t.pth").error
    net = resnet(50, 2, "v1")
    checkpoint.write_symbol("v1", net)
    identity = {"model": "resnet50 v1", "num_classes": 2}
    checkpoint.save("v1", checkpoint.Checkpoint(0, net.initial_arrays(), identity, {}, {}))
    assert "no resnet50 v1" in rn50("export", "v1", "0", "-o", "v1.pth").error
    assert not list(tmp_path.glob("*.pth"))
