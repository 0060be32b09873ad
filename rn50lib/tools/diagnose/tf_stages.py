"""tf.data's pipeline cut short after each of its stages: what is missing costs nothing.

For measuring: the difference between two of them is the time of a stage.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import tensorflow as tf

from rn50lib.config import Experiment
from rn50lib.pipelines.plan import Plan
from rn50lib.pipelines.tf_data import TfData, as_written
from rn50lib.records.source import Source


class Read(TfData):
    """Images are read, and blank ones of the right size come out."""

    @as_written
    def decode(
        self, epoch: int, number: Any, data: Any, label: Any, size: Any, box: Any, turn: Any
    ) -> tuple[Any, Any]:
        return self.blank(tf.strings.length(data)), label

    def blank(self, made: Any) -> Any:
        """A black image, once `made` is there."""
        with tf.control_dependencies([made]):
            return tf.zeros((self.pixels, self.pixels, 3), tf.uint8)


class Decode(TfData):
    """Images are read and decoded; resizing and mirroring are left out."""

    def resized(self, part: Any, start: Any, size: Any) -> Any:
        with tf.control_dependencies([part]):
            return tf.zeros((self.pixels, self.pixels, 3), tf.uint8)

    def turned(self, pixels: Any, turn: Any) -> Any:
        return pixels


def shortened(done: Experiment, source: Source, split: str) -> Iterator[tuple[str, Iterator[Any]]]:
    """(stage, the batches that have gone so far, on one core, without end) for each stage."""
    alone = replace(done, data_nthreads=0, n=1)
    for name, kind in (("read", Read), ("decode", Decode), ("augment", TfData)):
        pipeline = kind(alone, source, Plan(alone, source, split))
        yield name, (batch for epoch in itertools.count() for batch in pipeline.epoch(epoch))
