"""Start the workers of a run through torchrun, horovodrun or mpirun, and end them together.

`rn50 run` is the thin parent of the launcher: each worker registers in a folder
(`rn50lib.lifetime`), and when one fails, all are ended. The earliest end of a worker names the
cause: its record, or the signal that killed it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from rn50.allocator import ALLOCATOR, spins
from rn50lib.config import Resolved, TrainConfig, slots
from rn50lib.distributed.launch_env import RANKS
from rn50lib.errors import TERMINATED, Remedy, UserError
from rn50lib.lifetime import GROUP, PARENT, SUPERVISED, end_with_parent, is_running

if TYPE_CHECKING:
    import psutil  # one worker alone does not need it

WORKER = ["-m", "rn50lib.train", "--config"]  # and the file of its configuration

# mpirun passes these environment variables to workers on other hosts, and nothing else
FORWARDED = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "GLIBC_TUNABLES", "OMP_NUM_THREADS",
             "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "MKL_NUM_THREADS", "PYTHONUNBUFFERED",
             "PYTHONWARNINGS", "TF_CPP_MIN_LOG_LEVEL")  # fmt: skip

SAVE_S = 60.0  # after SIGTERM: the workers write a checkpoint
GRACE_S = 5.0  # after a worker failed, or Ctrl-C: the others may end by themselves
LAUNCHER_S = 8.0  # after SIGTERM a launcher ends the workers on other hosts
POLL_S = 0.1
WAITED_S = 5.0  # an error after a longer wait for other ranks is a timeout
KEPT_LINES = 200
SEEN_S = 1.0  # a worker that was killed may be seen so much later than an error that it caused
ASKING = (signal.SIGTERM, signal.SIGINT)  # from launchers, to the others, when one has failed
ASKED = (TERMINATED, 130)  # the statuses of workers that were asked to end

# what launchers put before a worker's line: '[1,0]<stdout>:', '[0]<stderr>:', '[default0]:'
TAG = re.compile(r"^\[(?:\d+,|default)?(\d+)\](?:<std(?:out|err)>)?:")
TAG_AT_END = re.compile(r"(?<=.)\[\d+,\d+\]<std(?:out|err)>:$")  # mpirun's, of an empty piece


# --- run folders ----------------------------------------------------------------------------------


def runs_home() -> Path:
    """Return `$RN50_RUNS`, or `runs/` in the current folder."""
    return Path(os.environ.get("RN50_RUNS") or "runs").absolute()


def new_run(name: str) -> Path:
    """Make the folder `runs/<UTC time>-<name>` and return it. Raises UserError."""
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    folder = first = runs_home() / f"{stamp}-{name}"
    numbers = itertools.count(1)
    while True:
        try:
            folder.mkdir(parents=True)
            return folder
        except FileExistsError:
            folder = first.with_name(f"{first.name}-{next(numbers)}")
        except OSError as error:
            raise UserError(
                f"{folder} cannot be made ({error.strerror}): set RN50_RUNS to a folder that you"
                " may write to"
            ) from error


# --- command lines and environment ----------------------------------------------------------------


def is_local(hosts: str | None) -> bool:
    """Return True if all workers run on this machine."""
    return hosts is None or all(name in ("localhost", "127.0.0.1") for name in slots(hosts))


def alone(config: TrainConfig) -> bool:
    """Return True if the run is one process that needs no launcher."""
    return config.n == 1 and config.launcher is None


def launcher_command(
    config: TrainConfig, worker: list[str], folder: Path | None = None
) -> list[str]:
    """Return the command that starts `worker` once per rank. torchrun's logs go to `folder`."""
    if alone(config):
        return worker
    if config.launcher == "torchrun":
        return torchrun(config.n, worker, folder)
    if config.launcher == "mpirun":
        return mpirun(config, worker)
    return horovodrun(config.n, worker, config.hosts)


def horovodrun(n: int, worker: list[str], hosts: str | None = None) -> list[str]:
    """Return the command line of horovodrun, with Gloo."""
    argv = [sys.executable, "-m", "rn50.horovodrun", "--gloo", "-np", str(n)]
    argv += ["--disable-cache"]  # it would be in HOME, which may not exist
    argv += ["-H", hosts or f"localhost:{n}"]
    if is_local(hosts):
        argv += ["--network-interface", "lo"]
    # it would read a worker's `--network` as its own
    flags = any(word.startswith("-") for word in worker[2:])
    return [*argv, *(["env", "-S", shlex.join(worker)] if flags else worker)]


