"""The outputs of a run while it trains: a bar, a line per epoch, `progress.jsonl`, `--logger`."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

from tqdm import tqdm

from rn50lib.config import TrainConfig
from rn50lib.errors import UserError
from rn50lib.files import make_folder
from rn50lib.hooks import function_in

QUIET_S = 10.0  # seconds between lines without a terminal for the bar
SHOWN = {  # of an epoch's metrics
    "train.loss": "loss", "train.top1": "train top-1", "val.top1": "val top-1",
    "train.total_ips": "img/s", "val.total_ips": "val img/s",
}  # fmt: skip
NOT_MEASURED = ("phase", "epoch", "step", "steps", "seconds")
Line = dict[str, Any]
Logger = Callable[[Line], None]


class Progress:
    """The outputs of a run. Without a `run_dir` no file is written; off rank 0, nothing is."""

    def __init__(
        self, run_dir: Path | None, loggers: Sequence[Logger] = (), enabled: bool = True
    ) -> None:
        self.enabled, self.loggers = enabled, list(loggers)
        self.begin = self.last_line = time.perf_counter()
        self.file: TextIO | None = None
        if enabled and run_dir:
            self.file = open(run_dir / "progress.jsonl", "a", encoding="utf-8")
        self.bar: Any = None

    def start(self, phase: str, epoch: int, epochs: int, steps: int, initial: int = 0) -> None:
        """Begin a phase ('train' or 'val') of an epoch, `initial` of whose `steps` are done."""
        self.phase, self.epoch, self.steps = phase, epoch, steps
        self.label = f"epoch {epoch + 1}/{epochs} {phase}"
        if self.enabled and sys.stderr.isatty():
            self.bar = tqdm(
                total=steps, initial=initial, desc=self.label, leave=False, dynamic_ncols=True,
                unit="step",
            )  # fmt: skip

    def step(self) -> None:
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

    def stop(self) -> None:
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def epoch_done(self, epoch: int, epochs: int, metrics: dict[str, Any], seconds: float) -> None:
        """Write the metrics of an epoch and print them in a line."""
        if not self.enabled:
            return
        self._write({"phase": "epoch", "epoch": epoch} | metrics)
        shown = ((text, metrics.get(key)) for key, text in SHOWN.items())
        parts = [f"{text} {value:.4g}" for text, value in shown if value is not None]
        word, phase = ("epoch", "train") if "train.loss" in metrics else ("pass", "val")
        if metrics.get(f"{phase}.total_ips") is None:
            parts.append("no img/s, as the first step is not timed")
        self.say(f"{word} {epoch + 1}/{epochs}: {', '.join(parts)} ({seconds:.1f} s)")

    def say(self, text: str) -> None:
        """Print one line above the bar."""
        if self.enabled:
            self.last_line = time.perf_counter()
            tqdm.write(text, file=sys.stderr)
            sys.stderr.flush()

    def close(self) -> None:
        """Close the bar, the files and the loggers."""
        self.stop()
        for output in (self.file, *self.loggers):
            with contextlib.suppress(Exception):  # a write that failed has been reported
                getattr(output, "close", int)()

    def log(self, line: Line) -> None:
        """Pass a line of `progress.jsonl`, or the finished report, to the loggers."""
        for logger in [*self.loggers]:
            try:
                logger(line)
            except UserError:
                raise
            except Exception as error:  # a failed log must not end the training
                self.loggers.remove(logger)
                name = getattr(logger, "__name__", type(logger).__name__)
                self.say(f"the logger {name} failed, and the run continues without it: {error!r}")

    def _write(self, line: Line) -> None:
        line["seconds"] = round(time.perf_counter() - self.begin, 3)
        self.log(line)
        if self.file is None:
            return
        try:
            self.file.write(json.dumps(line, allow_nan=False) + "\n")
            self.file.flush()
        except OSError as error:
            raise UserError(
                f"{self.file.name} cannot be written: {error.strerror}; free some space and"
                " continue with --resume"
            ) from error


# --- loggers: callables that get each line of progress.jsonl, then {"phase": "report", ...} -------


def open_loggers(config: TrainConfig, run_dir: Path | None) -> list[Logger]:
    """Return the loggers of a run. Raise UserError for one that cannot be loaded."""
    loggers: list[Logger] = []
    for text in dict.fromkeys(config.logger):
        if text == "tensorboard":
            loggers.append(TensorBoard((run_dir or Path()) / "tensorboard"))
        else:
            file, _, function = text.rpartition(":")
            loggers.append(function_in(Path(file), function, f"--logger {text}"))
    return loggers


class TensorBoard:
    """TensorBoard's event files, by its own writer."""

    def __init__(self, folder: Path) -> None:
        # TensorBoard's own switch: without it TensorFlow is imported to open a file
        sys.modules.setdefault("tensorboard.compat.notf", ModuleType("notf"))
        from tensorboard.summary import Writer

        make_folder(folder, f"--logger tensorboard: {folder}")
        self.writer = Writer(str(folder))
        self.close = self.writer.close

    def __call__(self, line: Line) -> None:
        """Write the measurements of a line, such as 'train/loss', at its step or epoch."""
        phase = line["phase"]
        if phase == "report":
            return
        step = line["epoch"] if phase == "epoch" else line["epoch"] * line["steps"] + line["step"]
        for name, value in line.items():
            if name not in NOT_MEASURED and isinstance(value, (int, float)):
                self.writer.add_scalar(f"{phase}/{name}", value, step)
        self.writer.flush()
