"""Checks of ex05: what limits the training, and a validation that is exact."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from workshop.checks import compare
from workshop.checks.compare import wrong

# --- ex05.headroom --------------------------------------------------------------------------------

BATCH_IMAGES, TIMED_STEPS = 32, 10
FIRST_S, START_S = 0.7, 1e-5  # more for the first step, and to start one


class Machine(compare.Clock):
    """A simulated loader and an asynchronous device, with their own clock."""

    def __init__(self, load_s: float, train_s: float) -> None:
        self.load_s, self.train_s = load_s, train_s
        self.done, self.loads = 0.0, 0  # when the device will have done all
        self.trained: set[int] = set()  # batches

    def __repr__(self) -> str:
        return f"load takes {1000 * self.load_s:g} ms, train {1000 * self.train_s:g} ms"

    def load(self) -> int:
        """Return a batch; the first takes longer."""
        self.now += self.load_s + FIRST_S * (self.loads == 0)
        self.loads += 1
        return self.loads

    def train(self, batch: int) -> None:
        """Start a step, which begins when the last one is done; the first takes longer."""
        if not isinstance(batch, int):
            wrong("train is called without a batch.", "Pass what load() returns.")
        self.now += START_S
        self.done = max(self.done, self.now) + self.train_s + FIRST_S * (not self.trained)
        self.trained.add(batch)

    def wait(self) -> None:
        self.now = max(self.now, self.done)


MACHINES = Machine(0.020, 0.030), Machine(0.050, 0.010), Machine(0.025, 0.025)


def headroom(answer: Callable[..., dict[str, float]]) -> str:
    used = []

    @functools.wraps(answer)
    def measured(new: Machine) -> Any:
        used.append(new)
        work = new.load, new.train, new.wait
        return new.measure(answer, *work, new.clock, BATCH_IMAGES, TIMED_STEPS)

    cases = [(machine,) for machine in MACHINES]
    compare.examine(
        measured, cases, right_rates, HEADROOM_MISTAKES, True, timed_seconds, rel_tol=1e-3
    )
    if any(len(machine.trained) < TIMED_STEPS for machine in used):
        wrong("the rates are right, but for `both` an old batch is trained on.",
              "Train on what load() has just returned.")  # fmt: skip
    return f"{len(MACHINES)} machines: limited by the device, by the loader, and by neither."


def timed_seconds(machine: Machine) -> str:
    images = BATCH_IMAGES * TIMED_STEPS
    seconds = [f"{name} {images / rate:.3g} s" for name, rate in right_rates(machine).items()]
    return (
        f"{images} images take: {', '.join(seconds)}, each from an idle device to an idle device."
        " For both, only the first load or the last step is not hidden."
    )


def right_rates(machine: Machine) -> dict[str, float]:
    """Return the right rates. In turn, only the first load or the last step is not hidden."""
    slower, faster = sorted((machine.load_s, machine.train_s), reverse=True)
    images = BATCH_IMAGES * TIMED_STEPS
    return {
        "loader": BATCH_IMAGES / machine.load_s,
        "device": BATCH_IMAGES / machine.train_s,
        "both": images / (slower * TIMED_STEPS + faster),
    }


def timed(
    machine: Machine, warm_up: bool = True, settle: bool = True, each: bool = False,
    at_end: Sequence[str] = ("loader", "device", "both"), reload: bool = False, once: bool = False,
) -> dict[str, float]:  # fmt: skip
    """Return the rates as usual mistakes measure them; `at_end` are those that wait."""
    batch = machine.load()
    if warm_up:
        machine.train(batch)
        if settle:
            machine.wait()
    found, begin = {}, machine.clock()
    works: dict[str, Callable[[], Any]] = {
        "loader": machine.load,
        "device": lambda: machine.train(machine.load() if reload else batch),
        "both": lambda: machine.train(machine.load()),
    }
    for name, work in works.items():
        begin = begin if once else machine.clock()
        for _ in range(TIMED_STEPS):
            work()
            if each:
                machine.wait()
        if name in at_end:
            machine.wait()
        found[name] = BATCH_IMAGES * TIMED_STEPS / max(machine.clock() - begin, 1e-9)
    return found


HEADROOM_MISTAKES: tuple[compare.Mistake, ...] = (
    (partial(timed, warm_up=False), "the first training step is timed: the device was not warmed"
     " up.", "Load a batch, train on it and wait, before you look at the clock."),
    (partial(timed, settle=False), "the loader's time includes the rest of the warm-up, which was"
     " still running.", "Call wait() after the warm-up, before you look at the clock."),
    (partial(timed, settle=False, at_end=("device", "both")),
     "the warm-up step was still running, so the device's time includes the rest of it.",
     "Call wait() after the warm-up, before you look at the clock."),
    (partial(timed, reload=True),
     "`device` loads a new batch for every step, so it measures the same as `both`.",
     "For `device`, train on the batch of the warm-up again and again."),
    (partial(timed, each=True), "the device waits for the loader and the loader for the device.",
     "Call train right after each load(), and wait() once, after all steps."),
    *((partial(timed, at_end=ends), f"the clock is read before the device is done{at}: only"
       " *starting* the steps is timed.", "Call wait() before you read the clock at the end.")
      for ends, at in (((), ""), (["both"], ", after `device`"), (["device"], ", after `both`"))),
    (partial(timed, once=True), "the clock is started once for all three ways: the times of the"
     " later ones contain the earlier ones.", "Read clock() before each of the three."),
    (lambda machine: {name: rate / BATCH_IMAGES for name, rate in timed(machine).items()},
     "these are batches per second.", "Multiply by `images`, the number of images in a batch."),
    (lambda machine: {name: 1 / rate for name, rate in timed(machine).items()},
     "these are seconds per image.", "Divide the other way round: images by seconds."),
)  # fmt: skip


# --- ex05.exact -----------------------------------------------------------------------------------

VALIDATIONS = (  # images, ranks, batch
    (27, 2, 8), (20, 1, 8), (32, 2, 8), (33, 4, 4), (7, 3, 3),
)  # fmt: skip


def exact(answer: Callable[[int, int, int, int], Sequence[int]]) -> str:
    cases = [(n, rank, size, batch) for n, size, batch in VALIDATIONS for rank in range(size)]
    compare.examine(answer, cases, valid_rows, why=shares)
    return f"{len(VALIDATIONS)} validations, sharded as DALI does: every image once."


def valid_rows(images: int, rank: int, size: int, batch: int) -> list[int]:
    """Return how many rows of each of a rank's batches count."""
    *_, mine, most = counts_of(images, rank, size)
    steps = math.ceil(most / batch)
    counts: np.ndarray = (np.arange(steps * batch) < mine).reshape(steps, batch).sum(1)
    return [int(count) for count in counts]


def counts_of(images: int, rank: int, size: int) -> tuple[int, int, int, int]:
    """Return where a rank's images begin and end, how many it has, and the most of any rank."""
    begins = [images * number // size for number in range(size + 1)]
    counts = np.diff(begins).tolist()
    return begins[rank], begins[rank + 1], counts[rank], max(counts)


def shares(images: int, rank: int, size: int, batch: int) -> str:
    begin, end, mine, most = counts_of(images, rank, size)
    return (
        f"This rank has the {mine} images from {begin} to below {end}; the rank with the most has"
        f" {most}, and all make as many batches of {batch} as that one. Padding does not count."
    )
