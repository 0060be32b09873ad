"""Checks of a complete configuration: one line for each error, with the remedy.

What a flag needs and excludes is in its declaration; the rules here depend on values.
"""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Iterator, Sequence

from rn50 import installed
from rn50.launch import is_local
from rn50lib import hooks
from rn50lib.config import FLAGS, TrainConfig, flag_name, flags_of, scoped, slots
from rn50lib.distributed.launch_env import LaunchEnv
from rn50lib.errors import UserError
from rn50lib.hardware import Machine

NEEDS = {"tf32": (8, 0), "bfloat16": (8, 0), "float16": (7, 0)}  # compute capability: Tensor Cores


def check_values(config: TrainConfig) -> None:
    """Raise UserError if two values contradict each other, or one is impossible on any machine."""
    for problem in declared(config):
        raise UserError(problem)
    for text in config.override:
        hooks.parse(text)
    for names, remedy in rules(config):
        flags = flags_of({name: getattr(config, name) for name in names.split()})
        raise UserError(f"{shlex.join(flags)}: {remedy}")


def check_machine(config: TrainConfig, machine: Machine, group: LaunchEnv | None = None) -> None:
    """Raise UserError if a machine, or the `group` that started this process, does not fit."""
    for problem in machine_rules(config, machine, group):
        raise UserError(problem)


def replaces(override: Sequence[str], part: str) -> bool:
    """Return True if --override replaces a part of the run."""
    return any(text.startswith(f"{part}=") for text in override)


# --- on any machine -------------------------------------------------------------------------------


def declared(config: TrainConfig) -> Iterator[str]:
    """Yield an error for each flag that lacks what it needs, or is used with one it excludes."""
    used = {name: flag_name(name) for name in config.to_dict()}
    only_torch = scoped("torch") if config.backend == "tensorflow" else ()
    many = set(scoped("group")) - {"comm"} if config.comm == "local" else ()
    for name, flag in used.items():
        if name in only_torch:
            yield f"{flag} is for PyTorch: leave it out, or use --backend torch"
        if name in many:
            yield f"{flag} is for many workers: pass -n 2 or more, or leave it out"
        for other in FLAGS[name].needs.split():
            if other not in used:
                yield f"{flag} needs {flag_name(other)}: pass it too"
        for other in FLAGS[name].excludes.split():
            if other in used:
                yield f"{flag} and {used[other]} contradict each other: leave one of them out"


def rules(c: TrainConfig) -> Iterator[tuple[str, str]]:
    """Yield the fields of each contradiction, with which its line begins, and what to do."""
    if replaces(c.override, "predictor"):
        if c.backend == "tensorflow":
            yield "override backend", "a predictor is for PyTorch: use --backend torch"
        if c.compile or c.engine != "torch":
            other = "compile" if c.compile else "engine"
            yield f"override {other}", "both choose what predicts: leave one of them out"
    if c.lr_schedule != "step" and c.lr_step_epochs:
        yield ("lr_schedule lr_step_epochs", "this schedule has no steps: leave one of them out, or"
               " pass --lr-schedule step")  # fmt: skip
    if c.backend == "tensorflow" and c.loader == "dali":
        yield "backend loader", "DALI feeds PyTorch: use --loader native, or use --backend torch"
    if c.backend == "tensorflow" and c.dtype == "float16":
        yield ("backend dtype", "the loss scaler that float16 needs is for PyTorch: use --dtype"
               " bfloat16 or float32, or use --backend torch")  # fmt: skip
    if c.backend == "tensorflow" and c.data_format == "recordio":
        yield ("backend data_format", "TensorFlow reads class folders and TFRecord shards: leave"
               f" --data-format out, make shards by `python -m data_prep.tfrecord {c.data_root}`,"
               " or use --backend torch")  # fmt: skip
    if c.macrobatch_size and c.macrobatch_size % c.batch_size:
        yield "macrobatch_size batch_size", "use a multiple of the batch size, or change -b"
    if c.cuda_graph and c.grad_accum_steps > 1:
        yield "cuda_graph macrobatch_size", "a graph holds a whole update: leave one of them out"
    if c.val_resize < c.image_shape:
        yield ("val_resize image_shape", f"the image is smaller than its crop: use {c.image_shape}"
               " or more, or a smaller --image-shape")  # fmt: skip
    if c.batch_size < smallest_batch(c):
        yield ("batch_size image_shape", "the last layers have one pixel, and batch norm cannot"
               " train on a single value per channel: use -b 2 or more, or larger"
               " images")  # fmt: skip
    if c.n > 1 and c.comm == "local":
        yield "n comm", "local is one worker: use --comm horovod or ddp"
    if c.hosts and c.n > sum(slots(c.hosts).values()):
        yield "n hosts", "there are too few slots: use a smaller -n or name more slots"
    if c.comm == "ddp" and c.backend != "torch":
        yield "backend comm", "DDP is PyTorch's: use --comm horovod"
    if c.launcher and (c.comm == "ddp") != (c.launcher == "torchrun"):
        yield ("comm launcher", "use --comm ddp with torchrun, and --comm horovod with the other"
               " launchers")  # fmt: skip
    if c.launcher == "torchrun" and not is_local(c.hosts):
        yield ("launcher hosts", "torchrun starts workers on one host only: start `rn50 train` with"
               " torchrun on each host (docs/commands.md), or use --comm horovod")  # fmt: skip


