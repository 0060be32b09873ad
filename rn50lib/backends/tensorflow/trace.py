"""A Chrome trace of a few steps from TensorFlow's profiler, without TensorBoard's plug-in.

The profiler writes an XSpace, a protocol buffer; its threads and events are a trace as they are.
"""

from __future__ import annotations

import gzip
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorflow as tf

from rn50lib.errors import UserError
from rn50lib.files import write_file

TRACED_STEPS = 3


class Recording:
    """Records a few of `steps`, told of each by `step()`; writes `file` when it is left.

    The first two steps are left out where there are enough: they are no example of the others.
    Raises UserError when the file cannot be written.
    """

    def __init__(self, file: Path, steps: int) -> None:
        self.file, self.done, self.running = file, 0, False
        self.first = min(2, steps - 1)
        self.last = min(self.first + TRACED_STEPS, steps)

    def __enter__(self) -> Recording:
        load_format()  # says before any work is done that this release lacks it
        self.folder = tempfile.TemporaryDirectory()
        self._switch()
        return self

    def step(self) -> None:
        """Call it after every step."""
        self.done += 1
        self._switch()

    def _switch(self) -> None:
        if self.done == self.first and not self.running:
            options = tf.profiler.experimental.ProfilerOptions(python_tracer_level=0)
            tf.profiler.experimental.start(self.folder.name, options)
            self.running = True
        elif self.done == self.last and self.running:
            self._finish()

    def _finish(self) -> None:
        tf.profiler.experimental.stop()
        self.running = False
        spaces = [found.read_bytes() for found in Path(self.folder.name).rglob("*.xplane.pb")]
        content = json.dumps({"displayTimeUnit": "ms", "traceEvents": list(events(spaces))})
        try:
            packed = gzip.compress(content.encode()) if self.file.suffix == ".gz" else content
            write_file(self.file, packed)
        except OSError as error:
            text = f"--profile-trace {self.file} cannot be written: {error.strerror}"
            raise UserError(text) from error

    def __exit__(self, *failed: object) -> None:
        if self.running:
            self._finish()
        self.folder.cleanup()


def load_format() -> Any:
    """The description of the profiler's files. UserError where TensorFlow has moved it away."""
    try:
        from tensorflow.tsl.profiler.protobuf import xplane_pb2
    except ImportError as error:
        raise UserError(
            f"--profile-trace: TensorFlow {tf.__version__} does not describe its profiler's files"
            f" ({error}): leave the flag out, or trace with --backend torch"
        ) from error
    return xplane_pb2


def events(spaces: list[bytes]) -> Iterator[dict[str, Any]]:
    """Chrome's events of the profiler's files: a process per device, a thread per line."""
    planes = [
        plane for content in spaces for plane in load_format().XSpace.FromString(content).planes
    ]
    for pid, plane in enumerate((plane for plane in planes if plane.lines), start=1):
        yield {"ph": "M", "name": "process_name", "pid": pid, "args": {"name": plane.name}}
        for tid, line in enumerate(plane.lines, start=1):
            name = line.display_name or line.name
            yield {
                "ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name},
            }  # fmt: skip
            for event in line.events:
                known = plane.event_metadata[event.metadata_id]
                yield {
                    "ph": "X",
                    "name": known.display_name or known.name,
                    "pid": pid,
                    "tid": tid,
                    "ts": line.timestamp_ns / 1e3 + event.offset_ps / 1e6,  # microseconds
                    "dur": event.duration_ps / 1e6,
                    "args": {"op": known.name},  # a kernel's has the name of its layer in it
                }
