"""Many workers as a user meets them: started by each launcher, in step, and ended together."""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from rn50 import installed, launch
from rn50lib import checkpoint, lifetime
from rn50lib.distributed import launch_env
from rn50lib.distributed.launch_env import LaunchEnv
from tests.conftest import clean_environment
from tests.support import LAPTOP, TINY, Photos, full, strict_json, timeless

PATIENCE = 120.0  # seconds for things that take a few when the machine is idle
ENDLESS = ("-e", "100000", "--disp-batches", "1", "--no-val")
FLAGS = {
    "alone": (),  # one process, without a launcher
    "horovodrun": ("--comm", "horovod"),
    "mpirun": ("--comm", "horovod", "--launcher", "mpirun"),
    "torchrun": ("--comm", "ddp"),
}
LARGE = pytest.mark.acceptance  # the same again with a different launcher
LAUNCHERS = [
    pytest.param("horovodrun", marks=pytest.mark.needs("horovod")),
    pytest.param("mpirun", marks=pytest.mark.needs("horovod_mpi")),
    pytest.param("torchrun", marks=pytest.mark.needs("torch")),
]


ALONE = pytest.param("alone", marks=pytest.mark.needs("torch"))


def once(launcher: str) -> list:
    """Return one launcher for `make test`; the others are for `make acceptance`."""
    return [
        pytest.param(*p.values, marks=[*p.marks, *([] if p.values == (launcher,) else [LARGE])])
        for p in LAUNCHERS
    ]


# --- command lines --------------------------------------------------------------------------------


def test_the_classic_mpirun_line() -> None:
    """The flags of the slides that still have an effect are used."""
    argv = launch.mpirun(full(n=2, comm="horovod", launcher="mpirun"), ["worker", "--flag"])
    text = " ".join(argv)
    assert text.startswith("mpirun -np 2 -H localhost:2 -bind-to none -map-by slot -mca pml ob1")
    assert argv[-2:] == ["worker", "--flag"]
    assert "-x PATH" in text and "openib" not in text


def test_horovodrun_does_not_read_the_flags_of_its_workers() -> None:
    """It would read `--network tiny` as its own --network-interface."""
    done = full(n=2, comm="horovod", launcher="horovodrun")
    argv = launch.launcher_command(done, [sys.executable, "-c", "import sys; print(sys.argv)",
                                          "--network", "a b", "--config"])  # fmt: skip
    assert argv[argv.index("-np") + 1] == "2" and "--network-interface" in argv
    assert shlex.split(argv[-1])[-3:] == ["--network", "a b", "--config"]
    elsewhere = full(n=2, comm="horovod", launcher="horovodrun", hosts="a:1,b:1")
    assert "--network-interface" not in launch.launcher_command(elsewhere, ["x"])


