"""The fastest matrix product of this device, the ceiling of a run.

`python -m rn50.diagnose.peak SECONDS EXPERIMENT` prints its FLOP per second, in the precision and
with the threads of the experiment.
"""

from __future__ import annotations

import json
import sys
import time

import torch

from rn50lib.config import TrainConfig, from_dict
from rn50lib.errors import status_of
from rn50lib.lifetime import die_with_parent
from rn50lib.torch.optimizer import set_precision

TURNS = 3
SMALLEST_SIDE, LARGEST_SIDE = 256, {"cuda": 8192, "cpu": 2048}


def peak(config: TrainConfig, limit_s: float) -> float:
    """Return the FLOP per second of a product of two square matrices, the best of three turns.

    Takes about `limit_s` seconds. A processor that emulates a precision takes minutes for a large
    product: the side doubles, and the work grows eightfold, as long as that fits into a turn.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = set_precision(device.type, config.dtype)
    torch.set_num_threads(config.threads)
    turn_s, side = limit_s / TURNS, SMALLEST_SIDE
    with torch.inference_mode():
        while side < LARGEST_SIDE[device.type] and seconds(side, device, dtype) < turn_s / 8:
            side *= 2
        calls = max(1, int(turn_s / seconds(side, device, dtype)))
        return 2 * side**3 / min(seconds(side, device, dtype, calls) for _ in range(TURNS))


def seconds(side: int, device: torch.device, dtype: torch.dtype, calls: int = 1) -> float:
    """Return the mean seconds of `calls` products, after one that may include preparation."""
    left, right = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    begin = 0.0
    for call in range(calls + 1):
        if call == 1:
            wait(device)
            begin = time.perf_counter()
        left @ right
    wait(device)
    return max(1e-7, time.perf_counter() - begin) / calls


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def main() -> int:
    config = from_dict(json.loads(sys.argv[2]), "the experiment")
    print(json.dumps(peak(config, float(sys.argv[1]))))
    return 0


if __name__ == "__main__":
    die_with_parent()
    sys.exit(status_of(main))
