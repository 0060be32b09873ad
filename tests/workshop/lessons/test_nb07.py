"""The parts of a prediction that traces and ONNX Runtime report."""

from __future__ import annotations

import json
from pathlib import Path

from workshop.lessons import nb07


def test_the_profile_of_onnx_runtime_has_the_median_of_its_inferences(tmp_path: Path) -> None:
    once = [("Conv", 2000), ("FusedConv", 500), ("Relu", 250)]
    events = [{"name": "session"}]  # has no operator
    for times in (9, 1, 3, 3):  # the first does not count
        events += [{"args": {"op_name": name}, "dur": times * dur} for name, dur in once]
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(events))
    assert nb07.onnx_parts(str(profile), 4) == (7.5, 0.75)


def test_convolutions_are_counted_per_prediction(tmp_path: Path) -> None:
    own, onednn = nb07.CODES
    names = [*6 * [own], *3 * [onednn], "aten::relu"]
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps({"traceEvents": [{"name": name} for name in names]}))
    assert nb07.convolutions(str(trace)) == "2 by PyTorch's own code, 1 by oneDNN's code"