def test_torchrun_on_several_hosts_is_refused(rn50: Callable, photos: Photos) -> None:
    error = rn50("run", "--data-root", photos.root, "-n", "3", "--comm", "ddp", "--hosts",
                 "localhost:2,127.0.0.2:1", "-b", "8").error  # fmt: skip
    assert "start `rn50 train` with torchrun on each host" in error


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-n", "5", "--comm", "ddp"), "-n 5: this machine has"),
        (("-n", "3", "--hosts", "localhost:2", "--comm", "ddp"), "too few slots"),
        (("-n", "2", "--hosts", "a:0"), "--hosts"),
        (("-n", "2", "--hosts", "a:1,a:1"), "each named once"),
        (("-n", "2", "--comm", "local"), "local is one worker"),
        (("-n", "2", "--comm", "ddp", "--launcher", "mpirun"), "horovod with the other"),
        (("-n", "2", "--comm", "ddp", "--backend", "tensorflow"), "DDP is PyTorch's"),
        (("-n", "1", "--comm-timeout", "9"), "--comm-timeout is for many workers"),
        (("-n", "2", "--hosts", "localhost:1,nowhere.invalid:1"), "nowhere.invalid has no address"),
        (("--checkpoint-steps", "5", "--set", "step=100"), "contradict each other"),
    ],
)
def test_impossible_groups_are_refused(
    rn50: Callable, photos: Photos, flags: tuple[str, ...], words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if flags[1] == "5":
        monkeypatch.setattr("rn50.autoconfig.machine", lambda: LAPTOP)
    assert words in rn50("run", "--data-root", photos.root, *flags).error


def test_missing_horovod_is_reported(
    rn50: Callable, photos: Photos, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(installed, "horovod_serves", lambda backend: False)
    flags = ("run", "--data-root", photos.root, "-n", "2")
    error = rn50(*flags, "--comm", "horovod").error
    assert "Horovod is not built for torch" in error and "make horovod" in error
    assert "make horovod" in rn50(*flags, "--backend", "tensorflow").error


# --- workers that another launcher has started ----------------------------------------------------

STEP = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, None),
        ({"RANKING": "0"}, None),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
         LaunchEnv("torchrun", 1, 2, 1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8",
          "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
         LaunchEnv("mpirun", 5, 8, 1, 4)),
        (STEP, LaunchEnv("srun", 3, 4, 1, 4)),
        (STEP | {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "3,1",
                 "SLURM_CPUS_PER_TASK": "6"}, LaunchEnv("srun", 3, 4, 1, 1, 6)),
        # srun overrides what sbatch has asked for; a batch script is not a task
        (STEP | {"ENVIRONMENT": "BATCH", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2",
                 "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, LaunchEnv("srun", 1, 2, 1, 1)),
        (STEP | {"ENVIRONMENT": "BATCH"}, None),
        (STEP | {"PMI_RANK": "3", "PMI_SIZE": "4"}, LaunchEnv("srun", 3, 4, 1, 4)),
        # MPICH's launcher, which srun has started once a node, or in a batch script
        (STEP | {"SLURM_STEP_NUM_TASKS": "2", "PMI_RANK": "5", "PMI_SIZE": "8",
                 "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"},
         LaunchEnv("mpiexec", 5, 8, 1, 4)),
        (STEP | {"ENVIRONMENT": "BATCH", "PMI_RANK": "1", "PMI_SIZE": "2"},
         LaunchEnv("mpiexec", 1, 2, 1, 2)),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "PMI_LOCAL_RANK": "0", "PMI_LOCAL_SIZE": "1",
          "PALS_RANKID": "1"}, LaunchEnv("PALS", 1, 4, 0, 1)),
        # torchrun, started once a node by srun
        (STEP | {"RANK": "0", "WORLD_SIZE": "16", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"},
         LaunchEnv("torchrun", 0, 16, 0, 8)),
    ],
)  # fmt: skip
def test_rank_comes_from_the_launcher(env: dict, wanted: Any) -> None:
    assert LaunchEnv.detect(env) == wanted


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("gpu[03-05,09],login", "gpu03"), ("node7", "node7"), ("a,b", "a"),
     ("r[1-2]n[04,06]", "r1n04"), ("n[9,11-12]", "n9"), ("", "")],
)  # fmt: skip
def test_the_first_of_slurm_s_hosts(hosts: str, first: str) -> None:
    assert launch_env.first_host(hosts) == first


