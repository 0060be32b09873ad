"""GPU memory in use, by process.

The kernel of an open notebook keeps its memory until it is shut down, which is the usual reason why
a first training run does not fit.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from rn50lib.hardware import Gpu


def sentence(gpus: Sequence[Gpu]) -> str:
    """Return one line: how much memory of each GPU is in use, and by which processes."""
    import pynvml as nvml

    parts, others = [], False
    try:
        nvml.nvmlInit()
        for gpu in gpus:
            handle = nvml.nvmlDeviceGetHandleByUUID(gpu.uuid)
            used = nvml.nvmlDeviceGetMemoryInfo(handle).used / 2**30
            holders = [
                f"{os.path.basename(nvml.nvmlSystemGetProcessName(process.pid))}, pid {process.pid}"
                + (f", {process.usedGpuMemory / 2**30:.1f} GiB" if process.usedGpuMemory else "")
                for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle)
                if process.pid != os.getpid()
            ]
            others = others or bool(holders)
            text = f"GPU {gpu.index}: {used:.1f} of {gpu.memory / 2**30:.0f} GiB in use"
            parts.append(text + (f" ({', '.join(holders)})" if holders else ""))
    except nvml.NVMLError:
        return "the driver does not report it"
    if others:
        parts.append("shutting down a notebook's kernel frees its memory")
    return "; ".join(parts)
