"""The programs that start many workers, and the command line that each of them wants.

    horovodrun   Horovod's own; connects the workers with Gloo, needs nothing else
    mpirun       Open MPI; what clusters have
    torchrun     PyTorch's own, for DDP

Each starts `python -m rn50lib.rank COMMAND` once per worker: what a worker is told by its launcher
differs, what it does with it does not.
"""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rn50lib.errors import UserError
from rn50lib.flags import slots
from rn50lib.hardware import Machine
from rn50lib.rank import Member

if TYPE_CHECKING:
    from rn50lib.experiment import Experiment, FullExperiment

LOCAL = ("localhost", "127.0.0.1")
ADDRESSES = LOCAL  # names of this machine: Horovod shuns the host of a worker that died
# What a worker on another host needs of this environment: mpirun hands over nothing by itself.
FORWARDED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "OMP_NUM_THREADS",
             "MKL_NUM_THREADS", "PYTHONUNBUFFERED", "TF_CPP_MIN_LOG_LEVEL")  # fmt: skip


@cache
def horovod_serves(backend: str) -> bool:
    """Whether Horovod is installed with its extension for a framework; imports neither."""
    try:
        found = importlib.util.find_spec("horovod")
    except (ImportError, ValueError):
        return False
    places = found.submodule_search_locations if found else None
    return any(any(Path(place, backend).glob("mpi_lib*.so")) for place in places or ())


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
    if launcher is not None:
        return "horovod", f"{launcher} starts its workers"
    if horovod_serves(backend):
        if not gpus:
            return "horovod", "it is built, and there is no GPU"
        if horovod_has("nccl", backend):
            return "horovod", "it is built with NCCL"
    if backend == "torch":
        why = "Horovod is not built with NCCL" if horovod_serves(backend) else "there is no Horovod"
        return "ddp", why
    build = "HOROVOD_GPU_OPERATIONS=NCCL " if gpus else ""
    raise UserError(
        f"-n {n} with --backend {backend}: Horovod {'with NCCL ' if gpus else ''}connects its"
        f" workers, and it is not built here: run `{build}make horovod`, or use --backend torch"
    )


def workers_per_host(n: int, hosts: str | None) -> int:
    """The most workers that share a host."""
    return min(n, max(slots(hosts).values())) if hosts else n


def check_group(asked: Experiment, group: Member) -> None:
    """Raise UserError where a worker is told something else than the group that started it is."""
    told = f"{group.launcher} has started {group.size} worker{'s' if group.size > 1 else ''}"
    if asked.n not in (None, group.size):
        raise UserError(
            f"-n {asked.n}: {told}, and this is one of them: leave -n out, or start {asked.n}"
        )
    if group.size == 1:
        return
    if group.launcher in ("torchrun", "srun"):
        if (asked.backend or "torch") != "torch":
            raise UserError(
                f"--backend {asked.backend}: {told}, which only PyTorch's DDP connects: use"
                " horovodrun or mpirun"
            )
        if asked.comm == "horovod" and group.launcher == "torchrun":
            raise UserError(
                f"--comm horovod: {told}, for DDP: leave the flag out, or use horovodrun or mpirun"
            )


def comm_of(group: Member) -> tuple[str, str]:
    """What carries the gradients of the workers that a launcher has started, and why."""
    comm = "ddp" if group.launcher in ("torchrun", "srun") else "horovod"
    return comm, f"{group.launcher} has started the workers"


