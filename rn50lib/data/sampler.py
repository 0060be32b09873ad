"""Which images a rank's batches hold: the plan that every loader of stored images follows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from rn50lib import hooks as overrides
from rn50lib.config import TrainConfig
from rn50lib.data import order
from rn50lib.data.source import Source

SUBSET_SEED = 50  # the part that --num-examples keeps is the same in every run

SHUFFLE_BYTES = 128_000_000
"""What the shuffle buffer of a stream may hold of encoded images: some 1,300 of ImageNet's."""


class Plan:
    """The batches of one split on one rank, epoch by epoch, as image numbers.

    `examples` is how many of the split's `images` an epoch uses, `limit` how many steps at most.
    """

    def __init__(
        self, experiment: TrainConfig, source: Source, split: str, rank: int = 0, size: int = 1
    ) -> None:
        self.images, self.train = len(source), split == "train"
        self.examples = self.images
        if self.train:
            self.examples = min(self.images, experiment.num_examples or self.images)
        self.seed, self.batch_size = experiment.seed, experiment.batch_size
        self.rank, self.size = rank, size
        self.limit = experiment.benchmark_iters
        self.subset: np.ndarray | None = None
        if self.examples < self.images:  # drawn across all classes: files are sorted by class
            self.subset = order.epoch_order(self.images, SUBSET_SEED, 0)[: self.examples]

    def rows(self, epoch: int, skip: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Image numbers (steps, batch), and how many of each batch count; the first `skip` images
        of the epoch's order are left out."""
        if self.train:
            shuffled = order.epoch_order(self.examples, self.seed, epoch)
            if self.subset is not None:
                shuffled = self.subset[shuffled]
            rows = overrides.get("shard")(shuffled[skip:], self.rank, self.size, self.batch_size)
            valid = np.full(len(rows), self.batch_size)
        else:
            rows, valid = order.validation_shard(
                self.examples, self.rank, self.size, self.batch_size
            )
        return rows[: self.limit], valid[: self.limit]

    def __len__(self) -> int:
        return len(self.rows(0)[0])

    # -- for streams, whose readers choose the images themselves -----------------------------------

    def stream_steps(self) -> int:
        """The steps of an epoch, equally many on all ranks."""
        group = self.size * self.batch_size
        steps = self.examples // group if self.train else -(-self.examples // group)
        return min(steps, self.limit or steps)

    def shuffle_buffer(self, paths: Sequence[Path]) -> int:
        """How many images are held to be shuffled, of those in these files."""
        stored = sum(path.stat().st_size for path in paths)
        return max(2 * self.batch_size, SHUFFLE_BYTES * self.images // max(1, stored))