def test_the_tasks_of_a_step_meet_at_one_port() -> None:
    told = [
        launch_env.torch_environment(LaunchEnv("srun", r, 4, r % 2, 2),
                                {"SLURM_JOB_NODELIST": "gpu[03-04]", "SLURM_JOB_ID": "4711",
                                 "SLURM_STEP_ID": "0"})
        for r in range(4)
    ]  # fmt: skip
    assert len({env["MASTER_PORT"] for env in told}) == 1
    assert 1024 < int(told[0]["MASTER_PORT"]) < 32768
    job = {"SLURM_JOB_NODELIST": "gpu03", "SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "1"}
    other = launch_env.torch_environment(LaunchEnv("srun", 0, 4, 0, 2), job)
    assert other["MASTER_PORT"] != told[0]["MASTER_PORT"]  # two steps may run at the same time
    assert [env["RANK"] for env in told] == ["0", "1", "2", "3"]
    assert {env["MASTER_ADDR"] for env in told} == {"gpu03"}


@pytest.mark.parametrize(
    ("env", "flags", "words"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, ("-n", "4"), "-n 4: torchrun has started 2 workers"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ("-n", "2"), "-n 2: torchrun has started 1 worker,"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ("--comm", "horovod"), "--comm horovod: torchrun has"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ("--comm", "local"), "local is one worker"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, (), "RANK=2 with WORLD_SIZE=2 is not a valid place"),
        (STEP, ("--backend", "tensorflow"), "--backend tensorflow: srun has started 4 workers"),
    ],
)  # fmt: skip
def test_contradicting_rank_is_refused(
    rn50: Callable, photos: Photos, env: dict, flags: tuple[str, ...], words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert words in rn50("train", "--data-root", photos.root, *TINY, *flags).error


@pytest.mark.slow
@pytest.mark.needs("horovod")
def test_single_worker_with_n_2_is_refused(rn50: Callable, photos: Photos) -> None:
    """No second worker was started: it would train at the learning rate of two."""
    error = rn50("train", "--data-root", photos.root, *TINY, "-n", "2", "--comm", "horovod").error
    assert "horovod has connected 1 worker(s)" in error and "rn50 run -n 2" in error


# --- real runs ------------------------------------------------------------------------------------


def argv_of(photos: Photos, launcher: str, *flags: str) -> list[str]:
    tiny = [flag for flag in TINY if flag != "8"]
    tiny[tiny.index("--batch-size") + 1 : tiny.index("--batch-size") + 1] = ["4"]
    n = "1" if launcher == "alone" else "2"
    return [*launch.program("run"), "--data-root", str(photos.root), *tiny, "-n", n,
            *FLAGS[launcher], *flags]  # fmt: skip


def finish(argv: list[str], folder: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=folder, env=clean_environment(RN50_RUNS=str(folder), **env), text=True,
        capture_output=True, timeout=600, stdin=subprocess.DEVNULL,
    )  # fmt: skip


SLOW = """
import time
from pathlib import Path
from rn50lib.recipe import learning_rate

def schedule(progress, global_batch, recipe):
    if not Path("quick").exists():
        time.sleep(0.3)
    return learning_rate(progress, global_batch, recipe)
"""


def two_epochs(backend: str, folder: Path) -> tuple[str, ...]:
    """Return the flags of a run in `folder`, which is slow unless a file `quick` is there."""
    (folder / "slow.py").write_text(SLOW)
    return ("--backend", backend, "-e", "2", "--lr", "0.4", "--warmup-epochs", "1",
            "--report", "r.json", "--model-prefix", "m", "--disp-batches", "1",
            "--override", "schedule=slow.py:schedule")  # fmt: skip


@pytest.fixture(scope="module")
def undisturbed(
    photos: Photos, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], tuple[Path, str]]:
    """Return the folder of a whole run of two workers, and what it printed; one run for all."""

    @functools.cache
    def run(launcher: str, backend: str) -> tuple[Path, str]:
        folder = tmp_path_factory.mktemp("undisturbed")
        (folder / "quick").touch()
        argv = argv_of(photos, launcher, *two_epochs(backend, folder))
        done = finish(argv, folder, HOROVOD_TIMELINE=str(folder / "t.json"))
        assert done.returncode == 0, done.stderr
        return folder, done.stderr

    return run


@pytest.mark.slow
@pytest.mark.parametrize("launcher", once("mpirun"))
def test_two_workers_train_and_one_scores_the_same(
    launcher: str, undisturbed: Callable[[str, str], tuple[Path, str]]
) -> None:
    """19 validation images on two workers with batches of 4 need padding.

    One process that scores the checkpoint finds the same accuracy, because the running statistics
    are averaged.
    """
    folder, printed = undisturbed(launcher, "torch")
    if launcher != "torchrun":  # the 53 parameters of the tiny network in each of 12 steps
        events = json.loads((folder / "t.json").read_text())
        reduced = Counter(event["pid"] for event in events if event.get("name") == "ALLREDUCE")
        assert list(reduced.values()).count(12) == 53
    report = strict_json(folder / "r.json")
    assert report["ngpus"] == 2 and len(report["metrics"]["val.top1"]) == 2
    assert report["env"]["weights_apart"] == 0.0  # the same weights on both, bit for bit
    assert "rank 0 | epoch 2/2" in printed
    speeds = zip(report["metrics"]["val.time"], report["metrics"]["val.total_ips"], strict=True)
    for seconds, ips in speeds:  # of 19 images the first step has 8, the 2 others 11 over all ranks
        assert seconds * ips == pytest.approx(11 / 2)
    scored = finish([*launch.program("score"), "m", "2", "-n", "1", "--report", "s.json"], folder)
    assert scored.returncode == 0, scored.stderr
    one = strict_json(folder / "s.json")["metrics"]
    assert one["val.top1"][0] == report["metrics"]["val.top1"][1]
    assert one["val.loss"][0] == pytest.approx(report["metrics"]["val.loss"][1], rel=1e-5)


