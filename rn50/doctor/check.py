"""What the doctor's checks share: a finding, and asking a framework in a process of its own."""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any

OK, NOTE, PROBLEM = "ok", "note", "problem"
SETUP = "run `make setup`"


@dataclass(frozen=True)
class Check:
    """A finding. `name` is stable, for programs; `what` and `remedy` are for people."""

    name: str
    status: str
    what: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f" — {self.remedy}" if self.remedy else ""
        return f"{self.status + ':':8} {self.what}{remedy}"


def ok(name: str, what: str) -> Check:
    """All is well."""
    return Check(name, OK, what)


def note(name: str, what: str, remedy: str = "") -> Check:
    """Training runs all the same; something is missing, slower, or worth knowing."""
    return Check(name, NOTE, what, remedy)


def problem(name: str, what: str, remedy: str) -> Check:
    """Training cannot run here until this is put right."""
    return Check(name, PROBLEM, what, remedy)


def size(count: float) -> str:
    """Bytes for people: '64 MiB', '3.4 GiB', '252 GiB'."""
    for unit, scale in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20)):
        if count >= scale:
            value = count / scale
            return f"{value:.{0 if value >= 10 or value == int(value) else 1}f} {unit}"
    return f"{count / 2**10:.0f} KiB"


# --- probes: a framework over a broken driver can crash or hang, and the doctor must live to say so


LIMIT_S = 90.0  # for one framework on a cold disk; a warm one takes seconds


@dataclass(frozen=True)
class Answer:
    """What a probe printed: `facts` from its JSON lines, and, if it failed, `problem` in a line."""

    facts: dict[str, Any] = field(default_factory=dict)
    problem: str = ""


def ask(code: str, limit_s: float = LIMIT_S) -> Answer:
    """Run Python `code`, which prints JSON objects, one a line, as it finds things out. Its whole
    process group ends with it."""
    process = subprocess.Popen(
        [sys.executable, "-c", code],
        env=os.environ | {"TF_CPP_MIN_LOG_LEVEL": "3", "PYTHONUNBUFFERED": "1"},
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        text=True, errors="replace", start_new_session=True,
    )  # fmt: skip
    problem = ""
    try:
        text, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        text, errors = process.communicate()
        problem = f"it gave no answer within {limit_s:g} s"
    facts: dict[str, Any] = {}
    for line in text.splitlines():
        if line.startswith("{"):
            with contextlib.suppress(ValueError):  # cut off by a crash
                facts |= json.loads(line)
    status = process.returncode
    if not problem and status < 0:
        problem = f"it crashed with signal {-status} ({signal.Signals(-status).name})"
    elif not problem and status:  # the last line of a traceback is the error itself
        lines = errors.split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        problem = last or f"it ended with status {status}"
    return Answer(facts, problem)


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
