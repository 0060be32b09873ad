"""Who holds GPU memory: other processes, as far as the driver tells.

Another notebook's kernel keeps its memory until it is shut down, which is the usual reason why a
first training run does not fit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from rn50lib.hardware import nvidia


def sentence(gpus: Sequence[nvidia.Gpu]) -> str:
    """One line on what is taken and by whom."""
    used, _ = nvidia.query("gpu", "uuid", "memory.used")
    running, _ = nvidia.query("compute-apps", "gpu_uuid", "pid", "process_name", "used_memory")
    holders = [row for row in running if row[1] != str(os.getpid())]
    taken = {uuid: gib(memory) for uuid, memory in used if memory.isdigit()}
    parts = []
    for gpu in gpus:
        if gpu.uuid not in taken:
            continue
        names = [
            f"{os.path.basename(name)}, pid {pid}"
            + (f", {gib(memory):.1f} GiB" if memory.isdigit() else "")
            for uuid, pid, name, memory in holders if uuid == gpu.uuid
        ]  # fmt: skip
        by = f" ({', '.join(names)})" if names else ""
        there = f"{taken[gpu.uuid]:.1f} of {gpu.memory / 2**30:.0f} GiB taken"
        parts.append(f"GPU {gpu.index}: {there}{by}")
    if holders:
        parts.append("a notebook gives its memory back when its kernel is shut down")
    return "; ".join(parts) or "the driver does not say"


def gib(mib: str) -> float:
    """'812' MiB in GiB."""
    return int(mib) / 1024
