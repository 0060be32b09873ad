"""What a run adds to the timeline that Horovod writes: when each step waited for its exchange.

`rn50 run --timeline FILE` makes Horovod write the file (its own HOROVOD_TIMELINE); these marks
stand beside it. Notebook 03 reads and draws both.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TextIO

from rn50lib.errors import UserError


def waits_path(path: str | Path) -> Path:
    """Where the marks for a timeline stand: beside it."""
    path = Path(path)
    return path.with_name(path.name + ".waits")


class Waits:
    """Marks when a step begins to wait for its exchange, and when it goes on.

    `with waits: ...` around the waiting, on rank 0; a line of two Unix times per step. Horovod's
    own file shows when its thread took up a gradient, not when the step had run out of work. Raises
    UserError where its file cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        marks = waits_path(path)
        try:
            self.file: TextIO = open(marks, "w", buffering=1)
        except OSError as error:
            raise UserError(f"--timeline: {marks} cannot be written ({error.strerror})") from error
        self.begin = 0.0

    def __enter__(self) -> Waits:
        self.begin = time.time()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.file.write(f"{self.begin:.6f} {time.time():.6f}\n")
        except OSError as error:
            text = f"--timeline: {self.file.name} cannot be written ({error.strerror})"
            raise UserError(text) from error
