"""The training step as the loop sees it, for either framework."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NoReturn, Protocol

import numpy as np

from rn50lib.config import TrainConfig
from rn50lib.data import Batch
from rn50lib.distributed import Comm
from rn50lib.errors import UserError, first_line
from rn50lib.hardware import machine
from rn50lib.metrics import SUMS
from rn50lib.resnet import Network


class TrainStep(Protocol):
    """The interface of a backend. Metrics stay on the device until `pop_metrics`."""

    device: str

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


class PacedStep(TrainStep):
    """A `TrainStep` that waits instead of computing, like a device of a given speed (`step`).

    It uses no core and learns nothing. As on a GPU, the next batch is fetched while this one is
    processed: `train_step` returns when a batch begins, `pop_metrics` when it is done.
    """

    device = "paced"

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

    def loss_scale_state(self) -> dict[str, float]:
        return {}

    def no_model(self, *given: Any) -> NoReturn:
        """Raise UserError."""
        raise UserError("--set step has no model to save, load or predict with")

    state = load = predict = no_model  # type: ignore[assignment]

    def versions(self) -> dict[str, str]:
        return {"device": f"paced at {self.rate:g} img/s"}


def build_step(config: TrainConfig, net: Network, comm: Comm) -> TrainStep:
    """Return the training step of a configuration.

    Raises UserError if its framework cannot be imported, or uses no GPU of a machine that has one.
    """
    if config.step is not None:
        return PacedStep(config.step, comm)
    make: Callable[[TrainConfig, Network, Comm], TrainStep]
    try:
        if config.backend == "tensorflow":
            from rn50lib.tensorflow.train_step import TensorflowStep as make
        else:
            from rn50lib.torch.train_step import TorchStep as make
    except ImportError as error:
        name, other = "PyTorch", ""
        if config.backend == "tensorflow":
            name, other = "TensorFlow", ", or use --backend torch"
        raise UserError(
            f"--backend {config.backend}: {name} does not import here ({first_line(error)}): run"
            f" `make setup`{other}"
        ) from error
    step = make(config, net, comm)
    if step.device == "cpu" and machine().gpus:
        version = step.versions()[config.backend]
        raise UserError(
            f"--backend {config.backend}: version {version} does not reach the GPU that"
            " nvidia-smi lists: `rn50 doctor` says why; set CUDA_VISIBLE_DEVICES= to train on the"
            " processor"
        )
    return step
