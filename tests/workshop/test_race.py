"""Scripts that take turns: their steps alternate, and a failure ends all of them."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from rn50lib.hardware import Gpu
from tests.support import LAPTOP
from workshop import ladder, turns
from workshop.errors import RunFailed
from workshop.race import Runner, race

pytestmark = [pytest.mark.slow, pytest.mark.needs("torch")]

SCRIPT = """
import argparse, json, os, time
from pathlib import Path
from torch.profiler import ProfilerAction, profile
parser = argparse.ArgumentParser()
for name, kind in {"data": Path, "report": Path, "spans": Path, "steps": int, "warm-up": int,
                   "workers": int, "batch-size": int, "trace": Path}.items():
    parser.add_argument(f"--{name}", type=kind)
args = parser.parse_args()
log = args.spans or args.report.with_suffix(".log")
spans = []
with profile(schedule=lambda step: ProfilerAction.NONE) as trace:
    for step in range(args.warm_up + args.steps):
        begin = time.time()
        time.sleep(0.02)
        spans.append((begin, time.time()))
        trace.step()
rank = os.environ.get("RANK", os.environ.get("HOROVOD_RANK", ""))
log.with_suffix("." + (rank or "log")).write_text(json.dumps(spans))
if args.report:
    diverged = float("nan")
    args.report.write_text(
        json.dumps({"images_per_s": 1.0, "compute_ms": 20.0, "loss": diverged})
    )
"""


def runner(folder: Path, name: str, text: str, *more: object, ranks: int = 1) -> Runner:
    script = folder / f"{name}.py"
    script.write_text(text)
    flags = ["--spans", folder / f"{name}.log", "--warm-up", 2, "--steps", 10, *more]
    return Runner(name, script, flags, ranks, "torchrun" if ranks > 1 else "horovodrun", 2)


LOADER = """
import multiprocessing, time
def work():
    while multiprocessing.parent_process().is_alive():  # as PyTorch's workers do
        with open({ticks!r}, "a") as file:
            print(time.time(), file=file)
        time.sleep(0.01)
