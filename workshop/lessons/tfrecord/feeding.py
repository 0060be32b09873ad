"""Feeding by hand: a Python loop that reads, decodes and hands over one batch at a time.

It is what `feed_dict` was: while the loop decodes, the model waits, and while the model computes,
the loop does. It stands here for comparison, and as the plainest way to make a batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from rn50lib.config import TrainConfig
from rn50lib.data import Batch
from rn50lib.data.decode import Pictures
from rn50lib.data.sampler import Plan
from rn50lib.data.source import Source


class Feeding:
    """See `rn50lib.data.Pipeline`; images and crops are those of PyTorch's loader."""

    ordered = True

    def __init__(self, experiment: TrainConfig, source: Source, plan: Plan) -> None:
        self.plan, self.examples = plan, plan.examples
        self.pictures = Pictures(source, plan.train, experiment)
        self.labels = np.asarray(source.labels, np.int32)

    def __len__(self) -> int:
        return len(self.plan)

    def epoch(self, epoch: int, start_step: int = 0, skip: int = 0) -> Iterator[Batch]:
        rows, valid = self.plan.rows(epoch, skip)
        for row, count in zip(rows[start_step:], valid[start_step:], strict=True):
            images = np.stack([self.pictures.image(epoch, int(number)) for number in row])
            yield Batch(images, self.labels[row], int(count))

    def close(self) -> None:
        return None