class Run:
    """A `rn50 run` with two workers that trains until it is ended."""

    def __init__(self, argv: list[str], folder: Path, env: dict[str, str] | None = None) -> None:
        self.folder, self.output = folder, folder / "output"
        self.progress = folder / "run" / "progress.jsonl"
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                [*argv, "--run-dir", str(folder / "run")], cwd=folder, start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                env=env or clean_environment(RN50_RUNS=str(folder)),
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )  # fmt: skip
        self.wait_for(lambda: self.progress.exists() and '"epoch"' in self.progress.read_text())
        self.below = psutil.Process(self.process.pid).children(recursive=True)

    def wait_for(self, what: Callable[[], Any]) -> None:
        end = time.monotonic() + PATIENCE
        while not what():
            assert time.monotonic() < end and self.process.poll() is None, self.text()
            time.sleep(0.05)

    def worker(self, rank: int) -> psutil.Process:
        for process in self.below:
            me = LaunchEnv.detect(process.environ())
            if process.cmdline()[1:4] == launch.WORKER and (me.rank if me else 0) == rank:
                return process
        raise AssertionError(f"no rank {rank}: {self.text()}")

    def text(self) -> str:
        return self.output.read_text()

    def ends(self) -> int:
        """Return the exit status, once no process is left; none may be left 15 s later."""
        status = self.process.wait(PATIENCE)
        _, left = psutil.wait_procs(self.below, timeout=15)
        running = [p for p in left if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]
        assert not running, self.text()
        return status


@pytest.fixture
def start(photos: Photos, tmp_path: Path) -> Iterator[Callable[..., Run]]:
    started: list[Run] = []

    def start(launcher: str, *flags: str, folder: Path = tmp_path) -> Run:
        started.append(Run(argv_of(photos, launcher, *flags), folder))
        return started[-1]

    yield start
    for run in started:
        for process in run.below:
            if process.is_running():
                process.kill()
        run.process.kill()
        run.process.wait()


@LARGE  # test_failed_run_restarts... is the form in `make test`
@pytest.mark.parametrize("launcher", [ALONE, *LAUNCHERS])
def test_a_killed_worker_ends_the_run(launcher: str, start: Callable[..., Run]) -> None:
    last = 0 if launcher == "alone" else 1
    run = start(launcher, *ENDLESS)
    run.worker(last).kill()
    assert run.ends() == 128 + signal.SIGKILL, run.text()
    (error,) = [line for line in run.text().splitlines() if line.startswith("error: ")]
    assert error.startswith(f"error: rank {last} was killed by signal 9 (SIGKILL)")


@pytest.mark.slow
@LARGE
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_the_traceback_of_the_failing_rank_comes_last(
    launcher: str, photos: Photos, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "from rn50lib.data import sampler\n"
        "def shard(order_, rank, size, batch):\n"
        "    if rank == 1:\n"
        "        raise ValueError('rank one cannot count')\n"
        "    return sampler.shard(order_, rank, size, batch)\n"
    )
    argv = argv_of(photos, launcher, "-e", "1", "--override", "shard=mine.py:shard")
    done = finish(argv, tmp_path)
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()
    begin = next(i for i, line in enumerate(last) if line.startswith("error: "))
    assert last[begin] == "error: rank 1 ended with status 1:"
    assert last[begin + 1].startswith("Traceback") and "rank one cannot count" in last[-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "rank"),
    [("alone", ""), pytest.param("torchrun", "rank [01]: ", marks=LARGE)],
)
@pytest.mark.needs("torch")
def test_bad_input_is_one_line_with_its_remedy(
    launcher: str, rank: str, photos: Photos, tmp_path: Path
) -> None:
    """`rn50 run` prints what a worker has recorded; a worker started by hand prints it itself."""
    shutil.copytree(photos.records, tmp_path / "set" / "records")
    records = tmp_path / "set" / "records" / "train.rec"
    content = bytearray(records.read_bytes())
    content[content.index(b"\xff\xd8\xff") + 100] ^= 255  # in an image: only its reader finds it
    records.write_bytes(content)
    flags = ("--data-root", "set", "--run-dir", "run")
    done = finish(argv_of(photos, launcher, *flags), tmp_path)
    assert done.returncode == 2, done.stderr
    (line,) = [line for line in done.stderr.splitlines() if "error: " in line]
    assert re.match(f"error: {rank}{records}: damaged", line), line
    assert f"`python -m data_prep.verify {records}`" in line
    if launcher == "alone":
        by_hand = finish([sys.executable, *launch.WORKER, "run/experiment.json"], tmp_path)
        assert by_hand.returncode == 2
        (line,) = [line for line in by_hand.stderr.splitlines() if "error: " in line]
        assert line.startswith(f"error: {records}: damaged"), line


