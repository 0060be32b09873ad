"""Random images, made once and repeated: the upper limit for any real input."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rn50lib.config import TrainConfig
from rn50lib.data import Batch

STEPS = 100  # of an epoch, when neither --benchmark-iters nor --num-examples says otherwise


class Synthetic:
    """See `rn50lib.data.Pipeline`. Accuracy on these images means nothing."""

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
        """Yield the same batch for each step."""
        for _ in range(self.steps):
            yield self.batch

    def close(self) -> None:
        """Do nothing."""
