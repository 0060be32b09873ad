"""SIGTERM: how the workers of a run agree on the update after which they stop."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType
from typing import Any

import numpy as np

from rn50lib.comm import Comm
from rn50lib.errors import TERMINATED

PATIENCE_S = 10.0  # a SIGTERM that comes so long after the first one ends a run at once
LOOK_S = 1.0  # about so often the workers ask each other whether one was asked to end


class Stop:
    """SIGTERM, taken where a checkpoint can be written. All ranks stop after the same update,
    whichever of them was asked.

    Where no checkpoint would be written (`saves` is false), nothing is put off.
    """

    def __init__(self, comm: Comm, saves: bool) -> None:
        self.comm, self.saves = comm, saves
        self.asked, self.asked_at = False, 0.0
        self.wait, self.calls, self.since = 1, 0, time.perf_counter()
        self.earlier: Any = None

    def __enter__(self) -> Stop:
        if self.saves and threading.current_thread() is threading.main_thread():
            self.earlier = signal.signal(signal.SIGTERM, self.take)
        return self

    def __exit__(self, *error: object) -> None:
        if self.earlier is not None:
            signal.signal(signal.SIGTERM, self.earlier)

    def take(self, number: int, frame: FrameType | None) -> None:
        # a scheduler and the processes in between may all hand it on: only one that comes late is
        # somebody's impatience
        if self.asked and time.perf_counter() - self.asked_at > PATIENCE_S:
            raise SystemExit(TERMINATED)
        if not self.asked:
            self.asked, self.asked_at = True, time.perf_counter()

    def now(self) -> bool:
        """Whether to stop here. Every rank has to ask as often as the others."""
        if self.comm.size == 1 or not self.saves:
            return self.asked
        self.calls += 1
        if self.calls < self.wait:
            return False
        taken = (time.perf_counter() - self.since) / self.calls
        (total,) = self.comm.sum([np.array([self.asked, taken], np.float64)])
        # the same sums on every rank, and so the same number of calls until the next look
        self.wait = max(1, min(1000, int(LOOK_S * self.comm.size / max(float(total[1]), 1e-6))))
        self.calls, self.since = 0, time.perf_counter()
        return bool(total[0])
