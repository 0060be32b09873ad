"""Programs run from a notebook: one of the project's, or your own script on several ranks.

The output appears line by line while the program works; an unexpected failure is an error.
"""

from __future__ import annotations

import os
import queue
import re
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import IO

from rn50 import launch
from rn50lib import hardware
from rn50lib.errors import UserError
from workshop import output
from workshop.errors import RunFailed

QUIET_S = 3.0  # while a program says nothing, the seconds are shown this often
KEPT_LINES = 80
HOROVODRUN_MARK = r"^(\[\d+\])<std(?:out|err)>:"  # before each line of a rank
THREADS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS")
GRACE_S = 10.0  # between asking a program to end and ending it
# What TensorFlow 2.21 prints at its start whatever TF_CPP_MIN_LOG_LEVEL is, and deprecations
STARTUP_NOTE = re.compile(
    r"WARNING: All log messages before absl::|I\d{4} |\d{4}-\d\d-\d\d \S+ I "
    r"|WARNING:tensorflow:From .* deprecated"
)


def program(
    module: str, *arguments: object, folder: str | os.PathLike = ".", status: int = 0
) -> None:
    """Run `python -m MODULE ARGUMENTS...` in `folder`; show the command and its output.

    Raises:
        RunFailed: The exit status is not `status`; set it in a lesson that shows an error.
    """
    words = [os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in arguments]
    name = ["rn50"] if module == "rn50" else ["python", "-m", module]
    run(["-m", module, *words], shlex.join([*name, *words]), folder, status)


def run_script(
    script: str | os.PathLike,
    *arguments: object,
    np: int = 1,
    launcher: str = "horovodrun",
    env: Mapping[str, str] | None = None,
    status: int = 0,
) -> list[str]:
    """Run your own script on `np` ranks, show what it prints and return the last lines.

    The launcher is `horovodrun` or `torchrun`, whichever the script is written for; with `np=1` it
    is Python itself. The ranks share this machine's cores, and the script runs in its own folder.

    Raises:
        RunFailed: The exit status is not `status`.
        UserError: The launcher is unknown.
    """
    path = Path(script).resolve()
    end = [path.name, *map(str, arguments)]
    if launcher not in LAUNCHERS:
        raise UserError(f"launcher {launcher!r}: there are {', '.join(LAUNCHERS)}")
    words, shown = LAUNCHERS[launcher](np) if np > 1 else ([], "python ")
    threads = str(max(1, hardware.machine().cores // np))
    ours = dict.fromkeys(THREADS, threads) | {"TF_CPP_MIN_LOG_LEVEL": "3"} | dict(env or {})
    python = [sys.executable] if launcher == "horovodrun" and np > 1 else []
    return run([*words, *python, *end], f"{shown}{shlex.join(end)}", path.parent, status, ours)


def horovodrun(np: int) -> tuple[list[str], str]:
    """Return Python's arguments that start Horovod's launcher, and the command to show."""
    words = ["-m", "horovod.runner.launch", "--gloo", "--disable-cache", "-np", str(np)]
    shown = f"horovodrun -np {np} python "
    return [*words, "-H", f"localhost:{np}", "--network-interface", "lo"], shown


def torchrun(np: int) -> tuple[list[str], str]:
    """Return Python's arguments that start PyTorch's launcher, and the command to show."""
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(np)]
    return words, f"torchrun --nproc-per-node {np} "


LAUNCHERS = {"horovodrun": horovodrun, "torchrun": torchrun}


def run(
    words: Sequence[str],
    shown: str,
    folder: str | os.PathLike = ".",
    status: int = 0,
    env: Mapping[str, str] | None = None,
) -> list[str]:
    """Run Python with these arguments, under the name `shown`, as `program` does.

    Returns the last lines that it printed.
    """
    lines: list[str] = []
    is_note = note_filter()
    slot = output.Slot()

    def show(*more: str) -> None:
        text = "\n".join([*lines, *more])
        html = f"<b>$ {escape(shown)}</b>\n{escape(text)}"
        html = f'<pre style="white-space:pre-wrap;background:none">{html}</pre>'
        slot.html(html, "\n".join([f"$ {shown}", *lines, *more]))

    show()
    process = subprocess.Popen(
        [sys.executable, *words],
        cwd=folder,
        env=launch.with_library(dict(os.environ)) | {"PYTHONUNBUFFERED": "1"} | dict(env or {}),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    begin = time.monotonic()
    try:
        printed = lines_of(process.stdout)
        while True:
            try:
                line = printed.get(timeout=QUIET_S)
            except queue.Empty:
                show(f"({time.monotonic() - begin:.0f} s)")
                continue
            if not line:
                break
            text = re.sub(HOROVODRUN_MARK, r"\1 ", line.decode("utf-8", "replace").rstrip("\n"))
            if not is_note(text):
                lines = [*lines, text][-KEPT_LINES:]
                show()
        ended = process.wait()
    finally:  # also when the cell is interrupted: the program ends its own workers
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
    if ended != status:
        raise RunFailed(
            f"{shown.split(' -')[0]} ended with exit status {ended} where {status} was expected;"
            " it said:",
            "\n".join(([line for line in lines if line.startswith("[")] or lines)[-12:]),
        )
    return lines


def note_filter() -> Callable[[str], bool]:
    """Return a function that is true for TensorFlow's start-up notes and deprecations.

    Call it with every line in turn: the line after "Instructions for updating:" of the same rank
    is part of the deprecation.
    """
    instructions: set[str] = set()  # ranks whose next line is the instruction itself

    def is_note(line: str) -> bool:
        rank, text = re.findall(r"^(\[\d+\] ?|)(.*)", line)[0]
        if text.startswith("Instructions for updating:"):
            instructions.add(rank)
            return True
        if STARTUP_NOTE.match(text):
            return True
        if rank in instructions:
            instructions.discard(rank)
            return True
        return False

    return is_note


def lines_of(stream: IO[bytes] | None) -> queue.SimpleQueue[bytes]:
    """Return a queue of a process's output lines as they arrive, with an empty line at the end."""
    assert stream is not None
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put(b"")

    threading.Thread(target=read, daemon=True).start()
    return lines
