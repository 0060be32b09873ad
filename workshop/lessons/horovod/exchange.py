"""`measure(workers)`: the bare all-reduce, measured from a notebook; it says how far it is."""

from __future__ import annotations

from contextlib import redirect_stderr
from typing import Any

from rn50lib.comm.measure import MB, SIZES, Measured
from workshop import output


class _Lines:
    """Stands for stderr while the workers measure: shows their latest line in one place."""

    def __init__(self, slot: output.Slot) -> None:
        self.slot = slot

    def write(self, text: str) -> int:
        if line := text.strip():
            self.slot.html(f'<div class="dim">{line}</div>', line)
        return len(text)

    def flush(self) -> None: ...


def measure(workers: int, quick: bool = False) -> Measured:
    """What all-reduces of many sizes take between `workers` processes.

    `quick` leaves out the large ones. Raises UserError where the workers cannot be started.
    """
    from rn50lib.tools.doctor import allreduce

    slot = output.Slot()
    slot.html('<div class="dim">the workers are starting</div>', "the workers are starting")
    lines: Any = _Lines(slot)
    sizes = tuple(size for size in SIZES if size <= (4 * MB if quick else max(SIZES)))
    with redirect_stderr(lines):
        found, _ = allreduce.run(workers, sizes=sizes, repeats=5 if quick else 10)
    return found
