"""The set-up of a run: checks, the data sets, the step, and the report's `env`."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import PIL

from rn50lib.config import FLAGS, Resolved, TrainConfig, flag_name, scoped
from rn50lib.data.classes import Classes, check_agreement
from rn50lib.distributed import Comm, assert_same_across_ranks
from rn50lib.errors import UserError, first_line
from rn50lib.hardware import machine
from rn50lib.resnet import Network
from rn50lib.train_step import BEFORE_TRACE, TRACED_STEPS, PacedStep, TrainStep


def check_group(config: TrainConfig, comm: Comm) -> None:
    """Raise UserError if the number of workers is wrong or their configurations differ.

    Call it before the first broadcast: ranks that differ would wait for each other forever.
    """
    if comm.size != config.n:
        raise UserError(
            f"-n {config.n}: {config.comm} has connected {comm.size} worker(s): start {config.n}"
            " with torchrun, horovodrun, mpirun or srun",
            ("workers", config.n),
        )
    if comm.size > 1 and config.backend == "tensorflow":
        from rn50lib.tensorflow.train_step import configure

        configure(config.threads, comm.local_rank)  # the first exchange would fix its settings
    shared = [name for name in FLAGS if name not in scoped("host")]
    assert_same_across_ranks({flag_name(n): getattr(config, n) for n in shared}, comm)


def open_sources(config: TrainConfig) -> dict[str, Any]:
    """Return the data set of each split that the run uses; None for synthetic images."""
    splits = ["val"] if config.only_inference else ["train", "val"]
    if config.no_val or (config.test_io and not config.only_inference):
        splits.remove("val")
    if config.loader == "synthetic":
        return dict.fromkeys(splits)
    from rn50lib.data.scan import UNUSED
    from rn50lib.data.source import open_source

    root = Path(config.data_root)
    sources = {split: open_source(root, split, config.data_format) for split in splits}
    if "train" in sources and (limit := config.num_examples):
        beyond = len(sources["train"]) - limit
        if beyond > 0:
            sources["train"].left_out.add(UNUSED, count=beyond)
    return sources


def describe_sources(sources: dict[str, Any]) -> dict[str, str]:
    """Return for each stored split what it holds."""
    found = {split: source for split, source in sources.items() if source is not None}
    return {split: f"{s.path} ({len(s)} images, {s.format})" for split, s in found.items()}


def print_sources(sources: dict[str, Any], every: bool = True) -> None:
    """Print what each split holds and lacks; unless `every`, only the splits that lack images."""
    from rn50lib.data.source import describe_changes

    for split, text in describe_sources(sources).items():
        note, changes = sources[split].left_out.note, describe_changes(sources[split], split)
        if every or note:
            print(f"  {split}: {text}{note}", file=sys.stderr, flush=True)
        if changes:
            print(f"  note: {changes}", file=sys.stderr, flush=True)


def check_classes_of_splits(config: TrainConfig, sources: dict[str, Any]) -> Classes | None:
    """Return the classes of the splits; None for synthetic images. Raises UserError."""
    found = [source.classes for source in sources.values() if source is not None]
    return check_agreement(found, f"--data-root {config.data_root}") if found else None


def check_traced(config: TrainConfig, steps: int) -> None:
    """Raise UserError if an epoch has too few steps for a trace."""
    needed = BEFORE_TRACE + TRACED_STEPS
    if steps < needed:
        raise UserError(
            f"--trace {config.trace}: an epoch has {steps} steps, and a trace needs {needed}: use a"
            " larger --benchmark-iters, a smaller -b, more images, or no --profile ci"
        )


def build_step(config: TrainConfig, net: Network, comm: Comm) -> TrainStep:
    """Return the training step. Raise UserError if its framework cannot import or use a GPU."""
    rate = math.inf if config.test_io else config.step
    if rate is not None:
        return PacedStep(rate, comm)
    make: Callable[[TrainConfig, Network, Comm], TrainStep]
    try:
        if config.backend == "tensorflow":
            from rn50lib.tensorflow.train_step import TensorflowStep as make
        else:
            from rn50lib.torch.train_step import TorchStep as make
    except ImportError as error:
        other = ": use --backend torch" if config.backend == "tensorflow" else ""
        reason = f"{config.backend} does not import here ({first_line(error)})"
        raise UserError(f"--backend {config.backend}: {reason}{other}", ("setup",)) from error
    step = make(config, net, comm)
    if step.device == "cpu" and machine().gpus:
        version = step.versions()[config.backend]
        raise UserError(
            f"--backend {config.backend}: version {version} does not reach the GPU that"
            " nvidia-smi lists: set CUDA_VISIBLE_DEVICES= to train on the processor",
            ("doctor",),
        )
    return step


def environment(
    resolved: Resolved, sources: dict[str, Any], classes: Classes | None
) -> dict[str, Any]:
    """Return the report's `env`: machine, values with their reasons, data, caps and overrides."""
    config, axes = resolved.config, {}
    for name, flag in FLAGS.items():
        value = getattr(config, name)
        if not (value is None or value is flag.default is False or value == ()):
            axes[name] = {"value": value, "reason": resolved.reasons.get(name, "the default")}
    return {
        "machine": machine().to_dict(),
        "versions": {"numpy": np.__version__, "pillow": PIL.__version__},
        "axes": axes,
        "caps": list(resolved.caps),
        "overrides": list(config.override),
        "data": describe_sources(sources),
        "left_out": {split: dict(s.left_out) for split, s in sources.items() if s is not None},
        "classes": classes and classes.to_dict(),
        "allocator": os.environ.get("GLIBC_TUNABLES"),
    }
