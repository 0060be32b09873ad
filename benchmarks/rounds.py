"""Interleaved rounds for the comparisons here: every contestant once a round, each time in another
order, on the same machine in the same minute; then medians, and ratios with an interval.
"""

from __future__ import annotations

import json
import os
import random
import statistics
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

CHILD = """
import json, os, resource, sys, time
def used():
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(who)[:2]) for who in both)
{setup}
start, cpu = time.perf_counter(), used()
{work}
seconds, cpu = time.perf_counter() - start, used() - cpu
print(json.dumps({{"seconds": seconds, "cpu_seconds": cpu}}))
"""
"""A process that times its work without its start-up."""


def child(setup: str, work: str, *arguments: object, python: str = sys.executable) -> list[str]:
    """The command of such a process; the arguments are its sys.argv."""
    return [python, "-c", CHILD.format(setup=setup, work=work), *map(str, arguments)]


def timed(command: list[str], measure: str) -> float:
    """Run a command whose last line is {"seconds": …, "cpu_seconds": …}."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])[measure])


def run_rounds(
    contestants: dict[str, Callable[[], float]],
    rounds: int,
    between: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of each contestant in each round; the first round only warms the cache."""
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for number in range(rounds + 1):
        order = list(contestants)
        random.Random(number).shuffle(order)
        for name in order:
            between()
            value = contestants[name]()
            os.sync()  # no contestant pays for what another left to be written
            if number:
                seconds[name].append(value)
    return seconds


def interval(values: list[float]) -> tuple[float, float, float]:
    """Median and a 95 % interval of it, from 2,000 bootstrap samples."""
    rng = random.Random(0)
    medians = sorted(statistics.median(rng.choices(values, k=len(values))) for _ in range(2000))
    return statistics.median(values), medians[50], medians[1949]


def print_table(seconds: dict[str, list[float]], base: str, count: int, unit: str) -> None:
    """Medians with rates, then each contestant's time over that of ``base``, round by round."""
    width = max(map(len, seconds))
    for name, values in seconds.items():
        middle = statistics.median(values)
        print(f"{name:{width}}  {middle:8.3f} s  {count / middle:9,.0f} {unit}/s")
    for name in seconds:
        if name != base:
            pairs = zip(seconds[base], seconds[name], strict=True)
            middle, low, high = interval([other / own for own, other in pairs])
            print(f"time of {name} / time of {base}: {middle:.2f} ({low:.2f} to {high:.2f})")
