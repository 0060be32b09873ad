"""This process's place among the workers, and the records that it leaves for `rn50 run`.

Standard library only: `rn50 workshop try` loads this file into the scripts that it watches.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import signal
import socket
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

VARIABLES = {  # by launcher: rank, size, local rank, local size
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
               "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
}  # fmt: skip
FIRST_PORT, PORTS = 10240, 20000  # below the ports that Linux assigns
GROUP = "RN50_GROUP"  # HOST:PID:FOLDER: the `rn50 run` that started this worker, and its records
_records = ""  # where this worker leaves records: FOLDER/RANK, once it has registered


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
        """Read a launcher's variables; return None if no launcher started this process."""
        for launcher, (rank, size, local_rank, local_size) in VARIABLES.items():
            if rank in env and size in env:
                if launcher == "srun":
                    found = slurm_task(env)
                    return cls(launcher, *found) if found else None
                local = int(env.get(local_rank, "0")), int(env.get(local_size, "1"))
                return cls(launcher, int(env[rank]), int(env[size]), *local)
        return None


def slurm_task(env: Mapping[str, str]) -> tuple[int, int, int, int, int | None] | None:
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
    """Return the variables that `torchrun` would set, for a worker started by `srun`.

    All tasks meet at a port of the first host, or at MASTER_ADDR and MASTER_PORT if they are set.
    Raises UserError if Slurm names no hosts.
    """
    from rn50lib.errors import UserError

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
    """Return the first host of a short list: 'gpu[03-05,09],login' gives 'gpu03'."""
    found = re.match(r"(?:[^,\[]|\[[^\]]*\])*", hosts)
    first = found[0] if found else ""
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)


def end_with_parent() -> None:
    """Have the kernel send this process SIGTERM when its parent dies (Linux)."""
    if sys.platform == "linux":
        set_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM, 0, 0, 0)


def register() -> None:
    """End this worker with its launcher, and write its pid for `rn50 run`.

    Does nothing in other processes. Raises SystemExit if `rn50 run` is already gone.
    """
    global _records
    if GROUP not in os.environ:
        return
    host, pid, folder = os.environ.pop(GROUP).split(":", 2)  # this process's children are none
    me = LaunchEnv.detect()
    _records = os.path.join(folder, str(me.rank if me else 0))
    end_with_parent()
    if host == socket.gethostname() and not (is_running(int(pid)) and os.path.isdir(folder)):
        sys.exit("error: the `rn50 run` that started this worker is gone")
    _write("started", {"host": socket.gethostname(), "pid": os.getpid()})


@contextlib.contextmanager
def registered() -> Iterator[None]:
    """Register this worker, and record how the block ends."""
    from rn50lib.errors import message_of

    register()
    try:
        yield
    except SystemExit as error:
        record_end(error.code if isinstance(error.code, int) else 1, str(error.code))
        raise
    except KeyboardInterrupt:
        record_end(130)
        raise
    except Exception as error:
        message = message_of(error)
        record_end(2 if message else 1, message or traceback.format_exc())
        raise
    record_end(0)


def record_end(status: int, text: str = "") -> None:
    """Leave the exit status of this worker, with its error or traceback, for `rn50 run`."""
    if _records:
        _write("ended", {"status": status, "time": time.time(), "text": text})


def is_running(pid: int) -> bool:
    """Return False if the process is gone or a zombie (Linux; True elsewhere)."""
    if sys.platform != "linux":
        return True
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def _write(kind: str, content: dict[str, object]) -> None:
    path = f"{_records}.{kind}"
    with contextlib.suppress(OSError):  # a folder that this host does not have
        with open(f"{path}.tmp", "w") as file:
            json.dump(content, file)
        os.replace(f"{path}.tmp", path)
