"""Scripts that take turns: their steps alternate, and a failure ends all of them."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

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
                   "workers": int, "batch-size": int}.items():
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
    args.report.write_text(json.dumps({"images_per_s": 1.0, "compute_ms": 20.0}))
"""


def runner(folder: Path, name: str, text: str, *more: object, ranks: int = 1) -> Runner:
    script = folder / f"{name}.py"
    script.write_text(text)
    flags = ["--spans", folder / f"{name}.log", "--warm-up", 2, "--steps", 10, *more]
    return Runner(name, script, flags, ranks, "torchrun" if ranks > 1 else "horovodrun", 2)


def test_steps_of_two_scripts_alternate(tmp_path: Path) -> None:
    first, second = (runner(tmp_path, name, SCRIPT) for name in ("first", "second"))
    race([first, second], warm_up=2, window=3, rounds=2)
    for each in (first, second):
        assert [len(turn) for turn in each.turns] == [3, 3]
        assert all(0.019 < seconds < 2 for turn in each.turns for seconds in turn)
    spans = {
        name: json.loads((tmp_path / f"{name}.log").read_text()) for name in ("first", "second")
    }
    blocks = [spans[name][2 + 5 * turn : 7 + 5 * turn] for turn in (0, 1) for name in spans]
    for one, other in zip(blocks, blocks[1:], strict=False):
        assert one[-1][1] <= other[0][0]  # one ends before the other begins


HOROVOD = """
import horovod.torch as hvd, torch
hvd.init()
exchange = lambda: hvd.allreduce(torch.ones(3))
"""


@pytest.mark.parametrize(
    "launcher", ["torchrun", pytest.param("horovodrun", marks=pytest.mark.needs("horovod"))]
)
def test_all_ranks_wait_for_their_turn(launcher: str, tmp_path: Path) -> None:
    text = SCRIPT
    if launcher == "horovodrun":
        text = text.replace("parser =", f"{HOROVOD}parser =", 1)
        text = text.replace("time.sleep(0.02)", "time.sleep(0.02); exchange()")
    both = runner(tmp_path, "both", text, ranks=2)
    both.launcher, other = launcher, runner(tmp_path, "other", SCRIPT)
    race([both, other], warm_up=2, window=3, rounds=2)
    assert len(both.turns) == len(other.turns) == 2
    assert bool(both.stopped) == (launcher == "horovodrun")
    middle = json.loads((tmp_path / "other.log").read_text())[2:7]
    for rank in "01":
        steps = json.loads((tmp_path / f"both.{rank}").read_text())
        assert steps[6][1] <= middle[0][0] and middle[-1][1] <= steps[7][0]


def test_failure_is_shown_and_ends_the_others(tmp_path: Path) -> None:
    good = runner(tmp_path, "good", SCRIPT)
    bad = runner(tmp_path, "bad", SCRIPT.replace("time.sleep(0.02)", "raise ValueError('no disk')"))
    with pytest.raises(RunFailed, match="bad ended with exit status 1") as failed:
        race([good, bad], warm_up=2, window=3, rounds=2)
    assert "no disk" in failed.value.log
    assert good.process and good.process.poll() is not None


def test_script_without_a_profiler_takes_no_turns(tmp_path: Path) -> None:
    plain = runner(tmp_path, "plain", SCRIPT.replace("trace.step()", "pass"))
    race([plain, runner(tmp_path, "other", SCRIPT)], warm_up=2, window=3, rounds=2)
    assert plain.turns == []


def test_waiting_ends_with_the_notebook(tmp_path: Path) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    waiting = turns.Turns(str(tmp_path), "a", gone.pid, 1, 1, 1)
    with pytest.raises(ProcessLookupError):
        waiting.after_step()


@pytest.mark.parametrize("memory", [2**40, 2**20])
def test_ladder_records_the_turns(
    memory: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def finished(rung: str) -> Path:
        script = tmp_path / f"{rung}.py"
        script.write_text(SCRIPT)
        return script

    here = SimpleNamespace(runs=tmp_path, data_root=tmp_path, profile="cpu")
    monkeypatch.setattr(ladder.session, "need", lambda: here)
    monkeypatch.setattr(ladder, "finished", finished)
    monkeypatch.setattr(ladder.hardware, "machine", lambda: replace(LAPTOP, memory=memory))
    flags = {"batch_size": 4, "steps": 3, "warm_up": 2, "workers": 1}
    found = ladder.race(["1_single", "2_ddp"], turns=2, ranks=1, **flags)
    assert list(found) == ["1_single", "2_ddp"]
    for report in found.values():
        low, high = sorted(report["turns"])
        assert low <= report["images_per_s"] <= high < 4 / 0.019
        assert report["compute_ms"] == 20
    record = json.loads((tmp_path / "ladder.json").read_text())
    assert record["rungs"]["2_ddp"] == found["2_ddp"]
    assert ("do not fit" in capsys.readouterr().out) == (memory == 2**20)
