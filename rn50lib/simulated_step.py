"""A step that waits instead of computing: it stands for an accelerator of a given speed.

With it a laptop can show what happens in front of a fast device, where decoding and not the model
is the bottleneck. It learns nothing, measures no accuracy and is always labelled "paced".
"""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

import numpy as np

from rn50lib.data import Batch
from rn50lib.distributed import Comm
from rn50lib.errors import UserError


class PacedStep:
    """A `Step` that takes global_batch / rate seconds a batch without using a core.

    As with a GPU, the next batch is fetched while it works on this one: who gives it a batch waits
    until it begins with that, and who reads its sums until it is done with all.
    """

    device = "paced"

    def __init__(self, rate: float, comm: Comm) -> None:
        self.rate, self.size = rate, comm.size
        self.free_at = 0.0  # when the device is done with what it was given

    def take(self, batch: Batch) -> None:
        begin = max(time.perf_counter(), self.free_at)
        wait_until(begin)
        self.free_at = begin + len(batch.labels) * self.size / self.rate

    def train_step(self, batch: Batch, lr: float) -> None:
        self.take(batch)

    def eval_step(self, batch: Batch) -> None:
        self.take(batch)

    def read_sums(self) -> np.ndarray:
        wait_until(self.free_at)
        return np.zeros(4)

    def state(self) -> dict[str, np.ndarray]:
        raise UserError("--step paced has no weights to save")

    def scaling(self) -> dict[str, float]:
        return {}

    def load(self, arrays: dict[str, np.ndarray], scaling: dict[str, float] | None = None) -> None:
        raise UserError("--step paced has no weights to load")

    def predict(self, images: np.ndarray) -> np.ndarray:
        raise UserError("--step paced has no model to predict with")

    def versions(self) -> dict[str, str]:
        return {"device": f"paced at {self.rate:g} img/s"}

    def trace(self, file: Path, steps: int) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()


def wait_until(moment: float) -> None:
    time.sleep(max(0.0, moment - time.perf_counter()))