def mpirun(config: TrainConfig, worker: list[str]) -> list[str]:
    """Return the command line of Open MPI, as in the classic recipe.

    `-bind-to none -map-by slot` leaves the threads to the workers, `-x` passes variables on, and
    `pml ob1` keeps MPI's transport plain. `btl ^openib` names a transport that no longer exists.
    """
    hosts = config.hosts or f"localhost:{config.n}"
    argv = ["mpirun", "-np", str(config.n), "-H", hosts]
    argv += ["-bind-to", "none", "-map-by", "slot", "-mca", "pml", "ob1", "--tag-output"]
    if is_local(config.hosts) and shutil.which("ssh") is None:
        argv += ["-mca", "plm", "isolated"]  # without it mpirun insists on finding ssh
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        argv += ["--allow-run-as-root"]
    argv += ["--oversubscribe"]  # `worker_rules` has counted; MPI miscounts inside containers
    for name in sorted([*rank_environment(config), GROUP]):
        if name in FORWARDED or name.startswith(("RN50_", "HOROVOD_", "NCCL_")):
            argv += ["-x", name]
    return [*argv, *worker]


def torchrun(n: int, worker: list[str], folder: Path | None = None) -> list[str]:
    """Return the command line of torchrun, which tags lines that it reads from logs."""
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(n)]
    argv += ["--standalone"]  # it finds a free port by itself
    if folder is not None:
        argv += ["--log-dir", str(folder / "torchrun"), "--tee", "3"]
    return [*argv, "--no-python", *worker]


def program(verb: str) -> list[str]:
    """Return the command that runs `rn50 VERB` with this interpreter, installed or not."""
    return [sys.executable, "-m", "rn50", verb]


def with_library(env: dict[str, str]) -> dict[str, str]:
    """Return the environment in which a child finds this library, also from a bare checkout."""
    here = str(Path(__file__).resolve().parent.parent)
    paths = [p for p in env.get("PYTHONPATH", "").split(os.pathsep) if p]
    if here not in paths:
        paths = [here, *paths]
    env = {**env, "OBJC_DISABLE_INITIALIZE_FORK_SAFETY": "YES"}  # macOS may abort forks otherwise
    return {**env, "PYTHONPATH": os.pathsep.join(paths), **spins(env)}


def rank_environment(config: TrainConfig) -> dict[str, str]:
    """Return the environment of each worker: threads, allocator, and Horovod's settings."""
    env = with_library(dict(os.environ))
    env |= {
        "OMP_NUM_THREADS": str(config.threads),
        "MKL_NUM_THREADS": str(config.threads),
        "PYTHONUNBUFFERED": "1",
        # a worker that is killed leaves semaphores: Python removes them, and warns that it does
        "PYTHONWARNINGS": ",".join(
            filter(None, [env.get("PYTHONWARNINGS"), "ignore:resource_tracker:UserWarning"])
        ),
        "TF_FORCE_GPU_ALLOW_GROWTH": "true",  # other processes need memory too
        "TF_CPP_MIN_LOG_LEVEL": env.get("TF_CPP_MIN_LOG_LEVEL", "2"),
        # workers wait for each other while they start, which takes long on a busy machine
        "HOROVOD_GLOO_TIMEOUT_SECONDS": env.get("HOROVOD_GLOO_TIMEOUT_SECONDS", "120"),
    }
    env.pop(PARENT, None)
    if sys.platform == "linux" and "glibc.malloc" not in env.get("GLIBC_TUNABLES", ""):
        env["GLIBC_TUNABLES"] = ":".join(filter(None, [env.get("GLIBC_TUNABLES"), ALLOCATOR]))
    return env


def check_hosts(hosts: str | None) -> None:
    """Raise UserError for a host without an address: the launchers print a traceback instead."""
    for host in slots(hosts) if hosts else ():
        try:
            socket.getaddrinfo(host, None)
        except OSError as error:
            raise UserError(
                f"--hosts {hosts}: {host} has no address ({error.strerror}): check its"
                " spelling, DNS and /etc/hosts"
            ) from error


# --- running --------------------------------------------------------------------------------------


class Outcome(NamedTuple):
    """The exit status of a run for the user, and what failed.

    `failure` is None if nothing failed, or if a lone worker has printed its traceback itself.
    `remedy` is that of a worker's UserError.
    """

    status: int
    failure: str | None
    remedy: Remedy = ()


