"""A training run, from its configuration to its report: `python -m rn50lib.train --config FILE`.

Every run of every notebook, backend, loader and precision goes through this loop. It sees a
pipeline, a step and a group of workers, never a framework, and adds nothing per image.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import itertools
import os
import signal
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NoReturn

from rn50lib import checkpoint
from rn50lib import hooks as overrides
from rn50lib.checkpoint import CheckpointManager, resume_fingerprint
from rn50lib.config import Resolved, TrainConfig, flag_name, flags_of
from rn50lib.data import Pipeline, open_pipeline
from rn50lib.distributed import Comm, assert_same_across_ranks, connect, max_difference
from rn50lib.distributed.launch_env import registered
from rn50lib.errors import TERMINATED, UserError, status_of
from rn50lib.files import check_file, check_output, check_writable, is_stream, make_folder
from rn50lib.hardware import machine
from rn50lib.loggers import open_loggers
from rn50lib.metrics import Meter
from rn50lib.preemption import Preemption, die_with_parent, end_on_sigterm, end_with
from rn50lib.progress import Progress
from rn50lib.report import Report, is_report
from rn50lib.resnet import Network
from rn50lib.train_step import TrainStep, build_step

OF_A_HOST = {  # the fields that may differ between the ranks of a run
    "data_root", "init_from", "threads", "data_nthreads", "bind", "hosts", "launcher", "report",
    "logger", "profile_trace", "timeline",
}  # fmt: skip


@dataclass
class Run:
    """The objects that the phases of a run share."""

    config: TrainConfig
    comm: Comm
    step: TrainStep
    pipelines: dict[str, Pipeline]
    checkpoints: CheckpointManager
    preemption: Preemption
    progress: Progress
    report: Report
    seconds: dict[str, float] = field(  # of training, by where they went
        default_factory=lambda: dict.fromkeys(("data", "step", "loop"), 0.0)
    )


def main(argv: list[str] | None = None) -> int:
    """Run one worker of the run that a file describes."""
    parser = argparse.ArgumentParser(prog="python -m rn50lib.train", description=main.__doc__)
    parser.add_argument("--config", type=Path, required=True, help="RUN/experiment.json")
    die_with_parent()
    end_on_sigterm()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # blocked by `rn50 run`
    file = parser.parse_args(argv).config
    with registered():
        if not file.exists():
            raise UserError(
                f"{file} does not exist on {socket.gethostname()}: a run on several hosts needs a"
                " folder that they share: pass it as --run-dir"
            )
        return train(Resolved.read(file), file.parent)


def train(
    resolved: Resolved,
    run_dir: Path | None,
    comm: Comm | None = None,
    watch: type[Progress] = Progress,
    warm_up_steps: int = 0,
) -> int:
    """Train and validate as a configuration says; return the exit status.

    `run_dir` gets progress.jsonl and, if --report names no file, report.json. A benchmark passes
    workers that are connected already, a class that records the iterations, and how many of them
    come before the first that counts. Raises UserError for bad data, ranks that differ, an output
    that cannot be written or a diverged loss, and SystemExit once SIGTERM has ended the run.
    """
    config = resolved.experiment
    comm = comm or connect(config.comm, config.backend, config.comm_timeout)
    check_group(config, comm)
    sources = open_sources(config)
    if config.test_io:
        return time_input(config, sources, comm)
    if run_dir:
        make_folder(run_dir, f"--run-dir {run_dir}")
    first_rank = comm.rank == 0
    if first_rank:
        check_outputs(config)
    net = config.to_network()
    command = ["rn50", "train", *flags_of(config)]
    report = Report(net.name, comm.size, command, environment(resolved, sources))
    loggers = open_loggers(config, run_dir) if first_rank else []
    progress = watch(run_dir, loggers, enabled=first_rank)
    with contextlib.ExitStack() as stack:
        stack.callback(progress.close)
        # `rn50 run` describes a run, `rn50 train` without a folder does not
        for line in remarks(config, sources, report.env["data"] if run_dir else {}):
            progress.say(line)
        if first_rank and checkpoint.saves(config):
            stack.enter_context(checkpoint.lock_for(config))
            # each epoch writes one checkpoint before its validation and one after it
            checkpoint.check_room(config.model_prefix or "", net, 1 if config.no_val else 2)
        begin = time.perf_counter()
        run = build_run(config, net, sources, comm, progress, report, stack)
        training = run.pipelines.get("train")
        first_epoch = run.checkpoints.restore(
            run.step, report, progress, training.examples if training else 0
        )
        if first_rank and run.checkpoints.enabled:
            checkpoint.write_symbol(run.checkpoints.prefix, net)
        if warm_up_steps:
            warm_up(run, warm_up_steps)
        file = config.report or (run_dir / "report.json" if run_dir else None)
        if first_epoch >= config.num_epochs:
            write_report(run, file)  # the run was killed between its last checkpoint and its report
        with run.preemption:
            for epoch in range(first_epoch, config.num_epochs):
                run_epoch(run, epoch)
                report.total_duration = time.perf_counter() - begin
                write_report(run, file)
    return 0


def build_run(
    config: TrainConfig,
    net: Network,
    sources: dict[str, Any],
    comm: Comm,
    progress: Progress,
    report: Report,
    stack: contextlib.ExitStack,
) -> Run:
    """Open the pipelines and build the step; raise UserError if the ranks' differ."""
    overrides.install(config.override)
    pipelines: dict[str, Pipeline] = {}
    for split, source in sources.items():
        pipelines[split] = open_pipeline(config, source, split, comm.rank, comm.size)
        stack.callback(pipelines[split].close)
    step = build_step(config, net, comm)
    report.env["versions"] |= step.versions()
    fingerprint = resume_fingerprint(config, net, sources)
    steps = {f"the steps of a {split} epoch": len(p) for split, p in pipelines.items()}
    same = steps | {f"the {name}": value for name, value in fingerprint.items()}
    assert_same_across_ranks(same, comm)
    checkpoints = CheckpointManager(config, net, comm, fingerprint)
    training = pipelines.get("train")
    saves = checkpoints.enabled and training is not None and training.ordered
    if config.checkpoint_steps and not saves:
        progress.say(
            "this loader reads a stream: --checkpoint-steps has no effect, and a resumed run"
            " repeats its epoch's training from the start"
        )
    preemption = Preemption(comm, saves)
    return Run(config, comm, step, pipelines, checkpoints, preemption, progress, report)


