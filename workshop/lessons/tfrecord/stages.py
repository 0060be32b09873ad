"""One input pipeline in front of one device, with another stage switched on in each turn.

    measured = compare(experiment)

The variants take turns in one process of its own, which TensorFlow leaves with it: a slow moment of
the machine then hits all of them, and the ratio of two variants is taken turn by turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rn50 import launch
from rn50lib.config import TrainConfig
from rn50lib.errors import UserError
from workshop import session
from workshop.lessons import figures
from workshop.lessons.figures import short
from workshop.worker import Worker, in_turns, pack, unpack

if TYPE_CHECKING:
    from matplotlib.figure import Figure

BY_HAND = "a Python loop"
ORDER = ("interleave", "parallel_map", "prefetch", "decode_and_crop")
"""The stages as they are switched on, and the lesson is in the order: a stage that works on what is
not the bottleneck gains nothing, and shows its worth only once the stages before have moved the
bottleneck to it. Reading several shards at once does little while one thread decodes all images;
prefetching cannot gain more than the smaller of the time for a batch and the time for a step."""


@dataclass(frozen=True)
class StageRates:
    """Images per second and the share of the loop in which the device worked, by variant; entry i
    of every list was measured in round i."""

    rates: dict[str, list[float]]
    busy: dict[str, list[float]]
    experiment: TrainConfig

    @property
    def variants(self) -> list[str]:
        return list(self.rates)

    @property
    def rounds(self) -> int:
        return min(map(len, self.rates.values()))

    def rate(self, variant: str) -> float:
        """Images per second, the median of the rounds."""
        return median(self.rates[variant])

    def share(self, variant: str) -> float:
        """Per cent of the time in which the device worked, the median of the rounds."""
        return 100 * median(self.busy[variant])

    def ratios(self, variant: str, before: str) -> list[float]:
        """How many times as fast as another variant, a value per round."""
        pairs = zip(self.rates[variant], self.rates[before], strict=False)
        return [a / b for a, b in pairs]

    def rows(self) -> list[list[Any]]:
        """(variant, img/s, device at work in per cent, times the one before, from, to)."""
        rows: list[list[Any]] = []
        for i, variant in enumerate(self.variants):
            row = [variant, self.rate(variant), self.share(variant), None, None, None]
            if i:
                ratios = self.ratios(variant, self.variants[i - 1])
                row[3:] = [median(ratios), min(ratios), max(ratios)]
            rows.append(row)
        return rows


def compare(
    given: Mapping[str, Any],
    rounds: int = 5,
    steps: int = 12,
    warm_up: int = 3,
) -> StageRates:
    """Time `steps` training steps with each variant of the input, in turns, with a line per turn.

    A turn begins with `warm_up` steps that are not counted: the first one fills the shuffle buffer.
    Profile and data come from the session where they are not given. Raises UserError when the
    process that measures fails.
    """
    config = session.resolve(given, backend="tensorflow", no_metrics=True)
    arguments: Any = {"config": pack(config), "steps": steps, "warm_up": warm_up}
    function = "workshop.lessons.tfrecord.stages:timer"
    with Worker(function, launch.rank_environment(config), **arguments) as worker:
        worker.wait("TensorFlow is starting")
        names: list[str] = worker.ask(doing="which variants there are")
        found = in_turns({n: partial(worker.ask, n) for n in names}, rounds, worker.slot)
    rates, busy = (
        {name: [turn[key] for turn in turns] for name, turns in found.items()}
        for key in ("ips", "busy")
    )
    return StageRates(rates, busy, config)


def figure(measured: StageRates, device: str, ceiling: float | None = None) -> tuple[Figure, str]:
    """A bar per variant of the input, and from the first variant to the last one in words."""
    names = measured.variants
    at_work = {name: measured.share(name) for name in names}
    first, last = names[0], names[-1]
    gains = measured.ratios(last, first)
    return figures.rates(measured.rates, at_work, device, ceiling), (
        f"{device}: from {short(measured.rate(first))} images per second with {first} to"
        f" {short(measured.rate(last))} with all stages, {median(gains):.2f} times as many (from"
        f" {min(gains):.2f} to {max(gains):.2f} in {measured.rounds} rounds); the device works"
        f" {measured.share(first):.0f} % and then {measured.share(last):.0f} % of the time."
    )


def bottleneck(measured: StageRates) -> str:
    """What the time of the loop goes into with all stages."""
    share = measured.share(measured.variants[-1])
    if share >= 95:
        return f"The device works {share:.0f} % of the time: the input is not the bottleneck."
    if share >= 80:
        return f"The device works {share:.0f} % of the time: the input is nearly fast enough."
    return f"The device works {share:.0f} % of the time: the input is still the bottleneck."


# --- in the process -------------------------------------------------------------------------------


def timer(config: dict[str, Any], steps: int, warm_up: int) -> Callable[..., Any]:
    """Called without a name: the variants' names; with one: that variant, timed."""
    from rn50lib import distributed as comm
    from rn50lib.data.sampler import Plan
    from rn50lib.data.source import open_source
    from rn50lib.train_step import build_step
    from workshop.lessons.tfrecord.feeding import Feeding

    done = unpack(config)
    source = open_source(Path(done.data_root), "train", done.data_format)
    plan = Plan(done, source, "train")
    feeding = Feeding(done, source, plan)
    if len(feeding) < warm_up + steps:
        raise UserError(
            f"an epoch has {len(feeding)} steps of {done.batch_size} images, and a turn takes"
            f" {warm_up + steps}: use a smaller batch"
        )
    step = build_step(done, done.to_network(), comm.connect())
    from rn50lib.data.tfdata import Stages, TfData  # TensorFlow comes after its settings

    step.train_step(next(feeding.epoch(0)), 0.0)  # the graph is traced here
    step.pop_metrics()
    pipelines: dict[str, Any] = {BY_HAND: feeding}
    built = Stages(False, False, False, False)
    pipelines["one after the other"] = TfData(done, source, plan, built)
    for name in ORDER:
        built = replace(built, **{name: True})
        pipelines[f"+ {name.replace('_', ' ')}"] = TfData(done, source, plan, built)
    epochs = iter(range(10**9))

    def time_one(name: str | None = None) -> Any:
        if name is None:
            return list(pipelines)
        found = turn(pipelines[name], step, next(epochs), steps, warm_up)
        if done.step is not None:  # what the device needs for these images, without oversleeping
            found["busy"] = found["ips"] / done.step
        return found

    return time_one


def turn(pipeline: Any, step: Any, epoch: int, steps: int, warm_up: int) -> dict[str, float]:
    """Train `steps` steps: images per second, and the share of the time not spent waiting for a
    batch. Each step is waited for, as in the slides' loop: nothing overlaps but by the pipeline."""
    batches = pipeline.epoch(epoch)
    for _ in range(warm_up):
        step.train_step(next(batches), 0.0)
    step.pop_metrics()
    waited, images = 0.0, 0
    begin = time.perf_counter()
    for _ in range(steps):
        before = time.perf_counter()
        batch = next(batches)
        waited += time.perf_counter() - before
        step.train_step(batch, 0.0)  # the same work, and the weights stay where they are
        step.pop_metrics()  # waits for the device
        images += batch.valid
    seconds = time.perf_counter() - begin
    batches.close()
    return {"ips": images / seconds, "busy": 1 - waited / seconds}
