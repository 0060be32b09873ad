"""Checks of the functions a learner writes in notebook 08, and the finished versions."""

from __future__ import annotations

import runpy
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from workshop.checks.compare import Mistake, Wrong, like, numbers, refuse, returned, shown, wrong
from workshop.lessons.choice import Function, choose, lesson_check, write_chosen

WARM_UP = (0.09, 0.06)  # seconds of the check's steps
TIMED = (0.02, 0.08, 0.03, 0.03)  # their mean is not their median
NEAR_S = 0.008  # between the end of a step and the clock that is read after it
TRIES = 3  # on a busy machine
ALPHA, BETA = 50e-6, 2e9  # of the check's messages: seconds, and bytes per second
SIZES = 2.0 ** np.arange(12, 28)
SECONDS = (ALPHA + SIZES / BETA) * (1 + 0.3 * ((SIZES > 1e5) & (SIZES < 8e6)))  # tells weights
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


def in_turns(works: Sequence[Any], turns: int, once: Function) -> Any:
    """Return what `once(work)` returns, as an array (turns, works); the works take turns."""
    return np.array([[once(work) for work in works] for _ in range(turns)])


def fit(size: Any, seconds: Any) -> tuple[float, float]:
    """Return α in seconds and β in bytes per second: least squares of the relative errors."""
    columns = np.stack([1 / seconds, size / seconds], axis=1)
    alpha, per_byte = np.linalg.lstsq(columns, np.ones(len(size)))[0]
    return alpha, 1 / per_byte


def causes(alone: Any, together: Any, barrier: Any, exchange: Any) -> tuple[Any, Any, Any]:
    """Return the seconds that contention, waiting and the exchange add to a step."""
    return together - alone, barrier - together, exchange - barrier


def decide(speeds: Any, threshold: float) -> str:
    """Return "buy", "do not buy", or "measure first" if the predictions disagree."""
    enough = [speed >= threshold for speed in speeds]
    return "buy" if all(enough) else "measure first" if any(enough) else "do not buy"


def majority(speeds: Any, threshold: float) -> str:
    """Return a wrong decision: that of most predictions."""
    votes = 2 * sum(speed >= threshold for speed in speeds) - len(speeds)
    return "buy" if votes > 0 else "do not buy" if votes < 0 else "measure first"


STEPS = ((0.20, 0.23, 0.28, 0.40), (0.10, 0.12, 0.11, 0.15))  # alone, together, barrier, exchange
CAUSE_MISTAKES: tuple[Mistake, ...] = (
    (lambda *s: (s[1] - s[0], s[2] - s[0], s[3] - s[0]), "Each includes those before it.",
     "Subtract the run that differs in one thing only: barrier - together, exchange - barrier."),
    (lambda *s: (s[0] - s[1], s[1] - s[2], s[2] - s[3]), "The signs are reversed.",
     "Subtract the run without the cause from the run with it."),
    (lambda *s: (s[1] - s[0], s[2] - s[1], s[3] - s[1]), "The exchange includes the waiting.",
     "DDP's exchange waits, too, as the barrier does: subtract barrier."),
    (lambda *s: (s[1] - s[0], s[2] - s[1], s[3] - s[0]), "The exchange includes all causes.",
     "Subtract barrier, which has the others, too."),
    (lambda *s: (s[1] / s[0], s[2] / s[1], s[3] / s[2]), "These are ratios.",
     "Return seconds: subtract."),
    (lambda *s: tuple(np.maximum(0.0, np.diff(s))),
     "It hides negative differences.", "Keep them: noise goes both ways."),
    (lambda *s: (s[3] - s[2], s[2] - s[1], s[1] - s[0]), "The order is reversed.",
     "Return contention, waiting, exchange."),
    (lambda *s: (s[2] - s[1], s[1] - s[0], s[3] - s[2]), "Waiting comes first.",
     "Return contention, waiting, exchange."),
)  # fmt: skip
DECISIONS = (
    ([1.9, 1.7], 1.6), ([1.9, 1.7], 1.75), ([1.9, 1.7], 1.85), ([1.7, 1.9], 1.8),
    ([1.9, 1.7], 1.95), ([1.9, 1.7], 1.7), ([1.9, 1.7], 1.9),
    ([1.96, 1.93, 1.91, 1.95], 1.92), ([1.96, 1.93, 0.92, 0.95], 1.8),
)  # fmt: skip
DECIDE_MISTAKES: tuple[Mistake, ...] = (
    (lambda speeds, least: "buy" if min(speeds) >= least else
     "do not buy" if max(speeds) <= least else "measure first",
     "A speed equal to the threshold counts as too slow.", "Compare with >= or <."),
    (lambda speeds, least: "buy" if min(speeds) > least else
     "do not buy" if max(speeds) <= least else "measure first",
     "A speed equal to the threshold counts as too slow.", "Compare with >= or <."),
    (majority, "The majority decides.", "One prediction on the other side of the threshold is a"
     " disagreement: return \"measure first\"."),
    (lambda speeds, least: decide(speeds, least) if len(set(speeds)) == 1 else "measure first",
     "Different numbers are no disagreement if all reach the threshold, or none does.",
     "Compare each with the argument `threshold` first."),
    (lambda speeds, least: decide(speeds[:2], least),
     "It looks at two predictions only.", "`speeds` can be of any length: use all of them."),
    (lambda speeds, least: "buy" if min(speeds) > least else
     "do not buy" if max(speeds) < least else "measure first",
     "A speed equal to the threshold is enough.", "Compare with >=."),
    (lambda speeds, least: "buy" if max(speeds) >= least else "do not buy",
     "It trusts the faster prediction.", "If they disagree, return \"measure first\"."),
    (lambda speeds, least: "buy" if min(speeds) >= least else "do not buy",
     "It trusts the slower prediction.", "If they disagree, return \"measure first\"."),
    (lambda speeds, least: "buy" if sum(speeds) >= len(speeds) * least else "do not buy",
     "It takes the mean or the median.", "If the predictions disagree, return \"measure first\"."),
    (lambda speeds, least: "do not buy" if min(speeds) >= least else
     "measure first" if max(speeds) >= least else "buy",
     "It is reversed.", "The threshold is the least speed that you need to buy."),
)  # fmt: skip


