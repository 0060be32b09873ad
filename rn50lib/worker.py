"""One worker, in this process: the loop, its report and its progress files.

`rn50 run` starts `python -m rn50lib.worker RUN/experiment.json`, once or through a launcher.
"""

from __future__ import annotations

import contextlib
import signal
import socket
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rn50lib import checkpoint
from rn50lib.config import Config, Experiment, flag_name, flags_of
from rn50lib.distributed import Comm
from rn50lib.distributed.launch_env import registered
from rn50lib.errors import UserError, status_of
from rn50lib.files import check_file, check_output, check_writable, is_stream, make_folder
from rn50lib.hardware import machine
from rn50lib.preemption import die_with_parent, end_on_sigterm, end_with
from rn50lib.report import is_report

if TYPE_CHECKING:
    from rn50lib.progress import Progress

OF_A_HOST = {  # the fields that may differ between the ranks of a run
    "data_root", "init_from", "threads", "data_nthreads", "bind", "hosts", "launcher", "report",
    "logdir", "logger", "profile_trace", "timeline",
}  # fmt: skip


def main(argv: list[str] = sys.argv[1:]) -> int:
    """Read the configuration that `rn50 run` has written, and do a worker's part of it."""
    die_with_parent()
    end_on_sigterm()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGINT])  # what `run_command` has blocked
    file = Path(argv[0])
    with registered():
        if not file.exists():
            raise UserError(
                f"{file} does not exist on {socket.gethostname()}: a run on several hosts needs a"
                " folder that they share: pass it as --run-dir"
            )
        return run_worker(Config.read(file), file.parent)


def run_worker(
    config: Config,
    run_dir: Path | None,
    group: Comm | None = None,
    watch: type[Progress] | None = None,
    warm_up: int = 0,
) -> int:
    """Run the loop in this process, with its report and progress files.

    A benchmark brings its own: a `group` that is connected already, what `watch`es the iterations,
    and how many of them come before the first that counts.
    """
    from rn50lib import distributed as comm
    from rn50lib import training
    from rn50lib.progress import Progress, tell
    from rn50lib.report import Report

    experiment = config.experiment
    tell(desc="connecting the workers")
    group = group or comm.connect(experiment.comm, experiment.backend, experiment.comm_timeout)
    if group.size != experiment.n:
        raise UserError(
            f"-n {experiment.n}: {experiment.comm} has connected {group.size} worker(s): start them"
            f" with `rn50 run -n {experiment.n}`, torchrun, horovodrun, mpirun or srun"
        )
    if group.size > 1 and experiment.backend == "tensorflow" and experiment.step is None:
        from rn50lib.tensorflow.train_step import configure

        configure(experiment.threads, group.local_rank)  # an exchange would fix its settings
    shared = [f.name for f in fields(Experiment) if f.name not in OF_A_HOST]
    comm.agree({flag_name(name): getattr(experiment, name) for name in shared}, group)
    splits = ["train", "val"]
    if experiment.no_val or (experiment.test_io and not experiment.only_inference):
        splits.remove("val")
    if experiment.only_inference:
        splits.remove("train")
    sources: dict[str, Any] = dict.fromkeys(splits)
    if experiment.loader != "synthetic":
        from rn50lib.data.source import open_source

        tell(desc="reading the data set")
        for split in splits:
            sources[split] = open_source(Path(experiment.data_root), split, experiment.data_format)
    if experiment.test_io:
        return time_input(experiment, sources, group)
    if run_dir:
        make_folder(run_dir, f"--run-dir {run_dir}")
    if group.rank == 0:
        check_outputs(experiment)
    net = experiment.to_network()
    env = environment(config, sources)
    file = experiment.report or (run_dir / "report.json" if run_dir else None)

    def write_report(latest: Report) -> None:
        last = all(len(v) in (0, experiment.num_epochs) for v in latest.metrics.values())
        speed = [x for x in latest.metrics["train.total_ips"] if x]
        if speed and experiment.step is None and experiment.freeze_until is None:
            flops = net.train_flops(experiment.image_shape)
            latest.env["model_flops"] = {"per_image": flops, "per_second": flops * speed[-1]}
        if file and (last or not is_stream(file)):  # a stream gets one report, not one per epoch
            latest.write(file)
        if last:
            progress.report(latest.to_dict())

    command = ["rn50", "train", *flags_of(experiment)]
    report = Report(net.name, group.size, command, env)
    loggers: list[Any] = []
    if group.rank == 0 and (experiment.logger or experiment.logdir):
        from rn50lib.loggers import open_loggers

        loggers = open_loggers(experiment, run_dir)
    progress = (watch or Progress)(run_dir, loggers, enabled=group.rank == 0)
    for split, source in sources.items():
        if source is not None and run_dir:  # `rn50 run` describes a run, `rn50 train` does not
            progress.say(f"  {split}: {env['data'][split]}")
            for remark in getattr(source, "remarks", ()):
                progress.say(f"  {remark}")
    train, wanted = sources.get("train"), experiment.num_examples
    if train is not None and wanted and wanted > len(train):
        progress.say(f"--num-examples {wanted}: {train.path} has {len(train)} images, all are used")
    with contextlib.ExitStack() as held:
        if group.rank == 0 and checkpoint.saves(experiment):
            held.enter_context(checkpoint.lock_for(experiment))
            # each epoch writes one before its validation and one after it
            checkpoint.check_room(experiment.model_prefix or "", net, 1 if experiment.no_val else 2)
        training.train(experiment, net, sources, group, progress, report, write_report, warm_up)
    return 0


