"""A model of a run: how its parts add up, and what limits it.

The loader and the step are timed alone. If the processor does both, the times of an image add up:
1 / loader + 1 / compute. In front of a GPU or a simulated step, the slower of the two decides.
"""

from __future__ import annotations

from dataclasses import dataclass

INPUT, COMPUTE, COMMUNICATION = "input", "compute", "communication"
NAMES = {INPUT: "The input", COMPUTE: "The model", COMMUNICATION: "Communication"}
FREE = float("inf")  # images per second of a part that costs nothing
WORTH_IT = 1.05  # a change that gains less is not recommended
ADVICE = {
    INPUT: "Nothing that was tried loads faster here",
    COMPUTE: "Only a faster device, or less to compute, would help",
    COMMUNICATION: "Larger batches would exchange gradients less often",
}
LESSONS = {
    INPUT: "05 (input with DALI)",
    COMPUTE: "06 (mixed precision)",
    COMMUNICATION: "03 (Horovod)",
}
SUM, SLOWER = "1 / (1/loader + 1/compute)", "the slower of the two"


def together(loader: float, compute: float, formula: str) -> float:
    """Return the images per second of a loader and a step that reach these rates alone."""
    if formula == SLOWER:
        return min(loader, compute)
    seconds = 1 / loader + 1 / compute
    return 1 / seconds if seconds else FREE


@dataclass(frozen=True)
class Rates:
    """Images per second over all workers of the parts of a run, and how they add up."""

    loader: float
    compute: float
    without_exchange: float
    both: float
    formula: str = SUM


@dataclass(frozen=True)
class Bound:
    """The part that limits a run, and the shares of all three in an image's time, together 1."""

    part: str
    shares: dict[str, float]


def find_bound(rates: Rates) -> Bound:
    """Find the part of a run that would speed it up most if it cost nothing."""
    exchange = max(0.0, 1 / rates.compute - 1 / rates.without_exchange)
    arithmetic = 1 / rates.compute - exchange
    seconds = {INPUT: 1 / rates.loader, COMPUTE: arithmetic, COMMUNICATION: exchange}
    without = {  # loader, step
        INPUT: (FREE, rates.compute),
        COMPUTE: (rates.loader, 1 / exchange if exchange else FREE),
        COMMUNICATION: (rates.loader, 1 / arithmetic),
    }
    rate = {part: together(*alone, rates.formula) for part, alone in without.items()}
    part = max(rate, key=lambda name: (rate[name], seconds[name]))
    total = sum(seconds.values())
    return Bound(part, {name: value / total for name, value in seconds.items()})


@dataclass(frozen=True)
class Change:
    """Flags that would change a run, the notebook about them, and the rate that they give."""

    flags: str
    lesson: str
    predicted: float


def lesson(part: str, backend: str, flags: str = "") -> str:
    """Return the notebook about a part, or about these flags."""
    if (part, backend) == (INPUT, "tensorflow"):
        return "04 (TFRecord and tf.data)"
    return LESSONS[INPUT if "dali" in flags else part]


def verdict(rates: Rates, bound: Bound, changes: list[Change], backend: str = "torch") -> str:
    """Return the sentence: what limits the run, what would help most, and where to read on."""
    speeds = f"the step alone reaches {rates.compute:,.0f} img/s"
    if rates.loader != FREE:
        speeds = f"the loader alone reaches {rates.loader:,.0f} img/s, {speeds}"
    text = (
        f"{NAMES[bound.part]} bounds this run ({100 * bound.shares[bound.part]:.0f}% of the work"
        f" on an image): {speeds}, together {rates.both:,.0f}."
    )
    expected = together(rates.loader, rates.compute, rates.formula)
    if not 0.75 < rates.both / expected < 1.33:
        return (
            f"{text} Do not rely on this: {expected:,.0f} would be expected of these parts. Measure"
            " again without other work on the machine, or with longer --seconds."
        )
    best = max(changes, key=lambda change: change.predicted, default=None)
    gain = best.predicted / expected if best else 0.0  # of predictions: their error cancels out
    if best is None or gain <= WORTH_IT:
        return f"{text} {ADVICE[bound.part]} (notebook {lesson(bound.part, backend)})."
    return (
        f"{text} {best.flags} would help most: {gain:.2g} times as fast,"
        f" {best.predicted:,.0f} img/s predicted (notebook {best.lesson})."
    )
