"""Checks of the functions a learner writes in notebook 08, and the finished versions."""

from __future__ import annotations

import inspect
import itertools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from workshop.checks.alone import cell_of
from workshop.lessons.nb04 import report

Clock = Callable[..., Any]
Fit = Callable[..., Any]

WARM_UP = (0.09, 0.06)  # seconds of the check's steps
TIMED = (0.02, 0.08, 0.03, 0.03)  # their mean is not their median
NEAR_S = 0.008  # between the end of a step and the clock that is read after it
TRIES = 3  # on a busy machine
ALPHA, BETA = 50e-6, 2e9  # of the check's messages: seconds, and bytes per second
SIZES = 4.0 ** np.arange(6, 14)
SECONDS = (ALPHA + SIZES / BETA) * (1 + 0.03 * np.resize([1, -1, -1, 1], len(SIZES)))


def measure(step: Clock, steps: int, warm_up: int, wait: Clock) -> list[float]:
    """Return the seconds of each of `steps` steps, after `warm_up` steps that do not count."""
    for _ in range(warm_up):
        step()
    seconds = []
    for _ in range(steps):
        wait()
        begin = time.perf_counter()
        step()
        wait()
        seconds.append(time.perf_counter() - begin)
    return seconds


def fit(size: Any, seconds: Any) -> tuple[float, float]:
    """Return α in seconds and β in bytes per second: least squares of the relative errors."""
    columns = np.stack([1 / seconds, size / seconds], axis=1)
    alpha, per_byte = np.linalg.lstsq(columns, np.ones(len(size)))[0]
    return alpha, 1 / per_byte


def check_clock(yours: Clock, file: str) -> Clock:
    """Print what is wrong with a learner's `measure`; return it if right, else the finished one.

    The returned version is written to `file`, for scripts.
    """
    chosen = report("measure", yours, measure, find_clock_mistake(yours))
    own = chosen is yours and yours is not measure
    text = cell_of(yours) if own else inspect.getsource(measure).replace(": Clock", "")
    used = {"np.": "import numpy as np\n", "torch.": "import torch\n"}  # the notebook has them
    imports = "".join(line for name, line in used.items() if name in text)
    Path(file).write_text(f"import time\n{imports}\n\n{text.lstrip()}")
    return chosen  # type: ignore[no-any-return]


def check_fit(yours: Fit) -> Fit:
    """Print what is wrong with a learner's `fit`; return it if right, else the finished one."""
    return report("fit", yours, fit, find_fit_mistake(yours))  # type: ignore[no-any-return]


class Device:
    """A queue of work, as on a GPU: `step` returns at once, `wait` when all is done."""

    def __init__(self, durations: Sequence[float]) -> None:
        self.pool, self.durations = ThreadPoolExecutor(1), durations
        self.called: list[float] = []
        self.ended: list[float] = []
        self.waits = 0

    def step(self) -> None:
        """Put a step of the next duration into the queue."""
        duration = self.durations[len(self.called) % len(self.durations)]
        self.called.append(time.perf_counter())
        self.pool.submit(self.work, duration)

    def work(self, seconds: float) -> None:
        """Take some time, as a step does."""
        time.sleep(seconds)
        self.ended.append(time.perf_counter())

    def wait(self) -> None:
        """Return when the queue is empty."""
        self.waits += 1
        self.pool.submit(int).result()

    def took(self) -> np.ndarray:
        """Return the seconds of every step, without its time in the queue."""
        begins = np.maximum(self.called, [0, *self.ended[:-1]])
        return np.array(self.ended) - begins


def find_clock_mistake(yours: Clock) -> str | None:
    """Return what is wrong with a clock, None if nothing, "" if not attempted."""
    found: str | None = None
    for _ in range(TRIES):
        device = Device([*WARM_UP, *TIMED])
        try:
            got = yours(device.step, len(TIMED), len(WARM_UP), device.wait)
        except Exception as error:
            return f"It ended with {type(error).__name__}: {error}"
        called, waits = len(device.called), device.waits
        device.wait()
        if got is None:
            return "It returns nothing: return the list of seconds." if called else ""
        found = diagnose_clock(got, device.took(), called, waits)
        if found is None:
            break
    return found


