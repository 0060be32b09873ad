"""How a process of a run ends: with its parent, on SIGTERM, and without a crash at its last moment.

`Stop` is how the workers of a run agree on the update after which they stop.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any, NoReturn

import numpy as np

from rn50lib.distributed import Comm
from rn50lib.errors import TERMINATED

PARENT = "RN50_PARENT"  # the number of the process whose death ends this one
PATIENCE_S = 10.0  # a SIGTERM that comes so long after the first one ends a run at once
LOOK_S = 1.0  # about so often the workers ask each other whether one was asked to end


def die_with_parent() -> None:
    """Called by a worker at its start: it ends when the process that started it dies (Linux)."""
    parent = os.environ.get(PARENT)
    if not parent or sys.platform != "linux":
        return
    set_death_signal = 1  # PR_SET_PDEATHSIG; `rank.follow_parent` is for programs without NumPy
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # it died before we asked
        sys.exit("error: the launching process is gone")


def end_on_sigterm() -> None:
    """From now on SIGTERM ends this process in good order, with status 143: what it has opened is
    closed, and its children are ended."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)  # once is enough
        raise SystemExit(TERMINATED)

    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)


def end_with(work: Callable[[], int]) -> NoReturn:
    """Do a worker's work and end its process without finalizing the interpreter.

    Gloo's threads run as long as anything refers to their group. One that releases a tensor while
    the interpreter is finalized aborts the process ("terminate called without an active
    exception"). A script ends them by dropping every reference to the group. A worker that fails
    must not: the group would first wait for its peers, up to its timeout, and the launcher learns
    of the failure only when the process ends.
    """
    status = 1

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)

    def interrupted(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # it ends: Ctrl-C may come twice, from a launcher too
        raise KeyboardInterrupt

    atexit.register(leave)  # the first to be registered is the last to run
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupted)
    try:
        status = work()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    except KeyboardInterrupt:  # between two pieces of work, which take it themselves
        status = 130
    finally:
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)


class Stop:
    """SIGTERM, taken where a checkpoint can be written. All ranks stop after the same update,
    whichever of them was asked.

    Where no checkpoint would be written (`saves` is false), nothing is put off.
    """

    def __init__(self, comm: Comm, saves: bool) -> None:
        self.comm, self.saves = comm, saves
        self.requested, self.requested_at = False, 0.0
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
        if self.requested and time.perf_counter() - self.requested_at > PATIENCE_S:
            raise SystemExit(TERMINATED)
        if not self.requested:
            self.requested, self.requested_at = True, time.perf_counter()

    def now(self) -> bool:
        """Whether to stop here. Every rank has to ask as often as the others."""
        if self.comm.size == 1 or not self.saves:
            return self.requested
        self.calls += 1
        if self.calls < self.wait:
            return False
        taken = (time.perf_counter() - self.since) / self.calls
        (total,) = self.comm.sum([np.array([self.requested, taken], np.float64)])
        # the same sums on every rank, and so the same number of calls until the next look
        self.wait = max(1, min(1000, int(LOOK_S * self.comm.size / max(float(total[1]), 1e-6))))
        self.calls, self.since = 0, time.perf_counter()
        return bool(total[0])
