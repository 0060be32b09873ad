"""Checks of a complete configuration: one line for each error, with the remedy.

What a flag needs and excludes is in its declaration; the rules here depend on values.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from typing import NamedTuple

from rn50 import installed
from rn50.launch import is_local
from rn50lib.config import FLAGS, TrainConfig, flag_name, flags_of, scoped, slots
from rn50lib.distributed.launch_env import LaunchEnv
from rn50lib.errors import UserError
from rn50lib.hardware import Machine
from rn50lib.hooks import REPLACEABLE
from rn50lib.optim import parse_loss_scale

NEEDS = {"tf32": (8, 0), "bfloat16": (8, 0), "float16": (7, 0)}  # compute capability: Tensor Cores
TORCH_PARTS = ("predictor", "loss_scale_update")  # that --override replaces for PyTorch only


def refuse(*problems: tuple[object, str]) -> None:
    """Raise UserError with the message of the first problem that there is."""
    for wrong, message in problems:
        if wrong:
            raise UserError(message)


def replaces(override: Sequence[str], part: str) -> bool:
    """Return True if --override replaces a part of the run."""
    return any(text.startswith(f"{part}=") for text in override)


# --- on any machine -------------------------------------------------------------------------------


class Rule(NamedTuple):
    """A contradiction: the fields that the line begins with, if there is one, and what to do."""

    names: str
    broken: Callable[[TrainConfig], object]
    remedy: str  # with the values of fields in braces


RULES = (
    Rule("bn_decay override", lambda c: not c.bn_decay and replaces(c.override, "decay_groups"),
         "both choose what decays: leave one of them out"),
    Rule("lr_schedule lr_step_epochs", lambda c: c.lr_schedule != "step" and c.lr_step_epochs,
         "this schedule has no steps: leave one of them out, or pass --lr-schedule step"),
    Rule("loss_scale override", lambda c: replaces(c.override, "loss_scale_update")
         and not c.only_inference and parse_loss_scale(c.loss_scale or "1")[1] is None,
         "this run has no dynamic loss scale: pass --set loss_scale=dynamic"),
    Rule("backend loader", lambda c: c.backend == "tensorflow" and c.loader == "dali",
         "DALI feeds PyTorch: use --loader native, or use --backend torch"),
    Rule("backend data_format", lambda c: c.backend == "tensorflow" and c.data_format == "recordio",
         "TensorFlow reads class folders and TFRecord shards: leave --data-format out, make shards"
         " by `python -m data_prep.tfrecord {data_root}`, or use --backend torch"),
    Rule("macrobatch_size batch_size",
         lambda c: c.macrobatch_size and c.macrobatch_size % c.batch_size,
         "use a multiple of the batch size, or change -b"),
    Rule("val_resize image_shape", lambda c: c.val_resize < c.image_shape,
         "the image is smaller than its crop: use {image_shape} or more, or a smaller"
         " --image-shape"),
    Rule("batch_size image_shape", lambda c: c.batch_size < smallest_batch(c),
         "the last layers have one pixel, and batch norm cannot train on a single value per"
         " channel: use -b 2 or more, or larger images"),
    Rule("n comm", lambda c: c.n > 1 and c.comm == "local",
         "local is one worker: use --comm horovod or ddp"),
    Rule("n hosts", lambda c: c.hosts and c.n > sum(slots(c.hosts).values()),
         "there are too few slots: use a smaller -n or name more slots"),
    Rule("backend comm", lambda c: c.comm == "ddp" and c.backend != "torch",
         "DDP is PyTorch's: use --comm horovod"),
    Rule("comm launcher", lambda c: c.launcher and (c.comm == "ddp") != (c.launcher == "torchrun"),
         "use --comm ddp with torchrun, and --comm horovod with the other launchers"),
    Rule("launcher hosts", lambda c: c.launcher == "torchrun" and not is_local(c.hosts),
         "torchrun starts workers on one host only: start `rn50 train` with torchrun on each host"
         " (docs/commands.md), or use --comm horovod"),
)  # fmt: skip


def check_values(config: TrainConfig) -> None:
    """Raise UserError if two values contradict each other, or one is impossible on any machine."""
    check_declared(config)
    for rule in RULES:
        if rule.broken(config):
            flags = flags_of({name: getattr(config, name) for name in rule.names.split()})
            raise UserError(f"{shlex.join(flags)}: {rule.remedy.format(**vars(config))}")


def check_declared(config: TrainConfig) -> None:
    """Raise UserError if a flag lacks what it needs, or is used with one that it excludes."""
    used = {name: flag_name(name) for name in config.to_dict()}
    used |= {part: f"--override {part}" for part in REPLACEABLE if replaces(config.override, part)}
    only_torch = (*scoped("torch"), *TORCH_PARTS) if config.backend == "tensorflow" else ()
    for name, flag in used.items():
        if name in only_torch:
            raise UserError(f"{flag} is for PyTorch: leave it out, or use --backend torch")
        if config.comm == "local" and name in scoped("group") and name != "comm":
            raise UserError(f"{flag} is for many workers: pass -n 2 or more, or leave it out")
        if name in REPLACEABLE:
            continue
        for other in FLAGS[name].needs.split():
            if other not in used:
                raise UserError(f"{flag} needs {flag_name(other)}: pass it too")
        for other in FLAGS[name].excludes.split():
            if other in used:
                raise UserError(
                    f"{flag} and {used[other]} contradict each other: leave one of them out"
                )


def smallest_batch(config: TrainConfig) -> int:
    """Return the smallest batch per worker: 2 if batch norm would have one value per channel."""
    if not config.trains:
        return 1
    layers = config.to_network().layers(config.image_shape)
    return 1 + (min(layer.size for layer in layers if layer.kind == "batchnorm") == 1)


def check_classes(config: TrainConfig) -> None:
    """Raise UserError if all images of a data set have the same label."""
    learns = config.trains and not config.no_metrics and config.loader != "synthetic"
    if learns and config.num_classes == 1:
        raise UserError(
            f"--data-root {config.data_root} has one class, so there is nothing to learn: sort the"
            " images into one folder per class, or pass --no-metrics to measure speed"
        )


# --- on this machine ------------------------------------------------------------------------------


def check_machine(config: TrainConfig, machine: Machine, group: LaunchEnv | None = None) -> None:
    """Raise UserError if a machine, or the `group` that started this process, does not fit."""
    why = unsupported_reason(config.dtype, machine, config.network)
    refuse((why, f"--dtype {config.dtype} {why}"))
    if group is None:
        check_workers(config, machine)
    else:
        check_started(config, group)
    refuse(
        (config.profile == "gpu" and not machine.gpus,
         "--profile gpu: there is no GPU here; use --profile cpu"),
        (config.loader == "dali" and not installed.has("nvidia.dali"),
         "--loader dali: DALI is not installed here: `make setup` installs it if there is a wheel"
         " (Linux), or use --loader native"),
        ("tensorboard" in config.logger and not installed.has("tensorboard"),
         "--logger tensorboard: it is not installed here: `pip install tensorboard`"),
        *((text != "tensorboard" and not os.path.isfile(text.rpartition(":")[0]),
           f"--logger {text}: use tensorboard or your own FILE.py:FUNCTION")
          for text in config.logger),
    )  # fmt: skip


def unsupported_reason(dtype: str, machine: Machine, network: str = "resnet") -> str | None:
    """Return why a machine cannot train in `dtype`, with the remedy, or None.

    bfloat16 runs on every processor. So does float16, but only the tiny network may use it there.
    """
    if not machine.gpus:
        needs = "needs a GPU, and there is none here: use --dtype"
        if dtype == "float16" and network != "tiny":
            needs += " bfloat16 (same range as float32) or --dtype"
            return f"{needs} float32; --network tiny runs in float16 anywhere"
        return f"{needs} float32" if dtype == "tf32" else None
    wanted, found = NEEDS.get(dtype, (0, 0)), min(gpu.capability for gpu in machine.gpus)
    if found >= wanted:
        return None
    instead = "float16" if found >= NEEDS["float16"] else "float32"
    return (
        f"needs a GPU of capability {wanted[0]}.{wanted[1]} or later, and this one has"
        f" {found[0]}.{found[1]}: use --dtype {instead}"
    )


def check_started(config: TrainConfig, group: LaunchEnv) -> None:
    """Raise UserError if a worker's configuration contradicts the group that started it."""
    many = group.size > 1
    started = f"{group.launcher} has started {group.size} worker{'s' if many else ''}"
    refuse(
        (config.max_restarts,
         f"--max-restarts is for `rn50 run`, and {group.launcher} has started this worker: leave it"
         " out, and start again with --resume"),
        (config.n != group.size,
         f"-n {config.n}: {started}, and this is one of them: leave -n out, or start {config.n}"),
        (many and group.launcher in ("torchrun", "srun") and config.backend != "torch",
         f"--backend {config.backend}: {started}, which only PyTorch's DDP connects: use horovodrun"
         " or mpirun"),
        (many and config.comm == "horovod" and group.launcher == "torchrun",
         f"--comm horovod: {started}, for DDP: leave the flag out, or use horovodrun or mpirun"),
    )  # fmt: skip


