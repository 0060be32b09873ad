"""A training step that waits instead of computing, like a device of a given speed."""

from __future__ import annotations

import time

import numpy as np

from rn50lib.data import Batch
from rn50lib.distributed import Comm
from rn50lib.errors import UserError
from rn50lib.metrics import SUMS
from rn50lib.train_step import TrainStep


class PacedStep(TrainStep):
    """A `TrainStep` without a model: its state is empty, it uses no core and learns nothing.

    As on a GPU, the next batch is fetched while this one is processed: `train_step` returns when a
    batch begins, `pop_metrics` when it is done.
    """

    device, saves = "paced", False

    def __init__(self, rate: float, comm: Comm) -> None:
        self.rate, self.size = rate, comm.size  # images per second of all workers
        self.free_at = 0.0  # when the device will have finished its work

    def train_step(self, batch: Batch, lr: float) -> None:
        self.eval_step(batch)

    def eval_step(self, batch: Batch) -> None:
        begin = max(time.perf_counter(), self.free_at)
        self.pop_metrics()
        self.free_at = begin + len(batch.labels) * self.size / self.rate

    def pop_metrics(self) -> np.ndarray:
        time.sleep(max(0.0, self.free_at - time.perf_counter()))
        return np.zeros(len(SUMS))

    def state(self) -> dict[str, np.ndarray]:
        return {}

    def loss_scale_state(self) -> dict[str, float]:
        return {}

    def load(
        self, arrays: dict[str, np.ndarray], loss_scale: dict[str, float] | None = None
    ) -> None:
        pass

    def predict(self, images: np.ndarray) -> np.ndarray:
        raise UserError("--set step has no model to predict with: leave it out")

    def versions(self) -> dict[str, str]:
        return {"device": f"paced at {self.rate:g} img/s"}
