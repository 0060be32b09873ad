"""`train(...)`: a training run started from a notebook, in processes of its own, and a handle to
it.

The run is what `rn50 run` would do with the same flags; the handle reads the files that it writes.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import shlex
import time
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rn50 import background, launch
from rn50lib.config import Experiment, flags_of
from rn50lib.errors import UserError
from workshop import paths, session
from workshop.errors import RunFailed, show_user_errors_plainly

QUIET_S = 4.0  # a cell that waits says something at least this often
READINGS_S = 2.0  # between two readings of a run that are printed
LOG_LINES = 12


class Spoken:
    """What a cell that waits prints: each line once, and a dot where there is nothing new."""

    def __init__(self) -> None:
        self.at = time.monotonic()
        self.last, self.dots = "", False

    def line(self, text: str) -> None:
        print("\n" * self.dots + text, flush=True)
        self.at, self.dots = time.monotonic(), False

    def alive(self, seconds: float, status: str) -> None:
        """Say after a silence where the run is."""
        if time.monotonic() - self.at <= QUIET_S:
            return
        if status != self.last:
            self.line(f"{seconds:.0f} s: {status}")
            self.last = status
            return
        print(".", end="", flush=True)
        self.at, self.dots = time.monotonic(), True

    def end(self) -> None:
        """Leave the line of dots."""
        if self.dots:
            print(flush=True)
            self.dots = False


class Run:
    """A training run. Everything is read from its folder, so it can be asked while the run goes on.

    `dir` is the folder; `experiment` what was asked for.
    """

    def __init__(self, experiment: Experiment, run_dir: Path) -> None:
        self.experiment, self.dir = experiment, run_dir
        self._progress: list[dict[str, Any]] = []  # what was read of progress.jsonl, up to a byte
        self._read_to = 0
        self._start()

    def _start(self) -> None:
        self._log = self.dir / "log.txt"
        self._log_from = self._log.stat().st_size if self._log.exists() else 0
        self._lines_before = len(self.progress)
        self._begin = time.monotonic()
        self._seconds: float | None = None
        self._ended_by: str | None = None
        self._job = background.start(self.experiment, self.dir, log=self._log)

    def __repr__(self) -> str:
        state = "running" if self.running else f"ended with status {self._job.poll()}"
        return f"<Run {self.dir.name}: {state}>"

    @property
    def running(self) -> bool:
        return self._job.poll() is None

    @property
    def succeeded(self) -> bool:
        """Whether the run has ended without an error."""
        return self._job.poll() == 0

    @property
    def pid(self) -> int:
        """The process at the head of the run."""
        return self._job.pid

    @property
    def seconds(self) -> float:
        """Seconds since the start, start of the processes included; fixed once the run has
        ended."""
        now = time.monotonic() - self._begin
        if self._seconds is None and not self.running:
            self._seconds = now
        return now if self._seconds is None else self._seconds

    @property
    def command(self) -> list[str]:
        """The command that was started, as an argument list."""
        return list(self._job.command)

    @property
    def command_line(self) -> str:
        """The same as one would type it: `rn50 run ...`, without the folder of this run."""
        return shlex.join(["rn50", "run", *flags_of(self.experiment)])

    @property
    def log(self) -> str:
        """What the processes printed since they were (last) started."""
        try:
            data = self._log.read_bytes()[self._log_from :]
        except OSError:
            return ""
        return data.decode("utf-8", "replace").replace("\r", "\n")

    @property
    def progress(self) -> list[dict[str, Any]]:
        """The lines of progress.jsonl so far, without one that is still being written. Only what
        was added since the last call is read."""
        with contextlib.suppress(OSError), open(self.dir / "progress.jsonl", "rb") as file:
            file.seek(self._read_to)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._read_to += len(line)
                with contextlib.suppress(ValueError):
                    self._progress.append(json.loads(line))
        return list(self._progress)

    @property
    def new_progress(self) -> list[dict[str, Any]]:
        """The lines since the run was (last) started."""
        return self.progress[self._lines_before :]

    @property
    def resolved(self) -> dict[str, Any]:
        """What the run chose: experiment, reasons, caps and command. Raises UserError before it
        has."""
        return self._read(self.dir / "experiment.json", "has not chosen its settings yet")

    @property
    def report(self) -> dict[str, Any]:
        """The run's report. Raises UserError before its first epoch has ended."""
        place = Path(self.experiment.report) if self.experiment.report else self.dir / "report.json"
        return self._read(place, "has no report yet: it is written after every epoch")

    def _read(self, path: Path, lack: str) -> dict[str, Any]:
        try:
            return dict(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            raise UserError(f"the run in {self.dir} {lack}") from None

    def wait_for(
        self, ready: Callable[[dict[str, Any]], bool], timeout: float = 120.0
    ) -> dict[str, Any]:
        """Wait for the first progress line for which `ready(line)` is true, and return it.

        Raises RunFailed when the run ends before, UserError after `timeout` seconds.
        """
        begin, spoken = time.monotonic(), Spoken()
        try:
            while True:
                ended = not self.running  # asked before the file is read: no line is missed
                for line in self.new_progress:
                    if ready(line):
                        return line
                waited = time.monotonic() - begin
                if ended:
                    self._check()
                    raise RunFailed("the run ended before what was waited for", self._tail())
                if waited > timeout:
                    raise UserError(f"waited {timeout:g} s for the run in {self.dir}, in vain")
                spoken.alive(waited, self.status())
                time.sleep(0.1)
        finally:
            spoken.end()

    def status(self) -> str:
        """Where the run is, in one line."""
        lines = self.new_progress
        if lines:
            return describe(lines[-1])
        last = self._tail(1).strip()
        return f"starting ({last})" if last else "starting"

    def wait(self) -> Run:
        """Wait for the end, with a line per epoch, and where the run is every few seconds between
        them. Raises RunFailed if the run fails."""
        shown, spoken = 0, Spoken()
        try:
            while True:
                ended = not self.running
                lines = self.new_progress
                for line in lines[shown:]:
                    if line["phase"] == "epoch" or time.monotonic() - spoken.at > READINGS_S:
                        spoken.line(describe(line))
                shown = len(lines)
                if ended:
                    break
                spoken.alive(self.seconds, self.status())
                time.sleep(0.2)
        except KeyboardInterrupt:
            self.stop()
            spoken.line("Interrupted: the run has been stopped.")
            return self
        finally:
            spoken.end()
        return self._check()

    def live(self) -> Run:
        """Watch the run in this cell until it ends; its figure stays. Raises RunFailed if it
        fails."""
        from workshop import live

        live.watch(self)
        return self._check()

    def _check(self) -> Run:
        status = self._job.wait()
        self.seconds  # noqa: B018  fixes the time
        if status != 0 and self._ended_by is None:
            raise RunFailed(f"the run ended with exit status {status}; it said:", self._tail())
        return self

    def _tail(self, lines: int = LOG_LINES) -> str:
        text = [line for line in self.log.splitlines() if line.strip()]
        return "\n".join(text[-lines:])

    def stop(self) -> Run:
        """Ask the run to end, and end it if it does not."""
        if self.running:
            self._ended_by = "stop"
            self._job.stop()
        return self

    def kill(self) -> Run:
        """End all processes of the run at once, as a power cut would (SIGKILL)."""
        if self.running:
            self._ended_by = "kill"
            self._job.kill()
        return self

    def resume(self) -> Run:
        """A new start of the same run in the same folder, from its newest checkpoint that
        verifies."""
        if self.running:
            raise UserError("the run is still running: stop() or kill() it before resume()")
        again = replace(self.experiment, resume=True, load_epoch=None)
        if again.model_prefix is None:  # the place where `rn50 run` keeps a model by itself
            again = replace(again, model_prefix=str(self.dir / "model"))
        return Run(again, self.dir)


def train(experiment: Experiment | None = None, /, name: str = "run", **changes: Any) -> Run:
    """Start a run and return at once. Keywords are the fields of Experiment.

    Profile and data come from the session where they are not given; a relative `model_prefix` or
    `report` lands in the run's folder. Raises UserError for an unknown field or an impossible
    value.
    """
    show_user_errors_plainly()
    paths.set_environment()
    known = [f.name for f in fields(Experiment)]
    for field in changes:
        if field not in known:
            near = difflib.get_close_matches(field, known, 1)
            hint = f": did you mean {near[0]}?" if near else f": there are {', '.join(known)}"
            raise UserError(f"train has no setting {field!r}{hint}")
    given = (experiment.given() if experiment else {}) | changes
    asked = replace(experiment or Experiment(), **session.session_fields(given), **changes)
    run_dir = launch.new_run(name)
    in_run: dict[str, Any] = {
        field: str(run_dir / value)
        for field in ("model_prefix", "report", "logdir", "profile_trace", "timeline")
        if (value := getattr(asked, field)) and not Path(value).is_absolute()
    }
    return Run(replace(asked, **in_run), run_dir)


def describe(line: dict[str, Any]) -> str:
    """A line of progress.jsonl for people."""
    epoch = line["epoch"] + 1
    if line["phase"] == "epoch":
        shown = (
            ("train.loss", "loss {:.3f}"), ("train.top1", "train top-1 {:.1f} %"),
            ("val.top1", "val top-1 {:.1f} %"), ("train.total_ips", "{:.1f} img/s"),
        )  # fmt: skip
        parts = [text.format(line[key]) for key, text in shown if line.get(key) is not None]
        return f"epoch {epoch} done: {', '.join(parts)}"
    shown = (("loss", "loss {:.3f}"), ("top1", "top-1 {:.1f} %"), ("ips", "{:.1f} img/s"),
             ("lr", "learning rate {:.3g}"))  # fmt: skip
    parts = [text.format(line[key]) for key, text in shown if line.get(key) is not None]
    return f"epoch {epoch} {line['phase']}, step {line['step']}/{line['steps']}: {', '.join(parts)}"
