"""What a run tells while it runs: a bar, a line per epoch, `progress.jsonl` and loggers.

The loop calls `reading` every `disp_batches` steps and `epoch_done` after each epoch.
"""

from __future__ import annotations

import contextlib
import json
import os
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

QUIET_S = 10.0  # seconds between lines where there is no terminal to draw a bar on
TOLD = "\x1d"  # begins a line of a worker that `rn50 run`, which has the terminal, draws as a bar
BAR = "RN50_BAR"  # set where it does
REDRAW_S = 0.1


def tell(**told: Any) -> None:
    """Have the bar of the group drawn anew, where there is one: `desc`, what is being done or
    waited for, `n` of `total` steps, and what else is `shown`."""
    if os.environ.get(BAR):
        print(f"{TOLD}{json.dumps(told)}", file=sys.stderr, flush=True)


class ToldBar:
    """What a bar of tqdm's does here, for a worker of a group: it tells how far it is."""

    def __init__(self, desc: str, total: int, initial: int) -> None:
        self.desc, self.total, self.n = desc, total, initial
        self.draw("waiting for the first step")

    def draw(self, shown: str) -> None:
        self.shown, self.at = shown, time.perf_counter()
        tell(desc=self.desc, total=self.total, n=self.n, shown=shown)

    def update(self) -> None:
        self.n += 1
        if time.perf_counter() - self.at > REDRAW_S:
            self.draw("" if self.shown.startswith("waiting") else self.shown)

    set_postfix_str = draw

    def close(self) -> None:
        self.draw(self.shown)


class Progress:
    """All that watches a run. `run_dir` None writes no file; `enabled` is false off rank 0."""

    def __init__(
        self, run_dir: Path | None, loggers: Sequence[Logger] = (), enabled: bool = True
    ) -> None:
        self.enabled = enabled
        self.begin = time.perf_counter()
        self.file = open(run_dir / "progress.jsonl", "a") if enabled and run_dir else None
        self.position = run_dir / "position.txt" if enabled and run_dir else None
        self.earlier = read_position(self.position) if self.position else None
        self.position_file = open(self.position, "w") if self.position else None
        self.loggers = list(loggers)
        self.bar: tqdm | ToldBar | None = None
        self.terminal = sys.stderr.isatty()
        self.last_line = time.perf_counter()

    def start(self, phase: str, epoch: int, epochs: int, steps: int, initial: int = 0) -> None:
        """A phase ('train' or 'val') of an epoch begins."""
        self.phase, self.epoch, self.steps = phase, epoch, steps
        self.label = f"epoch {epoch + 1}/{epochs} {phase}"
        if self.enabled and self.terminal and tqdm is not None:
            self.bar = tqdm(
                total=steps, initial=initial, desc=self.label, leave=False, dynamic_ncols=True,
                unit="step",
            )  # fmt: skip
        elif self.enabled and os.environ.get(BAR):
            self.bar = ToldBar(self.label, steps, initial)

    def step(self, data_s: float = 0.0) -> None:
        """One more iteration; `data_s` seconds of the phase so far went by waiting for input."""
        if self.bar is not None:
            self.bar.update()

    def reading(self, step: int, values: dict[str, float | None]) -> None:
        """Loss, top1 (per cent), ips (images/s) and lr since the last reading."""
        if not self.enabled:
            return
        line = {"phase": self.phase, "epoch": self.epoch, "step": step, "steps": self.steps}
        self._write(line | values)
        shown = " ".join(f"{k} {number(v)}" for k, v in values.items() if v is not None)
        if self.bar is not None:
            self.bar.set_postfix_str(shown)
        elif time.perf_counter() - self.last_line > QUIET_S:
            self.say(f"{self.label} {step}/{self.steps}: {shown}")

    def at(self, epoch: int, images: int) -> None:
        """So many images of an epoch are done: noted after every update, so that a run that is
        taken up again can tell how many of them it repeats."""
        if self.position_file:
            self._into(self.position_file, f"{epoch:8} {images:12}\n", seek=0)

    def stop(self) -> None:
        """The phase is over."""
        if self.bar is not None:
            self.bar.close()
            self.bar = None

    def epoch_done(self, epoch: int, epochs: int, metrics: dict[str, Any], seconds: float) -> None:
        if not self.enabled:
            return
        self._write({"phase": "epoch", "epoch": epoch} | metrics)
        named = {
            "train.loss": "loss", "train.top1": "train top-1", "val.top1": "val top-1",
            "train.total_ips": "img/s", "val.total_ips": "val img/s",
        }  # fmt: skip
        parts = [
            f"{text} {number(metrics[k])}"
            for k, text in named.items()
            if metrics.get(k) is not None
        ]
        word = "pass" if "train.loss" not in metrics else "epoch"
        self.say(f"{word} {epoch + 1}/{epochs}: {', '.join(parts)} ({seconds:.1f} s)")

    def say(self, text: str) -> None:
        """One line to the user, past the bar."""
        if self.enabled:
            self.last_line = time.perf_counter()
            if tqdm is None:
                print(text, file=sys.stderr)
            else:
                tqdm.write(text, file=sys.stderr)
            sys.stderr.flush()

    def report(self, report: dict[str, Any]) -> None:
        """The run is done."""
        self._log({"phase": "report", "report": report})

    def _log(self, line: dict[str, Any]) -> None:
        for logger in [*self.loggers]:
            try:
                logger(line)
            except UserError:
                raise
            except Exception as error:  # the training is worth more than its log
                self.loggers.remove(logger)
                name = getattr(logger, "__name__", type(logger).__name__)
                self.say(f"the logger {name} failed, and the run goes on without it: {error!r}")

    def _write(self, line: dict[str, Any]) -> None:
        line["seconds"] = round(time.perf_counter() - self.begin, 3)
        self._log(line)
        if self.file:
            self._into(self.file, json.dumps(line, allow_nan=False) + "\n")

    def _into(self, file: TextIO, text: str, seek: int | None = None) -> None:
        try:
            if seek is not None:
                file.seek(seek)
            file.write(text)
            file.flush()
        except OSError as error:
            raise UserError(cannot_write(file.name, error)) from error

    def close(self) -> None:
        self.stop()
        for stream in (self.file, self.position_file):
            if stream:
                with contextlib.suppress(OSError):  # a write that failed has been told
                    stream.close()
        for logger in self.loggers:
            with contextlib.suppress(Exception):
                getattr(logger, "close", int)()


def cannot_write(file: str, error: OSError) -> str:
    return f"{file} cannot be written: {error.strerror}; make room and go on with --resume"


def read_position(path: Path) -> tuple[int, int] | None:
    """The last epoch and images that `Progress.at` has noted; None where there is no such file."""
    try:
        epoch, images = path.read_text().split()
        return int(epoch), int(images)
    except (OSError, ValueError):
        return None


def number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
