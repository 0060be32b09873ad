"""Build Horovod 0.28.1 for the PyTorch and TensorFlow of this environment, and keep the wheel.

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
from pathlib import Path

VERSION = "0.28.1"
SHA256 = "92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0"
BUILD_SWITCHES = ("HOROVOD_WITH", "HOROVOD_GPU", "HOROVOD_CPU_OP", "HOROVOD_CUDA", "HOROVOD_NCCL")
PIP = (sys.executable, "-m", "pip")

# Several source files compiled as one read the frameworks' long headers once. Not for a GPU: there
# it was never built so.
TOGETHER = """if(NOT HAVE_CUDA)
    set(CMAKE_UNITY_BUILD ON)
endif()"""
CPP_14, CPP_17 = "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 17)"
UPPER = 'string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)'
FLAGS = "CMAKE_CXX_FLAGS_RELWITHDEBINFO"
EDITS = (  # file, the line that is replaced (indentation aside), and with what
    # the headers of PyTorch >= 2.1 are C++17
    ("CMakeLists.txt", CPP_14, CPP_17),
    # what a debugger needs takes long to write, and is left out of the wheel anyway
    ("CMakeLists.txt", f'string(REPLACE "-O2" "-O3" {FLAGS} "${{{FLAGS}}}")',
     f'set({FLAGS} "-O3 -DNDEBUG")'),
    # with CUDA if HOROVOD_GPU_OPERATIONS asks for it, and not wherever there is an nvcc: the
    # toolkit may have a different version than PyTorch's, or lack a part
    ("cmake/Modules/FindPytorch.cmake", UPPER,
     f"{UPPER}\nif(NOT HAVE_CUDA)\n    set(Pytorch_CUDA FALSE)\nendif()"),
    # C++17 in both files, or the libraries do not link; and built faster
    ("horovod/torch/CMakeLists.txt", CPP_14, f"{CPP_17}\n{TOGETHER}"),
    # TensorFlow no longer ships the XLA headers that it includes; and built faster
    ("horovod/tensorflow/CMakeLists.txt",
     'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")', TOGETHER),
    # tensorflow.keras may be Keras 2 (tf-keras) while `keras` is Keras 3
    ("horovod/tensorflow/keras/__init__.py", "from keras import backend as K", "K = keras.backend"),
    ("horovod/tensorflow/keras/callbacks.py", "from keras import backend as K",
     "K = keras.backend"),
    # tf.estimator is gone; without the hook a MonitoredTrainingSession does not broadcast
    ("horovod/tensorflow/__init__.py", "_SessionRunHook = tf.estimator.SessionRunHook",
     "_SessionRunHook = tf.compat.v1.train.SessionRunHook"),
)  # fmt: skip


class WheelError(Exception):
    """The wheel cannot be built; the message says why and what to do."""


def apply_edits(source: Path) -> None:
    """Make all edits in an unpacked source tree.

    Raises WheelError, naming the file, unless each line is there exactly once.
    """
    for file, old, new in EDITS:
        path = source / file
        lines = path.read_text().splitlines() if path.exists() else []
        hits = [i for i, line in enumerate(lines) if line.strip() == old]
        if len(hits) != 1:
            raise WheelError(
                f"Horovod's source has changed: {file} holds the line {old!r} {len(hits)} times"
                " instead of once; adapt EDITS in scripts/horovod_wheel.py"
            )
        lines[hits[0]] = lines[hits[0]].replace(old, new).rstrip()
        path.write_text("\n".join(lines) + "\n")


def frameworks() -> dict[str, str]:
    """Return the versions of the frameworks here that Horovod is built for."""
    found = {}
    for distribution in ("torch", "tensorflow-cpu", "tensorflow"):
        try:
            version = importlib.metadata.version(distribution)
            found[distribution.removesuffix("-cpu")] = version
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def mpi_version() -> str:
    """Return the first line of `mpirun --version`, or "" if MPI programs cannot be compiled."""
    if not (shutil.which("mpirun") and shutil.which("mpicxx")):
        return ""
    answer = subprocess.run(["mpirun", "--version"], capture_output=True, text=True)
    return answer.stdout.partition("\n")[0].strip()


def switches() -> dict[str, str]:
    """Return Horovod's build switches: what is installed, then what the user has set."""
    have = frameworks()
    named = {"TENSORFLOW": "tensorflow" in have, "PYTORCH": "torch" in have, "MXNET": False,
             "GLOO": True, "MPI": bool(mpi_version())}  # fmt: skip
    chosen = {f"HOROVOD_WITH{'' if on else 'OUT'}_{name}": "1" for name, on in named.items()}
    return chosen | {k: v for k, v in os.environ.items() if k.startswith(BUILD_SWITCHES)}


