"""One of the project's programs run from a notebook, with the command as one would type it.

The output appears line by line while the program works; a failure that nobody expected is an error.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from html import escape
from pathlib import Path

from rn50lib.workshop import output
from rn50lib.workshop.errors import RunFailed


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

    def show() -> None:
        command = shlex.join(["python", "-m", module, *words])
        text = "\n".join([f"$ {command}", *lines])
        html = f"<b>$ {escape(command)}</b>\n{escape(chr(10).join(lines))}"
        slot.html(f'<pre style="white-space:pre-wrap;background:none">{html}</pre>', text)

    show()
    package = str(Path(__file__).resolve().parents[2])
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
        assert process.stdout
        for line in process.stdout:
            lines.append(line.rstrip("\n"))
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
