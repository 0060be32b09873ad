"""What a run uses while it goes: cores, memory and GPU, read from outside a few times a second."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

EVERY_S = 0.3
SHORTEST_S = 1.0  # less says little, as the readings do not begin and end with the work


@dataclass
class Meter:
    """Reads the processes below `pid`, that one included, in a thread, from `with` to its end.

    `peak` is the largest resident memory of one process, in bytes; `gpu_peak` what the GPUs' memory
    in use grew by, on the fullest of them (None without NVML).
    """

    pid: int
    peak: int = 0
    gpu_peak: int | None = None
    readings: list[tuple[float, float, float | None]] = field(default_factory=list)
    times: dict[int, float] = field(default_factory=dict)  # seconds of core by process

    def __enter__(self) -> Meter:
        self.gpus = Gpus()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.done.wait(EVERY_S):
            self._read()

    def _read(self) -> None:
        with contextlib.suppress(psutil.Error):
            head = psutil.Process(self.pid)
            for process in [head, *head.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    used = process.cpu_times()
                    # by process, so that one that has ended keeps what it used
                    self.times[process.pid] = used.user + used.system
                    self.peak = max(self.peak, resident(process))
        busy, memory = self.gpus.read()
        if memory is not None:
            self.gpu_peak = max(self.gpu_peak or 0, memory)
        self.readings.append((time.monotonic(), sum(self.times.values()), busy))

    def cores(self, begin: float, end: float) -> float | None:
        """Cores that were busy on average between two moments of `time.monotonic()`."""
        inside = [reading for reading in self.readings if begin <= reading[0] <= end]
        if len(inside) < 2 or inside[-1][0] - inside[0][0] < SHORTEST_S:
            return None
        return (inside[-1][1] - inside[0][1]) / (inside[-1][0] - inside[0][0])

    def gpu(self, begin: float, end: float) -> float | None:
        """Per cent of the time in which the GPUs ran a kernel, None without NVML."""
        found = [busy for at, _, busy in self.readings if begin <= at <= end and busy is not None]
        return sum(found) / len(found) if found else None


def resident(process: psutil.Process) -> int:
    """Bytes of the process's resident memory, at its highest so far where the system says."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return process.memory_info().rss


class Gpus:
    """NVML's view of the GPUs; silent where there is none."""

    def __init__(self) -> None:
        self.handles: list[Any] = []
        with contextlib.suppress(Exception):  # NVML raises its own errors
            import pynvml

            pynvml.nvmlInit()
            self.nvml = pynvml
            count = pynvml.nvmlDeviceGetCount()
            self.handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
            self.before = [pynvml.nvmlDeviceGetMemoryInfo(h).used for h in self.handles]

    def read(self) -> tuple[float | None, int | None]:
        """Per cent busy of the busiest GPU, bytes in use above what was there before."""
        busy, used = [], []
        for handle, before in zip(self.handles, getattr(self, "before", []), strict=False):
            with contextlib.suppress(Exception):
                busy.append(float(self.nvml.nvmlDeviceGetUtilizationRates(handle).gpu))
                used.append(int(self.nvml.nvmlDeviceGetMemoryInfo(handle).used - before))
        return max(busy, default=None), max(used, default=None)
