"""Notebook 07: what traces and engines report about the time of a prediction."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

# functions of PyTorch that run a convolution on a CPU
CODES = {"aten::_slow_conv2d_forward": "PyTorch's own", "aten::mkldnn_convolution": "oneDNN's"}


def print_convolutions(trace: str) -> None:
    """Print which code ran the convolutions of a trace of three predictions, and its time."""
    events = json.loads(Path(trace).read_text())["traceEvents"]
    for name, code in CODES.items():
        ms = [event["dur"] / 3000 for event in events if event["name"] == name]
        print(f"{code} code runs {len(ms) // 3} of the convolutions, in {sum(ms):.2f} ms")


def parts(nodes: Iterable[tuple[str, float]]) -> tuple[float, float]:
    """Return the milliseconds of convolutions and of the rest, from pairs (operator, ms).

    What is fused into a convolution counts as a part of it.
    """
    ms = [0.0, 0.0]
    for operator, took in nodes:
        ms[not operator.endswith(("Conv", "Convolution"))] += took
    return ms[0], ms[1]


def openvino_parts(request: Any) -> tuple[int, tuple[float, float]]:
    """Return how many operators OpenVINO's last inference ran, and their `parts`."""
    nodes = [
        (node.node_type, 1000 * node.real_time.total_seconds())
        for node in request.profiling_info
        if node.real_time
    ]
    return len(nodes), parts(nodes)


def onnx_parts(profile: str, runs: int) -> tuple[int, list[tuple[float, float]]]:
    """Return how many operators ONNX Runtime ran per inference, and the `parts` of each.

    `profile` is the file of a session that made `runs` inferences.
    """
    events = json.loads(Path(profile).read_text())
    nodes = [
        (event["args"]["op_name"], event["dur"] / 1000)
        for event in events
        if "op_name" in event.get("args", {})
    ]
    count = len(nodes) // runs
    return count, [parts(nodes[run * count : (run + 1) * count]) for run in range(runs)]
