"""Asks in a process of its own, with a time limit: a framework over a broken driver can crash or
hang, and the doctor must live to say so."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

LIMIT_S = 90.0  # for one framework on a cold disk; a warm one takes seconds


@dataclass(frozen=True)
class Answer:
    """What a probe printed: `facts` from its JSON lines, and, if it failed, `problem` in a line."""

    facts: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def ask(code: str, limit_s: float = LIMIT_S) -> Answer:
    """Run Python `code`, which prints JSON objects, one a line, as it finds things out."""
    env = dict(os.environ) | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"}
    text, said, status = run([sys.executable, "-c", code], env, limit_s)
    facts: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                facts |= json.loads(line)
            except ValueError:  # cut off by a crash
                continue
    if status == 0:
        return Answer(facts)
    if status is None:
        return Answer(facts, f"it gave no answer within {limit_s:g} s")
    if status < 0:
        return Answer(facts, f"it crashed with signal {-status} ({signal.Signals(-status).name})")
    return Answer(facts, last_line(said) or f"it ended with status {status}")


def run(
    command: Sequence[str], env: dict[str, str] | None = None, limit_s: float = LIMIT_S
) -> tuple[str, str, int | None]:
    """(stdout, stderr, exit status) of a command; status None after the limit, 127 where it is not
    there. Its whole process group ends with it."""
    try:
        process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return "", str(error), 127
    try:
        text, said = process.communicate(timeout=limit_s)
        return text, said, process.returncode
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, said = process.communicate()
        return text, said, None


def last_line(text: str) -> str:
    """The last line with something in it: of a traceback, the error itself."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), "")


class Probes:
    """Probes that run beside one another and beside the checks that need none."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(max_workers=8)
        self.asked: dict[str, Future[Answer]] = {}

    def start(self, name: str, code: str) -> None:
        """Start asking."""
        self.asked[name] = self.pool.submit(ask, code)

    def get(self, name: str) -> Answer | None:
        """The answer, once there; None for what was not asked."""
        return self.asked[name].result() if name in self.asked else None

    def close(self) -> None:
        self.pool.shutdown()


def has(module: str) -> bool:
    """Whether a module can be found, without importing it (nor its parent, where it has none)."""
    try:
        return importlib.util.find_spec(module) is not None
    except (ModuleNotFoundError, ValueError):
        return False


def version(*distributions: str) -> str | None:
    """The version of the first of these distributions that is installed."""
    for name in distributions:
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None
