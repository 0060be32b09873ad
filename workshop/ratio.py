"""The course's rule for two things that took turns: when is one of them clearly faster?"""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass

LEAST = 5  # ratios


@dataclass(frozen=True)
class Ratio:
    """The median and the range of `n` ratios, one for each turn.

    The difference is clear if there are at least LEAST ratios, all above 1.00 or all below, as they
    are printed. Two equally fast things pass by chance in 2 of 2 ** n comparisons: in 1 of 16 for
    n = 5.
    """

    median: float
    low: float
    high: float
    n: int

    @property
    def clear(self) -> bool:
        return self.n >= LEAST and not round(self.low, 2) <= 1 <= round(self.high, 2)

    def __str__(self) -> str:
        median, low, high = (
            f"{value:,.{0 if value > 99 else 1 if value > 9.9 else 2}f}"
            for value in (self.median, self.low, self.high)
        )
        remark = ": too few to tell" if self.n < LEAST else ": no clear difference"
        return f"{median} ({low} to {high}, n = {self.n}){'' if self.clear else remark}"


def ratio(values: Iterable[float]) -> Ratio:
    """Return what the ratios of all turns say; print it, or ask whether it is `clear`."""
    ratios = [float(value) for value in values]
    return Ratio(statistics.median(ratios), min(ratios), max(ratios), len(ratios))
