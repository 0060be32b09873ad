"""Two experiments timed in turns, each in a process of its own: A B, A B, A B, …

On a machine that does other things too, two runs after each other compare two moments, not two
programs. Taking turns puts both under the same load, and a process each keeps the memory of one
out of the other's way. The median of the pairs' ratios is the answer.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import comb
from statistics import median

from rn50lib import launch
from rn50lib.config import Experiment, from_json, resolve, to_json
from rn50lib.errors import UserError
from rn50lib.hardware import machine
from workshop import output, session

WARM_UP = 2  # pairs that are run and not counted: they fill caches and choose kernels


@dataclass(frozen=True)
class Pairs:
    """Seconds per training step, by name; entry i of both was measured in turn i."""

    first: str
    second: str
    seconds: dict[str, list[float]]
    experiment: Experiment  # what both have in common: batch, size, precision, threads

    @property
    def ratios(self) -> list[float]:
        """Second over first, a value per pair."""
        pairs = zip(self.seconds[self.first], self.seconds[self.second], strict=True)
        return [b / a for a, b in pairs]


def median_interval(values: list[float]) -> tuple[float, float, float]:
    """(median, low, high): at least 95 % of such intervals hold the true median (6 values or more).

    The order statistics that the binomial distribution gives; nothing is assumed about the noise.
    """
    ordered, n = sorted(values), len(values)
    left_out = 0  # values at each end that the interval can do without
    while 2 * sum(comb(n, i) for i in range(left_out + 2)) <= 0.05 * 2**n:
        left_out += 1
    return median(ordered), ordered[left_out], ordered[n - 1 - left_out]


def time_pairs(experiments: Mapping[str, Experiment], pairs: int = 10, steps: int = 1) -> Pairs:
    """Time a training step of two experiments in turns, on random images, with a line per pair.

    Each turn takes `steps` steps; the profile of the session holds where none is given. Raises
    UserError when the process that measures fails.
    """
    from dataclasses import replace

    here = session.current()
    resolved = {}
    for name, asked in experiments.items():
        if here is not None and asked.profile == "auto":
            asked = replace(asked, profile=here.profile)
        asked = replace(asked, loader="synthetic", no_metrics=True, n=1)
        resolved[name] = resolve(asked, machine(), asked.num_classes or 1000).experiment
    first, second = resolved
    seconds: dict[str, list[float]] = {first: [], second: []}
    slot = output.Slot()

    def tell(line: str) -> None:
        slot.html(f'<div class="dim">{line}</div>', line)

    tell("two processes are starting")
    with contextlib.ExitStack() as stack:
        workers = {
            name: stack.enter_context(_worker(done, steps)) for name, done in resolved.items()
        }
        for name, worker in workers.items():
            _read(worker)
            tell(f"the network {name} is built")
        for pair in range(1 - WARM_UP, pairs + 1):
            for name, worker in workers.items():
                value = _measure(worker)
                if pair > 0:
                    seconds[name].append(value)
            tell(f"pair {pair} of {pairs}" if pair > 0 else "warming up")
    return Pairs(first, second, seconds, resolved[first])


def first_steps(experiment: Experiment, count: int) -> list[float]:
    """Seconds of each of the first `count` training steps of a process, on random images.

    The profile of the session holds where none is given. Raises UserError when the process that
    measures fails.
    """
    from dataclasses import replace

    here = session.current()
    if here is not None and experiment.profile == "auto":
        experiment = replace(experiment, profile=here.profile)
    asked = replace(experiment, loader="synthetic", no_metrics=True, n=1)
    done = resolve(asked, machine(), asked.num_classes or 1000).experiment
    slot, found = output.Slot(), list[float]()
    slot.html('<div class="dim">a process is starting</div>', "a process is starting")
    with _worker(done, 1) as worker:
        _read(worker)
        for i in range(1, count + 1):
            found.append(_measure(worker))
            line = f"step {i} of {count}: {1000 * found[-1]:.0f} ms"
            slot.html(f'<div class="dim">{line}</div>', line)
    return found


@contextlib.contextmanager
def _worker(done: Experiment, steps: int) -> Iterator[subprocess.Popen[str]]:
    """A process that times `steps` training steps for every line that it is sent."""
    process = subprocess.Popen(
        [sys.executable, "-m", "workshop.pairs", str(steps), to_json(done)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=launch.rank_environment(done),
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _read(worker: subprocess.Popen[str]) -> str:
    """The next line of a worker. Raises UserError when there is none."""
    assert worker.stdout and worker.stderr
    line = worker.stdout.readline()
    if not line:
        last = worker.stderr.read().strip().splitlines()[-1:] or ["it said nothing"]
        raise UserError(f"the process that measures has ended: {last[0]}")
    return line


def _measure(worker: subprocess.Popen[str]) -> float:
    """Seconds per step of a turn."""
    assert worker.stdin
    with contextlib.suppress(BrokenPipeError):  # it ended: `_read` says why
        worker.stdin.write("go\n")
        worker.stdin.flush()
    return float(_read(worker))


def main(argv: list[str]) -> int:
    """Says "ready", then prints the seconds per step of a turn for every line on stdin."""
    from rn50lib import comm
    from rn50lib.backends import build_step
    from rn50lib.pipelines import open_pipeline

    launch.die_with_parent()
    steps = int(argv[0])
    done = from_json(argv[1])
    step = build_step(done, done.to_network(), comm.connect())
    batch = next(open_pipeline(done, None, "train", 0, 1).epoch(0))
    print("ready", flush=True)
    for _ in sys.stdin:
        begin = time.perf_counter()
        for _ in range(steps):
            step.train_step(batch, lr=0.0)  # the same work, and the weights stay where they are
        step.read_sums()  # waits for the device
        print((time.perf_counter() - begin) / steps, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
