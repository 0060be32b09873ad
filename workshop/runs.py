"""`train(...)`: a training run in separate processes, started from a notebook, and its handle.

It does what `rn50 run` would do with the same flags; the handle reads the files that it writes.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from rn50 import background, launch
from rn50lib.config import FIELDS, flags_of
from rn50lib.errors import UserError
from workshop import paths, session
from workshop.errors import RunFailed, show_user_errors_plainly

QUIET_S = 4.0  # a cell that waits says something at least this often
READINGS_S = 2.0  # between two readings of a run that are printed
LOG_LINES = 12


class Spoken:
    """The output of a waiting cell: each line once, and a dot if there is nothing new."""

    def __init__(self) -> None:
        self.at = time.monotonic()
        self.last, self.dots = "", False

    def line(self, text: str) -> None:
        print("\n" * self.dots + text, flush=True)
        self.at, self.dots = time.monotonic(), False

    def alive(self, seconds: float, status: str) -> None:
        """Print the status after a silence."""
        if time.monotonic() - self.at <= QUIET_S:
            return
        if status != self.last:
            self.line(f"{seconds:.0f} s: {status}")
            self.last = status
            return
        print(".", end="", flush=True)
        self.at, self.dots = time.monotonic(), True

    def end(self) -> None:
        """End a line of dots."""
        if self.dots:
            print(flush=True)
            self.dots = False


class Run:
    """A training run. Everything is read from its folder, so you can query it during the run.

    `dir` is the folder; `given` are the values that were passed.
    """

    def __init__(self, given: Mapping[str, Any], run_dir: Path) -> None:
        self.given, self.dir = given, run_dir
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
        self._job = background.start(self.given, self.dir, log=self._log)

    def __repr__(self) -> str:
        state = "running" if self.running else f"ended with status {self._job.poll()}"
        return f"<Run {self.dir.name}: {state}>"

    @property
    def running(self) -> bool:
        return self._job.poll() is None

    @property
    def succeeded(self) -> bool:
        """True if the run has ended without an error."""
        return self._job.poll() == 0

    @property
    def pid(self) -> int:
        """The main process of the run."""
        return self._job.pid

    @property
    def seconds(self) -> float:
        """Seconds since the start of the processes; fixed once the run has ended."""
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
        """The same as you would type it: `rn50 run ...`, without the folder of this run."""
        return shlex.join(["rn50", "run", *flags_of(self.given)])

    @property
    def log(self) -> str:
        """The output of the processes since the last start."""
        try:
            data = self._log.read_bytes()[self._log_from :]
        except OSError:
            return ""
        return data.decode("utf-8", "replace").replace("\r", "\n")

    @property
    def progress(self) -> list[dict[str, Any]]:
        """The complete lines of progress.jsonl so far; each call reads only what is new."""
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
        """The lines since the last start."""
        return self.progress[self._lines_before :]

    @property
    def resolved(self) -> dict[str, Any]:
        """The run's experiment, reasons, caps and command; raises UserError before it has them."""
        return self._read(self.dir / "experiment.json", "has not chosen its settings yet")

    @property
    def report(self) -> dict[str, Any]:
        """The run's report. Raises UserError before its first epoch has ended."""
        place = Path(self.given.get("report") or self.dir / "report.json")
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

        Raises:
            RunFailed: The run ended before.
            UserError: `timeout` seconds passed.
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
                    raise RunFailed("the run ended too early", self._tail())
                if waited > timeout:
                    raise UserError(
                        f"waited {timeout:g} s for the run in {self.dir} without success"
                    )
                spoken.alive(waited, self.status())
                time.sleep(0.1)
        finally:
            spoken.end()

    def status(self) -> str:
        """Return the run's status in one line."""
        lines = self.new_progress
        if lines:
            return describe(lines[-1])
        last = self._tail(1).strip()
        return f"starting ({last})" if last else "starting"

    def wait(self) -> Run:
        """Wait for the end, with a line per epoch and a status line every few seconds.

        Raises:
            RunFailed: The run failed.
        """
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
        """Show the run in this cell until it ends; its figure stays.

        Raises:
            RunFailed: The run failed.
        """
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
        """Ask the run to end, and kill it if it does not."""
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
        """Start the same run again in the same folder, from its newest intact checkpoint."""
        if self.running:
            raise UserError("the run is still running: stop() or kill() it before resume()")
        kept = {name: value for name, value in self.given.items() if name != "load_epoch"}
        in_folder = {"model_prefix": str(self.dir / "model")}  # where `rn50 run` keeps a model
        return Run({**in_folder, **kept, "resume": True}, self.dir)


def train(given: Mapping[str, Any] | None = None, /, name: str = "run", **changes: Any) -> Run:
    """Start a run and return immediately. Keys and keywords are fields of TrainConfig.

    Profile and data default to the session's; a relative `model_prefix` or `report` is placed in
    the run's folder.

    Raises:
        UserError: A field is unknown or a value impossible.
    """
    show_user_errors_plainly()
    paths.set_environment()
    given = {k: v for k, v in {**(given or {}), **changes}.items() if v is not None}
    for field in given:
        if field not in FIELDS:
            near = difflib.get_close_matches(field, FIELDS, 1)
            hint = f": did you mean {near[0]}?" if near else f": there are {', '.join(FIELDS)}"
            raise UserError(f"train has no setting {field!r}{hint}")
    given |= session.session_fields(given)
    run_dir = launch.new_run(name)
    for field in ("model_prefix", "report", "profile_trace", "timeline"):
        if field in given:  # an absolute path stays
            given[field] = str(run_dir / given[field])
    return Run(given, run_dir)


def describe(line: dict[str, Any]) -> str:
    """Return a line of progress.jsonl as text for people."""
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
