"""Notebook 07: what traces and ONNX Runtime report about the time of a prediction."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

# functions of PyTorch that run a convolution on a CPU
CODES = {"aten::_slow_conv2d_forward": "PyTorch's own", "aten::mkldnn_convolution": "oneDNN's"}


def convolutions(trace: str) -> str:
    """Return how many convolutions each code ran, from a trace of three predictions."""
    names = [event["name"] for event in json.loads(Path(trace).read_text())["traceEvents"]]
    return ", ".join(f"{names.count(name) // 3} by {code} code" for name, code in CODES.items())


def onnx_parts(profile: str, runs: int) -> tuple[float, float]:
    """Return the ms of ONNX Runtime's convolutions and of the rest, per inference.

    What is fused into a convolution counts as a part of it. `profile` is the file of a session that
    made `runs` inferences; the times are medians without the first.
    """
    events = json.loads(Path(profile).read_text())
    events = [event for event in events if "op_name" in event.get("args", {})]
    count = len(events) // runs
    spent = []
    for run in range(1, runs):
        ms = [0.0, 0.0]
        for event in events[run * count : (run + 1) * count]:
            ms[not event["args"]["op_name"].endswith("Conv")] += event["dur"] / 1000
        spent.append(ms)
    convolution, rest = map(statistics.median, zip(*spent, strict=True))
    return convolution, rest
