"""Many workers as a user meets them: started by each launcher, in step, and ended together."""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from rn50 import launch
from rn50 import workers as connecting
from rn50.autoconfig import resolve
from rn50.launch import group as groups
from rn50.launch import launchers
from rn50lib import checkpoint
from rn50lib.config import Experiment
from rn50lib.distributed import launch_env as rank
from rn50lib.distributed import slurm
from tests.conftest import clean_environment
from tests.support import LAPTOP, TINY, Photos, full, strict_json, timeless

PATIENCE = 120.0  # seconds for things that take a few when the machine is idle
ENDLESS = ("-e", "100000", "--disp-batches", "1", "--no-val")
WAYS = {
    "horovodrun": ("--comm", "horovod"),
    "mpirun": ("--comm", "horovod", "--launcher", "mpirun"),
    "torchrun": ("--comm", "ddp"),
}
LARGE = pytest.mark.acceptance  # the same once more, by another way
LAUNCHERS = [
    pytest.param("horovodrun", marks=pytest.mark.needs("horovod")),
    pytest.param("mpirun", marks=pytest.mark.needs("horovod_mpi")),
    pytest.param("torchrun", marks=pytest.mark.needs("torch")),
]


def once(launcher: str) -> list:
    """One launcher in `make test`, the others in `make acceptance`."""
    others = [p for p in LAUNCHERS if p.values != (launcher,)]
    kept = [p for p in LAUNCHERS if p.values == (launcher,)]
    return kept + [pytest.param(*p.values, marks=[*p.marks, LARGE]) for p in others]


# --- command lines --------------------------------------------------------------------------------


def test_the_classic_mpirun_line() -> None:
    """The flags of the slides that still mean something."""
    done = full(n=2, comm="horovod", launcher="mpirun")
    argv = launchers.mpirun(done, ["worker", "--flag"])
    text = " ".join(argv)
    assert text.startswith("mpirun -np 2 -H localhost:2 -bind-to none -map-by slot -mca pml ob1")
    assert argv[-2:] == ["worker", "--flag"]
    assert "-x PATH" in text and "openib" not in text


def test_horovodrun_gets_the_worker_as_one_argument() -> None:
    """Else it takes `--network tiny` for its own --network-interface."""
    done = full(n=2, comm="horovod", launcher="horovodrun")
    argv = launchers.command(done, ["python", "--network", "tiny", "a b"])
    assert argv[-1] == "python --network tiny 'a b'"
    assert argv[argv.index("-np") + 1] == "2" and "--network-interface" in argv
    elsewhere = full(n=2, comm="horovod", launcher="horovodrun", hosts="a:1,b:1")
    assert "--network-interface" not in launchers.command(elsewhere, ["x"])


def test_torchrun_takes_a_free_port() -> None:
    assert "--standalone" in launchers.command(full(n=2, comm="ddp"), ["x"])


def test_torchrun_on_several_hosts_is_told_ready_to_paste(rn50: Callable, photos: Photos) -> None:
    error = rn50("run", "--data-root", photos.root, "-n", "3", "--comm", "ddp", "--hosts",
                 "a:2,b:1", "-b", "8").error  # fmt: skip
    start = "torchrun --nnodes 2 --nproc-per-node {} --rdzv-backend c10d --rdzv-endpoint a:29500"
    train = f"--no-python rn50 train --data-root {photos.root} --comm ddp --batch-size 8`"
    for host, slots in (("a", 2), ("b", 1)):
        assert f"on {host} `{start.format(slots)} --rdzv-id rn50 {train}" in error
    assert "..." not in error and "…" not in error


def test_torchrun_leaves_nothing_among_the_temporary_files(tmp_path: Path) -> None:
    argv = launchers.command(full(n=2, comm="ddp"), ["x"], tmp_path)
    assert argv[argv.index("--log-dir") + 1].startswith(str(tmp_path))


def test_workers_share_the_cores() -> None:
    done = resolve(Experiment(n=2, comm="ddp", network="tiny"), LAPTOP, 6).experiment
    assert (done.n, done.threads, done.data_nthreads) == (2, 1, 1)
    assert done.global_batch == 2 * done.batch_size


