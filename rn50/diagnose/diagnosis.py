"""Measures the parts of an experiment, and says what bounds it and what would change that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rn50 import launch
from rn50.diagnose import changes, measure, model
from rn50.prepare import prepare
from rn50lib.config import Config, Experiment
from rn50lib.data.source import open_source
from rn50lib.errors import UserError
from rn50lib.hardware import machine

EFFICIENCY, OVERHEAD_S = 0.35, 0.01  # for guessing how many steps a measurement takes
SLOW = 3  # a step that takes so many times as long as was guessed is timed no longer
NO_PEAK = 1e11  # FLOP/s to guess from where none was measured
ENDLESS = 10**9  # steps of an epoch of synthetic images


@dataclass
class Diagnosis:
    """What was found. Rates in images per second over all workers, times in seconds."""

    resolved: Config
    sharing: model.Sharing
    rates: model.Rates
    predicted: float  # images per second of both together, from the two alone
    stages: dict[str, float] | None  # seconds per image on one core
    peak: dict[str, float] | None  # FLOP/s of the device
    exchange: dict[str, float] | None  # bytes, and the seconds of a step that they cost
    bound: model.Bound
    verdict: str
    changes: list[model.Change] = field(default_factory=list)

    @property
    def done(self) -> Experiment:
        return self.resolved.experiment


class Bench:
    """Measures parts of experiments, each for about `seconds` and each once: an experiment that
    differs only in its input has the same step. `probe` is of the first experiment: for the others
    it only says how long a measurement should be."""

    def __init__(self, done: Experiment, folder: Path, seconds: float) -> None:
        self.folder, self.seconds = folder, seconds
        self.results: dict[str, float] = {}
        launch.say("measuring the stages of the input and what the device can do at most …")
        self.probe = measure.probe(done, seconds / 3)

    def once(self, part: str, key: Any, description: str, run: Callable[[Path], float]) -> float:
        """Images per second of a part for this key, made now if it was not before."""
        name = f"{part} {key}"
        if name not in self.results:
            launch.say(f"measuring {description} …")
            self.results[name] = run(self.folder / f"{len(self.results):02d}-{part}")
        return self.results[name]

    def loader(self, done: Experiment) -> float:
        """The loader alone, FREE for synthetic images."""
        if done.loader == "synthetic":
            return model.FREE
        stages = self.probe["stages"] or {"read": 0.002}
        workers = min(machine().cores, done.n * max(1, done.data_nthreads))
        steps = measure.steps_for(self.seconds, workers / sum(stages.values()), done.global_batch)
        return self.once(
            "loader", part_key(done, changes.STEP_ONLY), f"the loader alone ({done.loader})",
            lambda folder: measure.loader_alone(done, steps, epoch_steps(done), folder),
        )  # fmt: skip

    def step(self, done: Experiment) -> float:
        """The step alone, its exchange of gradients included."""
        fed = replace(done, loader="synthetic", num_examples=None)
        steps = measure.steps_for(self.seconds, guess(done, self.probe), done.global_batch)
        description = "the step alone" + (f" ({done.dtype})" if done.step is None else " (paced)")
        if done.n > 1:
            description += f", {done.n} workers"
        return self.once(
            "step", part_key(fed, changes.INPUT_ONLY), description,
            lambda folder: measure.together(fed, steps, ENDLESS, folder, SLOW * self.seconds),
        )  # fmt: skip

    def without_exchange(self, done: Experiment, compute: float) -> float:
        """Images per second of single workers at the same time."""
        if done.n == 1 or done.step is not None or done.only_inference:
            return compute
        steps = measure.steps_for(self.seconds, compute, done.global_batch)
        found = self.once(
            "alone", part_key(done, changes.INPUT_ONLY), "the same workers without an exchange",
            lambda folder: measure.without_exchange(done, steps, folder),
        )  # fmt: skip
        return max(found, compute)

    def both(self, done: Experiment, expected: float) -> float:
        """All of it, as a run would be; steps for as long as the prediction says."""
        if done.loader == "synthetic":
            return self.step(done)
        steps = measure.steps_for(1.5 * self.seconds, expected, done.global_batch)
        return self.once(
            "both", done.given(), f"both together ({done.loader}, {done.dtype})",
            lambda folder: measure.together(
                done, steps, epoch_steps(done), folder, SLOW * self.seconds
            ),
        )  # fmt: skip

    def predict(self, done: Experiment) -> tuple[float, float, float]:
        """(loader, step, both) of an experiment, images per second; both follows from the two
        alone."""
        loader, compute = self.loader(done), self.step(done)
        return loader, compute, model.together(loader, compute, sharing(done))


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


def diagnose(
    resolved: Config,
    asked: Experiment,
    wanted: dict[str, Experiment],
    verify: bool,
    seconds: float,
    folder: Path,
) -> Diagnosis:
    """Measure an experiment and its changes. `wanted` are changes that the user asked for, by their
    flags; without any, the likely ones for what bounds the run are tried.

    Raises UserError where a part cannot run.
    """
    done = measure.bare(resolved.experiment)
    bench = Bench(done, folder, seconds)
    loader, compute, predicted = bench.predict(done)
    plain = bench.without_exchange(done, compute)
    exchanged = exchange(done, compute, plain) if done.n > 1 else None
    both = bench.both(done, predicted)
    rates = model.Rates(loader, compute, plain, both)
    bound = model.find_bound(rates, sharing(done))
    likely = changes.candidates(bound.part, resolved.experiment, machine()) if not wanted else []
    tried = []
    for text, change in (wanted or {text: changes.parse(text) for text in likely}).items():
        changed = replace(asked, **change.given())
        if change.data_root is None and changed.num_classes is None:  # the same model
            changed = replace(changed, num_classes=done.num_classes)
        other = measure.bare(prepare(changed).experiment)
        where = changes.changed_part(done, other)
        if where is None and likely:
            continue  # capped away
        if where is None:
            raise UserError(f"--change {text!r} changes nothing here: the run has it already")
        ips = bench.predict(other)[2]
        part = bound.part if where == changes.BOTH else where
        found = bench.both(other, ips) if verify else None
        tried.append(model.Change(text, model.lesson(part, other.backend, text), ips, found))
    bound, text = model.verdict(rates, sharing(done), tried, done.backend)
    return Diagnosis(
        resolved, sharing(done), rates, predicted,
        bench.probe["stages"], bench.probe["peak"], exchanged, bound, text, tried,
    )  # fmt: skip


def exchange(done: Experiment, compute: float, plain: float) -> dict[str, float] | None:
    """The size of the gradients, and what a step loses to exchanging them."""
    if done.step is not None or done.only_inference:
        return None
    return {
        "bytes": 4 * done.to_network().num_parameters,
        "exchange_s": max(0.0, done.global_batch * (1 / compute - 1 / plain)),
        "step_s": done.global_batch / compute,
    }
