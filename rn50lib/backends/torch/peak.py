"""How fast this device computes when nothing is in its way: the ceiling for the model's FLOP/s."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as F

from rn50lib.backends.torch.precision import configure
from rn50lib.experiment import FullExperiment

TURNS = 3


def peak(done: FullExperiment, limit_s: float) -> dict[str, float]:
    """FLOP per second of a matrix product and of a 3x3 convolution in the experiment's precision,
    with its threads: large enough to fill the device, and the best of three turns. Takes about
    `limit_s` seconds."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = configure(device.type, done.dtype)
    torch.set_num_threads(done.threads)
    side, batch = (8192, 256) if device.type == "cuda" else (1536, 16)
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    images = torch.randn(batch, 256, 28, 28, device=device, dtype=dtype)
    kernels = torch.randn(256, 256, 3, 3, device=device, dtype=dtype)
    images = images.to(memory_format=torch.channels_last)
    kernels = kernels.to(memory_format=torch.channels_last)
    turn_s = limit_s / (2 * TURNS)
    with torch.inference_mode():
        return {
            "matrix product": 2 * side**3 / seconds(lambda: a @ b, device, turn_s),
            "convolution": 2 * batch * 28 * 28 * 256 * 256 * 9
            / seconds(lambda: F.conv2d(images, kernels, padding=1), device, turn_s),
        }  # fmt: skip


def seconds(run: Callable[[], object], device: torch.device, turn_s: float) -> float:
    """Seconds of one call, the least of three turns of about `turn_s` seconds."""

    def turn(calls: int) -> float:
        begin = time.perf_counter()
        for _ in range(calls):
            run()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - begin) / calls

    turn(1)
    calls = max(1, int(turn_s / max(turn(1), 1e-7)))
    return min(turn(calls) for _ in range(TURNS))


def copy_seconds(images_NHWC: np.ndarray) -> float:
    """Seconds to bring a batch of uint8 images to the device."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = torch.as_tensor(images_NHWC)
    if device.type == "cuda":
        batch = batch.pin_memory()
    return seconds(lambda: batch.to(device, non_blocking=True), device, turn_s=0.02)
