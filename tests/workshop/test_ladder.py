"""The scripts of the ladder: short, each a small change from the one before, and they train."""

from __future__ import annotations

import ast
import difflib
import itertools
import json
import math
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from data_prep import tfrecord
from rn50 import plot
from rn50lib.hardware import Gpu
from tests.conftest import ROOT, clean_environment
from tests.support import LAPTOP, Photos
from tests.workshop.test_trace import check_trace
from workshop import ladder, rungs
from workshop.trace import KINDS

LADDER = ROOT / "exercises" / "ladder"
STEPS = {  # each script and the one before
    f"ladder/{after}_{library}": "ladder/1_single" if after == "2" else f"ladder/{before}_{library}"
    for before, after in itertools.pairwise(ladder.RUNGS)
    for library in ladder.LIBRARIES
}
SCRIPTS = [
    "1_single",
    *(f"{rung}_ddp" for rung in list(ladder.RUNGS)[1:]),
    *(
        pytest.param(f"{rung}_horovod", marks=pytest.mark.needs("horovod"))
        for rung in list(ladder.RUNGS)[1:]
    ),
]
GPU = Gpu(0, "a GPU", 2**34, (7, 0), "580", "GPU-0")
HOROVOD = [sys.executable, "-m", "horovod.runner.launch", "--gloo", "-np", "2", sys.executable]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def lines(script: str) -> list[str]:
    return (ROOT / "exercises" / f"{script}.py").read_text().splitlines()


def test_first_script_has_at_most_120_lines() -> None:
    assert len(lines("ladder/1_single")) <= 120
    ladders = {name.removeprefix("ladder/") for name in STEPS if name.startswith("ladder/")}
    assert {"1_single", *ladders} == {path.stem for path in LADDER.glob("*.py")}


@pytest.mark.parametrize(("script", "before"), STEPS.items())
def test_each_step_adds_at_most_30_lines(script: str, before: str) -> None:
    diff = difflib.ndiff(lines(before), lines(script))
    assert len([line for line in diff if line.startswith("+ ")]) <= 30


def without(script: str, pattern: str, instead: str = "pass") -> list[str]:
    """Return what is said about a finished script in which a pattern is replaced."""
    text = (LADDER / f"{script}.py").read_text()
    changed = re.sub(pattern, instead, text)
    assert changed != text, pattern
    return ladder._warnings(changed)


AUTOCAST = r", (torch\.autocast\(.*\)):\n"
LABEL = r'(data\["image/class/label"\]) - 1'


@pytest.mark.parametrize(
    ("script", "pattern", "instead", "said"),
    [
        ("1_single", r"optimizer\.zero_grad\(\)", "pass", "call zero_grad()"),
        ("1_single", r"(optimizer\.zero_grad\(\))", r"pass  # no \1", "call zero_grad()"),
        ("2_ddp", r"loader\.sampler\.set_epoch\(epoch\)", "pass", "call sampler.set_epoch(epoch)"),
        ("2_ddp", r"DistributedSampler\(.*?\)", "None", "draws from all images"),
        ("2_ddp", r"manual_seed\(.*\)\)", "manual_seed(0)", "same random numbers"),
        ("4_amp_horovod", r", optimizer\.skip_synchronize\(\)", "", "call optimizer.synchronize()"),
        ("2_horovod", r", optimizer\.skip_synchronize\(\)", "", "exchanges the gradients again"),
        ("4_amp_ddp", r".*= torch\.amp\.GradScaler.*\n", "", "add a GradScaler"),
        ("4_amp_ddp", AUTOCAST + r"((?s:.*?)\(.backward.\)):", r":\n\2, \1:", "the forward pass"),
        ("4_amp_ddp", AUTOCAST + "( +)(.*)", r":\n\2with \1:\n\2    \3", ""),
        ("4_amp_ddp", r"with (.*), (.*autocast\(.*\)):", r"with (\n\1,\n\2,\n):", ""),
        ("4_amp_ddp", r"scaler\.update\(\)", "pass", "The loss scaler needs"),
        ("4_amp_ddp", r"scaler\.step\(optimizer\)", "optimizer.step()", "The loss scaler needs"),
        ("4_amp_ddp", LABEL, r"\1", "subtract 1 from the labels"),
        ("4_amp_ddp", LABEL, r"\1.squeeze(-1)", "subtract 1 from the labels"),
        ("4_amp_ddp", LABEL, r"\1.subtract(1)", ""),
        ("4_amp_ddp", LABEL, r"torch.sub(\1, 1)", ""),
        ("4_amp_ddp", LABEL, r"\1.add(-1)", ""),
        ("4_amp_ddp", "scaler", "gs", ""),
        (
            "5_tuned_ddp",
            r"permute\(0, 3, 1, 2\)",
            "permute(0, 3, 2, 1)",
            "permute(0, 3, 1, 2) keeps",
        ),
        ("5_tuned_ddp", r"permute\(0, 3, 1, 2\)", "movedim(-1, 1)", ""),
        ("5_tuned_ddp", r"permute\(0, 3, 1, 2\)", "permute([0, -1, 1, 2])", ""),
    ],
)
def test_mistakes_that_cost_no_time_are_reported(
    script: str, pattern: str, instead: str, said: str
) -> None:
    lines = without(script, pattern, instead)
    assert len(lines) == bool(said) and all(said in line for line in lines), lines