def check_workers(config: TrainConfig, machine: Machine) -> None:
    """Raise UserError if this machine cannot start the workers."""
    n, gpus, cores = config.n, len(machine.gpus), max(2, machine.cores)
    mpi = config.launcher == "mpirun"
    refuse(
        (not config.hosts and gpus and n > gpus,
         f"-n {n}: this machine has {gpus} GPU(s): use -n {gpus}"),
        (not config.hosts and not gpus and n > cores,
         f"-n {n}: this machine has {machine.cores} cores: use -n {cores} or less, or pass --hosts"
         f" localhost:{n} to share them anyway"),
        (config.comm == "horovod" and not installed.horovod_serves(config.backend),
         f"--comm horovod: Horovod is not built for {config.backend} here: run `make horovod`"
         " (`rn50 doctor` says what is missing)"
         + ", or use --comm ddp" * (config.backend == "torch")),
        (mpi and shutil.which("mpirun") is None,
         "--launcher mpirun: mpirun is not installed here: install Open MPI (on Debian: apt-get"
         " install openmpi-bin libopenmpi-dev), then `make horovod`; or use --launcher horovodrun"),
        (mpi and not installed.horovod_has("mpi", config.backend),
         "--launcher mpirun: Horovod was built without MPI: run `make horovod` with Open MPI"
         " installed, or use --launcher horovodrun"),
    )  # fmt: skip
