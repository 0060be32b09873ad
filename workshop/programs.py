"""One of the project's programs run from a notebook, with the command as one would type it.

The output appears line by line while the program works; a failure that nobody expected is an error.
"""

from __future__ import annotations

import os
import queue
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from html import escape
from typing import IO

from rn50lib import launch
from workshop import output
from workshop.errors import RunFailed

QUIET_S = 3.0  # while a program says nothing, the seconds are shown this often
KEPT_LINES = 80
GRACE_S = 10.0  # between asking a program to end and ending it


def program(
    module: str, *arguments: object, folder: str | os.PathLike = ".", status: int = 0
) -> None:
    """Run `python -m MODULE ARGUMENTS...` in `folder`, show the command and what it prints.

    Raises RunFailed if the exit status is not `status`: a lesson that shows an error says which one
    it expects.
    """
    words = [os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in arguments]
    name = ["rn50"] if module == "rn50lib.cli" else ["python", "-m", module]
    run(["-m", module, *words], shlex.join([*name, *words]), folder, status)


def run(words: Sequence[str], shown: str, folder: str | os.PathLike = ".", status: int = 0) -> None:
    """Run Python with these arguments, under the name `shown`, as `program` does."""
    lines: list[str] = []
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
        env=launch.with_library(dict(os.environ)) | {"PYTHONUNBUFFERED": "1"},
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
            lines = [*lines, line.decode("utf-8", "replace").rstrip("\n")][-KEPT_LINES:]
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
            "\n".join(lines[-12:]),
        )


def lines_of(stream: IO[bytes] | None) -> queue.SimpleQueue[bytes]:
    """The lines of a process's output as they come, and an empty one at the end."""
    assert stream is not None
    lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()

    def read() -> None:
        for line in stream:
            lines.put(line)
        lines.put(b"")

    threading.Thread(target=read, daemon=True).start()
    return lines
