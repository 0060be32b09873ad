"""What a run shows while it trains: a bar, a line per epoch, `progress.jsonl` and loggers."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from rn50lib.errors import UserError

if TYPE_CHECKING:
    from rn50lib.loggers import Logger

try:
    from tqdm import tqdm
except ImportError:  # a bare checkout with PyTorch alone: lines instead of a bar
    tqdm = None

QUIET_S = 10.0  # seconds between lines if there is no terminal to draw a bar on
SHOWN = {  # of an epoch's metrics
    "train.loss": "loss", "train.top1": "train top-1", "val.top1": "val top-1",
    "train.total_ips": "img/s", "val.total_ips": "val img/s",
}  # fmt: skip


class Progress:
    """The outputs of a run. No file is written without a `run_dir`, and nothing off rank 0.

    `earlier` is the epoch and the images of it that an earlier process had finished in this folder.
    """

    def __init__(
        self, run_dir: Path | None, loggers: Sequence[Logger] = (), enabled: bool = True
    ) -> None:
        self.enabled, self.loggers = enabled, list(loggers)
        self.begin = self.last_line = time.perf_counter()
        self.file: TextIO | None = None
        self.position_file: TextIO | None = None
        self.earlier: tuple[int, int] | None = None
        if enabled and run_dir:
            self.file = open(run_dir / "progress.jsonl", "a")
            position = run_dir / "position.txt"
            with contextlib.suppress(OSError, ValueError):
                epoch, images = position.read_text().split()
                self.earlier = int(epoch), int(images)
            self.position_file = open(position, "w")
        self.bar: Any = None

    def start(self, phase: str, epoch: int, epochs: int, steps: int, initial: int = 0) -> None:
        """Begin a phase ('train' or 'val') of an epoch, `initial` of whose `steps` are done."""
        self.phase, self.epoch, self.steps = phase, epoch, steps
        self.label = f"epoch {epoch + 1}/{epochs} {phase}"
        if self.enabled and sys.stderr.isatty() and tqdm is not None:
            self.bar = tqdm(
                total=steps, initial=initial, desc=self.label, leave=False, dynamic_ncols=True,
                unit="step",
            )  # fmt: skip

    def step(self, data_s: float = 0.0) -> None:
        """Count an iteration; the phase has waited `data_s` seconds for input so far."""
        if self.bar is not None:
            self.bar.update()

    def reading(self, step: int, values: dict[str, float | None]) -> None:
        """Write loss, top1 (per cent), ips (images/s) and lr since the last reading."""
        if not self.enabled:
            return
        line = {"phase": self.phase, "epoch": self.epoch, "step": step, "steps": self.steps}
        self._write(line | values)
        shown = " ".join(f"{k} {v:.4g}" for k, v in values.items() if v is not None)
        if self.bar is not None:
            self.bar.set_postfix_str(shown)
        elif time.perf_counter() - self.last_line > QUIET_S:
            self.say(f"{self.label} {step}/{self.steps}: {shown}")

    def at(self, epoch: int, images: int) -> None:
        """Note after an update how many images of the epoch are done: a run that is resumed from an
        earlier checkpoint reports how many it repeats."""
        if self.position_file:
            self._append(self.position_file, f"{epoch:8} {images:12}\n", seek=0)

    def stop(self) -> None:
        """End the phase."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def epoch_done(self, epoch: int, epochs: int, metrics: dict[str, Any], seconds: float) -> None:
        """Write the metrics of an epoch and show them in a line."""
        if not self.enabled:
            return
        self._write({"phase": "epoch", "epoch": epoch} | metrics)
        shown = ((text, metrics.get(key)) for key, text in SHOWN.items())
        parts = ", ".join(f"{text} {value:.4g}" for text, value in shown if value is not None)
        word = "pass" if "train.loss" not in metrics else "epoch"
        self.say(f"{word} {epoch + 1}/{epochs}: {parts} ({seconds:.1f} s)")

    def say(self, text: str) -> None:
        """Print one line to the user, above the bar."""
        if self.enabled:
            self.last_line = time.perf_counter()
            if tqdm is None:
                print(text, file=sys.stderr)
            else:
                tqdm.write(text, file=sys.stderr)
            sys.stderr.flush()

    def report(self, report: dict[str, Any]) -> None:
        """Pass the finished report to the loggers."""
        self._log({"phase": "report", "report": report})

    def close(self) -> None:
        """Close the bar, the files and the loggers."""
        self.stop()
        for output in (self.file, self.position_file, *self.loggers):
            with contextlib.suppress(Exception):  # a write that failed has been reported
                getattr(output, "close", int)()

    def _log(self, line: dict[str, Any]) -> None:
        for logger in [*self.loggers]:
            try:
                logger(line)
            except UserError:
                raise
            except Exception as error:  # a training is worth more than its log
                self.loggers.remove(logger)
                name = getattr(logger, "__name__", type(logger).__name__)
                self.say(f"the logger {name} failed, and the run goes on without it: {error!r}")

    def _write(self, line: dict[str, Any]) -> None:
        line["seconds"] = round(time.perf_counter() - self.begin, 3)
        self._log(line)
        if self.file:
            self._append(self.file, json.dumps(line, allow_nan=False) + "\n")

    def _append(self, file: TextIO, text: str, seek: int | None = None) -> None:
        try:
            if seek is not None:
                file.seek(seek)
            file.write(text)
            file.flush()
        except OSError as error:
            raise UserError(
                f"{file.name} cannot be written: {error.strerror}; free some space and"
                " continue with --resume"
            ) from error
