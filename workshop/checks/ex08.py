"""Checks of ex08: the rate of a benchmark, the time of a ring, an exchange that hides, and the
capstone."""

from __future__ import annotations

import functools
import importlib.util
import statistics
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from workshop import session
from workshop.checks import capstone as script
from workshop.checks import capstone_judge, compare
from workshop.checks.compare import wrong

# --- ex08.rate ------------------------------------------------------------------------------------

Run = tuple[tuple[int, ...], tuple[float, ...], int]

RUNS: tuple[Run, ...] = (  # images and seconds of each iteration, and how many of them are warm-up
    ((32, 32, 32, 32), (4.0, 0.25, 0.5, 1.0), 1),
    ((32, 32, 32, 8), (1.0, 0.5, 0.25, 0.5), 0),
    ((16, 64, 8, 16, 64), (9.0, 5.0, 0.5, 0.5, 2.0), 2),
    ((100,), (2.0,), 0),
)
NOTHING_LEFT: tuple[Run, ...] = (((32, 32), (1.0, 1.0), 2), ((), (), 0), ((8,), (1.0,), 3))


def rate(answer: Callable[[list[int], list[float], int], float | None]) -> str:
    got = [compare.call(answer, list(i), list(s), w, may_be_none=True) for i, s, w in RUNS]
    if set(map(type, got)) == {type(None)}:
        compare.returns_nothing()
    for value, (images, seconds, warmup) in zip(got, RUNS, strict=True):
        if value is None:
            wrong("it gives None although iterations are left.", "None is for none at all.")
        _right_rate(compare.number(value, "the rate"), images, seconds, warmup)
    for images, seconds, warmup in NOTHING_LEFT:
        try:
            left = compare.call(answer, list(images), list(seconds), warmup, may_be_none=True)
        except (ZeroDivisionError, ValueError, IndexError):
            wrong(
                f"{len(images)} iterations, {warmup} of them warm-up, make it fail.",
                "Where nothing is left there is nothing to divide: return None.",
            )
        if left is not None:
            wrong(
                f"with nothing left after the warm-up it says {left!r}.",
                "Not measured is None: 0 would look like a result.",
            )
    return f"{len(RUNS)} runs, with and without warm-up, a smaller last batch, and nothing left."


def _right_rate(got: float, images: Sequence[int], seconds: Sequence[float], warmup: int) -> None:
    kept, took = images[warmup:], seconds[warmup:]
    right = sum(kept) / sum(took)
    if np.isclose(got, right):
        return
    rates = [n / s for n, s in zip(kept, took, strict=True)]
    end = len(images) - warmup
    mistakes = (
        (np.mean(rates), "this is the arithmetic mean of the rates",
         f"{sum(kept)} images took {sum(took):g} s: {right:.4g} a second."),
        (sum(images) / sum(seconds), "the warm-up is counted",
         f"Leave the first {warmup} iterations out."),
        (statistics.harmonic_mean(rates), "the harmonic mean counts an iteration of"
         f" {min(kept)} images as much as one of {max(kept)}",
         "It is right for equal work only: divide all images by all seconds."),
        (statistics.median(rates), "this is the median", "It forgets the slow ones altogether."),
        (1 / right, "these are seconds per image", "Divide the other way round."),
        (sum(images) / sum(took), "the warm-up's images are counted, but not its seconds",
         "Leave out both."),
        (sum(kept) / len(kept), "these are images per iteration", "Divide by the seconds."),
        (sum(images[:end]) / sum(seconds[:end]), f"the last {warmup} are left out",
         "The warm-up comes first."),
    )  # fmt: skip
    case = f"{got:.4g} with images {[*images]}, seconds {[*seconds]}, warm-up {warmup}"
    compare.known(got, [(v, f"{said} ({case}).", then) for v, said, then in mistakes], np.isclose)
    wrong(f"it says {case}.", f"It should be {right:.4g}.")


# --- ex08.ring ------------------------------------------------------------------------------------

