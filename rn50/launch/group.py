"""Runs the workers of a job to their end: shows what they write, tells who failed first and why,
and leaves none behind.

A launcher's own account of a failure buries the cause: the surviving workers complain that somebody
has gone, and the launcher sums that up. What counts is the worker that ended first.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from rn50.launch.launchers import SAVE_S, Outcome, killed
from rn50lib.distributed.launch_env import ENDS, KEPT, LAUNCHING, REPORT, SIGN, End, follow_parent
from rn50lib.errors import TERMINATED

JOB = "RN50_JOB"  # marks every process of a job, whatever launcher is between
PREFIX = re.compile(r"^\[\d+(?:,\d+)?\]<std(?:out|err)>:")  # what horovodrun puts before a line
WATCHER = ["-m", "rn50lib.distributed.launch_env"]
LINE = re.compile(r"^rank \d+ \| ")
FOLLOW_S = 2.0  # the others have this long to end by themselves after the first has failed
SILENT_S = 30.0  # a worker of which there was no sign for so long is lost: each gives one every 5 s
LOOK_S = 0.05
TERM_S = 1.0  # between asking processes to end and ending them


@dataclass
class Job:
    """A running launcher, what its workers have written lately, and how they ended."""

    process: subprocess.Popen
    name: str
    folder: Path  # where workers of this machine report their end
    launcher: deque[str] = field(default_factory=lambda: deque(maxlen=KEPT))
    reported: list[End] = field(default_factory=list)  # by workers of other machines
    waited: float = 0.0  # seconds; a time in which this process was stopped is none
    # by rank: its host, and what `waited` was at its last sign
    signs: dict[int, tuple[str, float]] = field(default_factory=dict)

    def ends(self) -> list[End]:
        """The workers that have failed so far, the first one first; those that were asked to end,
        as launchers do once another has failed, come last."""
        here = [End(**json.loads(file.read_text())) for file in self.folder.glob("*.json")]
        on_request = (-signal.SIGTERM, TERMINATED)
        return sorted([*here, *self.reported], key=lambda end: (end.status in on_request, end.time))

    def silent(self) -> dict[int, str]:
        """The ranks that give no sign, once one has given none for SILENT_S, with their hosts."""
        ages = {rank: self.waited - at for rank, (_, at) in sorted(self.signs.copy().items())}
        if max(ages.values(), default=0) < SILENT_S:
            return {}
        # the others of its host were heard of a moment later
        return {rank: self.signs[rank][0] for rank, age in ages.items() if age > SILENT_S / 2}


def run(command: list[str], env: dict[str, str], show: Callable[[str], None]) -> Outcome:
    """Start a launcher and wait. `show` gets every line of the workers.

    Ctrl-C ends all workers at once, with the status 130; SIGTERM asks them to write a checkpoint
    first, with the status 143.
    """
    with tempfile.TemporaryDirectory(prefix="rn50-") as folder:
        return run_in(Path(folder), command, env, show)


def run_in(
    folder: Path, command: list[str], env: dict[str, str], show: Callable[[str], None]
) -> Outcome:
    name = f"{os.getpid()}-{time.time_ns():x}"
    here = f"{socket.gethostname()}:{os.getpid()}"
    env = env | {JOB: name, LAUNCHING: here, ENDS: str(folder)}
    process = subprocess.Popen(
        command,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,  # Ctrl-C comes to us alone, and we end the rest
        preexec_fn=follow_parent,
    )
    job = Job(process, name, folder)
    reader = threading.Thread(target=read, args=(job, show), daemon=True)
    reader.start()
    received: list[int] = [signal.SIGINT]

    def stop(number: int, frame: object) -> None:
        received[0] = number
        raise KeyboardInterrupt

    earlier = signal.signal(signal.SIGTERM, stop)
    try:
        wait(job)
    except KeyboardInterrupt:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if received[0] == signal.SIGTERM:
            ask_to_stop(job)
            reader.join(TERM_S)
        return Outcome(128 + received[0], None)
    finally:
        signal.signal(signal.SIGTERM, earlier)
        end_all(job)
    reader.join(TERM_S)
    return account(job)


def read(job: Job, show: Callable[[str], None]) -> None:
    """Sort the launcher's output: the workers' lines, their ends, its own words."""
    assert job.process.stdout
    for raw in job.process.stdout:
        text = PREFIX.sub("", raw.decode(errors="replace").rstrip("\n"))
        if REPORT in text:
            with contextlib.suppress(ValueError, TypeError):
                job.reported.append(End(**json.loads(text[text.index(REPORT) + 1 :])))
            continue
        if SIGN in text:
            with contextlib.suppress(ValueError):  # a launcher may cut a line
                rank, *host = text[text.index(SIGN) + 1 :].split()
                job.signs[int(rank)] = ("".join(host), job.waited if host else math.inf)
            continue
        if LINE.match(text):
            show(text)
        else:
            job.launcher.append(text)


def wait(job: Job) -> None:
    """Return when the launcher has ended, when a worker failed and the rest had its time, or when
    one gives no sign any more."""
    while job.process.poll() is None and not job.silent():
        if ends := job.ends():
            if ends[0].status >= 0:  # it has said why; the others may add to it
                with contextlib.suppress(subprocess.TimeoutExpired):
                    job.process.wait(FOLLOW_S)
            return
        time.sleep(LOOK_S)
        job.waited += LOOK_S


def ask_to_stop(job: Job) -> None:
    """Hand SIGTERM on, and wait until the workers have written their checkpoint.

    The launchers would not give them the time. One worker that was asked is enough; where none is
    on this machine, the launcher has to ask.
    """
    watching = [p for p in processes(job.name) if (p.info["cmdline"] or [])[1:3] == WATCHER]
    for process in watching or [psutil.Process(job.process.pid)]:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    with contextlib.suppress(subprocess.TimeoutExpired):
        job.process.wait(SAVE_S)


def processes(name: str) -> list[psutil.Process]:
    """Every process of a job on this machine but this one."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(JOB) == name:
                found.append(process)
    return found


