"""Whether other processes used the machine while a run was timed: such a timing is marked.

    with Contention() as others:
        ...                     # what is timed
        others.found()          # ["other processes used 41 % of the cores …"], [] if none did,
                                # None if nobody could look

On a processor: what all processes used of this run's cores, less what its own did. On a GPU: the
processes that the driver saw at work there, looked at every few seconds.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from rn50lib import nvidia
from rn50lib.hardware import ROOT, machine
from rn50lib.rank import LAUNCHING

try:
    import psutil
except ImportError:  # a bare checkout with PyTorch alone: nothing is known of other processes
    psutil = None  # type: ignore[assignment]

PARENT = "RN50_PARENT"
OTHERS_SHARE = 0.10  # of the cores' time: kernel threads and an open notebook stay well below
IDLE_SHARE = 0.25  # with more of the cores idle than this, nobody had to wait for one
BUSY_PERCENT = 5  # of a GPU: a notebook that only holds memory there disturbs nobody
LOOK_S = 5.0  # between two looks at the GPUs
SHORTEST_S = 0.5  # the kernel counts in hundredths of a second


@dataclass(frozen=True)
class Used:
    """Core-seconds since the machine, or the process, was started."""

    all: float  # of the run's cores, by whatever process, and by other virtual machines
    idle: float
    own: float  # by the run's own processes, on whatever core


class Contention:
    """See the head of this file. Costs a few readings of /proc, and on a GPU a look now and then.
    Of many ranks one looks: to the others `looks` is False, and they find nothing."""

    def __init__(self, looks: bool = True, root: Path = ROOT) -> None:
        self.root, self.first = root, used(root) if looks else None
        self.indexes = [gpu.index for gpu in machine().gpus] if looks else []
        self.pids: set[int] = set()  # others that were at work on a GPU
        self.looked = 0  # times
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.look, daemon=True)

    def __enter__(self) -> Contention:
        if self.indexes:
            self.thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.ended.set()

    def look(self) -> None:
        """Look at the GPUs until the timing is over."""
        while not self.ended.is_set():
            rows = nvidia.at_work(BUSY_PERCENT)
            self.pids |= strangers([row for row in rows if row[0] in self.indexes])
            self.looked += 1
            self.ended.wait(LOOK_S)

    def found(self) -> list[str] | None:
        """What has disturbed the timing so far, a line each; None where nothing is known of it."""
        lines: list[str] | None = [] if self.looked else None
        if self.pids:
            names = ", ".join(map(str, sorted(self.pids)))
            lines = [f"other processes used the GPU while it was timed (pid {names})"]
        now = used(self.root)
        if self.first is not None and now is not None:
            on_cores = cores(self.first, now)
            lines = on_cores if lines is None else lines + (on_cores or [])
        return lines


def cores(first: Used, now: Used) -> list[str] | None:
    """A line if other processes used a considerable share of the cores between two readings; None
    where these are too close together to tell."""
    everything, idle = now.all - first.all, now.idle - first.idle
    total = everything + idle
    if total < SHORTEST_S:
        return None
    others = (everything - (now.own - first.own)) / total
    if others < OTHERS_SHARE or idle / total > IDLE_SHARE:
        return []
    return [f"other processes used {100 * others:.0f} % of the cores while it was timed"]


def used(root: Path = ROOT) -> Used | None:
    """A reading; None where the system does not tell (macOS), or without psutil."""
    if psutil is None:
        return None
    try:
        run = psutil.Process(head())
        mine = set(os.sched_getaffinity(run.pid))
        lines = (root / "proc/stat").read_text().splitlines()
        own = sum(seconds(process) for process in (run, *run.children(recursive=True)))
    except (OSError, AttributeError, psutil.Error):
        return None
    everything = idle = 0.0
    tick = os.sysconf("SC_CLK_TCK")
    for line in lines:
        name, *numbers = line.split()
        if name[:3] == "cpu" and name[3:].isdigit() and int(name[3:]) in mine:
            # user nice system idle iowait irq softirq steal; guests are part of user
            values = [int(number) / tick for number in numbers[:8]]
            rest = values[3] + values[4]
            idle, everything = idle + rest, everything + sum(values) - rest
    return Used(everything, idle, own)


def seconds(process: psutil.Process) -> float:
    """Core-seconds of a process and of those of its children that have ended."""
    with contextlib.suppress(psutil.Error):
        told = process.cpu_times()
        return told.user + told.system + told.children_user + told.children_system
    return 0.0


def head() -> int:
    """The process under which all of this run's are: `rn50 run`, or this one alone."""
    host, _, pid = os.environ.get(LAUNCHING, "").rpartition(":")
    if host == socket.gethostname():
        return int(pid)
    return int(os.environ.get(PARENT) or os.getpid())


def strangers(rows: Sequence[tuple[int, int]]) -> set[int]:
    """Those of the processes (GPU, pid) at work on this run's GPUs that are not the run's.

    Inside a container the driver may tell pids of the machine, which mean nothing there: then one
    process on each GPU is taken to be the run's.
    """
    own = family()
    found: set[int] = set()
    for gpu in {row[0] for row in rows}:
        pids = [pid for index, pid in rows if index == gpu]
        others = [pid for pid in pids if pid not in own]
        found |= set(others if len(others) < len(pids) else others[1:])
    return found


def family() -> Collection[int]:
    """The pids of this run's processes."""
    if psutil is None:
        return {os.getpid()}
    try:
        run = psutil.Process(head())
        return {run.pid, *(child.pid for child in run.children(recursive=True))}
    except psutil.Error:
        return {os.getpid()}
