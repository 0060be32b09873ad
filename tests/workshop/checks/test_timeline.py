"""The timeline of exercise ex08.overlap: notebook 03's on this machine, or a recorded one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import ROOT
from workshop.checks import ex08

PASSES = {
    "alone": [1.0, 3.0, 2.0], "together": [4.0, 9.0, 6.0], "buckets": [[0.5, 40, "layer4.2.bn2"]],
}  # fmt: skip
SWEEP = {"Gloo": [[2**12, 0.25], [2**16, 0.5], [2**22, 4.25], [2**23, 8.25]]}


@pytest.mark.parametrize("failed", [False, True])
def test_without_a_timeline_of_notebook_03_a_recorded_one_is_used(
    failed: bool, tmp_path: Path
) -> None:
    if failed:
        (tmp_path / "lesson-03").mkdir()
        (tmp_path / "lesson-03" / "overlap.json").touch()
    found = ex08.read_timeline(tmp_path)
    assert found.source.startswith("recorded:")
    assert len(found.full) == len(found.nbytes) and found.full == sorted(found.full)


def test_timeline_of_notebook_03_is_its_medians(tmp_path: Path) -> None:
    (tmp_path / "lesson-03").mkdir()
    content = {"sweep": SWEEP, "runs": [PASSES]}
    (tmp_path / "lesson-03" / "overlap.json").write_text(json.dumps(content))
    found = ex08.read_timeline(tmp_path)
    assert found[:6] == (2.0, 6.0, [0.5], [40], 0.25, 2**20)
    assert str(tmp_path) in found.source


def test_notebook_03_writes_what_the_timeline_is_read_from() -> None:
    master = (ROOT / "notebooks" / "source" / "03_horovod.py").read_text()
    assert all(f'"{key}": ' in master for key in (*PASSES, "sweep") if key != "buckets")
    assert 'run["buckets"] = ' in master