@pytest.mark.parametrize(
    ("cores", "size", "wanted"),
    [
        ([0, 1, 2, 3], 2, [[0, 1], [2, 3]]),
        ([4, 6, 9], 3, [[4], [6], [9]]),
        ([0, 1, 2, 3, 4], 2, [[0, 1], [2, 3]]),
        ([5], 3, [[5], [5], [5]]),
    ],
)
def test_every_worker_gets_cores_of_its_own(cores: list, size: int, wanted: list) -> None:
    assert [rank.own_cores(cores, r, size) for r in range(size)] == wanted


# --- bad input ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("-n", "5", "--comm", "ddp"), "-n 5: this machine has"),
        (("-n", "3", "--hosts", "localhost:2", "--comm", "ddp"), "has 2 slots"),
        (("-n", "2", "--hosts", "a:0"), "--hosts"),
        (("-n", "2", "--hosts", "a:1,a:1"), "each named once"),
        (("-n", "2", "--comm", "local"), "--comm local is one worker"),
        (("-n", "2", "--comm", "ddp", "--launcher", "mpirun"), "not DDP's"),
        (("-n", "1", "--timeline", "t.json"), "--timeline is for many workers"),
        (("-n", "2", "--comm", "ddp", "--timeline", "t.json"), "--timeline is Horovod's"),
        (("-n", "2", "--comm", "ddp", "--backend", "tensorflow"), "--comm ddp is PyTorch's"),
        (("-n", "1", "--bind", "core"), "--bind is for many workers"),
    ],
)
def test_impossible_groups_are_refused(
    rn50: Callable, photos: Photos, flags: tuple[str, ...], words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    if flags[1] == "5":
        monkeypatch.setattr("rn50.prepare.machine", lambda: LAPTOP)
    assert words in rn50("run", "--data-root", photos.root, *flags).error


def test_horovod_that_is_missing_is_told(
    rn50: Callable, photos: Photos, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connecting, "horovod_serves", lambda backend: False)
    flags = ("run", "--data-root", photos.root, "-n", "2")
    error = rn50(*flags, "--comm", "horovod").error
    assert "Horovod is not built for torch" in error and "make horovod" in error
    assert "make horovod" in rn50(*flags, "--backend", "tensorflow").error


# --- workers that somebody else has started -------------------------------------------------------

STEP = {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_NODEID": "1"}


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, None),
        ({"RANK": "0"}, None),  # no size, no group
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2"},
         rank.Member("torchrun", 1, 2, 1, 2)),
        ({"OMPI_COMM_WORLD_RANK": "5", "OMPI_COMM_WORLD_SIZE": "8",
          "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"},
         rank.Member("mpirun", 5, 8, 1, 4)),
        (STEP, rank.Member("srun", 3, 4, 1, 4)),
        (STEP | {"SLURM_STEP_NUM_TASKS": "4", "SLURM_STEP_TASKS_PER_NODE": "3,1",
                 "SLURM_CPUS_PER_TASK": "6"}, rank.Member("srun", 3, 4, 1, 1, 6)),
        # srun overrides what sbatch has asked for; a batch script is no task
        (STEP | {"ENVIRONMENT": "BATCH", "SLURM_STEP_NUM_TASKS": "2",
                 "SLURM_STEP_TASKS_PER_NODE": "1(x2)"}, rank.Member("srun", 3, 2, 1, 1)),
        (STEP | {"ENVIRONMENT": "BATCH"}, None),
        # torchrun, started once a node by srun
        (STEP | {"RANK": "0", "WORLD_SIZE": "16", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "8"},
         rank.Member("torchrun", 0, 16, 0, 8)),
    ],
)  # fmt: skip
def test_who_a_worker_is_comes_from_what_started_it(env: dict, wanted: Any) -> None:
    assert rank.member(env) == wanted


@pytest.mark.parametrize(
    ("hosts", "first"),
    [("gpu[03-05,09],login", "gpu03"), ("node7", "node7"), ("a,b", "a"),
     ("r[1-2]n[04,06]", "r1n04"), ("n[9,11-12]", "n9"), ("", "")],
)  # fmt: skip
def test_the_first_of_slurm_s_hosts(hosts: str, first: str) -> None:
    assert slurm.first_host(hosts) == first


