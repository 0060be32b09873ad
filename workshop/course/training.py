"""The training at the start of `make run`: the built-in recipe in full, shown in the index."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rn50lib.recipe import ROADSIGNS
from workshop.output import figure_bundle

# The recipe's accuracy was recorded with one worker, so several GPUs are not used.
TRAIN = ("run", "-n", "1")


@dataclass(frozen=True)
class Training:
    """A training as the index shows it. `error` is what ended it early, or ''."""

    command: str
    resume: str
    error: str = ""
    report: dict[str, Any] | None = None
    expected: str = ROADSIGNS.expected
    curve: str = ""  # a figure, as HTML


def train(folder: Path) -> Training:
    """Train into `folder`; show progress on the terminal."""
    folder.mkdir(parents=True, exist_ok=True)
    prefix, report = folder / "model", folder / "report.json"
    arguments = [*TRAIN, "--run-dir", str(folder), "--model-prefix", str(prefix)]
    command, resume = (shlex.join(["rn50", *arguments, *more]) for more in ((), ("--resume",)))
    print("training: the built-in recipe in full", flush=True)
    if error := rn50(*arguments):
        return Training(command, resume, error)
    done = json.loads(report.read_text(encoding="utf-8"))
    return Training(command, resume, report=done, curve=curve(done))


def rn50(*arguments: str) -> str:
    """Run `rn50 ARGUMENTS` on this terminal; return how it failed, or ''."""
    status = subprocess.run([sys.executable, "-m", "rn50", *arguments]).returncode
    return f"rn50 {arguments[0]} ended with status {status}" if status else ""


def curve(report: dict[str, Any]) -> str:
    """Return loss and accuracy over the epochs as HTML."""
    from rn50.plot import curves

    alt = "Training loss, training accuracy and validation accuracy over the epochs of this run"
    return str(figure_bundle(curves({"this run": report}), alt)["text/html"])
