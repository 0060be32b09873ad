"""The one loop: every run of every notebook, backend, loader and precision goes through `train`.

It sees a pipeline, a step and a group of workers, never a framework, and adds nothing per image.
"""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rn50lib import checkpoint
from rn50lib import hooks as overrides
from rn50lib.config import Experiment
from rn50lib.data import Pipeline, open_pipeline
from rn50lib.distributed import Comm, agree, max_difference
from rn50lib.errors import UserError
from rn50lib.preemption import Stop
from rn50lib.progress import Progress, tell
from rn50lib.report import Report
from rn50lib.resnet import Network
from rn50lib.restart import (
    average_running_statistics,
    enter_epoch,
    identify,
    restore,
    save,
    stop_here,
    update_done,
    wants_checkpoint,
)
from rn50lib.timer import Run, Timer
from rn50lib.train_step import build_step


def train(
    experiment: Experiment,
    net: Network,
    sources: dict[str, Any],
    comm: Comm,
    progress: Progress,
    report: Report,
    write_report: Callable[[Report], None],
    warm_up: int = 0,
) -> Report:
    """Train and validate as `experiment` says; returns the report.

    `sources` maps 'train' and 'val' to opened data sets (None: synthetic). `write_report(report)`
    is called after every epoch, on rank 0. Before the first epoch come `warm_up` iterations of each
    split that nothing counts. Raises UserError for bad data or a diverged loss, SystemExit where
    SIGTERM has asked the run to end.
    """
    begin = time.perf_counter()
    overrides.install(experiment.override)
    tell(desc="building the input pipeline and the model")
    pipelines = {
        split: open_pipeline(experiment, source, split, comm.rank, comm.size)
        for split, source in sources.items()
    }
    try:
        # the step comes first: what its framework must be told before anything is exchanged is told
        step = build_step(experiment, net, comm)
        agree({f"the steps of a {split} epoch": len(p) for split, p in pipelines.items()}, comm)
        report.env["versions"] = report.env.get("versions", {}) | step.versions()
        identity = identify(experiment, net, sources)
        agree({f"the {name}": value for name, value in identity.items()}, comm)
        training = pipelines.get("train")
        stop = Stop(comm, saves=bool(training and training.ordered and experiment.model_prefix))
        run = Run(experiment, comm, step, progress, report, identity, stop)
        if experiment.checkpoint_steps and not stop.saves:
            progress.say(
                "this loader reads a stream: --checkpoint-steps has no effect, and a resumed run"
                " repeats its epoch's training from the start"
            )
        first = restore(run, net, identity, training.examples if training else 0)
        if experiment.model_prefix and not experiment.only_inference and comm.rank == 0:
            checkpoint.write_symbol(experiment.model_prefix, net)
        for split, pipeline in pipelines.items() if warm_up else ():
            settle(run, split, pipeline, warm_up)
        if first >= experiment.num_epochs and comm.rank == 0:
            write_report(report)  # the run was killed between its last checkpoint and its report
        with stop:
            for epoch in range(first, experiment.num_epochs):
                run_epoch(run, pipelines, epoch)
                report.total_duration = time.perf_counter() - begin
                if comm.rank == 0:
                    write_report(report)
        return report
    finally:
        for pipeline in pipelines.values():
            pipeline.close()
        progress.close()


