"""Two programs at the same time on the same cores, and the processor's time that each one takes.

Interleaved rounds compare two programs at different moments, and a machine that is shared with
others may be a third faster in one than in the next. Side by side, whatever slows one down slows
the other, too: the ratio of their times is good to a hundredth within a minute. It is the ratio of
their speeds wherever the processor is all that they wait for.
"""

from __future__ import annotations

import os
import signal
import statistics
import subprocess
import threading
import time

import psutil

from rn50lib.errors import UserError


class Program:
    """A process group that prints a line each time it has done one more share of its work."""

    def __init__(self, command: list[str], env: dict[str, str], mark: str) -> None:
        self.mark = mark
        self.seen: list[float] = []  # processor seconds at each line
        self.process = subprocess.Popen(
            command, env=env | {"PYTHONUNBUFFERED": "1"}, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL, text=True, start_new_session=True,
        )  # fmt: skip
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()

    def watch(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if self.mark in line:
                self.seen.append(self.used())

    def used(self) -> float:
        """Processor seconds of the process and of all below it that live."""
        total = 0.0
        try:
            leader = psutil.Process(self.process.pid)
            for one in (leader, *leader.children(recursive=True)):
                total += sum(one.cpu_times()[:2])
        except psutil.NoSuchProcess:
            pass
        return total

    def stop(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


def seconds_a_share(programs: list[Program], seconds: float) -> list[float]:
    """Processor seconds that each program takes for a share, from the moment on when all are at
    work. Raises UserError when one ends early."""
    try:
        while min(len(one.seen) for one in programs) < 2:  # the first share holds the start-up
            check(programs)
            time.sleep(0.1)
        first = [len(one.seen) - 1 for one in programs]
        time.sleep(seconds)
        while min(len(one.seen) - at for one, at in zip(programs, first, strict=True)) < 2:
            check(programs)
            time.sleep(0.1)
        taken = [one.seen[at:] for one, at in zip(programs, first, strict=True)]
        return [statistics.fmean(b - a for a, b in zip(t, t[1:], strict=False)) for t in taken]
    finally:
        for one in programs:
            one.stop()


def check(programs: list[Program]) -> None:
    for one in programs:
        if one.process.poll() is not None:
            raise UserError(f"{' '.join(map(str, one.process.args))}: it ended early")
