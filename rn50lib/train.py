"""The training loop; `python -m rn50lib.train --config FILE` is one worker of a run.

Every backend, loader and precision goes through this loop. It sees a pipeline, a step and a group
of workers, never a framework.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import signal
import socket
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from rn50lib import checkpoint, hooks, lifetime, run_setup
from rn50lib.checkpoint import CheckpointManager, TrainProgress, resume_fingerprint
from rn50lib.config import Resolved, TrainConfig, flags_of
from rn50lib.data import Pipeline, open_pipeline
from rn50lib.distributed import Comm, assert_same_across_ranks, connect, max_difference
from rn50lib.distributed.launch_env import LaunchEnv
from rn50lib.errors import TERMINATED, UserError, status_of
from rn50lib.files import is_stream, make_folder
from rn50lib.metrics import Meter
from rn50lib.progress import Progress
from rn50lib.report import Report
from rn50lib.train_step import TrainStep

LARGEST_RATE = 1e30  # as --lr's
UNSAVED_S = 60.0  # of training, which may be repeated if a validation fails


@dataclass
class Run:
    """The objects that the phases of a run share."""

    config: TrainConfig
    comm: Comm
    step: TrainStep
    pipelines: dict[str, Pipeline]
    checkpoints: CheckpointManager
    preemption: lifetime.Preemption
    progress: Progress
    report: Report
    begin: float  # when total_duration starts: earlier if the run is resumed
    position: TrainProgress = field(default_factory=TrainProgress)  # within the epoch
    unsaved_s: float = 0.0  # seconds of training since the latest checkpoint of a whole epoch
    # of training, by where they went
    seconds: dict[str, float] = field(default_factory=lambda: {"data": 0, "step": 0, "loop": 0})


def main(argv: list[str] | None = None) -> int:
    """Run one worker of the run that a file describes."""
    parser = argparse.ArgumentParser(prog="python -m rn50lib.train", description=main.__doc__)
    parser.add_argument("--config", type=Path, required=True, help="RUN/experiment.json")
    lifetime.end_on_sigterm()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # blocked until this was loaded
    file = parser.parse_args(argv).config
    me = LaunchEnv.detect()
    with lifetime.registered(me.rank if me else 0):
        if not file.exists():
            raise UserError(
                f"{file} does not exist on {socket.gethostname()}: a run on several hosts needs a"
                " folder that they share: pass it as --run-dir"
            )
        return train(Resolved.read(file), file.parent)


def train(resolved: Resolved, run_dir: Path | None) -> int:
    """Train and validate; return the exit status.

    `run_dir` gets progress.jsonl and, without --report, report.json. SIGTERM raises SystemExit.
    """
    config = resolved.config
    with contextlib.ExitStack() as stack:
        run = open_run(resolved, run_dir, stack)
        report, checkpoints, first_epoch = run.report, run.checkpoints, 0
        if run.step.saves:
            first_epoch, run.position = checkpoints.restore(run.step, report, run.progress)
            run.begin -= report.total_duration  # of the starts before this one
            run.seconds |= report.env.get("seconds", {})
        if run.comm.rank == 0 and checkpoints.enabled:
            checkpoint.write_symbol(checkpoints.prefix, checkpoints.net)
        file = config.report or (run_dir / "report.json" if run_dir else None)
        if first_epoch >= config.num_epochs:
            write_report(run, file)  # the run was killed between its last checkpoint and its report
        with run.preemption:
            for epoch in range(first_epoch, config.num_epochs):
                run_epoch(run, epoch)
                note_time(run)
                write_report(run, file)
        if checkpoints.enabled:
            print_best_epoch(run)
    return 0


def open_run(resolved: Resolved, run_dir: Path | None, stack: contextlib.ExitStack) -> Run:
    """Connect to the other ranks, open the data and build the step. `stack` closes what is opened.

    Raises UserError if the ranks differ.
    """
    config = resolved.config
    comm = connect(config.comm, config.backend, config.comm_timeout)
    run_setup.check_group(config, comm)
    sources = run_setup.open_sources(config)
    classes = run_setup.check_classes_of_splits(config, sources)
    if run_dir:
        make_folder(run_dir, f"--run-dir {run_dir}")
    net = config.to_network()
    env = run_setup.environment(resolved, sources, classes)
    report = Report(net.name, comm.size, ["rn50", "train", *flags_of(resolved.to_dict())], env)
    progress = Progress(run_dir, enabled=comm.rank == 0)
    stack.callback(progress.close)
    if comm.rank == 0:
        run_setup.print_sources(sources, every=run_dir is not None)
    if classes and run_dir:
        progress.say(f"  classes: {classes}")
    if comm.rank == 0 and checkpoint.saves(config):
        stack.enter_context(checkpoint.lock_for(config))
    begin = time.perf_counter()
    hooks.install(config.override)
    pipelines: dict[str, Pipeline] = {}
    for split, source in sources.items():
        pipelines[split] = open_pipeline(config, source, split, comm.rank, comm.size)
        stack.callback(pipelines[split].close)
    if config.trace:
        run_setup.check_traced(config, len(pipelines["train"]))
    step = run_setup.build_step(config, net, comm)
    report.env["versions"] |= step.versions()
    fingerprint = resume_fingerprint(config, net, sources)
    steps = {f"the steps of a {split} epoch": len(p) for split, p in pipelines.items()}
    same = steps | {f"the {name}": value for name, value in fingerprint.items()}
    if config.resume:  # the start weights may be on one host only
        same.pop("the init_from", None)
    same["the classes"] = classes and classes.fingerprint()
    assert_same_across_ranks(same, comm)
    checkpoints = CheckpointManager(config, net, comm, fingerprint, classes)
    training = pipelines.get("train")
    saves = checkpoints.enabled and training is not None and training.ordered
    if checkpoints.enabled and not saves:
        progress.say(
            "this loader cannot begin in the middle of an epoch: checkpoints are written at the end"
            " of an epoch only, and a resumed run repeats the one whose training was stopped"
        )
    preemption = lifetime.Preemption(comm, saves)
    return Run(config, comm, step, pipelines, checkpoints, preemption, progress, report, begin)


def run_epoch(run: Run, epoch: int) -> None:
    """Train, validate and save one epoch, and add it to the report."""
    config, report, checkpoints = run.config, run.report, run.checkpoints
    begin = time.perf_counter()
    if not config.only_inference:
        metrics = train_one_epoch(run, epoch)
        report.add("train", metrics)
        # equal on all ranks
        run.unsaved_s += (metrics.get("time") or 0) * len(run.pipelines["train"])
        if checkpoints.enabled and not config.no_val and run.unsaved_s > UNSAVED_S:
            # a damaged validation image must not cost more training than that
            save(run, epoch)
            run.unsaved_s = 0.0
        checkpoints.reduce_bn_stats(run.step)
    if "val" in run.pipelines:
        report.add("val", evaluate(run, epoch))
    run.position = TrainProgress()
    if checkpoints.is_due(epoch + 1):
        save(run, epoch + 1)
        run.unsaved_s = 0.0
    if epoch + 1 == config.num_epochs:
        check_weights_are_equal(run)
    latest = {key: values[-1] for key, values in report.metrics.items() if values}
    run.progress.epoch_done(epoch, config.num_epochs, latest, time.perf_counter() - begin)


def train_one_epoch(run: Run, epoch: int) -> dict[str, float | None]:
    """Train for the rest of an epoch; return its metrics over all workers."""
    config, step = run.config, run.step
    pipeline = run.pipelines["train"]
    schedule = hooks.get("schedule")
    steps = steps_left(config, pipeline, run.position.images)
    if run.position.images and steps and not pipeline.ordered:
        run.progress.say(
            f"the loader cannot begin in the middle of an epoch: epoch {epoch + 1} starts again"
        )
        run.position = TrainProgress()
        steps = steps_left(config, pipeline, 0)
    position = run.position
    used = position.images + steps * config.global_batch  # of the epoch's images
    done_steps = position.images // config.global_batch  # before the run was resumed
    run.progress.start("train", epoch, config.num_epochs, done_steps + steps, done_steps)
    meter = Meter(step, run.comm, run.progress, config.disp_batches, done_steps, position.sums)
    skipped = step.loss_scale_state().get("skipped", 0)
    batches = pipeline.epoch(epoch, skip=position.images) if steps else iter(())
    for i, batch in enumerate(meter.batches(itertools.islice(batches, steps)), start=1):
        # all batches of one update have the same rate
        lr = schedule(epoch + position.images / used, config.effective_batch_size, config)
        lr = checked_rate(lr)
        with lifetime.Wait():  # for the other ranks' gradients
            step.train_step(batch, lr)
            meter.step_done(lr)
        if i % config.grad_accum_steps == 0:
            position.images += config.effective_batch_size
            after_update(run, epoch, meter, last=i == steps)
    metrics = meter.finish(show=True)
    for part, seconds in meter.seconds().items():
        run.seconds[part] += seconds
    position.sums = meter.sums_of_all()
    for _ in batches:  # a loader that is left in mid-epoch may hand the rest to the next one
        pass
    report_loss_scale(run, skipped, steps // config.grad_accum_steps)
    return metrics


def checked_rate(lr: Any) -> float:
    """Return what a learner's schedule returned, as a float. Raises UserError for anything else."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        if not isinstance(lr, str) and 0 <= (rate := float(lr)) <= LARGEST_RATE:
            return rate
    raise UserError(f"--override schedule: it must return a finite number from 0 on, not {lr!r}")