def check_clock(yours: Function, file: str) -> Function:
    """Return a learner's `measure` if it is right, else the finished one; print what is wrong.

    The returned version is written to `file`, for scripts.
    """

    def judge() -> None:
        judge_clock(yours)
        write_chosen(file, yours, measure, "measure")
        try:
            runpy.run_path(file)["measure"](int, 1, 0, int)
        except KeyError:
            wrong("Its name in the cell is different.", "Keep `def measure(...)`.")
        except NameError as error:
            wrong(f"In {file}, it is alone, and {error}.", "Import what it needs inside of it.")

    chosen = choose("measure", yours, measure, judge)
    write_chosen(file, chosen, measure, "measure")
    return chosen


class Device:
    """A queue of work, as on a GPU: `step` returns at once, `wait` when all is done."""

    def __init__(self, durations: Sequence[float]) -> None:
        self.pool, self.durations = ThreadPoolExecutor(1), durations
        self.called: list[float] = []
        self.ended: list[float] = []

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
        self.pool.submit(int).result()

    def took(self) -> np.ndarray:
        """Return the seconds of every step, without its time in the queue."""
        begins = np.maximum(self.called, [0, *self.ended[:-1]])
        return np.array(self.ended) - begins


def judge_clock(yours: Function) -> None:
    """Raise Wrong unless a clock returns the right seconds in one of TRIES attempts."""
    for attempt in range(1, TRIES + 1):
        device = Device([*WARM_UP, *TIMED])
        got = yours(device.step, len(TIMED), len(WARM_UP), device.wait)
        called = len(device.called)
        device.wait()
        if not called:
            returned(got)
        try:
            judge_seconds(got, device.took(), called)
            break
        except Wrong:
            if attempt == TRIES:
                raise
    calls: list[int] = []
    got = yours(lambda: calls.append(0), 3, 0, int)
    refuse((len(calls) != 3 or np.size(got) != 3, "With 3 steps and no warm-up, it makes"
            f" {len(calls)} calls and returns {np.size(got)} values.",
            "Use `steps` and `warm_up`."))  # fmt: skip


def judge_seconds(got: Any, took: np.ndarray, called: int) -> None:
    """Raise Wrong unless a clock that made `called` calls returned the right seconds."""
    n, warm_up = len(TIMED), len(WARM_UP)
    refuse(
        (called == n, f"It made {n} calls, so nothing warmed up.",
         "Make `warm_up` calls before those that count."),
        (called != n + warm_up, f"It made {called} calls instead of {n + warm_up}.",
         f"{warm_up} warm up, {n} count."),
        (np.shape(got) == () or isinstance(got, Mapping), f"It returns {shown(got)}.",
         "Return a list of seconds, one per call: a mean or the best of n hides the others."),
    )  # fmt: skip
    values, right = numbers(got, "the result"), took[warm_up:]
    refuse((len(values) != n, f"The list has {len(values)} values.",
            f"Return one for each of the {n} calls that count, without the warm-up."))  # fmt: skip

    def near(first: int = 0) -> bool:
        distance = np.abs(values - right)[first:]
        return bool((distance < NEAR_S + 0.1 * right[first:]).all())

    if near():
        return
    times = [", ".join(f"{seconds:.3g}" for seconds in x) for x in (right, values)]
    refuse(
        ((values < 0.5 * right)[:-1].all(),
         "The times are too short: of queueing the work, or of process_time(), which leaves out"
         " waiting.", "Call wait() after each call, before you read time.perf_counter()."),
        (values[0] > right[0] + NEAR_S and near(1),
         "The first value includes the rest of the warm-up, which was still in the queue.",
         "Call wait() before the clock starts."),
        (np.allclose(values, 1 / right, rtol=0.3), "These are rates.",
         "Return seconds: they can be added, and the mean of rates is not the rate."),
        (np.allclose(values, 1000 * right, rtol=0.3), "These are milliseconds.", "Return seconds."),
    )  # fmt: skip
    wrong(f"The calls took {times[0]} seconds; it returns {times[1]}.",
          "Return the seconds between two readings of time.perf_counter(), before and after each"
          " call.")  # fmt: skip


