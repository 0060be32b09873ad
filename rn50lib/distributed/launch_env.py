"""Which worker of a group a process is, and the small process that watches one worker.

A launcher starts `python -m rn50lib.distributed.launch_env COMMAND` instead of the worker itself.
It binds the worker to its cores, prefixes its output with the rank and reports how it ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import FrameType

REPORT = "\x1e"  # begins the line that tells how a worker ended
SIGN = "\x1f"  # begins the line that says, every SIGN_S, that a rank is there and on which host;
SIGN_S = 5  # without a host it is the last
NAMES = {  # by launcher: where it tells a worker its rank, size, local rank and local size
    "horovodrun": ("HOROVOD_RANK", "HOROVOD_SIZE", "HOROVOD_LOCAL_RANK", "HOROVOD_LOCAL_SIZE"),
    "mpirun": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
               "OMPI_COMM_WORLD_LOCAL_SIZE"),
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"),
    "srun": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID", ""),
}  # fmt: skip
LAUNCHING = "RN50_LAUNCHING"  # HOST:PID of the `rn50 run` that all of this belongs to
ENDS = "RN50_ENDS"  # the folder into which workers of this machine report their end
KEPT = 100  # lines of a worker that are kept for the account of its end
DRAIN_S = 1.0  # a worker's own children may keep its output open


@dataclass(frozen=True)
class Member:
    """This process among the workers that `launcher` started: number `rank` of `size`, and number
    `local_rank` of the `local_size` on its host. `cores` is how many it was given to itself."""

    launcher: str
    rank: int
    size: int
    local_rank: int
    local_size: int
    cores: int | None = None


@dataclass
class End:
    """How a worker ended: its exit status, negative for a signal, at `time` (UTC, seconds), and the
    last lines it wrote; `said` is when it wrote its last traceback or error, if it did."""

    rank: int
    status: int
    time: float
    lines: list[str]
    said: float | None = None


def member(env: Mapping[str, str] = os.environ) -> Member | None:
    """Which worker this process is, from the environment that a launcher made; None for a process
    that no launcher started."""
    for launcher, (rank, size, local_rank, local_size) in NAMES.items():
        if rank not in env or size not in env:
            continue
        if launcher == "srun":
            return task(env)
        numbers = (int(env.get(name, default)) for name, default in
                   ((rank, "0"), (size, "1"), (local_rank, "0"), (local_size, "1")))  # fmt: skip
        return Member(launcher, *numbers)
    return None


def task(env: Mapping[str, str]) -> Member | None:
    """The same for a task of Slurm's `srun`.

    The script that sbatch runs has a SLURM_PROCID and the job's SLURM_NTASKS as well, and is no
    task: only srun's have the variables of a step.
    """
    if "SLURM_STEP_NUM_TASKS" not in env and env.get("ENVIRONMENT") == "BATCH":
        return None
    size = int(env.get("SLURM_STEP_NUM_TASKS") or env["SLURM_NTASKS"])
    per_node = []  # '2(x3),1' is 2, 2, 2, 1
    for part in env.get("SLURM_STEP_TASKS_PER_NODE", str(size)).split(","):
        tasks, _, times = part.rstrip(")").partition("(x")
        per_node += [int(tasks)] * int(times or 1)
    node = min(int(env.get("SLURM_NODEID", "0")), len(per_node) - 1)
    cores = env.get("SLURM_CPUS_PER_TASK")
    rank, local_rank = int(env["SLURM_PROCID"]), int(env.get("SLURM_LOCALID", "0"))
    return Member("srun", rank, size, local_rank, per_node[node], int(cores) if cores else None)


def own_cores(cores: list[int], local_rank: int, local_size: int) -> list[int]:
    """The cores of one worker: neighbours, none shared while there are enough."""
    each = len(cores) // local_size
    if each == 0:
        return [cores[local_rank % len(cores)]]
    return cores[local_rank * each : (local_rank + 1) * each]


def follow_parent() -> None:
    """From now on SIGTERM comes to this process when the one that started it dies (Linux)."""
    if sys.platform == "linux":
        set_death_signal = 1  # PR_SET_PDEATHSIG
        ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM, 0, 0, 0)


def main(command: list[str]) -> int:
    me = member()
    if me is None:
        sys.exit(
            "error: rn50lib.distributed.launch_env: no launcher has set a rank: use `rn50 run -n N`"
        )
    rank, local_rank, local_size = me.rank, me.local_rank, me.local_size
    if os.environ.get("RN50_BIND") == "core" and hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, own_cores(cores, local_rank, local_size))
    follow_parent()  # the launcher's death is ours
    worker = subprocess.Popen(
        shlex.split(command[0]) if len(command) == 1 else command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=os.environ | {"RN50_PARENT": str(os.getpid())},
    )

    def forward(number: int, frame: FrameType | None) -> None:
        with contextlib.suppress(ProcessLookupError):
            worker.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, forward)
    threading.Thread(target=watch, args=(worker, rank), daemon=True).start()
    last: deque[tuple[float, str]] = deque(maxlen=KEPT)
    pump = threading.Thread(target=repeat, args=(worker, rank, last), daemon=True)
    pump.start()
    status = worker.wait()
    ended = time.time()
    pump.join(DRAIN_S)
    write(f"{SIGN}{rank}\n")
    said = [at for at, text in last if "Traceback (most" in text or text.startswith("error: ")]
    if status != 0:
        report(End(rank, status, ended, [text for _, text in last], said[-1] if said else None))
    return 128 - status if status < 0 else status


def repeat(worker: subprocess.Popen, rank: int, last: deque[tuple[float, str]]) -> None:
    """Pass on the worker's lines with the rank in front, and keep the last ones, with the time."""
    assert worker.stdout
    for line in worker.stdout:
        text = line.decode(errors="replace").rstrip()
        if not text.startswith("\x1d"):  # progress for a bar (rn50lib.progress.TOLD)
            last.append((time.time(), text))
        write(f"rank {rank} | {text}\n")


