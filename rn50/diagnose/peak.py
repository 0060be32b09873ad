"""The fastest matrix product of this device: the ceiling for a run."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch

from rn50lib.config import TrainConfig
from rn50lib.torch.amp import configure

TURNS = 3
SMALLEST_SIDE, LARGEST_SIDE = 256, {"cuda": 8192, "cpu": 2048}


def peak(config: TrainConfig, limit_s: float) -> dict[str, float]:
    """Return the FLOP per second of a matrix product in a configuration's precision and threads.

    Takes about `limit_s` seconds.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = configure(device.type, config.dtype)
    torch.set_num_threads(config.threads)
    with torch.inference_mode():
        return {"matrix product": matrix_product(device, dtype, limit_s / TURNS)}


def matrix_product(device: torch.device, dtype: torch.dtype, turn_s: float) -> float:
    """Return the FLOP per second of the product of two square matrices, the best of three turns.

    A processor that emulates a precision takes minutes for a large product: the side doubles, and
    the work grows eightfold, as long as that fits into `turn_s`.
    """

    def work(side: int) -> Callable[[], object]:
        left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
        return lambda: left @ right

    side = SMALLEST_SIDE
    while side < LARGEST_SIDE[device.type] and once(work(side), device) < turn_s / 8:
        side *= 2
    return 2 * side**3 / seconds(work(side), device, turn_s)


def copy_seconds(done: TrainConfig) -> float:
    """Return the seconds per image to assemble a batch and copy it to the device."""
    images = [np.zeros((done.image_shape, done.image_shape, 3), np.uint8)] * done.batch_size
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")

    def copy() -> torch.Tensor:
        return torch.as_tensor(np.stack(images)).to(device)

    return seconds(copy, device, turn_s=0.02) / len(images)


def once(run: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of the second call; the first may include preparation."""
    turn(run, device)
    return turn(run, device)


def seconds(run: Callable[[], object], device: torch.device, turn_s: float) -> float:
    """Return the seconds of one call, the least of three turns of about `turn_s` seconds."""
    calls = max(1, int(turn_s / max(once(run, device), 1e-7)))
    return min(turn(run, device, calls) for _ in range(TURNS))


def turn(run: Callable[[], object], device: torch.device, calls: int = 1) -> float:
    """Return the mean seconds of `calls` calls."""
    begin = time.perf_counter()
    for _ in range(calls):
        run()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / calls
