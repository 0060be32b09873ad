"""What connects workers here, and which of the flags for many workers go together."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from rn50lib.config.experiment import Experiment
from rn50lib.config.file import flags_of
from rn50lib.config.kinds import slots
from rn50lib.distributed.launch_env import LaunchEnv
from rn50lib.errors import UserError
from rn50lib.hardware import Machine

LOCAL = ("localhost", "127.0.0.1")
NCCL_TENSORFLOW = (2, 20)  # the last that exports what Horovod's operations on GPUs link with


@cache
def horovod_serves(backend: str) -> bool:
    """Whether Horovod is installed with its extension for a framework; imports neither."""
    try:
        found = importlib.util.find_spec("horovod")
    except (ImportError, ValueError):
        return False
    folders = found.submodule_search_locations if found else None
    return any(any(Path(folder, backend).glob("mpi_lib*.so")) for folder in folders or ())


@cache
def horovod_has(part: str, backend: str) -> bool:
    """Whether Horovod was built with 'nccl' or 'mpi'. Asks a process of its own; seconds."""
    if not horovod_serves(backend):
        return False
    code = f"import horovod.{backend} as h, sys; sys.exit(not h.{part}_built())"
    quiet = subprocess.DEVNULL
    return subprocess.run([sys.executable, "-c", code], stdout=quiet, stderr=quiet).returncode == 0


def best_comm(n: int, backend: str, launcher: str | None, gpus: bool) -> tuple[str, str]:
    """What `--comm auto` takes, and why. Raises UserError when nothing can connect the workers."""
    if n == 1:
        return "local", "one worker has nobody to talk to"
    if launcher == "torchrun":
        return "ddp", "torchrun starts its workers"
    if launcher is not None and not (gpus and horovod_serves(backend)):
        return "horovod", f"{launcher} starts its workers"
    if horovod_serves(backend):
        if not gpus:
            return "horovod", "it is built, and there is no GPU"
        if horovod_has("nccl", backend):
            return "horovod", "it is built with NCCL"
    if launcher is not None:
        other = "leave the flag out for PyTorch's DDP"
        if backend != "torch":
            other = "give --comm horovod with it to exchange gradients through the host's memory"
        raise UserError(f"--launcher {launcher}: Horovod {gpu_horovod(backend)}, or {other}")
    if backend == "torch":
        why = "Horovod is not built with NCCL" if horovod_serves(backend) else "there is no Horovod"
        return "ddp", why
    why = gpu_horovod(backend) if gpus else "is not built here: run `make horovod`"
    raise UserError(
        f"-n {n} with --backend {backend}: Horovod connects its workers, and {why}, or use"
        " --backend torch"
    )


def gpu_horovod(backend: str) -> str:
    """What to do for a Horovod that exchanges gradients between GPUs."""
    built = "built without NCCL" if horovod_serves(backend) else "not built here"
    version = next(filter(None, map(installed, ("tensorflow", "tensorflow-cpu"))), None)
    older = ""
    if version and tuple(map(int, version.split(".")[:2])) > NCCL_TENSORFLOW:
        last = ".".join(map(str, NCCL_TENSORFLOW))
        older = f"install TensorFlow {last} (its build with NCCL cannot use {version}) and "
    return f"is {built}: {older}run `HOROVOD_GPU_OPERATIONS=NCCL make horovod`"


def installed(distribution: str) -> str | None:
    """The version of what is installed under this name."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def workers_per_host(n: int, hosts: str | None) -> int:
    """The most workers that share a host."""
    return min(n, max(slots(hosts).values())) if hosts else n


def check_started(experiment: Experiment, group: LaunchEnv) -> None:
    """Raise UserError where a worker is told something else than the group that started it is."""
    started = f"{group.launcher} has started {group.size} worker{'s' if group.size > 1 else ''}"
    if experiment.n not in (None, group.size):
        raise UserError(
            f"-n {experiment.n}: {started}, and this is one of them: leave -n out, or start"
            f" {experiment.n}"
        )
    if group.size == 1:
        return
    if group.launcher in ("torchrun", "srun"):
        if (experiment.backend or "torch") != "torch":
            raise UserError(
                f"--backend {experiment.backend}: {started}, which only PyTorch's DDP connects: use"
                " horovodrun or mpirun"
            )
        if experiment.comm == "horovod" and group.launcher == "torchrun":
            raise UserError(
                f"--comm horovod: {started}, for DDP: leave the flag out, or use horovodrun or"
                " mpirun"
            )


def comm_of(group: LaunchEnv) -> tuple[str, str]:
    """What carries the gradients of the workers that a launcher has started, and why."""
    comm = "ddp" if group.launcher in ("torchrun", "srun") else "horovod"
    return comm, f"{group.launcher} has started the workers"


