"""The frameworks: each has `model`, `step` and `exchange`; the loop sees only the `Step`."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rn50lib.config import Experiment
from rn50lib.data import Batch
from rn50lib.distributed import Comm
from rn50lib.errors import UserError
from rn50lib.hardware import machine
from rn50lib.resnet import Network


class Step(Protocol):
    """What the loop asks of a backend. Sums stay on the device until `read_sums` is called."""

    device: str

    def train_step(self, batch: Batch, lr: float) -> None:
        """Forward and backward on one batch of this rank; after every `micro_batches` of them
        exchange and update. `lr` counts where there is an update."""
        ...

    def eval_step(self, batch: Batch) -> None:
        """Forward on one batch; rows from `batch.valid` on count nowhere."""
        ...

    def read_sums(self) -> np.ndarray:
        """Sums since the last reading, float64 (4,): see `metrics.SUMS`. Waits for the device."""
        ...

    def state(self) -> dict[str, np.ndarray]:
        """The canonical arrays of a checkpoint: weights, running statistics, `velocity/NAME`."""
        ...

    def scaling(self) -> dict[str, float]:
        """The loss scale: `scale`, `good_steps` in a row with it, and `skipped` updates so far; {}
        where the loss is not scaled. Waits for the device."""
        ...

    def load(self, arrays: dict[str, np.ndarray], scaling: dict[str, float] | None = None) -> None:
        """Take over arrays that `state()` gave, and what `scaling()` gave, from either backend."""
        ...

    def predict(self, images: np.ndarray) -> np.ndarray:
        """Class probabilities (N, classes) float32 of uint8 NHWC images."""
        ...

    def versions(self) -> dict[str, str]:
        """Versions of the framework and what it computes with, for the report."""
        ...

    def trace(self, file: Path, steps: int) -> AbstractContextManager[Any]:
        """Record a few of the next `steps` as a Chrome trace; call its `.step()` after each."""
        ...


def build_step(experiment: Experiment, net: Network, comm: Comm) -> Step:
    """The training step of an experiment. Raises UserError when its framework is missing."""
    if experiment.step is not None:
        from rn50lib.simulated_step import PacedStep

        return PacedStep(experiment.step, comm)
    if experiment.backend == "tensorflow":
        try:
            from rn50lib.tensorflow.train_step import TensorflowStep
        except ImportError as error:
            raise UserError(
                f"--backend tensorflow: TensorFlow does not import here ({error}): run `make"
                " setup`, or use --backend torch"
            ) from error
        return on_gpu(TensorflowStep(experiment, net, comm), experiment)
    try:
        from rn50lib.torch.train_step import TorchStep
    except ImportError as error:
        raise UserError(
            f"--backend torch: PyTorch does not import here ({error}): run `make setup`"
        ) from error
    return on_gpu(TorchStep(experiment, net, comm), experiment)


def on_gpu(step: Step, experiment: Experiment) -> Step:
    """Return the step. Raises UserError if this machine has GPUs and the framework uses none: with
    a driver that is too old for its CUDA, for example."""
    if step.device == "cpu" and machine().gpus:
        version = step.versions()[experiment.backend]
        raise UserError(
            f"--backend {experiment.backend}: version {version} does not reach the GPU that"
            " nvidia-smi lists: `rn50 doctor` says why; set CUDA_VISIBLE_DEVICES= to train on the"
            " processor"
        )
    return step
