"""Build Horovod 0.28.1 for the PyTorch and TensorFlow of this environment, and keep the wheel.

    .venv/bin/python scripts/horovod_wheel.py [--install]

Horovod's last release predates both: edits to its source make it build, run, and build in half the
time. The wheel is kept in the user's cache folder under a hash of everything that it depends on.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.metadata
import importlib.util
import os
import platform
import re
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
# Headers that the source uses without including them, which g++ 12 forgives and 13 does not.
INCLUDES = "-include stdexcept -include string -include cstdint"
CPP_14, CPP_20 = "set(CMAKE_CXX_STANDARD 14)", "set(CMAKE_CXX_STANDARD 20)"
TENSORFLOW_ON_CPU = r"""if(NOT "$ENV{HOROVOD_TENSORFLOW_CPU}" STREQUAL "")
    set(HAVE_CUDA FALSE)
    get_directory_property(DEFINITIONS COMPILE_DEFINITIONS)
    list(FILTER DEFINITIONS EXCLUDE REGEX "CUDA|GPU|NCCL")
    set_directory_properties(PROPERTIES COMPILE_DEFINITIONS "${DEFINITIONS}")
    list(FILTER SOURCES EXCLUDE REGEX "/(cuda|gpu|mpi_gpu|nccl|adasum_gpu)_operations")
    list(FILTER LINKER_LIBS EXCLUDE REGEX "nccl")