def diagnose_clock(got: Any, took: np.ndarray, called: int, waits: int) -> str | None:
    """Return what is wrong with the seconds that a clock returned, None if nothing."""
    n, warm_up = len(TIMED), len(WARM_UP)
    try:
        values = np.asarray(got, dtype=float)
    except (TypeError, ValueError):
        return f"It returns {type(got).__name__}: return a list of seconds, one per step."
    if called == n:
        return (
            f"It ran {n} steps, so nothing warmed up: call step() `warm_up` times before those"
            " that count."
        )
    if called != n + warm_up:
        return f"It ran {called} steps instead of {n + warm_up}: {warm_up} warm up, {n} count."
    right = took[warm_up:]
    if values.ndim == 0:
        return one_number(float(values), right)
    if len(values) == n + warm_up:
        return "The steps of the warm-up are in the list: leave them out."
    if len(values) != n:
        return f"The list has {len(values)} values: one for each of the {n} steps that count."

    def near(wanted: Any, at: slice = slice(None)) -> bool:
        distance = np.abs(values[at] - np.asarray(wanted)[at])
        return bool((distance < NEAR_S + 0.1 * np.abs(np.asarray(wanted)[at])).all())

    if near(right):
        return None
    rest = slice(1, None)
    if (values < 0.5 * right).all():
        return (
            "It does not wait: each value is the time to queue a step, not to run it. Call wait()"
            " after step(), before you read the clock."
        )
    if np.allclose(values[:-1], 0, atol=NEAR_S) and values[-1] > right.max():
        return "It waits only once, after the last step: call wait() after every step."
    if values[0] > right[0] + NEAR_S and near(right, rest):
        return (
            "The first value includes the rest of the warm-up, which was still in the queue: call"
            " wait() before the clock starts."
        )
    if near(took[warm_up - 1 : -1], rest):
        return "Each value is the step before: call wait() between step() and the second reading."
    if np.allclose(values, 1000 * right, rtol=0.3):
        return "These are milliseconds: return seconds."
    if np.allclose(values, 1 / right, rtol=0.3):
        return (
            "These are rates. Return seconds: they can be added, and the mean of rates is not the"
            " rate."
        )
    if near(np.cumsum(right)):
        return "These are the seconds since the start: read the clock again before each step."
    if np.ptp(values) < 1e-9:
        return "All values are equal: return each step's own seconds, not their mean."
    shown, wanted = (", ".join(f"{v:.3f}" for v in x) for x in (values, right))
    return f"The steps took {wanted} s; it returns {shown}."


def one_number(value: float, right: np.ndarray) -> str:
    """Return which mistake explains a clock that returns one number."""
    rates = 1 / right
    known = {
        "the shortest step: the best of n says nothing about the others": right.min(),
        "the rate of the fastest step: the best of n says nothing about the others": rates.max(),
        "the mean of the rates: it counts a fast step as much as a slow one": rates.mean(),
        "steps per second": len(right) / right.sum(),
        "the total": right.sum(),
        "the median": np.median(right),
        "the mean": right.mean(),
    }
    name = min(known, key=lambda name: abs(value / known[name] - 1))
    what = name if abs(value / known[name] - 1) < 0.2 else f"{value:.3g}"
    return f"It returns one number, {what}. Return the list of seconds, one per step."


def find_fit_mistake(yours: Fit) -> str | None:
    """Return what is wrong with a fit, None if nothing, "" if not attempted."""
    try:
        got = yours(SIZES.copy(), SECONDS.copy())
        if got is None:
            return ""
        alpha, beta = map(float, got)
    except Exception as error:
        return f"It ended with {type(error).__name__}: {error}. Return two numbers, α and β."

    def near(*wanted: float) -> bool:
        return bool(np.allclose([alpha, beta], wanted, rtol=0.2))

    if near(ALPHA, BETA):
        return None
    if near(ALPHA, 1 / BETA):
        return "The second number is in seconds per byte: β is bytes per second, its inverse."
    if near(BETA, ALPHA) or near(1 / BETA, ALPHA):
        return "Return α first."
    for unit, factors in itertools.product((1e3, 1e6), ((1, 0), (1, 1))):
        if near(ALPHA * unit ** factors[0], BETA / unit ** factors[1]):
            return "The units differ: α in seconds, β in bytes per second."
    per_byte, start = np.polyfit(SIZES, SECONDS, 1)
    if near(float(start), float(1 / per_byte)) or near(float(start), float(per_byte)):
        return (
            f"α is {1e6 * alpha:.0f} µs, but 4 KB take {1e6 * SECONDS[0]:.0f} µs: the largest"
            " messages dominate the squares. Divide both sides by `seconds` first."
        )
    return (
        f"For messages with α = {1e6 * ALPHA:.0f} µs and β = {BETA / 1e9:g} GB/s it returns"
        f" {alpha:.3g} and {beta:.3g}."
    )