WORKERS = (2, 8, 512)
BYTES, BANDWIDTH, LATENCY = 100e6, 12.5e9, 20e-6
WHOLE = BYTES / BANDWIDTH  # seconds that all gradients take
RING_MISTAKES = (  # by the number of workers, in seconds
    (lambda n: ring_seconds(n) / 1000, "these are seconds.", "Asked for are milliseconds."),
    (lambda n: 2 * (n - 1) / n * WHOLE + LATENCY, "the latency is counted once.",
     "A message begins when the one before has arrived: it counts for each of them."),
    (lambda n: 2 * (n - 1) / n * WHOLE, "the latency is forgotten.",
     "Each of the 2 (n − 1) messages waits for it once."),
    (lambda n: ring_seconds(n) / 2, "this is half of it: the scatter-reduce.",
     "The sums travel around too: n − 1 more."),
    (lambda n: 2 * (n - 1) * (LATENCY + WHOLE), "every message carries all gradients.",
     "In the ring it is a chunk: 1/n of them."),
    (lambda n: 2 * (n - 1) * (LATENCY + 8 * WHOLE / n), "bytes are divided by bits.",
     "The bandwidth is in bytes per second already."),
)  # fmt: skip


def ring(answer: Any) -> str:
    got = [ms / 1000 for ms in compare.predictions(answer, WORKERS, "workers")]
    right = [ring_seconds(n) for n in WORKERS]
    if np.allclose(got, right, rtol=0.02, atol=0):
        return f"{', '.join(f'{1000 * value:.2f}' for value in right)} ms, sent one by one."
    same = functools.partial(np.allclose, rtol=1e-3, atol=0)
    compare.known(got, RING_MISTAKES, same, [(n,) for n in WORKERS])
    off = next(i for i in range(len(got)) if abs(got[i] / right[i] - 1) > 0.02)
    wrong(
        f"with {WORKERS[off]} workers it takes {1000 * right[off]:.4g} ms, not"
        f" {1000 * got[off]:.4g}.",
        "Messages of one worker, times what one of them takes.",
    )


def ring_seconds(workers: int) -> float:
    """The clock at the end of a ring all-reduce in which every message is sent, one by one."""
    clock = [0.0] * workers
    for _ in range(2 * (workers - 1)):
        sent = [now + LATENCY + WHOLE / workers for now in clock]
        clock = [max(clock[w], sent[w - 1]) for w in range(workers)]
    return max(clock)


# --- ex08.overlap ---------------------------------------------------------------------------------

EXCHANGES = (  # compute, when the buckets are ready, what their exchange takes, all in seconds
    (0.1, (0.04, 0.06, 0.08), (0.01, 0.01, 0.01)),
    (0.1, (0.04, 0.06, 0.1), (0.01, 0.01, 0.03)),
    (0.1, (0.04, 0.06, 0.1), (0.05, 0.03, 0.02)),
    (0.1, (0.04, 0.06, 0.1), (0.01, 0.08, 0.005)),
    (0.2, (0.2,), (0.05,)),
    (0.2, (), ()),
)


def overlap(answer: Callable[[float, list[float], list[float]], float]) -> str:
    got = [
        compare.number(compare.call(answer, c, list(ready), list(takes)), "the efficiency")
        for c, ready, takes in EXCHANGES
    ]
    right = [case[0] / step_seconds(*case) for case in EXCHANGES]
    if np.allclose(got, right):
        return f"{len(EXCHANGES)} steps: hidden, exposed, queueing, in one piece, no exchange."
    compare.known(got, MISTAKES, np.allclose, EXCHANGES)
    off = int(np.argmin(np.isclose(got, right)))
    compute, ready, takes = EXCHANGES[off]
    case = f"compute {compute:g}, ready {list(ready)}, takes {list(takes)}"
    wrong(f"it says {got[off]:.4g} ({case}).", f"It should be {right[off]:.4g}.")


def step_seconds(compute: float, ready: Sequence[float], takes: Sequence[float]) -> float:
    """The end of a step, on a clock of a thousandth of a millisecond: a wire that works whenever a
    bucket waits."""
    tick, now, sent, left = 1e-6, 0, 0, 0
    while sent < len(ready) or now < round(compute / tick):
        if not left and sent < len(ready) and now >= round(ready[sent] / tick):
            left = round(takes[sent] / tick)
        now += 1
        if left:
            left -= 1
            sent += not left
    return now * tick