def test_the_tasks_of_a_step_meet_at_one_port() -> None:
    told = [
        slurm.torch_environment(rank.Member("srun", r, 4, r % 2, 2),
                                {"SLURM_JOB_NODELIST": "gpu[03-04]", "SLURM_JOB_ID": "4711",
                                 "SLURM_STEP_ID": "0"})
        for r in range(4)
    ]  # fmt: skip
    assert len({env["MASTER_PORT"] for env in told}) == 1
    assert 1024 < int(told[0]["MASTER_PORT"]) < 32768
    assert [env["RANK"] for env in told] == ["0", "1", "2", "3"]
    assert {env["MASTER_ADDR"] for env in told} == {"gpu03"}


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize("starter", ["torchrun", "srun"])
def test_workers_take_their_number_from_what_started_them(
    starter: str, photos: Photos, tmp_path: Path
) -> None:
    """The learning rate is that of two workers: 0.4 x 2 x 8 / 256 once the warm-up is over."""
    flags = ("--data-root", str(photos.root), *TINY, "-e", "2", "--warmup-epochs", "1", "--lr",
             "0.4", "--no-val", "--disp-batches", "1", "--run-dir", "run")  # fmt: skip
    worker = [*launch.program("train"), *flags]
    if starter == "torchrun":
        starts = [[sys.executable, "-m", "torch.distributed.run", "--standalone",
                   "--nproc-per-node", "2", "--no-python", *worker]]  # fmt: skip
        envs: list[dict[str, str]] = [{}]
    else:
        starts = [worker, worker]
        envs = [
            {"SLURM_PROCID": str(r), "SLURM_LOCALID": str(r), "SLURM_NTASKS": "2",
             "SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_NODELIST": "localhost",
             "SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0"}
            for r in range(2)
        ]  # fmt: skip
    running = [
        subprocess.Popen(argv, cwd=tmp_path, env=clean_environment(**env), text=True,
                         stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
        for argv, env in zip(starts, envs, strict=True)
    ]  # fmt: skip
    said = [process.communicate(timeout=300)[1] for process in running]
    assert [process.returncode for process in running] == [0] * len(running), said
    report = strict_json(tmp_path / "run" / "report.json")
    assert report["ngpus"] == 2 and report["env"]["weights_apart"] == 0.0
    lines = (tmp_path / "run" / "progress.jsonl").read_text().splitlines()
    rates = [json.loads(line).get("lr") for line in lines]
    assert rates[-2] == pytest.approx(0.4 * 16 / 256)


@pytest.mark.parametrize(
    ("env", "flags", "words"),
    [
        ({"RANK": "0", "WORLD_SIZE": "2"}, ("-n", "4"), "-n 4: torchrun has started 2 workers"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, ("-n", "2"), "-n 2: torchrun has started 1 worker,"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ("--comm", "horovod"), "--comm horovod: torchrun has"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, ("--comm", "local"), "--comm local is one worker"),
        (STEP, ("--backend", "tensorflow"), "--backend tensorflow: srun has started 4 workers"),
    ],
)  # fmt: skip
def test_a_worker_that_is_told_something_else(
    rn50: Callable, photos: Photos, env: dict, flags: tuple[str, ...], words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert words in rn50("train", "--data-root", photos.root, *TINY, *flags).error


@pytest.mark.slow
@pytest.mark.needs("horovod")
def test_a_lone_worker_is_not_two(rn50: Callable, photos: Photos) -> None:
    """Nothing started a second one: it would train at a rate that is for two."""
    error = rn50("train", "--data-root", photos.root, *TINY, "-n", "2", "--comm", "horovod").error
    assert "horovod has connected 1 worker(s)" in error and "rn50 run -n 2" in error


# --- real runs ------------------------------------------------------------------------------------


def argv_of(photos: Photos, launcher: str, *flags: str) -> list[str]:
    tiny = [flag for flag in TINY if flag != "8"]
    tiny[tiny.index("--batch-size") + 1 : tiny.index("--batch-size") + 1] = ["4"]
    return [*launch.program("run"), "--data-root", str(photos.root), *tiny, "-n", "2",
            *WAYS[launcher], *flags]  # fmt: skip


def finish(argv: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv, cwd=folder, env=clean_environment(RN50_RUNS=str(folder)), text=True,
        capture_output=True, timeout=600, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_two_workers_train_and_one_scores_the_same(
    launcher: str, photos: Photos, tmp_path: Path
) -> None:
    """19 validation images on two workers with batches of 4: the last rows are padding. One process
    that scores the checkpoint finds the same accuracy, as the running statistics were averaged."""
    flags = ("-e", "2", "--report", "r.json", "--model-prefix", "m", "--lr", "0.4")
    done = finish(argv_of(photos, launcher, *flags), tmp_path)
    assert done.returncode == 0, done.stderr
    report = strict_json(tmp_path / "r.json")
    assert report["ngpus"] == 2 and len(report["metrics"]["val.top1"]) == 2
    assert report["env"]["weights_apart"] == 0.0  # the same weights on both, bit for bit
    assert "rank 0 | epoch 2/2" in done.stderr
    speeds = zip(report["metrics"]["val.time"], report["metrics"]["val.total_ips"], strict=True)
    for seconds, ips in speeds:  # of 19 images the first step has 8, the 2 others 11 over all ranks
        assert seconds * ips == pytest.approx(11 / 2)
    scored = finish([*launch.program("score"), "m", "2", "-n", "1", "--report", "s.json"], tmp_path)
    assert scored.returncode == 0, scored.stderr
    one = strict_json(tmp_path / "s.json")["metrics"]
    assert one["val.top1"][0] == report["metrics"]["val.top1"][1]
    assert one["val.loss"][0] == pytest.approx(report["metrics"]["val.loss"][1], rel=1e-5)


@pytest.mark.acceptance
@pytest.mark.needs("horovod")
def test_a_resumed_run_of_two_is_the_undisturbed_one(photos: Photos, tmp_path: Path) -> None:
    flags = ("--report", "r.json", "--model-prefix", "m", "--lr", "0.4", "--warmup-epochs", "1")
    for name, parts in {"whole": ["2"], "parts": ["1", "2"]}.items():
        (tmp_path / name).mkdir()
        for epochs in parts:
            done = finish(
                argv_of(photos, "horovodrun", *flags, "-e", epochs, "--resume"), tmp_path / name
            )
            assert done.returncode == 0, done.stderr
    whole, parts = (checkpoint.load(tmp_path / n / "m", 2) for n in ("whole", "parts"))
    for name, array in whole.arrays.items():
        assert array.tobytes() == parts.arrays[name].tobytes(), name
    reports = [strict_json(tmp_path / name / "r.json") for name in ("whole", "parts")]
    assert timeless(reports[0]) == timeless(reports[1])


class Group:
    """A `rn50 run` with two workers that goes on until it is ended."""

    def __init__(
        self, launcher: str, photos: Photos, folder: Path, *flags: str,
        files: dict[str, str] | None = None,
    ) -> None:  # fmt: skip
        self.folder, self.output = folder, folder / "output"
        for name, text in (files or {}).items():
            (folder / name).write_text(text)
        given = (*ENDLESS, "--run-dir", str(folder / "run"), *flags)
        argv = argv_of(photos, launcher, *given)
        with open(self.output, "wb") as output:
            self.process = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder,
                env=clean_environment(RN50_RUNS=str(folder)), start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )  # fmt: skip
        self.progress = folder / "run" / "progress.jsonl"
        self.wait_for(lambda: self.progress.exists() and '"epoch"' in self.progress.read_text())
        self.job = next(
            p.environ()[groups.JOB]
            for p in psutil.Process(self.process.pid).children()
            if groups.JOB in p.environ()
        )

    def wait_for(self, what: Callable[[], Any]) -> None:
        end = time.monotonic() + PATIENCE
        while not what():
            assert time.monotonic() < end and self.process.poll() is None, self.output.read_text()
            time.sleep(0.05)

    def worker(self, number: int) -> psutil.Process:
        """The training process of a rank."""
        for process in groups.processes(self.job):
            watched = process.cmdline()[1:3] == ["-m", "rn50lib.train"]
            me = rank.member(process.environ())
            if watched and me is not None and me.rank == number:
                return process
        raise AssertionError(f"no rank {number}: {self.output.read_text()}")

    def errors(self) -> list[str]:
        return [x for x in self.output.read_text().splitlines() if x.startswith("error: ")]

    def all_gone(self) -> None:
        end = time.monotonic() + PATIENCE
        while left := groups.processes(self.job):
            assert time.monotonic() < end, left
            time.sleep(0.05)


@pytest.fixture
def group(photos: Photos, tmp_path: Path) -> Iterator[Callable[..., Group]]:
    started: list[Group] = []

    def start(launcher: str, *flags: str, **options: Any) -> Group:
        folder = tmp_path / f"{len(started)}"
        folder.mkdir()
        started.append(Group(launcher, photos, folder, *flags, **options))
        return started[-1]

    yield start
    for run in started:
        run.process.kill()
        run.process.wait()
        for process in groups.processes(run.job):
            process.kill()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", once("horovodrun"))
def test_the_worker_that_is_killed_is_named_and_none_stays(launcher: str, group: Callable) -> None:
    run = group(launcher, "--bind", "core", "--data-nthreads", "1")
    if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1:
        cores = [set(run.worker(number).cpu_affinity() or ()) for number in (0, 1)]
        assert cores[0] and cores[1] and not cores[0] & cores[1]
    run.worker(1).kill()
    assert run.process.wait(PATIENCE) == 128 + signal.SIGKILL, run.output.read_text()
    (error,) = run.errors()
    assert error.startswith("error: rank 1 was killed by signal 9 (SIGKILL)")
    run.all_gone()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", once("horovodrun"))
def test_a_worker_that_stands_still_is_named_and_may_go_on(launcher: str, group: Callable) -> None:
    run = group(launcher)
    worker = run.worker(1)
    worker.suspend()
    told = f"`kill -CONT {worker.pid}` there lets it go on"
    run.wait_for(lambda: told in run.output.read_text())
    (line,) = [x for x in run.output.read_text().splitlines() if told in x]
    assert line.startswith("rank 1 | stands still, and the others wait for it")
    earlier = run.progress.read_text().count('"epoch"')
    worker.resume()
    run.wait_for(lambda: run.progress.read_text().count('"epoch"') > earlier + 1)
    assert run.worker(1).pid == worker.pid and not run.errors()


@pytest.mark.slow
@pytest.mark.needs("horovod")
@pytest.mark.parametrize(
    "number",
    [
        signal.SIGINT,
        pytest.param(signal.SIGTERM, marks=LARGE),
        pytest.param(signal.SIGKILL, marks=LARGE),
    ],
)
def test_when_the_run_is_ended_all_workers_end(number: int, group: Callable) -> None:
    run = group("horovodrun")
    os.killpg(run.process.pid, number)
    status = run.process.wait(PATIENCE)
    run.all_gone()
    if number != signal.SIGKILL:
        assert status == 128 + number
        assert ("interrupted" if number == signal.SIGINT else "SIGTERM") in run.output.read_text()
        assert "leaked" not in run.output.read_text()
        assert "Traceback" not in run.output.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("launcher", once("torchrun"))
def test_the_failing_worker_s_traceback_is_what_one_sees(
    launcher: str, photos: Photos, tmp_path: Path
) -> None:
    (tmp_path / "mine.py").write_text(
        "def shard(order, rank, size, batch):\n"
        "    if rank == 1:\n"
        "        raise ValueError('rank one cannot count')\n"
        "    steps = len(order) // (size * batch)\n"
        "    return order[: steps * size * batch].reshape(steps, size, batch)[:, rank]\n"
    )
    argv = argv_of(photos, launcher, "-e", "1", "--override", "shard=mine.py:shard")
    done = finish(argv, tmp_path)
    assert done.returncode == 1, done.stderr
    last = done.stderr.splitlines()
    begin = next(i for i, line in enumerate(last) if line.startswith("error: "))
    assert last[begin] == "error: rank 1 ended with status 1:"
    assert last[begin + 1].startswith("Traceback") and "rank one cannot count" in last[-1]


def test_who_failed_first_is_who_said_so_first(tmp_path: Path) -> None:
    """Rank 1 fails and leaves its group; rank 0 misses it, and its process ends before rank 1's."""
    launcher = subprocess.Popen(["false"])
    launcher.wait()
    job = groups.Job(launcher, "a job", tmp_path)
    lost = ["Traceback (most recent call last):", "RuntimeError: connection reset"]
    own = ["Traceback (most recent call last):", "ValueError: rank one cannot count"]
    job.reported += [rank.End(0, 1, 12.0, lost, 11.0), rank.End(1, 1, 13.0, own, 10.0)]
    assert groups.account(job).failure == "\n".join(["rank 1 ended with status 1:", *own])
    job.reported.append(rank.End(1, -signal.SIGKILL, 11.5, []))  # killed: it has said nothing
    assert groups.account(job).failure.startswith("rank 1 was killed by signal 9")


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_ranks_with_different_data_are_refused(photos: Photos, tmp_path: Path) -> None:
    """As many images on both, so that the steps are equal; on rank 1 one has another class."""
    for rank_ in (0, 1):
        shutil.copytree(photos.root, tmp_path / f"set-{rank_}")
    images = tmp_path / "set-1" / "train"
    moved = next((images / "anvil").iterdir())
    moved.rename(images / "flute" / moved.name)
    done = started_by_torchrun(tmp_path, "--data-format files --data-root set-$RANK")
    assert done.returncode != 0
    assert "error: the ranks disagree on the data: rank 0 has 48 images, labels" in done.stderr


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--no-val -e $((1 + RANK))", "--num-epochs: rank 0 has 1, rank 1 has 2"),
        ("--image-shape $((32 + 32 * RANK))", "--image-shape: rank 0 has 32, rank 1 has 64"),
    ],
)
def test_ranks_with_different_flags_are_refused(
    photos: Photos, tmp_path: Path, flags: str, words: str
) -> None:
    done = started_by_torchrun(tmp_path, f"--data-root {photos.root} {flags}")
    assert done.returncode != 0
    assert f"error: the ranks disagree on {words}: give every host the same" in done.stderr


