"""What this machine has: cores that this process may use, memory, processor features, GPUs.

`machine()` reads it once, without importing any framework, so that `rn50 --help` stays fast and a
broken driver cannot stop a CPU run.
"""

from __future__ import annotations

import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rn50lib.hardware.nvidia import Gpu

ROOT = Path("/")  # the functions below take another one where a test lays out files of its own


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


def affinity() -> int:
    """Cores that the scheduler may give this process (`taskset`, cpuset, batch systems)."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # macOS has no affinity
        return os.cpu_count() or 1


def usable_cores(root: Path = ROOT) -> int:
    """Cores that this process may use: the affinity mask, cut by the cgroup's CPU quota.

    `os.cpu_count()` counts the whole machine, which in a container is the wrong number. A quota of
    1.5 cores counts as one: two threads would wait for each other.
    """
    quota = cpu_quota(root)
    return max(1, min(affinity(), int(quota))) if quota else affinity()


def _cgroup_files(root: Path, controller: str, v2: str, v1: str) -> Iterator[tuple[bool, Path]]:
    """(version 2?, file) of this process's control group and of every group above it.

    A limit of any group on the way up holds. Inside a container the path in /proc/self/cgroup may
    be the host's, which does not exist here: its parents lead to the container's own root.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        parts = line.split(":", 2)
        if len(parts) != 3:
            continue
        number, controllers, path = parts
        if number == "0" and not controllers:
            tops: tuple[str, ...] = ("sys/fs/cgroup", "sys/fs/cgroup/unified")
            name, is_v2 = v2, True
        elif controller in controllers.split(","):
            tops, name, is_v2 = (f"sys/fs/cgroup/{controller}",), v1, False
        else:
            continue
        group = Path(path.lstrip("/"))
        if ".." in group.parts:  # seen from another namespace: the group lies above what is here
            group = Path()
        for top in tops:
            for folder in (group, *group.parents):
                file = root / top / folder / name
                if file.is_file():
                    yield is_v2, file


def cpu_quota(root: Path = ROOT) -> float | None:
    """Cores that the control groups allow (both versions), None without a limit."""
    found = []
    for is_v2, file in _cgroup_files(root, "cpu", "cpu.max", "cpu.cfs_quota_us"):
        try:
            if is_v2:
                limit, period = file.read_text().split()
            else:
                limit = file.read_text().strip()
                period = file.with_name("cpu.cfs_period_us").read_text()
            if limit != "max" and int(limit) > 0:
                found.append(int(limit) / int(period))
        except (OSError, ValueError, ZeroDivisionError):
            continue
    return min(found, default=None)


def total_memory() -> int:
    """Bytes of memory in the machine, 0 where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 0


def memory_limit(root: Path = ROOT) -> int | None:
    """Bytes that the control groups allow (both versions), None without a limit."""
    found = []
    for _, file in _cgroup_files(root, "memory", "memory.max", "memory.limit_in_bytes"):
        try:
            limit = int(file.read_text())
        except (OSError, ValueError):  # "max"
            continue
        if limit < 2**60:  # version 1 writes no limit as a number near 2^63
            found.append(limit)
    return min(found, default=None)


def usable_memory(root: Path = ROOT) -> int:
    """Bytes of memory: the machine's, cut by the control groups' limit; 0: not known."""
    return min(filter(None, (total_memory(), memory_limit(root))), default=0)


def processor(root: Path = ROOT) -> tuple[str, frozenset[str]]:
    """The processor's name and its feature flags (Linux; elsewhere no flags are known)."""
    name, flags = platform.processor() or platform.machine(), frozenset[str]()
    try:
        for line in (root / "proc/cpuinfo").read_text().splitlines():
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
    """The GPUs that a program started here can use; none where no driver answers."""
    if shutil.which("nvidia-smi") is None:
        return ()
    from rn50lib.hardware import nvidia

    return nvidia.gpus()


@cache
def machine() -> Machine:
    """This machine, read once per process."""
    name, flags = processor()
    features = [word for word in ("amx_bf16", "avx512_bf16") if word in flags]
    return Machine(
        processor=name,
        cores=usable_cores(),
        memory=usable_memory(),
        bfloat16=" and ".join(features),
        gpus=gpus(),
    )