def run_epoch(run: Run, pipelines: dict[str, Pipeline], epoch: int) -> None:
    """Train, validate, keep: one epoch, into the report."""
    experiment, report = run.experiment, run.report
    begin = time.perf_counter()
    if not experiment.only_inference:
        report.add("train", train_epoch(run, pipelines["train"], epoch))
        if experiment.model_prefix and not experiment.no_val:
            save(run, epoch)  # a damaged image in the validation set must not cost the training
        average_running_statistics(run)
    if not experiment.no_val:
        report.add("val", validate(run, pipelines["val"], epoch))
    run.position.images, run.position.sums = 0, [0.0] * 4
    if wants_checkpoint(experiment, epoch + 1):
        save(run, epoch + 1)
    tell_restarts(run)
    if epoch + 1 == experiment.num_epochs:
        compare_ranks(run)
    report.env["seconds"] = {part: round(s, 3) for part, s in run.seconds.items()}
    latest = {key: values[-1] for key, values in report.metrics.items() if values}
    run.progress.epoch_done(epoch, experiment.num_epochs, latest, time.perf_counter() - begin)


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
    experiment, step, position = run.experiment, run.step, run.position
    schedule, recipe = overrides.get("schedule"), experiment.to_recipe()
    enter_epoch(run, pipeline.ordered, steps_left(experiment, pipeline, position.images), epoch)
    before = position.images  # done before the run was taken up again
    steps = steps_left(experiment, pipeline, before)
    used = before + steps * experiment.global_batch
    traced = experiment.profile_trace if epoch == 0 and run.comm.rank == 0 else None
    timer = Timer(run, "train", epoch, steps, before // experiment.global_batch)
    skipped = step.scaling().get("skipped", 0)
    batches = pipeline.epoch(epoch, skip=before) if steps else iter(())
    with step.trace(Path(traced), steps) if traced else contextlib.nullcontext() as trace:
        for i, batch in enumerate(timer.batches(itertools.islice(batches, steps))):
            # the rate is that of the update that a batch is part of
            lr = schedule(epoch + position.images / used, experiment.update_batch, recipe)
            step.train_step(batch, lr)
            timer.step_done(i, lr)
            if trace is not None:
                trace.step()
            if (i + 1) % experiment.micro_batches == 0:
                position.images += experiment.update_batch
                update_done(run, timer)
    metrics = timer.finish()
    if experiment.model_prefix:
        position.sums = timer.sums_of_all()
    position.tails[str(epoch)] = pipeline.examples - used
    for _ in batches:  # a loader that is left in mid-epoch may hand the rest to the next one
        pass
    tell_scaling(run, skipped, steps // experiment.micro_batches)
    return metrics


def steps_left(experiment: Experiment, pipeline: Pipeline, before: int) -> int:
    """The steps that are left of an epoch of which `before` images are done: whole updates. Raises
    UserError where a whole epoch has none."""
    steps = len(pipeline)
    if before:
        steps = (pipeline.examples - before) // experiment.global_batch
        if experiment.benchmark_iters:
            steps = min(steps, experiment.benchmark_iters - before // experiment.global_batch)
    updates = max(0, steps) // experiment.micro_batches
    if not updates and not before:
        raise UserError(
            f"--macrobatch-size {experiment.macrobatch_size}: an update takes"
            f" {experiment.update_batch} images, and an epoch has"
            f" {steps * experiment.global_batch}: make it smaller"
        )
    return updates * experiment.micro_batches


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


def tell_restarts(run: Run) -> None:
    """Into the report: how often the run was taken up again, and what was done twice or not at all
    in it."""
    position = run.position
    if position.changes:
        run.report.env["restarts"] = {
            "changes": position.changes,
            "images_repeated": position.repeated,
            "images_in_tails": sum(position.tails.values()),
        }


def validate(run: Run, pipeline: Pipeline, epoch: int) -> dict[str, float | None]:
    """One pass over the validation images; its metrics over all workers."""
    timer = Timer(run, "val", epoch, len(pipeline))
    for i, batch in enumerate(timer.batches(pipeline.epoch(epoch))):
        run.step.eval_step(batch)
        timer.step_done(i, None)
        if run.stop.now():
            stop_here(run, epoch)
    return timer.finish()


def compare_ranks(run: Run) -> None:
    """Put the largest difference between the ranks' weights into the report, and say if there is
    one: nothing else shows that the ranks train models of their own."""
    experiment = run.experiment
    if run.comm.size == 1 or experiment.step is not None or experiment.only_inference:
        return
    arrays = run.step.state()
    weights = {n: a for n, a in arrays.items() if "/" not in n and ".running_" not in n}
    largest = run.report.env["weights_apart"] = max_difference(weights, run.comm)
    if largest:
        run.progress.say(
            f"the ranks' weights differ by up to {largest:.3g}: they did not start alike, or their"
            " gradients were not averaged; the checkpoint is rank 0's alone"
        )
