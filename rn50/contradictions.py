"""Checks of a complete configuration: one line for each error, with the remedy."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Any

from rn50 import installed
from rn50.launch import is_local
from rn50lib import optim
from rn50lib.config import FLAGS, TrainConfig, flag_name, scoped, slots
from rn50lib.distributed.launch_env import LaunchEnv
from rn50lib.errors import UserError
from rn50lib.hardware import Machine

NEEDS = {"tf32": (8, 0), "bfloat16": (8, 0), "float16": (7, 0)}  # compute capability: Tensor Cores
Problem = tuple[Any, str]  # is it wrong? and the message


def refuse(*problems: Problem) -> None:
    """Raise UserError for the first problem that there is."""
    for wrong, message in problems:
        if wrong:
            raise UserError(message)


def replaces(override: Sequence[str], part: str) -> bool:
    """Return True if --override replaces a part of the run."""
    return any(text.startswith(f"{part}=") for text in override)


# --- on any machine -------------------------------------------------------------------------------


def check_values(config: TrainConfig) -> None:
    """Raise UserError if two values contradict each other, or one is impossible on any machine."""
    prefix, values = config.model_prefix, config.to_dict()
    engine, predicts = config.engine != "torch", replaces(config.override, "predictor")
    scales = (
        config.loss_scale is not None and optim.parse_loss_scale(config.loss_scale)[1] is not None
    )
    refuse(
        (config.load_epoch is not None and not prefix, "--load-epoch needs --model-prefix PREFIX"),
        (config.resume and not prefix, "--resume needs --model-prefix PREFIX"),
        *((other in values, f"{flag_name(name)} and {flag_name(other)} contradict each other: leave"
                            " one of them out")
          for name in values for other in FLAGS[name].excludes.split()),
        (config.network == "tiny" and config.num_layers is not None,
         "--num-layers does not go with --network tiny: leave one out"),
        (not config.bn_decay and replaces(config.override, "decay_groups"),
         "--set bn_decay=false and --override decay_groups both choose what decays: leave one out"),
        (config.lr_step_epochs and config.lr_schedule != "step",
         f"--lr-step-epochs does not go with --lr-schedule {config.lr_schedule}, which has no"
         " steps: leave it out, or pass --lr-schedule step"),
        (replaces(config.override, "loss_scale_update")
         and not (scales or config.only_inference),
         "--override loss_scale_update: this run has no dynamic loss scale: pass --set"
         " loss_scale=dynamic"),
        (predicts and (config.backend != "torch" or config.compile),
         "--override predictor needs --backend torch without --compile: leave one of them out"),
        (engine and not config.only_inference,
         f"--engine {config.engine} does not train: pass --only-inference too"),
        (engine and predicts,
         f"--engine {config.engine} and --override predictor contradict each other: leave one out"),
        *((config.backend == "tensorflow" and used, f"{flag}, or use --backend torch")
          for used, flag in (
              (config.loader == "dali",
               "--loader dali feeds PyTorch: for TensorFlow use --loader native"),
              (config.data_format == "recordio",
               "--data-format recordio: TensorFlow reads class folders and TFRecord shards: leave"
               f" the flag out, make shards by `python -m data_prep.tfrecord {config.data_root}`"),
              *((name in values, f"{flag_name(name)} is for PyTorch: leave it out")
                for name in scoped("torch")),
              (replaces(config.override, "loss_scale_update"),
               "--override loss_scale_update: TensorFlow's step has its rule in its graph: leave it"
               " out"),
          )),
        *((config.step and getattr(config, name),
           f"{flag_name(name)}: --set step has no model to save or load: leave one of them out")
          for name in scoped("model")),
    )  # fmt: skip
    check_group(config)
    check_sizes(config)


def check_sizes(config: TrainConfig) -> None:
    """Raise UserError for batches or images that cannot be trained on."""
    batch, pixels = config.batch_size, config.image_shape
    macro = config.macrobatch_size or batch
    near = sorted({macro // batch * batch, -(-macro // batch) * batch} - {0})
    refuse(
        (macro % batch,
         f"--macrobatch-size {macro} is not a multiple of the batch size {batch}: use"
         f" {' or '.join(map(str, near))}, or change -b"),
        (config.val_resize < pixels,
         f"--set val_resize={config.val_resize} is smaller than the {pixels}-pixel crop: use"
         f" {pixels} or more, or a smaller --image-shape"),
        (batch < smallest_batch(config),
         f"-b 1 with --image-shape {pixels}: the last layers have one pixel, and batch norm cannot"
         " train on a single value per channel: use -b 2 or more, or larger images"),
    )  # fmt: skip


def smallest_batch(config: TrainConfig) -> int:
    """Return the smallest batch per worker: 2 if batch norm would have one value per channel."""
    if not config.trains:
        return 1
    layers = config.to_network().layers(config.image_shape)
    return 1 + (min(layer.size for layer in layers if layer.kind == "batchnorm") == 1)


def check_classes(config: TrainConfig) -> None:
    """Raise UserError if all images of a data set have the same label."""
    learns = config.trains and not config.no_metrics and config.loader != "synthetic"
    refuse(
        (learns and config.num_classes == 1,
         f"--data-root {config.data_root} has one class, so there is nothing to learn: sort the"
         " images into one folder per class, or pass --no-metrics to measure speed"),
    )  # fmt: skip


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
    )  # fmt: skip
    for text in config.logger:
        refuse(
            (text != "tensorboard" and not os.path.isfile(text.rpartition(":")[0]),
             f"--logger {text}: use tensorboard or your own FILE.py:FUNCTION"),
            (text == "tensorboard" and not installed.has(text),
             f"--logger {text}: it is not installed here: `pip install {text}`"),
        )  # fmt: skip


def capability(machine: Machine) -> tuple[int, int]:
    """Return the compute capability that all GPUs of a machine have."""
    return min(gpu.capability for gpu in machine.gpus)


def unsupported_reason(dtype: str, machine: Machine, network: str) -> str | None:
    """Return why a machine cannot train in `dtype`, with the remedy, or None.

    bfloat16 runs on every processor. So does float16, but only the tiny network may use it there.
    """
    if not machine.gpus:
        needs = "needs a GPU, and there is none here: use --dtype"
        if dtype == "float16" and network != "tiny":
            needs += " bfloat16 (same range as float32) or --dtype"
            return f"{needs} float32; --network tiny runs in float16 anywhere"
        return f"{needs} float32" if dtype == "tf32" else None
    wanted, found = NEEDS.get(dtype, (0, 0)), capability(machine)
    if found >= wanted:
        return None
    instead = "float16" if found >= NEEDS["float16"] else "float32"
    return (
        f"needs a GPU of capability {wanted[0]}.{wanted[1]} or later, and this one has"
        f" {found[0]}.{found[1]}: use --dtype {instead}"
    )


# --- many workers ---------------------------------------------------------------------------------


def check_started(config: TrainConfig, group: LaunchEnv) -> None:
    """Raise UserError if a worker's configuration contradicts the group that started it."""
    started = f"{group.launcher} has started {group.size} worker{'s' if group.size > 1 else ''}"
    many = group.size > 1
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