# --- restarts -------------------------------------------------------------------------------------

SLOW = """
import time
from pathlib import Path
from rn50lib.recipe import learning_rate

def schedule(progress, global_batch, recipe):
    if not Path("enough").exists():
        time.sleep(0.3)
    return learning_rate(progress, global_batch, recipe)
"""
SLOWLY = ("--override", "schedule=slow.py:schedule", "--report", "r.json", "--model-prefix", "m")
BACKENDS = [
    pytest.param("torchrun", "torch", marks=pytest.mark.needs("torch")),
    pytest.param("horovodrun", "torch", marks=[pytest.mark.needs("horovod"), LARGE]),
    pytest.param("horovodrun", "tensorflow", marks=[pytest.mark.needs("horovod"), LARGE]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "backend"), BACKENDS)
def test_an_elastic_run_goes_on_with_the_workers_that_are_left(
    launcher: str, backend: str, group: Callable
) -> None:
    elastic_run(group, launcher, backend, victim=1, pause=0.0)


@pytest.mark.acceptance
@pytest.mark.parametrize(("launcher", "backend"), BACKENDS)
def test_an_elastic_run_outlives_kills_at_random_moments(
    launcher: str, backend: str, group: Callable
) -> None:
    dice = random.Random(5)
    for _ in range(4):
        elastic_run(group, launcher, backend, dice.randrange(2), pause=dice.uniform(0, 4))


