"""Runs the steps of a set-up: one line each with its seconds, a moving line meanwhile.

On failure the last 20 lines of the log follow, and the remedy.
"""

from __future__ import annotations

import collections
import json
import os
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from plan import Step

TELLING = re.compile(
    r"^\s*(\[ *\d+%\].*|Collecting .*|Downloading .*|Installing collected .*|Building .*|Get:.*"
    r"|Unpacking .*|Setting up .*|Preparing .*|Created wheel .*)"
)
QUIET_SECONDS = 20.0  # without a terminal, a line this often


class Stamps:
    """Which steps are done (or have failed), by their stamp; kept in the environment itself."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "stamps.json"

    def read(self) -> dict[str, str]:
        """Step name -> stamp, with a `failed:` in front where it failed."""
        try:
            return dict(json.loads(self._path.read_text()))
        except (OSError, ValueError):
            return {}

    def write(self, step: Step, failed: bool = False) -> None:
        """Remember how a step ended."""
        stamps = {**self.read(), step.name: ("failed:" if failed else "") + step.stamp}
        beside = self._path.with_suffix(".new")
        beside.write_text(json.dumps(stamps, indent=1))
        beside.replace(self._path)


def run(name: str, commands: Sequence[Sequence[str]], log: Path, remedy: str, fatal: bool) -> bool:
    """Run the commands of one step in order; True if all ended with 0.

    All output goes to the log, which is appended to. Prints the step's line, and on failure the end
    of the log and the remedy.
    """
    start = time.monotonic()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as out:
        for command in commands:
            out.write(f"\n$ {shlex.join(command)}\n")
            out.flush()
            if not _follow(name, command, log, out.fileno(), start):
                _line(f"  {name:<22.48} FAILED after {_seconds(start)}", final=True)
                _explain(log, remedy, fatal)
                return False
    _line(f"  {name:<22.48} {_seconds(start)}", final=True)
    return True


def _follow(name: str, command: Sequence[str], log: Path, out: int, start: float) -> bool:
    said = start
    try:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "DEBIAN_FRONTEND": "noninteractive", "PIP_NO_INPUT": "1"},
        )
    except OSError as error:
        os.write(out, f"{error}\n".encode())
        return False
    try:
        while True:
            try:
                return process.wait(timeout=0.25) == 0
            except subprocess.TimeoutExpired:
                pass
            if sys.stdout.isatty():
                _line(f"  {name:<22.48} {_seconds(start)}  {_doing(log)}")
            elif time.monotonic() - said >= QUIET_SECONDS:
                said = time.monotonic()
                _line(f"  {name:<22.48} {_seconds(start)} so far  {_doing(log)}", final=True)
    except KeyboardInterrupt:
        process.terminate()
        process.wait()
        raise


def _seconds(start: float) -> str:
    return f"{time.monotonic() - start:6.1f} s"


def _line(text: str, final: bool = False) -> None:
    if sys.stdout.isatty():
        sys.stdout.write(f"\r\x1b[K{text[:100]}" + ("\n" if final else ""))
    else:
        sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _doing(log: Path) -> str:
    """The last line of the log that says what is going on."""
    with log.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - 200_000))
        tail = file.read().decode(errors="replace").splitlines()
    for line in reversed(tail):
        found = TELLING.match(line)
        if found:
            return re.sub(r"\S*/(?=\S)", "", found[1])[:60]  # files without their folders
    return ""


def _explain(log: Path, remedy: str, fatal: bool) -> None:
    with log.open(errors="replace") as file:
        last = collections.deque((line.rstrip() for line in file), maxlen=20)
    print("\n".join(f"    | {line}" for line in last if line))
    print(f"    whole log: {log}")
    print(f"{'error' if fatal else 'note'}: {remedy}", flush=True)