loader = multiprocessing.get_context("fork").Process(target=work, daemon=True)
loader.start()
"""

HOROVOD = """
import horovod.torch as hvd, torch
hvd.init()
exchange = lambda: hvd.allreduce(torch.ones(3))
"""


@pytest.mark.parametrize(
    "launcher",
    [
        pytest.param("torchrun", marks=pytest.mark.acceptance),
        pytest.param("horovodrun", marks=pytest.mark.needs("horovod")),
    ],
)
def test_steps_of_scripts_alternate_on_all_ranks(launcher: str, tmp_path: Path) -> None:
    text = SCRIPT
    if launcher == "horovodrun":
        text = text.replace("parser =", f"{HOROVOD}parser =", 1)
        text = text.replace("time.sleep(0.02)", "time.sleep(0.02); exchange()")
    both = runner(tmp_path, "both", text, ranks=2)
    both.launcher, other = launcher, runner(tmp_path, "other", SCRIPT)
    race([both, other], warm_up=2, window=3, rounds=2)
    for each in (both, other):
        assert [len(turn) for turn in each.turns] == [3, 3]
        assert all(0.019 < seconds < 2 for turn in each.turns for seconds in turn)
    assert len(both.stopped) == 2
    spans = json.loads((tmp_path / "other.log").read_text())
    for rank in "01":
        steps = json.loads((tmp_path / f"both.{rank}").read_text())
        order = [steps[2:7], spans[2:7], spans[7:], steps[7:]]  # the first two warm up
        for (*_, (_, end)), ((begin, _), *_) in itertools.pairwise(order):
            assert end <= begin


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_loader_does_not_work_ahead_while_others_train(ranks: int, tmp_path: Path) -> None:
    ticks = tmp_path / "ticks"
    slow = SCRIPT.replace("0.02", "0.2")
    text = LOADER.format(ticks=str(ticks)) + SCRIPT
    both, other = runner(tmp_path, "both", text, ranks=ranks), runner(tmp_path, "other", slow)
    race([both, other], warm_up=2, window=3, rounds=2)
    spans = json.loads((tmp_path / "other.log").read_text())
    made = [float(line) for line in ticks.read_text().split()]
    turns = [(spans[2][0], spans[6][1]), (spans[7][0], spans[-1][1])]
    assert not [at for at in made for begin, end in turns if begin + 0.1 < at < end]
    assert [at for at in made if at > spans[6][1]]  # it goes on in its own turn


@pytest.mark.parametrize(
    ("launcher", "ranks"),
    [
        ("torchrun", 2),
        pytest.param("horovodrun", 2, marks=pytest.mark.needs("horovod")),
        ("horovodrun", 1),
    ],
)
def test_nothing_is_left_when_the_notebook_is_killed(
    launcher: str, ranks: int, tmp_path: Path, repository: Path
) -> None:
    """Although ranks and their loaders are stopped at that moment."""
    one, other = (
        runner(tmp_path, name, LOADER.format(ticks=str(tmp_path / name)) + SCRIPT, ranks=ranks)
        for name in ("one", "other")
    )
    for each in (one, other):
        each.launcher, each.flags = launcher, [*each.flags, "--steps", 10000]
    code = (
        "import sys; from pathlib import Path; from workshop.race import Runner, race;"
        f"race([Runner(n, Path(n + '.py').resolve(), {[*map(str, one.flags)]}, {ranks},"
        f" {launcher!r}, 2) for n in ('one', 'other')], 2, 3, 1000)"
    )
    env = os.environ | {"PYTHONPATH": str(repository)}
    notebook = subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path, env=env)
    while not (tmp_path / "other").exists():  # their loaders work
        assert notebook.poll() is None
        time.sleep(0.1)
    time.sleep(2)
    mine = psutil.Process(notebook.pid).children(recursive=True)
    stopped = [process for process in mine if process.status() == psutil.STATUS_STOPPED]
    assert len(stopped) >= 2 * ranks
    notebook.kill()
    notebook.wait()
    assert psutil.wait_procs(mine, 20)[1] == []


def test_failure_is_shown_and_ends_the_others(tmp_path: Path) -> None:
    good = runner(tmp_path, "good", SCRIPT)
    text = SCRIPT.replace("time.sleep(0.02)", "raise ValueError('no disk')")
    bad = runner(tmp_path, "bad", text, ranks=2)
    with pytest.raises(RunFailed, match="bad ended with exit status 1") as failed:
        race([good, bad], warm_up=2, window=3, rounds=2)
    assert failed.value.log.endswith("ValueError: no disk")
    assert good.process and good.process.poll() is not None


@pytest.mark.parametrize(("calls", "took"), [("pass", 0), ("trace.step(), trace.step()", 4)])
def test_script_that_does_not_call_step_once_per_step_has_no_turns(
    calls: str, took: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plain = runner(tmp_path, "plain", SCRIPT.replace("trace.step()", calls))
    race([plain], warm_up=2, window=3, rounds=2)
    assert plain.turns == []
    said = f"plain.py took {took} of 2 turns: call trace.step() once in each step."
    assert said in capsys.readouterr().out


def test_parts_leave_out_the_lead(tmp_path: Path) -> None:
    text = SCRIPT.replace("spans = []", "spans, seconds = [], {'input': 0.0}")
    # each turn has a lead of two steps and three that count
    text = text.replace(
        "trace.step()",
        """trace.step()
        if step >= 2:
            seconds["input"] += 100.0 if (step - 2) % 5 < 2 else 1.0""",
    )
    text = text.replace("json.dumps(spans)", "json.dumps(seconds)")
    race([runner(tmp_path, "one", text)], warm_up=2, window=3, rounds=2)
    assert json.loads((tmp_path / "one.log").read_text()) == {"input": 6.0}


def test_waiting_ends_with_the_notebook(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    waiting = turns.Turns(str(tmp_path), "a", gone.pid, 1, 1, 1)
    with pytest.raises(ProcessLookupError):
        waiting.after_step()


def test_ladder_records_the_turns_without_traced_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def finished(rung: str) -> Path:
        script = tmp_path / f"{rung}.py"
        traced = 0.5 if rung == "1_single" else 0.02  # seconds of the profiler's steps
        # a turn has a lead of 8 steps and 3 that count; the last of three turns is slow
        sleep = f"time.sleep({traced} if 2 <= step < 2 + 4 else 0.02 if step < 2 + 2 * 11 else 0.1)"
        script.write_text(SCRIPT.replace("time.sleep(0.02)", sleep))
        return script

    here = SimpleNamespace(runs=tmp_path, data_root=tmp_path, profile="cpu", number="03")
    monkeypatch.setattr(ladder.session, "need", lambda: here)
    monkeypatch.setattr(ladder, "finished", finished)
    monkeypatch.setattr(ladder.hardware, "machine", lambda: replace(LAPTOP, memory=2**20))
    flags = {"batch_size": 4, "steps": 3, "warm_up": 2, "workers": 1, "trace": tmp_path / "t.json"}
    found = ladder.race(["1_single", "2_ddp"], turns=3, ranks=2, **flags)
    assert list(found) == ["1_single", "2_ddp"]
    for report, images in zip(found.values(), (4, 2 * 4), strict=True):
        low, middle, high = sorted(report["turns"])
        assert low < report["images_per_s"] == middle <= high < images / 0.019
        assert middle > 3 * images / 0.5
        assert report["compute_ms"] == pytest.approx(1000 * images / report["images_per_s"])
    record = json.loads((tmp_path / "ladder.json").read_text())
    assert record["rungs"]["2_ddp"] == found["2_ddp"] and found["2_ddp"]["loss"] is None
    assert "do not fit" in capsys.readouterr().out  # so they were not there at the same time


@pytest.mark.parametrize("plain", ["1_single", "2_ddp"])
def test_ladder_pairs_no_script_without_turns(
    plain: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def finished(rung: str) -> Path:
        script = tmp_path / f"{rung}.py"
        script.write_text(SCRIPT.replace("trace.step()", "pass") if rung == plain else SCRIPT)
        return script

    here = SimpleNamespace(runs=tmp_path, data_root=tmp_path, profile="ci", number="03")
    monkeypatch.setattr(ladder.session, "need", lambda: here)
    monkeypatch.setattr(ladder, "finished", finished)
    monkeypatch.setattr(ladder, "_fit_in_memory", lambda runners, batch: True)
    flags = {"batch_size": 4, "steps": 1, "warm_up": 1, "workers": 1, "own": "1_single", "guess": 9}
    found = ladder.race(["1_single", "2_ddp"], turns=2, ranks=1, **flags)
    assert found[plain]["turns"] == [1.0] and not found[plain]["paired"]
    assert not any("gains" in report for report in found.values())
    record = json.loads((tmp_path / "ladder-ci.json").read_text())  # no other profile draws it
    assert record["predictions"] == {"1_single": 9} and not (tmp_path / "ladder.json").exists()


def test_traced_run_is_not_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "1_single.py"
    script.write_text(SCRIPT)
    here = SimpleNamespace(runs=tmp_path, data_root=tmp_path, profile="cpu", number="03")
    monkeypatch.setattr(ladder.session, "need", lambda: here)
    monkeypatch.setattr(ladder, "finished", lambda rung: script)
    flags = {"batch_size": 4, "steps": 1, "warm_up": 0, "workers": 1}
    assert ladder.climb("1_single", **flags, trace=tmp_path / "t.json")["images_per_s"] == 1
    assert not (tmp_path / "ladder.json").exists()


@pytest.mark.parametrize(
    ("gib", "gpu_gib", "fits"),
    [(8, 0, False), (16, 0, True), (128, 32, False), (128, 40, True), (8, 40, True)],
)
def test_rungs_start_together_if_memory_suffices(
    gib: int, gpu_gib: int, fits: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpus = (Gpu(0, "a GPU", gpu_gib * 2**30, (9, 0), "580", "GPU-0"),) if gpu_gib else ()
    machine = replace(LAPTOP, memory=gib * 2**30, gpus=gpus)
    monkeypatch.setattr(ladder.hardware, "machine", lambda: machine)
    monkeypatch.setattr(ladder, "used_memory", lambda gpu: 2**28)
    runners = [Runner(f"{n}", Path("a.py"), [], 2 if n else 1, "torchrun", 2) for n in range(5)]
    assert ladder._fit_in_memory(runners, 64) == fits