def run_epoch(run: Run, epoch: int) -> None:
    """Train, validate and save one epoch, and add it to the report."""
    config, report, checkpoints = run.config, run.report, run.checkpoints
    begin = time.perf_counter()
    if not config.only_inference:
        report.add("train", train_one_epoch(run, epoch))
        if checkpoints.enabled and not config.no_val:
            # a damaged validation image must not cost the training
            checkpoints.save(epoch, run.step, report)
        checkpoints.reduce_bn_stats(run.step)
    if not config.no_val:
        report.add("val", evaluate(run, epoch))
    state = checkpoints.state
    state.images, state.sums = 0, [0.0] * 4
    if checkpoints.is_due(epoch + 1):
        checkpoints.save(epoch + 1, run.step, report)
    if state.changes:
        report.env["restarts"] = {
            "changes": state.changes,
            "images_repeated": state.repeated,
            "images_in_tails": sum(state.tails.values()),
        }
    if epoch + 1 == config.num_epochs:
        check_weights_are_equal(run)
    report.env["seconds"] = {part: round(s, 3) for part, s in run.seconds.items()}
    latest = {key: values[-1] for key, values in report.metrics.items() if values}
    run.progress.epoch_done(epoch, config.num_epochs, latest, time.perf_counter() - begin)


def train_one_epoch(run: Run, epoch: int) -> dict[str, float | None]:
    """Train for one epoch, or for what is left of it; return its metrics over all workers."""
    config, step, state = run.config, run.step, run.checkpoints.state
    pipeline = run.pipelines["train"]
    schedule, recipe = overrides.get("schedule"), config.to_recipe()
    steps = steps_left(config, pipeline, state.images)
    if state.images and steps and not pipeline.ordered:
        run.progress.say(
            f"the loader cannot begin in the middle of an epoch: epoch {epoch + 1} starts again"
        )
        state.repeated += state.images
        state.images, state.sums = 0, [0.0] * 4
        steps = steps_left(config, pipeline, 0)
    done = state.images  # before the run was resumed
    used = done + steps * config.global_batch  # of the epoch's images
    done_steps = done // config.global_batch
    run.progress.start("train", epoch, config.num_epochs, done_steps + steps, done_steps)
    meter = Meter(step, run.comm, run.progress, config.disp_batches, done_steps, state.sums)
    skipped = step.loss_scale_state().get("skipped", 0)
    batches = pipeline.epoch(epoch, skip=done) if steps else iter(())
    traced = config.profile_trace if epoch == 0 and run.comm.rank == 0 else None
    with step.trace(Path(traced), steps) if traced else contextlib.nullcontext() as trace:
        for i, batch in enumerate(meter.batches(itertools.islice(batches, steps)), start=1):
            # the rate is that of the update that a batch is part of
            lr = schedule(epoch + state.images / used, config.effective_batch_size, recipe)
            step.train_step(batch, lr)
            meter.step_done(lr)
            if trace is not None:
                trace.step()
            if i % config.grad_accum_steps == 0:
                state.images += config.effective_batch_size
                after_update(run, epoch, meter, last=i == steps)
    metrics = meter.finish(show=True)
    for part, seconds in meter.seconds().items():
        run.seconds[part] += seconds
    if run.checkpoints.enabled:
        state.sums = meter.sums_of_all()
    state.tails[str(epoch)] = pipeline.examples - used
    for _ in batches:  # a loader that is left in mid-epoch may hand the rest to the next one
        pass
    report_loss_scale(run, skipped, steps // config.grad_accum_steps)
    return metrics


def evaluate(run: Run, epoch: int) -> dict[str, float | None]:
    """Pass over the validation images once; return the metrics over all workers."""
    pipeline, config = run.pipelines["val"], run.config
    run.progress.start("val", epoch, config.num_epochs, len(pipeline))
    meter = Meter(run.step, run.comm, run.progress, config.disp_batches)
    for batch in meter.batches(pipeline.epoch(epoch)):
        run.step.eval_step(batch)
        meter.step_done()
        if run.preemption.should_stop():
            exit_by_sigterm(run, epoch)
    return meter.finish(show=False)


def warm_up(run: Run, steps: int) -> None:
    """Do a few iterations of each split that nothing counts, at a learning rate of 0: kernels are
    chosen, memory is allocated and caches are full before a benchmark begins."""
    for split, pipeline in run.pipelines.items():
        group = run.config.grad_accum_steps if split == "train" else 1
        count = min(-(-steps // group), len(pipeline) // group) * group
        for batch in pipeline.epoch(0, start_step=len(pipeline) - count):
            if split == "train":
                run.step.train_step(batch, 0.0)
            else:
                run.step.eval_step(batch)
        run.step.pop_metrics()


def after_update(run: Run, epoch: int, meter: Meter, last: bool) -> None:
    """Write a checkpoint if one is due after this update or SIGTERM came; then end the run.

    Which updates are due does not depend on where the run was resumed, and writing a checkpoint
    does not change its state: both are needed to resume bit for bit.
    """
    state, config = run.checkpoints.state, run.config
    run.progress.at(epoch, state.images)
    every = config.checkpoint_steps if run.preemption.saves and not last else None
    due = every and state.images // config.effective_batch_size % every == 0
    stop = run.preemption.should_stop()
    if due or stop:
        state.sums = meter.sums_of_all()
        run.checkpoints.save(epoch, run.step, run.report)
    if stop:
        exit_by_sigterm(run, epoch)


def exit_by_sigterm(run: Run, epoch: int) -> NoReturn:
    """End a run whose checkpoint is written. All ranks call this."""
    run.progress.stop()
    images = run.checkpoints.state.images
    file = checkpoint.path(run.checkpoints.prefix, epoch, images)
    run.progress.say(f"stopped by SIGTERM after {images} images of epoch {epoch + 1}: {file}")
    raise SystemExit(TERMINATED)


def steps_left(config: TrainConfig, pipeline: Pipeline, done: int) -> int:
    """Return the steps that are left of an epoch of which `done` images are done: whole updates.

    Raise UserError if a whole epoch has none.
    """
    steps = len(pipeline)
    if done:
        steps = (pipeline.examples - done) // config.global_batch
        if config.benchmark_iters:
            steps = min(steps, config.benchmark_iters - done // config.global_batch)
    updates = max(0, steps) // config.grad_accum_steps
    if not updates and not done:
        raise UserError(
            f"--macrobatch-size {config.macrobatch_size}: an update takes"
            f" {config.effective_batch_size} images, and an epoch has"
            f" {steps * config.global_batch}: make it smaller"
        )
    return updates * config.grad_accum_steps


def report_loss_scale(run: Run, skipped_before: float, updates: int) -> None:
    """Report the loss scale and the skipped updates; print a line if there were any this time."""
    state = run.step.loss_scale_state()
    if not state:
        return
    total = int(state["skipped"])
    run.report.env["loss_scale"] = {"scale": state["scale"], "skipped_updates": total}
    skipped = int(total - skipped_before)
    if skipped:
        text = (
            f"{skipped} of {updates} updates were skipped: gradients were not finite; the loss"
            f" scale is now {state['scale']:g}"
        )
        if skipped == updates:
            text += "; nothing was learnt: give a smaller --loss-scale"
        run.progress.say(text)


def check_weights_are_equal(run: Run) -> None:
    """Report the largest difference between the ranks' weights; print a line if there is one."""
    config = run.config
    if run.comm.size == 1 or config.step is not None or config.only_inference:
        return
    arrays = run.step.state()
    weights = {n: a for n, a in arrays.items() if "/" not in n and ".running_" not in n}
    largest = run.report.env["weights_apart"] = max_difference(weights, run.comm)
    if largest:
        run.progress.say(
            f"the ranks' weights differ by up to {largest:.3g}: they did not start alike, or their"
            " gradients were not averaged; the checkpoint is rank 0's alone"
        )


# --- before the first epoch, and the report -------------------------------------------------------


def check_group(config: TrainConfig, comm: Comm) -> None:
    """Raise UserError if the workers are not as many, or not configured alike, as they should be.

    This comes before the first broadcast: ranks that differ would wait for each other for ever.
    """
    if comm.size != config.n:
        raise UserError(
            f"-n {config.n}: {config.comm} has connected {comm.size} worker(s): start them"
            f" with `rn50 run -n {config.n}`, torchrun, horovodrun, mpirun or srun"
        )
    if comm.size > 1 and config.backend == "tensorflow" and config.step is None:
        from rn50lib.tensorflow.train_step import configure

        configure(config.threads, comm.local_rank)  # an exchange would fix its settings
    shared = [f.name for f in fields(TrainConfig) if f.name not in OF_A_HOST]
    assert_same_across_ranks({flag_name(n): getattr(config, n) for n in shared}, comm)


def open_sources(config: TrainConfig) -> dict[str, Any]:
    """Return the data set of each split that the run uses; None for synthetic images."""
    splits = ["val"] if config.only_inference else ["train", "val"]
    if config.no_val or (config.test_io and not config.only_inference):
        splits.remove("val")
    if config.loader == "synthetic":
        return dict.fromkeys(splits)
    from rn50lib.data.source import open_source

    root = Path(config.data_root)
    return {split: open_source(root, split, config.data_format) for split in splits}


def remarks(config: TrainConfig, sources: dict[str, Any], data: dict[str, str]) -> Iterator[str]:
    """Yield a line for each data set, and for what is remarkable about it."""
    for split, text in data.items():
        yield f"  {split}: {text}"
        yield from (f"  {remark}" for remark in getattr(sources[split], "remarks", ()))
    train, wanted = sources.get("train"), config.num_examples
    if train is not None and wanted and wanted > len(train):
        yield f"--num-examples {wanted}: {train.path} has {len(train)} images, all are used"


def check_outputs(config: TrainConfig) -> None:
    """Raise UserError before the training if an output cannot be written; make the folders."""
    if config.report:
        check_output(config.report, "--report", "a report", is_report)
    for name in ("profile_trace", "timeline"):
        if file := getattr(config, name):
            check_writable(file, flag_name(name))
    if config.timeline:  # Horovod writes it, and a second file next to it
        check_file(config.timeline, f"--timeline {config.timeline}")
    if checkpoint.saves(config):
        folder = checkpoint.symbol_path(config.model_prefix or "").absolute().parent
        make_folder(folder, f"--model-prefix {config.model_prefix}")


def environment(resolved: Resolved, sources: dict[str, Any]) -> dict[str, Any]:
    """Return the report's `env`: machine, axes with their reasons, caps and overrides."""
    config = resolved.experiment
    axes = {}
    for f in fields(TrainConfig):
        value = getattr(config, f.name)
        if not (value is None or value is f.default is False or value == ()):
            axes[f.name] = {"value": value, "reason": resolved.reasons.get(f.name, "default")}
    versions = {}
    for package in ("numpy", "pillow"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    found = {split: source for split, source in sources.items() if source is not None}
    return {
        "machine": machine().to_dict(),
        "versions": versions,
        "axes": axes,
        "caps": list(resolved.caps),
        "overrides": list(config.override),
        "data": {split: f"{s.path} ({len(s)} images, {s.format})" for split, s in found.items()},
        "allocator": os.environ.get("GLIBC_TUNABLES"),
    }


def write_report(run: Run, file: str | Path | None) -> None:
    """Write the report on rank 0, after every epoch; a stream gets only the last one."""
    if run.comm.rank > 0:
        return
    report, config, net = run.report, run.config, run.checkpoints.net
    last = all(len(values) in (0, config.num_epochs) for values in report.metrics.values())
    speed = [x for x in report.metrics["train.total_ips"] if x]
    if speed and config.step is None and config.freeze_until is None:
        flops = net.train_flops(config.image_shape)
        report.env["model_flops"] = {"per_image": flops, "per_second": flops * speed[-1]}
    if file and (last or not is_stream(file)):
        report.write(file)
    if last:
        run.progress.report(report.to_dict())


def time_input(config: TrainConfig, sources: dict[str, Any], comm: Comm) -> int:
    """Print how many images per second the input pipeline of a worker delivers alone."""
    split = "val" if config.only_inference else "train"
    with contextlib.closing(
        open_pipeline(config, sources[split], split, comm.rank, comm.size)
    ) as pipeline:
        for epoch in range(config.num_epochs):
            batches = pipeline.epoch(epoch)
            next(batches)  # starts the workers; not timed
            begin = time.perf_counter()
            images = sum(batch.valid for batch in batches)
            seconds = time.perf_counter() - begin
            rate = f"{images / seconds:.1f} img/s" if images else "too few batches to time"
            print(f"epoch {epoch + 1}: {rate}, {len(pipeline)} batches of {config.batch_size}")
    return 0


if __name__ == "__main__":
    end_with(lambda: status_of(main))
