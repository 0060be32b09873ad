"""Which images a rank's batches hold: the plan of every loader that reads images by number."""

from __future__ import annotations

import numpy as np

from rn50lib import overrides
from rn50lib.config import Experiment
from rn50lib.records import order

SUBSET_SEED = 50  # the part that --num-examples keeps is the same in every run


class Plan:
    """The batches of one split on one rank, epoch by epoch, as image numbers."""

    def __init__(
        self,
        experiment: Experiment,
        images: int,
        split: str,
        examples: int,
        rank: int,
        size: int,
    ) -> None:
        """`images` is how many the split has, `examples` how many of them an epoch uses."""
        self.images, self.examples, self.train = images, examples, split == "train"
        self.seed, self.batch_size = experiment.seed, experiment.batch_size
        self.rank, self.size = rank, size
        self.limit = experiment.benchmark_iters
        # --num-examples takes a part drawn across all classes: files lie sorted by class
        self.subset = order.epoch_order(images, SUBSET_SEED, 0)[:examples]

    def rows(self, epoch: int, done: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Image numbers (steps, batch), and how many of each batch count; the first `done` images
        of the epoch's order are left out."""
        if self.train:
            shuffled = order.epoch_order(self.examples, self.seed, epoch)
            if self.examples < self.images:
                shuffled = self.subset[shuffled]
            rows = overrides.get("shard")(shuffled[done:], self.rank, self.size, self.batch_size)
            valid = np.full(len(rows), self.batch_size)
        else:
            rows, valid = order.validation_shard(
                self.examples, self.rank, self.size, self.batch_size
            )
        return rows[: self.limit], valid[: self.limit]

    def __len__(self) -> int:
        return len(self.rows(0)[0])
