"""The one loop: every run of every notebook, backend, loader and precision goes through `train`.

It sees a pipeline, a step and a group of workers, never a framework, and adds nothing per image.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rn50lib import checkpoint, seams
from rn50lib.backends import build_step
from rn50lib.comm import Comm, agree, apart
from rn50lib.config import Experiment
from rn50lib.errors import UserError
from rn50lib.network import Network
from rn50lib.pipelines import Pipeline, open_pipeline
from rn50lib.position import Position, State
from rn50lib.progress import Progress
from rn50lib.report import Report
from rn50lib.restart import fingerprint, identify, restore, save, wants_checkpoint
from rn50lib.timer import Run, Timer


def train(
    experiment: Experiment,
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


def whole_updates(experiment: Experiment, steps: int) -> int:
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
