"""What a run tells TensorBoard, with `--logger tensorboard`."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from rn50lib.files import make_folder

NO_NUMBERS = ("phase", "epoch", "step", "steps", "seconds")  # of a line: they say where it stands


def scalars(line: dict[str, Any]) -> tuple[dict[str, float], int]:
    """What a line has measured, as 'train/loss' and so on, and its step: batches from the run's
    beginning, or the number of the epoch that it sums up."""
    phase, epoch = line["phase"], line["epoch"]
    found = {
        f"{phase}/{name}": value
        for name, value in line.items()
        if name not in NO_NUMBERS and isinstance(value, (int, float))
    }
    return found, epoch if phase == "epoch" else epoch * line["steps"] + line["step"]


class Board:
    """TensorBoard event files, without importing TensorFlow, as the usual writer does."""

    def __init__(self, logdir: str) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise UserError(
                f"--logger tensorboard needs its package ({error}): `pip install tensorboard`"
            ) from error
        self.event, self.summary = Event, Summary
        self.place = f"--logger tensorboard: {logdir}"
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        make_folder(Path(logdir), self.place)
        try:
            self.file = open(Path(logdir) / name, "wb")
        except OSError as error:
            raise UserError(
                f"--logger tensorboard: {logdir} cannot be written: {error.strerror}"
            ) from error
        self.writer = RecordWriter(self.file)
        self._write(file_version="brain.Event:2")

    def __call__(self, line: dict[str, Any]) -> None:
        """A line of progress.jsonl; the report at the end has nothing that is new."""
        if line["phase"] != "report":
            values, step = scalars(line)
            measured = [self.summary.Value(tag=k, simple_value=v) for k, v in values.items()]
            self._write(step=step, summary=self.summary(value=measured))

    def _write(self, **content: Any) -> None:
        try:
            self.writer.write(self.event(wall_time=time.time(), **content).SerializeToString())
            self.writer.flush()
        except OSError as error:
            raise UserError(
                f"{self.place} cannot be written: {error.strerror}; make room and go on"
                " with --resume"
            ) from error

    def close(self) -> None:
        self.file.close()
