"""Which worker a process is, and what it leaves for the `rn50 run` that started it.

Standard library only: `rn50 workshop try` loads this file into the scripts that it watches.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
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
GROUP = "RN50_GROUP"  # HOST:PID:FOLDER: the `rn50 run` that started this worker, and its records
BIND = "RN50_BIND"  # "core": each worker gets its own cores
_records = ""  # where this worker leaves records: FOLDER/RANK, once it has registered


@dataclass(frozen=True)
class LaunchEnv:
    """This process among the workers that `launcher` started: number `rank` of `size`, and number
    `local_rank` of the `local_size` on its host. Slurm sets `cores`, the cores of this worker."""

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cores: int | None = None

    @classmethod
    def detect(cls, env: Mapping[str, str] = os.environ) -> LaunchEnv | None:
        """Read the environment that a launcher made; return None if no launcher did."""
        for launcher, (rank, size, local_rank, local_size) in VARIABLES.items():
            if rank in env and size in env:
                if launcher == "srun":
                    from rn50lib.distributed.slurm import task

                    found = task(env)
                    return cls(launcher, *found) if found else None
                local = int(env.get(local_rank, "0")), int(env.get(local_size, "1"))
                return cls(launcher, int(env[rank]), int(env[size]), *local)
        return None


def own_cores(cores: list[int], local_rank: int, local_size: int) -> list[int]:
    """Return the cores of one worker: adjacent ones, shared only if there are too few."""
    each = len(cores) // local_size
    if each == 0:
        return [cores[local_rank % len(cores)]]
    return cores[local_rank * each : (local_rank + 1) * each]


def end_with_parent() -> None:
    """Have the kernel send this process SIGTERM when its parent dies (Linux)."""
    if sys.platform == "linux":
        set_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM, 0, 0, 0)


def register() -> None:
    """Bind this worker to its cores and tie its life to the `rn50 run` that started it.

    It ends with its launcher. `rn50 run` learns its pid from a file, if both see the same folder.
    Raises SystemExit if `rn50 run` is already gone. Does nothing for other processes.
    """
    global _records
    if GROUP not in os.environ:
        return
    host, pid, folder = os.environ.pop(GROUP).split(":", 2)  # this process's children are none
    me = LaunchEnv.detect()
    _records = os.path.join(folder, str(me.rank if me else 0))
    if me and os.environ.get(BIND) == "core" and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, own_cores(cores, me.local_rank, me.local_size))
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
    """Return False if there is no such process or it is a zombie (Linux; True elsewhere)."""
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
