"""All processes that a notebook started, found by a mark in their environment and ended together.

A process group or a list of children is not enough: a kernel, its runs and their workers each start
a new session, and a child whose parent died has no parent to find it by.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time

import psutil

MARK = "RN50_NOTEBOOK_RUN"  # environment variable that every descendant inherits
GRACE_S = 5.0


def marked(mark: str) -> list[psutil.Process]:
    """Return the living processes that carry `mark`, except this one."""
    found = []
    for process in psutil.process_iter():
        try:
            alive = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(MARK) == mark:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # it has ended, or belongs to a different user
    return found


def end(mark: str) -> None:
    """End all processes that carry `mark`: SIGTERM first, then SIGKILL."""
    deadline = time.monotonic() + GRACE_S
    while processes := marked(mark):
        late = time.monotonic() > deadline
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(signal.SIGKILL if late else signal.SIGTERM)
        if time.monotonic() > deadline + GRACE_S:
            break
        psutil.wait_procs(processes, timeout=0.5)
