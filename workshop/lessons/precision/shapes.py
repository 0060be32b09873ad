"""How fast a convolution is by its number of channels and its layout, in turns.

    measured = measure("bfloat16", channels=(248, 250, 255, 256), threads=2)

A 1x1 convolution with as many channels out as in: what most of ResNet-50's convolutions are, a
product of matrices. Every case has its turn in every round, so that a slow moment hits all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from rn50lib import launch
from rn50lib.config import Experiment
from workshop import measuring

NHWC, NCHW = "NHWC", "NCHW"


@dataclass(frozen=True)
class Rates:
    """GFLOP per second by (dtype, layout, channels); entry i of every list is of round i."""

    rates: dict[tuple[str, str, int], list[float]]
    batch: int
    side: int  # of the feature map, pixels

    def rate(self, dtype: str, layout: str, channels: int) -> float:
        """The median of the rounds."""
        return median(self.rates[dtype, layout, channels])

    def channels(self, layout: str = NHWC) -> list[int]:
        return sorted({key[2] for key in self.rates if key[1] == layout})

    @property
    def dtypes(self) -> list[str]:
        return list(dict.fromkeys(key[0] for key in self.rates))

    @property
    def rounds(self) -> int:
        return min(map(len, self.rates.values()))

    def ratio(self, over: tuple[str, str, int], under: tuple[str, str, int]) -> float:
        """How many times as fast, the median of the rounds' ratios."""
        pairs = zip(self.rates[over], self.rates[under], strict=True)
        return median(a / b for a, b in pairs)


def measure(
    done: Experiment,
    dtypes: Sequence[str],
    channels: Sequence[int],
    rounds: int,
    side: int = 28,
) -> Rates:
    """Time the cases: every number of channels in NHWC, and the middle one in NCHW too.

    Raises UserError when the process that measures fails.
    """
    cases = [(dtype, NHWC, n) for dtype in dtypes for n in channels]
    cases += [(dtype, NCHW, max(channels, key=lambda n: n & -n)) for dtype in dtypes]
    words = [str(rounds), str(done.batch_size), str(side), str(done.threads)]
    words += [":".join(map(str, case)) for case in cases]
    env = launch.rank_environment(done)
    found = measuring.ask(
        "workshop.lessons.precision.worker.shapes", words, env, "convolutions in turns"
    )
    rates = {case: [row[i] for row in found] for i, case in enumerate(cases)}
    return Rates(rates, done.batch_size, side)
