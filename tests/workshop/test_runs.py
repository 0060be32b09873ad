"""`workshop.train`: real runs in separate processes that end, fail, and die with their kernel."""

from __future__ import annotations

import os
import subprocess
import sys

import psutil
import pytest

from rn50lib.errors import UserError
from workshop import session, train

SMALL = {
    "loader": "synthetic", "network": "tiny", "num_classes": 4, "image_shape": 32, "batch_size": 4,
    "data_nthreads": 0, "threads": 1, "disp_batches": 2, "profile": "cpu",
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_places(tmp_path, monkeypatch):
    monkeypatch.setenv("RN50_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("RN50_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(session, "_current", None)
    monkeypatch.chdir(tmp_path)


def test_unknown_setting_is_refused_before_anything_starts(tmp_path):
    with pytest.raises(UserError, match="no setting 'batchsize': did you mean batch_size?"):
        train(batchsize=3)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_run_leaves_report_progress_and_lines(tmp_path, capsys):
    run = train(name="first", **SMALL, num_epochs=2, benchmark_iters=6, report="mine.json")
    assert run.dir.parent == tmp_path / "runs" and run.dir.name.endswith("-first")
    assert run.wait() is run
    assert run.report["model"] == "resnet-tiny"
    assert (run.dir / "mine.json").exists()
    assert [line["epoch"] for line in run.progress if line["phase"] == "epoch"] == [0, 1]
    printed = capsys.readouterr().out
    assert "epoch 1 done: loss" in printed and "epoch 2 done: loss" in printed
    before = run.progress
    with (run.dir / "progress.jsonl").open("ab") as more:
        more.write(b'{"phase": ')
    assert run.progress == before  # nothing that is being written is read


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_run_dies_with_its_kernel(tmp_path):
    code = (
        "from workshop import train; import time\n"
        f"run = train(**{SMALL!r}, num_epochs=90, benchmark_iters=10000)\n"
        "while not run.progress: time.sleep(0.1)\n"
        "print(run._job.pid, flush=True)\ntime.sleep(300)"
    )
    kernel = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(next(line for line in kernel.stdout if line.strip().isdigit()))
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    os.kill(kernel.pid, 9)
    kernel.wait()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
