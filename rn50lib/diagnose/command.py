"""The verb: measures the parts of an experiment one after the other and puts them together."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rn50lib import launch, memory
from rn50lib.diagnose import changes, measure, model
from rn50lib.diagnose.measure import Measured
from rn50lib.errors import UserError
from rn50lib.experiment import Experiment, FullExperiment, Resolved
from rn50lib.hardware import machine
from rn50lib.records.source import open_source

SECONDS, SECONDS_CI = 6.0, 0.5  # of a measurement
EFFICIENCY, OVERHEAD_S = 0.35, 0.01  # for guessing how many steps a measurement takes
SLOW = 3  # a step that takes so many times as long as was guessed is timed no longer
NO_PEAK = 1e11  # FLOP/s to guess from where none was measured
ENDLESS = 10**9  # steps of an epoch of synthetic images


@dataclass
class Diagnosis:
    """What was found. Rates in images per second over all workers, times in seconds."""

    resolved: Resolved
    sharing: model.Sharing
    rates: model.Rates
    predicted: float  # images per second of both together, from the two alone
    measured: dict[str, Measured]
    stages: dict[str, float] | None  # seconds per image on one core
    peak: dict[str, float] | None  # FLOP/s of the device
    exchange: dict[str, float] | None  # bytes, and seconds of one all-reduce and of the whole
    bound: model.Bound
    verdict: str
    changes: list[model.Change] = field(default_factory=list)

    @property
    def done(self) -> FullExperiment:
        return self.resolved.experiment


class Bench:
    """Measures parts of experiments, each part once: an experiment that differs only in its input
    has the same step."""

    def __init__(
        self, prepare: Callable[[Experiment], Resolved], folder: Path, seconds: float
    ) -> None:
        self.prepare, self.folder, self.seconds = prepare, folder, seconds
        self.found: dict[str, Measured] = {}
        self.probes: dict[str, dict[str, Any]] = {}

    def once(self, name: str, key: Any, words: str, run: Callable[[Path], Measured]) -> Measured:
        """The measurement of that name and key, made now if it was not before."""
        whole = f"{name} {key}"
        if whole not in self.found:
            say(f"measuring {words} …")
            self.found[whole] = run(self.folder / f"{len(self.found):02d}-{name}")
        return self.found[whole]

    def probe(self, done: FullExperiment) -> dict[str, Any]:
        key = str(done.given())
        if key not in self.probes:
            say("measuring the stages of the input and what the device can do at most …")
            self.probes[key] = measure.probe(done, self.seconds / 3)
        return self.probes[key]

    def loader(self, done: FullExperiment, probe: dict[str, Any]) -> float:
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

    def compute(self, done: FullExperiment, probe: dict[str, Any]) -> float:
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

    def alone(self, done: FullExperiment, compute: float) -> float:
        """The same without an exchange: single workers at the same time."""
        if done.n == 1 or done.step is not None or done.only_inference:
            return compute
        steps = measure.steps_for(self.seconds, compute, done.global_batch)
        found = self.once(
            "alone", part_key(done, changes.INPUT_ONLY), "the same workers without an exchange",
            lambda folder: measure.without_exchange(done, steps, folder),
        )  # fmt: skip
        return max(found.ips, compute)

    def both(self, done: FullExperiment, expected: float) -> Measured:
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

    def predict(self, done: FullExperiment) -> tuple[float, float, float]:
        """(loader, compute, both) of an experiment; both follows from the two alone."""
        probe = self.probe_for(done)
        loader, compute = self.loader(done, probe), self.compute(done, probe)
        return loader, compute, model.together(loader, compute, sharing(done))

    def step_name(self, done: FullExperiment) -> str:
        fed = replace(done, loader="synthetic", num_examples=None)
        return f"step {part_key(fed, changes.INPUT_ONLY)}"

    def probe_for(self, done: FullExperiment) -> dict[str, Any]:
        """The first probe serves all changes: it only says how long a measurement should be."""
        return next(iter(self.probes.values())) if self.probes else self.probe(done)


def part_key(done: FullExperiment, left_out: tuple[str, ...]) -> dict[str, Any]:
    """The fields that a part depends on."""
    return {name: value for name, value in done.given().items() if name not in left_out}


def epoch_steps(done: FullExperiment) -> int:
    """Steps of an epoch of the experiment's data."""
    if done.loader == "synthetic":
        return ENDLESS
    split = "val" if done.only_inference else "train"
    images = len(open_source(Path(done.data_root), split, done.data_format))
    if split == "train":
        images = min(images, done.num_examples or images)
    return max(1, images // done.global_batch)


def flops(done: FullExperiment) -> int | None:
    """Of the model for one image; None for a paced step, which has none."""
    if done.step is not None:
        return None
    net = done.to_network()
    return (
        2 * net.macs(done.image_shape) if done.only_inference else net.train_flops(done.image_shape)
    )


def guess(done: FullExperiment, probe: dict[str, Any]) -> float:
    """Images per second that the step may reach: only decides how many steps are timed."""
    if done.step is not None:
        return done.step
    best = max((probe["peak"] or {"": NO_PEAK}).values())
    seconds = (flops(done) or 0) * done.batch_size / (EFFICIENCY * best) + OVERHEAD_S
    return done.global_batch / seconds


def sharing(done: FullExperiment) -> model.Sharing:
    """What the loader and the step of an experiment want of the cores."""
    cores = machine().cores
    on_cores = done.step is None and not machine().gpus
    return model.Sharing(
        cores=cores,
        loader=min(cores, done.n * max(1, done.data_nthreads)),
        compute=min(cores, done.n * done.threads) if on_cores else 0,
        ahead=done.data_nthreads > 0,
    )


def diagnose(
    resolved: Resolved,
    asked: Experiment,
    prepare: Callable[[Experiment], Resolved],
    wanted: list[Experiment],
    texts: list[str],
    verify: bool,
    seconds: float,
    folder: Path,
) -> Diagnosis:
    """Measure an experiment and its changes. `wanted` are changes that the user asked for, `texts`
    their flags; without any, the likely ones for what bounds the run are tried.

    Raises UserError where a part cannot run.
    """
    done = measure.bare(resolved.experiment)
    bench = Bench(prepare, folder, seconds)
    probe = bench.probe(done)
    loader, compute, predicted = bench.predict(done)
    plain = bench.alone(done, compute)
    exchanged = exchange(done, compute, plain, folder) if done.n > 1 else None
    both = bench.both(done, predicted)
    rates = model.Rates(loader, compute, plain, both.ips)
    bound = model.find_bound(rates, sharing(done))
    own = not texts
    if own:
        texts = changes.candidates(bound.part, resolved.experiment, machine())
        wanted = [changes.parse(text) for text in texts]
    tried = []
    for text, change in zip(texts, wanted, strict=True):
        changed = changes.merged(asked, change)
        if change.data_root is None and changed.num_classes is None:  # the same model
            changed = replace(changed, num_classes=done.num_classes)
        other = measure.bare(prepare(changed).experiment)
        where = changes.touched(changes.differences(done, other))
        if where is None and own:
            continue  # capped away
        if where is None:
            raise UserError(f"--change {text!r} changes nothing here: the run has it already")
        ips = bench.predict(other)[2]
        part = bound.part if where == changes.BOTH else where
        found = bench.both(other, ips).ips if verify else None
        tried.append(model.Change(text, changes.teaches(text, part, other), ips, found))
    bound, text = model.verdict(rates, sharing(done), tried, done.backend)
    return Diagnosis(
        resolved, sharing(done), rates, predicted, parts(bench, done, both),
        probe["stages"], probe["peak"], exchanged, bound, text, tried,
    )  # fmt: skip


def parts(bench: Bench, done: FullExperiment, both: Measured) -> dict[str, Measured]:
    """The measurements of an experiment by the name of the part."""
    found = {"loader": None, "step": bench.found[bench.step_name(done)], "both": both}
    loader = f"loader {part_key(done, changes.STEP_ONLY)}"
    found["loader"] = bench.found.get(loader)
    return {name: value for name, value in found.items() if value is not None}


def exchange(
    done: FullExperiment, compute: float, plain: float, folder: Path
) -> dict[str, float] | None:
    """The gradients' size, the seconds of one bare all-reduce of them, and what a step loses."""
    if done.step is not None or done.only_inference:
        return None
    from rn50lib.doctor import allreduce

    size = 4 * done.to_network().num_parameters
    say("measuring the all-reduce by itself …")
    found, _ = allreduce.run(
        done.n, done.comm, done.backend, done.hosts, folder / "allreduce.json",
        sizes=(max(4, size // 4), size), repeats=7,
    )  # fmt: skip
    return {
        "bytes": size,
        "all_reduce_s": found.seconds[-1],
        "exchange_s": max(0.0, done.global_batch * (1 / compute - 1 / plain)),
        "step_s": done.global_batch / compute,
    }


def memory_of(found: Diagnosis) -> dict[str, Any] | None:
    """Predicted beside measured, in bytes, and the largest batch that is predicted to fit."""
    done = found.done
    if done.step is not None:
        return None
    parts = memory.predict(
        done.to_network(), done.image_shape, done.batch_size, done.dtype, not done.only_inference
    )
    run = found.measured["both"]
    gpu = run.gpu_memory is not None
    return {
        "predicted": asdict(parts) | {"total": parts.total},
        "measured_peak": run.gpu_memory if gpu else run.memory,
        "of": "the GPU" if gpu else "the process, its libraries included",
        "capacity": changes.capacity(machine()) or None,
        "largest_batch": changes.largest(done, machine()),
    }


def say(text: str) -> None:
    launch.say(text)


def main(
    argv: list[str],
    prepare: Callable[[Experiment], Resolved],
    describe: Callable[[Resolved], str],
) -> int:
    """`rn50 diagnose`; `prepare` and `describe` are those of every run."""
    from rn50lib.cli import experiment_parser, parse_experiment
    from rn50lib.diagnose import show

    parser = experiment_parser("diagnose")
    parser.add_argument(
        "--change", action="append", default=[], metavar="FLAGS",
        help="predict the run with these flags changed, as in --change '--loader dali'; repeatable"
        " (default: what is likely to help)",
    )  # fmt: skip
    parser.add_argument(
        "--verify", action="store_true",
        help="measure the changes too, and say how far the predictions were off",
    )  # fmt: skip
    parser.add_argument("--json", metavar="FILE", help="write everything that was found")
    parser.add_argument("-o", "--output", metavar="FILE", help="write a picture (.png, .svg, .pdf)")
    parser.add_argument(
        "--seconds", type=float, metavar="SECONDS",
        help=f"length of a measurement (default: {SECONDS:g})",
    )  # fmt: skip
    asked, extra = parse_experiment(parser, changes.joined(argv))
    if extra.seconds is not None and not 0 < extra.seconds <= 120:
        raise UserError(f"--seconds {extra.seconds:g}: give more than 0 and at most 120")
    wanted = [changes.parse(text) for text in extra.change]
    launch.die_with_parent()
    resolved = prepare(asked)
    if resolved.experiment.load_epoch is not None:
        raise UserError("--load-epoch: speed does not depend on the weights; leave it out")
    say(describe(resolved))
    ci = resolved.experiment.profile == "ci"
    folder = launch.new_run("diagnose")
    begin = time.monotonic()
    found = diagnose(
        resolved, asked, prepare, wanted, extra.change, extra.verify,
        extra.seconds or (SECONDS_CI if ci else SECONDS), folder,
    )  # fmt: skip
    say(f"measured in {time.monotonic() - begin:.0f} s; the runs are in {folder}")
    if extra.json:
        from rn50lib.report import write_json

        write_json(extra.json, show.content(found))
        say(extra.json)
    if extra.output:
        from rn50lib import plot
        from rn50lib.diagnose import picture

        plot.save(picture.bars(found), extra.output)
        say(extra.output)
    print(show.text(found))
    return 0
