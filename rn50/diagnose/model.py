"""How the parts of a run add up, and what that says: numbers in, a sentence out.

An image costs the loader 1 / loader seconds and the step 1 / compute seconds, each measured alone,
over all workers. Together they take, per image, the longest of three times:

- the loader's own and the step's own, where one works while the other does;
- the seconds of cores that both need, shared out over the cores there are.

On a processor both want all cores, and the third is the sum of the two: 1 / loader + 1 / compute. A
GPU, or a paced step, wants none, and the slower of the two decides: it computes while the next
batch is made, ahead (`--data-nthreads`) or in the loop itself. Where a processor computes and
nothing is loaded ahead, one waits for the other, and it is the sum whatever the cores.
"""

from __future__ import annotations

from dataclasses import dataclass

INPUT, COMPUTE, COMMUNICATION = "input", "compute", "communication"
NAMES = {INPUT: "The input", COMPUTE: "The model", COMMUNICATION: "Communication"}
FREE = float("inf")  # images per second of a part that costs nothing


@dataclass(frozen=True)
class Sharing:
    """What the loader and the step have in common: `cores` there are, and how many of them each
    would keep busy; `ahead`: whether batches are made while the step computes."""

    cores: int
    loader: float
    compute: float
    ahead: bool = True

    @property
    def formula(self) -> str:
        """How the two add up here, for people."""
        if not self.ahead or self.loader + self.compute > self.cores:
            whole = not self.ahead or min(self.loader, self.compute) >= self.cores
            return "1 / (1/loader + 1/compute)" if whole else "the cores shared between the two"
        return "the slower of the two"


def together(loader: float, compute: float, sharing: Sharing) -> float:
    """Images per second of a run whose loader and step reach so many alone."""
    load, step = 1 / loader, 1 / compute
    if not sharing.ahead:
        return 1 / (load + step)
    shared = (load * sharing.loader + step * sharing.compute) / sharing.cores
    slowest = max(load, step, shared)
    return 1 / slowest if slowest > 0 else FREE


@dataclass(frozen=True)
class Rates:
    """Images per second over all workers: the loader alone (FREE for synthetic images), the step
    alone with its exchange of gradients, the same without one (equal for one worker), and all
    together."""

    loader: float
    compute: float
    without_exchange: float
    both: float


@dataclass(frozen=True)
class Bound:
    """What holds a run back. `gain`: how many times as fast the run would be if that part cost
    nothing; `shares`: the part of an image's time that each of the three needs alone, adding up
    to 1."""

    part: str
    gain: float
    shares: dict[str, float]


def find_bound(rates: Rates, sharing: Sharing) -> Bound:
    """The part of a run whose disappearance would speed it up most."""
    exchange = max(0.0, 1 / rates.compute - 1 / rates.without_exchange)
    seconds = {
        INPUT: 1 / rates.loader,
        COMPUTE: 1 / rates.compute - exchange,
        COMMUNICATION: exchange,
    }
    now = together(rates.loader, rates.compute, sharing)
    alone = FREE if not exchange else 1 / exchange
    gains = {
        INPUT: together(FREE, rates.compute, sharing) / now,
        COMPUTE: together(rates.loader, alone, sharing) / now,
        COMMUNICATION: together(rates.loader, 1 / seconds[COMPUTE], sharing) / now,
    }
    part = max(gains, key=lambda name: (gains[name], seconds[name]))
    total = sum(seconds.values())
    return Bound(part, gains[part], {name: value / total for name, value in seconds.items()})


@dataclass(frozen=True)
class Change:
    """Flags that would change a run, with the images per second predicted for it, and measured
    where that was done. `lesson`: the notebook that teaches it."""

    flags: str
    lesson: str
    predicted: float
    measured: float | None = None

    @property
    def error(self) -> float | None:
        """By how much the prediction is off, as a share of what was measured."""
        return None if self.measured is None else self.predicted / self.measured - 1


LESSONS = {
    INPUT: "05 (input with DALI)",
    COMPUTE: "06 (mixed precision)",
    COMMUNICATION: "03 (Horovod)",
}
WORTH_IT = 1.05  # a change that gains less is not recommended


def lesson(part: str, backend: str, flags: str = "") -> str:
    """The notebook that teaches what to do about a part, by changing these flags."""
    if "dali" in flags:
        return LESSONS[INPUT]
    tf_data = (part, backend) == (INPUT, "tensorflow")
    return "04 (TFRecord and tf.data)" if tf_data else LESSONS[part]


def verdict(
    rates: Rates, sharing: Sharing, changes: list[Change], backend: str = "torch"
) -> tuple[Bound, str]:
    """What bounds the run, and the sentence that says so: by how much, what would help most, and
    where to read on."""
    bound = find_bound(rates, sharing)
    share = {name: f"{100 * value:.0f} %" for name, value in bound.shares.items()}
    overlapped = sharing.formula == "the slower of the two" and rates.loader != FREE
    step, loader = f"{rates.compute:,.0f}", f"{rates.loader:,.0f}"
    if bound.part == INPUT and overlapped:
        idle = 100 * (1 - rates.loader / rates.compute)
        text = (
            f"The input bounds this run: it delivers {loader} img/s where the step could take"
            f" {step}, so that the step waits {idle:.0f} % of the time"
        )
    elif bound.part == INPUT:
        text = f"The input bounds this run: loading takes {share[INPUT]} of an image's time"
    elif bound.part == COMMUNICATION:
        text = (
            f"Communication bounds this run: the exchange of gradients takes"
            f" {share[COMMUNICATION]} of an image's time; without it the run would be"
            f" {bound.gain:.2g} times as fast"
        )
    elif overlapped:
        text = (
            f"The model bounds this run: its step takes {step} img/s and the input could deliver"
            f" {loader}, {rates.loader / rates.compute:.2g} times as many"
        )
    else:
        text = f"The model bounds this run: {share[COMPUTE]} of an image's time is its arithmetic"
        if rates.loader != FREE:
            text += f", {share[INPUT]} loading"
    choice = max(changes, key=lambda change: change.predicted, default=None)
    if choice and choice.predicted > WORTH_IT * rates.both:
        text += (
            f". {choice.flags} would help most: {choice.predicted / rates.both:.2g} times as fast,"
            f" {choice.predicted:,.0f} img/s predicted; notebook {choice.lesson} teaches it."
        )
    else:
        advice = {
            INPUT: "nothing that was tried loads faster here",
            COMPUTE: "only a faster device, or less to compute, would help",
            COMMUNICATION: "larger batches would exchange less often",
        }
        text += f"; {advice[bound.part]}. Notebook {lesson(bound.part, backend)} is about it."
    return bound, text