ENDINGS = ((signal.SIGINT, "alone"), (signal.SIGKILL, "alone"))
GLOO = "RuntimeError: [../gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]"


@pytest.mark.parametrize(
    ("ends", "status", "named"),
    [  # of each rank: when, status, error, the signal that killed it
        ([(4, 1, GLOO, 0), (4.5, 137, "", 9)], 137,
         "rank 1 was killed by signal 9 (SIGKILL) (the machine may have run out of memory"),
        ([(4, 1, "ValueError: no", 0), (6, 137, "", 9)], 1,
         "rank 0 ended with status 1:\nValueError: no"),
        ([(5, 1, GLOO, 0), (4, 1, "", 0)], 1, "rank 1 ended with status 1 without an error"),
        ([(5, 143, "", 0), (4, 2, "the ranks disagree", 0)], 2, "rank 1: the ranks disagree"),
        ([(5, 143, "", 0), (4, 143, "", 15)], 1, "rank 1 was killed by signal 15"),
        ([(4, 143, "", 0), (5, 1, GLOO, 0)], 143, None),
        ([None, None], 1, "ended without a record (was it killed?):\nthe launcher's own words"),
    ],
)  # fmt: skip
def test_the_earliest_end_names_the_cause(
    ends: list, status: int, named: str | None, tmp_path: Path
) -> None:
    with subprocess.Popen(["true"]) as ended:
        pass
    for rank, end in enumerate(ends):
        started = {"host": os.uname().nodename, "pid": ended.pid}
        (tmp_path / f"{rank}.started").write_text(json.dumps(started))
        if end is not None:
            record = dict(zip(("time", "status", "text", "signal"), end, strict=True))
            record |= {"waited": 0, "remedy": []}
            (tmp_path / f"{rank}.ended").write_text(json.dumps(record))
    words = ["sh", "-c", 'echo "the launcher\'s own words"; exit 1']
    group = launch.WorkerGroup(words, dict(os.environ), tmp_path)
    group.wait([])
    group.end()
    found = group.outcome()
    assert found.status == status
    assert (named or "None") in str(found.failure)


