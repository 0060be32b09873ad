"""The training step as the loop sees it, for either framework, and one that only waits."""

from __future__ import annotations

import math
import time
from typing import Protocol

import numpy as np

from rn50lib.data import Batch
from rn50lib.distributed import Comm
from rn50lib.report import SUMS

BEFORE_TRACE = 5  # a CUDA graph is captured in the fourth step; the fifth warms up the profiler
TRACED_STEPS = 3  # of `--trace`


class TrainStep(Protocol):
    """The interface of a backend. Metrics stay on the device until `pop_metrics`.

    Its defaults are those of a step without a model, and without a loss scale.
    """

    device: str
    saves: bool  # whether it has a model, which checkpoints hold

    def train_step(self, batch: Batch, lr: float) -> None:
        """Do forward and backward on one batch of this rank.

        After every `grad_accum_steps` batches, synchronise the gradients and update the weights
        with rate `lr`.
        """

    def eval_step(self, batch: Batch) -> None:
        """Do forward on one batch; rows from `batch.valid` on are padding and do not count."""

    def pop_metrics(self) -> np.ndarray:
        """Wait for the device; return the `SUMS` since the last call, float64."""

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays of a checkpoint: weights, running statistics, `velocity/NAME`."""
        return {}

    def loss_scale_state(self) -> dict[str, float]:
        """Wait for the device; return `scale`, `good_steps` in a row, and `skipped` updates.

        {} if the loss is not scaled.
        """
        return {}

    def load(
        self, arrays: dict[str, np.ndarray], loss_scale: dict[str, float] | None = None
    ) -> None:
        """Load the `state()` and `loss_scale_state()` of either backend.

        An absent velocity or scale stays as it is. Raises KeyError for an absent weight.
        """
        return None

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Return class probabilities (N, classes) float32 of uint8 NHWC images."""

    def versions(self) -> dict[str, str]:
        """Return versions of the framework and its libraries, for the report."""


class PacedStep(TrainStep):
    """A device of a given speed, which waits instead of computing: it has no state.

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

    def predict(self, images: np.ndarray) -> np.ndarray:
        raise NotImplementedError  # `rn50 predict` loads a checkpoint, and none comes from here

    def versions(self) -> dict[str, str]:
        return {"device": "none" if math.isinf(self.rate) else f"paced at {self.rate:g} img/s"}
