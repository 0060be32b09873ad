"""What the set-up must know about this machine before it plans anything.

Standard library only, and nothing is imported to ask about it: a CUDA build of a framework is
recognised by the files it installs.
"""

from __future__ import annotations

import functools
import importlib.metadata
import importlib.util
import os
import platform
import re
import shutil
import site
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from requirements import normal


@dataclass(frozen=True)
class Facts:
    """One machine, one base Python."""

    python: str  # "3.11.7"
    system: str  # "Linux", "Darwin"
    machine: str  # "x86_64", "aarch64", "arm64"
    cuda: int | None  # CUDA generation of the NVIDIA driver; None without a driver
    mpi: str | None  # first line of `mpirun --version`, where mpicxx is there too
    compiler: bool  # g++ and make
    may_apt: bool  # root, with apt-get
    container: str | None  # why the base Python's frameworks are kept; None: they are not
    constraints: tuple[str, ...] = ()  # pip constraint files that are in force
    installed: Mapping[str, str] = field(default_factory=dict)  # base Python: name -> version
    depends: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # name -> names
    base_sites: tuple[str, ...] = ()  # site folders that --system-site-packages would not reach

    @property
    def linux_x86_64(self) -> bool:
        """Whether this is the platform on which every wheel exists."""
        return self.system == "Linux" and self.machine == "x86_64"

    @property
    def words(self) -> str:
        """The machine in a few words."""
        gpu = f"NVIDIA driver for CUDA {self.cuda}" if self.cuda else "no NVIDIA driver"
        return f"Python {self.python}, {self.system} {self.machine}, {gpu}"


def gather() -> Facts:
    """Look at this machine and at the Python that runs this."""
    why = container_reason()
    nested = sys.prefix != sys.base_prefix
    return Facts(
        python=platform.python_version(),
        system=platform.system(),
        machine=platform.machine(),
        cuda=driver_cuda(),
        mpi=mpi_version(),
        compiler=bool(shutil.which("g++") and shutil.which("make")),
        may_apt=bool(hasattr(os, "geteuid") and os.geteuid() == 0 and shutil.which("apt-get")),
        container=why,
        constraints=tuple(os.environ.get("PIP_CONSTRAINT", "").split()),
        installed=_installed() if why else {},
        depends=_depends() if why else {},
        base_sites=tuple(site.getsitepackages()) if why and nested else (),
    )


def driver_cuda() -> int | None:
    """Major CUDA version that the NVIDIA driver serves, or None where no driver answers."""
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return None
    try:
        answer = subprocess.run([smi], capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = re.search(r"CUDA(?: \w+)? Version:\s*(\d+)\.", answer.stdout)
    return int(found[1]) if answer.returncode == 0 and found else None


def mpi_version() -> str | None:
    """First line of `mpirun --version` if MPI programs can be compiled and run here, else None."""
    if not (shutil.which("mpirun") and shutil.which("mpicxx")):
        return None
    answer = subprocess.run(["mpirun", "--version"], capture_output=True, text=True)
    return answer.stdout.partition("\n")[0].strip() or None


def container_reason() -> str | None:
    """Why the base Python's frameworks must be kept, in words; None if they need not be."""
    if os.environ.get("NVIDIA_BUILD_ID"):
        return f"NVIDIA container, build {os.environ['NVIDIA_BUILD_ID']}"
    cuda = _in_package("torch", "version.py", r"^cuda[^=]*= ['\"]([\d.]+)")
    if cuda:
        return f"{sys.executable} already has PyTorch for CUDA {cuda}"
    built = _in_package("tensorflow", "python/platform/build_info.py", r"is_cuda_build'?\W+(True)")
    if built:
        return f"{sys.executable} already has TensorFlow for CUDA"
    return None


def _in_package(package: str, file: str, pattern: str) -> str | None:
    spec = importlib.util.find_spec(package)
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = Path(folder, file)
        found = (
            re.search(pattern, path.read_text(errors="replace"), re.M) if path.exists() else None
        )
        if found:
            return found[1]
    return None


@functools.cache
def _distributions() -> dict[str, importlib.metadata.Distribution]:
    found: dict[str, importlib.metadata.Distribution] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:  # a damaged installation has none; the first on sys.path is the one imported
            found.setdefault(normal(name), distribution)
    return found


def _installed() -> dict[str, str]:
    return {name: distribution.version for name, distribution in _distributions().items()}


def _depends() -> dict[str, tuple[str, ...]]:
    depends = {}
    for name, distribution in _distributions().items():
        lines = [line for line in distribution.requires or [] if "extra ==" not in line]
        depends[name] = tuple(normal(re.split(r"[^A-Za-z0-9._-]", line)[0]) for line in lines)
    return depends
