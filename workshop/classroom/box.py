"""The closed process in which a learner's code runs.

    box = Box(...); pid = box.start(function)   # function() runs inside, and never returns here

Inside there are a home of its own, limits on memory, processes and files, and, where the machine
allows it, no network, no other process and no file of anybody else. What a machine does not allow
is left out; `probe` tries out what is left.
"""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from pathlib import Path

from workshop.classroom import kernel, view

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """`seconds` for one exercise, `memory` bytes beyond what the frameworks take, and so on."""

    seconds: float = 20.0
    memory: int = 2048 * MIB
    processes: int = 256
    file_size: int = 64 * MIB
    disk: int = 256 * MIB


@dataclass(frozen=True)
class Box:
    """How to close a process. `root` is an empty folder for its files, `user` the number of the
    account that it gets where the grader is root; `shown` is what it may read, without what
    of it is `hidden`."""

    root: Path
    limits: Limits
    user: int = 64_000
    shown: list[Path] = field(default_factory=list)
    hidden: list[Path] = field(default_factory=list)

    def start(self, inside: Callable[[], object], keep: tuple[int, ...] = ()) -> int:
        """Fork; the child closes itself in, keeps the open files `keep`, runs `inside` and ends."""
        sys.stdout.flush()
        sys.stderr.flush()
        pid = os.fork()
        if pid:
            return pid
        try:
            self.close_in(keep)
            inside()
        finally:
            os._exit(0)

    def close_in(self, keep: tuple[int, ...]) -> None:
        """Close this process in. Returns in a child of it, where there are namespaces."""
        kernel_says(os.setsid)
        kernel_says(kernel.control, kernel.PARENT_DEATH_SIGNAL, signal.SIGKILL)
        _close_files(keep)
        own_files, alone = self._namespaces()
        if alone:
            _fork_once()
        if own_files:
            user = os.geteuid() or self.user
            view.build(self.root, self.shown, self.hidden, self.limits.disk, user)
            home = view.HOME
        else:
            home = self.root / "home"
        home.mkdir(parents=True, exist_ok=True)
        self._become(home, own_files)
        self._set_limits()
        _own_environment(home)

    def _namespaces(self) -> tuple[bool, bool]:
        """(own files, own processes), as far as this machine allows."""
        flags = kernel.NEW_MOUNTS | kernel.NEW_PIDS | kernel.NEW_NETWORK
        flags |= kernel.NEW_IPC | kernel.NEW_NAMES
        uid, gid = os.geteuid(), os.getegid()
        if uid:
            if not kernel_says(kernel.unshare, flags | kernel.NEW_USER):
                return False, False
            Path("/proc/self/setgroups").write_text("deny")
            Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
            Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
            kernel_says(kernel.raise_loopback)
            return True, True
        alone = kernel_says(kernel.unshare, flags)
        if alone or kernel_says(kernel.unshare, kernel.NEW_NETWORK):
            kernel_says(kernel.raise_loopback)
        return alone, alone

    def _become(self, home: Path, own_files: bool) -> None:
        """Another user where that is possible, and nobody who could become more."""
        if os.geteuid() == 0 and (own_files or _others_can_read()):
            os.chown(home, self.user, self.user)
            os.setgroups([])
            os.setresgid(self.user, self.user, self.user)
            os.setresuid(self.user, self.user, self.user)
        elif os.geteuid() and own_files:
            kernel_says(kernel.drop_capabilities)
        kernel_says(kernel.control, kernel.NO_NEW_PRIVILEGES, 1)
        kernel_says(kernel.control, kernel.PARENT_DEATH_SIGNAL, signal.SIGKILL)

    def _set_limits(self) -> None:
        limits = self.limits
        data = _status("VmData")
        wanted = {
            resource.RLIMIT_DATA: data + limits.memory,
            resource.RLIMIT_FSIZE: limits.file_size,
            resource.RLIMIT_NPROC: limits.processes,
            resource.RLIMIT_CORE: 0,
            resource.RLIMIT_NOFILE: 512,
            resource.RLIMIT_CPU: int(8 * limits.seconds) + 1,
        }
        for which, value in wanted.items():
            _, most = resource.getrlimit(which)
            value = value if most == resource.RLIM_INFINITY else min(value, most)
            with contextlib.suppress(ValueError, OSError):
                resource.setrlimit(which, (value, value))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # an error in the learner's line instead


def limit_data(size: int) -> None:
    """Let this process take `size` bytes more than it has; what it starts may be given less."""
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    value = _status("VmData") + size
    if most == resource.RLIM_INFINITY or value < most:
        resource.setrlimit(resource.RLIMIT_DATA, (value, most))


def kernel_says(call: Callable[..., object], *args: object) -> bool:
    """Whether a call is allowed here; it has been made then."""
    try:
        call(*args)
    except OSError:
        return False
    return True


def _fork_once() -> None:
    """Go on in a child: the first process of its namespace, whose end is the end of all others."""
    pid = os.fork()
    if pid:
        os.closerange(3, 1024)
        _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        os._exit(code if code >= 0 else 128 - code)


def _close_files(keep: tuple[int, ...]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    for entry in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else range(1024):
        if int(entry) > 2 and int(entry) not in keep:
            with contextlib.suppress(OSError):
                os.close(int(entry))


def _others_can_read() -> bool:
    """Whether a process of another user could still import the library and Python."""
    needed = [Path(__file__).resolve(), *map(Path, (sys.prefix, sys.base_prefix))]
    return all(
        path.stat().st_mode & (1 if path.is_dir() else 4)
        for place in needed
        for path in (place, *place.parents)
    )


def _own_environment(home: Path) -> None:
    """Nothing of the grader's: not its variables, not its folder."""
    kept = {name: value for name, value in os.environ.items() if name in KEPT}
    os.environ.clear()
    os.environ.update(
        kept, HOME=str(home), TMPDIR=str(home), USER="learner", LOGNAME="learner",
        RN50_RUNS=str(home / "runs"), RN50_CHECK="record", MPLBACKEND="agg",
    )  # fmt: skip
    tempfile.tempdir = None
    os.chdir(home)


KEPT = ("PATH", "LANG", "LC_ALL", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "RN50_DATA",
        "TF_CPP_MIN_LOG_LEVEL", "LD_LIBRARY_PATH", "PYTHONHASHSEED")  # fmt: skip


def _status(name: str, pid: int | str = "self") -> int:
    """A size in bytes from /proc; 0 where it cannot be read."""
    try:
        text = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(rf"^{name}:\s+(\d+) kB", text, re.M)
    return int(found[1]) * 1024 if found else 0


def children(pid: int) -> list[int]:
    """The processes below one, all generations."""
    import psutil

    try:
        return [child.pid for child in psutil.Process(pid).children(recursive=True)]
    except psutil.Error:
        return []


def end_children(but: Collection[int] = ()) -> None:
    """End every process below this one, also those that tried to get away (this process must be
    their subreaper), except the children `but` and what is below those."""
    import psutil

    for _ in range(200):
        left = [child for child in psutil.Process().children() if child.pid not in but]
        for pid in [*(child.pid for child in left), *(p for c in left for p in children(c.pid))]:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for child in left:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child.pid, os.WNOHANG)
        if not left:
            return
        time.sleep(0.01)


def own_memory(pid: int | str = "self") -> int:
    """Bytes that a process holds for itself, or in shared memory."""
    return _status("RssAnon", pid) + _status("RssShmem", pid)
