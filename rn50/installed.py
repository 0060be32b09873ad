"""The installed software and the hardware that it was built for. Imports no framework."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from functools import cache
from pathlib import Path


def has(module: str) -> bool:
    """Return True if a module is installed, without importing it."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False


@cache
def horovod_serves(backend: str) -> bool:
    """Return True if Horovod is installed with its extension for a framework; imports neither."""
    found = importlib.util.find_spec("horovod")
    folders = found.submodule_search_locations or [] if found else []
    return any(any(Path(folder, backend).glob("mpi_lib*.so")) for folder in folders)


@cache
def horovod_has(part: str, backend: str) -> bool:
    """Return True if Horovod was built with 'nccl' or 'mpi'. Asks a separate process; seconds."""
    code = f"import horovod.{backend} as h, sys; sys.exit(not h.{part}_built())"
    quiet = subprocess.DEVNULL
    return subprocess.run([sys.executable, "-c", code], stdout=quiet, stderr=quiet).returncode == 0