def elastic_run(group: Callable, launcher: str, backend: str, victim: int, pause: float) -> None:
    """Kill a worker in the middle of an epoch: the other goes on alone, with its learning rate.
    Every image of an epoch is trained on but for the tail, and what was done twice is counted."""
    run = group(launcher, "--backend", backend, "--elastic", "--checkpoint-steps", "2", "-e", "8",
                "--warmup-epochs", "0", "--lr", "0.4", *SLOWLY,
                files={"slow.py": SLOW})  # fmt: skip
    run.wait_for(lambda: [*run.folder.glob("m-*.safetensors")])
    time.sleep(pause)
    run.worker(victim).kill()
    text = lambda: run.output.read_text()  # noqa: E731
    run.wait_for(lambda: "one worker goes on from the newest checkpoint" in text())
    (run.folder / "enough").touch()
    assert run.process.wait(10 * PATIENCE) == 0, text()
    assert f"rank {victim} was killed by signal 9 (SIGKILL)" in text(), text()
    report = strict_json(run.folder / "r.json")
    assert report["ngpus"] == 1 and len(report["metrics"]["train.loss"]) == 8
    told = report["env"]["restarts"]
    assert [change["workers"] for change in told["changes"]] == [1]
    assert 0 <= told["images_repeated"] <= 3 * 2 * 4  # two updates of two workers, and one more
    assert told["images_in_tails"] == 0  # 48 images: 6 steps of 8, or 12 of 4
    lines = [json.loads(x) for x in run.progress.read_text().splitlines()]
    rates = {line["lr"] for line in lines if line["phase"] == "train"}
    assert sorted(rates) == pytest.approx([0.4 * 4 / 256, 0.4 * 8 / 256])
    run.all_gone()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--elastic",), "--elastic wants -n 2 or more"),
        (("--elastic", "-n", "2", "--comm", "ddp", "--min-np", "3"), "--min-np 3 is more than"),
        (("-n", "2", "--min-np", "1"), "--min-np is for --elastic"),
        (("--checkpoint-steps", "5", "--step", "paced:100"), "nothing to save"),
    ],
)
def test_what_an_elastic_run_wants(
    rn50: Callable, photos: Photos, flags: tuple[str, ...], words: str
) -> None:
    assert words in rn50("run", "--data-root", photos.root, *flags).error


