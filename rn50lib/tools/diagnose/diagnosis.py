"""Puts the measured parts of an experiment together: what bounds it, and what would change that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rn50lib import launch, memory
from rn50lib.config import Config, Experiment
from rn50lib.errors import UserError
from rn50lib.hardware import machine
from rn50lib.tools.diagnose import changes, measure, model
from rn50lib.tools.diagnose.bench import Bench, part_key, sharing
from rn50lib.tools.diagnose.measure import Measured


@dataclass
class Diagnosis:
    """What was found. Rates in images per second over all workers, times in seconds."""

    resolved: Config
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
    def done(self) -> Experiment:
        return self.resolved.experiment


def diagnose(
    resolved: Config,
    asked: Experiment,
    prepare: Callable[[Experiment], Config],
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


def parts(bench: Bench, done: Experiment, both: Measured) -> dict[str, Measured]:
    """The measurements of an experiment by the name of the part."""
    found = {"loader": None, "step": bench.found[bench.step_name(done)], "both": both}
    loader = f"loader {part_key(done, changes.STEP_ONLY)}"
    found["loader"] = bench.found.get(loader)
    return {name: value for name, value in found.items() if value is not None}


def exchange(
    done: Experiment, compute: float, plain: float, folder: Path
) -> dict[str, float] | None:
    """The gradients' size, the seconds of one bare all-reduce of them, and what a step loses."""
    if done.step is not None or done.only_inference:
        return None
    from rn50lib.tools.doctor import allreduce

    size = 4 * done.to_network().num_parameters
    launch.say("measuring the all-reduce by itself …")
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
