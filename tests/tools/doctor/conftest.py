"""Machines for the doctor: with the GPUs and the packages that a test wants."""

from __future__ import annotations

import textwrap
from pathlib import Path

import pytest

from rn50.doctor import gpu
from tests.launch import fake_nvidia_smi as fake


@pytest.fixture
def gpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """`gpus([H100], driver, cuda)`: the checks on a machine that has these."""

    def look(cards=(), driver="535.104.05", cuda="12.2", visible=None, fails=""):
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        monkeypatch.setenv("PATH", fake.install(tmp_path / "bin", cards, driver, cuda, fails))
        return gpu.find()

    return look


@pytest.fixture
def stub():
    """`stub(folder, package, code)` writes a package; returns the variables that put it first."""

    def write(folder: Path, package: str, code: str) -> dict[str, str]:
        (folder / package).mkdir(parents=True)
        (folder / package / "__init__.py").write_text(textwrap.dedent(code))
        return {"PYTHONPATH": str(folder)}

    return write
