"""Notes when each iteration ended: one clock reading and one list entry per iteration, no more."""

from __future__ import annotations

import time
from typing import Any

from rn50lib.progress import Progress


class Recorder(Progress):
    """A `Progress` that keeps the times of a run's iterations, phase by phase.

    `phases` has a dict for every phase of every epoch that is over: `phase`, `epoch`, `seconds`
    (one for each iteration but the first, which is not timed) and `data_s` (how much of them went
    by waiting for input).
    """

    last: Recorder | None = None  # the run that this process is in, or was in last

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.phases: list[dict[str, Any]] = []
        self.marks: list[tuple[float, float]] = []
        Recorder.last = self

    def start(self, *args: Any, **options: Any) -> None:
        super().start(*args, **options)
        self.marks = []

    def step(self, data_s: float = 0.0) -> None:
        super().step(data_s)
        self.marks.append((time.perf_counter(), data_s))

    def stop(self) -> None:
        super().stop()
        if self.marks:
            times = [mark[0] for mark in self.marks]
            self.phases.append(
                {
                    "phase": self.phase,
                    "epoch": self.epoch,
                    "seconds": [b - a for a, b in zip(times, times[1:], strict=False)],
                    "data_s": self.marks[-1][1] - self.marks[0][1],
                }
            )
        self.marks = []
