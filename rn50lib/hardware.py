"""The machine as this process may use it: cores, memory, processor features, GPUs.

GPUs are read through NVML (the package nvidia-ml-py). No framework is imported.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path("/")  # tests pass a folder with the kernel's files


@dataclass(frozen=True)
class Gpu:
    """A GPU, or the slice that CUDA uses of one in MIG mode."""

    index: int  # of a slice, its GPU's
    name: str
    memory: int  # bytes; 0: unknown
    capability: tuple[int, int]
    driver: str
    uuid: str


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver, the newest CUDA that it supports, and GPUs.

    Without a driver all fields are empty; if there is no GPU in spite of a driver, `problem` says
    why.
    """

    version: str = ""
    cuda: tuple[int, int] = (0, 0)
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""


@dataclass(frozen=True)
class Machine:
    """The hardware that this process may use."""

    processor: str
    cores: int
    memory: int  # bytes
    bfloat16: str  # the processor's instructions for it, if any
    gpus: tuple[Gpu, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the fields and the system's names, for the report's `env`."""
        return asdict(self) | {"system": platform.platform(), "python": platform.python_version()}


@cache
def machine() -> Machine:
    """Return this machine, read once per process."""
    name, flags = processor()
    bfloat16 = " and ".join(word for word in ("amx_bf16", "avx512_bf16") if word in flags)
    return Machine(name, usable_cores(), usable_memory(), bfloat16, gpus())


# --- cores, memory, processor ---------------------------------------------------------------------


def affinity() -> int:
    """Return the number of cores that the scheduler may give this process."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1  # macOS


def usable_cores(root: Path = ROOT) -> int:
    """Return the affinity mask's cores, limited by the control groups' quota; 1.5 count as 1."""
    quota = cpu_quota(root)
    return max(1, min(affinity(), int(quota))) if quota else affinity()


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the number of cores that the control groups allow, None without a limit."""
    limits = [found[0] / found[1] for found in _limits(root, "cpu.max") if found[1:]]
    return min(limits, default=None)


def total_memory() -> int:
    """Return the machine's memory in bytes."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def usable_memory(root: Path = ROOT) -> int:
    """Return the machine's memory in bytes, limited by the control groups."""
    return min([total_memory(), *sum(_limits(root, "memory.max"), [])])


def _limits(root: Path, name: str) -> Iterator[list[int]]:
    """Yield the numbers in a file of this process's control group (version 2) and of its parents.

    A limit of any parent applies. In a container the path may be the host's: its parents lead to
    the container's own root.
    """
    with contextlib.suppress(OSError):  # macOS
        for line in (root / "proc/self/cgroup").read_text().splitlines():
            group = root / "sys/fs/cgroup" / line[3:].lstrip("/")
            for folder in (group, *group.parents) if line.startswith("0::") else ():
                with contextlib.suppress(OSError, ValueError):  # "max": no limit
                    yield [int(word) for word in (folder / name).read_text().split()]


def processor(root: Path = ROOT) -> tuple[str, frozenset[str]]:
    """Return the processor's name and, on Linux, its feature flags."""
    found = {"model name": platform.processor() or platform.machine(), "flags": ""}
    with contextlib.suppress(OSError):
        for line in (root / "proc/cpuinfo").read_text().split("\n\n")[0].splitlines():
            key, _, value = line.partition(":")
            found[key.strip()] = value.strip()
    return found["model name"], frozenset(found["flags"].split())


# --- GPUs -----------------------------------------------------------------------------------------


def gpus() -> tuple[Gpu, ...]:
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves to programs started here, in its order."""
    return driver(os.environ.get("CUDA_VISIBLE_DEVICES")).gpus


def driver(devices: str | None = None) -> Driver:
    """Ask NVML for the driver and its GPUs: all, or those of a value of CUDA_VISIBLE_DEVICES."""
    import pynvml as nvml

    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        return Driver()
    except nvml.NVMLError as error:
        return Driver(problem=str(error))
    try:
        version, cuda = nvml.nvmlSystemGetDriverVersion(), nvml.nvmlSystemGetCudaDriverVersion()
        count = nvml.nvmlDeviceGetCount()
        found = _read_gpus(nvml, version, count, devices)
    except nvml.NVMLError as error:
        return Driver(problem=str(error))
    finally:
        nvml.nvmlShutdown()
    problem = "" if count else "the driver lists 0 GPUs"
    return Driver(version, (cuda // 1000, cuda % 1000 // 10), found, problem)


def _read_gpus(nvml: Any, version: str, count: int, devices: str | None) -> tuple[Gpu, ...]:
    """Return all GPUs, or those of a value of CUDA_VISIBLE_DEVICES, as CUDA does.

    CUDA reads indexes and beginnings of UUIDs, up to the first that is not there. The UUID of a MIG
    slice is that of a small GPU: a process sees one slice, and then no whole GPU. Raises NVMLError
    for a lost GPU.
    """
    found: list[Gpu] = []
    words = [*map(str, range(count))] if devices is None else devices.split(",")
    for word in map(str.strip, words):
        try:
            handle = whole = _handle(nvml, word, count)
            sliced = word.startswith("MIG-")
            if sliced:
                whole = nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(handle)
            elif first := _first_slice(nvml, whole):
                handle, sliced = first, True
        except nvml.NVMLError:
            if devices is None:
                raise
            break
        name, memory, uuid = nvml.nvmlDeviceGetName(handle), 0, nvml.nvmlDeviceGetUUID(handle)
        with contextlib.suppress(nvml.NVMLError):  # a GPU that shares the host's memory
            memory = nvml.nvmlDeviceGetMemoryInfo(handle).total
        capability = tuple(nvml.nvmlDeviceGetCudaComputeCapability(whole))
        gpu = Gpu(nvml.nvmlDeviceGetIndex(whole), name, memory, capability, version, uuid)
        if sliced:
            return (gpu,)
        found.append(gpu)
    return tuple(found)


def has_c_compiler() -> bool:
    """Return True if Triton finds a C compiler, which it needs at its first use."""
    return bool(os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang"))


def _first_slice(nvml: Any, gpu: Any) -> Any:
    """Return the slice of a GPU in MIG mode that CUDA uses, the first; None without MIG."""
    with contextlib.suppress(nvml.NVMLError):
        if nvml.nvmlDeviceGetMigMode(gpu)[0]:
            return nvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, 0)
    return None


def _handle(nvml: Any, word: str, count: int) -> Any:
    """Return the GPU of an index, or of the beginning of a UUID."""
    if word.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(word))
    for index in range(count if len(word) > len("GPU-") else 0):
        handle = nvml.nvmlDeviceGetHandleByIndex(index)
        if nvml.nvmlDeviceGetUUID(handle).startswith(word):
            return handle
    return nvml.nvmlDeviceGetHandleByUUID(word)  # of a MIG slice
