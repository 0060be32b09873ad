"""Workers of other launchers: how they find each other, and how they end while they wait."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest.mock import patch

import psutil
import pytest

from rn50 import launch
from rn50lib.distributed.launch_env import LaunchEnv
from tests.conftest import clean_environment
from tests.launch.test_workers import ENDLESS, Run, argv_of
from tests.support import TINY, Photos, free_port, full, strict_json, until

pytestmark = pytest.mark.slow
PATIENCE = 120.0  # seconds for things that take a few when the machine is idle
IMPATIENT = """
import runpy
from rn50lib import lifetime
lifetime.ANNOUNCED_S = lifetime.GRACE_S = 0.5
runpy.run_module("rn50", run_name="__main__", alter_sys=True)
"""


class Workers:
    """Processes of `rn50 train`, with the output of each."""

    def __init__(self, photos: Photos, folder: Path) -> None:
        self.photos, self.folder = photos, folder
        self.running: list[subprocess.Popen] = []

    def start(
        self, *flags: str, by: Callable[[list[str]], list[str]] = list, **env: str
    ) -> subprocess.Popen:
        argv = [*launch.program("train"), "--data-root", str(self.photos.root), *TINY, "-e", "1"]
        with open(self.folder / f"{len(self.running)}.log", "wb") as log:
            process = subprocess.Popen(
                by([*argv, *flags]), cwd=self.folder, env=clean_environment(**env),
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self.running.append(process)
        return process

    def text(self) -> str:
        return "\n".join(path.read_text() for path in sorted(self.folder.glob("*.log")))


@pytest.fixture
def workers(photos: Photos, tmp_path: Path) -> Iterator[Workers]:
    workers = Workers(photos, tmp_path)
    yield workers
    for process in workers.running:
        if process.poll() is None:
            for below in psutil.Process(process.pid).children(recursive=True):
                below.kill()
            process.kill()
            process.wait()


@pytest.mark.acceptance  # test_rank_comes_from_the_launcher reads the variables
@pytest.mark.needs("torch")
def test_processes_of_mpich_train_together(workers: Workers, tmp_path: Path) -> None:
    """Two that PMI_RANK and PMI_SIZE alone describe."""
    port = str(free_port())
    started = [
        workers.start("--report", "r.json", PMI_RANK=str(rank), PMI_SIZE="2", MASTER_PORT=port)
        for rank in range(2)
    ]
    assert [process.wait(PATIENCE) for process in started] == [0, 0], workers.text()
    report = strict_json(tmp_path / "r.json")
    assert report["ngpus"] == 2 and report["env"]["weights_apart"] == 0.0


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param("pmi", marks=pytest.mark.needs("torch")),
        pytest.param("horovodrun", marks=[pytest.mark.needs("horovod"), pytest.mark.acceptance]),
    ],
)
def test_sigterm_ends_a_worker_that_waits(launcher: str, workers: Workers) -> None:
    """The other worker never comes. Before it is ended, the wait is announced."""
    if launcher == "pmi":
        port = str(free_port())
        process = workers.start(
            by=lambda argv: [argv[0], "-c", IMPATIENT, *argv[3:]],
            PMI_RANK="0", PMI_SIZE="2", MASTER_PORT=port,
        )  # fmt: skip
        worker = psutil.Process(process.pid)
    else:
        script = '[ "$HOROVOD_RANK" = 1 ] && exec sleep 600; exec "$@"'
        config = full(n=2, comm="horovod", launcher="horovodrun")
        process = workers.start(
            by=lambda argv: launch.horovodrun(config.n, ["sh", "-c", script, "--", *argv])
        )
    until(lambda: "waiting for rank 1" in workers.text(), workers.text, PATIENCE)
    if launcher != "pmi":
        (worker,) = (
            one
            for one in psutil.Process(process.pid).children(recursive=True)
            if one.cmdline()[1:4] == launch.program("train")[1:]
        )
    worker.terminate()
    status = worker.wait(20)  # of a child; psutil does not know that of the launcher's
    assert status in (143, None), workers.text()
    assert "Traceback" not in workers.text().partition("Launcher")[0]
    process.wait(PATIENCE)


@pytest.mark.needs("torch")
@pytest.mark.parametrize("rank", ["0", pytest.param("1", marks=pytest.mark.acceptance)])
def test_a_worker_whose_peer_never_comes_is_one_error(rank: str, workers: Workers) -> None:
    port = str(free_port())
    process = workers.start("--comm-timeout", "1", PMI_RANK=rank, PMI_SIZE="2", MASTER_PORT=port)
    assert process.wait(PATIENCE) == 2, workers.text()
    assert f"error: --comm ddp: rank {rank} of 2 cannot reach the others at " in workers.text()
    assert "Traceback" not in workers.text()


@pytest.mark.acceptance
@pytest.mark.needs("torch")
def test_sigterm_ends_a_worker_whose_peer_hangs(photos: Photos, tmp_path: Path) -> None:
    run = Run(argv_of(photos, "torchrun", *ENDLESS), tmp_path)
    try:
        worker, peer = run.worker(0), run.worker(1)
        peer.suspend()
        worker.terminate()
        worker.wait(PATIENCE)
        peer.resume()  # torchrun waits 30 s before it kills one that does not answer
        assert run.ends() == 143, run.text()
    finally:
        for process in run.below:
            if process.is_running():
                process.kill()
        run.process.kill()
        run.process.wait()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"PMIX_RANK": "1"}, "PMIX_RANK=1"),
        ({"PALS_RANKID": "0", "PMI_RANK": "0"}, "PALS_RANKID=0, PMI_RANK=0"),
        ({"ALPS_APP_PE": "3"}, "ALPS_APP_PE=3"),
        ({"FLUX_TASK_RANK": "1", "FLUX_JOB_SIZE": "2"}, "FLUX_TASK_RANK=1"),
        ({"JSM_NAMESPACE_RANK": "0", "PMIX_RANK": "0"}, "JSM_NAMESPACE_RANK=0"),
        ({"SM_HOSTS": '["algo-1","algo-2"]'}, "SM_HOSTS="),
        ({"NODE_RANK": "1"}, "NODE_RANK=1"),
        ({"RANK": "0"}, "RANK=0"),
        ({"PMI_RANK": "2", "PMI_SIZE": "2"}, "PMI_RANK=2 with PMI_SIZE=2"),
        ({"PMI_RANK": "one", "PMI_SIZE": "2"}, "PMI_RANK='one' is not a whole number"),
        ({"RANK": "-1", "WORLD_SIZE": "2"}, "RANK='-1'"),
        ({"PMI_RANK": "1", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2"},
         "set MASTER_ADDR"),
        ({"PMI_RANK": "1", "PMI_SIZE": "2", "MASTER_PORT": "http"}, "others at 127.0.0.1:http"),
    ],
)  # fmt: skip
def test_a_launcher_that_is_not_understood_is_refused(
    env: dict[str, str], words: str, rn50: Callable, photos: Photos
) -> None:
    with patch.dict(os.environ, env):  # also undoes what the worker sets for torch.distributed
        assert words in rn50("train", "--data-root", photos.root, *TINY, "-e", "1").error


def test_run_that_a_launcher_started_several_times_is_refused(
    rn50: Callable, photos: Photos, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PMI_RANK", "0")
    monkeypatch.setenv("PMI_SIZE", "2")
    error = rn50("run", "--data-root", photos.root, *TINY, "-e", "1").error
    assert "mpiexec has started 2 of it" in error and "rn50 train" in error


def test_a_process_that_called_mpi_may_start_a_run() -> None:
    """MPI_Init of a single process leaves PMIX_RANK=0 in the environment of its children."""
    assert LaunchEnv.detect({"PMIX_RANK": "0"}) is None
