"""Notebook 07: what traces and ONNX Runtime report about the time of a prediction."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

# functions of PyTorch that run a convolution on a CPU
CODES = {"aten::_slow_conv2d_forward": "PyTorch's own", "aten::mkldnn_convolution": "oneDNN's"}


def print_convolutions(trace: str, images: int) -> None:
    """Print which code ran the convolutions of a trace of three predictions, and its time."""
    events = json.loads(Path(trace).read_text())["traceEvents"]
    for name, code in CODES.items():
        ms = [event["dur"] / 3000 for event in events if event["name"] == name]
        each = sum(ms) / images
        print(f"  {code} code runs {len(ms) // 3} of its convolutions: {each:.2f} ms per image")


def onnx_parts(profile: str, runs: int) -> tuple[int, float, float]:
    """Return how many operators ONNX Runtime ran, and the ms of convolutions and of the rest.

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
    return count, convolution, rest
