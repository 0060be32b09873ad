"""Training scripts that take turns: all start at once, then one trains while the others wait.

`workshop.turns` is the half that runs in each rank. Ranks are stopped while others train, with the
processes of their loaders, which would work ahead: a full queue hides a slow loader for many steps.
Idle ranks of Horovod also exchange messages every millisecond, a tenth of a core each.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import psutil

from rn50 import launch
from rn50lib import lifetime
from rn50lib.files import write_file
from workshop import output, programs, turns

# continues the processes whose numbers it reads when the notebook is gone, so that they end
GUARD = """
import contextlib, os, signal, sys
for pid in sys.stdin.read().split():
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(pid), signal.SIGCONT)
"""


@dataclass
class Runner:
    """A script of a race, with its flags; `turns` are filled in: the seconds of each step.

    The first `lead` steps of a turn do not count.
    """

    name: str
    script: Path
    flags: Sequence[object]
    ranks: int
    launcher: str
    lead: int
    turns: list[list[float]] = field(default_factory=list)
    process: subprocess.Popen | None = None
    stopped: list[int] = field(default_factory=list)

    def start(self, folder: Path, numbers: Sequence[int]) -> None:
        """Start the ranks, which write what they print to a file."""
        signals = [folder, self.name, os.getpid(), *numbers]
        words, _, threads = programs.command(
            turns.__file__, [*signals, self.script.resolve(), *self.flags],
            self.ranks, self.launcher,
        )  # fmt: skip
        env = launch.with_library(dict(os.environ)) | threads
        env["HOROVOD_GLOO_TIMEOUT_SECONDS"] = "3600"  # a stopped rank does not answer
        with open(self.log(folder), "w") as log:
            self.process = subprocess.Popen(
                [sys.executable, *words], cwd=self.script.parent, env=env,
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
                preexec_fn=lifetime.end_with_parent,
            )  # fmt: skip

    def log(self, folder: Path) -> Path:
        return folder / f"{self.name}.log"

    def halt(self, folder: Path, done: int, guard: IO[str]) -> bool:
        """Stop all ranks if they wait for the turn after `done`; return True if so.

        Also if the script has ended. Raises RunFailed if it failed.
        """
        signals = [folder / f"{self.name}-{rank}.{done}" for rank in range(self.ranks)]
        if not all(file.exists() for file in signals):
            return self.ended(folder)
        with contextlib.suppress(psutil.NoSuchProcess):  # one fails, which the next wait shows
            ranks = [psutil.Process(int(file.read_text())) for file in signals]
            loaders = [child for rank in ranks for child in rank.children(recursive=True)]
            self.stopped = [process.pid for process in (*ranks, *loaders)]
            print(*self.stopped, file=guard, flush=True)
            self.send(signal.SIGSTOP)
        return True

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the ranks in `stopped`."""
        for pid in self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def stop(self) -> None:
        self.send(signal.SIGCONT)
        if self.process and self.process.poll() is None:
            lifetime.stop(self.process, programs.GRACE_S)

    def ended(self, folder: Path) -> bool:
        """Return True if the script has ended. Raises RunFailed if it failed."""
        assert self.process is not None
        status = self.process.poll()
        if status:
            lines = self.log(folder).read_text(errors="replace").splitlines()
            raise programs.failure(self.name, status, lines)
        return status == 0


def race(runners: Sequence[Runner], warm_up: int, window: int, rounds: int) -> None:
    """Let scripts take turns; fill in the seconds of `window` steps of each turn.

    Each script does `warm_up` steps, and then in each of `rounds` turns its lead and `window`
    steps that count. Every other round has the reverse order: a machine that slows down steadily
    then favours no script. One without a profiler's steps takes no turns, which is printed. Raises
    RunFailed if one fails; then all are ended.
    """
    slot = output.Slot()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        guard = subprocess.Popen(
            [sys.executable, "-S", "-c", GUARD], stdin=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip
        stack.enter_context(guard)
        assert guard.stdin is not None
        names = ", ".join(runner.name for runner in runners)
        slot.line(f"Starting {names}")
        for runner in runners:
            runner.start(folder, [warm_up, runner.lead, window])
            stack.callback(runner.stop)
        starting = [*runners]
        while starting:  # each is stopped as soon as it is ready, however slowly others start
            starting = [each for each in starting if not each.halt(folder, 0, guard.stdin)]
            time.sleep(turns.POLL_S)
        for done in range(rounds):
            for runner in runners[:: -1 if done % 2 else 1]:
                slot.line(f"Turn {done + 1} of {rounds}: {runner.name}")
                write_file(folder / "turn", f"{runner.name} {done}")
                runner.send(signal.SIGCONT)
                while not runner.halt(folder, done + 1, guard.stdin):
                    time.sleep(turns.POLL_S)
        write_file(folder / "turn", "end")
        for runner in runners:
            runner.send(signal.SIGCONT)
        for runner in runners:
            while not runner.ended(folder):
                time.sleep(turns.POLL_S)
            file = folder / f"{runner.name}.json"
            runner.turns = json.loads(file.read_text()) if file.exists() else []
            if len(runner.turns) != rounds:
                print(f"{runner.script} took {len(runner.turns)} of {rounds} turns: call"
                      " trace.step() once in each step.")  # fmt: skip
                runner.turns = []
        slot.line(f"{rounds} turn{'s' * (rounds > 1)} of {names}")