MISTAKES: tuple[tuple[Callable[..., float], str, str], ...] = (
    (lambda c, ready, takes: step_seconds(c, ready, takes) / c, "this is step over compute.",
     "Efficiency is compute over step, at most 1."),
    (lambda c, ready, takes: step_seconds(c, ready, takes), "these are the seconds of the step.",
     "Divide the seconds of compute by them."),
    (lambda c, ready, takes: 100 * c / step_seconds(c, ready, takes), "this is per cent.",
     "Asked for is a number from 0 to 1."),
    (lambda c, ready, takes: c / (c + sum(takes)), "nothing is hidden.",
     "A bucket is sent as soon as it is ready, while the rest is computed."),
    (lambda c, ready, takes: c / max([c, *map(sum, zip(ready, takes, strict=True))]),
     "the buckets are sent at the same time.",
     "There is one wire: a bucket begins when the one before it is through."),
    (lambda c, ready, takes: c / max(c, sum(takes)), "the exchange begins with the step.",
     "A bucket cannot be sent before it is ready."),
    (lambda c, ready, takes: c / max(c, sum((*ready[-1:], *takes[-1:]))),
     "only the last bucket counts.",
     "It may have to wait for those before it: follow the wire from bucket to bucket."),
    (lambda c, ready, takes: c / max(c, (ready[0] if ready else 0) + sum(takes)),
     "only the first bucket waits to be ready.",
     "Each begins at the later of two times: when it is ready, and when the wire is free."),
)  # fmt: skip


# --- ex08.capstone --------------------------------------------------------------------------------

TARGET = 3.0  # times as fast as the slow script
SMALL = {"train": 5, "val": 2}  # pictures of each class for profile ci
TURNS = 3  # at most: the last one decides where the first two do not agree


def quick() -> bool:
    """Return True under profile ci, which takes seconds and measures nothing."""
    here = session.current()
    return here is not None and here.profile == "ci"


def capstone(answer: Callable[[str, str], None]) -> str:
    with script.images() as case:
        _right_run(answer, case, "your script, is it right?")
        if hasattr(type(answer), "beside") or quick():  # other work shares the machine
            return "all is right; how fast it is was not measured here."
        ratios: list[float] = []
        for turn in range(1, TURNS + 1):
            slow = _slow_run(case, f"turn {turn}, the slow script").ips
            fast = _right_run(answer, case, f"turn {turn}, your script").ips
            ratios.append(fast / slow)
            if turn > 1 and len({one >= TARGET for one in ratios}) == 1:
                break  # both say the same: the third is for a tie
    ratio = statistics.median(ratios)
    told = ", ".join(f"{one:.1f}" for one in ratios)
    if ratio < TARGET:
        wrong(
            f"all is right, and {ratio:.1f} times as fast as the slow script; {TARGET:g} times is"
            f" the target ({told} in {len(ratios)} turns).",
            "Which work is done again in every epoch, which for every single pixel in Python?",
        )
    return (
        f"all is right, and {ratio:.1f} times as fast as the slow script ({told} in"
        f" {len(ratios)} turns; in the last {fast:.0f} against {slow:.0f} images per second)."
    )


def _right_run(answer: Callable[..., Any], case: script.Case, doing: str) -> script.Seen:
    """A run of the learner's script, found to keep all the rules."""
    seen = _ended(script.understood(case, script.run_answer(answer, str(case.folder), doing)))
    if found := capstone_judge.problems(seen, case):
        more = f" {len(found) - 1} more will be told after it." if len(found) > 1 else ""
        wrong(found[0][0] + more, found[0][1])
    return seen


def _slow_run(case: script.Case, doing: str) -> script.Seen:
    return _ended(script.observe(case, [script.baseline()], doing)[0])


def _ended(seen: script.Seen | dict[str, str]) -> script.Seen:
    """What was seen of a script that came to its end; Wrong for one that did not."""
    if isinstance(seen, script.Seen):
        return seen
    place = seen["place"] or "Run a cell with the line train(…) to see more of it."
    wrong(f"the script stopped with {seen['error']}.", place)


def look(function: Callable[[str, str], None] | None = None) -> None:
    """Run a script once, the slow one unless given, and print how fast it was and what it says of
    its validation."""
    if importlib.util.find_spec("torch") is None:
        print("Not run: PyTorch is not installed here.")
        return
    with script.images(SMALL if quick() else None) as case:
        if function is None:
            seen = _slow_run(case, "the slow script")
        else:
            raw = script.run_answer(function, str(case.folder), "your script")
            seen = _ended(script.understood(case, raw))
    print(f"{seen.trained.sum():,} pictures were trained on in {seen.seconds:.1f} s:"
          f" {seen.ips:.0f} a second.")  # fmt: skip
    for name, values in (seen.report or {}).items():
        print(f"The script says {name}: {', '.join(f'{value:.3g}' for value in values)}")
