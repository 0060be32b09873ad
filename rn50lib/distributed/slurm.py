"""What `torchrun` would tell a worker, for one that Slurm's `srun` started."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rn50lib.errors import UserError

if TYPE_CHECKING:
    from rn50lib.distributed.launch_env import LaunchEnv

FIRST_PORT, PORTS = 10240, 20000  # below those that Linux hands out by itself


def task(env: Mapping[str, str]) -> tuple[int, int, int, int, int | None] | None:
    """Return rank, size, local rank, local size and cores of an `srun` task.

    A batch script has SLURM_PROCID and SLURM_NTASKS too, but not the variables of a step: None.
    """
    if "SLURM_STEP_NUM_TASKS" not in env and env.get("ENVIRONMENT") == "BATCH":
        return None
    size = int(env.get("SLURM_STEP_NUM_TASKS") or env["SLURM_NTASKS"])
    per_node: list[int] = []  # '2(x3),1' is 2, 2, 2, 1
    for part in env.get("SLURM_STEP_TASKS_PER_NODE", str(size)).split(","):
        tasks, _, times = part.rstrip(")").partition("(x")
        per_node += [int(tasks)] * int(times or 1)
    node = min(int(env.get("SLURM_NODEID", "0")), len(per_node) - 1)
    cores = env.get("SLURM_CPUS_PER_TASK")
    rank, local_rank = int(env["SLURM_PROCID"]), int(env.get("SLURM_LOCALID", "0"))
    return rank, size, local_rank, per_node[node], int(cores) if cores else None


def torch_environment(me: LaunchEnv, env: Mapping[str, str] = os.environ) -> dict[str, str]:
    """The variables from which torch.distributed makes a group of the tasks of a step. All tasks
    meet at a port of the first host; MASTER_ADDR and MASTER_PORT win where they are set.

    Raises UserError where Slurm has named no hosts.
    """
    hosts = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or ""
    address = env.get("MASTER_ADDR") or first_host(hosts)
    if not address:
        raise UserError(
            "srun has started this worker, and SLURM_STEP_NODELIST does not say on which hosts: set"
            " MASTER_ADDR to the first of them"
        )
    # two steps of a job may begin on the same host
    job, step = int(env.get("SLURM_JOB_ID", "0")), int(env.get("SLURM_STEP_ID", "0"))
    return {
        "RANK": str(me.rank),
        "WORLD_SIZE": str(me.size),
        "LOCAL_RANK": str(me.local_rank),
        "LOCAL_WORLD_SIZE": str(me.local_size),
        "MASTER_ADDR": address,
        "MASTER_PORT": env.get("MASTER_PORT") or str(FIRST_PORT + (job * 7 + step) % PORTS),
    }


def first_host(hosts: str) -> str:
    """The first host of Slurm's short form: 'gpu[03-05,09],login' gives 'gpu03'."""
    found = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    first = found[0] if found else ""
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)
