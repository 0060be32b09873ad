"""`train(...)`: a training run in separate processes, started from a notebook, and its handle.

It does what `rn50 run` would do with the same flags; the handle reads the files that it writes.
"""

from __future__ import annotations

import contextlib
import difflib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rn50 import background, launch
from rn50lib.config import FLAGS
from rn50lib.errors import UserError
from workshop import paths, session
from workshop.errors import RunFailed, show_user_errors_plainly

READINGS_S = 2.0  # between two readings of a run that are printed
LOG_LINES = 12


class Run:
    """A training run. `dir` is its folder, `given` are the values that were passed."""

    def __init__(self, given: Mapping[str, Any], run_dir: Path) -> None:
        self.given, self.dir = given, run_dir
        self._job = background.start(given, run_dir, log=run_dir / "log.txt")

    @property
    def progress(self) -> list[dict[str, Any]]:
        """The complete lines of progress.jsonl so far."""
        lines = []
        with contextlib.suppress(OSError), open(self.dir / "progress.jsonl", "rb") as file:
            lines = [json.loads(line) for line in file if line.endswith(b"\n")]
        return lines

    @property
    def report(self) -> dict[str, Any]:
        """The run's report. Raises UserError before its first epoch has ended."""
        place = Path(self.given.get("report") or self.dir / "report.json")
        try:
            return dict(json.loads(place.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            raise UserError(
                f"the run in {self.dir} has no report yet: it is written after every epoch"
            ) from None

    def wait(self) -> Run:
        """Wait for the end; print each epoch, and a reading every few seconds.

        Interrupting the cell stops the run.

        Raises:
            RunFailed: The run failed.
        """
        shown, said = 0, time.monotonic()
        try:
            while True:
                ended = self._job.poll() is not None  # asked first, so that no line is missed
                lines = self.progress
                for line in lines[shown:]:
                    if line["phase"] == "epoch" or time.monotonic() - said > READINGS_S:
                        print(describe(line), flush=True)
                        said = time.monotonic()
                shown = len(lines)
                if ended:
                    break
                time.sleep(0.2)
        except KeyboardInterrupt:
            self._job.stop()
            print("Interrupted: the run has been stopped.")
            return self
        if status := self._job.wait():
            text = (self.dir / "log.txt").read_text("utf-8", "replace").replace("\r", "\n")
            last = [line for line in text.splitlines() if line.strip()][-LOG_LINES:]
            raise RunFailed(f"the run ended with exit status {status}; it said:", "\n".join(last))
        return self


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
        if field not in FLAGS:
            near = difflib.get_close_matches(field, FLAGS, 1)
            hint = f": did you mean {near[0]}?" if near else f": there are {', '.join(FLAGS)}"
            raise UserError(f"train has no setting {field!r}{hint}")
    given |= session.session_fields(given)
    run_dir = launch.new_run(name)
    for field in ("model_prefix", "report"):
        if field in given:  # an absolute path stays
            given[field] = str(run_dir / given[field])
    return Run(given, run_dir)


def describe(line: dict[str, Any]) -> str:
    """Return a line of progress.jsonl as text for people."""
    epoch = line["epoch"] + 1
    if line["phase"] == "epoch":
        shown = (
            ("train.loss", "loss {:.3f}"), ("train.top1", "train top-1 {:.1f}%"),
            ("val.top1", "val top-1 {:.1f}%"), ("train.total_ips", "{:.1f} img/s"),
        )  # fmt: skip
        parts = [text.format(line[key]) for key, text in shown if line.get(key) is not None]
        return f"epoch {epoch} done: {', '.join(parts)}"
    shown = (("loss", "loss {:.3f}"), ("top1", "top-1 {:.1f}%"), ("ips", "{:.1f} img/s"),
             ("lr", "learning rate {:.3g}"))  # fmt: skip
    parts = [text.format(line[key]) for key, text in shown if line.get(key) is not None]
    return f"epoch {epoch} {line['phase']}, step {line['step']}/{line['steps']}: {', '.join(parts)}"
