"""`workshop.train`: real runs in separate processes, watched, killed, resumed, failing."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import psutil
import pytest

from rn50lib.errors import UserError
from tests.launch import fake_gpus
from workshop import RunFailed, live, runs, session, train

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
    assert run.wait() is run and not run.running and run.succeeded
    assert run.report["model"] == "resnet-tiny"
    assert (run.dir / "mine.json").exists()
    assert [line["epoch"] for line in run.progress if line["phase"] == "epoch"] == [0, 1]
    assert run.resolved["experiment"]["num_epochs"] == 2
    assert "--config" in run.command and run.command_line.startswith("rn50 run --")
    printed = capsys.readouterr().out
    assert "epoch 1 done: loss" in printed and "epoch 2 done: loss" in printed
    before, file = run.progress, run.dir / "progress.jsonl"
    file.write_bytes(b" " * file.stat().st_size + b'{"phase": ')
    assert run.progress == before  # nothing is read twice, and nothing that is being written
    with file.open("ab") as more:
        more.write(b'"epoch"}\n')
    assert run.progress == [*before, {"phase": "epoch"}]


FORKS = """
import os, time
taken = bytearray(os.urandom(100 << 20))
for _ in range(3):
    if os.fork() == 0:
        time.sleep(60)
print("ready", flush=True)
time.sleep(60)
"""


def test_memory_counts_shared_pages_once():
    process = subprocess.Popen([sys.executable, "-c", FORKS], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "ready\n"
        assert 100 << 20 < live.memory_of(process.pid) < 200 << 20
    finally:
        for child in psutil.Process(process.pid).children():
            child.kill()
        process.kill()
        process.wait()


def test_gpus_are_those_of_the_run(tmp_path, monkeypatch):
    fake_gpus.install(monkeypatch, [fake_gpus.V100] * 4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1,0")
    assert [handle["uuid"][:6] for handle in live.gpu_handles(2)] == ["GPU-3a", "GPU-1a"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert live.gpu_handles(1) == []


def test_waiting_prints_each_line_once(monkeypatch, capsys):
    monkeypatch.setattr(runs, "QUIET_S", -1.0)
    spoken = runs.Spoken()
    for second, status in enumerate(["starting", "starting", "starting", "starting (data)"], 4):
        spoken.alive(second, status)
    spoken.alive(8, "starting (data)")
    spoken.line("epoch 1 done: loss 2.0")
    spoken.end()
    assert capsys.readouterr().out.splitlines() == [
        "4 s: starting", "..", "7 s: starting (data)", ".", "epoch 1 done: loss 2.0",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_start_of_a_run_is_printed_once(monkeypatch, capsys):
    monkeypatch.setattr(runs, "QUIET_S", 0.3)
    train(**SMALL, num_epochs=1, benchmark_iters=3).wait()
    lines = capsys.readouterr().out.splitlines()
    told = [line.partition(": ")[2] for line in lines if ": starting" in line]
    assert told and len(set(told)) == len(told)
    assert any(line and not line.strip(".") for line in lines)


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_live_figure_updates_and_stays(monkeypatch):
    import IPython.display

    shown: list[tuple[str, dict]] = []

    def record(data, display_id, metadata=None, **_):
        shown.append((display_id, data))

    monkeypatch.setattr(IPython.display, "display", record)
    monkeypatch.setattr(IPython.display, "update_display", record)
    monkeypatch.setattr(live, "DRAW_S", 0.2)
    run = train(**SMALL, num_epochs=3, benchmark_iters=600).live()
    drawn = [(place, data.get("text/html", "")) for place, data in shown]
    drawn = [(place, html) for place, html in drawn if html.startswith("<img ")]
    plots = [html for _, html in drawn]
    assert len({place for place, _ in drawn}) == 1
    assert len(set(plots)) > 2  # it moved, in one place
    bars = [data["text/html"] for _, data in shown if 'class="bar"' in data.get("text/html", "")]
    widths = [float(re.search(r"<i style=\"width:([\d.]+)%", bar)[1]) for bar in bars]
    assert widths == sorted(widths) and widths[-1] == 100.0
    assert "done in" in bars[-1] and run.command_line in shown[0][1]["text/plain"]
    assert "starting" in bars[0]  # it speaks before the first reading
    last = shown[-1][1]["text/plain"]
    assert last.startswith("The loss went from") and "images per second" in last


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_killed_run_resumes_in_its_folder(roadsigns_small, capsys):
    fields = {
        **SMALL,
        "loader": "native",
        "num_classes": None,
        "data_root": str(roadsigns_small.folder),
    }
    run = train(**fields, recipe="roadsigns", num_epochs=60, model_prefix="m")
    line = run.wait_for(lambda line: line["phase"] == "epoch" and line["epoch"] == 1)
    assert line["epoch"] == 1
    with pytest.raises(UserError, match="still running"):
        run.resume()
    workers = psutil.Process(run.pid).children(recursive=True)
    run.kill()
    assert not run.running and not run.succeeded
    assert "SIGTERM" not in (run.dir / "log.txt").read_text()  # it had no time for a checkpoint
    psutil.wait_procs(workers, timeout=1)
    assert not any(w.is_running() and w.status() != psutil.STATUS_ZOMBIE for w in workers)
    done = len([line for line in run.progress if line["phase"] == "epoch"])
    again = run.resume()
    first = again.wait_for(lambda line: line["phase"] == "epoch")
    assert first["epoch"] >= done - 1 and again.dir == run.dir
    again.stop()
    assert not again.running
    assert again.wait() is again  # stopped on purpose: no failure


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_failing_run_shows_its_last_lines():
    with pytest.raises(RunFailed, match="exit status 2") as failed:
        train(**{**SMALL, "loader": "native"}, data_root="/nowhere").wait()
    lines = failed.value._render_traceback_()
    assert "/nowhere" in "\n".join(lines) and not any("Traceback" in line for line in lines)
    assert len(lines) <= 1 + runs.LOG_LINES


@pytest.mark.slow
@pytest.mark.needs("torch")
def test_run_dies_with_its_kernel(tmp_path):
    code = (
        "from workshop import train; import time\n"
        f"run = train(**{SMALL!r}, num_epochs=90, benchmark_iters=10000)\n"
        "run.wait_for(lambda line: True)\nprint(run.pid, flush=True)\ntime.sleep(300)"
    )
    kernel = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    pid = int(next(line for line in kernel.stdout if line.strip().isdigit()))
    family = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
    os.kill(kernel.pid, 9)
    kernel.wait()
    _, alive = psutil.wait_procs(family, timeout=20)
    assert [p for p in alive if p.status() != psutil.STATUS_ZOMBIE] == []