def smallest_batch(config: TrainConfig) -> int:
    """Return the smallest batch per worker: 2 if batch norm would have one value per channel."""
    if not config.trains:
        return 1
    layers = config.to_network().layers(config.image_shape)
    return 1 + (min(layer.size for layer in layers if layer.kind == "batchnorm") == 1)


def check_number_of_classes(config: TrainConfig) -> None:
    """Raise UserError if all images of a data set have the same label."""
    learns = config.trains and not config.no_metrics and config.loader != "synthetic"
    if learns and config.num_classes == 1:
        raise UserError(
            f"--data-root {config.data_root} has one class, so there is nothing to learn: sort the"
            " images into one folder per class, or pass --no-metrics to measure speed"
        )


# --- on this machine ------------------------------------------------------------------------------


def unsupported_reason(
    dtype: str, machine: Machine, network: str = "resnet", backend: str = "torch"
) -> str | None:
    """Return why a machine cannot train in `dtype`, with the remedy, or None.

    bfloat16 runs on every processor. So does float16, but only the tiny network may use it there.
    The remedy is one that the backend takes.
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
    half = found >= NEEDS["float16"] and backend == "torch"  # float16 needs its loss scaler
    instead = "float16" if half else "float32"
    return (
        f"needs a GPU of capability {wanted[0]}.{wanted[1]} or later, and this one has"
        f" {found[0]}.{found[1]}: use --dtype {instead}"
    )


def machine_rules(c: TrainConfig, machine: Machine, group: LaunchEnv | None) -> Iterator[str]:
    """Yield an error for everything in which a machine, or a launcher, does not fit."""
    if why := unsupported_reason(c.dtype, machine, c.network, c.backend):
        yield f"--dtype {c.dtype} {why}"
    if group is None:
        yield from worker_rules(c, len(machine.gpus), machine.cores)
    else:
        yield from started_rules(c, group)
    if c.loader == "dali" and not installed.has("nvidia.dali"):
        yield ("--loader dali: DALI is not installed here: `make setup` installs it if there is a"
               " wheel (Linux), or use --loader native")  # fmt: skip


def started_rules(c: TrainConfig, group: LaunchEnv) -> Iterator[str]:
    """Yield what contradicts the group that has started this worker."""
    many, by = group.size > 1, group.launcher
    started = f"{by} has started {group.size} worker{'s' if many else ''}"
    if c.max_restarts:
        yield (f"--max-restarts is for `rn50 run`, and {by} has started this worker: leave it out,"
               " and start again with --resume")  # fmt: skip
    if c.n != group.size:
        yield f"-n {c.n}: {started}, and this is one of them: leave -n out, or start {c.n}"
    if many and by in ("torchrun", "srun") and c.backend != "torch":
        yield (f"--backend {c.backend}: {started}, which only PyTorch's DDP connects: use"
               " horovodrun or mpirun")  # fmt: skip
    if many and c.comm == "horovod" and by == "torchrun":
        yield (f"--comm horovod: {started}, for DDP: leave the flag out, or use horovodrun or"
               " mpirun")  # fmt: skip


def worker_rules(c: TrainConfig, gpus: int, cores: int) -> Iterator[str]:
    """Yield why this machine cannot start the workers."""
    if not c.hosts and gpus and c.n > gpus:
        yield f"-n {c.n}: this machine has {gpus} GPU(s): use -n {gpus}"
    if not c.hosts and not gpus and c.n > (most := max(2, cores)):
        yield (f"-n {c.n}: this machine has {cores} cores: use -n {most} or less, or pass --hosts"
               f" localhost:{c.n} to share them anyway")  # fmt: skip
    if c.comm == "horovod" and not installed.horovod_serves(c.backend):
        yield (f"--comm horovod: Horovod is not built for {c.backend} here: run `make horovod`"
               " (`rn50 doctor` says what is missing)"
               + ", or use --comm ddp" * (c.backend == "torch"))  # fmt: skip
    if c.launcher != "mpirun":
        return
    if shutil.which("mpirun") is None:
        yield ("--launcher mpirun: mpirun is not installed here: install Open MPI (on Debian:"
               " apt-get install openmpi-bin libopenmpi-dev), then `make horovod`; or use"
               " --launcher horovodrun")  # fmt: skip
    if not installed.horovod_has("mpi", c.backend):
        yield ("--launcher mpirun: Horovod was built without MPI: run `make horovod` with Open MPI"
               " installed, or use --launcher horovodrun")  # fmt: skip
