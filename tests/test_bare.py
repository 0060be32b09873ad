"""A bare checkout with PyTorch and nothing else: what runs there, and what says which package it
needs."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ROOT
from tests.support import strict_json

TINY = ("--network", "tiny", "--image-shape", "32", "-b", "4", "-e", "1", "--no-val", "-n", "1")
SYNTHETIC = ("run", "--loader", "synthetic", "--benchmark-iters", "3", *TINY)

ABSENT = """
from importlib.machinery import PathFinder

find = PathFinder.find_spec

def find_spec(name, path=None, target=None):
    return None if name.partition(".")[0] in {names!r} else find(name, path, target)

PathFinder.find_spec = staticmethod(find_spec)
"""


OTHERS = {
    "IPython", "PIL", "google_crc32c", "horovod", "matplotlib", "nvidia", "onnx", "onnxruntime",
    "psutil", "safetensors", "simplejpeg", "tensorboard", "tensorflow", "tqdm",
}  # fmt: skip


@pytest.fixture
def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with PyTorch and none of our other dependencies."""
    (tmp_path / "bare").mkdir()
    (tmp_path / "bare" / "sitecustomize.py").write_text(ABSENT.format(names=OTHERS))
    return {"PYTHONPATH": os.pathsep.join([str(tmp_path / "bare"), str(ROOT)])}


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_training_runs_with_pytorch_alone(
    bare: dict[str, str], run_cli: Callable[..., Any], tmp_path: Path
) -> None:
    done = run_cli(*SYNTHETIC, "--report", "r.json", env=bare)
    assert done.returncode == 0, done.stderr
    report = strict_json(tmp_path / "r.json")
    assert report["metrics"]["train.total_ips"][0] > 0
    assert "epoch 1/1: loss" in done.stderr


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_missing_packages_are_named(
    bare: dict[str, str], run_cli: Callable[..., Any], photos: Any
) -> None:
    for package, flags in {
        "pillow": ("run", "--data-root", str(photos.root), *TINY),
        "safetensors": (*SYNTHETIC, "--model-prefix", "m"),
    }.items():
        done = run_cli(*flags, env=bare)
        assert done.returncode == 2 and "Traceback" not in done.stderr, done.stderr
        line = f"error: this needs the package {package}, which is not installed"
        assert line in done.stderr and f"pip install {package}" in done.stderr