@pytest.mark.parametrize(
    ("hosts", "lost", "wanted"),
    [(None, (1,), (3, None)), ("a:2,b:2", (3,), (3, "a:2,b:1")), ("a:1,b:3", (0,), (3, "b:3")),
     ("a:2,b:2", (2, 3), (2, "a:2")), ("a:2,b:2", (1, 2, 3), None)],
)  # fmt: skip
def test_the_workers_that_are_left(hosts: str | None, lost: tuple, wanted: Any) -> None:
    flags = {"n": 4, "comm": "horovod", "hosts": hosts or "localhost:4", "elastic": True}
    left = launch.left_of(replace(full(**flags), min_np=2, hosts=hosts), lost)
    assert (left and (left.n, left.hosts)) == wanted


@pytest.mark.slow
@pytest.mark.parametrize("launcher", once("torchrun"))
def test_two_workers_that_are_asked_to_end_leave_a_checkpoint(
    launcher: str, group: Callable, photos: Photos
) -> None:
    """In the middle of an epoch; one worker goes on from there, with the rest of its images."""
    run = group(launcher, *SLOWLY, "-e", "2", files={"slow.py": SLOW})
    run.process.terminate()
    assert run.process.wait(PATIENCE) == 143, run.output.read_text()
    run.all_gone()
    lines = run.output.read_text().splitlines()
    assert lines[-1].startswith("go on with: rn50 run ")
    assert "--resume" in lines[-1] and "Traceback" not in run.output.read_text()
    epoch, images = checkpoint.positions(run.folder / "m")[-1]
    assert images % 8 == 0 and f"after {images} images of epoch {epoch + 1}" in lines[-3]
    (run.folder / "enough").touch()
    again = shlex.split(lines[-1].removeprefix("go on with: rn50 run "))
    if "--launcher" in again:  # one worker has none
        at = again.index("--launcher")
        del again[at : at + 2]
    argv = [*launch.program("run"), *again, "-n", "1", "--comm", "local", "--num-epochs", "2"]
    done = finish(argv, run.folder)
    assert done.returncode == 0, done.stderr
    report = strict_json(run.folder / "r.json")
    assert report["env"]["restarts"]["changes"] == [
        {"epoch": epoch + 1, "images": images, "workers": 1}
    ]
    assert report["env"]["restarts"]["images_repeated"] == 0