@pytest.mark.parametrize("script", sorted(LADDER.glob("*.py")), ids=lambda path: path.stem)
def test_finished_scripts_have_no_known_mistake(script: Path) -> None:
    text = script.read_text()
    assert ladder._warnings(text) == []
    ranks = {"horovod": "hvd.size() * ", "ddp": "dist.get_world_size() * "}
    ranks_of = ranks.get(script.stem.split("_")[-1], "")
    assert f"lr = args.lr * {ranks_of}args.batch_size / 256" in text


@pytest.mark.parametrize(
    "line",
    [
        "torch.set_num_threads(1)",
        "colour = '#112233'; torch.set_num_threads(1)",
        "fn.crop_mirror_normalize(output_layout='HWC')",
        "model.register_comm_hook(None, default_hooks.fp16_compress_hook)",
    ],
)
def test_any_setting_of_rung_5_counts(line: str, tmp_path: Path) -> None:
    own = tmp_path / "train.py"
    own.write_text((LADDER / "4_amp_ddp.py").read_text() + line)
    assert ladder._used(own) == ladder._used(LADDER / "5_tuned_ddp.py")
    assert len(ladder._settings(LADDER / "5_tuned_ddp.py") - ladder._settings(own)) == 4


@pytest.mark.acceptance
@pytest.mark.needs("torch", "dali")
@pytest.mark.parametrize("script", SCRIPTS)
def test_script_trains_and_reports(script: str, photos: Photos, tmp_path: Path) -> None:
    import torch

    horovod = script.endswith("_horovod")
    launcher = HOROVOD if horovod else TORCHRUN if script.endswith("_ddp") else [sys.executable]
    report, weights, trace = (tmp_path / name for name in ("report.json", "weights.pt", "t.json"))
    data = photos.root
    if script[0] in "3456":
        data = tfrecord.convert(photos.root, tmp_path / "shards", quiet=True)
    done = subprocess.run(
        [*launcher, LADDER / f"{script}.py", "--data", data, "--image-size", "32",
         "--batch-size", "4", "--steps", "4", "--warm-up", "1", "--workers", "1",
         "--report", report, "--save", weights, "--trace", trace],
        env=clean_environment(OMP_NUM_THREADS="1", PYTHONPATH=f"{ROOT}:{ROOT / 'tests/at_exit'}"),
        cwd=tmp_path, text=True, capture_output=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(report.read_text())
    parts = {"input_ms", "compute_ms", "communication_ms"} & found.keys()
    images = 4 * (1 if script == "1_single" else 2)
    step_ms = sum(found[part] for part in parts)
    assert found["images_per_s"] == pytest.approx(1000 * images / step_ms)
    assert ("communication_ms" in parts) == (script != "1_single")
    assert math.isfinite(found["loss"])
    events = json.loads(trace.read_text())["traceEvents"]
    ranges = Counter(e["name"] for e in events if e.get("cat") == "user_annotation")
    assert ranges["exchange"] == (3 if horovod else 0)
    check_trace(trace, script != "1_single", compiled=script.startswith("6"))
    state = torch.load(weights, weights_only=True)
    assert state["fc.weight"].shape == (6, 2048)
    last = state["layer1.0.conv2.weight"].is_contiguous(memory_format=torch.channels_last)
    assert last == (script in ("5_tuned_ddp", "6_compiled_ddp"))


UNUSED = """# import horovod
'''
Not with autocast(...), channels_last or torch.compile():
...
'''
"""


def test_own_script_is_used_for_the_rung_that_it_is_written_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(ladder.session, "need", lambda: SimpleNamespace(runs=tmp_path, number="03"))
    monkeypatch.setattr(ladder.installed, "horovod_serves", lambda backend: True)
    monkeypatch.setattr(ladder.hardware, "machine", lambda: LAPTOP)
    assert ladder.script("1_single") == tmp_path / "train.py"
    assert ladder.script("2") == LADDER / "2_horovod.py"  # not edited yet
    assert "does not use Horovod or DDP yet" in capsys.readouterr().out
    ladder.script("4_amp")
    assert "does not use DALI, autocast, Horovod or DDP yet" in capsys.readouterr().out
    assert ladder.script("2_ddp") == LADDER / "2_ddp.py"
    for library, rung in itertools.product(ladder.LIBRARIES, list(ladder.RUNGS)[1:]):
        text = (LADDER / f"{rung}_{library}.py").read_text() + UNUSED + "print('mine')\n"
        (tmp_path / "train.py").write_text(text)  # with a change of the learner's own
        for asked in list(ladder.RUNGS)[1:]:
            finished = LADDER / f"{asked}_{library}.py"
            more = "4_amp" <= asked < rung  # only settings: their gain counts for the rung asked
            mine = asked == rung or more
            assert ladder.script(asked) == (tmp_path / "train.py" if mine else finished)
            said = capsys.readouterr().out
            assert ("your script" in said, "It also uses" in said) == (mine, more)
            assert ladder.finished(asked) == finished
        assert (tmp_path / "train.py").read_text() == text
    shutil.copy(LADDER / "1_single.py", tmp_path / "train.py")
    with (tmp_path / "train.py").open("a") as file:
        file.write("torch.set_num_threads(1)\ntorch.compile(print)\n")
    assert ladder.script("1_single") == tmp_path / "train.py"
    assert "It also uses a setting of rung 5 and torch.compile:" in capsys.readouterr().out


@pytest.mark.parametrize("number, rung", [("03", "1_single"), *ladder.BEFORE.items()])
def test_a_missing_script_is_the_one_with_which_a_notebook_begins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: str, rung: str
) -> None:
    here = SimpleNamespace(runs=tmp_path / "runs", number=number)
    monkeypatch.setattr(ladder.session, "need", lambda: here)
    finished = ladder.finished(rung)
    ladder.changes("5_tuned")
    assert (here.runs / "train.py").read_text() == finished.read_text()
    assert ladder.script(rung) == here.runs / "train.py"


