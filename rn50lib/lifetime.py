"""The life of a run's processes: SIGTERM, Ctrl-C, the death of the parent, and workers' records.

`python -m rn50lib.lifetime COMMAND...` is the parent of a worker, which records the signal that
killed it. Standard library only: this file is also loaded into scripts that do not use the library.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import json
import multiprocessing
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any, NoReturn

PARENT = "RN50_PARENT"  # the number of the process whose death ends this one
GROUP = "RN50_GROUP"  # HOST:PID:FOLDER: the program that started this worker, and its records
SUPERVISED = [sys.executable, "-S", "-m", "rn50lib.lifetime"]  # and the command of a worker
EXCHANGE_S = 1.0  # seconds, about, between two exchanges of whether a rank has received SIGTERM
GRACE_S = 4.0  # from SIGTERM to the end of a worker that waits for other ranks
ANNOUNCED_S = 5.0  # a longer wait for other ranks is announced
POLL_S = 0.25


# --- the death of the parent ----------------------------------------------------------------------


def end_with_parent() -> None:
    """Have the kernel send this process SIGTERM when its parent dies (Linux)."""
    if sys.platform == "linux":
        set_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM, 0, 0, 0)


def die_with_parent() -> None:
    """Have the kernel send this process SIGTERM when its parent dies, or exit if it is gone."""
    if parent := os.environ.get(PARENT):
        end_with_parent()
        if os.getppid() != int(parent):  # it died before the call
            sys.exit("error: the launching process is gone")


def end_with_creator() -> None:
    """End this multiprocessing worker with its creator: its parent may be a fork server."""

    def wait(creator: Any) -> None:
        creator.join()
        os._exit(1)

    if (creator := multiprocessing.parent_process()) is not None:
        threading.Thread(target=wait, args=(creator,), daemon=True).start()


def is_running(pid: int) -> bool:
    """Return False if the process is gone or, on Linux, a zombie."""
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OverflowError:  # no process has such a number
        return False
    except OSError as error:  # macOS has no /proc
        return not isinstance(error, ProcessLookupError)


# --- SIGTERM and Ctrl-C ---------------------------------------------------------------------------


terminated = False  # in the middle of an import, Python replaces the exception of SIGTERM


def end_on_sigterm() -> None:
    """Let SIGTERM raise SystemExit with status 143, so that files are closed and children ended."""

    def end(number: int, frame: FrameType | None) -> None:
        global terminated
        terminated = True
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        signal.signal(signal.SIGTERM, end)


def stop(process: subprocess.Popen, seconds: float) -> int:
    """End a child by SIGTERM, or after some seconds by SIGKILL; return its exit status."""
    process.terminate()
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def end_with(work: Callable[[], int]) -> NoReturn:
    """Do the work and end the process with its status, without finalizing the interpreter.

    A thread of Gloo that releases a tensor during finalization aborts the process ("terminate
    called without an active exception"), and closing the group first would make a failed worker
    wait for its peers. A thread that starts only then crashes the process, because Python has freed
    its state; SIGTERM can arrive while one is being started.
    """
    from rn50lib.files import escape_unprintable

    status = 1
    escape_unprintable()

    def leave() -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(status)

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        signal.signal(number, signal.SIG_IGN)  # a terminal and a launcher may both send Ctrl-C
        raise KeyboardInterrupt

    # runs after all handlers that are registered later; earlier ones never run
    atexit.register(leave)
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
        Wait.current = Wait()  # Horovod's end waits for the other ranks
        for child in multiprocessing.active_children():  # a loader's, after an error: they ignore
            child.kill()  # SIGTERM, and Python's end would wait for them
    sys.exit(status)


class Preemption:
    """SIGTERM, recorded when it comes and obeyed after the next update.

    All ranks of `comm` stop after the same update, whichever of them received the signal. If the
    run cannot write a checkpoint (`saves` is false), the signal keeps its earlier handler.
    """

    def __init__(self, comm: Any, saves: bool) -> None:
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
        """Return True, on all ranks, if any received SIGTERM. All must call this equally often."""
        if self.comm.size == 1 or not self.saves:
            return self.requested
        self.calls += 1
        if self.calls < self.wait:
            return False
        seconds = (time.perf_counter() - self.since) / self.calls
        total = self.comm.sum([float(self.requested), seconds])
        # the sums are equal on all ranks, and so is the number of calls until the next exchange
        each = max(float(total[1]), 1e-6) / self.comm.size
        self.wait = max(1, min(1000, int(EXCHANGE_S / each)))
        self.calls, self.since = 0, time.perf_counter()
        return bool(total[0])


# --- waits for other ranks ------------------------------------------------------------------------


class Wait:
    """A wait for other ranks, which begins now; `whom` returns for whom if it is to be announced.

    A context manager that marks the wait for the thread of `watch_waits`. Waits may be nested.
    The class holds the current wait of this process, and how long its longest update and its
    longest failed wait took.
    """

    current: Wait | None = None
    longest = failed = 0.0

    def __init__(self, whom: Callable[[], str] | None = None) -> None:
        self.whom, self.since, self.announced = whom, time.monotonic(), False
        self.outer: Wait | None = None

    def __enter__(self) -> Wait:
        self.outer, Wait.current = Wait.current, self
        return self

    def __exit__(self, kind: Any, error: object, trace: object) -> None:
        seconds = time.monotonic() - self.since
        if kind is None and self.whom is None:
            Wait.longest = max(Wait.longest, seconds)
        elif kind is not None:
            Wait.failed = max(Wait.failed, seconds)
        Wait.current = self.outer


def _watch(reader: int) -> NoReturn:
    """Announce long waits, and end this process if it still waits some time after SIGTERM."""
    terminated = None
    while True:
        if select.select([reader], [], [], POLL_S)[0]:
            if signal.SIGTERM in os.read(reader, 64):
                terminated = time.monotonic()
        wait, now = Wait.current, time.monotonic()
        if wait is None:
            continue
        # a wait for this rank's own long update is not one for a rank that is gone
        if terminated and now - max(terminated, wait.since) > max(GRACE_S, 3 * Wait.longest):
            print("ended by SIGTERM while waiting for other ranks", file=sys.stderr, flush=True)
            status = 128 + signal.SIGTERM
            record_end(status)
            os._exit(status)
        late = now - wait.since > max(ANNOUNCED_S, 3 * Wait.longest)
        if wait.whom and late and not wait.announced:
            wait.announced = True
            print(f"waiting for {wait.whom()}", file=sys.stderr, flush=True)


def watch_waits() -> None:
    """Start the thread that watches this worker's waits.

    Python's signal handlers do not run in a call of C++ that waits; the kernel's wake-up does.
    """
    if threading.current_thread() is threading.main_thread() and signal.set_wakeup_fd(-1) == -1:
        reader, writer = os.pipe()
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        threading.Thread(target=_watch, args=(reader,), daemon=True).start()


# --- the records of workers -----------------------------------------------------------------------

_records = ""  # where this worker leaves records: FOLDER/RANK, once it has registered


def register(rank: int) -> None:
    """End this worker with its parent, and leave its pid for the program that started it.

    Does nothing in other processes. Raises SystemExit if that program is already gone.
    """
    global _records
    if GROUP not in os.environ:
        return
    host, pid, folder = os.environ.pop(GROUP).split(":", 2)  # this process's children are none
    _records = os.path.join(folder, str(rank))
    end_with_parent()
    if host == socket.gethostname() and not (is_running(int(pid)) and os.path.isdir(folder)):
        sys.exit("error: the program that started this worker is gone")
    _write("started", {"host": socket.gethostname(), "pid": os.getpid()})


@contextlib.contextmanager
def registered(rank: int) -> Iterator[None]:
    """Register this worker and record how the block ends; its starter prints an expected error."""
    from rn50lib.errors import expected

    register(rank)
    try:
        yield
    except SystemExit as error:
        record_end(error.code if isinstance(error.code, int) else 1, str(error.code))
        raise
    except KeyboardInterrupt:
        record_end(130)
        raise
    except Exception as error:
        if (line := expected(error)) is None:
            record_end(1, traceback.format_exc())
        elif record_end(2, line.args[0], line.remedy):
            raise SystemExit(2) from error
        raise
    record_end(0)


def record_end(
    status: int, text: str = "", remedy: tuple[str, ...] = (), killed_by: int = 0
) -> bool:
    """Leave the end of this worker for the program that started it; return whether it is written.

    That is its exit status, its error with the key of a remedy or its traceback, the signal that
    killed it, and for how many seconds it had waited for the other ranks if that failed.
    """
    return bool(_records) and _write("ended", {
        "status": status, "time": time.time(), "text": text, "remedy": remedy,
        "signal": killed_by, "waited": Wait.failed,
    })  # fmt: skip


def _write(kind: str, content: dict[str, object]) -> bool:
    path = f"{_records}.{kind}"
    try:
        with open(f"{path}.{os.getpid()}.tmp", "w", encoding="utf-8") as file:
            json.dump(content, file)
        os.replace(file.name, path)
    except OSError:  # a folder that this host does not have
        return False
    return True


# --- the parent of a worker -----------------------------------------------------------------------


def supervise(command: list[str]) -> int:
    """Run a worker to its end and return its status; write its record if it left none.

    Launchers differ in how they report a signal, and the kernel tells the parent alone. SIGTERM,
    which also comes when the launcher dies, is passed on. An abort after a recorded success
    does not count: a thread of Gloo that outlives the interpreter's objects may abort a process
    that is done.
    """
    global _records
    worker: subprocess.Popen | None = None
    received: list[int] = []

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if worker is not None:
            worker.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    end_with_parent()
    worker = subprocess.Popen(command)
    for early in received:  # before there was a worker
        worker.send_signal(early)
    ended = worker.wait()
    status = ended if ended >= 0 else 128 - ended
    _records = _records_of(worker.pid)
    if not _records:
        return status
    try:
        with open(f"{_records}.ended", encoding="utf-8") as file:
            succeeded = json.load(file)["status"] == 0
    except FileNotFoundError:
        record_end(status or 1, killed_by=max(0, -ended))
        return status
    return 0 if succeeded and ended == -signal.SIGABRT else status


def _records_of(pid: int) -> str:
    """Return where a worker of this host leaves its records, or nothing if it has not begun."""
    folder = os.environ.get(GROUP, "::").split(":", 2)[2]
    me = {"host": socket.gethostname(), "pid": pid}
    with contextlib.suppress(OSError, ValueError):
        for name in os.listdir(folder or os.devnull):
            path = os.path.join(folder, name)
            if name.endswith(".started"):
                with open(path, encoding="utf-8") as file:
                    if json.load(file) == me:
                        return path.removesuffix(".started")
    return ""


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[1:]))
