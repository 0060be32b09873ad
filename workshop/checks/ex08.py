"""Checks of ex08: a benchmark's rate, the time of a ring, the size of buckets, the capstone."""

from __future__ import annotations

import json
import statistics
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from workshop import paths, session
from workshop.checks import alone, capstone_judge, compare
from workshop.checks import capstone as script
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
    compare.examine(answer, RUNS, total_rate, RATE_MISTAKES, one_case=True)
    return f"{len(RUNS)} runs, with and without warm-up, a smaller last batch, and nothing left."


def total_rate(images: Sequence[int], seconds: Sequence[float], warmup: int) -> float | None:
    return sum(images[warmup:]) / sum(seconds[warmup:]) if images[warmup:] else None


def mean_of_rates(images: Sequence[int], seconds: Sequence[float], warmup: int) -> float | None:
    rates = [n / s for n, s in zip(images, seconds, strict=True)][warmup:]
    return statistics.mean(rates) if rates else None


def harmonic(images: Sequence[int], seconds: Sequence[float], warmup: int) -> float | None:
    times = [s / n for n, s in zip(images, seconds, strict=True)][warmup:]
    return len(times) / sum(times) if times else None


RATE_MISTAKES: tuple[compare.Mistake, ...] = (
    (harmonic, "this is the harmonic mean of the iterations' rates, right for equal batches only.",
     "Divide all images by all seconds."),
    (mean_of_rates, "this is the mean of the iterations' rates.",
     "It counts fast iterations too much: divide all images by all seconds."),
    (lambda images, seconds, warmup: total_rate(images, seconds, 0), "the warm-up is counted.",
     "Leave it out of both lists: [warmup:]."),
    (lambda images, seconds, warmup: sum(images) / sum(seconds[warmup:]) if seconds[warmup:]
     else None, "the images of the warm-up are counted, but not its seconds.",
     "Leave it out of both lists: [warmup:]."),
)  # fmt: skip


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
    (in_ms(lambda n: 2 * (n - 1) * (1000 * LATENCY + WHOLE / n)), "the latency is 20 ms.",
     "20 µs are 0.02 ms."),
    (in_ms(lambda n: 2 * n * (LATENCY + WHOLE / n)), "these are 2n messages.",
     "A chunk visits n workers in n − 1 messages, not n."),
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

# compute, when the gradients are ready, their bytes, the cap, latency and bandwidth; in seconds
EXCHANGES: tuple[tuple[float, list[float], list[float], float, float, float], ...] = (
    (0.1, [0.02, 0.04, 0.06, 0.1], [10e6, 40e6, 25e6, 5e6], 25e6, 0.004, 1e9),
    (0.2, [0.05, 0.1, 0.15], [10e6, 10e6, 10e6], 1e6, 0.001, 1e9),  # hidden
    (0.1, [0.03, 0.06, 0.1], [20e6, 30e6, 10e6], 1e9, 0.002, 2e9),  # one bucket
    (0.03, [0.01, 0.011, 0.012, 0.03], [1e6, 1e6, 1e6, 1e6], 0.0, 0.01, 1e9),  # a queue
    (0.2, [0.2], [50e6], 25e6, 0.0, 1e9),
)
Exchange = Callable[[float, list[float], list[float], float, float, float], float]


def overlap(answer: Exchange) -> str:
    compare.examine(answer, EXCHANGES, hidden, OVERLAP_MISTAKES, one_case=True, why=link)
    return f"{len(EXCHANGES)} passes: several buckets, hidden, one bucket, a queue, one gradient."


def messages(
    ready: Sequence[float], nbytes: Sequence[float], cap: float, latency: float, bandwidth: float,
    queue: bool = True, last: bool = True, reset: bool = True, each: bool = False,
    closed: Callable[[float, float, float], bool] = lambda held, cap, following: held >= cap,
) -> list[tuple[float, float, float]]:  # fmt: skip
    """Return the bytes of each message, and when the only link begins and ends to send it.

    By default it is right; the keywords are for mistakes.
    """
    sent, held, count = [(0.0, 0.0, 0.0)], 0.0, 0
    for at, size, following in zip(ready, nbytes, [*nbytes[1:], 0.0], strict=True):
        held, count = held + size, count + 1
        if closed(held, cap, following) or (last and not following):
            begin = max(sent[-1][2], at) if queue else at
            seconds = latency * (count if each else 1) + held / bandwidth
            sent.append((held, begin, begin + seconds))
            held, count = 0.0 if reset else held, 0
    return sent[1:] or sent


def hidden(compute: float, *exchange: Any, **mistake: Any) -> float:
    """Return the efficiency."""
    return compute / max(compute, messages(*exchange, **mistake)[-1][2])


def link(compute: float, *exchange: Any) -> str:
    sent = messages(*exchange)
    sizes = ", ".join(f"{held / 1e6:g}" for held, *_ in sent)
    times = ", ".join(f"{begin:g} to {end:g}" for _, begin, end in sent)
    return (
        f"The buckets hold {sizes} MB. In seconds, the link is busy from {times}; the compute ends"
        f" at {compute:g}, the pass at {max(compute, sent[-1][2]):g}."
    )


