"""Time measurement in a contestant, with the standard library alone: MXNet's Python runs it too."""

from __future__ import annotations

import contextlib
import json
import resource
import sys
import time
from collections.abc import Callable, Iterator


def used() -> float:
    """Processor seconds of this process and of its children that have ended."""
    both = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(sum(resource.getrusage(who)[:2]) for who in both)


@contextlib.contextmanager
def timed() -> Iterator[None]:
    """Print the seconds and the processor seconds of a block as JSON."""
    start, cpu = time.perf_counter(), used()
    yield
    seconds, cpu = time.perf_counter() - start, used() - cpu
    print(json.dumps({"seconds": seconds, "cpu_seconds": cpu}), flush=True)


def serve(work: Callable[[], object], answer: object) -> None:
    """Work whenever the parent asks (see `rounds.Server`), and print the seconds of one call.

    `answer`, which is printed first, is what the contestants must agree in.
    """
    print(json.dumps({"answer": answer}), flush=True)
    for line in sys.stdin:
        work()  # fetches into the caches what another contestant has pushed out of them
        begin, cpu, calls = time.perf_counter(), used(), 0
        while calls < 2 or time.perf_counter() - begin < float(line):
            work()
            calls += 1
        seconds, cpu = (time.perf_counter() - begin) / calls, (used() - cpu) / calls
        print(json.dumps({"seconds": seconds, "cpu_seconds": cpu}), flush=True)
