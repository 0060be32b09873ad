"""This process's place among the workers that a launcher has started.

Standard library only: this file is also loaded into scripts that do not use the library.
"""

from __future__ import annotations

import os
import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLES = {  # by launcher: rank, size, local rank, local size
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
               "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
    # MPICH and Intel MPI; Cray's PALS
    "mpiexec": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"),
    "PALS": ("PMI_RANK", "PMI_SIZE", "PMI_LOCAL_RANK", "PMI_LOCAL_SIZE"),
}  # fmt: skip
# Ranks of launchers that are not understood, or without a size: PMIx (Open MPI's prun), Flux, IBM's
# jsrun and poe, MVAPICH, PALS, ALPS, PBS, LSF, TensorFlow
RANKS = ("PMIX_RANK", "FLUX_TASK_RANK", "JSM_NAMESPACE_RANK", "MP_CHILD", "MV2_COMM_WORLD_RANK",
         "MPIRUN_RANK", "PALS_RANKID", "ALPS_APP_PE", "PBS_VNODENUM", "LSF_PM_TASKID",
         "MPI_LOCALRANKID", "TF_CONFIG", "NODE_RANK", "LOCAL_RANK",
         *dict.fromkeys(rank for rank, *_ in VARIABLES.values()))  # fmt: skip
JOBS = ("SLURM_JOB_ID", "SLURM_STEP_ID", "LSB_JOBID", "PBS_JOBID", "PALS_APID")
FIRST_PORT, PORTS = 10240, 20000  # below the ports that Linux assigns


@dataclass(frozen=True)
class LaunchEnv:
    """The place of this process among the workers of a launcher; Slurm sets `cores` per worker."""

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cores: int | None = None

    @classmethod
    def detect(cls, env: Mapping[str, str] = os.environ) -> LaunchEnv | None:
        """Read a launcher's variables; return None without any. Raise UserError for odd ones."""
        for launcher, (rank, size, local_rank, local_size) in VARIABLES.items():
            if rank not in env or size not in env or (launcher == "srun" and not is_task(env)):
                continue
            if launcher == "mpiexec" and local_rank not in env and "PMI_LOCAL_RANK" in env:
                continue
            me = cls(launcher, whole(env, rank), whole(env, size), 0, 1)
            if launcher == "srun":
                me = slurm_task(env)
            elif local_rank in env or launcher != "torchrun":
                # PMI alone does not tell hosts apart
                on_host = whole(env, local_size, me.size)
                me = cls(launcher, me.rank, me.size, whole(env, local_rank, me.rank), on_host)
            if me.rank >= me.size:
                raise refusal(f"{rank}={me.rank} with {size}={me.size} is not a valid place")
            return me
        seen = [name for name in RANKS if name in env and (name != "SLURM_PROCID" or is_task(env))]
        if env.get("PMIX_RANK") == "0":  # a single process that calls MPI sets it, for its children
            seen.remove("PMIX_RANK")  # ranks 1 and up of a group raise the error below
        if "," in env.get("SM_HOSTS", ""):  # SageMaker, which names a single host too
            seen.append("SM_HOSTS")
        if seen:
            text = ", ".join(f"{name}={env[name]:.40}" for name in seen)
            raise refusal(f"a launcher has set {text}, and the number of workers is unknown")
        return None


def refusal(problem: str) -> Exception:
    """Return the error for a launcher's variables that are not understood."""
    from rn50lib.errors import UserError

    return UserError(
        f"{problem}: set RANK, WORLD_SIZE and LOCAL_RANK, or start the workers with torchrun,"
        " horovodrun, mpirun, mpiexec or srun; to train with one process, unset these variables"
    )


def whole(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    """Return a variable that is a whole number. Raises UserError if it is not."""
    if name not in env and default is not None:
        return default
    if not re.fullmatch(r"[0-9]{1,9}", env[name]):
        raise refusal(f"{name}={env[name]!r} is not a whole number from 0 on")
    return int(env[name])


def is_task(env: Mapping[str, str]) -> bool:
    """Return True for an `srun` task that is itself a worker.

    A batch script has SLURM_PROCID and SLURM_NTASKS too, but not the variables of a step. A task
    may also be the daemon of another launcher, which then counts differently.
    """
    if "SLURM_STEP_NUM_TASKS" not in env and env.get("ENVIRONMENT") == "BATCH":
        return False
    size = env.get("SLURM_STEP_NUM_TASKS") or env.get("SLURM_NTASKS")
    pmi = env.get("PMI_RANK"), env.get("PMI_SIZE")
    return None in pmi or pmi == (env.get("SLURM_PROCID"), size)


def slurm_task(env: Mapping[str, str]) -> LaunchEnv:
    """Return the place of an `srun` task."""
    size = whole(env, "SLURM_STEP_NUM_TASKS" if env.get("SLURM_STEP_NUM_TASKS") else "SLURM_NTASKS")
    per_node: list[int] = []  # '2(x3),1' is 2, 2, 2, 1
    nodes = env.get("SLURM_STEP_TASKS_PER_NODE", "")
    for tasks, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", nodes):
        per_node += [int(tasks)] * int(times or 1)
    per_node = per_node or [size]
    node = min(whole(env, "SLURM_NODEID", 0), len(per_node) - 1)
    cores = whole(env, "SLURM_CPUS_PER_TASK") if env.get("SLURM_CPUS_PER_TASK") else None
    local_rank = whole(env, "SLURM_LOCALID", 0)
    return LaunchEnv("srun", whole(env, "SLURM_PROCID"), size, local_rank, per_node[node], cores)


def torch_environment(me: LaunchEnv, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables that `torchrun` would set, for a worker of any launcher.

    All workers meet at MASTER_ADDR and MASTER_PORT. If these are not set, that is a port of the
    first host that Slurm names, or of this host if all workers are here. Raises UserError if it is
    unknown.
    """
    from rn50lib.errors import UserError

    hosts = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
    address = env.get("MASTER_ADDR") or (first_host(hosts) if me.launcher == "srun" else "")
    if me.local_size == me.size:
        address = address or "127.0.0.1"
    # two steps of a job may begin on the same host
    job = "/".join(env.get(name, "") for name in JOBS)
    port = env.get("MASTER_PORT") or str(FIRST_PORT + zlib.crc32(job.encode()) % PORTS)
    if not address:
        raise UserError(
            f"{me.launcher} has started {me.size} workers on several hosts, and does not say on"
            " which: set MASTER_ADDR to the host of rank 0, the same for all workers (and"
            f" MASTER_PORT to one of its free ports, if {port} is not)"
        )
    return {
        "RANK": str(me.rank),
        "WORLD_SIZE": str(me.size),
        "LOCAL_RANK": str(me.local_rank),
        "LOCAL_WORLD_SIZE": str(me.local_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }


def first_host(hosts: str) -> str:
    """Return the first host of a short list: 'gpu[03-05,09],login' gives 'gpu03'."""
    found = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    first = found[0] if found else ""
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)
