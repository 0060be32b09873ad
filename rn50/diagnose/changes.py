"""Which changes of an experiment are worth a look, by what bounds it; and what each one changes."""

from __future__ import annotations

import shlex
from dataclasses import fields, replace

from rn50.autoconfig import resolve
from rn50.diagnose.model import COMMUNICATION, COMPUTE, INPUT
from rn50.parser import experiment_parser, parse_experiment
from rn50lib.config import Experiment
from rn50lib.errors import UserError
from rn50lib.hardware import Machine
from rn50lib.memory import largest_batch
from rn50lib.step_common import USABLE

MAX_CANDIDATES = 2  # candidates that are measured: each takes as long as a part of the run
INPUT_ONLY = (
    "data_root", "data_format", "loader", "resample", "rotate", "flip_up_down", "data_nthreads",
    "num_examples", "val_resize",
)  # fmt: skip
STEP_ONLY = (
    "dtype", "network", "num_layers", "resnet_version", "step", "comm", "launcher", "threads",
    "fp16_allreduce", "fusion_mb", "cycle_ms", "loss_scale", "compile", "cuda_graphs",
)  # fmt: skip
BOTH = "the input and the step"


def joined(argv: list[str]) -> list[str]:
    """The same arguments with each `--change FLAGS` as one, `--change=FLAGS`: argparse would take
    flags such as '-b 64' for its own."""
    found: list[str] = []
    for word in argv:
        if found and found[-1] == "--change":
            found[-1] = f"--change={word}"
        else:
            found.append(word)
    return found


def parse(text: str) -> Experiment:
    """'--loader dali' as an experiment of which only that is given. Raises UserError, or
    ends as the command line does, for flags that are none."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UserError(f"--change {text!r}: {error}") from error
    if not words:
        raise UserError("--change is empty: give the flags to change, as in --change '-b 64'")
    asked, _ = parse_experiment(experiment_parser("diagnose"), words)
    if not asked.given():
        raise UserError(f"--change {text!r} changes nothing")
    return asked


def changed_part(one: Experiment, other: Experiment) -> str | None:
    """The part in which two experiments differ: INPUT, COMPUTE, BOTH, or None."""
    names = (f.name for f in fields(Experiment))
    changed = {name for name in names if getattr(one, name) != getattr(other, name)}
    if not changed:
        return None
    if changed <= set(INPUT_ONLY):
        return INPUT
    return COMPUTE if changed <= set(STEP_ONLY) else BOTH


def candidates(part: str, done: Experiment, machine: Machine) -> list[str]:
    """Flags that might help a run that `part` bounds, the most promising first."""
    found: list[str] = []
    cores = max(1, machine.cores // done.n)
    if part == INPUT:
        if done.loader != "dali":
            found.append("--loader dali")
        if done.data_nthreads < cores:
            found.append(f"--data-nthreads {cores}")
        if done.backend == "tensorflow" and done.resample != "fast":
            found.append("--resample fast")
    if part == COMPUTE and done.step is None:
        if done.threads < cores and not machine.gpus:
            found.append(f"--threads {cores}")
        if done.dtype in ("float32", "tf32") and (machine.bfloat16 or machine.gpus):
            found += ["--dtype bfloat16"] + ["--dtype float16"] * bool(machine.gpus)
        if machine.gpus and not done.compile:
            found.append("--compile")
    if part == COMMUNICATION:
        fits = largest(done, machine)
        if fits is None or fits >= 2 * done.batch_size:
            found.append(f"-b {2 * done.batch_size}")
        if done.backend == "torch":
            other = "ddp" if done.comm == "horovod" else "horovod"
            starter = "torchrun" if other == "ddp" else "horovodrun"
            found.append(f"--comm {other} --launcher {starter}")
    return [text for text in found if possible(text, done, machine)][:MAX_CANDIDATES]


def possible(text: str, done: Experiment, machine: Machine) -> bool:
    """Whether this machine can run the changed experiment."""
    try:
        resolve(replace(done, **parse(text).given()), machine, done.num_classes)
    except UserError:
        return False
    return True


def largest(done: Experiment, machine: Machine) -> int | None:
    """The largest batch per worker that is predicted to fit, None where that is not known."""
    memory = min((gpu.memory for gpu in machine.gpus), default=machine.memory)
    if done.step is not None or not memory:
        return None
    room = int(USABLE * memory) if machine.gpus else memory // done.n
    return largest_batch(
        done.to_network(), done.image_shape, done.dtype, room,
        training=not done.only_inference,
    )  # fmt: skip