def evaluate(run: Run, epoch: int) -> dict[str, float | None]:
    """Validate on each image once; return the metrics over all workers."""
    pipeline, config = run.pipelines["val"], run.config
    run.progress.start("val", epoch, config.num_epochs, len(pipeline))
    meter = Meter(run.step, run.comm, run.progress, config.disp_batches)
    for batch in meter.batches(pipeline.epoch(epoch)):
        run.step.eval_step(batch)
        meter.step_done()
        if run.preemption.should_stop():
            save(run, epoch)
            exit_by_sigterm(run, epoch)
    return meter.finish(show=False)


def steps_left(config: TrainConfig, pipeline: Pipeline, done: int) -> int:
    """Return the steps left of an epoch after `done` images, as whole updates."""
    steps = len(pipeline)
    if done:
        steps = (pipeline.examples - done) // config.global_batch
        if hooks.is_replaced("shard"):  # it may fill up the last batch
            steps = len(pipeline) - done // config.global_batch
        if config.benchmark_iters:
            steps = min(steps, config.benchmark_iters - done // config.global_batch)
    updates = max(0, steps) // config.grad_accum_steps
    if not updates and not done:
        raise UserError(
            f"an update takes {config.effective_batch_size} images, and an epoch has {steps} steps"
            f" of {config.global_batch}: use a smaller -b or --macrobatch-size"
        )
    return updates * config.grad_accum_steps


def after_update(run: Run, epoch: int, meter: Meter, last: bool) -> None:
    """Write a checkpoint if one is due or SIGTERM came, which then ends the run.

    The updates that are due do not depend on where the run was resumed, and writing a checkpoint
    does not change the run's state. Both are needed to resume bit for bit.
    """
    position, config = run.position, run.config
    every = config.checkpoint_steps if run.preemption.saves and not last else None
    due = every and position.images // config.effective_batch_size % every == 0
    stop = run.preemption.should_stop()
    if due or stop:
        position.sums = meter.sums_of_all()
        save(run, epoch, meter)
    if stop:
        exit_by_sigterm(run, epoch)


def save(run: Run, epoch: int, meter: Meter | None = None) -> None:
    """Write a checkpoint after `epoch` whole epochs, with the time that the run has taken.

    `meter` measures the next epoch, if that has begun.
    """
    note_time(run, meter)
    run.checkpoints.save(epoch, run.position, run.step, run.report)


def note_time(run: Run, meter: Meter | None = None) -> None:
    """Report the time of the run in all its starts, and that of its training epochs by part."""
    run.report.total_duration = time.perf_counter() - run.begin
    begun = meter.seconds() if meter else {}
    run.report.env["seconds"] = {
        part: round(seconds + begun.get(part, 0.0), 3) for part, seconds in run.seconds.items()
    }


def exit_by_sigterm(run: Run, epoch: int) -> NoReturn:
    """End a run whose checkpoint is written. All ranks call this."""
    run.progress.stop()
    images = run.position.images
    file = checkpoint.path(run.checkpoints.prefix, epoch, images)
    run.progress.say(f"stopped by SIGTERM after {images} images of epoch {epoch + 1}: {file}")
    raise SystemExit(TERMINATED)


def report_loss_scale(run: Run, skipped_before: float, updates: int) -> None:
    """Report the loss scale; print a line if this epoch skipped updates."""
    state = run.step.loss_scale_state()
    if not state:
        return
    total = int(state["skipped"])
    run.report.env["loss_scale"] = {"scale": state["scale"], "skipped_updates": total}
    if skipped := int(total - skipped_before):
        nothing = "; nothing was learnt: set a smaller loss_scale" if skipped == updates else ""
        run.progress.say(
            f"{skipped} of {updates} updates were skipped: gradients were not finite; the loss"
            f" scale is now {state['scale']:g}{nothing}"
        )


def check_weights_are_equal(run: Run) -> None:
    """Report the largest difference between the ranks' weights; print a line if there is one."""
    if run.comm.size == 1 or run.config.only_inference or not run.step.saves:
        return
    arrays = run.step.state()
    weights = {n: a for n, a in arrays.items() if "/" not in n and ".running_" not in n}
    largest = max_difference(weights, run.comm)
    run.report.env["weights_apart"] = largest if math.isfinite(largest) else None
    if not math.isfinite(largest):
        run.progress.say("the weights are not finite: training has diverged in its last update")
    elif largest:
        run.progress.say(
            f"the ranks' weights differ by up to {largest:.3g}: they did not start alike, or their"
            " gradients were not averaged; the checkpoint is rank 0's alone"
        )


def print_best_epoch(run: Run) -> None:
    """Print the epoch with the best validation, and its checkpoint if it is not the last one's."""
    best, top1 = run.report.env.get("best_epoch"), run.report.metrics["val.top1"]
    if best is None:
        return
    file = checkpoint.path(run.checkpoints.prefix, best)
    where = f" ({file})" if file.exists() else ""
    last = f"{where}; the last {top1[-1]:.4g}" if best < len(top1) else ", the last"
    run.progress.say(f"best val top-1 {top1[best - 1]:.4g} in epoch {best}{last}")


def write_report(run: Run, file: str | Path | None) -> None:
    """Write the report on rank 0 after every epoch; a stream gets only the last one."""
    if run.comm.rank > 0:
        return
    report, config = run.report, run.config
    done = len(report.metrics["train.top1"])
    report.env["best_epoch"] = report.best_epoch(range(1, done + 1), done)
    last = all(len(values) in (0, config.num_epochs) for values in report.metrics.values())
    speed = [x for x in report.metrics["train.total_ips"] if x]
    if speed and run.step.saves:
        flops = run.checkpoints.net.train_flops(config.image_shape)
        report.env["model_flops"] = {"per_image": flops, "per_second": flops * speed[-1]}
    if file and (last or not is_stream(file)):
        report.write(file)


if __name__ == "__main__":
    lifetime.end_with(lambda: status_of(main))
