"""A whole run as `rn50 run` would start it, in processes of its own, for notebooks and for verbs
that measure runs: memory comes back, and a crash stays outside."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from rn50.autoconfig import Given, resolve
from rn50.launch import GRACE_S, SAVE_S, program, with_library
from rn50lib.hardware import machine
from rn50lib.preemption import PARENT
from rn50lib.report import write_json


@dataclass
class Job:
    """A started run, with all of its processes."""

    process: subprocess.Popen
    run_dir: Path
    command: list[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        return self.process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once there. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        return self.process.wait(timeout)

    def stop(self) -> int:
        """Ask all processes to end, with time to write a checkpoint, then end them."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(SAVE_S + GRACE_S)
        return self.kill()

    def kill(self) -> int:
        """End all processes at once, as a power cut would.

        The workers have sessions of their own: they are killed before they could notice that the
        launcher is gone, which they would take for a request to write a checkpoint.
        """
        import psutil

        with contextlib.suppress(psutil.Error):
            launcher = psutil.Process(self.pid)
            launcher.suspend()
            for process in launcher.children(recursive=True):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        self._signal(signal.SIGKILL)
        return self.process.wait()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def start(given: Given, run_dir: Path, log: Path | None = None) -> Job:
    """Start `rn50 run --config RUN/config.json` in a process group of its own; returns at once.

    The file holds the values as they were passed. The output goes to `log` where one is given.
    Raises UserError when a given value is impossible.
    """
    resolve(given, machine(), 1000)
    file = run_dir / "config.json"
    write_json(file, dict(given))
    command = [*program("run"), "--run-dir", str(run_dir), "--config", str(file)]
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(open(log, "ab")) if log else None
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            env=with_library(dict(os.environ)) | {PARENT: str(os.getpid())},
            start_new_session=True,
        )
    return Job(process, run_dir, command)
