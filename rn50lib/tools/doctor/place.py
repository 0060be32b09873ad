"""The machine itself: cores, processor, memory, shared memory, disk."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
from multiprocessing import shared_memory
from pathlib import Path
from typing import Any

from rn50lib import hardware, launch, platforms
from rn50lib.config import data_home, default_data_root
from rn50lib.tools.doctor.check import Check, note, ok, problem, size

PLATFORMS = "see docs/platforms.md"
MEMORY_LEAST = 2 * 2**30  # below it, the road-signs recipe does not fit
MEMORY_COMFORTABLE = 4 * 2**30
SHARED_COMFORTABLE = 2**30
DATA_ROOM = 2**30  # the built-in pictures, their records and room to write beside
RUN_ROOM = 2**30  # three checkpoints of ResNet-50: the newest two, and one being written


def machine(root: Path = hardware.ROOT) -> list[Check]:
    """System, cores and processor."""
    return [system(), cores(root), processor(root)]


def system() -> Check:
    """The platform and what it means for the workbook."""
    words = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    here, facts = platforms.this(), {"executable": sys.executable, "prefix": sys.prefix}
    if here is None:
        return note("system", f"{words}: not a platform of the workbook", PLATFORMS, **facts)
    remarks = [here.lacks] if here.lacks else []
    remarks += [] if here.tried else ["the workbook has not been tried here yet"]
    if remarks:
        return note("system", f"{words}: {'; '.join(remarks)}", PLATFORMS, **facts)
    return ok("system", words, **facts)


def cores(root: Path) -> Check:
    """Cores that runs will use, and what keeps them from the others."""
    usable, there = hardware.usable_cores(root), os.cpu_count() or 1
    quota, mask = hardware.cpu_quota(root), hardware.affinity()
    facts: dict[str, Any] = {"usable": usable, "machine": there, "affinity": mask, "quota": quota}
    what = f"{usable} of the machine's {there} core(s) usable"
    reasons = []
    if mask < there:
        reasons.append(f"the affinity mask leaves {mask}")
    if quota is not None and quota < mask:
        reasons.append(f"the control group's quota is {quota:g}")
    if reasons:
        what += f" ({'; '.join(reasons)}): runs use {usable} thread(s), not {there}"
        return note(
            "cores",
            what,
            "start it with more cores (docker: --cpus) if it has them to give",
            **facts,
        )
    if usable == 1:
        return note("cores", f"{what}: loading and computing take turns", **facts)
    return ok("cores", what, **facts)


def processor(root: Path) -> Check:
    """Whether the processor computes in bfloat16."""
    name, flags = hardware.processor(root)
    features = [word for word in ("amx_bf16", "avx512_bf16") if word in flags]
    if features:
        what = f"{name} computes in bfloat16 ({' and '.join(features)})"
        return ok("processor", what, processor=name, bfloat16=features)
    what = f"{name} has no bfloat16 instructions: on the processor, runs use float32"
    return ok("processor", what, processor=name, bfloat16=[])


def memory_and_disk(root: Path = hardware.ROOT, shm: Path = Path("/dev/shm")) -> list[Check]:
    """Memory, shared memory, and room where data and runs go."""
    return [memory(root), shared(shm), data_folder(), runs_folder()]


def memory(root: Path) -> Check:
    """Memory that this process may use, and how much of it is free now."""
    usable, total = hardware.usable_memory(root), hardware.total_memory()
    if not usable:
        return note("memory", "the system does not say how much memory there is")
    limit, free = hardware.memory_limit(root), free_memory(root)
    limited = limit is not None and limit < total
    facts: dict[str, Any] = {"usable": usable, "machine": total, "limit": limit, "free": free}
    what = f"{size(usable)} of memory"
    if limited:
        what += f" (the control group's limit; the machine has {size(total)})"
    more = "give the container more (docker: --memory)" if limited else "close other programs"
    if usable < MEMORY_LEAST:
        return problem(
            "memory", f"{what}: training takes at least {size(MEMORY_LEAST)}", more, **facts
        )
    if free is not None and free < min(usable, MEMORY_COMFORTABLE) and free < usable / 2:
        return note(
            "memory",
            f"{what}, only {size(free)} of it free now",
            f"{more}, or use a smaller -b",
            **facts,
        )
    if usable < MEMORY_COMFORTABLE:
        return note(
            "memory", f"{what}, which is tight", "use a smaller -b if a run is killed", **facts
        )
    return ok("memory", what if free is None else f"{what}, {size(free)} free now", **facts)


def free_memory(root: Path) -> int | None:
    """Bytes that programs can still have, by the kernel's estimate; None where it gives none."""
    try:
        for line in (root / "proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except (OSError, ValueError, IndexError):
        pass
    return None


def shared(shm: Path) -> Check:
    """Shared memory, through which loader workers hand over their batches."""
    try:
        block = shared_memory.SharedMemory(create=True, size=2**20)
        block.close()
        block.unlink()
    except OSError as error:
        return problem(
            "shared-memory",
            f"shared memory cannot be used ({error.strerror}), and loader workers need it",
            "start the container with --ipc=host, or use --data-nthreads 0 to load without workers",
        )
    if not shm.is_dir():  # macOS keeps it elsewhere, and sets no such limit
        return ok("shared-memory", "shared memory can be used")
    usage = shutil.disk_usage(shm)
    facts: dict[str, Any] = {"size": usage.total, "free": usage.free}
    what = f"{shm}: {size(usage.total)}, {size(usage.free)} free"
    if usage.free < SHARED_COMFORTABLE:
        what += "; with batches of large images, loader workers may die with a bus error"
        remedy = "start the container with --ipc=host (or --shm-size=8g)"
        return note("shared-memory", what, remedy, **facts)
    return ok("shared-memory", what, **facts)


def data_folder() -> Check:
    """The built-in data set, or room to draw it."""
    home = data_home()
    root, _ = default_data_root()
    if root.parent != home:
        return ok("data", f"ImageNet is at {root}, and is what a run without --data-root reads")
    facts: dict[str, Any] = {"home": str(home), "complete": (root / ".complete").exists()}
    if facts["complete"]:
        return ok("data", f"the built-in road signs are in {root}", **facts)
    free, why = room(home)
    facts["free"] = free
    if why:
        what = f"the road signs cannot be drawn into {home}: {why}"
        return problem("data", what, "set RN50_DATA to a folder that you may write to", **facts)
    if free < DATA_ROOM:
        what = f"{home}: {size(free)} free, and the road signs take up to {size(DATA_ROOM)}"
        return problem("data", what, "make room, or set RN50_DATA to another disk", **facts)
    what = f"{home}: {size(free)} free; the road signs are drawn there by the first run"
    return ok("data", what, **facts)


def runs_folder() -> Check:
    """Room for reports and checkpoints."""
    home = launch.runs_home()
    free, why = room(home)
    facts: dict[str, Any] = {"home": str(home), "free": free}
    other = "set RN50_RUNS to a folder that you may write to"
    if why:
        return problem("runs", f"runs cannot be written into {home}: {why}", other, **facts)
    what = f"{home}: {size(free)} free for runs"
    if free < RUN_ROOM:
        return note(
            "runs",
            f"{what}; a ResNet-50 checkpoint takes 200 MB, and three are kept at times",
            other,
            **facts,
        )
    return ok("runs", what, **facts)


def room(folder: Path) -> tuple[int, str]:
    """Bytes free where `folder` is or would be, and why nothing can be written there ("": it can).

    A file is really made: the permission bits of a read-only mount, and those that root sees, tell
    nothing.
    """
    place = folder
    while not place.exists() and place != place.parent:
        place = place.parent
    try:
        free = shutil.disk_usage(place).free
        with tempfile.NamedTemporaryFile(dir=place, prefix=".rn50-doctor-"):
            return free, ""
    except NotADirectoryError:
        return 0, f"{place} is a file"
    except OSError as error:
        return 0, error.strerror or str(error)
