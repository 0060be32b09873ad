"""Which software is installed, and what it was built for. Imports no framework."""

from __future__ import annotations

import importlib.util
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

from rn50lib.config import TrainConfig
from rn50lib.errors import UserError
from rn50lib.hardware import Machine


def has(module: str) -> bool:
    """Return True if a module is installed, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def has_dali() -> bool:
    """Return True if DALI is installed; imports none of it."""
    return has("nvidia.dali")


def check_framework(config: TrainConfig, machine: Machine) -> None:
    """Raise UserError if there are GPUs and the backend is built without CUDA. Imports neither."""
    found = importlib.util.find_spec(config.backend) if machine.gpus else None
    if found is None or found.origin is None:
        return  # a missing framework has a separate error
    folder = Path(found.origin).parent
    if config.backend == "torch":
        build = run_file(folder / "version.py")
        name, cuda = f"PyTorch {build.get('__version__')}", build.get("cuda") or build.get("hip")
    else:
        build = run_file(folder / "python" / "platform" / "build_info.py").get("build_info", {})
        name, cuda = "TensorFlow", build.get("is_cuda_build") or not build
    if build and not cuda:
        raise UserError(
            f"--backend {config.backend}: {name} is built without CUDA, and this machine has"
            f" {len(machine.gpus)} GPU(s): install a CUDA build (`make setup` does if the driver"
            " supports CUDA 12), or set CUDA_VISIBLE_DEVICES= to train on the processor"
        )


def run_file(path: Path) -> dict[str, Any]:
    """Return what a framework's small file about its build defines; nothing if there is none."""
    return runpy.run_path(str(path)) if path.is_file() else {}


@cache
def horovod_serves(backend: str) -> bool:
    """Return True if Horovod is installed with its extension for a framework; imports neither."""
    found = importlib.util.find_spec("horovod") if has("horovod") else None
    folders = found.submodule_search_locations if found else None
    return any(any(Path(folder, backend).glob("mpi_lib*.so")) for folder in folders or ())


@cache
def horovod_has(part: str, backend: str) -> bool:
    """Return True if Horovod was built with 'nccl' or 'mpi'. Asks a separate process; seconds."""
    if not horovod_serves(backend):
        return False
    code = f"import horovod.{backend} as h, sys; sys.exit(not h.{part}_built())"
    quiet = subprocess.DEVNULL
    return subprocess.run([sys.executable, "-c", code], stdout=quiet, stderr=quiet).returncode == 0


def gpu_horovod(backend: str) -> str:
    """Return how to get a Horovod that exchanges gradients between GPUs."""
    built = "built without NCCL" if horovod_serves(backend) else "not built here"
    return f"is {built}: install the CUDA toolkit and NCCL's headers and run `make horovod`"
