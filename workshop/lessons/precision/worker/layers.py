"""The process behind `roofline.measure`: training steps under PyTorch's profiler, in turns.

python -m workshop.lessons.precision.worker.layers ROUNDS DTYPE,DTYPE FLAGS...
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from rn50lib import comm, launch
from rn50lib.backends import build_step
from rn50lib.backends.torch.peak import matrix_product
from rn50lib.backends.torch.peak import seconds as seconds_of
from rn50lib.backends.torch.precision import AUTOCAST
from rn50lib.config import from_json
from rn50lib.pipelines import open_pipeline
from workshop import measuring
from workshop.lessons.precision.roofline import KINDS, REST

GPU = torch.cuda.is_available()
DEVICE = torch.device("cuda" if GPU else "cpu")
COPIED = 2**30 if GPU else 2**28  # bytes: more than a cache holds
# by a part of an operation's name, the first that fits; an operation that calls others is
# counted without them
PARTS = (
    ("convolution", "convolution"), ("conv2d", "convolution"), ("batch_norm", "batch norm"),
    ("relu", "ReLU"), ("threshold", "ReLU"), ("clamp_min", "ReLU"),
    ("max_pool", "pooling"), ("mean", "pooling"), ("div", "pooling"),
    ("addmm", "last layer"), ("softmax", "last layer"), ("nll_loss", "last layer"),
    ("mm", "convolution"), ("linear", "convolution"), ("matmul", "convolution"),  # of 1 x 1
)  # fmt: skip
ADDITIONS = ("aten::add", "aten::add_")


def main(argv: list[str]) -> int:
    launch.die_with_parent()
    rounds, dtypes = int(argv[0]), argv[1].split(",")
    done = from_json(argv[2])
    batch = next(open_pipeline(done, None, "train", 0, 1).epoch(0))
    steps = {}
    for dtype in dtypes:
        measuring.tell(f"the network in {dtype} takes its first step")
        scale = "dynamic" if dtype == "float16" else None
        this = replace(done, dtype=dtype, loss_scale=scale)
        steps[dtype] = build_step(this, done.to_network(), comm.connect())
        whole(steps[dtype], batch)
    seconds: dict[str, list[float]] = {dtype: [] for dtype in dtypes}
    parts: dict[str, dict[str, list[float]]] = {
        dtype: {kind: [] for kind in (*KINDS, REST)} for dtype in dtypes
    }
    peaks: dict[str, list[float]] = {dtype: [] for dtype in dtypes}
    bandwidths = []
    for round_ in range(rounds + 1):  # the first one is left out
        for dtype in dtypes:
            measuring.tell(f"round {round_} of {rounds}, {dtype}")
            found = whole(steps[dtype], batch), profiled(steps[dtype], batch), peak(dtype)
            if round_:
                seconds[dtype].append(found[0])
                peaks[dtype].append(found[2])
                for kind, values in parts[dtype].items():
                    values.append(found[1][kind])
        bandwidths.append(bandwidth())
    measuring.answer(
        {
            "parts": parts,
            "steps": seconds,
            "peaks": {dtype: max(values) for dtype, values in peaks.items()},
            "bandwidth": max(bandwidths),
        }
    )
    return 0


def whole(step: Any, batch: Any) -> float:
    """Seconds of a training step, the profiler off."""
    begin = time.perf_counter()
    step.train_step(batch, lr=0.0)  # the same work, and the weights stay where they are
    step.read_sums()  # waits for the device
    return time.perf_counter() - begin


def profiled(step: Any, batch: Any) -> dict[str, float]:
    """Seconds of a training step by kind of layer."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if GPU:
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
        whole(step, batch)
    found = dict.fromkeys((*KINDS, REST), 0.0)
    classes = step.net.num_classes
    for event in profile.key_averages(group_by_input_shape=True):
        if event.device_type != torch.autograd.DeviceType.CPU:
            continue  # a kernel, whose time stands with the operation that launched it too
        own = event.self_device_time_total if GPU else event.self_cpu_time_total
        found[part_of(event.key, event.input_shapes, classes)] += own / 1e6
    return found


def part_of(operation: str, shapes: Sequence[Sequence[int]], classes: int) -> str:
    """The kind of layer that an operation of the profiler belongs to, by its name and by what it
    reads: of all matrix products only those of the last layer have a side of `classes`."""
    if operation in ADDITIONS:
        return "addition"
    if operation == "aten::mm" and any(classes in shape for shape in shapes):
        return "last layer"
    if operation.startswith(("aten::", "autograd::")):
        for part, kind in PARTS:
            if part in operation:
                return kind
    return REST


def peak(dtype: str) -> float:
    """FLOP per second of a large product of matrices."""
    return matrix_product(DEVICE, AUTOCAST[dtype], turn_s=0.2)


def bandwidth() -> float:
    """Bytes per second, read and written, of a copy in memory."""
    source = torch.ones(COPIED // 4, device=DEVICE)
    target = torch.empty_like(source)
    return 2 * COPIED / seconds_of(lambda: target.copy_(source), DEVICE, turn_s=0.1)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