def test_tags_of_mpirun_are_not_shown(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It writes a second one at the end of a line if it gets the line in two pieces."""
    words = ["printf", "[1,0]<stderr>:img/s 538.5[1,0]<stderr>:\\n[1,1]<stdout>:done\\n"]
    launch.WorkerGroup(words, dict(os.environ), tmp_path).end()
    assert "".join(capfd.readouterr()) == "rank 0 | img/s 538.5\nrank 1 | done\n"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "launcher"),
    [  # SIGINT and SIGKILL of one process in `make test`
        pytest.param(
            number,
            *p.values,
            marks=[*p.marks, *([] if (number, *p.values) in ENDINGS else [LARGE])],
        )
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL)
        for p in (ALONE, *LAUNCHERS)
    ],
)
def test_no_worker_outlives_the_run(number: int, launcher: str, start: Callable[..., Run]) -> None:
    run = start(launcher, *ENDLESS)
    os.killpg(run.process.pid, number)
    status = run.ends()
    if number != signal.SIGKILL:
        assert status == 128 + number, run.text()
        for word in ("Traceback", "leaked", "error: "):  # multiprocessing's semaphores, for one
            assert word not in run.text()
    if number == signal.SIGINT:
        lines = run.text().splitlines()
        if lines[-1].startswith("continue with: rn50 run "):  # there is a checkpoint
            lines.pop()
        assert lines[-1] == "interrupted"


@pytest.mark.parametrize("gone", ["process", "folder"])
def test_a_worker_that_starts_too_late_ends(gone: str, tmp_path: Path) -> None:
    """Its `rn50 run` was killed or gave up before the worker could register."""
    with subprocess.Popen(["true"]) as ended:
        pass
    pid = ended.pid if gone == "process" else os.getpid()
    folder = tmp_path if gone == "process" else tmp_path / "none"
    env = clean_environment(**{lifetime.GROUP: f"{os.uname().nodename}:{pid}:{folder}"})
    argv = [sys.executable, *launch.WORKER, "experiment.json"]
    done = subprocess.run(argv, env=env, text=True, capture_output=True)
    assert done.returncode == 1 and done.stderr.startswith("error: the program that started")


@LARGE  # test_a_worker_whose_peer_never_comes_is_one_error has --comm-timeout
@pytest.mark.parametrize("launcher", LAUNCHERS[::2])
def test_a_rank_that_hangs_fails_the_run(launcher: str, start: Callable[..., Run]) -> None:
    run = start(launcher, *ENDLESS, "--comm-timeout", "15")
    run.worker(1).suspend()
    assert run.ends() == 1
    assert run.text().splitlines()[-1].startswith("error: rank 1 did not answer within")


@LARGE
@pytest.mark.needs("horovod")
def test_unequal_steps_are_refused_before_training(
    photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/proc/none")  # Horovod's launcher wants no folder there
    (tmp_path / "mine.py").write_text(
        "def shard(order, rank, size, batch):\n"
        "    mine = order[rank::size]\n"
        "    steps = len(mine) // batch - rank\n"
        "    return mine[: steps * batch].reshape(steps, batch)\n"
    )
    argv = argv_of(photos, "horovodrun", "-e", "1", "--override", "shard=mine.py:shard")
    done = finish(argv, tmp_path)
    assert done.returncode == 2, done.stderr
    assert "disagree on the steps of a train epoch: rank 0 has 6, rank 1 has 5" in done.stderr


def started_by_torchrun(folder: Path, flags: str) -> subprocess.CompletedProcess[str]:
    """Two workers of `rn50 train`; a shell on each rank expands `flags`."""
    worker = shlex.join([*launch.program("train"), "-n", "2", "--comm", "ddp", *TINY, "-e", "1"])
    return finish(
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2",
         "--no-python", "sh", "-c", f"exec {worker} {flags}"], folder,
    )  # fmt: skip


@LARGE
@pytest.mark.needs("torch")
def test_ranks_with_different_data_are_refused(photos: Photos, tmp_path: Path) -> None:
    """The ranks have equal steps, but on rank 1 one image has a different class."""
    for rank_ in (0, 1):
        shutil.copytree(photos.root, tmp_path / f"set-{rank_}")
    images = tmp_path / "set-1" / "train"
    moved = next((images / "anvil").iterdir())
    moved.rename(images / "flute" / moved.name)
    done = started_by_torchrun(tmp_path, "--data-format files --data-root set-$RANK")
    assert done.returncode != 0
    assert "error: the ranks disagree on the data: rank 0 has 48 images, labels" in done.stderr


@LARGE
@pytest.mark.needs("torch")
def test_ranks_with_different_flags_are_refused(photos: Photos, tmp_path: Path) -> None:
    done = started_by_torchrun(tmp_path, f"--data-root {photos.root} --no-val -e $((1 + RANK))")
    assert done.returncode != 0
    assert "error: the ranks disagree on --num-epochs: rank 0 has 1, rank 1 has 2" in done.stderr


# --- restarts -------------------------------------------------------------------------------------

WITH_TENSORFLOW = pytest.param(
    "horovodrun", "tensorflow", marks=[pytest.mark.needs("horovod"), LARGE]
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "backend"),
    [pytest.param(*p.values, "torch", marks=p.marks) for p in once("mpirun")] + [WITH_TENSORFLOW],
)
def test_sigterm_run_resumes_bit_for_bit(
    launcher: str, backend: str, photos: Photos, tmp_path: Path,
    start: Callable[..., Run], undisturbed: Callable[[str, str], tuple[Path, str]],
) -> None:  # fmt: skip
    """SIGTERM comes in the middle of an epoch; under mpirun, one worker alone receives it."""
    whole, _ = undisturbed(launcher, backend)
    parts = tmp_path / "parts"
    parts.mkdir()
    run = start(launcher, *two_epochs(backend, parts), folder=parts)
    (run.worker(1) if launcher == "mpirun" else run.process).terminate()
    assert run.ends() == 143, run.text()
    last = run.text().splitlines()[-1]
    assert last.startswith("continue with: rn50 run ") and "--resume" in last
    assert "Traceback" not in run.text()
    epoch, images = checkpoint.positions(parts / "m")[-1]
    assert images > 0 and images % 8 == 0
    arrays = checkpoint.load(parts / "m", epoch, images).arrays
    table = arrays.pop(checkpoint.BN_STATS_OF_RANKS)  # each rank has its own; others get the mean
    names = sorted(name for name in arrays if ".running_" in name)
    mean = np.concatenate([arrays[name] for name in names])
    assert np.array_equal(mean, table.mean(axis=0)) and (table[0] != table[1]).any()
    (parts / "quick").touch()
    argv = [*launch.program("run"), *shlex.split(last.partition("rn50 run ")[2])]
    done = finish(argv, parts)
    assert done.returncode == 0, done.stderr

    first, second = (checkpoint.load(folder / "m", 2) for folder in (whole, parts))
    assert first.arrays.keys() == second.arrays.keys()
    for name, array in first.arrays.items():
        assert array.tobytes() == second.arrays[name].tobytes(), name
    reports = [strict_json(folder / "r.json") for folder in (whole, parts)]
    assert timeless(reports[0]) == timeless(reports[1])


@pytest.mark.slow
@LARGE  # test_the_earliest_end_names_the_cause has the rule
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_only_a_run_with_a_checkpoint_ends_in_143(
    launcher: str, photos: Photos, tmp_path: Path
) -> None:
    """Ranks that SIGTERM ends before they can write one are a failure like any other."""
    (tmp_path / "mine.py").write_text(
        "import os, signal\n"
        "def shard(order_, rank, size, batch):\n"
        "    signal.signal(signal.SIGTERM, signal.SIG_DFL)\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
    )
    done = finish(argv_of(photos, launcher, "--override", "shard=mine.py:shard"), tmp_path)
    assert done.returncode == 1, done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("launcher", once("torchrun"))
@pytest.mark.parametrize(
    ("end", "said"),
    [
        ("raise ZeroDivisionError", "rank 1 ended with status 1"),
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", "rank 1 was killed by signal 9",
                     marks=LARGE),
    ],
)  # fmt: skip
def test_failed_run_restarts_from_the_newest_intact_checkpoint(
    launcher: str, end: str, said: str, photos: Photos, tmp_path: Path
) -> None:
    """Rank 1 fails in the third epoch, after the newest checkpoint was damaged."""
    (tmp_path / "mine.py").write_text(
        "import os, signal\nfrom pathlib import Path\nfrom rn50lib.data import sampler\n"
        "def shard(order_, rank, size, batch):\n"
        "    newest = Path('m-0002.safetensors')\n"
        "    if rank == 1 and newest.exists() and not Path('died').exists():\n"
        "        Path('died').touch()\n"
        "        os.truncate(newest, 1000)\n"
        f"        {end}\n"
        "    return sampler.shard(order_, rank, size, batch)\n"
    )
    argv = argv_of(photos, launcher, "-e", "4", "--model-prefix", "m", "--max-restarts", "1",
                   "--override", "shard=mine.py:shard", "--report", "r.json")  # fmt: skip
    done = finish(argv, tmp_path)
    assert done.returncode == 0, done.stderr
    assert said in done.stderr
    assert "restarting 2 workers from the newest checkpoint" in done.stderr
    assert "1 epoch is done" in done.stderr
    assert len(strict_json(tmp_path / "r.json")["metrics"]["train.loss"]) == 4
