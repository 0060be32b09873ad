"""`rn50 workshop try --headroom`, on a script whose loader and step sleep for known times."""

from __future__ import annotations

import re
from pathlib import Path

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
        time.sleep(0.03)
        return torch.zeros(3), 0

net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), 0.1)
for images, labels in torch.utils.data.DataLoader(Data(50), 10):  # not the one that trains
    break
for epoch in range(int(sys.argv[-1])):
    for images, labels in torch.utils.data.DataLoader(Data(), 10):
        net(images).sum().backward()
        time.sleep(0.05)
        if "train" in sys.argv:
            optimizer.step()
    open("weights", "w").write("new")
"""


@pytest.mark.parametrize(("whole", "void"), [(3.7, True), (30.0, False)])
def test_loop_slower_than_both_parts_in_turn_is_measured_again(whole: float, void: bool) -> None:
    said = headroom.report({"whole": whole, "cached": 37.7, "loader": 700.0})  # 35.8 in turn
    assert ("measure again" in said) == void and f"Headroom: {37.7 / whole:.2f}" in said


@pytest.mark.needs("torch")
@pytest.mark.parametrize("epochs", ["100", pytest.param("2", marks=pytest.mark.acceptance)])
def test_the_rates_are_those_of_the_parts(run_cli, tmp_path: Path, epochs: str) -> None:
    """With two epochs, the script ends before all three modes are timed, and starts again."""
    (tmp_path / "mine.py").write_text(SCRIPT)
    (tmp_path / "weights").write_text("old")
    command = ("workshop", "try", "mine.py", "--headroom", "--seconds", "1", "--")
    done = run_cli(*command, "train", epochs)
    assert done.returncode == 0, done.stderr
    first, *rates = done.stdout.splitlines()
    assert "The loader bounds this loop" in first
    whole, cached, loader = (float(re.findall(r"([\d.]+) img/s", line)[0]) for line in rates)
    assert 14 < whole <= 10 / 0.35 and 16 < loader <= 10 / 0.3  # sleeping is the least they take
    assert 1.2 * loader < cached <= 10 / 0.05
    assert (tmp_path / "weights").read_text() == "old"

    if epochs == "100":
        return
    (tmp_path / "elsewhere").mkdir()
    command = ("workshop", "try", "../mine.py", "--headroom", "--seconds", "1", "--", "1")
    refused = run_cli(*command, cwd=tmp_path / "elsewhere")
    assert refused.returncode != 0 and "no optimizer stepped" in refused.stderr


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
