"""Builds Horovod 0.28.1 for the PyTorch and TensorFlow of this environment, and keeps the wheel.

    .venv/bin/python scripts/horovod_wheel.py [--install]

Horovod's last release predates both: edits to its source make it build, run, and build in half the
time. The wheel is kept in the user's cache folder under a hash of everything that it depends on.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
from dataclasses import dataclass
from pathlib import Path

VERSION = "0.28.1"
BUILD_SWITCHES = ("HOROVOD_WITH", "HOROVOD_GPU", "HOROVOD_CPU_OP", "HOROVOD_CUDA", "HOROVOD_NCCL")
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"


NCCL_TENSORFLOW = (2, 20)  # the last that exports what Horovod's operations on GPUs link with


class WheelError(Exception):
    """The wheel cannot be built; the message says why and what to do."""


@dataclass(frozen=True)
class Edit:
    """Replace the one line of a file that reads `old`, indentation aside."""

    file: str
    old: str
    new: str
    why: str


TOGETHER = """if(NOT HAVE_CUDA)
    set(CMAKE_UNITY_BUILD ON)
endif()"""
"""Several source files compiled as one read the frameworks' long headers once. Not for a GPU: there
it was never built so."""

EDITS = (
    Edit(
        "CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        "set(CMAKE_CXX_STANDARD 17)",
        "the headers of PyTorch >= 2.1 are C++17",
    ),
    Edit(
        "CMakeLists.txt",
        'string(REPLACE "-O2" "-O3" CMAKE_CXX_FLAGS_RELWITHDEBINFO'
        ' "${CMAKE_CXX_FLAGS_RELWITHDEBINFO}")',
        'set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-O3 -DNDEBUG")',
        "what a debugger needs takes long to write, and is left out of the wheel anyway",
    ),
    Edit(
        "cmake/Modules/FindPytorch.cmake",
        'string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)',
        'string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)\n'
        "if(NOT HAVE_CUDA)\n    set(Pytorch_CUDA FALSE)\nendif()",
        "with CUDA where HOROVOD_GPU_OPERATIONS asks for it, and not wherever there is an nvcc:"
        " the toolkit may be of another version than PyTorch's, or lack a part",
    ),
    Edit(
        "horovod/torch/CMakeLists.txt",
        "set(CMAKE_CXX_STANDARD 14)",
        f"set(CMAKE_CXX_STANDARD 17)\n{TOGETHER}",
        "both files, or the libraries do not link; and built faster",
    ),
    Edit(
        "horovod/tensorflow/CMakeLists.txt",
        'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")',
        TOGETHER,
        "TensorFlow no longer ships the XLA headers that it includes; and built faster",
    ),
    Edit(
        "horovod/tensorflow/keras/__init__.py",
        "from keras import backend as K",
        "K = keras.backend",
        "tensorflow.keras may be Keras 2 (tf-keras) while `keras` is Keras 3",
    ),
    Edit(
        "horovod/tensorflow/keras/callbacks.py",
        "from keras import backend as K",
        "K = keras.backend",
        "the same",
    ),
    Edit(
        "horovod/tensorflow/__init__.py",
        "_SessionRunHook = tf.estimator.SessionRunHook",
        "_SessionRunHook = tf.compat.v1.train.SessionRunHook",
        "tf.estimator is gone; without the hook a MonitoredTrainingSession does not broadcast",
    ),
)


def apply_edits(source: Path) -> None:
    """Make all edits in an unpacked source tree.

    Raises WheelError, naming the file, unless each line is there exactly once.
    """
    for edit in EDITS:
        path = source / edit.file
        lines = path.read_text().splitlines() if path.exists() else []
        hits = [i for i, line in enumerate(lines) if line.strip() == edit.old]
        if len(hits) != 1:
            raise WheelError(
                f"Horovod's source has changed: {edit.file} holds the line {edit.old!r} {len(hits)}"
                " times instead of once; adapt EDITS in scripts/horovod_wheel.py"
            )
        line = lines[hits[0]]
        lines[hits[0]] = line.replace(edit.old, edit.new).rstrip()
        path.write_text("\n".join(lines) + "\n")


def frameworks() -> dict[str, str]:
    """Return the versions of the frameworks here that Horovod is built for."""
    found = {}
    for name, distributions in {
        "torch": ("torch",),
        "tensorflow": ("tensorflow-cpu", "tensorflow"),
    }.items():
        for distribution in distributions:
            try:
                found[name] = importlib.metadata.version(distribution)
            except importlib.metadata.PackageNotFoundError:
                continue
    return found


def mpi_version() -> str | None:
    """Return the first line of `mpirun --version`, or None if MPI programs cannot be compiled."""
    if not (shutil.which("mpirun") and shutil.which("mpicxx")):
        return None
    answer = subprocess.run(["mpirun", "--version"], capture_output=True, text=True)
    return answer.stdout.partition("\n")[0].strip() or None


def switches() -> dict[str, str]:
    """Return Horovod's build switches: what is installed, then what the user has set."""
    have = frameworks()
    named = {"TENSORFLOW": "tensorflow" in have, "PYTORCH": "torch" in have, "MXNET": False}
    named |= {"GLOO": True, "MPI": mpi_version() is not None}
    chosen = {f"HOROVOD_WITH{'' if on else 'OUT'}_{name}": "1" for name, on in named.items()}
    return chosen | {k: v for k, v in os.environ.items() if k.startswith(BUILD_SWITCHES)}


