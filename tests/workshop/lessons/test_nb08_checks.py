"""The checks of notebook 08: right answers pass, each wrong one gets its diagnosis."""

from __future__ import annotations

import inspect
import random
import runpy
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from workshop.lessons import nb08_checks as nb08


def in_another_style(step: Any, steps: int, warm_up: int, wait: Any) -> Any:
    readings = []
    for i in range(warm_up + steps + 1):
        if i >= warm_up:
            wait()
            readings.append(time.perf_counter())
        if i < warm_up + steps:
            step()
    return np.diff(readings)


@pytest.mark.parametrize("own", [nb08.measure, in_another_style])
def test_right_clocks_pass_and_are_written(
    own: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(nb08, "TRIES", 20)  # a busy machine may disturb some of them
    file = tmp_path / "clock.py"
    file.write_text("")
    if own is nb08.measure:
        assert nb08.check("measure", own, str(file)) is own
        assert capsys.readouterr().out.startswith("✓")
        assert_works(file)
    nb08.judge_clock(own)


def assert_works(file: Path) -> None:
    """Time three steps with the clock in a file, as bench.py does."""
    calls: list[int] = []
    measure = runpy.run_path(str(file))["measure"]
    assert len(measure(lambda: calls.append(0), 3, 2, int)) == 3 and len(calls) == 5


def clock(
    warm_up_calls: bool = True,
    before: bool = True,
    after: bool = True,
    result: Any = list,
    now: Any = lambda: time.perf_counter(),
) -> Any:
    """Return a clock that leaves something out."""

    def measure(step: Any, steps: int, warm_up: int, wait: Any) -> Any:
        for _ in range(warm_up * warm_up_calls):
            step()
        seconds = []
        for _ in range(steps):
            if before:
                wait()
            begin = now()
            step()
            if after:
                wait()
            seconds.append(now() - begin)
        return result(seconds)

    return measure


def counts_the_warm_up(step: Any, steps: int, warm_up: int, wait: Any) -> Any:
    return clock()(step, steps + warm_up, 0, wait)


def rates(seconds: list[float]) -> list[float]:
    return [1 / s for s in seconds]


WRONG_CLOCKS = {
    "nothing warmed up": clock(warm_up_calls=False),
    "The times are too short": clock(after=False),
    "of process_time()": clock(now=lambda: 0.0),
    "the rest of the warm-up": clock(before=False),
    "The list has 6 values": counts_the_warm_up,
    "These are rates": clock(result=rates),
    "one per call": clock(result=statistics.mean),
    "the best of n hides": clock(result=min),
    "These are milliseconds": clock(result=lambda s: [1000 * x for x in s]),
    "Return the seconds between": clock(result=lambda s: [3 * x for x in s]),
    "It returns None": clock(result=lambda s: None),
    "It returns {'s'": clock(result=lambda s: {"s": s}),
    "It made 1 calls": lambda step, *rest: step() or [0.1],
    "ended with TypeError": lambda step: [],
    "With 3 steps and no warm-up, it makes": lambda step, steps, warm_up, wait: nb08.measure(
        step, len(nb08.TIMED), len(nb08.WARM_UP), wait
    ),
    "it returns 0.025": clock(result=lambda s: [1.25 * x for x in s]),
}


class Simulated(nb08.Device):
    """A device whose steps take exactly their durations of a simulated time, `now`."""

    now = 0.0

    def step(self) -> None:
        self.called.append(Simulated.now)
        duration = self.durations[len(self.ended) % len(self.durations)]
        self.ended.append(max([Simulated.now, *self.ended[-1:]]) + duration)

    def wait(self) -> None:
        super().wait()
        Simulated.now = max([Simulated.now, *self.ended[-1:]])


def simulate(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the check's steps take exactly their durations, on a busy machine too."""
    monkeypatch.setattr(nb08, "Device", Simulated)
    monkeypatch.setattr(time, "perf_counter", lambda: Simulated.now)


@pytest.mark.parametrize("problem", WRONG_CLOCKS)
def test_wrong_clocks_are_diagnosed(
    problem: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    simulate(monkeypatch)
    file = tmp_path / "clock.py"
    assert nb08.check("measure", WRONG_CLOCKS[problem], str(file)) is nb08.measure
    first = capsys.readouterr().out.splitlines()[0]
    assert problem in first and first.startswith("✗")
    assert_works(file)


def test_clock_that_needs_another_cell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    simulate(monkeypatch)
    file, cell = tmp_path / "clock.py", tmp_path / "cell.py"
    source = inspect.getsource(nb08.measure).replace("time.perf_counter", "now")
    cell.write_text(source.replace("step: Function", "step").replace("wait: Function", "wait"))
    own = runpy.run_path(str(cell), {"now": time.perf_counter})["measure"]
    nb08.judge_clock(own)
    for again in (own, nb08.measure):  # the cell runs twice
        assert nb08.check("measure", again, str(file)) is nb08.measure
        said = capsys.readouterr().out
        assert said.startswith("✗") and "name 'now' is not defined" in said
    assert_works(file)


def test_clock_of_a_cell_with_a_future_import(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    simulate(monkeypatch)
    file, cell = tmp_path / "clock.py", tmp_path / "cell.py"
    first = "from __future__ import annotations\n\nimport time\n\n\n"
    cell.write_text(first + inspect.getsource(nb08.measure))
    own = runpy.run_path(str(cell))["measure"]
    assert nb08.check("measure", own, str(file)) is own
    assert_works(file)


def weighted(size: Any, seconds: Any) -> Any:
    slope, start = np.polyfit(size, seconds, 1, w=1 / seconds)
    return start, 1 / slope


def fitted(change: Any) -> Any:
    return lambda size, seconds: change(*nb08.fit(size, seconds))


def one_sided(columns: Any, seconds: Any) -> Any:
    alpha, per_byte = np.linalg.lstsq(columns, seconds)[0]
    return alpha, 1 / per_byte


def powered(size: Any, seconds: Any, power: float) -> Any:
    slope, start = np.polyfit(size, seconds, 1, w=seconds**-power)
    return start, 1 / slope


FITS = {
    "✓": nb08.fit,
    "✓ ": weighted,
    "not written yet": lambda size, seconds: None,
    "seconds per byte": fitted(lambda a, b: (a, 1 / b)),
    "Return α first": fitted(lambda a, b: (b, a)),
    "even the shortest takes α": lambda x, y: (y[0], nb08.fit(x, y)[1]),
    "instead of 5.08e-05 and 1.8e+09": lambda x, y: (np.median(y - x / 2e9), (x / y).max()),
    "squares its weights": lambda x, y: powered(x, y, 0.5),
    "squares its weights, too": lambda x, y: powered(x, y, 2),
    "take [0]": lambda x, y: np.linalg.lstsq(np.stack([1 / y, x / y], axis=1), np.ones(len(x))),
    "dominate the squares": lambda x, y: (np.polyfit(x, y, 1)[1], 1 / np.polyfit(x, y, 1)[0]),
    "not a pair": fitted(lambda a, b: a),
    "never returns an α below 0": fitted(lambda a, b: (max(a, 0), b)),
    "α and β are 0.000152": fitted(lambda a, b: (3 * a, b)),
    "These are µs and GB/s": fitted(lambda a, b: (1e6 * a, b / 1e9)),
    "Only the left side": lambda x, y: one_sided(np.stack([1 / y, x / y], axis=1), y),
}


@pytest.mark.parametrize("said", FITS)
def test_fits(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    own = FITS[said]
    right = said.startswith("✓")
    assert nb08.check("fit", own) is (own if right else nb08.fit)
    assert said in capsys.readouterr().out.splitlines()[0]


# --- turns ----------------------------------------------------------------------------------------


def shuffled(works: Any, turns: int, once: Any) -> Any:
    rows = [[0.0] * len(works) for _ in range(turns)]
    for row in rows:
        for i in random.sample(range(len(works)), len(works)):
            row[i] = once(works[i])
    return rows


def misplaced(works: Any, turns: int, once: Any) -> Any:
    return [[once(work) for work in works[turn % 2 :] + works[: turn % 2]] for turn in range(turns)]


TURNS = {
    "✓": shuffled,
    "is not written yet": lambda works, turns, once: None,
    "returns nothing": lambda works, turns, once: [once(work) for work in works] and None,
    "would hit one work only": lambda w, n, once: [[once(x) for _ in range(n)] for x in w],
    "a b c. That is 3 instead": lambda works, turns, once: [once(work) for work in works],
    "a row per work": lambda *given: nb08.in_turns(*given).T,
    "(3,) instead of (4, 3)": lambda *given: nb08.in_turns(*given).mean(axis=0),
    "calls were a a b": lambda w, n, once: [[once(x) for x in (w[0], *w[:2])] for _ in range(n)],
    "Turn 2 is [3, 3.75, 4.5] instead of [4.5, 3, 3.75]": misplaced,
}


@pytest.mark.parametrize("said", TURNS)
def test_turns(said: str, capsys: pytest.CaptureFixture[str]) -> None:
    own = TURNS[said]
    assert nb08.check("in_turns", own) is (own if said == "✓" else nb08.in_turns)
    assert said in capsys.readouterr().out.splitlines()[0]


# --- causes ---------------------------------------------------------------------------------------


def test_right_causes_pass(capsys: pytest.CaptureFixture[str]) -> None:
    def own(*seconds: float) -> Any:
        return np.diff(seconds)

    assert nb08.check("causes", own) is own
    assert capsys.readouterr().out.startswith("✓")


@pytest.mark.parametrize("mistake", nb08.CAUSE_MISTAKES, ids=lambda mistake: mistake[1])
def test_wrong_causes_get_their_diagnosis(mistake: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert nb08.check("causes", mistake[0]) is nb08.causes
    assert mistake[1] in capsys.readouterr().out


# --- the decision ---------------------------------------------------------------------------------


def test_right_decisions_pass(capsys: pytest.CaptureFixture[str]) -> None:
    def own(speeds: Any, threshold: float) -> str:
        if min(speeds) >= threshold:
            return "buy"
        return "do not buy" if max(speeds) < threshold else "measure first"

    assert nb08.check("decide", own) is own
    assert capsys.readouterr().out.startswith("✓")


@pytest.mark.parametrize("mistake", nb08.DECIDE_MISTAKES, ids=lambda mistake: mistake[1])
def test_wrong_decisions_get_their_diagnosis(
    mistake: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert nb08.check("decide", mistake[0]) is nb08.decide
    assert mistake[1] in capsys.readouterr().out
