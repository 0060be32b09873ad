"""Starts runs as processes of their own, so that memory comes back and a crash stays outside.

`start` starts a whole run as `rn50 run` would, for notebooks; `run_ranks` is what `rn50 run`
itself uses: it sets threads and the allocator for its ranks before they begin.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rn50lib import launchers
from rn50lib.errors import UserError
from rn50lib.experiment import Experiment, FullExperiment, Resolved
from rn50lib.hardware import machine
from rn50lib.report import write_json

PARENT = "RN50_PARENT"  # tells a rank whose death must be its own
# glibc gives large blocks back to the kernel at every free, and a training step frees its
# activations each time: keeping them spares the page faults. On two cores a step was measured to be
# 10-30 % faster. In huge pages (2 MB instead of 4 kB) their addresses are found faster: 4 to 7 %.
ALLOCATOR = ":".join(
    f"glibc.malloc.{setting}"
    for setting in ("mmap_threshold=4294967296", "trim_threshold=8589934592", "hugetlb=1")
)
GRACE_S = 5.0  # between asking a process to end and ending it


def runs_home() -> Path:
    """`$RN50_RUNS`, default `runs/` in the current folder."""
    return Path(os.environ.get("RN50_RUNS") or "runs").absolute()


def new_run(name: str) -> Path:
    """Make and return a new folder, `runs/<UTC time>-<name>`. Raises UserError where it cannot."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    for attempt in range(1000):
        folder = runs_home() / (f"{stamp}-{name}" + (f"-{attempt}" if attempt else ""))
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(
                f"{folder} cannot be made ({error.strerror}): set RN50_RUNS to a folder that you"
                " may write to"
            ) from error
    raise UserError(f"{runs_home()} is full of runs named {name}")


@dataclass
class Job:
    """A started run. Its processes form one group, which `stop` and `kill` end together."""

    process: subprocess.Popen
    run_dir: Path
    command: list[str]

    @property
    def pid(self) -> int:
        return self.process.pid

    def poll(self) -> int | None:
        """The exit status, None while it runs."""
        return self.process.poll()

    def wait(self, timeout: float | None = None) -> int:
        """The exit status, once there. Raises subprocess.TimeoutExpired after `timeout` seconds."""
        return self.process.wait(timeout)

    def stop(self) -> int:
        """Ask all processes to end, then end them."""
        self._signal(signal.SIGTERM)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(GRACE_S)
        return self.kill()

    def kill(self) -> int:
        """End all processes at once, as a power cut would."""
        self._signal(signal.SIGKILL)
        return self.process.wait()

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, number)


def program(verb: str) -> list[str]:
    """The command that runs `rn50 VERB` with this interpreter, installed or not."""
    return [sys.executable, "-m", "rn50lib.cli", verb]


def start(experiment: Experiment, run_dir: Path, log: Path | None = None) -> Job:
    """Start `rn50 run` with this experiment in a process group of its own; returns at once.

    Its output goes to `log` where one is given. Raises UserError when a given value is impossible.
    """
    from rn50lib import experiment as experiments

    experiments.check(experiment, machine())
    command = [*program("run"), "--run-dir", str(run_dir), *experiment.to_argv()]
    with contextlib.ExitStack() as stack:
        output = stack.enter_context(open(log, "ab")) if log else None
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT if output else None,
            env=with_library(dict(os.environ)) | {PARENT: str(os.getpid())},
            start_new_session=True,
        )
    return Job(process, run_dir, command)


def with_library(env: dict[str, str]) -> dict[str, str]:
    """The environment in which a child finds this library, also from a bare checkout."""
    here = str(Path(__file__).resolve().parent.parent)
    paths = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]
    if here not in paths:
        env["PYTHONPATH"] = os.pathsep.join([here, *paths])
    return env


def rank_environment(experiment: FullExperiment) -> dict[str, str]:
    """What every rank's environment gets: threads, allocator, output at once."""
    env = with_library(dict(os.environ))
    env |= {
        PARENT: str(os.getpid()),
        "OMP_NUM_THREADS": str(experiment.threads),
        "MKL_NUM_THREADS": str(experiment.threads),
        "PYTHONUNBUFFERED": "1",
        "KINETO_LOG_LEVEL": env.get("KINETO_LOG_LEVEL", "5"),  # the profiler's own chatter
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # also where no step chooses: others need memory too
        "TF_CPP_MIN_LOG_LEVEL": env.get("TF_CPP_MIN_LOG_LEVEL", "2"),
    } | launchers.environment(experiment)
    if sys.platform == "linux" and "glibc.malloc" not in env.get("GLIBC_TUNABLES", ""):
        env["GLIBC_TUNABLES"] = ":".join(filter(None, [env.get("GLIBC_TUNABLES"), ALLOCATOR]))
    return env