def check_outputs(experiment: Experiment) -> None:
    """Raise UserError before the training where its files cannot be written; makes the folders."""
    if experiment.report:
        check_output(experiment.report, "--report", "a report", is_report)
    for name in ("profile_trace", "timeline"):
        if file := getattr(experiment, name):
            check_writable(file, flag_name(name))
    if experiment.timeline:  # Horovod writes it, and a second file beside it
        check_file(experiment.timeline, f"--timeline {experiment.timeline}")
    if checkpoint.saves(experiment):
        folder = checkpoint.symbol_path(experiment.model_prefix or "").absolute().parent
        make_folder(folder, f"--model-prefix {experiment.model_prefix}")


def environment(config: Config, sources: dict[str, Any]) -> dict[str, Any]:
    """The report's `env`: machine, axes with their reasons, caps and overrides."""
    import importlib.metadata
    import os

    experiment = config.experiment
    axes = {}
    for f in fields(Experiment):
        value = getattr(experiment, f.name)
        if not (value is None or value is f.default is False or value == ()):
            axes[f.name] = {"value": value, "reason": config.reasons.get(f.name, "default")}
    versions = {}
    for package in ("numpy", "pillow"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "machine": machine().to_dict(),
        "versions": versions,
        "axes": axes,
        "caps": list(config.caps),
        "overrides": list(experiment.override),
        "data": {
            split: f"{s.path} ({len(s)} images, {s.format})" for split, s in sources.items() if s
        },
        "allocator": os.environ.get("GLIBC_TUNABLES"),
    }


def time_input(experiment: Experiment, sources: dict[str, Any], group: Comm) -> int:
    """`--test-io`: how many images per second the input pipeline of a worker alone delivers."""
    import time

    from rn50lib.data import open_pipeline

    split = "val" if experiment.only_inference else "train"
    pipeline = open_pipeline(experiment, sources[split], split, group.rank, group.size)
    try:
        for epoch in range(experiment.num_epochs):
            batches = pipeline.epoch(epoch)
            next(batches)  # starts the workers; not timed
            begin, images = time.perf_counter(), 0
            for batch in batches:
                images += batch.valid
            seconds = time.perf_counter() - begin
            rate = f"{images / seconds:.1f} img/s" if images else "too few batches to time"
            print(f"epoch {epoch + 1}: {rate}, {len(pipeline)} batches of {experiment.batch_size}")
    finally:
        pipeline.close()
    return 0


if __name__ == "__main__":
    end_with(lambda: status_of(main))
