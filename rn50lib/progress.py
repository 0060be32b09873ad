"""The outputs of a run while it trains: a bar, a line per epoch, and `progress.jsonl`."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from tqdm import tqdm

from rn50lib.errors import UserError

QUIET_S = 10.0  # seconds between lines without a terminal for the bar
SHOWN = {  # of an epoch's metrics
    "train.loss": "loss", "train.top1": "train top-1", "val.top1": "val top-1",
    "train.total_ips": "img/s", "val.total_ips": "val img/s",
}  # fmt: skip
WORDS = {"top1": "top-1", "ips": "img/s"}  # of a reading's values


class Progress:
    """The outputs of a run. Without a `run_dir` no file is written; off rank 0, nothing is."""

    def __init__(self, run_dir: Path | None, enabled: bool = True) -> None:
        self.enabled = enabled
        self.begin = self.last_line = time.perf_counter()
        self.file: TextIO | None = None
        if enabled and run_dir:
            path = run_dir / "progress.jsonl"
            text = path.read_bytes() if path.exists() else b""
            if text and not text.endswith(b"\n"):  # an earlier run was killed, or the disk was full
                os.truncate(path, text.rfind(b"\n") + 1)
            self.file = open(path, "a", encoding="utf-8")
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
        given = ((WORDS.get(key, key), value) for key, value in values.items())
        shown = ", ".join(f"{word} {value:.4g}" for word, value in given if value is not None)
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
        """Close the bar and the file."""
        self.stop()
        if self.file is not None:
            with contextlib.suppress(OSError):  # a write that failed has been reported
                self.file.close()

    def _write(self, line: dict[str, Any]) -> None:
        line["seconds"] = round(time.perf_counter() - self.begin, 3)
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