def run(resolved: Resolved, run_dir: Path) -> int:
    """Run the workers of a configuration to their end and return the exit status for the user.

    After a failure, --max-restarts restarts all of them from the newest checkpoint. A run that was
    not asked to compile starts again without that if it fails.
    """
    for left in range(resolved.config.max_restarts, -1, -1):
        config = resolved.config
        status, failure, remedy = run_once(resolved, run_dir)
        again = replace(resolved, config=replace(config, resume=True, load_epoch=None))
        if "compile" in remedy and resolved.reasons.get("compile") != "given":
            say(f"starting again: {failure}")
            return run(again.chosen("compiling failed", compile=False), run_dir)
        if failure:
            say(f"error: {failure}")
        elif status == TERMINATED or (status == 130 and not alone(config)):
            say("interrupted" if status == 130 else "ended by SIGTERM")
        if status in (0, 2, 130, TERMINATED) or not left:  # 2: bad input fails again
            break
        say(f"restarting {config.n} worker{'s' if config.n != 1 else ''} from the newest checkpoint"
            f" ({left} restart{'s' if left > 1 else ''} left)")  # fmt: skip
        resolved = again
    return status


def run_once(resolved: Resolved, run_dir: Path) -> Outcome:
    """Write RUN/experiment.json and run the workers that read it to their end.

    The status is 130 after Ctrl-C, 143 after SIGTERM.
    """
    config, file = resolved.config, run_dir / "experiment.json"
    worker = [sys.executable, *WORKER, str(file.absolute())]
    if not alone(config):
        worker = [*SUPERVISED, *worker]  # a parent that records how it ended
    command = launcher_command(config, worker, run_dir)
    resolved.write(file, command)
    received: list[int] = []
    earlier = {
        number: signal.signal(number, lambda number, frame: received.append(number))
        for number in (signal.SIGTERM, signal.SIGINT)
    }
    # hosts share the folder of a run, not that of temporary files
    shared = None if is_local(config.hosts) else run_dir.absolute()
    try:
        with tempfile.TemporaryDirectory(prefix=".workers-", dir=shared) as folder:
            group = WorkerGroup(command, rank_environment(config), Path(folder), alone(config))
            try:
                group.wait(received)
            finally:
                group.end()
            return Outcome(128 + received[0], None) if received else group.outcome()
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