def cache_folder() -> Path:
    """Return the folder of this environment's wheel, named by all that the wheel depends on."""
    parts = [VERSION, SHA256, sys.version, sysconfig.get_platform(), platform.libc_ver(), EDITS,
             mpi_version(), sorted(frameworks().items()), sorted(switches().items())]  # fmt: skip
    key = hashlib.sha256(repr(parts).encode()).hexdigest()[:16]
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "rn50" / "horovod" / key


def build(folder: Path) -> Path:
    """Build the wheel, try it, keep it in `folder`, and return its path. Raises WheelError."""
    if shutil.which("g++") is None or shutil.which("make") is None:
        raise WheelError("g++ and make are needed: `apt-get install g++ make`, then `make horovod`")
    if not frameworks():
        raise WheelError("neither PyTorch nor TensorFlow is installed; run `make setup` first")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="build-", dir=folder.parent) as name:
        work = Path(name)
        source = download(work)
        apply_edits(source)
        # cmake comes with this environment; the system's may be too old or too new (4 fails)
        path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
        flags = {"MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}", "LDFLAGS": "-s", "PATH": path}
        run(*PIP, "wheel", "--no-build-isolation", "--no-deps", "-w", work / "out", source,
            **switches(), **flags)  # fmt: skip
        wheel = next((work / "out").glob("horovod-*.whl"))
        # a wheel that does not load is never kept
        run(*PIP, "install", "--no-deps", "--target", work / "try", wheel)
        modules = ", ".join(f"horovod.{name}" for name in frameworks())
        run(sys.executable, "-c", f"import {modules}", PYTHONPATH=str(work / "try"))
        folder.mkdir(exist_ok=True)
        return wheel.replace(folder / wheel.name)


def download(work: Path) -> Path:
    """Download and unpack the source, if it has the hash of the release; return its folder."""
    wanted = work / "horovod.txt"
    wanted.write_text(f"horovod=={VERSION} --hash=sha256:{SHA256}\n")
    run(*PIP, "download", "--no-binary", ":all:", "--no-deps", "--no-build-isolation", "-d", work,
        "-r", wanted)  # fmt: skip
    with tarfile.open(work / f"horovod-{VERSION}.tar.gz") as archive:
        archive.extractall(work)
    return work / f"horovod-{VERSION}"


def run(*words: str | Path, **env: str) -> None:
    """Run a command with additions to the environment. Raises WheelError."""
    command = [*map(str, words)]
    code = subprocess.run(command, env={**os.environ, **env}).returncode
    if code != 0:
        raise WheelError(f"this failed with exit code {code}: {' '.join(command)}")


def main() -> int:
    """Build or find the wheel, install it if asked, print its path last."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--install", action="store_true", help="install it into this environment")
    install = parser.parse_args().install
    try:
        folder = cache_folder()
        wheel = next(folder.glob("horovod-*.whl"), None) or build(folder)
        if install:
            run(*PIP, "install", "--no-deps", "--force-reinstall", wheel)
    except WheelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(wheel, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