endif()"""
PYTHON_H = 'execute_process(COMMAND ${{PY_EXE}} -c "{})"'
OLD = "from distutils.sysconfig import get_python_inc; print(get_python_inc()"
NEW = "import sysconfig; print(sysconfig.get_path('include')"
UPPER = 'string(TOUPPER "${Pytorch_CUDA}" Pytorch_CUDA)'
FLAGS = "CMAKE_CXX_FLAGS_RELWITHDEBINFO"
EDITS = (  # file, the line that is replaced (indentation aside), and with what
    # the headers of PyTorch >= 2.14 are C++20
    ("CMakeLists.txt", CPP_14, CPP_20),
    # what a debugger needs takes long to write, and is left out of the wheel anyway
    ("CMakeLists.txt", f'string(REPLACE "-O2" "-O3" {FLAGS} "${{{FLAGS}}}")',
     f'set({FLAGS} "-O3 -DNDEBUG")'),
    # with CUDA if HOROVOD_GPU_OPERATIONS asks for it, and not wherever there is an nvcc: the
    # toolkit may have a different version than PyTorch's, or lack a part
    ("cmake/Modules/FindPytorch.cmake", UPPER,
     f"{UPPER}\nif(NOT HAVE_CUDA)\n    set(Pytorch_CUDA FALSE)\nendif()"),
    # the same standard in both files, or the libraries do not link; and built faster
    ("horovod/torch/CMakeLists.txt", CPP_14, f"{CPP_20}\n{TOGETHER}"),
    # TensorFlow no longer ships the XLA headers that it includes; and built faster
    ("horovod/tensorflow/CMakeLists.txt",
     'list(APPEND TF_SOURCES "${PROJECT_SOURCE_DIR}/horovod/tensorflow/xla_mpi_ops.cc")', TOGETHER),
    # a TensorFlow for the CPU next to a PyTorch for CUDA: its half without CUDA and NCCL
    ("horovod/tensorflow/CMakeLists.txt", 'set(TF_TARGET_LIB "tensorflow")',
     f'set(TF_TARGET_LIB "tensorflow")\n{TENSORFLOW_ON_CPU}'),
    # Python 3.12 has no distutils
    ("horovod/torch/CMakeLists.txt", PYTHON_H.format(OLD), PYTHON_H.format(NEW)),
    ("horovod/runner/js_run.py", "from distutils.spawn import find_executable",
     "from shutil import which as find_executable"),
    # `horovodrun --check-build` asks the first of these whether NCCL is built in
    ("horovod/common/util.py", "EXTENSIONS = ['tensorflow', 'torch', 'mxnet']",
     "EXTENSIONS = ['torch', 'tensorflow', 'mxnet']"),
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


def nccl() -> dict[str, str]:
    """Return the switches that build NCCL in, or {} without a PyTorch for CUDA.

    {} also if the CUDA compiler or NCCL's header is missing, or the compiler is of another CUDA.
    """
    (torch,) = package_folders("torch")[:1] or [Path()]
    file = torch / "version.py"
    cuda = re.search(r"^cuda\b.*['\"](\d+)\.", file.read_text(), re.M) if file.exists() else None
    nvcc = shutil.which("nvcc", path=f"{os.environ.get('PATH')}:/usr/local/cuda/bin")
    homes = [*package_folders("nvidia.nccl"), Path("/usr"), Path("/usr/local/cuda")]
    home = next((home for home in homes if (home / "include" / "nccl.h").exists()), None)
    if not (cuda and nvcc and home):
        return {}
    answer = subprocess.run([nvcc, "--version"], capture_output=True, text=True).stdout
    toolkit = Path(nvcc).resolve().parent.parent
    header = toolkit / "include" / "cuda_runtime.h"
    if f"release {cuda[1]}." not in answer or not header.exists():
        return {}
    return {"HOROVOD_GPU_OPERATIONS": "NCCL", "HOROVOD_NCCL_LINK": "SHARED",
            "HOROVOD_NCCL_HOME": str(home), "HOROVOD_CUDA_HOME": str(toolkit)}  # fmt: skip


def package_folders(name: str) -> list[Path]:
    """Return the folders of an installed package, without importing it."""
    try:
        spec = importlib.util.find_spec(name)
    except ModuleNotFoundError:  # its parent is missing
        return []
    return [Path(folder) for folder in spec.submodule_search_locations or []] if spec else []


def switches() -> dict[str, str]:
    """Return Horovod's build switches: what is installed, then what the user has set."""
    have = frameworks()
    named = {"TENSORFLOW": "tensorflow" in have, "PYTORCH": "torch" in have, "MXNET": False,
             "GLOO": True, "MPI": bool(mpi_version())}  # fmt: skip
    chosen = {f"HOROVOD_WITH{'' if on else 'OUT'}_{name}": "1" for name, on in named.items()}
    chosen |= {k: v for k, v in os.environ.items() if k.startswith(BUILD_SWITCHES)}
    return nccl() | chosen


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
        # cmake may come with this environment; 4 refuses Gloo's file without the last variable
        path = os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", os.defpath)])
        flags = {"MAKEFLAGS": f"-j{len(os.sched_getaffinity(0))}", "LDFLAGS": "-s", "PATH": path,
                 "CMAKE_POLICY_VERSION_MINIMUM": "3.5",
                 "CXXFLAGS": f"{INCLUDES} {os.environ.get('CXXFLAGS', '')}"}  # fmt: skip
        flags |= on_gpus(work)
        run(*PIP, "wheel", "--no-build-isolation", "--no-deps", "-w", work / "out", source,
            **switches(), **flags)  # fmt: skip
        wheel = next((work / "out").glob("horovod-*.whl"))
        # a wheel that does not load is never kept
        run(*PIP, "install", "--no-deps", "--target", work / "try", wheel)
        modules = ", ".join(f"horovod.{name}" for name in frameworks())
        run(sys.executable, "-c", f"import {modules}", PYTHONPATH=str(work / "try"))
        folder.mkdir(exist_ok=True)
        return wheel.replace(folder / wheel.name)


def on_gpus(work: Path) -> dict[str, str]:
    """Return further variables of a build with NCCL; `work` receives links that it needs."""
    chosen = switches()
    if chosen.get("HOROVOD_GPU_OPERATIONS") != "NCCL":
        return {}
    more = {"CUDA_HOME": chosen.get("HOROVOD_CUDA_HOME", "/usr/local/cuda")}
    for folder in package_folders("tensorflow"):
        if "'is_cuda_build', True" not in (folder / "python/platform/build_info.py").read_text():
            more["HOROVOD_TENSORFLOW_CPU"] = "1"
    library = Path(chosen.get("HOROVOD_NCCL_HOME", "/usr"), "lib", "libnccl.so.2")
    if library.exists():  # pip's package lacks the name that the linker looks for
        (work / "nccl").mkdir()
        (work / "nccl" / "libnccl.so").symlink_to(library)
        more["HOROVOD_NCCL_LIB"] = str(work / "nccl")
    return more


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
