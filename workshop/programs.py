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
from html import escape
from pathlib import Path

from workshop import output
from workshop.errors import RunFailed

SAY_S = 3.0  # while a program says nothing, the seconds are shown this often


def program(
    module: str, *arguments: object, folder: str | os.PathLike = ".", status: int = 0
) -> None:
    """Run `python -m MODULE ARGUMENTS...` in `folder`, show the command and what it prints.

    Raises RunFailed if the exit status is not `status`: a lesson that shows an error says which one
    it expects.
    """
    words = [os.fspath(a) if isinstance(a, os.PathLike) else str(a) for a in arguments]
    lines: list[str] = []
    slot = output.Slot()

    def show(*more: str) -> None:
        command = shlex.join(["python", "-m", module, *words])
        text = "\n".join([f"$ {command}", *lines, *more])
        html = f"<b>$ {escape(command)}</b>\n{escape(chr(10).join([*lines, *more]))}"
        slot.html(f'<pre style="white-space:pre-wrap;background:none">{html}</pre>', text)

    show()
    package = str(Path(__file__).resolve().parent.parent)
    path = os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))
    process = subprocess.Popen(
        [sys.executable, "-m", module, *words],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )
    try:
        said: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=_read, args=(process, said), daemon=True).start()
        begin = time.monotonic()
        while True:
            try:
                line = said.get(timeout=SAY_S)
            except queue.Empty:
                show(f"({time.monotonic() - begin:.0f} s)")
                continue
            if line is None:
                break
            lines.append(line)
            show()
        ended = process.wait()
    finally:  # also when the cell is interrupted
        if process.poll() is None:
            process.kill()
            process.wait()
    if ended != status:
        raise RunFailed(
            f"{module} ended with exit status {ended} where {status} was expected; it said:",
            "\n".join(lines[-12:]),
        )


def _read(process: subprocess.Popen[str], said: queue.SimpleQueue[str | None]) -> None:
    """Hand on every line of a program as it comes, and None at the end."""
    assert process.stdout
    for line in process.stdout:
        said.put(line.rstrip("\n"))
    said.put(None)
