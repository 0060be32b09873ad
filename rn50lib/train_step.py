"""The training step as the loop sees it, whichever framework is behind it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rn50lib.config import TrainConfig
from rn50lib.data import Batch
from rn50lib.distributed import Comm
from rn50lib.errors import UserError
from rn50lib.hardware import machine
from rn50lib.resnet import Network


class TrainStep(Protocol):
    """What the loop asks of a backend. Metrics stay on the device until `pop_metrics`."""

    device: str

    def train_step(self, batch: Batch, lr: float) -> None:
        """Do forward and backward on one batch of this rank, and after every `micro_batches` of
        them synchronise the gradients and update the weights with rate `lr`."""

    def eval_step(self, batch: Batch) -> None:
        """Do forward on one batch; rows from `batch.valid` on count nowhere."""

    def pop_metrics(self) -> np.ndarray:
        """Return the sums since the last call, float64 (4,): see `metrics.SUMS`. This waits for the
        device."""

    def state(self) -> dict[str, np.ndarray]:
        """Return the arrays of a checkpoint: weights, running statistics, `velocity/NAME`."""

    def loss_scale_state(self) -> dict[str, float]:
        """Return the loss scale: `scale`, `good_steps` in a row with it, and `skipped` updates so
        far; {} if the loss is not scaled. This waits for the device."""

    def load(self, arrays: dict[str, np.ndarray], scaling: dict[str, float] | None = None) -> None:
        """Load what `state()` and `loss_scale_state()` of either backend have returned."""

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Return class probabilities (N, classes) float32 of uint8 NHWC images."""

    def versions(self) -> dict[str, str]:
        """Return versions of the framework and what it computes with, for the report."""

    def trace(self, file: Path, steps: int) -> AbstractContextManager[Any]:
        """Record a few of the next `steps` as a Chrome trace; call its `.step()` after each."""


class PacedStep:
    """A `TrainStep` that waits instead of computing: a stand-in for a device of a given speed.

    With it a laptop shows what happens in front of a fast device, where decoding is the bottleneck.
    It learns nothing and uses no core. As on a GPU, the next batch is fetched while it works on
    this one: `train_step` returns when it begins with a batch, `pop_metrics` when it is done.
    """

    device = "paced"

    def __init__(self, rate: float, comm: Comm) -> None:
        self.rate, self.size = rate, comm.size  # images per second of all workers
        self.free_at = 0.0  # when the device has finished what it was given

    def train_step(self, batch: Batch, lr: float) -> None:
        self.eval_step(batch)

    def eval_step(self, batch: Batch) -> None:
        begin = max(time.perf_counter(), self.free_at)
        wait_until(begin)
        self.free_at = begin + len(batch.labels) * self.size / self.rate

    def pop_metrics(self) -> np.ndarray:
        wait_until(self.free_at)
        return np.zeros(4)

    def state(self) -> dict[str, np.ndarray]:
        raise UserError("--step paced has no weights to save")

    def loss_scale_state(self) -> dict[str, float]:
        return {}

    def load(self, arrays: dict[str, np.ndarray], scaling: dict[str, float] | None = None) -> None:
        raise UserError("--step paced has no weights to load")

    def predict(self, images: np.ndarray) -> np.ndarray:
        raise UserError("--step paced has no model to predict with")

    def versions(self) -> dict[str, str]:
        return {"device": f"paced at {self.rate:g} img/s"}

    def trace(self, file: Path, steps: int) -> AbstractContextManager[None]:
        return contextlib.nullcontext()


def wait_until(moment: float) -> None:
    """Sleep until a time of `time.perf_counter`."""
    time.sleep(max(0.0, moment - time.perf_counter()))


def build_step(config: TrainConfig, net: Network, comm: Comm) -> TrainStep:
    """Return the training step of a configuration.

    Raises UserError if its framework does not import, or if this machine has GPUs and the framework
    uses none, with a driver that is too old for its CUDA for example.
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
            f"--backend {config.backend}: {name} does not import here ({error}): run `make"
            f" setup`{other}"
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
