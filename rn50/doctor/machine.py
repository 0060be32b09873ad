"""The machine itself: cores, memory, shared memory, disk, its own address."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import tempfile
from multiprocessing import shared_memory
from pathlib import Path

from rn50 import launch
from rn50.autoconfig import data_home, default_data_root
from rn50.doctor.check import Check, note, ok, problem, size
from rn50lib import hardware

MEMORY_LEAST = 2 * 2**30  # below it, the road-signs recipe does not fit
MEMORY_COMFORTABLE = 4 * 2**30
SHARED_COMFORTABLE = 2**30
DATA_ROOM = 2**30  # the built-in pictures, their records and room to write beside
RUN_ROOM = 2**30  # three checkpoints of ResNet-50: the newest two, and one being written


def has_every_wheel() -> bool:
    """Whether this is a system and a processor for which all packages of the workbook are built."""
    return (platform.system(), platform.machine()) == ("Linux", "x86_64")


def system() -> Check:
    """The platform, and whether the workbook has been tried there."""
    name = f"{platform.system()} {platform.machine()}, Python {platform.python_version()}"
    wsl = "microsoft" in platform.release().lower()
    if has_every_wheel() and not wsl:
        return ok("system", name)
    name += " in WSL2" if wsl else ""
    remedy = "docs/platforms.md says what differs there"
    return note("system", f"{name}: the workbook has not been tried here yet", remedy)


def cores(root: Path = hardware.ROOT) -> Check:
    """Cores that runs will use, and what keeps them from the others."""
    usable, there = hardware.usable_cores(root), os.cpu_count() or 1
    quota, mask = hardware.cpu_quota(root), hardware.affinity()
    what = f"{usable} of the machine's {there} core(s) usable"
    reasons = []
    if mask < there:
        reasons.append(f"the affinity mask leaves {mask}")
    if quota is not None and quota < mask:
        reasons.append(f"the control group's quota is {quota:g}")
    if reasons:
        what += f" ({'; '.join(reasons)}): runs use {usable} thread(s), not {there}"
        remedy = "start it with more cores (docker: --cpus) if it has them to give"
        return note("cores", what, remedy)
    if usable == 1:
        return note("cores", f"{what}: loading and computing take turns")
    return ok("cores", what)


def memory(root: Path = hardware.ROOT) -> Check:
    """Memory that this process may use."""
    usable, total = hardware.usable_memory(root), hardware.total_memory()
    if not usable:
        return note("memory", "the system does not say how much memory there is")
    limit = hardware.memory_limit(root)
    limited = limit is not None and limit < total
    what = f"{size(usable)} of memory"
    if limited:
        what += f" (the control group's limit; the machine has {size(total)})"
    if usable < MEMORY_LEAST:
        more = "give the container more (docker: --memory)" if limited else "use another machine"
        what += f": training takes at least {size(MEMORY_LEAST)}"
        return problem("memory", what, more)
    if usable < MEMORY_COMFORTABLE:
        remedy = "use a smaller -b if a run is killed"
        return note("memory", f"{what}, which is tight", remedy)
    return ok("memory", what)


def shared(shm: Path = Path("/dev/shm")) -> Check:
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
    what = f"{shm}: {size(usage.total)}, {size(usage.free)} free"
    if usage.free < SHARED_COMFORTABLE:
        what += "; with batches of large images, loader workers may die with a bus error"
        remedy = "start the container with --ipc=host (or --shm-size=8g)"
        return note("shared-memory", what, remedy)
    return ok("shared-memory", what)


def data_folder() -> Check:
    """The built-in data set, or room to draw it."""
    home = data_home()
    root, _ = default_data_root()
    if root.parent != home:
        return ok("data", f"ImageNet is at {root}, and is what a run without --data-root reads")
    if (root / ".complete").exists():
        return ok("data", f"the built-in road signs are in {root}")
    free, why = room(home)
    if why:
        what = f"the road signs cannot be drawn into {home}: {why}"
        return problem("data", what, "set RN50_DATA to a folder that you may write to")
    if free < DATA_ROOM:
        what = f"{home}: {size(free)} free, and the road signs take up to {size(DATA_ROOM)}"
        return problem("data", what, "make room, or set RN50_DATA to another disk")
    what = f"{home}: {size(free)} free; the road signs are drawn there by the first run"
    return ok("data", what)


def runs_folder() -> Check:
    """Room for reports and checkpoints."""
    home = launch.runs_home()
    free, why = room(home)
    other = "set RN50_RUNS to a folder that you may write to"
    if why:
        return problem("runs", f"runs cannot be written into {home}: {why}", other)
    what = f"{home}: {size(free)} free for runs"
    if free < RUN_ROOM:
        what += "; a ResNet-50 checkpoint takes 200 MB, and three are kept at times"
        return note("runs", what, other)
    return ok("runs", what)


def room(folder: Path) -> tuple[int, str]:
    """Bytes free where `folder` is or would be, and why nothing can be written there ("": it can).

    A file is really made: the permission bits of a read-only mount, and those that root sees, tell
    nothing.
    """
    parent = folder
    while not parent.exists() and parent != parent.parent:
        parent = parent.parent
    try:
        free = shutil.disk_usage(parent).free
        with tempfile.NamedTemporaryFile(dir=parent, prefix=".rn50-doctor-"):
            return free, ""
    except NotADirectoryError:
        return 0, f"{parent} is a file"
    except OSError as error:
        return 0, error.strerror or str(error)


def localhost() -> Check:
    """Whether two processes of this machine can talk over its loopback interface."""
    try:
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except OSError as error:
        what = f"no connection over 127.0.0.1 ({error}): notebooks and several workers need it"
        return note("localhost", what, "look at the firewall and at `ip addr show lo`")
    name = socket.gethostname()
    try:
        socket.getaddrinfo(name, None)
    except OSError:
        what = f"ports on 127.0.0.1 work; the machine's own name, {name}, has no address"
        remedy = f"add `127.0.0.1 {name}` to /etc/hosts, or Gloo may not find its own workers"
        return note("localhost", what, remedy)
    return ok("localhost", "ports on 127.0.0.1 work, and the machine's own name has an address")
