"""The end of a run's processes by SIGTERM, Ctrl-C or the death of their parent."""

from __future__ import annotations

import atexit
import contextlib
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
from rn50lib.distributed.launch_env import end_with_parent
from rn50lib.errors import TERMINATED

PARENT = "RN50_PARENT"  # the number of the process whose death ends this one
EXCHANGE_S = 1.0  # seconds, about, between two exchanges of whether a rank has received SIGTERM


class Preemption:
    """SIGTERM, recorded when it comes and obeyed after the next update.

    All ranks stop after the same update, whichever of them received the signal. If the run cannot
    write a checkpoint (`saves` is false), the signal keeps its earlier handler.
    """

    def __init__(self, comm: Comm, saves: bool) -> None:
        self.comm, self.saves = comm, saves
        self.requested = False
        self.wait, self.calls, self.since = 1, 0, time.perf_counter()
        self.earlier_handler: Any = None

    def __enter__(self) -> Preemption:
        if self.saves and threading.current_thread() is threading.main_thread():
            self.earlier_handler = signal.signal(signal.SIGTERM, self.on_sigterm)
        return self

    def __exit__(self, *error: object) -> None:
        if self.earlier_handler is not None:
            signal.signal(signal.SIGTERM, self.earlier_handler)

    def on_sigterm(self, number: int, frame: FrameType | None) -> None:
        """Record the request; a scheduler and a launcher may both send it."""
        self.requested = True

    def should_stop(self) -> bool:
        """Return True, on all ranks alike, if any rank received SIGTERM.

        Every rank must call this equally often.
        """
        if self.comm.size == 1 or not self.saves:
            return self.requested
        self.calls += 1
        if self.calls < self.wait:
            return False
        seconds = (time.perf_counter() - self.since) / self.calls
        (total,) = self.comm.sum([np.array([self.requested, seconds], np.float64)])
        # the sums are equal on all ranks, and so is the number of calls until the next exchange
        each = max(float(total[1]), 1e-6) / self.comm.size
        self.wait = max(1, min(1000, int(EXCHANGE_S / each)))
        self.calls, self.since = 0, time.perf_counter()
        return bool(total[0])


def die_with_parent() -> None:
    """Have the kernel send this process SIGTERM when `rn50 run` dies, or exit if it is gone."""
    if parent := os.environ.get(PARENT):
        end_with_parent()
        if os.getppid() != int(parent):  # it died before the call
            sys.exit("error: the launching process is gone")


def end_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit with status 143, so that files are closed and children ended."""

    def end(number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(TERMINATED)

    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)


def end_with(work: Callable[[], int]) -> NoReturn:
    """Do the work and end the process with its status, without finalizing the interpreter.

    A thread of Gloo that releases a tensor during finalization aborts the process ("terminate
    called without an active exception"), and closing the group first would make a failed worker
    wait for its peers.
    """
    status = 1

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # a terminal and a launcher may both send Ctrl-C
        raise KeyboardInterrupt

    atexit.register(leave)  # the first to be registered is the last to run
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
    try:
        status = work()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        raise
    except KeyboardInterrupt:
        status = 130
    finally:
        with contextlib.suppress(ValueError):  # not in the main thread
            signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.exit(status)