def end_all(job: Job) -> None:
    """End every process of the job: ask, wait, insist."""
    left = processes(job.name)
    for insist in (False, True):
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill() if insist else process.terminate()
        _, left = psutil.wait_procs(left, timeout=TERM_S)
        left = [*left, *(p for p in processes(job.name) if p not in left)]
        if not left:
            break
    with contextlib.suppress(subprocess.TimeoutExpired):
        job.process.wait(TERM_S)


def account(job: Job) -> Outcome:
    """How it ended: the exit status for the user, what failed, and who was lost."""
    status = job.process.returncode
    ends = job.ends()
    if silent := job.silent():
        return Outcome(1, no_sign(silent), tuple(silent))
    if status == 0 and not ends:
        return Outcome(0, None)
    if not ends:  # the launcher failed before any worker did
        lines = [line for line in job.launcher if line.strip()]
        return Outcome(abs(status or 1), "\n".join(["the launcher failed:", *lines[-20:]]))
    first = ends[0]
    if first.status > 0:  # whoever fails leaves the group before its process ends: another one that
        failed = [end for end in ends if 0 < end.status != TERMINATED]  # misses it may be quicker
        first = min(failed, key=lambda end: end.said or end.time, default=first)
    lines = first.lines
    lost = tuple(e.rank for e in ends if e.status < 0 and -e.status != signal.SIGTERM)
    if first.status < 0:
        return Outcome(128 - first.status, killed(first.rank, -first.status), lost[:1])
    if first.status == TERMINATED:  # somebody has asked the workers, and not this process
        return Outcome(TERMINATED, None)
    if first.status == 2 and lines and lines[-1].startswith("error: "):
        return Outcome(2, f"rank {first.rank}: {lines[-1].removeprefix('error: ')}")
    whole = [f"rank {first.rank} ended with status {first.status}:", *traceback_of(lines)]
    return Outcome(first.status, "\n".join(whole), lost)


def no_sign(silent: dict[int, str]) -> str:
    """What the user is told of workers that are not heard of."""
    ranks = f"rank{'s' if len(silent) > 1 else ''} {', '.join(map(str, silent))}"
    return (
        f"no sign of {ranks} on {' and '.join(sorted(set(silent.values())))} for {SILENT_S:.0f} s:"
        " the host is down, or the network to it; go on with --resume (with --elastic the others go"
        " on by themselves)"
    )


def traceback_of(lines: list[str]) -> list[str]:
    """The last traceback among a worker's lines, or its last lines."""
    lines = [re.sub(r"^\[rank\d+\]: ", "", line) for line in lines]  # PyTorch's own mark
    for i in range(len(lines) - 1, -1, -1):
        if lines[i].startswith("Traceback (most recent call last)"):
            return lines[i:]
    return lines[-5:]
