"""Detect the capabilities of tests/capabilities.toml on this machine.

One function per capability, named as in the file; none of them imports a framework, so each takes
milliseconds.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import platform
import resource
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:  # pytest brings tomli on Python 3.10
    import tomli as tomllib

TABLE = Path(__file__).with_name("capabilities.toml")


@dataclass(frozen=True)
class Capability:
    """One row of tests/capabilities.toml."""

    name: str
    what: str
    get: str

    @property
    def present(self) -> bool:
        """Return True if this machine has it; detected once per run."""
        return _present(self.name)


@functools.cache
def table() -> dict[str, Capability]:
    """All capabilities by name. Raises KeyError if a row has no detector here."""
    rows = tomllib.loads(TABLE.read_text())
    for name in rows:
        if name not in DETECTORS:
            raise KeyError(f"{TABLE.name}: [{name}] has no detector in capabilities.py")
    return {name: Capability(name, row["what"], row["get"]) for name, row in rows.items()}


def chromium_binary() -> str | None:
    """Path of the Chromium that the browser tests start, or None."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


def nbgrader_program() -> str | None:
    """The program of nbgrader, or None."""
    return shutil.which(os.environ.get("RN50_NBGRADER") or "nbgrader")


@functools.cache
def _present(name: str) -> bool:
    return bool(DETECTORS[name]())


def _module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # a parent package is missing
        return False


def _gpu() -> bool:
    smi = shutil.which("nvidia-smi")
    if smi is None:
        return False
    listed = subprocess.run([smi, "-L"], capture_output=True, text=True, timeout=60)
    return listed.returncode == 0 and "GPU " in listed.stdout


def _horovod_libraries() -> list[Path]:
    spec = importlib.util.find_spec("horovod")
    if spec is None or spec.origin is None:
        return []
    root = Path(spec.origin).parent
    return [*root.glob("torch/mpi_lib_v2*.so"), *root.glob("tensorflow/mpi_lib*.so")]


def _horovod_mpi() -> bool:
    # An ELF file names the libraries it needs in plain text.
    libraries = _horovod_libraries()
    return bool(libraries) and all(b"libmpi.so" in path.read_bytes() for path in libraries)


def _avx512_bf16() -> bool:
    try:
        flags = Path("/proc/cpuinfo").read_text()
    except OSError:
        return False
    return "avx512_bf16" in flags or "amx_bf16" in flags


def _package_index() -> bool:
    asked = subprocess.run(
        [sys.executable, "-m", "pip", "index", "versions", "tqdm"], capture_output=True, timeout=120
    )
    return asked.returncode == 0


def _two_hosts() -> bool:
    programs = ("ip", "nsenter", "unshare", "ssh", "ssh-keygen", "/usr/sbin/sshd")
    if not all(map(shutil.which, programs)):
        return False
    tried = "mount -t tmpfs none /run && ip link add t0 type bridge && ip link add t1 type veth"
    new = ["unshare", "--net", "--uts", "--mount", "--pid", "--fork", "--mount-proc"]
    return subprocess.run([*new, "sh", "-c", tried], capture_output=True).returncode == 0


def _bubblewrap() -> bool:
    tried = ["bwrap", "--unshare-all", "--ro-bind", "/", "/", "--proc", "/proc", "true"]
    return bool(shutil.which("bwrap")) and not subprocess.run(tried, capture_output=True).returncode


def _disk() -> bool:
    if not hasattr(os, "posix_fadvise"):
        return False
    with tempfile.TemporaryFile() as file:
        file.write(bytes(2**20))
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_inblock
        os.pread(file.fileno(), 2**20, 0)
        return resource.getrusage(resource.RUSAGE_SELF).ru_inblock > before


DETECTORS = {
    "disk": _disk,
    "gpu": _gpu,
    "torch": lambda: _module("torch"),
    "slurm": lambda: (
        os.geteuid() == 0 and all(map(shutil.which, ("slurmctld", "slurmd", "sbatch")))
    ),
    "two_hosts": _two_hosts,
    "debootstrap": lambda: os.geteuid() == 0 and shutil.which("debootstrap") is not None,
    "timm": lambda: _module("timm") and _module("torchvision"),
    "tensorflow": lambda: _module("tensorflow"),
    "tf_keras": lambda: _module("tf_keras"),
    "dali": lambda: _module("nvidia.dali"),
    "dali2": lambda: Path(os.environ.get("RN50_DALI2") or "/none", "nvidia", "dali").is_dir(),
    "horovod": lambda: len(_horovod_libraries()) == 2,
    "compiler": lambda: shutil.which("g++"),
    "mpi": lambda: shutil.which("mpirun"),
    "horovod_mpi": _horovod_mpi,
    "chromium": chromium_binary,
    "avx512_bf16": _avx512_bf16,
    "package_index": _package_index,
    "jupyterlab": lambda: _module("jupyterlab"),
    "linux_x86_64": lambda: (platform.system(), platform.machine()) == ("Linux", "x86_64"),
    "root": lambda: hasattr(os, "geteuid") and os.geteuid() == 0,
    "simplejpeg": lambda: _module("simplejpeg"),
    "triton": lambda: _module("triton"),
    "onnx": lambda: all(map(_module, ("onnx", "onnxscript", "onnxruntime"))),
    "engines": lambda: all(map(_module, ("onnx", "onnxscript", "openvino"))),
    "bubblewrap": _bubblewrap,
    "nbgrader": nbgrader_program,
    "fork": lambda: hasattr(os, "fork"),
}
