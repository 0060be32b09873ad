"""Run a training script in turns with others: some steps, then wait for the next turn.

    python workshop/turns.py FOLDER NAME PARENT WARM_UP LEAD WINDOW SCRIPT ARGUMENTS...

`workshop.ladder.race` starts it, once per rank. The script must call `step()` of PyTorch's profiler
after each step, as those of the ladder do. It waits inside that call, which it does not time. The
first LEAD steps of a turn do not count: they are also left out of the script's own `seconds` of
each part. Rank 0 writes the seconds of the WINDOW steps after those to FOLDER/NAME.json.
"""

from __future__ import annotations

import inspect
import json
import os
import runpy
import sys
import time
from pathlib import Path
from typing import Any

POLL_S = 0.01


def rank() -> int:
    """Return this process's rank, from torchrun or horovodrun; 0 without either."""
    return int(os.environ.get("RANK", os.environ.get("HOROVOD_RANK", 0)))


class Turns:
    """Times a script's steps and lets it wait between turns.

    Files are the signals: NAME-RANK.K, with the rank's process id, means that K turns are done, and
    `turn` holds "NAME K" when the next one may begin, "end" after the last.
    """

    def __init__(self, folder: str, name: str, parent: int, warm_up: int, lead: int, window: int):
        self.folder, self.name, self.parent = Path(folder), name, parent
        self.warm_up, self.lead, self.window = warm_up, lead, window
        self.steps = 0
        self.turns: list[list[float]] = []  # seconds of each step that counts
        self.current: list[float] = []
        self.parts: dict[str, float] = {}  # the script's seconds in all steps that count
        self.began = time.perf_counter()

    def after_step(self, parts: dict[str, float] | None = None) -> None:
        """Record the step that has ended; wait after the warm-up and after each turn.

        `parts` are the script's sums so far, without the step that has just ended: it is added
        afterwards. Those of the lead are taken out again.
        """
        seconds = time.perf_counter() - self.began
        self.steps += 1
        if self.steps > self.warm_up:
            self.current.append(seconds)
        if parts is not None and len(self.current) == 1:
            self.parts = dict(parts)
        if parts is not None and len(self.current) == self.lead + 1:
            parts.update(self.parts)
        if len(self.current) == self.lead + self.window:
            self.turns.append(self.current[self.lead :])
            self.current = []
            self.wait()
        elif self.steps == self.warm_up:
            self.wait()
        self.began = time.perf_counter()

    def wait(self) -> None:
        """Report the turns that are done, and return when the next one may begin."""
        from rn50lib.files import write_file

        if rank() == 0:
            write_file(self.folder / f"{self.name}.json", json.dumps(self.turns))
        done = len(self.turns)
        write_file(self.folder / f"{self.name}-{rank()}.{done}", str(os.getpid()))
        turn = self.folder / "turn"
        while not (turn.exists() and turn.read_text() in (f"{self.name} {done}", "end")):
            os.kill(self.parent, 0)  # fails if the notebook is gone
            time.sleep(POLL_S)


def main(argv: list[str]) -> None:
    folder, name, *numbers, script = argv[:7]
    sys.path[0] = str(Path(script).parent)  # before any import: this folder has a trace.py
    from torch.profiler import profile

    turns = Turns(folder, name, *map(int, numbers))
    original = profile.step

    def step(self: Any) -> None:
        original(self)
        frame = inspect.currentframe()
        seconds = frame.f_back.f_locals.get("seconds") if frame and frame.f_back else None
        turns.after_step(seconds if isinstance(seconds, dict) else None)

    profile.step = step  # type: ignore[method-assign]
    sys.argv = [script, *argv[7:]]
    runpy.run_path(script, run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
