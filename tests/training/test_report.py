"""The per-run report: the reference's keys in its order, in JSON that every reader takes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rn50.reports import load
from rn50lib.errors import UserError
from rn50lib.report import Report
from tests.support import strict_json

EPOCH = {"loss": 1.5, "top1": 25.0, "top5": 75.0, "time": 0.25, "total_ips": 32.0}


@pytest.fixture
def report() -> Report:
    made = Report(model="resnet50", ngpus=1, cmd=["rn50", "train"], env={"seed": 0})
    made.total_duration = 12.5
    return made


def test_a_value_for_every_epoch_and_null_where_none_was_measured(
    report: Report, tmp_path: Path
) -> None:
    report.add("train", {"time": 0.5, "total_ips": 16.0})
    report.add("train", EPOCH)
    report.write(tmp_path / "r.json")
    metrics = strict_json(tmp_path / "r.json")["metrics"]
    assert metrics["train.top1"] == [None, 25.0] and metrics["train.time"] == [0.5, 0.25]
    assert not any(key.startswith("val.") for key in metrics)  # it never ran


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nan_never_gets_into_a_report(report: Report, tmp_path: Path, value: float) -> None:
    report.write(tmp_path / "r.json")
    report.add("train", EPOCH | {"loss": value})
    with pytest.raises(ValueError):
        report.write(tmp_path / "r.json")
    assert strict_json(tmp_path / "r.json")["metrics"] == {}
    assert os.listdir(tmp_path) == ["r.json"]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "cannot be read"),
        ("{", "not JSON"),
        ("[]", "no 'metrics'"),
        ("{}", "no 'metrics'"),
        ('{"metrics": {"val.top1": 5}}', "val.top1 is not a list of numbers"),
        ('{"metrics": {"val.top1": [5, "much"]}}', "val.top1 is not a list of numbers"),
    ],
)
def test_invalid_reports_are_named(tmp_path: Path, content: str | None, problem: str) -> None:
    if content is not None:
        (tmp_path / "r.json").write_text(content)
    with pytest.raises(UserError, match=f"r.json.*{problem}"):
        load(tmp_path / "r.json")
