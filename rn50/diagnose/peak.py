"""How fast this device computes when nothing is in the way: the ceiling for a run."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch.nn import functional as F

from rn50lib.config import Experiment
from rn50lib.torch.amp import configure

TURNS = 3
SMALLEST_SIDE, LARGEST_SIDE = 256, {"cuda": 8192, "cpu": 2048}  # of the matrices
LARGEST_BATCH = {"cuda": 256, "cpu": 16}  # of 256 channels of 28 x 28


def peak(experiment: Experiment, limit_s: float) -> dict[str, float]:
    """FLOP per second of a matrix product and of a 3x3 convolution in the experiment's precision,
    with its threads: large enough to fill the device, and the best of three turns. Takes about
    `limit_s` seconds."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = configure(device.type, experiment.dtype)
    torch.set_num_threads(experiment.threads)
    turn_s = limit_s / (2 * TURNS)
    with torch.inference_mode():
        return {
            "matrix product": matrix_product(device, dtype, turn_s),
            "convolution": convolution(device, dtype, turn_s),
        }


def matrix_product(device: torch.device, dtype: torch.dtype, turn_s: float) -> float:
    """FLOP per second of the product of two square matrices.

    A large product is faster than a small one, but a processor that imitates a precision takes
    minutes for it: the side doubles, and the work grows eightfold, while that fits into `turn_s`.
    """

    def work(side: int) -> Callable[[], object]:
        left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
        return lambda: left @ right

    side = SMALLEST_SIDE
    while side < LARGEST_SIDE[device.type] and once(work(side), device) < turn_s / 8:
        side *= 2
    return 2 * side**3 / seconds(work(side), device, turn_s)


def convolution(device: torch.device, dtype: torch.dtype, turn_s: float) -> float:
    """FLOP per second of a 3x3 convolution, in a batch that doubles in the same way."""
    kernels = torch.randn(256, 256, 3, 3, device=device, dtype=dtype)
    kernels = kernels.to(memory_format=torch.channels_last)

    def work(batch: int) -> Callable[[], object]:
        images = torch.randn(batch, 256, 28, 28, device=device, dtype=dtype)
        images = images.to(memory_format=torch.channels_last)
        return lambda: F.conv2d(images, kernels, padding=1)

    batch = 1
    while batch < LARGEST_BATCH[device.type] and once(work(batch), device) < turn_s / 2:
        batch *= 2
    return 2 * batch * 28 * 28 * 256 * 256 * 9 / seconds(work(batch), device, turn_s)


def once(run: Callable[[], object], device: torch.device) -> float:
    """Seconds of one call, the second one: the first may have to get ready."""
    turn(run, device)
    return turn(run, device)


def seconds(run: Callable[[], object], device: torch.device, turn_s: float) -> float:
    """Seconds of one call, the least of three turns of about `turn_s` seconds."""
    calls = max(1, int(turn_s / max(once(run, device), 1e-7)))
    return min(turn(run, device, calls) for _ in range(TURNS))


def turn(run: Callable[[], object], device: torch.device, calls: int = 1) -> float:
    """Seconds of one call, the mean of `calls`."""
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / calls


def copy_seconds(images_NHWC: np.ndarray) -> float:
    """Seconds to bring a batch of uint8 images to the device."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = torch.as_tensor(images_NHWC)
    if device.type == "cuda":
        batch = batch.pin_memory()
    return seconds(lambda: batch.to(device, non_blocking=True), device, turn_s=0.02)
