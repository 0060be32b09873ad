"""Training steps timed in separate processes: two experiments in turns, A B, A B, A B.

On a machine that does other things too, two consecutive runs compare two moments, not two programs.
Taking turns puts both under the same load, and separate processes do not share memory. The result
is the median of the pairs' ratios.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import comb, inf
from statistics import median
from typing import Any

from rn50 import launch
from rn50lib.config import TrainConfig
from workshop import output, session
from workshop.worker import Worker, in_turns, pack, unpack

WARM_UP = 2  # pairs that are run and not counted: they fill caches and choose kernels


@dataclass(frozen=True)
class Pairs:
    """Seconds per training step, by name; entry i of both was measured in turn i."""

    first: str
    second: str
    seconds: dict[str, list[float]]
    experiment: TrainConfig  # what both have in common: batch, size, precision, threads

    @property
    def ratios(self) -> list[float]:
        """Second over first, one value per pair."""
        pairs = zip(self.seconds[self.first], self.seconds[self.second], strict=True)
        return [b / a for a, b in pairs]


def median_interval(values: list[float]) -> tuple[float, float, float]:
    """Return (median, low, high), an interval that contains the true median with 95 % confidence.

    It uses order statistics and the binomial distribution, makes no assumption about the noise, and
    needs 6 or more values.
    """
    ordered, n = sorted(values), len(values)
    left_out = 0  # values at each end that the interval can do without
    while 2 * sum(comb(n, i) for i in range(left_out + 2)) <= 0.05 * 2**n:
        left_out += 1
    return median(ordered), ordered[left_out], ordered[n - 1 - left_out]


def time_pairs(
    experiments: Mapping[str, Mapping[str, Any]], pairs: int = 10, steps: int = 1
) -> Pairs:
    """Time a training step of two experiments in turns, on random images, with a line per pair.

    Each turn takes `steps` steps; the default profile is the session's.

    Raises:
        UserError: The process that measures failed.
    """
    configs = {
        name: session.resolve(given, loader="synthetic", no_metrics=True, n=1)
        for name, given in experiments.items()
    }
    first, second = configs
    slot = output.Slot()
    with contextlib.ExitStack() as stack:
        workers = {}
        for name, config in configs.items():  # they start side by side
            env = launch.rank_environment(config)
            worker = Worker("workshop.pairs:stepper", env, slot, config=pack(config), steps=steps)
            workers[name] = stack.enter_context(worker)
        for name, worker in workers.items():
            worker.wait(f"the network {name} is being built")
        asks = {name: worker.ask for name, worker in workers.items()}
        seconds = in_turns(asks, pairs, slot, WARM_UP, limit_s=inf)
    return Pairs(first, second, seconds, configs[first])


# --- in the process -------------------------------------------------------------------------------


def random_step(config: Any) -> tuple[Any, Any]:
    """Return (step, batch): a training step of a resolved experiment, and random images for it."""
    from rn50lib import distributed as comm
    from rn50lib.data import open_pipeline
    from rn50lib.train_step import build_step

    step = build_step(config, config.to_network(), comm.connect())
    return step, next(open_pipeline(config, None, "train", 0, 1).epoch(0))


def step_seconds(step: Any, batch: Any, steps: int = 1) -> float:
    """Return the seconds of a training step, the mean of `steps`."""
    begin = time.perf_counter()
    for _ in range(steps):
        step.train_step(batch, lr=0.0)  # the same work, and the weights stay where they are
    step.pop_metrics()  # waits for the device
    return (time.perf_counter() - begin) / steps


def stepper(config: dict[str, Any], steps: int) -> Callable[[], float]:
    """Return a function that times `steps` training steps and returns the seconds of one."""
    step, batch = random_step(unpack(config))
    return lambda: step_seconds(step, batch, steps)
