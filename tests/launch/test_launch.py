"""Runs as processes: their environment, their folders, and how they begin and end."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from rn50 import launch
from rn50.allocator import ALLOCATOR
from rn50.diagnose.measure import start_run
from rn50lib.config import Resolved
from rn50lib.errors import UserError
from rn50lib.lifetime import GROUP, SUPERVISED, Wait, stop
from tests.conftest import clean_environment
from tests.support import TINY, Photos, full, until

PATIENCE = 60.0  # seconds for things that take one when the machine is idle
# a run that goes on until it is ended: its model is a wait, its loader has workers
ENDLESS = ("--set", "step=2000", "-e", "100000", "--disp-batches", "1", "--data-nthreads", "2")


# --- environment --------------- --------------------------------------------------------------


@pytest.mark.parametrize("own", ["", "glibc.pthread.rseq=0", "glibc.malloc.trim_threshold=1"])
def test_threads_and_allocator_are_set(monkeypatch: pytest.MonkeyPatch, own: str) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", own)
    env = launch.rank_environment(full(threads=3))
    assert env["OMP_NUM_THREADS"] == env["MKL_NUM_THREADS"] == "3"
    if sys.platform == "linux":  # a user's setting of malloc stays as it is
        added = [] if "malloc" in own else [ALLOCATOR]
        assert env["GLIBC_TUNABLES"] == ":".join([*filter(None, [own]), *added])


KEEPS = """import resource, sys
import numpy as np
from rn50 import allocator
if sys.argv[1] == "keep":
    allocator.keep_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.empty(2**24).fill(1)  # 128 MiB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults(), faults())"""


def test_kept_memory_costs_no_page_faults():
    counts = {}
    for word in ("keep", "return"):
        words = [sys.executable, "-c", KEEPS, word]
        done = subprocess.run(words, check=True, text=True, capture_output=True, timeout=60)
        counts[word] = [int(count) for count in done.stdout.split()]
    assert counts["return"][1] > 60 and counts["keep"][0] > 60  # 64 with pages of 2 MiB
    assert counts["keep"][1] < 10


def test_a_child_finds_the_library_from_anywhere(tmp_path: Path) -> None:
    env = launch.with_library({"PATH": os.environ["PATH"], "PYTHONPATH": "/somewhere"})
    assert env["PYTHONPATH"].endswith(os.pathsep + "/somewhere")
    done = subprocess.run(
        [*launch.program("run"), "--help"], cwd=tmp_path, env=env, capture_output=True
    )
    assert done.returncode == 0, done.stderr
    again = launch.with_library(dict(env))
    assert again["PYTHONPATH"] == env["PYTHONPATH"]  # once is enough


@pytest.mark.parametrize("own", [{}, {"GOMP_SPINCOUNT": "7"}, {"OMP_WAIT_POLICY": "ACTIVE"}])
def test_waiting_threads_spin_briefly_unless_the_user_decides(own: dict[str, str]) -> None:
    variables = {"GOMP_SPINCOUNT", "OMP_WAIT_POLICY"}
    env = {k: v for k, v in os.environ.items() if k not in variables} | own
    child = [sys.executable, "-c", "import os; print(dict(os.environ))"]
    env = launch.with_library(env)
    done = subprocess.run(child, env=env, check=True, text=True, capture_output=True)
    found = ast.literal_eval(done.stdout)
    assert {k: found[k] for k in variables & found.keys()} == (own or {"GOMP_SPINCOUNT": "5000"})


# --- folders --------------------------------------------------------------------------------------


def test_every_run_gets_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RN50_RUNS", str(tmp_path / "runs"))
    monkeypatch.setattr(time, "strftime", lambda form, when: "20261121T070000Z")
    names = [launch.new_run("run").name for _ in range(3)]
    assert names == [f"20261121T070000Z-run{end}" for end in ("", "-1", "-2")]
    assert sorted(p.name for p in (tmp_path / "runs").iterdir()) == sorted(names)


def test_a_folder_that_cannot_be_made_names_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RN50_RUNS", str(tmp_path / "file"))
    with pytest.raises(UserError, match="RN50_RUNS"):
        launch.new_run("run")


