"""The training step as the loop sees it, for either framework."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from rn50lib.data import Batch

TRACED_STEPS = 3  # of `--trace`
STEPS_BEFORE = 3  # the first starts everything, then one more, then one with the profiler on


class TrainStep(Protocol):
    """The interface of a backend. Metrics stay on the device until `pop_metrics`."""

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
        """Wait for the device; return the `metrics.SUMS` since the last call, float64."""

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays of a checkpoint: weights, running statistics, `velocity/NAME`."""

    def loss_scale_state(self) -> dict[str, float]:
        """Wait for the device; return `scale`, `good_steps` in a row, and `skipped` updates.

        {} if the loss is not scaled.
        """

    def load(
        self, arrays: dict[str, np.ndarray], loss_scale: dict[str, float] | None = None
    ) -> None:
        """Load the `state()` and `loss_scale_state()` of either backend."""

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Return class probabilities (N, classes) float32 of uint8 NHWC images."""

    def versions(self) -> dict[str, str]:
        """Return versions of the framework and its libraries, for the report."""
