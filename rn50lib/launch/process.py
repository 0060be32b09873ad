"""What every process of this library needs: its command, its environment, and how it ends."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple, NoReturn

from rn50lib.config import Experiment
from rn50lib.errors import TERMINATED
from rn50lib.launch import launchers

PARENT = "RN50_PARENT"  # tells a rank whose death must be its own
# glibc gives large blocks back to the kernel at every free, and a training step frees its
# activations each time: keeping them spares the page faults. On two cores a step was measured to be
# 10-30 % faster. In huge pages (2 MB instead of 4 kB) their addresses are found faster: 4 to 7 %.
ALLOCATOR = ":".join(
    f"glibc.malloc.{setting}"
    for setting in ("mmap_threshold=4294967296", "trim_threshold=8589934592", "hugetlb=1")
)


class Outcome(NamedTuple):
    """How the workers of a run ended: the exit status for the user, what failed (None: nothing, or
    a lone worker has said it itself), and the ranks that were lost."""

    status: int
    failure: str | None
    lost: tuple[int, ...] = ()


def program(verb: str) -> list[str]:
    """The command that runs `rn50 VERB` with this interpreter, installed or not."""
    return [sys.executable, "-m", "rn50lib.cli", verb]


def with_library(env: dict[str, str]) -> dict[str, str]:
    """The environment in which a child finds this library, also from a bare checkout."""
    here = str(Path(__file__).resolve().parent.parent.parent)
    paths = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]
    if here not in paths:
        env["PYTHONPATH"] = os.pathsep.join([here, *paths])
    return env


def rank_environment(experiment: Experiment) -> dict[str, str]:
    """What every rank's environment gets: threads, allocator, output at once."""
    env = with_library(dict(os.environ))
    env |= {
        PARENT: str(os.getpid()),
        "OMP_NUM_THREADS": str(experiment.threads),
        "MKL_NUM_THREADS": str(experiment.threads),
        "PYTHONUNBUFFERED": "1",
        "KINETO_LOG_LEVEL": env.get("KINETO_LOG_LEVEL", "5"),  # the profiler's own chatter
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # also where no step chooses: others need memory too
        "TF_CPP_MIN_LOG_LEVEL": env.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    } | launchers.environment(experiment)
    if sys.platform == "linux" and "glibc.malloc" not in env.get("GLIBC_TUNABLES", ""):
        env["GLIBC_TUNABLES"] = ":".join(filter(None, [env.get("GLIBC_TUNABLES"), ALLOCATOR]))
    return env


def say(text: str) -> None:
    """A line to the user."""
    print(text, file=sys.stderr, flush=True)


def die_with_parent() -> None:
    """Called by a rank at its start: it ends when the process that launched it dies (Linux)."""
    parent = os.environ.get(PARENT)
    if not parent or sys.platform != "linux":
        return
    set_death_signal = 1  # PR_SET_PDEATHSIG
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
    """Do a worker's work and end its process, without taking the interpreter apart first.

    The threads of a group (Gloo's, DDP's) may still hold Python objects then, and one that lets go
    of its object while the interpreter ends aborts the process: a run that had succeeded would fail
    with "terminate called without an active exception".
    """
    try:
        status = work()
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    with contextlib.suppress(ValueError):  # not in the main thread
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends already: Ctrl-C may come twice
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
