"""Checks of ex08: a benchmark's rate, the time of a ring, hidden communication, the capstone."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from workshop import paths, session
from workshop.checks import capstone as script
from workshop.checks import capstone_judge, compare
from workshop.checks.compare import wrong
from workshop.trace import trace as show_trace

# --- ex08.rate ------------------------------------------------------------------------------------

RUNS: tuple[tuple[list[int], list[float], int], ...] = (  # images, seconds, warm-up iterations
    ([32, 32, 32, 32], [4.0, 0.25, 0.5, 1.0], 1),
    ([32, 32, 32, 8], [1.0, 0.5, 0.25, 0.5], 0),
    ([16, 64, 8, 16, 64], [9.0, 5.0, 0.5, 0.5, 2.0], 2),
    ([100], [2.0], 0),
    ([32, 32], [1.0, 1.0], 2),  # nothing is left
    ([], [], 0),
    ([8], [1.0], 3),
)


def rate(answer: Callable[[list[int], list[float], int], float | None]) -> str:
    compare.examine(answer, RUNS, total_rate)
    return f"{len(RUNS)} runs, with and without warm-up, a smaller last batch, and nothing left."


def total_rate(images: Sequence[int], seconds: Sequence[float], warmup: int) -> float | None:
    return sum(images[warmup:]) / sum(seconds[warmup:]) if images[warmup:] else None


# --- ex08.ring ------------------------------------------------------------------------------------

WORKERS = (2, 8, 512)
BYTES, BANDWIDTH, LATENCY = 100e6, 12.5e9, 20e-6
WHOLE = BYTES / BANDWIDTH  # seconds that all gradients take


def ring_seconds(workers: int) -> float:
    """Return the time of a ring all-reduce: each message waits for the one before it."""
    return 2 * (workers - 1) * (LATENCY + WHOLE / workers)


def in_ms(seconds: Callable[[int], float]) -> dict[int, float]:
    return {n: 1000 * seconds(n) for n in WORKERS}


RING_MISTAKES: tuple[compare.Mistake, ...] = (
    (in_ms(lambda n: 2 * (n - 1) / n * WHOLE), "the latency is missing.",
     "Add it once for each of the 2 (n − 1) messages."),
    (in_ms(lambda n: 2 * (n - 1) / n * WHOLE + LATENCY), "the latency is counted once.",
     "Add it for each message, which starts when the previous one has arrived."),
    (in_ms(lambda n: ring_seconds(n) / 2), "this is half of the exchange.",
     "Count both rounds: n − 1 messages for the sums, and n − 1 more to hand them out."),
    (in_ms(lambda n: 2 * (n - 1) * (LATENCY + WHOLE)), "every message carries all gradients.",
     "Send chunks: in a ring, a message carries 1/n of them."),
)  # fmt: skip
RING_EXAMPLE = (
    "Count the messages, then the time of each: with 2 workers, 2 messages, each of 20 µs and the"
    " time of 50 MB (100 MB take 8 ms)."
)


def ring(answer: Any) -> str:
    right = in_ms(ring_seconds)
    compare.predicted(answer, right, RING_MISTAKES, RING_EXAMPLE)
    times = ", ".join(f"{n} workers {ms:.2f} ms" for n, ms in right.items())
    few, most = min(right), max(right)
    return f"{times}. {most} workers take {right[most] / right[few]:.1f} times as long as {few}."


# --- ex08.overlap ---------------------------------------------------------------------------------

# compute, when the buckets are ready, and their exchange, all in seconds
EXCHANGES: tuple[tuple[float, list[float], list[float]], ...] = (
    (0.1, [0.04, 0.06, 0.08], [0.01, 0.01, 0.01]),
    (0.1, [0.04, 0.06, 0.1], [0.01, 0.01, 0.03]),
    (0.1, [0.04, 0.06, 0.1], [0.05, 0.03, 0.02]),
    (0.1, [0.04, 0.06, 0.1], [0.01, 0.08, 0.005]),
    (0.2, [0.2], [0.05]),
    (0.2, [], []),
)


def overlap(answer: Callable[[float, list[float], list[float]], float]) -> str:
    def right(*case: Any) -> float:
        return case[0] / step_seconds(*case)[0]

    compare.examine(answer, EXCHANGES, right, why=link)
    return f"{len(EXCHANGES)} steps: hidden, exposed, queued, one bucket, no exchange."


def step_seconds(
    compute: float, ready: Sequence[float], takes: Sequence[float]
) -> tuple[float, list[tuple[float, float]]]:
    """Return the end of a step, and when its only link begins and ends to send each bucket."""
    free, sent = 0.0, []
    for at, seconds in zip(ready, takes, strict=True):
        begin = max(free, at)
        free = begin + seconds
        sent.append((begin, free))
    return max(compute, free), sent


def link(compute: float, ready: Sequence[float], takes: Sequence[float]) -> str:
    end, sent = step_seconds(compute, ready, takes)
    times = ", ".join(f"{begin:g} to {free:g}" for begin, free in sent) or "nothing"
    return f"In seconds: the link sends {times}; compute 0 to {compute:g}, the step 0 to {end:g}."


class Timeline(NamedTuple):
    """A backward pass: its seconds without and with the exchange, and its buckets."""

    alone: float
    together: float
    ready: list[float]
    takes: list[float]
    source: str


def read_timeline(runs: Path) -> Timeline:
    """Return the first timeline that notebook 03 measured, else a recorded one."""
    file = runs / "lesson-03" / "overlap.json"
    source = f"notebook 03 on this machine: {file}"
    # a run that failed leaves an empty one, and an earlier notebook wrote no messages
    if not file.exists() or '"messages"' not in file.read_text():
        file = paths.need_checkout() / "notebooks/expected/traces/03/overlap.json"
        source = file.with_suffix(".txt").read_text().strip()
    found = json.loads(file.read_text())
    one = found["runs"][0]
    alone, together = statistics.median(one["alone"]), statistics.median(one["together"])
    return Timeline(alone, together, [at for at, *_ in one["buckets"]], found["messages"], source)


# --- ex08.capstone --------------------------------------------------------------------------------

TARGET = 3.0  # times as fast as the slow script
SMALL = {"train": 5, "val": 2}  # images of each class for profile ci
TURNS = 3  # at most: the last one decides if the first two do not agree


def quick() -> bool:
    """Return True under profile ci, which takes seconds and measures nothing."""
    here = session.current()
    return here is not None and here.profile == "ci"


def capstone(answer: Callable[[str, str], None]) -> str:
    with script.images() as case, tempfile.TemporaryDirectory() as folder:
        _right_run(answer, case, "checking your script", Path(folder, "trace.json"))
        if quick():
            return "all correct. Profile ci does not measure the speed: check again in profile cpu."
        ratios: list[float] = []
        for turn in range(1, TURNS + 1):
            slow = script.observe(case, script.baseline(), f"turn {turn}, the slow script").seconds
            fast = _right_run(answer, case, f"turn {turn}, your script").seconds
            ratios.append(slow / fast)
            if turn > 1 and len({one >= TARGET for one in ratios}) == 1:
                break  # both say the same: the third is for a tie
    ratio = statistics.median(ratios)
    told = ", ".join(f"{one:.1f}" for one in ratios)
    if ratio < TARGET:
        wrong(
            f"all correct, but only {ratio:.1f} times as fast as the slow script; the target is"
            f" {TARGET:g} times ({told} in {len(ratios)} turns).",
            "What work is repeated in every epoch, or done in Python for every pixel?",
        )
    return (
        f"all correct, and {ratio:.1f} times as fast as the slow script ({told} in"
        f" {len(ratios)} turns; in the last, {fast:.1f} and {slow:.1f} seconds)."
    )


def _right_run(
    answer: Callable[..., Any], case: script.Case, doing: str, trace: Path | None = None
) -> script.Seen:
    """Return a run of the learner's script that keeps all the rules."""
    seen = script.run_answer(answer, case, doing, trace)
    if found := capstone_judge.problems(seen, case):
        more = " The check found more, which may have the same cause." if len(found) > 1 else ""
        wrong(found[0][0] + more, found[0][1])
    return seen


def look(function: Callable[[str, str], None] | None = None) -> None:
    """Run a script once, by default the slow one; show its speed, its results and a trace."""
    if not session.has("torch"):
        return
    with script.images(SMALL if quick() else None) as case:
        file = here.folder / "capstone.json" if (here := session.current()) else None
        if function is None:
            seen = script.observe(case, script.baseline(), "the slow script", file)
        else:
            seen = script.run_answer(function, case, "your script", file)
    print(f"{len(seen.rates)} steps with {seen.trained.sum():,} images in {seen.seconds:.1f} s.")
    for name, values in (seen.report or {}).items():
        print(f"The script reports {name}: {', '.join(f'{value:.3g}' for value in values)}")
    if file and file.exists():
        show_trace(file)
