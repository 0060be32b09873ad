"""The one loop: every run of every notebook, backend, loader and precision goes through `train`.

It sees a pipeline, a step and a group of workers, never a framework, and adds nothing per image.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rn50lib import checkpoint, seams
from rn50lib.backends import Step, build_step
from rn50lib.comm import Comm, agree, apart
from rn50lib.errors import UserError
from rn50lib.experiment import FullExperiment
from rn50lib.network import Network
from rn50lib.pipelines import Pipeline, open_pipeline
from rn50lib.position import Position, State
from rn50lib.progress import Progress
from rn50lib.report import Report


@dataclass
class Run:
    """What the phases of a run share."""

    experiment: FullExperiment
    comm: Comm
    step: Step
    progress: Progress
    report: Report
    seconds: dict[str, float]  # where the wall time of the loop went, by part
    state: State


def train(
    experiment: FullExperiment,
    net: Network,
    sources: dict[str, Any],
    comm: Comm,
    progress: Progress,
    report: Report,
    write_report: Callable[[Report], None],
    state: State | None = None,
    warm_up: int = 0,
) -> Report:
    """Train and validate as `experiment` says; returns the report.

    `sources` maps 'train' and 'val' to opened data sets (None: synthetic). `write_report(report)`
    is called after every epoch, on rank 0. `state` is where a group that changed goes on. Before
    the first epoch come `warm_up` iterations of each split that nothing counts. Raises
    UserError for bad data or a diverged loss.
    """
    begin = time.perf_counter()
    state = state or State()
    if experiment.elastic:  # the global batch, and with it the rate, follow the workers there are
        experiment = replace(experiment, n=comm.size)
    seams.install(experiment.override)
    pipelines = {
        split: open_pipeline(experiment, source, split, comm.rank, comm.size)
        for split, source in sources.items()
    }
    try:
        # the step comes first: what its framework must be told before anything is exchanged is told
        step = build_step(experiment, net, comm)
        agree({f"the steps of a {split} epoch": len(p) for split, p in pipelines.items()}, comm)
        report.env["versions"] = report.env.get("versions", {}) | step.versions()
        seconds = dict.fromkeys(("data", "step", "loop"), 0.0)
        run = Run(experiment, comm, step, progress, report, seconds, state)
        identity = identify(experiment, net, sources)
        hashes = {f"the {name}": float(fingerprint(value)) for name, value in identity.items()}
        agree(hashes, comm, hashed=True)
        first = restore(run, net, identity)
        if experiment.model_prefix and not experiment.only_inference and comm.rank == 0:
            checkpoint.write_symbol(experiment.model_prefix, net)
        for split, pipeline in pipelines.items() if warm_up else ():
            settle(run, split, pipeline, warm_up)
        if first >= experiment.num_epochs and comm.rank == 0:
            write_report(report)  # the run was killed between its last checkpoint and its report
        for epoch in range(first, experiment.num_epochs):
            epoch_begin = time.perf_counter()
            if not experiment.only_inference:
                report.add("train", train_epoch(run, pipelines["train"], epoch))
            if not experiment.no_val:
                average_running_statistics(run)
                report.add("val", validate(run, pipelines["val"], epoch))
            if wants_checkpoint(experiment, epoch + 1):
                save(run, identity, epoch + 1)
            tell_changes(run)
            if epoch + 1 == experiment.num_epochs:
                compare_ranks(run)
            report.total_duration = time.perf_counter() - begin
            report.env["seconds"] = {part: round(s, 3) for part, s in run.seconds.items()}
            if comm.rank == 0:
                write_report(report)
            latest = {key: values[-1] for key, values in report.metrics.items() if values}
            progress.epoch_done(
                epoch, experiment.num_epochs, latest, time.perf_counter() - epoch_begin
            )
        return report
    finally:
        for pipeline in pipelines.values():
            pipeline.close()
        progress.close()


def settle(run: Run, split: str, pipeline: Pipeline, steps: int) -> None:
    """A few iterations that nothing counts, so that kernels are chosen, memory is taken and caches
    are full before a benchmark begins. They train at a rate of 0."""
    at_once = run.experiment.micro_batches if split == "train" else 1
    steps = min(-(-steps // at_once), len(pipeline) // at_once) * at_once
    for batch in pipeline.epoch(0, start_step=len(pipeline) - steps):
        if split == "train":
            run.step.train_step(batch, 0.0)
        else:
            run.step.eval_step(batch)
    run.step.read_sums()


def train_epoch(run: Run, pipeline: Pipeline, epoch: int) -> dict[str, float | None]:
    """One epoch of training, or what is left of it; its metrics over all workers."""
    experiment, step = run.experiment, run.step
    schedule, recipe = seams.get("schedule"), experiment.to_recipe()
    batch_size, saved = experiment.global_batch, run.state.saved
    before = saved.images if saved and saved.epoch == epoch else 0  # done by an earlier group
    steps = (pipeline.examples - before) // batch_size if before else len(pipeline)
    at_once = experiment.micro_batches
    steps = whole_updates(experiment, steps) if not before else steps // at_once * at_once
    # by epoch, so that one that is entered again is not counted twice
    run.state.tails[epoch] = pipeline.examples - before - steps * batch_size
    traced = experiment.profile_trace if epoch == 0 and run.comm.rank == 0 else None
    timer = Timer(run, "train", epoch, steps)
    skipped = step.scaling().get("skipped", 0)
    if before and saved and run.comm.rank == 0:
        timer.total += saved.sums
    batches = pipeline.epoch(epoch, done=before) if before else pipeline.epoch(epoch)
    with step.trace(Path(traced), steps) if traced else contextlib.nullcontext() as trace:
        for i, batch in enumerate(timer.batches(itertools.islice(batches, steps))):
            first = i // at_once * at_once  # the rate is that of the update that a batch is part of
            share = (before + first * batch_size) / (before + steps * batch_size)
            lr = schedule(epoch + share, experiment.update_batch, recipe)
            step.train_step(batch, lr)
            timer.step_done(i, lr)
            if trace is not None:
                trace.step()
            if experiment.elastic:
                run.state.since += batch_size
                if (i + 1) % (experiment.commit_steps * at_once) == 0 or i + 1 == steps:
                    commit(timer, before + (i + 1) * batch_size)
    metrics = timer.finish()
    for _ in batches:  # a loader that is left in mid-epoch may hand the rest to the next one
        pass
    tell_scaling(run, skipped, steps // at_once)
    return metrics


def whole_updates(experiment: FullExperiment, steps: int) -> int:
    """The steps of an epoch that make whole updates. Raises UserError where there are too few."""
    updates = steps // experiment.micro_batches
    if not updates:
        raise UserError(
            f"--macrobatch-size {experiment.macrobatch_size}: an update takes"
            f" {experiment.update_batch} images, and an epoch has"
            f" {steps * experiment.global_batch}: make it smaller"
        )
    return updates * experiment.micro_batches


def commit(timer: Timer, images: int) -> None:
    """Make this the point that the group goes on from when a worker dies or joins."""
    timer.read(tell=False)
    (sums,) = timer.run.comm.sum([timer.total])
    metrics = {key: list(values) for key, values in timer.run.report.metrics.items()}
    step = timer.run.step
    position = Position(timer.epoch, images, step.state(), sums, metrics, step.scaling())
    timer.run.state.commit(position)


def tell_scaling(run: Run, before: float, updates: int) -> None:
    """Into the report: the loss scale, and how many updates were skipped; a line if any were."""
    found = run.step.scaling()
    if not found:
        return
    run.report.env["loss_scale"] = {
        "scale": found["scale"],
        "skipped_updates": int(found["skipped"]),
    }
    skipped = int(found["skipped"] - before)
    if skipped:
        text = (
            f"{skipped} of {updates} updates were skipped: gradients were not finite; the loss"
            f" scale is now {found['scale']:g}"
        )
        if skipped == updates:
            text += "; nothing was learnt: give a smaller --loss-scale"
        run.progress.say(text)


def tell_changes(run: Run) -> None:
    """Into the report: how often the group changed, and what was done twice or not at all."""
    if run.experiment.elastic:
        run.report.ngpus = run.comm.size
        run.report.env["elastic"] = {
            "changes": run.state.changes,
            "images_repeated": run.state.repeated,
            "images_in_tails": sum(run.state.tails.values()),
        }


def validate(run: Run, pipeline: Pipeline, epoch: int) -> dict[str, float | None]:
    """One pass over the validation images; its metrics over all workers."""
    timer = Timer(run, "val", epoch, len(pipeline))
    for i, batch in enumerate(timer.batches(pipeline.epoch(epoch))):
        run.step.eval_step(batch)
        timer.step_done(i, None)
    return timer.finish()


class Timer:
    """Times a phase and reads the device's sums.

    It reads after the first step, every `disp_batches` and at the end. The first iteration of an
    epoch fills pipelines and caches; it is left out of `time`.
    """

    def __init__(self, run: Run, phase: str, epoch: int, steps: int) -> None:
        self.run, self.phase, self.epoch, self.steps = run, phase, epoch, steps
        self.total, self.window = np.zeros(4), np.zeros(4)
        self.done = self.read_at = 0
        self.data_s = self.step_s = 0.0
        run.progress.start(phase, epoch, run.experiment.num_epochs, steps)
        self.begin = self.read_time = self.first_time = time.perf_counter()

    def batches(self, source: Iterator) -> Iterator:
        """The batches of `source`; the time that waiting for them takes is counted apart."""
        before = time.perf_counter()
        for batch in source:
            self.handed_over = time.perf_counter()
            self.data_s += self.handed_over - before
            yield batch
            before = time.perf_counter()

    def step_done(self, i: int, lr: float | None) -> None:
        self.step_s += time.perf_counter() - self.handed_over
        self.done = i + 1
        self.run.progress.step(self.data_s)
        if i == 0:
            self.read(tell=False)
            self.tell_remarks()
            self.first_time = self.read_time = time.perf_counter()
            self.read_at = 1
        elif self.done % self.run.experiment.disp_batches == 0:
            self.read(lr)

    def tell_remarks(self) -> None:
        """What the step could not do as it was asked to: said once, and into the report."""
        for text in self.run.step.remarks:
            known = self.run.report.env.setdefault("remarks", [])
            if text not in known:
                known.append(text)
                self.run.progress.say(text)

    def read(self, lr: float | None = None, tell: bool = True) -> None:
        before = time.perf_counter()
        sums = self.run.step.read_sums()
        now = time.perf_counter()
        self.step_s += now - before  # on a GPU this waits for the steps in flight
        self.total += sums
        self.window += sums
        if not math.isfinite(sums[0]):
            raise UserError(
                f"the loss is {sums[0]} in epoch {self.epoch + 1}, step {self.done}: training has"
                " diverged; lower --lr, lengthen --warmup-epochs or use --dtype float32"
            )
        if self.done > self.read_at and tell:
            seen = (self.done - self.read_at) * self.run.experiment.global_batch
            loss, top1, _, examples = self.window
            values: dict[str, float | None] = {
                "loss": loss / examples if examples else None,
                "top1": 100 * top1 / examples if examples else None,
                "ips": seen / (now - self.read_time),
                "lr": lr,
            }
            scaling = self.run.step.scaling() if self.phase == "train" else {}
            if scaling:
                values["loss_scale"] = scaling["scale"]
            global_step = self.epoch * self.steps + self.done
            self.run.progress.reading(self.done, values, global_step)
            self.window = np.zeros(4)
            self.read_at, self.read_time = self.done, now

    def finish(self) -> dict[str, float | None]:
        """Metrics over all workers, `time` in seconds per iteration and `total_ips`."""
        self.read(tell=self.phase == "train")
        now = time.perf_counter()
        self.run.progress.stop()
        metrics = dict(seams.get("metric_sums")(self.total, self.run.comm))
        if self.done > 1:
            metrics["time"] = (now - self.first_time) / (self.done - 1)
            metrics["total_ips"] = self.run.experiment.global_batch / metrics["time"]
        if self.phase == "train":
            self.run.seconds["data"] += self.data_s
            self.run.seconds["step"] += self.step_s
            self.run.seconds["loop"] += now - self.begin - self.data_s - self.step_s
        return metrics


def average_running_statistics(run: Run) -> None:
    """Give every rank the mean of all ranks' running statistics.

    Training batch norm is per rank. After this, validation on N ranks and a later score of the
    checkpoint in one process see the same network.
    """
    if run.comm.size == 1 or run.experiment.step is not None:
        return
    arrays = run.step.state()
    names = [name for name in arrays if ".running_" in name]
    totals = run.comm.sum([arrays[name] for name in names])
    run.step.load(arrays | {n: t / run.comm.size for n, t in zip(names, totals, strict=True)})


def compare_ranks(run: Run) -> None:
    """Put the largest difference between the ranks' weights into the report, and say if there is
    one: nothing else shows that the ranks train models of their own."""
    experiment = run.experiment
    if run.comm.size == 1 or experiment.step is not None or experiment.only_inference:
        return
    arrays = run.step.state()
    weights = {n: a for n, a in arrays.items() if "/" not in n and ".running_" not in n}
    largest = run.report.env["weights_apart"] = apart(weights, run.comm)
    if largest:
        run.progress.say(
            f"the ranks' weights differ by up to {largest:.3g}: they did not start alike, or their"
            " gradients were not averaged; the checkpoint is rank 0's alone"
        )


def identify(experiment: FullExperiment, net: Network, sources: dict[str, Any]) -> dict[str, Any]:
    """What a checkpoint and a run that resumes it must have in common."""
    source = sources.get("train")
    found: dict[str, Any] = {
        "model": f"{net.name} {net.version}",
        "num_classes": net.num_classes,
        "seed": experiment.seed,
        "optimizer": experiment.optimizer,
        "label_smoothing": experiment.label_smoothing,
    }
    if source is not None:
        labels = zlib.crc32(np.ascontiguousarray(source.labels).data.cast("B"))
        found["data"] = f"{len(source)} images, labels {labels:08x}"
    return found


def fingerprint(value: Any) -> int:
    """A number that differs where the values do."""
    return zlib.crc32(str(value).encode())


def restore(run: Run, net: Network, identity: dict[str, Any]) -> int:
    """Load what the run goes on from, a commit or a checkpoint; returns the first epoch to do."""
    experiment, prefix, saved = run.experiment, run.experiment.model_prefix, run.state.saved
    if saved is not None:
        run.step.load(saved.arrays, saved.scaling)
        run.report.metrics = {key: list(values) for key, values in saved.metrics.items()}
        change = {"epoch": saved.epoch + 1, "images": saved.images, "workers": run.comm.size}
        run.state.changes.append(change)
        run.progress.say(
            f"{run.comm.size} workers go on in epoch {saved.epoch + 1}, {saved.images} images done"
        )
        return saved.epoch
    if prefix is None:
        return 0
    if experiment.resume:
        found, passed_over = checkpoint.newest(prefix)
        for line in passed_over:
            run.progress.say(line)
        if found is None:
            run.progress.say(f"nothing to resume under {prefix}: starting from the first epoch")
            return 0
    elif experiment.load_epoch is not None:
        found = checkpoint.load(prefix, experiment.load_epoch)
    else:
        return 0
    file = checkpoint.path(prefix, found.epoch)
    wanted = identity
    if experiment.only_inference:  # any data may be scored, by any seed
        wanted = {key: identity[key] for key in ("model", "num_classes")}
    checkpoint.check_identity(found.identity, wanted, file)
    checkpoint.check_shapes(found.arrays, net, file)
    run.step.load(found.arrays, found.scaling)
    run.report.env["checkpoint"] = str(file)
    if experiment.only_inference:
        return 0  # as many passes as --num-epochs says, each over all images
    run.report.metrics.update(found.metrics)
    run.progress.say(f"resumed from {file}: {found.epoch} epochs are done")
    return found.epoch


def wants_checkpoint(experiment: FullExperiment, finished: int) -> bool:
    if not experiment.model_prefix or experiment.only_inference:
        return False
    return finished % experiment.save_period == 0 or finished == experiment.num_epochs


def save(run: Run, identity: dict[str, Any], finished: int) -> None:
    """Write the checkpoint of `finished` epochs, on rank 0."""
    if run.comm.rank == 0:
        prefix = run.experiment.model_prefix
        assert prefix is not None
        content = checkpoint.Checkpoint(
            finished,
            run.step.state(),
            identity,
            run.experiment.given(),
            run.report.metrics,
            run.step.scaling(),
        )
        checkpoint.save(prefix, content)
        if run.experiment.keep:
            checkpoint.prune(prefix, run.experiment.keep)
    run.comm.barrier()
