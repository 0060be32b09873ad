"""What a run uses while it goes: cores and GPU, read from outside a few times a second."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import psutil

EVERY_S = 0.3
SHORTEST_S = 1.0  # less says little, as the readings do not begin and end with the work


@dataclass
class Meter:
    """Reads the processes below `pid`, that one included, in a thread, from `with` to its end."""

    pid: int
    readings: list[tuple[float, float, float | None]] = field(default_factory=list)
    times: dict[int, float] = field(default_factory=dict)  # seconds of core by process

    def __enter__(self) -> Meter:
        self.gpus = Nvml()
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.ended.set()
        self.thread.join()

    def _watch(self) -> None:
        while not self.ended.wait(EVERY_S):
            self._read()

    def _read(self) -> None:
        with contextlib.suppress(psutil.Error):
            head = psutil.Process(self.pid)
            for process in [head, *head.children(recursive=True)]:
                with contextlib.suppress(psutil.Error):
                    used = process.cpu_times()
                    # by process, so that one that has ended keeps what it used
                    self.times[process.pid] = used.user + used.system
        self.readings.append((time.monotonic(), sum(self.times.values()), self.gpus.busy()))

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


class Nvml:
    """What the driver tells of the GPUs; silent where there is none. NVML raises its own errors."""

    def __init__(self) -> None:
        self.handles: list[Any] = []
        with contextlib.suppress(Exception):
            import pynvml

            pynvml.nvmlInit()
            self.nvml = pynvml
            for i in range(pynvml.nvmlDeviceGetCount()):
                self.handles.append(pynvml.nvmlDeviceGetHandleByIndex(i))

    def busy(self) -> float | None:
        """Per cent busy of the busiest GPU."""
        found = []
        for handle in self.handles:
            with contextlib.suppress(Exception):
                found.append(float(self.nvml.nvmlDeviceGetUtilizationRates(handle).gpu))
        return max(found, default=None)