def test_script_before_its_rung_is_not_tried_but_gets_the_edit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = SimpleNamespace(runs=tmp_path, number="03", data_root=tmp_path)
    tried: list[tuple[Any, ...]] = []
    monkeypatch.setattr(ladder.session, "need", lambda: here)
    monkeypatch.setattr(ladder, "try_script", lambda *words, **how: tried.append((*words, how)))
    own = tmp_path / "train.py"
    shutil.copy(LADDER / "1_single.py", own)
    assert ladder.try_rung("2", ranks=2, only_yours=True) is None and not tried
    said = capsys.readouterr().out
    assert "train.py does not use Horovod or DDP yet: change it" in said
    assert "+++ 2_horovod.py" in said and "+++ 2_ddp.py" in said  # none is chosen yet
    assert "catch up" not in said
    here.number = "05"  # 03 was left out
    ladder.try_rung("3_dali", ranks=2, only_yours=True)
    assert re.search(r"To catch up: .* copy .*/2_\w+.py to .*/train.py", capsys.readouterr().out)
    shutil.copy(LADDER / "2_ddp.py", own)
    ladder.try_rung("2", ranks=2, only_yours=True, compare=True, batch_size=4)
    ((*words, how),) = tried
    assert words == [own, "--data", tmp_path, "--batch-size", 4]
    assert how["single"] and how["reseed"] and how["ranks"] == 2
    shutil.copy(LADDER / "4_amp_ddp.py", own)
    ladder.try_rung("3_dali", ranks=2, only_yours=True)
    assert "already uses autocast: it is not tried" in capsys.readouterr().out
    shutil.copy(LADDER / "2_ddp.py", own)
    monkeypatch.setattr(ladder.session, "has", lambda package: False)
    ladder.try_rung("3_dali", ranks=2)  # the finished one
    said = capsys.readouterr().out
    assert "using the finished 3_dali_ddp.py" in said and "DALI is not installed" in said
    assert "+++ 3_dali_ddp.py" in said and "horovod" not in said


