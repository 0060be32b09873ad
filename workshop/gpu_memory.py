"""Who holds GPU memory: other processes, as far as the driver tells.

Another notebook's kernel keeps its memory until it is shut down, which is the usual reason why a
first training run does not fit.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from rn50lib.nvidia import Gpu


@dataclass(frozen=True)
class Holder:
    """A process on a GPU. `memory` in bytes, None where the driver does not say."""

    uuid: str
    pid: int
    name: str
    memory: int | None


def _query(what: str) -> list[list[str]]:
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", what, "--format=csv,noheader,nounits"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return []
    lines = done.stdout.strip().splitlines()
    return [[part.strip() for part in line.split(",")] for line in lines]


def mib(text: str) -> int | None:
    """'812' MiB as bytes, None for '[N/A]'."""
    return int(text) * 2**20 if text.isdigit() else None


def holders() -> list[Holder]:
    """The processes with memory on a GPU, this one left out; none without a driver."""
    found = []
    for row in _query("--query-compute-apps=gpu_uuid,pid,process_name,used_memory"):
        if len(row) == 4 and row[1].isdigit() and int(row[1]) != os.getpid():
            found.append(Holder(row[0], int(row[1]), row[2], mib(row[3])))
    return found


def used() -> dict[str, int]:
    """Bytes in use by GPU UUID, whoever holds them."""
    rows = _query("--query-gpu=uuid,memory.used")
    return {row[0]: size for row in rows if len(row) == 2 and (size := mib(row[1])) is not None}


def sentence(gpus: Sequence[Gpu], others: Sequence[Holder]) -> str:
    """One line on what is taken and by whom."""
    in_use = used()
    parts = []
    for gpu in gpus:
        taken = in_use.get(gpu.uuid)
        if taken is None:
            continue
        names = [_name(item) for item in others if item.uuid == gpu.uuid]
        by = f" ({', '.join(names)})" if names else ""
        parts.append(
            f"GPU {gpu.index}: {taken / 2**30:.1f} of {gpu.memory / 2**30:.0f} GiB taken{by}"
        )
    if others:
        parts.append("a notebook gives its memory back when its kernel is shut down")
    return "; ".join(parts) or "the driver does not say"


def _name(item: Holder) -> str:
    size = "" if item.memory is None else f", {item.memory / 2**30:.1f} GiB"
    return f"{os.path.basename(item.name)}, pid {item.pid}{size}"
