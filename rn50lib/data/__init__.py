"""Input pipelines: from stored images to batches, in the order of `sampler`.

Every pipeline gives uint8 NHWC batches of one rank; the step normalises them, on the device.
DALI and streams (TFRecord in tf.data) have their own order, and promise less.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from rn50lib.config import TrainConfig

if TYPE_CHECKING:
    from rn50lib.data.source import Source

STEPS = 100  # of a synthetic epoch without --benchmark-iters and --num-examples


@dataclass(frozen=True)
class Batch:
    """One rank's batch: `images` uint8 (B, H, W, 3) RGB and `labels` int32 (B,).

    Both are arrays or tensors; rows from `valid` on are padding and count nowhere.
    """

    images: Any
    labels: Any
    valid: int


class Pipeline(Protocol):
    """One split of a data set as batches of one rank; `len()` is the steps of an epoch."""

    examples: int
    ordered: bool  # whether it reads by number, so that an epoch can begin after any image

    def __len__(self) -> int: ...

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Return the batches of an epoch, the same ones at every call.

        The first `skip` images of the epoch's order are left out: any number of ranks has trained
        on them before. Only a loader that is `ordered` takes it.
        """
        ...

    def close(self) -> None:
        """End the workers, if it has any, so that nothing is left running."""
        return None


class Synthetic(Pipeline):
    """Random images, made once and repeated: the upper limit for any real input."""

    ordered = True

    def __init__(self, config: TrainConfig, split: str, size: int) -> None:
        batch, pixels = config.batch_size, config.image_shape
        wanted = config.num_examples if split == "train" else None
        self.examples = wanted or (config.benchmark_iters or STEPS) * batch * size
        steps = max(1, self.examples // (batch * size))
        self.steps = min(steps, config.benchmark_iters or steps)
        rng = np.random.default_rng(config.seed)
        images = rng.integers(0, 256, (batch, pixels, pixels, 3), dtype=np.uint8)
        labels = rng.integers(0, config.num_classes, batch, dtype=np.int32)
        self.batch = Batch(images, labels, valid=batch)

    def __len__(self) -> int:
        return self.steps

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        for _ in range(self.steps):
            yield self.batch


def open_pipeline(
    config: TrainConfig, source: Source | None, split: str, rank: int, size: int
) -> Pipeline:
    """Return the pipeline of a run for 'train' or 'val'; `source` is None for synthetic."""
    if config.loader == "synthetic":
        return Synthetic(config, split, size)
    from rn50lib.data.sampler import BatchSampler

    assert source is not None, config.loader
    batches = BatchSampler(config, source, split, rank, size)
    if config.loader == "dali":
        from rn50lib.data.dali import Dali

        return Dali(config, source, batches)
    if config.backend == "tensorflow":
        from rn50lib.data.source import ShardSource
        from rn50lib.data.tfdata import TfData, TfRecordStream

        if isinstance(source, ShardSource):
            return TfRecordStream(config, source, batches)
        return TfData(config, source, batches)
    from rn50lib.data.torch_loader import TorchLoader

    return TorchLoader(config, source, batches)