def test_start_script_has_a_gap_for_each_part_of_the_learner(tmp_path, monkeypatch, capsys) -> None:
    own, text = tmp_path / "train.py", (LADDER / "1_single.py").read_text()
    monkeypatch.setattr(ladder.session, "need", lambda: SimpleNamespace(runs=tmp_path, number="03"))
    assert ladder.start_script() == own
    started = own.read_text()
    ast.parse(started)
    assert started.count(ladder.GAP) == len(ladder.GAPS) == 4
    assert not ladder.is_rung_1(own) and ladder.is_rung_1(LADDER / "1_single.py")
    diff = list(difflib.ndiff(text.splitlines(), started.splitlines()))
    assert all(ladder.GAP in line for line in diff if line.startswith("+ "))
    assert not re.search(
        r"zero_grad|backward\(\)|cross_entropy\(|\.step\(\)\n +end|resize", started
    )
    for rung in ("1_single", "2_ddp"):
        assert ladder.script(rung) == LADDER / f"{rung}.py"
        assert "still has lines `...  # your code`" in capsys.readouterr().out
    own.write_text("mine")
    assert ladder.start_script().read_text() == "mine"


@pytest.mark.parametrize("built, nccl, gpus, chosen", [
    (False, False, 0, "ddp"), (True, False, 0, "horovod"),
    (True, False, 1, "ddp"), (True, True, 1, "horovod"),
])  # fmt: skip
def test_without_an_own_script_what_is_built_decides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    built: bool, nccl: bool, gpus: int, chosen: str,
) -> None:  # fmt: skip
    monkeypatch.setattr(ladder.session, "need", lambda: SimpleNamespace(runs=tmp_path, number="03"))
    monkeypatch.setattr(ladder.installed, "horovod_serves", lambda backend: built)
    monkeypatch.setattr(ladder.installed, "horovod_has", lambda part, backend: nccl)
    monkeypatch.setattr(ladder.hardware, "machine", lambda: replace(LAPTOP, gpus=(GPU,) * gpus))
    assert ladder.chosen_library() == chosen
    assert ladder.script("3_dali") == LADDER / f"3_dali_{chosen}.py"
    assert "train.py was missing: it is the finished" in capsys.readouterr().out
    shutil.copy(LADDER / "3_dali_horovod.py", tmp_path / "train.py")
    mine = ladder.script("3_dali")
    assert (mine == tmp_path / "train.py") == (chosen == "horovod")
    ladder.script("3_dali_ddp")  # notebook 03 traces DDP's, too
    assert ("Horovod cannot run it here" in capsys.readouterr().out) == (chosen == "ddp")
    shutil.copy(LADDER / "3_dali_ddp.py", tmp_path / "train.py")
    assert ladder.script("3_dali") == tmp_path / "train.py"


