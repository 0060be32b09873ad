"""The scripts of the ladder: short, each a small change from the one before, and they train."""

from __future__ import annotations

import difflib
import json
import math
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.conftest import ROOT, clean_environment
from tests.support import LAPTOP, Photos
from workshop import ladder

LADDER = ROOT / "exercises" / "ladder"
BEFORE = {
    "ladder/2_ddp": "ladder/1_single",
    "ladder/2_horovod": "ladder/1_single",
    "ladder/3_dali": "ladder/2_horovod",
    "ladder/4_amp": "ladder/3_dali",
    "ladder/5_tuned": "ladder/4_amp",
    "ladder/6_compiled": "ladder/5_tuned",
    "recipes/train_horovod": "recipes/train_single",
    "recipes/train_tfrecord": "recipes/train_horovod",
}
HOROVOD = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", "2", sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def lines(script: str) -> list[str]:
    return (ROOT / "exercises" / f"{script}.py").read_text().splitlines()


def test_first_script_has_at_most_120_lines() -> None:
    assert len(lines("ladder/1_single")) <= 120
    assert sorted(ladder.RUNGS) == sorted(path.stem for path in LADDER.glob("*.py"))


@pytest.mark.parametrize(("script", "before"), BEFORE.items())
def test_each_step_adds_at_most_30_lines(script: str, before: str) -> None:
    diff = difflib.ndiff(lines(before), lines(script))
    assert len([line for line in diff if line.startswith("+ ")]) <= 30


def test_mistakes_that_cost_no_time_are_reported(monkeypatch) -> None:
    monkeypatch.setattr(ladder.hardware, "machine", lambda: LAPTOP)
    ddp, amp = (LADDER.joinpath(f"{rung}.py").read_text() for rung in ("2_ddp", "4_amp"))
    assert ladder._warnings(ddp) == ladder._warnings(amp) == []
    (order,) = ladder._warnings(ddp.replace("loader.sampler.set_epoch(epoch)", "pass"))
    (share,) = ladder._warnings(re.sub(r"DistributedSampler\(.*?\)", "None", ddp))
    assert "draws from all images" in share
    (scaler,) = ladder._warnings(amp.replace("scaler.step(", "optimizer.step("))
    assert scaler.startswith("✗ The loss scaler needs scaler.step")
    (autocast,) = ladder._warnings(amp.replace("autocast(device.type", 'autocast("cuda"'))
    assert "set_epoch" in order and "without a GPU" in autocast


@pytest.mark.acceptance
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("rung", "launcher"),
    [
        ("1_single", [sys.executable]),
        ("2_ddp", TORCHRUN),
        pytest.param("2_horovod", HOROVOD, marks=pytest.mark.needs("horovod")),
        pytest.param("3_dali", HOROVOD, marks=pytest.mark.needs("horovod", "dali")),
        pytest.param("5_tuned", HOROVOD, marks=pytest.mark.needs("horovod", "dali")),
        pytest.param("6_compiled", HOROVOD, marks=pytest.mark.needs("horovod", "dali")),
    ],
)
def test_script_trains_and_reports(
    rung: str, launcher: list[str], photos: Photos, tmp_path: Path
) -> None:
    import torch

    report, weights, trace = (tmp_path / name for name in ("report.json", "weights.pt", "t.json"))
    done = subprocess.run(
        [*launcher, LADDER / f"{rung}.py", "--data", photos.root, "--image-size", "32",
         "--batch-size", "4", "--steps", "4", "--warm-up", "1", "--workers", "1",
         "--report", report, "--save", weights, "--trace", trace],
        env=clean_environment(OMP_NUM_THREADS="1"), cwd=tmp_path, text=True,
        capture_output=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    parts = {"input_ms", "compute_ms", "communication_ms"} & found.keys()
    images = 4 * (1 if rung == "1_single" else 2)
    step_ms = sum(found[part] for part in parts)
    assert found["images_per_s"] == pytest.approx(1000 * images / step_ms)
    assert ("communication_ms" in parts) == (launcher is HOROVOD)
    assert math.isfinite(found["loss"])
    events = json.loads(trace.read_text())["traceEvents"]
    ranges = Counter(e["name"] for e in events if e.get("cat") == "user_annotation")
    for name in ("input", "forward", "backward", "update"):
        assert ranges[name] == 3, ranges
    assert ranges["exchange"] == (3 if launcher is HOROVOD else 0)
    state = torch.load(weights, weights_only=True)
    assert state["fc.weight"].shape == (6, 2048)


def test_own_script_is_used_for_the_rung_that_it_is_written_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ladder.session, "need", lambda: type("S", (), {"runs": tmp_path}))
    assert ladder.script("1_single") == tmp_path / "train.py"
    assert ladder.script("2_ddp") == LADDER / "2_ddp.py"  # not edited yet
    for rung in ladder.RUNGS:  # with a change of the learner's own
        text = (LADDER / f"{rung}.py").read_text() + "# TODO: import horovod\nprint('mine')\n"
        (tmp_path / "train.py").write_text(text)
        for asked in ladder.RUNGS:
            path = tmp_path / "train.py" if asked == rung else LADDER / f"{asked}.py"
            assert ladder.script(asked) == path
            assert ("your script" in capsys.readouterr().out) == (asked == rung)
        assert (tmp_path / "train.py").read_text() == text
