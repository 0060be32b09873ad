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
    """A training as the index shows it; one without a report failed."""

    command: str
    report: dict[str, Any] | None = None
    curve: str = ""  # a figure, as HTML
    expected: str = ROADSIGNS.expected


def train(folder: Path) -> Training:
    """Train into `folder`; show progress on the terminal."""
    from rn50.plot import curves

    words = [*TRAIN, "--run-dir", str(folder), "--model-prefix", str(folder / "model")]
    command = shlex.join(["rn50", *words])
    print("training: the built-in recipe in full", flush=True)
    if subprocess.run([sys.executable, "-m", "rn50", *words]).returncode:
        return Training(command)
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    alt = "Training loss, training accuracy and validation accuracy over the epochs of this run"
    figure = figure_bundle(curves({"this run": report}), alt)
    return Training(command, report, figure["text/html"])
