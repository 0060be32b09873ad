"""Checks of the functions a learner writes in notebook 08, and the finished versions."""

from __future__ import annotations

import inspect
import runpy
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from workshop.checks.compare import Mistake, Wrong, like, refuse, wrong
from workshop.lessons.choice import Function, choose, choose_by_cases, write_chosen

WARM_UP = (0.09, 0.06)  # seconds of the check's steps
TIMED = (0.02, 0.08, 0.03, 0.03)  # their mean is not their median
NEAR_S = 0.008  # between the end of a step and the clock that is read after it
TRIES = 3  # on a busy machine
UNITS = {"seconds": 1, "milliseconds": 1e3, "microseconds": 1e6, "nanoseconds": 1e9}
ALPHA, BETA = 50e-6, 2e9  # of the check's messages: seconds, and bytes per second
SIZES = 2.0 ** np.arange(12, 28)
NOISE = 0.03 * np.resize([1, -1, -1, 1], len(SIZES))
NOISE[[0, -1]] = 0.3  # two of them are not enough for a fit
SECONDS = (ALPHA + SIZES / BETA) * (1 + NOISE)
LARGE = 100 * 2.0 ** np.arange(11, 19)  # those of bench.py


def measure(step: Function, steps: int, warm_up: int, wait: Function) -> list[float]:
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


def causes(alone: Any, together: Any, barrier: Any, exchange: Any) -> tuple[Any, Any, Any]:
    """Return the seconds that contention, waiting and the exchange add to a step."""
    return together - alone, barrier - together, exchange - barrier


STEPS = ((0.20, 0.23, 0.28, 0.40), (0.10, 0.12, 0.11, 0.15))  # alone, together, barrier, exchange
CAUSE_MISTAKES: tuple[Mistake, ...] = (
    (lambda *s: (s[1] - s[0], s[2] - s[0], s[3] - s[0]), "Each includes those before it.",
     "Subtract the run that differs in one thing only: barrier - together, exchange - barrier."),
    (lambda *s: (s[0] - s[1], s[1] - s[2], s[2] - s[3]), "The signs are reversed.",
     "Subtract the run without the cause from the run with it."),
    (lambda *s: (s[1] - s[0], s[2] - s[1], s[3] - s[1]), "The exchange includes the waiting.",
     "DDP's exchange waits, too, as the barrier does: subtract barrier."),
    (lambda *s: (s[1] / s[0], s[2] / s[1], s[3] / s[2]), "These are ratios.",
     "Return differences, in seconds."),
)  # fmt: skip


def check_clock(yours: Function, file: str) -> Function:
    """Return a learner's `measure` if it is right, else the finished one; print what is wrong.

    The returned version is written to `file`, for scripts.
    """

    def judge() -> str:
        said = judge_clock(yours)
        write_chosen(file, yours, measure, "measure")
        try:
            runpy.run_path(file)["measure"](int, 1, 0, int)
        except NameError as error:
            wrong(f"In {file}, it is alone, and {error}.", "Import what it needs inside of it.")
        return said

    chosen = choose("measure", yours, measure, judge, show=True)
    write_chosen(file, chosen, measure, "measure")
    return chosen


def check_fit(yours: Function) -> Function:
    """Return a learner's `fit` if it is right, else the finished one; print what is wrong."""
    return choose("fit", yours, fit, lambda: judge_fit(yours), show=True)


def check_causes(yours: Function) -> Function:
    """Return a learner's `causes` if it is right, else the finished one; print what is wrong."""
    return choose_by_cases("causes", yours, causes, STEPS, CAUSE_MISTAKES, show=True)


class Device:
    """A queue of work, as on a GPU: `step` returns at once, `wait` when all is done."""

    def __init__(self, durations: Sequence[float]) -> None:
        self.pool, self.durations = ThreadPoolExecutor(1), durations
        self.called: list[float] = []
        self.ended: list[float] = []
        self.waited = 0  # calls before the last wait
        self.waits = 0

    def step(self) -> None:
        """Put a step of the next duration into the queue."""
        duration = self.durations[len(self.called) % len(self.durations)]
        self.called.append(time.perf_counter())
        self.pool.submit(self.work, duration)

    def work(self, seconds: float) -> None:
        time.sleep(seconds)
        self.ended.append(time.perf_counter())

    def wait(self) -> None:
        """Return when the queue is empty."""
        self.waited = len(self.called)
        self.waits += 1
        self.pool.submit(int).result()

    def took(self) -> np.ndarray:
        """Return the seconds of every step, without its time in the queue."""
        begins = np.maximum(self.called, [0, *self.ended[:-1]])
        return np.array(self.ended) - begins


def judge_clock(yours: Function) -> str:
    judge_turns(yours, "seconds")
    return "`measure` is right: the notebook uses yours."


def judge_turns(yours: Function, unit: str) -> None:
    """Raise Wrong unless a clock returns the right times in `unit`, in one of TRIES attempts."""
    for attempt in range(1, TRIES + 1):
        device = Device([*WARM_UP, *TIMED])
        got = yours(device.step, len(TIMED), len(WARM_UP), device.wait)
        refuse((inspect.isgenerator(got), "It yields: nothing runs until the values are read.",
                f"Return a list of {unit}."))  # fmt: skip
        called = len(device.called)
        waited = device.waited == called and device.waits >= len(TIMED)
        device.wait()
        if got is None and not called:
            raise NotImplementedError
        try:
            judge_seconds(got, device.took(), called, waited, unit)
            return
        except Wrong:
            if attempt == TRIES:
                raise


