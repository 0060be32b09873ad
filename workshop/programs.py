"""Programs run from a notebook: one of the project's, or your own script on several ranks.

The output appears line by line while the program works; an unexpected failure is an error.
"""

from __future__ import annotations

import itertools
import os
import re
import shlex
import subprocess
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence

from rn50 import launch
from rn50lib import hardware, lifetime
from rn50lib.errors import UserError
from workshop.errors import RunFailed

KEPT_LINES = 80
# what horovodrun makes TensorFlow say, at any TF_CPP_MIN_LOG_LEVEL
NOISE = re.compile(r"I0000 |WARNING: All log messages before absl|To enable the following instr")
FROM_RANK = re.compile(r"\[\d+\] (?!\[frame |.*HorovodInternalError)")  # and no C++ stack
HOROVODRUN_MARK = r"^(\[\d+\])<std(?:out|err)>:"  # before each line of a rank
THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
GRACE_S = 10.0  # between asking a program to end and ending it
MAX_RANKS, RANKS_PER_CORE = 64, 4
LAUNCHERS = ("horovodrun", "torchrun")


def command(
    script: str, arguments: Sequence[object], np: int, launcher: str
) -> tuple[list[str], str, dict[str, str]]:
    """Return Python's arguments that start a script on `np` ranks, the line to show, and variables.

    The launcher is `horovodrun` or `torchrun`, whichever the script is written for. A single rank
    needs no `horovodrun`, so Python itself starts it. The variables are `thread_limits`.

    Raises UserError for an unknown launcher, or if the machine is too small for the ranks.
    """
    worker = [sys.executable, script, *map(str, arguments)]
    if launcher not in LAUNCHERS:
        raise UserError(f"launcher {launcher!r}: there are {', '.join(LAUNCHERS)}")
    check_ranks(np, f"np={np}")
    if launcher == "torchrun":
        words, shown = launch.torchrun(np, worker), f"torchrun --nproc-per-node {np}"
    elif np == 1:
        words, shown = worker, "python"
    else:
        words, shown = launch.horovodrun(np, worker), f"horovodrun -np {np} python"
    return words[1:], f"{shown} {shlex.join(worker[1:])}", thread_limits(np)


def thread_limits(ranks: int) -> dict[str, str]:
    """Return the environment variables that divide the cores among the ranks."""
    return dict.fromkeys(THREADS, str(max(1, hardware.machine().cores // ranks)))


def check_ranks(ranks: int, given: str, least: int = 1) -> None:
    """Raise UserError, beginning with `given`, for a number of ranks that cannot be started."""
    if ranks < least:
        raise UserError(f"{given}: there must be at least {least} rank{'s' * (least > 1)}")
    cores = hardware.machine().cores
    most = min(MAX_RANKS, RANKS_PER_CORE * cores)
    if ranks > most:
        raise UserError(f"{given}: this machine has {cores} cores: use {most} ranks or fewer")


def run(
    words: Sequence[str],
    folder: str | os.PathLike = ".",
    shown: str = "",
    env: Mapping[str, str] | None = None,
) -> None:
    """Run Python with these arguments in `folder`; show its output, and the command as `shown`.

    Raises:
        RunFailed: The exit status is not 0.
    """
    shown = shown or shlex.join(["python", *words]).replace("python -m rn50 ", "rn50 ")
    print(f"$ {shown}", flush=True)
    lines: deque[str] = deque(maxlen=KEPT_LINES)
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=launch.with_library(dict(os.environ)) | {"PYTHONUNBUFFERED": "1"} | dict(env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        for line in process.stdout or ():
            text = re.sub(HOROVODRUN_MARK, r"\1 ", line.decode("utf-8", "replace").rstrip("\n"))
            if not NOISE.match(text):
                print(text, flush=True)
                lines.append(text)
        ended = process.wait()
    finally:  # also when the cell is interrupted: the program ends its own workers
        if process.poll() is None:
            lifetime.stop(process, GRACE_S)
    if ended:
        raise failure(shown.split(" -")[0], ended, lines)


def failure(name: str, status: int, lines: Iterable[str]) -> RunFailed:
    """Return the error for a program that failed, with the last lines that its ranks printed."""
    lines = [re.sub(HOROVODRUN_MARK, r"\1 ", line) for line in lines if not NOISE.match(line)]
    # the launcher's own lines follow, unless it failed itself
    own = list(itertools.takewhile(lambda line: "distributed/elastic" not in line, lines))
    lines = [line for line in own if FROM_RANK.match(line)] or own or lines
    return RunFailed(f"{name} ended with exit status {status}; it said:", "\n".join(lines[-12:]))
