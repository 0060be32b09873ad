"""What a run tells TensorBoard, with `--logdir`."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

from rn50lib.errors import UserError
from rn50lib.files import make_folder


class Board:
    """TensorBoard event files, without importing TensorFlow, as the usual writer does."""

    def __init__(self, logdir: str) -> None:
        try:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.record_writer import RecordWriter
        except ImportError as error:
            raise UserError(f"--logdir needs the package tensorboard ({error})") from error
        self.event, self.summary, self.logdir = Event, Summary, logdir
        name = f"events.out.tfevents.{time.time():.0f}.{socket.gethostname()}.{os.getpid()}"
        make_folder(Path(logdir), f"--logdir {logdir}")
        try:
            self.file = open(Path(logdir) / name, "wb")
        except OSError as error:
            raise UserError(f"--logdir {logdir} cannot be written: {error.strerror}") from error
        self.writer = RecordWriter(self.file)
        self._write(file_version="brain.Event:2")

    def scalars(self, prefix: str, values: dict[str, Any], step: int) -> None:
        measured = [
            self.summary.Value(tag=f"{prefix}/{key}", simple_value=value)
            for key, value in values.items()
            if isinstance(value, (int, float))
        ]
        self._write(step=step, summary=self.summary(value=measured))

    def _write(self, **content: Any) -> None:
        try:
            self.writer.write(self.event(wall_time=time.time(), **content).SerializeToString())
            self.writer.flush()
        except OSError as error:
            raise UserError(
                f"--logdir {self.logdir} cannot be written: {error.strerror}; make room and go on"
                " with --resume"
            ) from error

    def close(self) -> None:
        self.file.close()
