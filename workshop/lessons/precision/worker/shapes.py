"""The process behind `shapes.measure`: convolutions of many shapes, timed in turns.

python -m workshop.lessons.precision.worker.shapes ROUNDS BATCH SIDE THREADS CASES...

A case is DTYPE:LAYOUT:CHANNELS.
"""

from __future__ import annotations

import sys
import time

import torch
from torch.nn import functional as F

from rn50lib import launch
from rn50lib.backends.torch import precision
from workshop import measuring
from workshop.lessons.precision.shapes import NHWC

TURN_S = 0.05  # a turn repeats its case for about so long
LIMIT_S = 25.0  # no round begins later


def main(argv: list[str]) -> int:
    launch.die_with_parent()
    rounds, batch, side, threads = map(int, argv[:4])
    torch.set_num_threads(threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    precision.configure(device, "float32")  # on a GPU: no TF32 under the name of float32
    runs = [Case(text, batch, side, device) for text in argv[4:]]
    began, rows = time.monotonic(), list[list[float]]()
    for round_ in range(rounds + 1):  # the first one chooses kernels and is dropped
        if len(rows) > 1 and time.monotonic() - began > LIMIT_S:
            break
        measuring.tell(f"round {round_} of {rounds}")
        rows.append([run.turn() for run in runs])
    measuring.answer(rows[1:])
    return 0


class Case:
    """A convolution of one precision, layout and number of channels, ready to be timed."""

    def __init__(self, text: str, batch: int, side: int, device: str) -> None:
        dtype, layout, number = text.split(":")
        channels, kind = int(number), getattr(torch, dtype.replace("tf32", "float32"))
        form = torch.channels_last if layout == NHWC else torch.contiguous_format
        self.device = device
        self.images = torch.randn(batch, channels, side, side).to(device, kind, memory_format=form)
        self.weight = torch.randn(channels, channels, 1, 1).to(device, kind, memory_format=form)
        self.work = 2 * batch * side**2 * channels**2
        self.times = 0  # a turn's repetitions

    def repeat(self, times: int) -> float:
        """Seconds for so many in a row."""
        begin = time.perf_counter()
        with torch.inference_mode():
            for _ in range(times):
                F.conv2d(self.images, self.weight)
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - begin

    def turn(self) -> float:
        """GFLOP per second."""
        if not self.times:
            self.repeat(2)
            self.times = max(1, min(1000, round(TURN_S / self.repeat(1))))
        return self.times * self.work / self.repeat(self.times) / 1e9


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