def check(asked: Experiment, machine: Machine, group: Member | None = None) -> None:
    """Raise UserError where workers, hosts, launcher and comm do not go together. `group` is what
    has started this process as one of its workers."""
    check_elastic(asked)
    if group is not None:
        check_group(asked, group)
        if group.size > 1 and asked.comm == "local":
            raise UserError(f"--comm local is one worker, and {group.size} were started")
        return
    n, backend = asked.n or 1, asked.backend or "torch"
    if n == 1:
        for name in ("hosts", "launcher", "bind", "port"):
            if getattr(asked, name) is not None and asked.comm in (None, "local"):
                raise UserError(f"--{name} is for many workers: give -n 2 or more, or leave it out")
        if asked.comm in (None, "local"):
            return
    if asked.comm == "local":
        raise UserError(f"--comm local is one worker: with -n {n} use --comm horovod or ddp")
    if asked.hosts:
        places = slots(asked.hosts)
        if n > sum(places.values()):
            raise UserError(
                f"-n {n}: --hosts {asked.hosts} has {sum(places.values())} slots: use a smaller -n"
                " or name more slots"
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
    comm = asked.comm or best_comm(max(n, 2), backend, asked.launcher, bool(machine.gpus))[0]
    if comm == "ddp":
        if not is_local(asked.hosts):
            raise UserError(
                "--launcher torchrun starts the workers of its own host only: run"
                f" {on_each_host(asked)}"
            )
        if backend != "torch":
            raise UserError(f"--comm ddp is PyTorch's: with --backend {backend} use horovod")
        if asked.launcher not in (None, "torchrun"):
            raise UserError(f"--launcher {asked.launcher} starts Horovod's workers, not DDP's")
        for name in ("timeline", "cycle_ms"):
            if getattr(asked, name) is not None:
                flag = name.replace("_", "-")
                raise UserError(f"--{flag} is Horovod's: use --comm horovod with it")
    else:
        if asked.launcher == "torchrun":
            raise UserError("--launcher torchrun starts DDP's workers: give --comm ddp with it")
        if not horovod_serves(backend):
            raise UserError(
                f"--comm horovod: Horovod is not built for {backend} here: run `make horovod`"
                " (`rn50 doctor` says what is missing)"
                + (", or use --comm ddp" if backend == "torch" else "")
            )
    if asked.launcher == "mpirun":
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
    if asked.port is not None and comm == "ddp" and not is_free(asked.port):
        raise UserError(
            f"--port {asked.port} is in use by another process: leave the flag out for a free one"
        )


def check_elastic(asked: Experiment) -> None:
    """Raise UserError where --elastic cannot be had."""
    if not asked.elastic:
        for name in ("min_np", "max_np"):
            if getattr(asked, name) is not None:
                raise UserError(f"--{name.replace('_', '-')} is for --elastic: give both or none")
        return
    n = asked.n or 1
    for flag, given, wanted in (
        ("-n", n == 1, "2 or more workers"),
        ("--backend", asked.backend == "tensorflow", "torch; for TensorFlow use --max-restarts"),
        ("--comm", asked.comm not in (None, "horovod"), "horovod"),
        ("--launcher", asked.launcher not in (None, "horovodrun"), "horovodrun"),
        ("--loader", asked.loader not in (None, "native"), "native, which reads by number"),
        ("--bind", asked.bind is not None, "none: workers come and go"),
        ("--max-restarts", bool(asked.max_restarts), "none: it goes on by itself"),
    ):
        if given:
            raise UserError(f"--elastic wants {flag} {wanted}")
    if not (asked.min_np or 1) <= n <= (asked.max_np or n):
        raise UserError(
            f"--min-np {asked.min_np or 1} and --max-np {asked.max_np or n} must enclose -n {n}"
        )
    if asked.hosts is None and (asked.max_np or n) > len(ADDRESSES):
        raise UserError(
            f"--elastic with more than {len(ADDRESSES)} workers needs --hosts: on one machine each"
            " worker stands for a host of its own"
        )


def is_free(port: int) -> bool:
    """Whether a server of one's own may listen on a port of this machine."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except (OSError, OverflowError):
            return False
    return True


def command(
    done: FullExperiment,
    worker: Sequence[str],
    folder: Path | None = None,
    env: Mapping[str, str] = os.environ,
) -> list[str]:
    """The argument list that starts `worker` once for each of the experiment's ranks. An elastic
    run keeps its list of hosts in `folder`, and torchrun its logs; `env` is what the launcher will
    be started with."""
    rank = [sys.executable, "-m", "rn50lib.rank", *worker]
    if done.elastic:
        return horovodrun(done, rank, write_discovery(done, folder) if folder else None)
    if done.launcher == "mpirun":
        return mpirun(done, rank, env)
    if done.launcher == "torchrun":
        return torchrun(done, rank, folder)
    return horovodrun(done, rank)


def write_discovery(done: FullExperiment, folder: Path) -> str:
    """Write `hosts.txt`, HOST:SLOTS a line, and the script that Horovod asks for it every second.

    The file may be changed while the run goes on: workers come and go with its lines.
    """
    folder = folder.absolute()
    most = done.max_np or done.n
    places = slots(done.hosts) if done.hosts else dict.fromkeys(ADDRESSES[:most], 1)
    lines = [f"{name}:{number}" for name, number in places.items()]
    (folder / "hosts.txt").write_text("\n".join(lines) + "\n")
    script = folder / "hosts.sh"
    script.write_text(f"#!/bin/sh\ncat {shlex.quote(str(folder / 'hosts.txt'))}\n")
    script.chmod(0o755)
    return str(script)


def horovodrun(done: FullExperiment, rank: list[str], discovery: str | None = None) -> list[str]:
    """Horovod's launcher, with Gloo; run by this interpreter, so that PATH does not matter."""
    argv = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(done.n)]
    if done.elastic:
        argv += ["--min-np", str(done.min_np or 1), "--max-np", str(done.max_np or done.n)]
        argv += ["--host-discovery-script", discovery or "RUN/hosts.sh"]
        argv += ["--blacklist-cooldown-range", "1", "2"]
    else:
        argv += ["-H", done.hosts or f"localhost:{done.n}"]
    if is_local(done.hosts):
        argv += ["--network-interface", "lo"]
    # It would read the worker's flags as its own, were they not one argument.
    return [*argv, *rank[:3], shlex.join(rank[3:])]


