"""The parts of a prediction that engines report."""

from __future__ import annotations

import json
from pathlib import Path

from workshop.lessons import nb07


def test_the_profile_of_onnx_runtime_is_divided_into_inferences(tmp_path: Path) -> None:
    once = [("Conv", 2000), ("FusedConv", 500), ("Relu", 250)]
    events = [{"name": "session"}]  # has no operator
    for run in (1, 3):
        events += [{"args": {"op_name": name}, "dur": run * dur} for name, dur in once]
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps(events))
    assert nb07.onnx_parts(str(profile), 2) == (3, [(2.5, 0.25), (7.5, 0.75)])
