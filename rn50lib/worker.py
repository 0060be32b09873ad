"""What one worker does, in this process: the loop, its report and its progress files."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rn50lib import checkpoint
from rn50lib.comm import Comm
from rn50lib.experiment import Experiment, FullExperiment, Resolved, flag_name
from rn50lib.files import check_writable, make_folder
from rn50lib.hardware import machine

if TYPE_CHECKING:
    from rn50lib.progress import Progress


def worker(
    resolved: Resolved,
    run_dir: Path | None,
    group: Comm | None = None,
    watch: type[Progress] | None = None,
    warm_up: int = 0,
) -> int:
    """Run the loop in this process, with its report and progress files.

    A benchmark brings its own: a `group` that is connected already, what `watch`es the iterations,
    and how many of them come before the first that counts.
    """
    from rn50lib import comm, training
    from rn50lib.position import State
    from rn50lib.progress import Progress
    from rn50lib.records.source import open_source
    from rn50lib.report import Report

    done = resolved.experiment
    group = group or comm.connect(done.comm, done.backend)
    splits = ["train", "val"]
    if done.no_val or (done.test_io and not done.only_inference):
        splits.remove("val")
    if done.only_inference:
        splits.remove("train")
    sources: dict[str, Any] = dict.fromkeys(splits)
    if done.loader != "synthetic":
        for split in splits:
            sources[split] = open_source(Path(done.data_root), split, done.data_format)
    if done.test_io:
        return time_input(done, sources, group)
    if run_dir:
        make_folder(run_dir, f"--run-dir {run_dir}")
    if group.rank == 0:
        check_places(done)
    net = done.to_network()
    env = environment(resolved, run_dir, sources)
    file = done.report or (run_dir / "report.json" if run_dir else None)

    def write_report(latest: Report) -> None:
        speed = [x for x in latest.metrics["train.total_ips"] if x]
        if speed and done.step is None:
            flops = net.train_flops(done.image_shape)
            latest.env["model_flops"] = {"per_image": flops, "per_second": flops * speed[-1]}
        if file:
            latest.write(file)

    def attempt(state: State) -> None:
        """The run, or what is left of it: an elastic group comes here again with other workers."""
        report = Report(net.name, group.size, [sys.argv[0], *sys.argv[1:]], env)
        progress = (watch or Progress)(run_dir, done.logdir, enabled=group.rank == 0)
        training.train(done, net, sources, group, progress, report, write_report, state, warm_up)

    group.run(attempt, State())
    return 0


def check_places(done: FullExperiment) -> None:
    """Raise UserError before the training where its files cannot be written; makes the folders."""
    for name in ("report", "profile_trace", "timeline"):
        if file := getattr(done, name):
            check_writable(file, flag_name(name))
    if done.model_prefix and not done.only_inference:
        place = checkpoint.symbol_path(done.model_prefix).absolute().parent
        make_folder(place, f"--model-prefix {done.model_prefix}")


def environment(
    resolved: Resolved, run_dir: Path | None, sources: dict[str, Any]
) -> dict[str, Any]:
    """The report's `env`: machine, axes with their reasons, caps and overrides."""
    import importlib.metadata
    import os

    reasons, caps = dict(resolved.reasons), list(resolved.caps)
    launched = run_dir / "experiment.json" if run_dir else None
    if launched and launched.exists():  # `rn50 run` chose, and told this worker explicitly
        told = json.loads(launched.read_text())
        reasons, caps = told["reasons"], told["caps"]
    done = resolved.experiment
    values = {f.name: getattr(done, f.name) for f in fields(Experiment)}
    defaults = {f.name: f.default for f in fields(Experiment)}
    axes = {
        name: {"value": value, "reason": reasons.get(name, "default")}
        for name, value in values.items()
        if not (value is None or value is defaults[name] is False or value == ())
    }
    versions = {}
    for package in ("numpy", "pillow"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[package] = importlib.metadata.version(package)
    return {
        "machine": machine().to_dict(),
        "versions": versions,
        "axes": axes,
        "caps": caps,
        "overrides": list(done.override),
        "data": {
            split: f"{s.path} ({len(s)} images, {s.format})" for split, s in sources.items() if s
        },
        "allocator": os.environ.get("GLIBC_TUNABLES"),
    }


def time_input(done: FullExperiment, sources: dict[str, Any], group: Comm) -> int:
    """`--test-io`: how many images per second the input pipeline of a worker alone delivers."""
    import time

    from rn50lib.pipelines import open_pipeline

    split = "val" if done.only_inference else "train"
    pipeline = open_pipeline(done, sources[split], split, group.rank, group.size)
    try:
        for epoch in range(done.num_epochs):
            batches = pipeline.epoch(epoch)
            next(batches)  # starts the workers; not timed
            begin, images = time.perf_counter(), 0
            for batch in batches:
                images += batch.valid
            seconds = time.perf_counter() - begin
            rate = f"{images / seconds:.1f} img/s" if images else "too few batches to time"
            print(f"epoch {epoch + 1}: {rate}, {len(pipeline)} batches of {done.batch_size}")
    finally:
        pipeline.close()
    return 0
