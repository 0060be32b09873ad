"""Starts the workers of a run, or their launcher: they read its configuration from a file."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import FrameType

from rn50.launch import launchers
from rn50.launch.launchers import (
    ALLOCATOR,
    SAVE_S,
    Outcome,
    killed,
    program,
    rank_environment,
    with_library,
)
from rn50.workers import is_local
from rn50lib.config import Config, Experiment
from rn50lib.config.kinds import slots
from rn50lib.errors import TERMINATED, UserError

__all__ = ["ALLOCATOR", "program", "rank_environment", "with_library"]

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=10")
GRACE_S = 5.0  # between asking a process to end and ending it


def runs_home() -> Path:
    """`$RN50_RUNS`, default `runs/` in the current folder."""
    return Path(os.environ.get("RN50_RUNS") or "runs").absolute()


def run_folder(name: str) -> Path:
    """The folder of a run that begins now, `runs/<UTC time>-<name>`."""
    return runs_home() / f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{name}"


def new_run(name: str) -> Path:
    """Make and return a new `run_folder`. Raises UserError where it cannot."""
    first = run_folder(name)
    for attempt in range(1000):
        folder = first.with_name(first.name + (f"-{attempt}" if attempt else ""))
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


def run(config: Config, run_dir: Path) -> int:
    """Run the workers of a whole configuration to their end; returns the exit status for the user.

    A worker killed by a signal is named on stderr, and the status is 128 + the signal, as a shell
    would say. When workers are lost, the run goes on from its newest checkpoint: with --elastic
    with those that are left, with --max-restarts with as many as before, so often.
    """
    restarts = config.experiment.max_restarts
    while True:
        outcome = run_once(config, run_dir)
        if outcome.status in (0, 2, 130, TERMINATED):  # done, bad input, or the user ended it
            return outcome.status
        lost = outcome.lost or out_of_reach(config.experiment)
        left = left_of(config.experiment, lost)
        if left is None and restarts == 0:
            return outcome.status
        if left is None:
            left, restarts = config.experiment, restarts - 1
        many = f"{left.n} workers go" if left.n > 1 else "one worker goes"
        say(f"{many} on from the newest checkpoint")
        reasons = dict(config.reasons)
        if left.n != config.experiment.n:
            reasons["n"] = f"left of {config.experiment.n}, as a worker was lost"
        experiment = replace(left, resume=True, load_epoch=None)
        config = replace(config, experiment=experiment, reasons=reasons)


def out_of_reach(experiment: Experiment) -> tuple[int, ...]:
    """The ranks on hosts that do not answer any more; the user is told of them. Nobody else says
    it: the workers that are left complain of what they were just doing, and so does the launcher.
    """
    if is_local(experiment.hosts) or shutil.which("ssh") is None:
        return ()
    lost: list[int] = []
    first = 0
    for host, number in slots(experiment.hosts or "").items():
        command = [*SSH, host, "true"]
        if (
            not is_here(host)
            and subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True).returncode
        ):
            say(f"{host} does not answer: `{' '.join(command)}` fails")
            lost += range(first, min(first + number, experiment.n))
        first += number
    return tuple(lost)


def check_hosts(experiment: Experiment) -> None:
    """Raise UserError for a host that ssh finds no name or no route for: the launchers answer with
    a traceback. Anything else that ssh may fail at, such as a host key, is left to them, and so is
    the route with mpirun, which in a Slurm job needs no ssh."""
    if is_local(experiment.hosts) or shutil.which("ssh") is None:
        return
    hosts = [host for host in slots(experiment.hosts or "") if not is_here(host)]
    processes = [
        subprocess.Popen(
            [*SSH, host, "true"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True,
        )
        for host in hosts
    ]  # fmt: skip
    lines = [line for process in processes for line in process.communicate()[1].splitlines()]
    wanted = "ssh: Could not resolve" if experiment.launcher == "mpirun" else "ssh: "
    if problems := [line.removeprefix("ssh: ") for line in lines if line.startswith(wanted)]:
        raise UserError(
            f"--hosts {experiment.hosts}: {'; '.join(problems)}: every host must be one that `ssh`"
            " reaches from here"
        )


def is_here(host: str) -> bool:
    """Whether a host's name is this machine's."""
    with socket.socket() as any_port:
        try:
            any_port.bind((host, 0))
            return True
        except OSError:
            return False


def left_of(experiment: Experiment, lost: tuple[int, ...]) -> Experiment | None:
    """An elastic run on the workers that it has left; None where these are too few."""
    n = experiment.n - max(1, len(lost))
    if not experiment.elastic or n < (experiment.min_np or 1):
        return None
    if experiment.hosts:
        hosts = [host for host, number in slots(experiment.hosts).items() for _ in range(number)]
        kept = [host for rank, host in enumerate(hosts) if rank not in (lost or (0,))]
        found = {host: kept.count(host) for host in kept}
        named = ",".join(f"{host}:{number}" for host, number in found.items())
        experiment = replace(experiment, hosts=named)
    return replace(experiment, n=n)


def run_once(config: Config, run_dir: Path) -> Outcome:
    """Write RUN/experiment.json and run the workers that read it to their end, however that
    comes."""
    experiment, file = config.experiment, run_dir / "experiment.json"
    worker = [sys.executable, "-m", "rn50lib.train", "--config", str(file.absolute())]
    command = launchers.command(experiment, worker, run_dir)
    config.write(file, command)
    outcome = run_command(command, experiment, say)
    if outcome.failure:
        say(f"error: {outcome.failure}")
    elif outcome.status == 130 and not launchers.alone(experiment):
        say("interrupted")
    elif outcome.status == TERMINATED:
        say("ended by SIGTERM")
    return outcome


def run_command(
    command: list[str], experiment: Experiment, show: Callable[[str], None] | None = None
) -> Outcome:
    """Run what `launchers.command` gave to its end, with signals handed on; the status is 130 after
    Ctrl-C. `show` gets the lines of several workers (default: they are printed)."""
    env = rank_environment(experiment)
    if not launchers.alone(experiment):
        from rn50.launch import group

        return group.run(command, env, show or say)
    received: list[int] = []
    # In a session of its own: Ctrl-C comes to us alone, and is handed on once. It stays blocked in
    # the worker while that loads; `train.main` lets it in.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        process = subprocess.Popen(
            command, env=env, stdin=subprocess.DEVNULL, start_new_session=True
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    def forward(number: int, frame: FrameType | None) -> None:
        received.append(number)
        process.send_signal(number)

    earlier = {n: signal.signal(n, forward) for n in (signal.SIGTERM, signal.SIGINT)}
    try:
        while not received and process.poll() is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.5)
        status = wait_or_kill(process, SAVE_S if signal.SIGTERM in received else GRACE_S)
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)
    if received:
        return Outcome(128 + received[0], None)
    if status < 0:
        return Outcome(128 - status, killed(0, -status), (0,))
    return Outcome(status, None)


def say(text: str) -> None:
    """A line to the user."""
    print(text, file=sys.stderr, flush=True)


def wait_or_kill(process: subprocess.Popen, seconds: float) -> int:
    """The exit status of a process that was asked to end; one that does not is killed."""
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
