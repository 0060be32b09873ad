"""A trace of a few training steps, in the Chrome format of torch.profiler."""

from __future__ import annotations

import os
import sys

import torch
from torch.profiler import profile, record_function, schedule

from rn50lib.files import write_file
from rn50lib.train_step import STEPS_BEFORE, TRACED_STEPS


class Tracer:
    """Writes a trace of three training steps to a file, without stopping the run.

    `step` ends a step, and `input_done` the wait for its batch; the range "input" is between the
    two. Does nothing without a file, or once it is written.
    """

    def __init__(self, file: str | None) -> None:
        self.file = file
        self.profiler: profile | None = None
        self.input: record_function | None = None

    def input_done(self) -> None:
        """End the range "input"."""
        if self.input is not None:
            self.input.__exit__(None, None, None)
            self.input = None

    def step(self) -> None:
        """End a step, and begin the next one with its range "input"."""
        if self.file is None:
            return
        if self.profiler is None:
            os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # no lines when it starts and stops
            skipped = STEPS_BEFORE - 2  # this is after the first, and the last is its warm-up
            when = schedule(skip_first=skipped, wait=0, warmup=1, active=TRACED_STEPS, repeat=1)
            self.profiler = profile(schedule=when, on_trace_ready=self.write)
            self.profiler.start()
        else:
            if torch.cuda.is_available() and self.profiler.step_num == STEPS_BEFORE - 2:
                torch.cuda.synchronize()  # no work of earlier steps in the trace
            self.profiler.step()
        if self.file is not None:
            self.input = record_function("input")
            self.input.__enter__()

    def write(self, done: profile) -> None:
        assert self.file is not None
        write_file(self.file, lambda draft: done.export_chrome_trace(str(draft)))
        print(f"  trace of {TRACED_STEPS} steps: {self.file}", file=sys.stderr, flush=True)
        self.file = None
