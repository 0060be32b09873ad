"""One worker of a benchmark, `python -m rn50.benchmark.worker FILE`: the cells in FILE.

It goes through them one after the other and leaves in the folder of each the run's report and, when
all of it is done, `measured.json`. A cell without that file has failed. The first failure ends the
process: after one, neither the device's memory nor the other workers can be trusted.
"""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import time
from pathlib import Path
from typing import Any

from rn50 import launch
from rn50lib import distributed as comm
from rn50lib.config import Config
from rn50lib.errors import UserError
from rn50lib.preemption import die_with_parent, end_on_sigterm, end_with
from rn50lib.progress import Progress
from rn50lib.report import write_json
from rn50lib.train import train

WARM_UP = 3  # iterations of each split that come before the first that counts
DONE = "measured.json"
FAILED = "failed.txt"


class Recorder(Progress):
    """Keeps the times of a run's iterations, phase by phase: one clock reading and one list entry
    per iteration, no more.

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


def main() -> int:
    """Measure every cell; returns the exit status."""
    die_with_parent()
    end_on_sigterm()
    group = None
    for cell in json.loads(Path(sys.argv[1]).read_text()):
        folder = Path(cell["folder"])
        try:
            config = Config.read(folder / "experiment.json")
            if group is None:
                group = comm.connect(config.experiment.comm, config.experiment.backend)
            if group.rank == 0:
                launch.say(cell["title"])
            train(config, folder, group, Recorder, WARM_UP)
            group.barrier()
        except KeyboardInterrupt:
            return 130
        except UserError as error:
            leave_reason(folder, str(error))
            print(f"error: {error}", file=sys.stderr)
            return 2
        except Exception as error:
            first = next(iter(str(error).splitlines()), "")
            leave_reason(folder, f"{type(error).__name__}: {first}")
            raise
        if group.rank == 0 and Recorder.last is not None:
            write_json(folder / DONE, Recorder.last.phases)
        gc.collect()  # the model of this cell is no longer needed, and the next may be larger
    return 0


def leave_reason(folder: Path, reason: str) -> None:
    """Leave the reason of a failure; the first worker that fails is the one that knows."""
    with contextlib.suppress(OSError), open(folder / FAILED, "x") as file:
        file.write(reason)


if __name__ == "__main__":
    end_with(main)
