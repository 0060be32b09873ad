"""What tf.data reads for one rank and one epoch: images by number, or shards as streams.

Each reader belongs to the `pipeline` that it reads for, a `tf_data.TfData`.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np

from rn50lib import hooks as overrides
from rn50lib.tf import tf
from rn50lib.errors import UserError
from rn50lib.data import order
from rn50lib.data.imageinfo import image_info
from rn50lib.data.shards import HEIGHT, IMAGE, LABEL, RAW, RAW_LABEL, WIDTH, ShardSource

SHARDS_AT_ONCE = 16
"""A constant, not a number of threads: the order of a stream must not depend on the machine."""

READ_BYTES = 1 << 20
"""What is read of a shard at a time."""

as_written = tf.autograph.experimental.do_not_convert
"""The stages hold no Python loops or branches over tensors, which TensorFlow would look for."""


class Ordered:
    """Images of files and RecordIO, by their number, in the order of `records.order`."""

    def __init__(self, pipeline: Any) -> None:
        self.pipeline, self.plan = pipeline, pipeline.plan

    def __len__(self) -> int:
        return len(self.plan)

    def valid(self, epoch: int, skip: int) -> np.ndarray:
        return self.plan.rows(epoch, skip)[1]

    def numbers(self, epoch: int, step: int, skip: int) -> np.ndarray:
        """The images of one batch."""
        return self.plan.rows(epoch, skip)[0][step]

    def images(self, epoch: int, start_step: int, skip: int) -> tf.data.Dataset:
        """(number, encoded image, label, size, crop, turn) of one image after the other.

        A batch is read by one call: opening a file, or copying a record, needs no more than some
        microseconds of Python each, and reading waits for the disk without Python's lock.
        """
        rows = tf.data.Dataset.from_tensor_slices(self.plan.rows(epoch, skip)[0][start_step:])

        @as_written
        def read(row: Any) -> tuple:
            types = [tf.string, tf.int32, tf.int32, tf.int32, tf.float32]
            read = functools.partial(self.read, epoch)
            found = self.pipeline.python(read, [row], types)
            shapes = [(None,), (None,), (None, 2), (None, 4), (None, 3)]
            return row, *(tf.ensure_shape(x, s) for x, s in zip(found, shapes, strict=True))

        return rows.map(read, **self.pipeline.at_once("interleave")).unbatch()

    def read(self, epoch: int, row: np.ndarray) -> tuple:
        pipeline = self.pipeline
        data = [pipeline.source.read(number) for number in row.tolist()]
        sizes = np.zeros((len(row), 2), np.int32)
        for i, encoded in enumerate(data):
            info = image_info(encoded)
            if info and info.format == "JPEG":
                sizes[i] = info.height, info.width
        boxes, turns = pipeline.choose(epoch, row, sizes)
        return np.array(data, object), pipeline.labels[row], sizes, boxes, turns


class Stream:
    """Images of TFRecord shards, in the order in which several streams and a shuffle give them."""

    def __init__(self, pipeline: Any, source: ShardSource) -> None:
        if overrides.get("shard") is not order.shard:
            raise UserError(
                "--override shard: TFRecord streams are cut at their ends, not by this function;"
                " use --data-format files or recordio"
            )
        self.pipeline, self.plan, self.source = pipeline, pipeline.plan, source
        self.steps = self.plan.stream_steps()
        # --num-examples takes the same part of every shard
        self.counts = np.diff(self.plan.examples * source.firsts // len(source))
        self.buffer = self.plan.shuffle_buffer(source.shards)

    def __len__(self) -> int:
        return self.steps

    def ranges(self, epoch: int) -> np.ndarray:
        """What this rank reads, int64 (k, 3): shard, records to pass over, records to take."""
        plan = self.plan
        shards = np.arange(len(self.counts))
        if plan.train:  # another part for every rank, and other images left over, each epoch
            shards = order.epoch_order(len(self.counts), plan.seed, epoch)
        ranges = order.stream_shard(self.counts[shards], plan.rank, plan.size)
        ranges[:, 0] = shards[ranges[:, 0]]
        return ranges

    def valid(self, epoch: int, skip: int) -> np.ndarray:
        size = self.plan.batch_size
        count = int(self.ranges(epoch)[:, 2].sum())
        return np.clip(count - size * np.arange(self.steps), 0, size)

    def numbers(self, epoch: int, step: int, skip: int) -> np.ndarray:
        """The images of one batch: the same streams again, up to there."""
        size = self.plan.batch_size
        records = self.records(epoch).skip(step * size).take(size)
        records = records.with_options(self.pipeline.options())
        return np.array([number.numpy() for number, _ in records], np.int64)

    def images(self, epoch: int, start_step: int, skip: int) -> tf.data.Dataset:
        """(number, encoded image, label, size, crop, turn) of one image after the other."""
        pipeline = self.pipeline
        records = self.records(epoch).skip(start_step * self.plan.batch_size)
        parsed = records.map(self.parse, **pipeline.at_once("parallel_map"))

        @as_written
        def choose(number: Any, data: Any, label: Any, size: Any) -> tuple:
            choose = functools.partial(pipeline.choose, epoch)
            boxes, turns = pipeline.python(choose, [number, size], [tf.int32, tf.float32])
            boxes, turns = tf.ensure_shape(boxes, (None, 4)), tf.ensure_shape(turns, (None, 3))
            return number, data, label, size, boxes, turns

        batches = parsed.batch(self.plan.batch_size)
        return batches.map(choose, **pipeline.at_once("parallel_map")).unbatch()

    def records(self, epoch: int) -> tf.data.Dataset:
        """(number, serialised example) of every record that this rank uses, shuffled."""
        ranges = self.ranges(epoch)
        paths = np.array([str(self.source.shards[shard]) for shard in ranges[:, 0]], object)
        firsts = self.source.firsts[ranges[:, 0]] + ranges[:, 1]
        shards = tf.data.Dataset.from_tensor_slices((paths, firsts, ranges[:, 1], ranges[:, 2]))

        @as_written
        def read(path: Any, first: Any, skip: Any, take: Any) -> tf.data.Dataset:
            records = tf.data.TFRecordDataset(path, buffer_size=READ_BYTES).skip(skip).take(take)
            return tf.data.Dataset.zip((tf.data.Dataset.range(first, first + take), records))

        if self.pipeline.stages.interleave:
            at_once = self.pipeline.at_once("interleave")
            records = shards.interleave(read, cycle_length=SHARDS_AT_ONCE, **at_once)
        else:
            records = shards.flat_map(read)
        if self.plan.train:
            seed = order.image_seed(self.plan.seed, epoch, self.plan.rank)
            records = records.shuffle(self.buffer, seed=seed, reshuffle_each_iteration=False)
        return records.take(self.steps * self.plan.batch_size)

    @as_written
    def parse(self, number: Any, record: Any) -> tuple:
        """The encoded image of an example, its label from 0 on, and its size; 0 x 0 for what is no
        JPEG."""
        no_size = tf.zeros(2, tf.int32)
        if self.source.raw:
            kinds = {HEIGHT: tf.int64, WIDTH: tf.int64, RAW: tf.string, RAW_LABEL: tf.float32}
            found = tf.io.parse_single_example(record, features(kinds))
            size = tf.strings.format("P6 {} {} 255\n", (found[WIDTH], found[HEIGHT]))
            return number, size + found[RAW], tf.cast(found[RAW_LABEL], tf.int32), no_size
        found = tf.io.parse_single_example(record, features({IMAGE: tf.string, LABEL: tf.int64}))
        data, is_jpeg = found[IMAGE], tf.io.is_jpeg(found[IMAGE])
        size = tf.cond(is_jpeg, lambda: tf.io.extract_jpeg_shape(data)[:2], lambda: no_size)
        return number, data, tf.cast(found[LABEL], tf.int32) - 1, size


def features(kinds: dict[str, Any]) -> dict[str, Any]:
    """One value of each of these types, as tf.io wants to be told."""
    return {key: tf.io.FixedLenFeature((), kind) for key, kind in kinds.items()}
