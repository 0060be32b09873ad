"""Run `rn50 run` in separate processes, so that a crash or a memory leak stays outside."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from rn50.autoconfig import Given, resolve
from rn50.launch import GRACE_S, SAVE_S, program, with_library
from rn50lib.hardware import machine
from rn50lib.lifetime import PARENT, stop
from rn50lib.report import write_json


class Job(subprocess.Popen):
    """A started run. Its launcher leads a process group; its workers have their own."""

    def stop(self) -> int:
        """Ask the run to save a checkpoint and exit; kill it if it does not."""
        return stop(self, SAVE_S + GRACE_S)  # its workers end with it


def start(given: Given, run_dir: Path, log: Path) -> Job:
    """Start `rn50 run --config RUN/config.json` and return at once; append its output to `log`.

    Raises UserError for an impossible value.
    """
    resolve(given, machine(), 1000)
    file = run_dir / "config.json"
    write_json(file, dict(given))
    command = [*program("run"), "--run-dir", str(run_dir), "--config", str(file)]
    with open(log, "ab") as output:
        return Job(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            env=with_library(dict(os.environ)) | {PARENT: str(os.getpid())},
            start_new_session=True,
        )  # fmt: skip