@pytest.mark.slow  # Matplotlib
def test_figure_has_both_libraries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import matplotlib.colors

    record = rungs.load(tmp_path / "ladder.json")
    record["predictions"] = {"2": 2.0, "3_dali": 3.0}
    for name, rate in {"2_ddp": 5.0, "2_horovod": 6.0, "1_single": 4.0, "3_dali_ddp": 7.0}.items():
        record["rungs"][name] = {"images_per_s": rate, "input_ms": 1.0, "compute_ms": 8.96}
        record["rungs"][name]["communication_ms"] = 0.04  # not visible, and so left out
    for name, rung in record["rungs"].items():
        rung |= {"image_size": 64, "batch_size": 16, "ranks": int(name[0])}
    assert rungs._sizes(record["rungs"]) == "\n64 px, batch 16 per rank"
    record["rungs"]["3_dali_ddp"] |= {"over": "2_ddp", "gains": [1.5, 1.4, 1.7, 1.4, 1.6]}
    unclear = {"over": "1_single", "gains": [0.9, 1.25, 1.6, 1.25, 1.25]}
    record["rungs"]["2_horovod"] |= unclear | {"turns": [4.0, 5.0, 7.0]}
    (tmp_path / "ladder.json").write_text(json.dumps(record))
    monkeypatch.setattr(rungs.output, "figure_bundle", lambda fig, alt: (fig, alt))
    fig, alt = rungs.picture(tmp_path / "ladder.json")
    speeds, gains = fig.axes
    labels = [label.get_text() for label in speeds.get_yticklabels()]
    several = ["2: DDP\n2 ranks", "2: Horovod\n2 ranks", "3: DALI\nDDP, 3 ranks"]
    assert labels == ["1: one device", *several]
    for part, share in {"input": 1 / 9.96, "compute": 8.96 / 9.96}.items():
        colour = matplotlib.colors.to_rgba(plot.MEANING[part])
        bars = [bar for bar in speeds.patches if bar.get_facecolor() == colour]
        assert [bar.get_width() for bar in bars] == pytest.approx([share * x for x in (4, 5, 6, 7)])
    assert drawn(speeds)["0.5"] == {(4.0, 2.36), (5.0, 2.36), (7.0, 2.36)}  # the turns
    assert drawn(gains) == {
        "black": {(1.5, 3)}, "white": {(1.25, 2)},  # clear, and not clear
        "none": {(2.0, 2.2), (3.0, 3.2)},  # predictions
        plot.MEANING["recorded"]: {(round(1735 / 1089, 6), 3.4)},
    }  # fmt: skip
    assert fig.get_suptitle() == "Rung 3, DALI, over rung 2: × 1.50 (1.40 to 1.70, n = 5)"
    assert "2: Horovod, 2 ranks: 6 images/s (compute 90%, input 10%); 3" in alt
    assert "communication" not in {text.get_text() for text in fig.legends[0].texts}
    assert "Rung 3 over rung 2: 1.50 (1.40 to 1.70, n = 5); predicted 3.00; H100 1.59." in alt
    record["rungs"]["2_horovod"] = record["rungs"].pop("2_horovod")  # raced later
    (tmp_path / "ladder.json").write_text(json.dumps(record))
    assert rungs.picture(tmp_path / "ladder.json")[0].get_suptitle().startswith("Rung 2, Horovod")
    disturbed = {"over": "2_ddp", "gains": [1.5, 1.4, 1.7, 1.4, 14.0]}
    record["rungs"]["3_dali_ddp"] |= disturbed
    (tmp_path / "ladder.json").write_text(json.dumps(record))
    _, gains = rungs.picture(tmp_path / "ladder.json")[0].axes
    assert gains.get_xlim() == (0, pytest.approx(1.3 * 3))  # as far as the prediction
    assert drawn(gains)["k"] == {(3.9, 3)}  # an arrow
    fig, alt = rungs.picture(tmp_path / "ladder.json", "2")
    assert fig.get_suptitle().endswith("× 1.25 (0.90 to 1.60, n = 5): no clear difference")
    assert "DALI" not in alt
    (tmp_path / "ladder.json").write_text(
        json.dumps({"rungs": {"1_single": record["rungs"]["1_single"]}})
    )
    fig, alt = rungs.picture(tmp_path / "ladder.json")
    assert len(fig.axes) == 1 and fig.get_suptitle() == "Rung 1, one device: 4 images/s"
    fig, alt = rungs.picture(tmp_path / "none.json", "3_dali")
    (alone,) = fig.axes
    others = [400.2, 1442.6, 5391.8, 10263.2, 1080, 1735, 2530, 4107]
    assert [bar.get_width() for bar in alone.patches] == others
    assert "3.8 times as fast" in alone.get_title(loc="left")
    assert "H100, 05: DALI 1,735 images/s" in alt