ASKED_TO_END = """
import os, signal
from pathlib import Path
from rn50lib import preemption as stop
from rn50lib.recipe import learning_rate

stop.LOOK_S = 0  # the workers ask each other after every update

def schedule(progress, global_batch, recipe):
    if 1.3 < progress < 1.4 and Path("end").exists():  # the third update of the second epoch
        os.kill(os.getpid(), signal.SIGTERM)
    return learning_rate(progress, global_batch, recipe)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("launcher", "backend"), BACKENDS)
def test_two_workers_resume_bit_exactly_in_the_middle_of_an_epoch(
    launcher: str, backend: str, photos: Photos, tmp_path: Path
) -> None:
    """The run with checkpoints after every second update is stopped after the third one, and ends
    as the run without them."""
    flags = ("--backend", backend, "-e", "2", "--lr", "0.4", "--warmup-epochs", "1",
             "--override", "schedule=mine.py:schedule", "--model-prefix", "m",
             "--report", "r.json")  # fmt: skip
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "mine.py").write_text(ASKED_TO_END)
    done = finish(argv_of(photos, launcher, *flags), tmp_path / "whole")
    assert done.returncode == 0, done.stderr
    (tmp_path / "parts" / "end").touch()
    argv = argv_of(photos, launcher, *flags, "--checkpoint-steps", "2")
    stopped = finish(argv, tmp_path / "parts")
    assert stopped.returncode == 143, stopped.stderr
    assert checkpoint.positions(tmp_path / "parts" / "m")[-1] == (1, 24)
    (tmp_path / "parts" / "end").unlink()
    resumed = finish([*argv, "--resume"], tmp_path / "parts")
    assert resumed.returncode == 0, resumed.stderr
    whole, parts = (checkpoint.load(tmp_path / n / "m", 2) for n in ("whole", "parts"))
    assert whole.arrays.keys() == parts.arrays.keys()
    for name, array in whole.arrays.items():
        assert array.tobytes() == parts.arrays[name].tobytes(), name
    reports = [strict_json(tmp_path / name / "r.json") for name in ("whole", "parts")]
    assert timeless(reports[0]) == timeless(reports[1])


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_a_run_that_died_is_started_again_from_its_checkpoint(
    photos: Photos, tmp_path: Path
) -> None:
    """The first attempt kills its rank 1 in the third epoch."""
    (tmp_path / "mine.py").write_text(
        "import os, signal\nfrom pathlib import Path\nfrom rn50lib.data import order\n"
        "def shard(order_, rank, size, batch):\n"
        "    if rank == 1 and Path('m-0002.safetensors').exists():\n"
        "        if not Path('died').exists():\n"
        "            Path('died').touch()\n"
        "            os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return order.shard(order_, rank, size, batch)\n"
    )
    argv = argv_of(photos, "torchrun", "-e", "4", "--model-prefix", "m", "--max-restarts", "1",
                   "--override", "shard=mine.py:shard", "--report", "r.json")  # fmt: skip
    done = finish(argv, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "rank 1 was killed by signal 9" in done.stderr
    assert "2 workers go on from the newest checkpoint" in done.stderr
    assert "2 epochs are done" in done.stderr
    assert len(strict_json(tmp_path / "r.json")["metrics"]["train.loss"]) == 4


@pytest.mark.acceptance
@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_ten_kills_at_random_moments(launcher: str, group: Callable) -> None:
    dice = random.Random(4)
    for _ in range(10):
        run = group(launcher)
        time.sleep(dice.uniform(0, 3))
        victim = dice.randrange(2)
        run.worker(victim).kill()
        begin = time.monotonic()
        assert run.process.wait(PATIENCE) == 128 + signal.SIGKILL, run.output.read_text()
        assert time.monotonic() - begin < 10
        (error,) = run.errors()
        assert error.startswith(f"error: rank {victim} was killed by signal 9")
        run.all_gone()
