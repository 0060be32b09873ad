"""Two experiments timed in turns, in one process of their own: A B, B A, A B, …

On a machine that does other things too, two runs after each other compare two moments, not two
programs. Taking turns puts both under the same load; the median of the pairs' ratios is the answer.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import comb
from statistics import median
from typing import Any

from rn50lib import launch
from rn50lib.errors import UserError
from rn50lib.experiment import Experiment, resolve
from rn50lib.hardware import machine
from rn50lib.workshop import output, session

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
        asked = replace(asked, loader="synthetic", no_metrics=True)
        resolved[name] = resolve(asked, machine(), asked.num_classes or 1000).experiment
    first, second = resolved
    job = {
        "experiments": [resolved[name].to_argv() for name in (first, second)],
        "pairs": pairs,
        "steps": steps,
    }
    seconds: dict[str, list[float]] = {first: [], second: []}
    slot = output.Slot()
    slot.html('<div class="dim">both networks are being built</div>', "starting")
    for done, values in enumerate(
        _measure(job, launch.rank_environment(resolved[first])), 1 - WARM_UP
    ):
        line = "warming up" if done < 1 else f"pair {done} of {pairs}"
        slot.html(f'<div class="dim">{line}</div>', line)
        if done > 0:
            for name, value in zip((first, second), values, strict=True):
                seconds[name].append(value)
    return Pairs(first, second, seconds, resolved[first])


def _measure(job: dict[str, Any], env: dict[str, str]) -> Iterator[list[float]]:
    """The lines of the measuring process: seconds per step of both."""
    command = [sys.executable, "-m", "rn50lib.workshop.pairs"]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=env,
    )  # fmt: skip
    assert process.stdin and process.stdout and process.stderr
    try:
        process.stdin.write(json.dumps(job))
        process.stdin.close()
        for line in process.stdout:
            yield json.loads(line)
        said = process.stderr.read()
        if process.wait() != 0:
            last = said.strip().splitlines()[-1:] or ["it said nothing"]
            raise UserError(f"the measuring process failed: {last[0]}")
    finally:
        process.kill()
        process.wait()


def main() -> int:
    """Reads a job (JSON) on stdin, prints `[seconds of A, seconds of B]` per pair."""
    from rn50lib import comm
    from rn50lib.backends import build_step
    from rn50lib.cli import experiment_parser, parse_experiment
    from rn50lib.pipelines import open_pipeline

    launch.die_with_parent()
    job = json.load(sys.stdin)
    group = comm.connect()
    both = []
    for argv in job["experiments"]:
        asked, _ = parse_experiment(experiment_parser("train"), argv)
        done = resolve(asked, machine(), asked.num_classes).experiment
        batch = next(open_pipeline(done, None, "train", 0, 1).epoch(0))
        both.append((build_step(done, done.to_network(), group), batch))
    for pair in range(WARM_UP + job["pairs"]):
        seconds = [0.0, 0.0]
        for which in (0, 1) if pair % 2 else (1, 0):  # taking turns at going first, too
            step, batch = both[which]
            begin = time.perf_counter()
            for _ in range(job["steps"]):
                step.train_step(batch, lr=0.0)  # the same work, and the weights stay where they are
            step.read_sums()  # waits for the device
            seconds[which] = (time.perf_counter() - begin) / job["steps"]
        print(json.dumps(seconds), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