def rank_command(resolved: Resolved, run_dir: Path | None) -> list[str]:
    """The command of a run with one worker, or of the launcher that starts many, as a list."""
    place = ["--run-dir", str(run_dir)] if run_dir else []
    worker = [*program("train"), *place, *resolved.experiment.to_argv()]
    return launched(resolved.experiment, worker, run_dir)


def launched(experiment: FullExperiment, worker: list[str], run_dir: Path | None) -> list[str]:
    """The command that starts `worker` once for each of the experiment's ranks."""
    if alone(experiment):
        return worker
    return launchers.command(experiment, worker, run_dir, rank_environment(experiment))


def alone(experiment: FullExperiment) -> bool:
    """Whether the run is one process that needs no launcher."""
    return experiment.n == 1 and experiment.launcher is None


def run_ranks(resolved: Resolved, run_dir: Path) -> int:
    """Run the ranks of a resolved experiment to their end; returns the exit status for the user.

    Writes RUN/experiment.json first. A rank killed by a signal is named on stderr, and the status
    is 128 + the signal, as a shell would say. With --max-restarts the run goes on from its last
    checkpoint, so often.
    """
    status = run_once(resolved, run_dir)
    for restart in range(resolved.experiment.max_restarts):
        if status in (0, 2, 130):  # it is done, its input is wrong, or the user ended it
            break
        say(f"restart {restart + 1} of {resolved.experiment.max_restarts}, from the checkpoint")
        again = replace(resolved.experiment, resume=True, load_epoch=None)
        status = run_once(replace(resolved, experiment=again), run_dir)
    return status


def run_once(resolved: Resolved, run_dir: Path) -> int:
    """Run the ranks to their end, however that comes; returns the exit status."""
    command = rank_command(resolved, run_dir)
    write_json(
        run_dir / "experiment.json",
        {
            "experiment": resolved.experiment.given(),
            "reasons": dict(resolved.reasons),
            "caps": list(resolved.caps),
            "command": command,
        },
    )
    status, failure = run_command(command, resolved.experiment)
    if failure:
        say(f"error: {failure}")
    elif status == 130 and not alone(resolved.experiment):
        say("interrupted")
    return status


def run_command(command: list[str], experiment: FullExperiment) -> tuple[int, str | None]:
    """Run what `launched` gave to its end, with signals handed on. Returns (exit status for the
    user, what failed).

    What failed is None where nothing did, and where a lone rank has said it itself. The status is
    130 after Ctrl-C.
    """
    env = rank_environment(experiment)
    if not alone(experiment):
        from rn50lib import workers

        return workers.run(command, env, say, experiment.elastic)
    process = subprocess.Popen(command, env=env)

    def forward(number: int, frame: FrameType | None) -> None:
        process.send_signal(number)

    earlier = signal.signal(signal.SIGTERM, forward)
    try:
        status = process.wait()
    except KeyboardInterrupt:  # the rank got it too, from the terminal
        status = wait_or_kill(process)
        return (status if status > 0 else 130), None
    finally:
        signal.signal(signal.SIGTERM, earlier)
    if status < 0:
        name = signal.Signals(-status).name
        hint = " (the machine may have run out of memory: try a smaller -b)" if -status == 9 else ""
        return 128 - status, f"rank 0 was killed by signal {-status} ({name}){hint}"
    return status, None


def say(text: str) -> None:
    """A line to the user."""
    print(text, file=sys.stderr, flush=True)


def wait_or_kill(process: subprocess.Popen) -> int:
    """The exit status of a process that was asked to end; one that does not is killed."""
    try:
        return process.wait(GRACE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def die_with_parent() -> None:
    """Called by a rank at its start: it ends when the process that launched it dies (Linux)."""
    parent = os.environ.get(PARENT)
    if not parent or sys.platform != "linux":
        return
    set_death_signal = 1  # PR_SET_PDEATHSIG
    ctypes.CDLL(None).prctl(set_death_signal, signal.SIGTERM, 0, 0, 0)
    if os.getppid() != int(parent):  # it died before we asked
        sys.exit("error: the launching process is gone")


def end_with(work: Callable[[], int]) -> NoReturn:
    """Do a worker's work and end its process, without taking the interpreter apart first.

    The threads of a group (Gloo's, DDP's) may still hold Python objects then, and one that lets go
    of its object while the interpreter ends aborts the process: a run that had succeeded would fail
    with "terminate called without an active exception".
    """
    try:
        status = work()
    except SystemExit as leaving:
        status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        if isinstance(leaving.code, str):
            print(leaving.code, file=sys.stderr)
    except BaseException:
        traceback.print_exc()
        status = 1
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)