def judge_turns(yours: Function) -> None:
    """Raise Wrong unless each work runs once per turn, in any order, and its result is kept."""
    works, turns, calls = ["a", "b", "c"], 4, []

    def once(work: str) -> float:
        calls.append(work)
        return 0.75 * len(calls)

    got = returned(yours(works.copy(), turns, once))
    n = len(works)
    rows = [calls[i : i + n] for i in range(0, len(calls), n)]
    order = f"With the works a, b and c and 4 turns, the calls were {' '.join(calls)}."
    refuse(
        (len(calls) != n * turns, f"{order} That is {len(calls)} instead of {n * turns}.",
         "Call `once` for each work in each turn, and no more: it warms up itself."),
        (calls == sorted(calls), f"{order} A slowdown would hit one work only.",
         "Swap the loops: the turns outside, the works inside."),
        (any(set(row) != set(works) for row in rows), order, "Call each work once per turn."),
    )  # fmt: skip
    right = [[0.75 * (n * turn + row.index(work) + 1) for work in works]
             for turn, row in enumerate(rows)]  # fmt: skip
    values = numbers(got, "the result")
    refuse(
        (values.shape == (n, turns), f"Its shape is {values.shape}: a row per work.",
         "Return a row per turn."),
        (values.shape != (turns, n), f"Its shape is {values.shape} instead of {(turns, n)}.",
         "Return a row per turn, with all its results."),
    )  # fmt: skip
    for turn, (row, due) in enumerate(zip(values.tolist(), right, strict=True), 1):
        refuse((row != due, f"Turn {turn} is {shown(row)} instead of {shown(due)}.",
                "Put what `once` returns into the work's column."))  # fmt: skip


def judge_fit(yours: Function) -> None:
    got = returned(yours(SIZES.copy(), SECONDS.copy()))
    refuse((isinstance(got, tuple) and len(got) == 4, "This is all that lstsq returns.",
            "Its first item has α and 1 / β: take [0]."))  # fmt: skip
    alpha, beta = like(got, (0.0, 0.0), "the result")

    def near(*wanted: float) -> bool:
        return bool(np.allclose([alpha, beta], wanted, rtol=0.05))

    if near(*(right := fit(SIZES, SECONDS))):
        alpha, beta = like(yours(LARGE.copy(), ALPHA + LARGE / BETA), (0.0, 0.0), "the result")
        refuse((not near(ALPHA, BETA), f"With α = {1e6 * ALPHA:.0f} µs and messages of 0.2 MB and"
                f" more, it returns {1e6 * alpha:.0f} µs.", "Fit a line to all messages: even the"
                " shortest takes α and its bytes / β."))  # fmt: skip
        alpha, _ = like(yours(LARGE.copy(), LARGE / BETA - ALPHA / 5), (0.0, 0.0), "the result")
        refuse((alpha >= 0, "It never returns an α below 0.",
                "Return what the fit gives: a small negative α is noise."))  # fmt: skip
        return
    columns = np.stack([1 / SECONDS, SIZES / SECONDS], axis=1)
    unscaled = np.linalg.lstsq(columns, SECONDS)[0]
    lines = [np.polyfit(SIZES, SECONDS, 1, w=SECONDS**-power) for power in (0, 0.5, 2)]
    unweighted, *otherwise = ((start, 1 / per_byte) for per_byte, start in lines)
    refuse(
        (near(right[0], 1 / right[1]), "The second number is in seconds per byte.",
         "β is bytes per second, its inverse."),
        (near(*right[::-1]) or near(1 / right[1], right[0]), "β comes first.", "Return α first."),
        (near(1e6 * right[0], right[1] / 1e9), "These are µs and GB/s.",
         "Return seconds, and bytes per second."),
        (near(unscaled[0], 1 / unscaled[1]), "Only the left side is divided by `seconds`.",
         "On the right, seconds / seconds is 1: pass np.ones(len(size))."),
        (near(*unweighted) or near(unweighted[0], lines[0][0]),
         f"α is {1e6 * alpha:.0f} µs, but 4 KB take {1e6 * SECONDS[0]:.0f} µs: the largest messages"
         " dominate the squares.", "Divide both sides by `seconds` first."),
        (any(near(*line) for line in otherwise), "Messages do not all count the same.",
         "polyfit squares its weights, too: pass w=1 / seconds."),
    )  # fmt: skip
    texts = [f"{a:.3g} and {b:.3g}" for a, b in ((alpha, beta), right)]
    wrong(f"For the check's messages, α and β are {texts[0]} instead of {texts[1]}.",
          "Compare your equation with the one above.")  # fmt: skip


check = lesson_check(
    (causes, STEPS, CAUSE_MISTAKES),
    (decide, DECISIONS, DECIDE_MISTAKES),
    (fit, judge_fit),
    (in_turns, judge_turns),
    measure=check_clock,
)