def report(end: End) -> None:
    """Tell the `rn50 run` that waits: by a file where it is on this machine, as a launcher drops
    what a failing worker writes last; else by a line."""
    text = json.dumps(asdict(end))
    folder = os.environ.get(ENDS, "")
    if os.path.isdir(folder):
        name = os.path.join(folder, f"{end.rank}-{os.getpid()}")
        with open(f"{name}.tmp", "w") as file:
            file.write(text)
        os.replace(f"{name}.tmp", f"{name}.json")
    else:
        write(f"{REPORT}{text}\n")
        time.sleep(0.5)


def write(text: str) -> bool:
    """One write for a whole line: lines of several workers do not mix. Whether anybody reads."""
    try:
        os.write(1, text.encode())
        return True
    except OSError:  # the launcher is gone
        return False


def watch(worker: subprocess.Popen, rank: int) -> None:
    """Tell the `rn50 run` that started the worker that it is there, and if it stands still. End it
    when that run is gone, however it went."""
    host, _, pid = os.environ.get(LAUNCHING, "").rpartition(":")
    here, told = socket.gethostname(), False
    for second in itertools.count():
        if worker.poll() is not None:
            return
        if host == here and not exists(int(pid)):
            worker.kill()
            return
        if second % SIGN_S == 0:
            if not write(f"{SIGN}{rank} {here}\n") and host != here:
                worker.kill()
                return
            stopped = is_stopped(worker.pid)
            if stopped and not told:
                write(
                    f"rank {rank} | stands still, and the others wait for it: process {worker.pid}"
                    f" on {here} was stopped; `kill -CONT {worker.pid}` there lets it go on\n"
                )
            told = stopped
        time.sleep(1)


def exists(pid: int) -> bool:
    """Whether there is such a process on this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def is_stopped(pid: int) -> bool:
    """Whether a signal or a debugger has stopped a process (Linux)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "Tt"
    except OSError:
        return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