OVERLAP_MISTAKES: tuple[compare.Mistake, ...] = (
    (lambda *case: hidden(*case, queue=False), "messages overlap on the only link.",
     "A message starts at the later of two times: its bucket is closed, and the link is free."),
    (lambda *case: hidden(*case, last=False), "the last bucket is lost if it is not full.",
     "The last gradient closes it, too."),
    (lambda *case: hidden(*case, reset=False), "a bucket keeps the bytes of those before it.",
     "Count a bucket's bytes from 0 after each message."),
    (lambda *case: hidden(*case, each=True), "every gradient pays the latency.",
     "Add it once per bucket."),
    (lambda compute, *exchange: compute / messages(*exchange)[-1][2],
     "the pass ends with the last message, even before the compute ends.",
     "It ends with the later of the two: max(compute, …)."),
    (lambda *case: hidden(*case, closed=lambda held, cap, following: held > cap),
     "a bucket with exactly `cap` bytes stays open.", "Use >=."),
    (lambda *case: hidden(*case, closed=lambda held, cap, following: held + following > cap),
     "no bucket holds more than `cap`.",
     "Add the gradient first; the bucket is closed when it holds at least `cap`."),
)  # fmt: skip


class Timeline(NamedTuple):
    """A backward pass without and with the exchange, its buckets, and the link; in seconds."""

    alone: float
    together: float
    full: list[float]
    nbytes: list[int]
    latency: float
    bandwidth: float
    source: str


def read_timeline(runs: Path) -> Timeline:
    """Return the timeline that notebook 03 measured, else a recorded one."""
    file = runs / "lesson-03" / "overlap.json"
    source = f"notebook 03 on this machine: {file}"
    # a run that failed leaves an empty one, an earlier notebook wrote no sweep, ci uses ResNet-18
    text = file.read_text() if file.exists() else ""
    if '"sweep"' not in text or '"layer4.2' not in text:
        file = paths.need_checkout() / "notebooks/expected/traces/03/overlap.json"
        source = file.with_suffix(".txt").read_text().strip()
    found = json.loads(file.read_text())
    (one,), sweep = found["runs"], found["sweep"]["Gloo"]
    alone, together = statistics.median(one["alone"]), statistics.median(one["together"])
    full, nbytes, _ = map(list, zip(*one["buckets"], strict=True))
    # as in the notebook
    latency = min(seconds for size, seconds in sweep if size <= 2**16)
    per_byte = statistics.median((s - latency) / size for size, s in sweep if size >= 2**22)
    return Timeline(alone, together, full, nbytes, latency, 1 / per_byte, source)


# --- ex08.capstone --------------------------------------------------------------------------------

TARGET = 4.0  # times as fast as the slow script
SMALL = {"train": 5, "val": 2}  # images of each class for profile ci
TURNS = 3  # at most: the last one decides if the first two do not agree


def quick() -> bool:
    """Return True under profile ci, which takes seconds and measures nothing."""
    here = session.current()
    return here is not None and here.profile == "ci"


def capstone(answer: Callable[[str, str], None]) -> str:
    with script.images() as case, tempfile.TemporaryDirectory() as folder:
        yours = alone.script_of(answer)
        _right_run(yours, case, "checking your script", Path(folder, "trace.json"))
        if quick():
            return "all correct. Profile ci does not measure the speed: check again in profile cpu."
        ratios: list[float] = []
        for turn in range(1, TURNS + 1):
            slow = script.observe(case, script.baseline(), f"turn {turn}, the slow script")
            fast = _right_run(yours, case, f"turn {turn}, your script")
            ratios.append(slow.seconds / fast.seconds)
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
        f" {len(ratios)} turns; in the last, yours took {fast.seconds:.1f} s instead of"
        f" {slow.seconds:.1f} s)."
    )


def _right_run(text: str, case: script.Case, doing: str, trace: Path | None = None) -> script.Seen:
    """Return a run of the learner's script that keeps all the rules."""
    seen = script.observe(case, text, doing, trace)
    if found := capstone_judge.problems(seen, case):
        more = " There is more, perhaps with the same cause." if len(found) > 1 else ""
        wrong(found[0][0] + more, found[0][1])
    return seen


def look(function: Callable[[str, str], None] | None = None) -> None:
    """Run a script once, by default the slow one; show its speed, its results and a trace."""
    if not session.has("torch"):
        return
    with script.images(SMALL if quick() else None) as case:
        file = here.folder / "capstone.json" if (here := session.current()) else None
        text = alone.script_of(function) if function else script.baseline()
        seen = script.observe(case, text, "your script" if function else "the slow script", file)
    print(f"{len(seen.rates)} steps with {seen.trained.sum():,} images in {seen.seconds:.1f} s.")
    for name, values in (seen.report or {}).items():
        print(f"The script reports {name}: {', '.join(f'{value:.3g}' for value in values)}")
    if file and file.exists():
        show_trace(file)