# --- life and death -------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize("seconds", [0.0, 0.2])
def test_ctrl_c_during_loading_prints_no_traceback(tmp_path: Path, seconds: float) -> None:
    output = tmp_path / "output"
    with open(output, "wb") as file:
        run = subprocess.Popen(
            [*launch.program("run"), "--loader", "synthetic", *TINY, *ENDLESS],
            stdin=subprocess.DEVNULL, stdout=file, stderr=file, cwd=tmp_path,
            env=clean_environment(RN50_RUNS=str(tmp_path)), start_new_session=True,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
    process = psutil.Process(run.pid)
    loading: list[psutil.Process] = []

    def is_worker(child: psutil.Process) -> bool:
        with contextlib.suppress(psutil.Error):  # another child, which has just ended
            return "rn50lib.train" in child.cmdline()
        return False

    def worker_is_there() -> bool:
        loading[:] = filter(is_worker, process.children())
        return bool(loading)

    try:
        until(worker_is_there, output.read_text)
        time.sleep(seconds)
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(PATIENCE) == 130
    finally:
        if run.poll() is None:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
    text = output.read_text()
    assert "Traceback" not in text and text.count("interrupted") <= 1, text
    assert not psutil.wait_procs(loading, timeout=15)[1]


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_a_job_runs_writes_its_folder_and_can_be_ended(photos: Photos, tmp_path: Path) -> None:
    asked = dict(
        data_root=str(photos.root), network="tiny", image_shape=32, batch_size=8, threads=1,
        data_nthreads=0, dtype="float32", recipe="reference", num_epochs=100_000, step=2000.0,
        disp_batches=1,
    )  # fmt: skip
    (tmp_path / "run").mkdir()
    job = start_run(asked, tmp_path / "run")
    log = tmp_path / "run" / "log.txt"
    try:
        progress = tmp_path / "run" / "progress.jsonl"
        until(lambda: progress.exists() and progress.read_text().count("\n") > 2, log.read_text)
        assert job.poll() is None
        below = psutil.Process(job.pid).children(recursive=True)
        assert stop(job, launch.SAVE_S) != 0 and job.poll() is not None
        assert not psutil.wait_procs(below, timeout=15)[1]
    finally:
        job.kill()
    told = json.loads((tmp_path / "run" / "experiment.json").read_text())
    assert told["experiment"]["num_epochs"] == 100_000
    assert "step=2000 " in log.read_text()
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert job.args[-1].endswith("config.json") and config["step"] == 2000
    assert "seed" not in config  # it was not given


@pytest.mark.parametrize(
    ("ends", "status", "said"),
    [
        ("return 0", 0, ""),
        ("return 2", 2, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('error: gone')", 1, "error: gone"),
        ("raise ValueError('bad luck')", 1, "ValueError: bad luck"),
    ],
)
def test_worker_exits_without_interpreter_teardown(ends, status, said) -> None:
    """Registered functions still run and all output arrives.

    A teardown would abort the process if a thread of the group still holds a Python object.
    """
    program = f"""
import atexit, sys
from rn50lib.lifetime import end_with
class Held:
    def __del__(self): print("torn down")
held = Held()
def work():
    atexit.register(print, "registered")
    print("worked")
    {ends}
end_with(work)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == status
    assert done.stdout.split("\n") == ["worked", "registered", ""]
    assert said in done.stderr and bool(done.stderr) == bool(said)


@pytest.mark.parametrize(
    ("ends", "status", "recorded"),
    [
        ("lifetime.record_end(0); os.abort()", 0, (0, 0)),
        ("lifetime.record_end(0); os.kill(os.getpid(), signal.SIGKILL)", 137, (0, 0)),
        ("lifetime.record_end(1); os.abort()", 134, (1, 0)),
        ("os.abort()", 134, (134, 6)),
        ("sys.exit(3)", 3, (3, 0)),
    ],
)
def test_only_an_abort_after_success_is_not_a_failure(
    ends: str, status: int, recorded: tuple[int, int], tmp_path: Path
) -> None:
    program = f"import os, signal, sys\nfrom rn50lib import lifetime\nlifetime.register(0)\n{ends}"
    group = f"{socket.gethostname()}:{os.getpid()}:{tmp_path}"
    done = subprocess.run(
        [*SUPERVISED, sys.executable, "-c", program],
        env={**os.environ, GROUP: group}, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    end = json.loads((tmp_path / "0.ended").read_text())
    assert (done.returncode, end["status"], end["signal"]) == (status, *recorded)


@pytest.mark.parametrize(("status", "runs"), [(0, 1), (2, 1), (130, 1), (143, 1), (1, 3), (137, 3)])
def test_only_a_failure_restarts_a_run(
    status: int, runs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not success, bad input, Ctrl-C or SIGTERM. A restarted run resumes."""
    resumes: list[bool] = []

    def run_once(resolved: Resolved, folder: Path) -> launch.Outcome:
        resumes.append(resolved.config.resume)
        return launch.Outcome(status, None)

    monkeypatch.setattr(launch, "run_once", run_once)
    resolved = Resolved(full(max_restarts=2, model_prefix="m"))
    assert launch.run(resolved, tmp_path) == status
    assert resumes == [False, True, True][:runs]


@pytest.mark.parametrize(("reason", "runs"), [("so long a run", [True, False]), ("given", [True])])
def test_a_run_that_cannot_compile_starts_again_unless_it_was_asked_to(
    reason: str, runs: list[bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled: list[bool] = []

    def run_once(resolved: Resolved, folder: Path) -> launch.Outcome:
        compiled.append(resolved.config.compile)
        failed = launch.Outcome(2, "--compile: no compiler", ("compile",))
        return failed if resolved.config.compile else launch.Outcome(0, None)

    monkeypatch.setattr(launch, "run_once", run_once)
    resolved = Resolved(full(compile=True), {"compile": reason})
    assert launch.run(resolved, tmp_path) == (2 if reason == "given" else 0)
    assert compiled == runs


def test_a_wait_inside_another_ends_alone() -> None:
    """SIGTERM ends a worker that still waits for other ranks in the outer one."""
    before = Wait.current
    with Wait() as outer:
        with Wait(lambda: "rank 1"):
            pass
        assert Wait.current is outer
    assert Wait.current is before
