"""Interleaved rounds: every contestant once per round, in a different order each time.

Then medians, and ratios with their range: all on the same machine in the same minutes.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import random
import statistics
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from rn50.launch import ALLOCATOR, with_library
from rn50lib.errors import UserError
from rn50lib.hardware import machine

ROOT = Path(__file__).resolve().parent.parent


def environment(threads: int, malloc: str = ALLOCATOR) -> dict[str, str]:
    """Return the environment of a contestant: the allocator setting of `rn50 run`, and threads."""
    return with_library(os.environ | {"GLIBC_TUNABLES": malloc, "OMP_NUM_THREADS": str(threads)})


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the flags that all comparisons have."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--only", nargs="+", help="contestants by a part of their name")
    parser.add_argument("--cpu", action="store_true", help="compare processor seconds")
    return parser


def timed(command: list[str], measure: str) -> float:
    """Run a command whose last line is {"seconds": …, "cpu_seconds": …}."""
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, check=True)
    return float(json.loads(done.stdout.splitlines()[-1])[measure])


@contextlib.contextmanager
def stated_machine() -> Iterator[None]:
    """Print the date, the processor and how busy it is, before and after."""
    here, load = machine(), os.getloadavg()[0]
    print(f"{datetime.date.today()}, {here.processor}, {here.bfloat16 or 'no bfloat16'},", end="")
    print(f" {here.cores} cores to use of {os.cpu_count()}, load {load:.1f}", flush=True)
    yield
    print(f"load at the end {os.getloadavg()[0]:.1f}")


def run_rounds(
    contestants: dict[str, Callable[[], float]],
    rounds: int,
    between: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Return the seconds of each contestant in each round, after an uncounted one.

    `between` runs before each. Raises UserError without contestants.
    """
    if not contestants:
        raise UserError("no contestant is left: --only takes parts of the contestants' names")
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    with stated_machine():
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


class Server:
    """A contestant that works on demand (see `stopwatch.serve`), so that it starts only once."""

    def __init__(self, command: list[str], env: dict[str, str]) -> None:
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            command, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors,
            text=True,
        )  # fmt: skip
        self.answer = self.read()["answer"]

    def read(self) -> dict:
        """Return the next line of JSON. Raise UserError with the last error if it has ended."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith('{"'):
                return json.loads(line)
        self.errors.seek(0)
        last = self.errors.read().splitlines()[-1:] or ["no message"]
        raise UserError(f"{' '.join(map(str, self.process.args))} has ended: {last[0]}")

    def work(self, seconds: float, measure: str) -> float:
        """Return the seconds of one call, from as many as fill `seconds`; see `timed`."""
        assert self.process.stdin is not None
        print(seconds, file=self.process.stdin, flush=True)
        return self.read()[measure]

    def stop(self) -> None:
        """Kill the process."""
        self.process.kill()
        self.process.communicate()
        self.errors.close()


def spread(values: list[float]) -> str:
    """Return the median and the range: "1.05 (1.01 to 1.09)"."""
    return f"{statistics.median(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def ratios(seconds: dict[str, list[float]], peer: str, own: str) -> list[float]:
    """Return the speed of `own` over that of `peer`, round by round."""
    return [a / b for a, b in zip(seconds[peer], seconds[own], strict=True)]


def summarise(seconds: dict[str, list[float]], pairs: Iterable[tuple[str, str]], what: str) -> None:
    """Print a line for each pair (ours, peer) that took part."""
    for own, peer in pairs:
        if own in seconds and peer in seconds:
            faster = spread(ratios(seconds, peer, own))
            print(f"SUMMARY {what}: {own} / {peer} = {faster}, n = {len(seconds[own])}", flush=True)


def print_table(seconds: dict[str, list[float]], base: str, count: int, unit: str) -> None:
    """Print medians with rates, then each contestant's time over that of `base`."""
    width = max(map(len, seconds))
    for name, values in seconds.items():
        middle = statistics.median(values)
        print(f"{name:{width}}  {middle:9.4g} s  {count / middle:9,.1f} {unit}/s")
    for name in seconds:
        if name != base:
            times = spread(ratios(seconds, name, base))
            print(f"time of {name} / time of {base}: {times}, n = {len(seconds[base])}")