def check_group(config: TrainConfig) -> None:
    """Raise UserError if workers, hosts, launcher and comm do not go together."""
    n, comm, launcher = config.n, config.comm, config.launcher
    room = sum(slots(config.hosts).values()) if config.hosts else n
    refuse(
        (comm == "local" and n > 1,
         f"--comm local is one worker: with -n {n} use --comm horovod or ddp"),
        *((comm == "local" and getattr(config, name) is not None,
           f"{flag_name(name)} is for many workers: pass -n 2 or more, or leave it out")
          for name in scoped("group") if name != "comm"),
        (n > room, f"-n {n}: --hosts {config.hosts} has {room} slots: use a smaller -n or name more"
                   " slots"),
        (comm == "ddp" and config.backend != "torch",
         f"--comm ddp is PyTorch's: with --backend {config.backend} use horovod"),
        (comm == "ddp" and launcher not in (None, "torchrun"),
         f"--launcher {launcher} starts Horovod's workers, not DDP's"),
        (comm == "horovod" and launcher == "torchrun",
         "--launcher torchrun starts DDP's workers: use --comm ddp with it"),
        (launcher == "torchrun" and not is_local(config.hosts),
         "--launcher torchrun starts workers on one host only: start `rn50 train` with torchrun on"
         " each host (docs/commands.md), or use --comm horovod"),
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
