"""Measures the parts of an experiment, each for about as long as is asked for, and each once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rn50lib import launch
from rn50lib.config import Config, Experiment
from rn50lib.hardware import machine
from rn50lib.records.source import open_source
from rn50lib.tools.diagnose import changes, measure, model
from rn50lib.tools.diagnose.measure import Measured

EFFICIENCY, OVERHEAD_S = 0.35, 0.01  # for guessing how many steps a measurement takes
SLOW = 3  # a step that takes so many times as long as was guessed is timed no longer
NO_PEAK = 1e11  # FLOP/s to guess from where none was measured
ENDLESS = 10**9  # steps of an epoch of synthetic images


class Bench:
    """Measures parts of experiments, each part once: an experiment that differs only in its input
    has the same step."""

    def __init__(
        self, prepare: Callable[[Experiment], Config], folder: Path, seconds: float
    ) -> None:
        self.prepare, self.folder, self.seconds = prepare, folder, seconds
        self.found: dict[str, Measured] = {}
        self.probes: dict[str, dict[str, Any]] = {}

    def once(self, name: str, key: Any, words: str, run: Callable[[Path], Measured]) -> Measured:
        """The measurement of that name and key, made now if it was not before."""
        whole = f"{name} {key}"
        if whole not in self.found:
            launch.say(f"measuring {words} …")
            self.found[whole] = run(self.folder / f"{len(self.found):02d}-{name}")
        return self.found[whole]

    def probe(self, done: Experiment) -> dict[str, Any]:
        key = str(done.given())
        if key not in self.probes:
            launch.say("measuring the stages of the input and what the device can do at most …")
            self.probes[key] = measure.probe(done, self.seconds / 3)
        return self.probes[key]

    def loader(self, done: Experiment, probe: dict[str, Any]) -> float:
        """Images per second of the loader alone, FREE for synthetic images."""
        if done.loader == "synthetic":
            return model.FREE
        stages = probe["stages"] or {"read": 0.002}
        workers = min(machine().cores, done.n * max(1, done.data_nthreads))
        steps = measure.steps_for(self.seconds, workers / sum(stages.values()), done.global_batch)
        found = self.once(
            "loader", part_key(done, changes.STEP_ONLY), f"the loader alone ({done.loader})",
            lambda folder: measure.loader_alone(done, steps, epoch_steps(done), folder),
        )  # fmt: skip
        return found.ips

    def compute(self, done: Experiment, probe: dict[str, Any]) -> float:
        """Images per second of the step alone, its exchange of gradients included."""
        fed = replace(done, loader="synthetic", num_examples=None)
        steps = measure.steps_for(self.seconds, guess(done, probe), done.global_batch)
        words = "the step alone" + (f" ({done.dtype})" if done.step is None else " (paced)")
        if done.n > 1:
            words += f", {done.n} workers"
        found = self.once(
            "step", part_key(fed, changes.INPUT_ONLY), words,
            lambda folder: measure.together(
                fed, steps, ENDLESS, folder, SLOW * self.seconds
            ),
        )  # fmt: skip
        return found.ips

    def alone(self, done: Experiment, compute: float) -> float:
        """The same without an exchange: single workers at the same time."""
        if done.n == 1 or done.step is not None or done.only_inference:
            return compute
        steps = measure.steps_for(self.seconds, compute, done.global_batch)
        found = self.once(
            "alone", part_key(done, changes.INPUT_ONLY), "the same workers without an exchange",
            lambda folder: measure.without_exchange(done, steps, folder),
        )  # fmt: skip
        return max(found.ips, compute)

    def both(self, done: Experiment, expected: float) -> Measured:
        """All of it, as a run would be; steps for as long as the prediction says."""
        if done.loader == "synthetic":
            return self.found[self.step_name(done)]
        steps = measure.steps_for(1.5 * self.seconds, expected, done.global_batch)
        return self.once(
            "both", done.given(), f"both together ({done.loader}, {done.dtype})",
            lambda folder: measure.together(
                done, steps, epoch_steps(done), folder, SLOW * self.seconds
            ),
        )  # fmt: skip

    def predict(self, done: Experiment) -> tuple[float, float, float]:
        """(loader, compute, both) of an experiment; both follows from the two alone."""
        probe = self.probe_for(done)
        loader, compute = self.loader(done, probe), self.compute(done, probe)
        return loader, compute, model.together(loader, compute, sharing(done))

    def step_name(self, done: Experiment) -> str:
        fed = replace(done, loader="synthetic", num_examples=None)
        return f"step {part_key(fed, changes.INPUT_ONLY)}"

    def probe_for(self, done: Experiment) -> dict[str, Any]:
        """The first probe serves all changes: it only says how long a measurement should be."""
        return next(iter(self.probes.values())) if self.probes else self.probe(done)


def part_key(done: Experiment, left_out: tuple[str, ...]) -> dict[str, Any]:
    """The fields that a part depends on."""
    return {name: value for name, value in done.given().items() if name not in left_out}


def epoch_steps(done: Experiment) -> int:
    """Steps of an epoch of the experiment's data."""
    if done.loader == "synthetic":
        return ENDLESS
    split = "val" if done.only_inference else "train"
    images = len(open_source(Path(done.data_root), split, done.data_format))
    if split == "train":
        images = min(images, done.num_examples or images)
    return max(1, images // done.global_batch)


def flops(done: Experiment) -> int | None:
    """Of the model for one image; None for a paced step, which has none."""
    if done.step is not None:
        return None
    net = done.to_network()
    return (
        2 * net.macs(done.image_shape) if done.only_inference else net.train_flops(done.image_shape)
    )


def guess(done: Experiment, probe: dict[str, Any]) -> float:
    """Images per second that the step may reach: only decides how many steps are timed."""
    if done.step is not None:
        return done.step
    best = max((probe["peak"] or {"": NO_PEAK}).values())
    seconds = (flops(done) or 0) * done.batch_size / (EFFICIENCY * best) + OVERHEAD_S
    return done.global_batch / seconds


def sharing(done: Experiment) -> model.Sharing:
    """What the loader and the step of an experiment want of the cores."""
    cores = machine().cores
    on_cores = done.step is None and not machine().gpus
    return model.Sharing(
        cores=cores,
        loader=min(cores, done.n * max(1, done.data_nthreads)),
        compute=min(cores, done.n * done.threads) if on_cores else 0,
        ahead=done.data_nthreads > 0 or not on_cores,
    )
