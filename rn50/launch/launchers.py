"""The programs that start many workers: the command line that each of them wants, and what every
worker finds in its environment.

    horovodrun   Horovod's own; connects the workers with Gloo, needs nothing else
    mpirun       Open MPI; what clusters have
    torchrun     PyTorch's own, for DDP

Each starts `python -m rn50lib.distributed.launch_env COMMAND` once per worker.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
from pathlib import Path
from typing import NamedTuple

from rn50.workers import is_local
from rn50lib.config import Experiment
from rn50lib.preemption import PARENT

# What a worker on another host needs of this environment: mpirun hands over nothing by itself.
FORWARDED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "OMP_NUM_THREADS",
             "MKL_NUM_THREADS", "PYTHONUNBUFFERED", "TF_CPP_MIN_LOG_LEVEL")  # fmt: skip

# glibc gives large blocks back to the kernel at every free, and a training step frees its
# activations each time: keeping them spares the page faults. In huge pages (2 MB instead of 4 kB)
# their addresses are found faster. `benchmarks/steps.py --allocator both` shows what it is worth.
ALLOCATOR = ":".join(
    f"glibc.malloc.{setting}"
    for setting in ("mmap_threshold=4294967296", "trim_threshold=8589934592", "hugetlb=1")
)

SAVE_S = 60.0  # between asking workers to stop and ending them: they write a checkpoint


class Outcome(NamedTuple):
    """How the workers of a run ended: the exit status for the user, what failed (None: nothing, or
    a lone worker has said it itself), and the ranks that were lost."""

    status: int
    failure: str | None
    lost: tuple[int, ...] = ()


def killed(rank: int, number: int) -> str:
    """What the user is told of a worker that a signal has killed."""
    text = f"rank {rank} was killed by signal {number} ({signal.Signals(number).name})"
    if number == signal.SIGKILL:
        text += " (the machine may have run out of memory: try a smaller -b)"
    return text


def alone(experiment: Experiment) -> bool:
    """Whether the run is one process that needs no launcher."""
    return experiment.n == 1 and experiment.launcher is None


def command(experiment: Experiment, worker: list[str], folder: Path | None = None) -> list[str]:
    """The argument list that starts `worker` once for each of the experiment's ranks. torchrun
    keeps its logs in `folder`."""
    if alone(experiment):
        return worker
    rank = [sys.executable, "-m", "rn50lib.distributed.launch_env", *worker]
    if experiment.launcher == "mpirun":
        return mpirun(experiment, rank)
    if experiment.launcher == "torchrun":
        return torchrun(experiment, rank, folder)
    return horovodrun(experiment, rank)


def horovodrun(experiment: Experiment, rank: list[str]) -> list[str]:
    """Horovod's launcher, with Gloo; run by this interpreter, so that PATH does not matter."""
    argv = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", str(experiment.n)]
    argv += ["--disable-cache"]  # it would be in HOME, which need not be there
    argv += ["-H", experiment.hosts or f"localhost:{experiment.n}"]
    if is_local(experiment.hosts):
        argv += ["--network-interface", "lo"]
    # It would read the worker's flags as its own, were they not one argument.
    return [*argv, *rank[:3], shlex.join(rank[3:])]


def mpirun(experiment: Experiment, rank: list[str]) -> list[str]:
    """Open MPI, as the classic recipe calls it.

    `-bind-to none -map-by slot` leaves the placing of threads to us, `-x` hands variables over, and
    `pml ob1` keeps MPI's own transport plain. `btl ^openib` is gone: it was for a transport that
    Open MPI no longer has.
    """
    hosts = experiment.hosts or f"localhost:{experiment.n}"
    argv = ["mpirun", "-np", str(experiment.n), "-H", hosts]
    argv += ["-bind-to", "none", "-map-by", "slot", "-mca", "pml", "ob1"]
    if is_local(experiment.hosts) and shutil.which("ssh") is None:
        argv += ["-mca", "plm", "isolated"]  # without it mpirun insists on finding ssh
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        argv += ["--allow-run-as-root"]
    argv += ["--oversubscribe"]  # `check` has counted; MPI counts otherwise inside containers
    for name in sorted(rank_environment(experiment)):
        if name in FORWARDED or name.startswith(("RN50_", "HOROVOD_", "NCCL_")):
            argv += ["-x", name]
    return [*argv, *rank]


def torchrun(experiment: Experiment, rank: list[str], folder: Path | None) -> list[str]:
    """PyTorch's launcher, on this machine. It would leave a folder for logs among the temporary
    files: it gets one in the run's `folder`."""
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(experiment.n)]
    argv += ["--standalone"]  # it finds a free port by itself
    if folder is not None:
        argv += ["--log-dir", str(folder / "torchrun")]
    return [*argv, "--no-python", *rank]


def program(verb: str) -> list[str]:
    """The command that runs `rn50 VERB` with this interpreter, installed or not."""
    return [sys.executable, "-m", "rn50", verb]


def with_library(env: dict[str, str]) -> dict[str, str]:
    """The environment in which a child finds this library, also from a bare checkout."""
    here = str(Path(__file__).resolve().parent.parent.parent)
    paths = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]
    if here not in paths:
        env["PYTHONPATH"] = os.pathsep.join([here, *paths])
    return env


def rank_environment(experiment: Experiment) -> dict[str, str]:
    """What every worker's environment gets: threads, allocator, output at once, and what Horovod
    reads from it."""
    env = with_library(dict(os.environ))
    env |= {
        PARENT: str(os.getpid()),
        "OMP_NUM_THREADS": str(experiment.threads),
        "MKL_NUM_THREADS": str(experiment.threads),
        "PYTHONUNBUFFERED": "1",
        "KINETO_LOG_LEVEL": env.get("KINETO_LOG_LEVEL", "6"),  # the profiler's own chatter
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # also where no step chooses: others need memory too
        "TF_CPP_MIN_LOG_LEVEL": env.get("TF_CPP_MIN_LOG_LEVEL", "2"),
        # Workers wait for each other while they start, and on a busy machine that takes its time.
        "HOROVOD_GLOO_TIMEOUT_SECONDS": env.get("HOROVOD_GLOO_TIMEOUT_SECONDS", "120"),
    }
    if experiment.fusion_mb is not None:
        env["HOROVOD_FUSION_THRESHOLD"] = str(experiment.fusion_mb * 2**20)
    if experiment.cycle_ms is not None:
        env["HOROVOD_CYCLE_TIME"] = f"{experiment.cycle_ms:g}"
    if experiment.timeline is not None:
        env["HOROVOD_TIMELINE"] = str(Path(experiment.timeline).absolute())
    if experiment.bind is not None:
        env["RN50_BIND"] = experiment.bind
    if sys.platform == "linux" and "glibc.malloc" not in env.get("GLIBC_TUNABLES", ""):
        env["GLIBC_TUNABLES"] = ":".join(filter(None, [env.get("GLIBC_TUNABLES"), ALLOCATOR]))
    return env