def drawn(axes: Any) -> dict[str, set[tuple[float, float]]]:
    """Return the places of markers by their fill."""
    found: dict[str, set[tuple[float, float]]] = {}
    for line in axes.lines:
        if line.get_marker() != "None":
            places = zip(*(np.round(values, 6).tolist() for values in line.get_data()), strict=True)
            found.setdefault(line.get_markerfacecolor(), set()).update(places)
    return found


def test_race_pairs_the_turns_of_each_rung_with_the_one_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    speeds: dict[str, list[float]] = {}  # seconds of the turns

    def race(runners: Sequence[Any], *_: int) -> None:
        for runner in runners:
            runner.turns = [[seconds] for seconds in speeds[runner.name]]
            report = Path(runner.flags[runner.flags.index("--report") + 1])
            assert not report.exists()  # an earlier one is never taken for this run's
            report.write_text('{"images_per_s": 1, "compute_ms": 9, "input_ms": 1}')

    here = SimpleNamespace(runs=tmp_path, data_root=tmp_path, profile="cpu", number="03")
    monkeypatch.setattr(ladder.session, "need", lambda: here)
    monkeypatch.setattr(ladder.racing, "race", race)
    monkeypatch.setattr(ladder, "chosen_library", lambda: "ddp")
    monkeypatch.setattr(ladder, "_fit_in_memory", lambda runners, batch: True)
    monkeypatch.setattr(ladder, "shards", lambda: tmp_path)
    monkeypatch.setattr(ladder.session, "has", lambda package: True)
    flags = {"turns": 2, "steps": 1, "warm_up": 1, "batch_size": 8}
    speeds |= {"1_single": [1.0, 2.0], "2_ddp": [4.0, 1.0]}
    found = ladder.race(["1_single", "2"], ranks=2, **flags)
    assert "gains" not in found["1_single"]
    assert (found["2"]["over"], found["2"]["gains"]) == ("1_single", [0.5, 4.0])
    # a rung that starts a race keeps its pairs if it runs with the same settings
    speeds["6_compiled_ddp"] = [1.0, 1.0]
    ladder.race(["2", "6_compiled"], ranks=2, **flags)
    found = rungs.load(tmp_path / "ladder.json")["rungs"]
    assert found["2_ddp"]["gains"] == [0.5, 4.0] and [*found][-1] == "6_compiled_ddp"
    ladder.race(["1_single", "2"], ranks=2, **flags)
    assert [*rungs.load(tmp_path / "ladder.json")["rungs"]][-1] == "2_ddp"
    ladder.race(["2", "6_compiled"], ranks=1, **flags)
    assert "gains" not in rungs.load(tmp_path / "ladder.json")["rungs"]["2_ddp"]
    # pairs of a different script are not kept
    ladder.race(["1_single", "2"], ranks=2, **flags)
    monkeypatch.setattr(ladder, "script", lambda rung: tmp_path / "train.py")
    (tmp_path / "train.py").write_text(ladder.finished("2_ddp").read_text())
    ladder.race(["2", "6_compiled"], ranks=2, own="2", **flags)
    assert "gains" not in rungs.load(tmp_path / "ladder.json")["rungs"]["2_ddp"]


def test_a_colour_of_the_ladder_means_the_same_in_a_trace() -> None:
    assert {*rungs.PARTS} <= {*plot.MEANING}
    assert plot.MEANING["compute"] == KINDS["convolution"]
    assert plot.MEANING["communication"] == KINDS["exchange"]
    assert plot.MEANING["input"] not in KINDS.values()


def test_shards_are_yours_or_written_once(
    photos: Photos, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    here = SimpleNamespace(runs=tmp_path, data_root=photos.root, number="03")
    monkeypatch.setattr(ladder.session, "need", lambda: here)
    folder = ladder.shards()
    assert len(list(folder.glob("train-*"))) == len(list((folder / "index").glob("train-*"))) == 8
    assert "Your shards are missing in" in capsys.readouterr().out
    for file in folder.glob("train-*"):
        file.write_bytes(b"mine")
    assert ladder.shards() == folder
    assert {file.read_bytes() for file in folder.glob("train-*")} == {b"mine"}
    assert capsys.readouterr().out == ""
