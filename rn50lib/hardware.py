"""What this machine has: cores that this process may use, memory, processor features, GPUs.

`machine()` reads it once, without importing any framework, so that `rn50 --help` stays fast and a
broken driver cannot stop a CPU run.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True)
class Gpu:
    """One GPU. `memory` in bytes, `capability` as (major, minor)."""

    index: int
    name: str
    memory: int
    capability: tuple[int, int]
    driver: str
    uuid: str


@dataclass(frozen=True)
class Machine:
    """The machine as this process may use it. `memory` in bytes; `bfloat16` names the instructions
    that compute in bfloat16, empty where the processor has none."""

    processor: str
    cores: int
    memory: int
    bfloat16: str
    gpus: tuple[Gpu, ...]

    def to_dict(self) -> dict:
        """For the report's `env` and for the index page."""
        return asdict(self) | {"system": platform.platform(), "python": platform.python_version()}


def usable_cores() -> int:
    """Cores that this process may use: the affinity mask, cut by the cgroup's CPU quota.

    `os.cpu_count()` counts the whole machine, which in a container is the wrong number.
    """
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        cores = os.cpu_count() or 1
    quota = _cgroup_quota()
    return max(1, min(cores, int(quota) if quota and quota >= 1 else cores))


def _cgroup_quota() -> float | None:
    """CPUs that the cgroup allows (version 2, then version 1), None without a limit."""
    try:
        limit, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        return None if limit == "max" else int(limit) / int(period)
    except (OSError, ValueError):
        pass
    try:
        limit_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_quota_us").read_text())
        period_us = int(Path("/sys/fs/cgroup/cpu/cpu.cfs_period_us").read_text())
        return None if limit_us <= 0 else limit_us / period_us
    except (OSError, ValueError):
        return None


def usable_memory() -> int:
    """Bytes of memory: the machine's, cut by the cgroup's limit."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
    for path in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        try:
            total = min(total, int(Path(path).read_text()))
        except (OSError, ValueError):
            continue
    return total


def _processor() -> tuple[str, frozenset[str]]:
    """The processor's name and its feature flags (Linux; elsewhere no flags are known)."""
    name, flags = platform.processor() or platform.machine(), frozenset[str]()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                name = value.strip()
            elif key.strip() == "flags":
                flags = frozenset(value.split())
                break
    except OSError:
        pass
    return name, flags


def gpus() -> tuple[Gpu, ...]:
    """The GPUs that `nvidia-smi` lists and CUDA_VISIBLE_DEVICES leaves visible."""
    if shutil.which("nvidia-smi") is None:
        return ()
    query = "index,name,memory.total,compute_cap,driver_version,uuid"
    command = ["nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return ()
    found = []
    for line in done.stdout.strip().splitlines():
        index, name, mib, capability, driver, uuid = (part.strip() for part in line.split(","))
        major, minor = capability.split(".")
        size = int(mib) * 2**20
        found.append(Gpu(int(index), name, size, (int(major), int(minor)), driver, uuid))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return tuple(found)
    wanted = [part.strip() for part in visible.split(",") if part.strip()]
    return tuple(
        gpu for item in wanted for gpu in found if item == str(gpu.index) or gpu.uuid == item
    )


@cache
def machine() -> Machine:
    """This machine, read once per process."""
    name, flags = _processor()
    features = [word for word in ("amx_bf16", "avx512_bf16") if word in flags]
    return Machine(
        processor=name,
        cores=usable_cores(),
        memory=usable_memory(),
        bfloat16=" and ".join(features),
        gpus=gpus(),
    )
