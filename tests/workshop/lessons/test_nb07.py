"""The parts of a prediction that traces and ONNX Runtime report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from workshop.lessons import nb07


def test_the_profile_of_onnx_runtime_has_the_median_of_its_inferences(tmp_path: Path) -> None:
    once = [("Conv", 2000), ("FusedConv", 500), ("Relu", 250)]
    events = [{"name": "session"}]  # has no operator
    for times in (9, 1, 3, 3):  # the first does not count
        events += [{"args": {"op_name": name}, "dur": times * dur} for name, dur in once]
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(events))
    assert nb07.onnx_parts(str(profile), 4) == (3, 7.5, 0.75)


def test_convolutions_are_counted_per_prediction(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, onednn = nb07.CODES
    events = 6 * [{"name": own, "dur": 500}] + 3 * [{"name": onednn, "dur": 250}]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": [*events, {"name": "aten::relu", "dur": 900}]}))
    nb07.print_convolutions(str(trace), 2)
    assert capsys.readouterr().out.splitlines() == [
        "  PyTorch's own code runs 2 of its convolutions: 0.50 ms per image",
        "  oneDNN's code runs 1 of its convolutions: 0.12 ms per image",
    ]
