"""`rn50 workshop try --headroom`, on a script whose loader and step sleep for known times."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from data_prep import tfrecord
from workshop import headroom

SCRIPT = """\
import sys, time, torch

class Data(torch.utils.data.Dataset):
    def __init__(self, length=100):
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, i):
        time.sleep(0.01)
        return torch.zeros(3), 0

net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for images, labels in torch.utils.data.DataLoader(Data(50), 10):  # not the one that trains
    break
for epoch in range(int(sys.argv[-1])):
    for images, labels in torch.utils.data.DataLoader(Data(), 10):
        net(images).sum().backward()
        time.sleep(0.02)
        if "train" in sys.argv:
            optimizer.step()
    open("weights", "w").write("new")
"""


def reported(whole: list[float], cached: list[float], loader: list[float]) -> list[str]:
    """Return the lines about five turns of each mode."""
    turns = {"whole": iter(whole), "cached": iter(cached), "loader": iter(loader)}
    return headroom.report([next(turns[mode]) for mode in headroom.SCHEDULE]).splitlines()


def test_verdict_needs_all_turns_to_agree() -> None:
    cached, loader = [40.0, 41, 39, 40, 42], [80.0, 82, 79, 81, 80]
    first, second, *rates = reported([25.0, 26, 25, 24, 26], cached, loader)  # in turn: 27
    assert first.startswith("Loader and step both count: they take turns (no workers?), or share")
    assert "2.00 (1.90 to 2.03, n = 5)" in first
    assert second.endswith(": 1.60 (1.56 to 1.67, n = 5)")
    assert "Slower than loader and step in turn" in rates[0] and "0.94" in rates[0]
    assert [re.findall(r"[\d.]+", line) for line in rates[1:]] == [
        ["25.0", "24.0", "26.0"], ["40.0", "39.0", "42.0"], ["80.0", "79.0", "82.0"],
    ]  # fmt: skip

    overlapping = reported([39.0, 40, 38.5, 39, 41], cached, loader)
    assert overlapping[0].startswith("The step bounds this loop")
    disturbed = reported([39.0, 40, 3.7, 41, 40], cached, [80.0, 82, 38, 81, 80])
    assert disturbed[0].startswith("Neither part bounds this loop")
    assert disturbed[1].endswith("(0.98 to 10.5, n = 5): no clear difference")
    assert len(disturbed) == 5


def test_many_batches_of_a_fast_loader_are_enough() -> None:
    clock = headroom.Clock(100.0, "out.json")
    for _ in range(headroom.ENOUGH):
        assert not clock.rates
        clock.trains = "a loader"
        clock.add("a loader", 8, 0.001)
    assert clock.rates == [pytest.approx(8000)]


def test_a_batch_may_begin_with_names() -> None:
    images = np.zeros((8, 3, 4, 4))
    for batch in ([("train/stop/1.jpg",) * 8, images], {"path": ["a"] * 8, "x": images}, [images]):
        assert headroom.size(batch) == 8


@pytest.mark.needs("torch")
def test_the_rates_are_those_of_the_parts(run_cli, tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    (tmp_path / "weights").write_text("old")
    command = ("workshop", "try", "mine.py", "--headroom", "--seconds", "1", "--")
    done = run_cli(*command, "train", "100")
    assert done.returncode == 0, done.stderr
    first, _, *rates = done.stdout.splitlines()
    assert "The loader bounds this loop" in first
    whole, cached, loader = (float(re.findall(r"([\d.]+) img/s", line)[0]) for line in rates[-3:])
    # sleeping is the least they take; on a busy machine they take longer
    assert 0 < whole <= 10 / 0.12 and 0 < loader <= 10 / 0.1
    assert loader < cached <= 10 / 0.02
    assert (tmp_path / "weights").read_text() == "old"


@pytest.mark.slow
@pytest.mark.needs("torch")
@pytest.mark.parametrize(
    ("words", "said"),
    [(["1"], "no optimizer stepped"), (["train", "2"], "of 15 turns: let it train for more")],
)
def test_script_that_cannot_be_timed(run_cli, tmp_path: Path, words: list[str], said: str) -> None:
    (tmp_path / "mine.py").write_text(SCRIPT)
    (tmp_path / "elsewhere").mkdir()
    command = ("workshop", "try", "../mine.py", "--headroom", "--seconds", "1", "--", *words)
    refused = run_cli(*command, cwd=tmp_path / "elsewhere")
    assert refused.returncode != 0 and said in refused.stderr


def test_modes_take_turns_so_that_a_slow_spell_changes_no_median() -> None:
    turns = [headroom.SCHEDULE[i : i + 3] for i in range(0, len(headroom.SCHEDULE), 3)]
    assert len(turns) >= 5 and all(sorted(turn) == sorted(headroom.MODES) for turn in turns)


@pytest.mark.needs("torch")
def test_traced_steps_of_a_ladder_script_are_not_timed(repository: Path, tmp_path: Path) -> None:
    script = (repository / "exercises/ladder/2_horovod.py").read_text()
    warm_up = re.search(r'"--warm-up", type=int, default=(\d+)', script)
    traced = re.search(r"skip_first=warm_up, wait=0, warmup=(\d+), active=(\d+)", script)
    assert warm_up and traced
    clock = headroom.Clock(1000, str(tmp_path / "out"))
    done, timed = [], []
    clock.add = lambda *_: timed.append(len(done))  # type: ignore[method-assign]
    for batch in clock.wrap(lambda loader: iter(loader))(["batch"] * 18):
        done.append(batch)
        clock.step()
    assert timed[0] > sum(map(int, [warm_up[1], *traced.groups()])) and len(timed) > 5


@pytest.mark.acceptance
@pytest.mark.needs("dali")
@pytest.mark.parametrize(
    "script",
    [pytest.param("3_dali_horovod.py", marks=pytest.mark.needs("horovod")), "5_tuned_ddp.py"],
)
def test_dalis_iterator_is_timed_too(
    run_cli, repository: Path, roadsigns_small, script: str, tmp_path: Path
) -> None:
    shards = tfrecord.convert(roadsigns_small.folder, tmp_path / "shards", quiet=True)
    flags = ("--data", shards, "--image-size", 32, "--batch-size", 4)
    done = run_cli("workshop", "try", script, "--headroom", "--seconds", "1", "--",
                   *map(str, flags), cwd=repository / "exercises" / "ladder")  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("img/s") == 3
