"""A measurement in a process of its own, which tells what it does while the cell waits.

    found = ask("workshop.lessons.precision.roofline", words, env)     # in the notebook
    tell("round 3 of 10"); answer({...})                     # in the process, once each, many times

The memory that it took, and the frameworks that it imported, go with it.
"""

from __future__ import annotations

import json
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from rn50lib.errors import UserError
from workshop import output

SAY_S = 3.0  # a line at least this often


def ask(module: str, words: Sequence[str], env: Mapping[str, str], doing: str) -> Any:
    """Run `python -m MODULE WORDS...` and return its answer; its remarks are shown as they come.

    Raises UserError, with the last line of its standard error, when it ends without one.
    """
    slot, began, line = output.Slot(), time.monotonic(), doing

    def show(text: str) -> None:
        slot.html(f'<div class="dim">{escape(text)}</div>', text)

    show(line)
    with tempfile.TemporaryFile() as complaints:  # a pipe that nobody reads could fill up
        process = subprocess.Popen(
            [sys.executable, "-m", module, *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            env=dict(env),
        )
        try:
            assert process.stdout
            while True:
                seconds = time.monotonic() - began
                if not select.select([process.stdout], [], [], SAY_S)[0]:
                    show(f"{line}, {seconds:.0f} s")
                    continue
                said = process.stdout.readline()
                if not said:
                    complaints.seek(0)
                    last = complaints.read().decode("utf-8", "replace").strip().splitlines()
                    raise UserError(
                        f"the process that measures has ended: {(last or ['nothing said'])[-1]}"
                    )
                found = json.loads(said)
                if "answer" in found:
                    show(f"{doing}: done in {seconds:.0f} s")
                    return found["answer"]
                line = found["tell"]
                show(line)
        finally:
            process.kill()
            process.wait()
            if process.stdout:
                process.stdout.close()


def tell(text: str) -> None:
    """In the process: what it does now."""
    print(json.dumps({"tell": text}), flush=True)


def answer(value: Any) -> None:
    """In the process: what it found, as JSON."""
    print(json.dumps({"answer": value}), flush=True)
