"""The speed of a large matrix product on this device, the ceiling of a run.

`python -m rn50.diagnose.peak SECONDS EXPERIMENT` prints its FLOP per second, in the precision and
with the threads of the experiment.
"""

from __future__ import annotations

import json
import sys

import torch
from torch.utils.benchmark import Timer

from rn50lib.config import TrainConfig, from_dict
from rn50lib.errors import status_of
from rn50lib.lifetime import die_with_parent
from rn50lib.torch.optimizer import set_precision

SIDE = {"cuda": 8192, "cpu": 1024}  # a processor that emulates a precision takes seconds


def peak(config: TrainConfig, limit_s: float) -> float:
    """Return the FLOP per second of a product of two square matrices, the best of its timings.

    Takes about `limit_s` seconds.
    """
    device = "cuda" if torch.cuda.is_available() else "cpu"
    side, dtype = SIDE[device], set_precision(device, config.dtype)
    a, b = (torch.randn(side, side, device=device, dtype=dtype) for _ in range(2))
    timer = Timer("a @ b", globals={"a": a, "b": b}, num_threads=config.threads)
    return 2 * side**3 / min(timer.blocked_autorange(min_run_time=limit_s).times)


def main() -> int:
    config = from_dict(json.loads(sys.argv[2]), "the experiment")
    print(json.dumps(peak(config, float(sys.argv[1]))))
    return 0


if __name__ == "__main__":
    die_with_parent()
    sys.exit(status_of(main))