def check_workers(
    experiment: Experiment, asked: Experiment, machine: Machine, group: LaunchEnv | None = None
) -> None:
    """Raise UserError if workers, hosts, launcher and comm of a resolved experiment do not go
    together. `asked` has only the flags that were passed; `group` is what has started this process
    as one of its workers."""
    check_restarts(experiment, group)
    if group is not None:
        check_started(experiment, group)
        if group.size > 1 and experiment.comm == "local":
            raise UserError(f"--comm local is one worker, and {group.size} were started")
        return
    n, backend, comm = experiment.n, experiment.backend, experiment.comm
    if n == 1 and comm == "local":
        for name in ("hosts", "launcher", "bind", "timeline", "comm_timeout"):
            if getattr(experiment, name) is not None:
                flag = f"--{name.replace('_', '-')}"
                raise UserError(f"{flag} is for many workers: pass -n 2 or more, or leave it out")
        return
    if comm == "local":
        raise UserError(f"--comm local is one worker: with -n {n} use --comm horovod or ddp")
    if experiment.hosts:
        room = sum(slots(experiment.hosts).values())
        if n > room:
            raise UserError(
                f"-n {n}: --hosts {experiment.hosts} has {room} slots: use a smaller -n or name"
                " more slots"
            )
    elif machine.gpus and n > len(machine.gpus):
        raise UserError(
            f"-n {n}: this machine has {len(machine.gpus)} GPU(s): use -n {len(machine.gpus)}"
        )
    elif not machine.gpus and n > max(2, machine.cores):
        raise UserError(
            f"-n {n}: this machine has {machine.cores} cores: use -n {max(2, machine.cores)} or"
            f" less, or say --hosts localhost:{n} to share them all the same"
        )
    if comm == "ddp":
        if not is_local(experiment.hosts):
            raise UserError(
                "--launcher torchrun starts the workers of its own host only: run"
                f" {on_each_host(asked)}"
            )
        if backend != "torch":
            raise UserError(f"--comm ddp is PyTorch's: with --backend {backend} use horovod")
        if experiment.launcher not in (None, "torchrun"):
            raise UserError(f"--launcher {experiment.launcher} starts Horovod's workers, not DDP's")
        for name in ("timeline", "cycle_ms"):
            if getattr(experiment, name) is not None:
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} is Horovod's: use --comm horovod with it")
    else:
        if experiment.launcher == "torchrun":
            raise UserError("--launcher torchrun starts DDP's workers: give --comm ddp with it")
        if not horovod_serves(backend):
            raise UserError(
                f"--comm horovod: Horovod is not built for {backend} here: run `make horovod`"
                " (`rn50 doctor` says what is missing)"
                + (", or use --comm ddp" if backend == "torch" else "")
            )
    if experiment.launcher == "mpirun":
        if shutil.which("mpirun") is None:
            raise UserError(
                "--launcher mpirun: there is no mpirun here: install Open MPI (on Debian:"
                " apt-get install openmpi-bin libopenmpi-dev), then `make horovod`; or use"
                " --launcher horovodrun"
            )
        if not horovod_has("mpi", backend):
            raise UserError(
                "--launcher mpirun: Horovod was built without MPI: run `make horovod` with Open"
                " MPI installed, or use --launcher horovodrun"
            )


def check_restarts(experiment: Experiment, group: LaunchEnv | None) -> None:
    """Raise UserError where a run cannot be taken up again as it is asked to."""
    for name in ("max_restarts", "checkpoint_steps"):
        flag = f"--{name.replace('_', '-')}"
        if getattr(experiment, name) and experiment.step is not None:
            raise UserError(f"{flag}: --step paced has nothing to save: leave one of them out")
        if getattr(experiment, name) and group is not None and name != "checkpoint_steps":
            raise UserError(
                f"{flag} is what `rn50 run` does, and {group.launcher} has started this worker:"
                " leave it out, and start again with --resume"
            )


def on_each_host(experiment: Experiment) -> str:
    """What to type on the hosts of a run that torchrun is to start, ready to paste."""
    hosts = slots(experiment.hosts or "")
    theirs: dict[str, Any] = dict.fromkeys(("n", "hosts", "launcher"))
    flags = flags_of(replace(experiment, **theirs))
    lines: dict[int, list[str]] = {}  # by slots: hosts with as many start the same line
    for host, number in hosts.items():
        lines.setdefault(number, []).append(host)
    return "; ".join(
        f"on {' and '.join(names)} `torchrun --nnodes {len(hosts)} --nproc-per-node {number}"
        f" --rdzv-backend c10d --rdzv-endpoint {next(iter(hosts))}:29500 --rdzv-id rn50"
        f" --no-python {shlex.join(['rn50', 'train', *flags])}`"
        for number, names in lines.items()
    )


def is_local(hosts: str | None) -> bool:
    """Whether all workers run on this machine."""
    return hosts is None or all(name in LOCAL for name in slots(hosts))