def judge_seconds(got: Any, took: np.ndarray, called: int, waited: bool, unit: str) -> None:
    """Raise Wrong unless a clock returned the right times in `unit`.

    It made `called` calls, and `waited` for each that counts.
    """
    n, warm_up = len(TIMED), len(WARM_UP)
    scale = UNITS[unit]
    refuse(
        (got is None, "It returns nothing.", f"Return the list of {unit}."),
        (called == n, f"It made {n} calls, so nothing warmed up.",
         "Make `warm_up` calls before those that count."),
        (called != n + warm_up, f"It made {called} calls instead of {n + warm_up}.",
         f"{warm_up} warm up, {n} count."),
    )  # fmt: skip
    try:
        values = np.asarray(got, dtype=float) / scale
    except (TypeError, ValueError):
        wrong(f"It returns {type(got).__name__}.", f"Return a list of {unit}, one per call.")
    right = took[warm_up:]
    if values.ndim == 0:
        wrong(f"It returns one number, {name_of(float(values), right)}.",
              f"Return the list of {unit}, one per call.")  # fmt: skip
    refuse(
        (len(values) == n + warm_up, "The calls of the warm-up are in the list.",
         "Leave them out."),
        (len(values) != n, f"The list has {len(values)} values.",
         f"Return one for each of the {n} calls that count."),
    )  # fmt: skip

    def near(wanted: Any, at: slice = slice(None)) -> bool:
        distance = np.abs(values[at] - np.asarray(wanted)[at])
        return bool((distance < NEAR_S + 0.1 * np.abs(np.asarray(wanted)[at])).all())

    if near(right):
        return
    shown, wanted = (", ".join(f"{scale * v:.3g}" for v in x) for x in (values, right))
    rates = [1 / right / scale, 1 / right / scale**2]  # per second, and per unit
    refuse(
        *((np.allclose(scale * values, per * right, rtol=0.3), f"These are {other}.",
           f"Return {unit}.") for other, per in UNITS.items() if other != unit),
        ((values < 0.5 * right).all() and waited,
         "The times are too short, although it waits.",
         "Call wait() after the call, before you read the clock; read time.perf_counter(), because"
         " process_time() does not count waiting."),
        ((values < 0.5 * right).all(),
         "It does not wait: each value is the time to queue the work, not to do it.",
         "Call wait() after each call, before you read the clock."),
        (np.allclose(values[:-1], 0, atol=NEAR_S) and values[-1] > right.max(),
         "It waits only once, after the last call.", "Call wait() after every call."),
        (values[0] > right[0] + NEAR_S and near(right, slice(1, None)),
         "The first value includes the rest of the warm-up, which was still in the queue.",
         "Call wait() before the clock starts."),
        (any(np.allclose(values, rate, rtol=0.3) for rate in rates), "These are rates.",
         f"Return {unit}: they can be added, and the mean of rates is not the rate."),
    )  # fmt: skip
    wrong(f"The calls took {wanted} {unit}; it returns {shown}.", "Time one call after another.")


def name_of(value: float, right: np.ndarray) -> str:
    """Return what a clock that returns one number has computed."""
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
    return name if abs(value / known[name] - 1) < 0.2 else f"{value:.3g}"


def judge_fit(yours: Function) -> str:
    got = yours(SIZES.copy(), SECONDS.copy())
    if got is None:
        raise NotImplementedError
    alpha, beta = like(got, (0.0, 0.0), "The result")

    def near(*wanted: float) -> bool:
        return bool(np.allclose([alpha, beta], wanted, rtol=0.2))

    if near(ALPHA, BETA):
        alpha, beta = like(yours(LARGE.copy(), ALPHA + LARGE / BETA), (0.0, 0.0), "The result")
        refuse((not near(ALPHA, BETA), f"With α = {1e6 * ALPHA:.0f} µs and messages of 0.2 MB and"
                f" more, it returns {1e6 * alpha:.0f} µs.", "Fit a line to all messages: even the"
                " shortest takes α and its bytes / β."))  # fmt: skip
        return "`fit` is right: the notebook uses yours."
    per_byte, start = np.polyfit(SIZES, SECONDS, 1)
    ends_per_byte, ends_start = np.polyfit(SIZES[[0, -1]], SECONDS[[0, -1]], 1)
    columns = np.stack([1 / SECONDS, SIZES / SECONDS], axis=1)
    half_start, half_per_byte = np.linalg.lstsq(columns, SECONDS)[0]
    refuse(
        (near(ALPHA, 1 / BETA), "The second number is in seconds per byte.",
         "β is bytes per second, its inverse."),
        (near(BETA, ALPHA) or near(1 / BETA, ALPHA), "β comes first.", "Return α first."),
        (near(1e3 * ALPHA, BETA) or near(1e6 * ALPHA, BETA), "α is not in seconds.",
         "Return it as the fit gives it."),
        (near(ALPHA, BETA / 1e6) or near(ALPHA, BETA / 1e9), "β is not in bytes per second.",
         "Return it as the fit gives it."),
        (near(1 / BETA, 1 / ALPHA), "The columns are swapped.", "The column of α is 1 / seconds."),
        (near(half_start, 1 / half_per_byte), "Only one side of the equation is divided.",
         "seconds / seconds is 1: pass np.ones(len(size))."),
        (near(ends_start, 1 / ends_per_byte),
         "Only the first and the last message count, and both took longer than usual.",
         "Use all of them: np.linalg.lstsq."),
        (near(start, 1 / per_byte) or near(start, per_byte),
         f"α is {1e6 * alpha:.0f} µs, but 4 KB take {1e6 * SECONDS[0]:.0f} µs: the largest messages"
         " dominate the squares.", "Divide both sides by `seconds` first."),
    )  # fmt: skip
    wrong(f"For messages with α = {ALPHA:.3g} s and β = {BETA:.3g} bytes/s, it returns"
          f" {alpha:.3g} and {beta:.3g}.", "Compare your equation with the one above.")  # fmt: skip