def key() -> str:
    """Return a hash of everything that the wheel depends on."""
    parts = [VERSION, SHA256, sys.version, sysconfig.get_platform(), str(platform.libc_ver())]
    parts += [
        str(sorted(frameworks().items())),
        str(mpi_version()),
        str(sorted(switches().items())),
    ]
    parts += [repr(EDITS)]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def cache_folder() -> Path:
    """Return the folder where this environment's wheel is kept."""
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rn50" / "horovod" / key()


def cached() -> Path | None:
    """Return the kept wheel for this environment, or None."""
    return next(iter(sorted(cache_folder().glob("horovod-*.whl"))), None)


def build() -> Path:
    """Build the wheel, try it, keep it, and return its path. Raises WheelError."""
    if shutil.which("g++") is None or shutil.which("make") is None:
        raise WheelError("g++ and make are needed: `apt-get install g++ make`, then `make horovod`")
    if not frameworks():
        raise WheelError("neither PyTorch nor TensorFlow is installed; run `make setup` first")
    check_nccl()
    folder = cache_folder()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=folder.parent) as work:
        source = _download(Path(work))
        apply_edits(source)
        out = Path(work, "out")
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 2
        flags = {"MAKEFLAGS": f"-j{cores}", "LDFLAGS": "-s"}
        command = [*PIP, "wheel", "--no-build-isolation", "--no-deps", "-w", str(out), "."]
        _run(command, cwd=source, env={**os.environ, **switches(), **flags, "PATH": _path()})
        wheel = next(out.glob("horovod-*.whl"))
        _try(wheel, Path(work, "try"))
        folder.mkdir(exist_ok=True)
        return wheel.replace(folder / wheel.name)


def check_nccl() -> None:
    """Raise WheelError where a build for GPUs would fail after minutes."""
    found = frameworks().get("tensorflow")
    if found is None or "HOROVOD_GPU_OPERATIONS" not in os.environ:
        return
    if tuple(map(int, found.split(".")[:2])) > NCCL_TENSORFLOW:
        last = ".".join(map(str, NCCL_TENSORFLOW))
        raise WheelError(
            f"HOROVOD_GPU_OPERATIONS: TensorFlow {found} does not export what Horovod's operations"
            f" on GPUs link with: install TensorFlow {last}, as requirements-gpu.txt does"
        )


PIP = (sys.executable, "-m", "pip")


def _path() -> str:
    # cmake comes with this environment; the system's may be too old or too new (4 fails).
    return os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])


def _download(work: Path) -> Path:
    wanted = work / "horovod.txt"
    wanted.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
    command = [*PIP, "download", "--no-binary", ":all:", "--no-deps", "--no-build-isolation"]
    _run([*command, "-d", str(work), "-r", str(wanted)])
    with tarfile.open(work / f"horovod-{VERSION}.tar.gz") as archive:
        archive.extractall(work)  # its hash has been checked
    return work / f"horovod-{VERSION}"


def _try(wheel: Path, folder: Path) -> None:
    """Import the built libraries, so that a wheel that does not load is never kept."""
    _run([*PIP, "install", "--no-deps", "--target", str(folder), str(wheel)])
    modules = ", ".join(f"horovod.{name}" for name in frameworks())
    env = {**os.environ, "PYTHONPATH": str(folder), "TF_CPP_MIN_LOG_LEVEL": "2"}
    _run([sys.executable, "-c", f"import {modules}"], env=env)


def _run(command: list[str], cwd: Path | None = None, env: dict[str, str] | None = None) -> None:
    done = subprocess.run(command, cwd=cwd, env=env)
    if done.returncode != 0:
        raise WheelError(f"this failed with exit code {done.returncode}: {' '.join(command)}")


def main() -> int:
    """Build or find the wheel, install it if asked, print its path last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--install", action="store_true", help="install it into this environment")
    install = parser.parse_args().install
    try:
        wheel = cached() or build()
        if install:
            _run([*PIP, "install", "--no-deps", "--force-reinstall", str(wheel)])
    except WheelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(wheel, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