class WorkerGroup:
    """A running launcher, or a worker that is `alone`, and the workers that have registered.

    `show` receives each line of the workers; a lone worker writes to this process's streams.
    """

    def __init__(
        self, command: list[str], env: dict[str, str], folder: Path, alone: bool = False,
        show: Callable[[str], None] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        self.folder, self.alone, self.show = folder, alone, show or say
        self.words: deque[str] = deque(maxlen=KEPT_LINES)  # the launcher's own
        self.registered: set[int] = set()
        self.running: dict[int, psutil.Process] = {}  # by rank, on this host
        self.gone: dict[int, float] = {}  # by rank: when its process was found to have ended
        self.waiting: list[int] = []  # the ranks that did not end by themselves
        streams: dict[str, Any] = {}
        # those of a launcher that has started this process would be taken for the workers' own
        env = {name: value for name, value in env.items() if name not in RANKS}
        env |= {GROUP: f"{socket.gethostname()}:{os.getpid()}:{folder}"}
        if not alone:
            streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT,
                       "preexec_fn": end_with_parent}  # fmt: skip
        # Ctrl-C reaches this process alone, and stays blocked in a worker while that loads
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            self.process = subprocess.Popen(
                command, env=env, stdin=subprocess.DEVNULL, start_new_session=True,
                **streams | options,
            )  # fmt: skip
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self) -> None:
        for raw in self.process.stdout or ():
            line = TAG_AT_END.sub("", raw.decode(errors="replace").rstrip("\n"))
            text, tagged = TAG.subn(r"rank \1 | ", line)
            self.show(text) if tagged else self.words.append(text)

    def look(self, after_s: float = 0.0) -> None:
        """Find workers that have registered, and those of this host that have ended."""
        time.sleep(after_s)
        if self.alone:  # this process waits for it
            return
        import psutil

        for file in self.folder.glob("*.started"):
            rank = int(file.stem)
            if rank not in self.registered:
                self.registered.add(rank)
                started = json.loads(file.read_text())
                if started["host"] == socket.gethostname():
                    try:
                        self.running[rank] = psutil.Process(started["pid"])
                    except psutil.NoSuchProcess:
                        self.gone[rank] = time.time()
        for rank, process in [*self.running.items()]:
            if not (process.is_running() and is_running(process.pid)):
                self.gone[rank] = time.time()
                del self.running[rank]

    def ends(self) -> dict[int, SimpleNamespace]:
        """Return the status, time and text of those workers that have recorded their end."""
        found = {int(file.stem): file.read_text() for file in self.folder.glob("*.ended")}
        return {rank: SimpleNamespace(**json.loads(text)) for rank, text in found.items()}

    def failed(self) -> bool:
        """Return True if a worker failed or was killed."""
        ends = self.ends()
        return any(end.status for end in ends.values()) or not ends.keys() >= self.gone.keys()

    def wait(self, received: list[int]) -> None:
        """Wait until the workers have ended, one has failed, or a signal was `received`."""
        while not (received or self.failed() or self.process.poll() is not None):
            self.look(POLL_S)
        if received[:1] == [signal.SIGINT]:
            self.show = lambda line: None  # the workers complain about each other's end
        if received:
            self.signal_workers(received[0])
        asked = [*received] or [end.status - 128 for end in self.ends().values() if end.status]
        until = time.monotonic() + (SAVE_S if asked[:1] == [signal.SIGTERM] else GRACE_S)
        while (self.running or self.process.poll() is None) and (
            time.monotonic() < until and signal.SIGINT not in received[1:]
        ):
            self.look(POLL_S)
        self.waiting = sorted(self.registered - self.ends().keys())

    def signal_workers(self, number: int) -> None:
        """Send a signal to the workers on this host, or to the launcher if there are none."""
        if not self.running:
            with contextlib.suppress(ProcessLookupError):
                self.process.send_signal(number)
            return
        import psutil

        for process in [*self.running.values()]:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(number)

    def end(self) -> None:
        """Kill the workers that are left on this host; then the launcher ends, or is ended."""
        self.look()
        if self.running:
            self.signal_workers(signal.SIGKILL)
        for seconds, number in ((1.0, signal.SIGTERM), (LAUNCHER_S, signal.SIGKILL), (None, 0)):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
                break
            self.process.send_signal(number)
        self.reader.join(1.0)

    def outcome(self) -> Outcome:
        """Return the exit status for the user, and what failed first and why."""
        status, ends = self.process.returncode, self.ends()
        if self.alone and status < 0:
            return Outcome(128 - status, killed(0, -status))
        if status == 0:
            return Outcome(status, None)
        if self.alone and (status != 2 or 0 not in ends):
            return Outcome(status, None)
        if self.alone:
            return Outcome(status, message(ends[0]), ends[0].remedy)
        # the kernel closes a killed worker's connections before it wakes the worker's parent
        found = [
            (end.time - SEEN_S * (end.signal not in (0, *ASKING)), self.end_of(rank, end))
            for rank, end in ends.items()
            if end.status
        ]
        lost = f"ended without a record (was it killed?):\n{self.last_words()}"
        found += [
            (at - SEEN_S, Outcome(1, f"rank {rank} {lost}"))
            for rank, at in self.gone.items()
            if rank not in ends
        ]
        if not found:
            return Outcome(abs(status), f"the launcher failed:\n{self.last_words()}")
        return min(found, key=lambda one: one[0])[1]

    def end_of(self, rank: int, end: SimpleNamespace) -> Outcome:
        """Return the outcome for a rank that has recorded its end."""
        text = message(end)
        if end.signal:  # 143 and 130 promise that the worker ended by itself
            return Outcome(1 if end.status in ASKED else end.status, killed(rank, end.signal))
        if end.status in (*ASKED, 2):  # 2: bad input
            failure = f"rank {rank}: {text}" if end.status == 2 else None
            return Outcome(end.status, failure, end.remedy)
        failure = f"rank {rank} ended with status {end.status}"
        failure += f":\n{text}" if text else " without an error message"
        if end.waited > WAITED_S:
            who = f"rank {', '.join(map(str, self.waiting))}" if self.waiting else "a rank"
            failure += (
                f"\nerror: {who} did not answer within --comm-timeout: it hangs, or its host or"
                " network is down; continue with --resume"
            )
        return Outcome(end.status, failure)

    def last_words(self) -> str:
        """Return the last lines that the launcher wrote itself."""
        return "\n".join([line for line in self.words if line.strip()][-20:])


def message(end: SimpleNamespace) -> str:
    """Return the error of a recorded end with its remedy, or its traceback."""
    return str(UserError(end.text, end.remedy)).rstrip()


def killed(rank: int, number: int) -> str:
    """Return the message for a worker that a signal has killed."""
    text = f"rank {rank} was killed by signal {number} ({signal.Signals(number).name})"
    if number == signal.SIGKILL:
        text += " (the machine may have run out of memory: try a smaller -b)"
    return text


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def warn_of_load() -> None:
    """Print a line if other programs lengthen what is about to be measured."""
    load, cores = os.getloadavg()[0], os.cpu_count() or 1  # both of the host
    if load > cores:
        say(f"load {load:.1f} on {cores} cores: other programs lengthen the times below")
