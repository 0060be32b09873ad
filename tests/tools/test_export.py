"""Exported checkpoints, run by other programs, against the live model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rn50 import cli
from rn50.predict import Files, predict, trained_as
from rn50lib import checkpoint
from rn50lib.resnet import resnet
from tests.support import CLASSES, Photos

pytestmark = pytest.mark.needs("torch")


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def images_and_answers(photos: Photos, trained: Path) -> tuple[np.ndarray, np.ndarray]:
    """Images as validation prepares them, uint8 (N, size, size, 3), and the live probabilities."""
    from rn50.predict import prepare

    files = Files(tuple(sorted((photos.root / "val").rglob("*.jpg"))[:7]))
    config = trained_as(trained / "m", 2)
    images = np.stack(next(prepare(files, config, len(files))))
    return images, predict(trained / "m", 2, files)[0]


def assert_names(model: Any) -> None:
    """Assert that a file of ONNX carries the names of the classes, and the sizes of validation."""
    stated = {entry.key: entry.value for entry in model.metadata_props}
    assert json.loads(stated["classes"])["names"] == list(CLASSES)
    assert (stated["resize"], stated["crop"]) == ("37", "32")


@pytest.mark.needs("onnx")
def test_onnx_runtime_gives_the_same_logits(
    trained: Path, images_and_answers, tmp_path: Path, capsys
) -> None:
    import onnx
    import onnxruntime

    images, expected = images_and_answers
    file = tmp_path / "model.onnx"
    assert cli.main(["export", str(trained / "m"), "2", "-o", str(file)]) == 0
    assert capsys.readouterr().out.strip() == str(file)
    assert_names(onnx.load(str(file)))
    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"images": images})
    assert logits.dtype == np.float32
    np.testing.assert_allclose(softmax(logits), expected, atol=1e-4)
    (one,) = session.run(["logits"], {"images": images[:1]})  # any number of images
    np.testing.assert_allclose(one, logits[:1], atol=1e-4)


def test_export_replaces_only_its_own_files(tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    net, identity = resnet(18, 6), {"model": "resnet18 v1.5", "num_classes": 6}
    checkpoint.write_symbol("m", net)
    checkpoint.save("m", checkpoint.Checkpoint(1, net.initial_arrays(), identity, {}, {}))
    before = Path("m-0001.safetensors").read_bytes()
    Path("other-0001.safetensors").write_bytes(before)
    import torch

    torch.save({"mine": torch.ones(3)}, "mine.pth")
    for name in ("m-0001.safetensors", "other-0001.safetensors", "mine.pth"):
        kept = Path(name).read_bytes()
        assert cli.main(["export", "m", "1", "-o", name]) == 2
        assert f"{name} exists and is not" in capsys.readouterr().err
        assert Path(name).read_bytes() == kept
    for suffix in ("pth", "safetensors"):
        for _ in range(2):  # its own file is replaced
            assert cli.main(["export", "m", "1", "-o", f"own.{suffix}"]) == 0
    assert Path("m-0001.safetensors").read_bytes() == before
