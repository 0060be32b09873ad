"""The machine as this process may use it: cores, memory, processor features, GPUs.

GPUs are read through NVML (the package nvidia-ml-py). No framework is imported.
"""

from __future__ import annotations

import contextlib
import os
import platform
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path("/")  # tests pass a folder with the kernel's files


@dataclass(frozen=True)
class Gpu:
    """A GPU, or a MIG slice, which is used like a small GPU."""

    index: int  # of a slice, its GPU's
    name: str
    memory: int  # bytes; 0: unknown
    capability: tuple[int, int]
    driver: str
    uuid: str
    slice_of: str = ""  # the UUID of its GPU


@dataclass(frozen=True)
class Driver:
    """The NVIDIA driver, the newest CUDA that it supports, and its GPUs, hidden ones included.

    A GPU in MIG mode is represented by its slices. Without a driver all fields are empty; if there
    is no GPU in spite of a driver, `problem` says why.
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
    """Return the GPUs that CUDA_VISIBLE_DEVICES leaves to programs started here."""
    devices = os.environ.get("CUDA_VISIBLE_DEVICES")
    return () if devices == "" else visible(driver().gpus, devices)


def driver() -> Driver:
    """Ask NVML for the driver and its GPUs."""
    import pynvml as nvml

    try:
        nvml.nvmlInit()
    except nvml.NVMLError_LibraryNotFound:
        return Driver()
    except nvml.NVMLError as error:
        return Driver(problem=str(error))
    try:
        version, cuda = nvml.nvmlSystemGetDriverVersion(), nvml.nvmlSystemGetCudaDriverVersion()
        count, found = nvml.nvmlDeviceGetCount(), list(_read_gpus(nvml, version))
    except nvml.NVMLError as error:
        return Driver(problem=str(error))
    finally:
        nvml.nvmlShutdown()
    problem = ""
    if not found:
        problem = "MIG mode is on, and there are no slices" if count else "the driver lists 0 GPUs"
    return Driver(version, (cuda // 1000, cuda % 1000 // 10), tuple(found), problem)


def _read_gpus(nvml: Any, version: str) -> Iterator[Gpu]:
    """Yield each GPU, or its slices if it is in MIG mode."""
    for index in range(nvml.nvmlDeviceGetCount()):
        device = nvml.nvmlDeviceGetHandleByIndex(index)
        capability, uuid = nvml.nvmlDeviceGetCudaComputeCapability(device), ""
        handles, divided = [device], False
        with contextlib.suppress(nvml.NVMLError):  # most GPUs do not support MIG
            divided = nvml.nvmlDeviceGetMigMode(device)[0] == nvml.NVML_DEVICE_MIG_ENABLE
        if divided:
            handles, uuid = [], nvml.nvmlDeviceGetUUID(device)
            for number in range(nvml.nvmlDeviceGetMaxMigDeviceCount(device)):
                with contextlib.suppress(nvml.NVMLError_NotFound):
                    handles.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(device, number))
        for handle in handles:
            name, memory = nvml.nvmlDeviceGetName(handle), 0
            with contextlib.suppress(nvml.NVMLError):  # a GPU that shares the host's memory
                memory = nvml.nvmlDeviceGetMemoryInfo(handle).total
            own = nvml.nvmlDeviceGetUUID(handle)
            yield Gpu(index, name, memory, tuple(capability), version, own, uuid)


def visible(gpus: tuple[Gpu, ...], devices: str | None) -> tuple[Gpu, ...]:
    """Return the GPUs that a value of CUDA_VISIBLE_DEVICES leaves, in its order (None: all).

    CUDA reads it as indexes or beginnings of UUIDs, up to the first that matches no GPU. For a GPU
    in MIG mode an entry means the first slice, and a process sees one slice and nothing else.
    """
    left = list(gpus) if devices is None else []
    for word in map(str.strip, (devices or "").split(",")):
        is_uuid = len(word) > len("GPU-")
        matches = [
            gpu
            for gpu in gpus
            if word == str(gpu.index)
            or (is_uuid and (gpu.uuid.startswith(word) or gpu.slice_of.startswith(word)))
        ]
        if not matches:
            break
        left.append(matches[0])
    slices = [gpu for gpu in left if gpu.slice_of]
    return tuple(slices[:1] or left)
