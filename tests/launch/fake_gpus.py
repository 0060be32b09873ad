"""GPUs that are not here: a stand-in for NVML, and one for the program nvidia-smi."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parent / "nvml"

H100 = {"name": "NVIDIA H100 80GB HBM3", "mib": 81559, "capability": (9, 0)}
A100 = {"name": "NVIDIA A100-SXM4-80GB", "mib": 81920, "capability": (8, 0)}
V100 = {"name": "Tesla V100-SXM2-16GB", "mib": 16160, "capability": (7, 0)}


def slices(*found: tuple[str, int, str]) -> dict[str, Any]:
    """Return the entry of a GPU in MIG mode: (profile, GiB, UUID) of each slice."""
    rows = [{"name": f"MIG {name}", "mib": gib << 10, "uuid": uuid} for name, gib, uuid in found]
    return {"slices": rows}


def environment(
    gpus: Sequence[dict[str, Any]] = (),
    driver: str = "535.104.05",
    cuda: str = "12.2",
    fails: str = "",
) -> dict[str, str]:
    """Return the variables with which a program finds these GPUs. `fails`: NVML's error."""
    scenario = {"gpus": gpus, "driver": driver, "cuda": cuda, "fails": fails}
    path = [str(FOLDER), str(FOLDER.parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"FAKE_NVML": json.dumps(scenario), "PYTHONPATH": os.pathsep.join(path)}


def install(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> None:
    """Show the GPUs of `environment` to this process and to the programs that it starts."""
    for name, value in environment(*arguments, **options).items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    spec = importlib.util.spec_from_file_location("pynvml", FOLDER / "pynvml.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setitem(sys.modules, "pynvml", module)


def nvidia_smi(folder: Path, cuda: str = "12.2", fails: str = "", topo: str = "") -> str:
    """Write an nvidia-smi that prints its header, or what `topo` says; return a PATH with it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "topo.txt").write_text(fails or topo)
    header = f"| NVIDIA-SMI 535.104.05  Driver Version: 535.104.05  CUDA Version: {cuda:<9}|\n"
    (folder / "header.txt").write_text(fails or header)
    program = folder / "nvidia-smi"
    program.write_text(
        f'#!/bin/sh\n[ "$1" = topo ] && file=topo || file=header\n'
        f'cat "{folder}/$file.txt"\nexit {9 if fails else 0}\n'
    )
    program.chmod(0o755)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"