def mpirun(done: FullExperiment, rank: list[str], env: Mapping[str, str] = os.environ) -> list[str]:
    """Open MPI, as the classic recipe calls it.

    `-bind-to none -map-by slot` leaves the placing of threads to us, `-x` hands variables over, and
    `pml ob1` keeps MPI's own transport plain. `btl ^openib` is gone: it was for a transport that
    Open MPI no longer has.
    """
    argv = ["mpirun", "-np", str(done.n), "-H", done.hosts or f"localhost:{done.n}"]
    argv += ["-bind-to", "none", "-map-by", "slot", "-mca", "pml", "ob1"]
    if is_local(done.hosts) and shutil.which("ssh") is None:
        argv += ["-mca", "plm", "isolated"]  # without it mpirun insists on finding ssh
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        argv += ["--allow-run-as-root"]
    argv += ["--oversubscribe"]  # `check` has counted; MPI counts otherwise inside containers
    for name in sorted(env):
        if name in FORWARDED or name.startswith(("RN50_", "HOROVOD_", "NCCL_")):
            argv += ["-x", name]
    return [*argv, *rank]


def torchrun(done: FullExperiment, rank: list[str], folder: Path | None) -> list[str]:
    """PyTorch's launcher, on this machine. It would leave a folder for logs among the temporary
    files: it gets one in the run's `folder`."""
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(done.n)]
    if done.port is None:
        argv += ["--standalone"]
    else:
        argv += ["--master-addr", "127.0.0.1", "--master-port", str(done.port)]
    if folder is not None:
        argv += ["--log-dir", str(folder / "torchrun")]
    return [*argv, "--no-python", *rank]


def on_each_host(asked: Experiment) -> str:
    """What to type on the hosts of a run that torchrun is to start, ready to paste."""
    hosts = slots(asked.hosts or "")
    port = asked.port or 29500
    flags = replace(asked, n=None, hosts=None, launcher=None, port=None).to_argv()
    lines: dict[int, list[str]] = {}  # by slots: hosts with as many start the same line
    for host, number in hosts.items():
        lines.setdefault(number, []).append(host)
    return "; ".join(
        f"on {' and '.join(names)} `torchrun --nnodes {len(hosts)} --nproc-per-node {number}"
        f" --rdzv-backend c10d --rdzv-endpoint {next(iter(hosts))}:{port} --rdzv-id rn50"
        f" --no-python {shlex.join(['rn50', 'train', *flags])}`"
        for number, names in lines.items()
    )


def is_local(hosts: str | None) -> bool:
    """Whether all workers run on this machine."""
    return hosts is None or all(name in LOCAL for name in slots(hosts))


def environment(done: FullExperiment) -> dict[str, str]:
    """What Horovod reads from the environment, for an experiment's flags."""
    # Workers wait for each other while they start, and on a busy machine that takes its time.
    env = {"HOROVOD_GLOO_TIMEOUT_SECONDS": os.environ.get("HOROVOD_GLOO_TIMEOUT_SECONDS", "120")}
    if done.fusion_mb is not None:
        env["HOROVOD_FUSION_THRESHOLD"] = str(done.fusion_mb * 2**20)
    if done.cycle_ms is not None:
        env["HOROVOD_CYCLE_TIME"] = f"{done.cycle_ms:g}"
    if done.timeline is not None:
        env["HOROVOD_TIMELINE"] = str(Path(done.timeline).absolute())
    if done.bind is not None:
        env["RN50_BIND"] = done.bind
    return env
