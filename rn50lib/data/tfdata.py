"""The native loader under TensorFlow: tf.data, from stored images to batches, stage by stage.

    read → shuffle → sample crops → decode → batch → prefetch

Files are read in the order of `sampler`: images and crops equal those of the PyTorch loader.
TFRecord shards are read as streams, several at once, shuffled by a buffer. A stream still promises
that no image occurs twice in an epoch on any rank, that all ranks make the same number of steps,
and that (seed, epoch) gives the same batches again.

TensorFlow reads, decodes and resizes, in its own threads. Only the crops come from Python, for a
batch at a time: from `recipe.augment` or a learner's function.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from rn50lib.config import TrainConfig
from rn50lib.data import Batch, Pipeline, sampler
from rn50lib.data.decode import (
    BOTTOM_UP,
    MAX_PIXELS,
    OVERSAMPLE,
    RIGHT_TO_LEFT,
    SIZE,
    ImageDecoder,
    find_frame,
    find_orientation,
    open_image,
)
from rn50lib.data.source import ShardSource, Source
from rn50lib.data.tfrecord import IMAGE, LABEL
from rn50lib.errors import UserError, first_line

BATCHES_AHEAD = 4

SHARDS_AT_ONCE = 16  # not a number of threads: a stream's order must not depend on the machine
READ_BYTES = 1 << 20  # of a shard at a time
ACCURATE = {"dct_method": "INTEGER_ACCURATE", "fancy_upscaling": True}
FAST = {"dct_method": "INTEGER_FAST", "fancy_upscaling": False}  # for training
RATIOS = (1, 2, 4, 8)  # libjpeg decodes at 1 / ratio of the size for little more than the reading

as_written = tf.autograph.experimental.do_not_convert
"""The stages hold no Python loops or branches over tensors, which TensorFlow would look for."""


class TfData(Pipeline):
    """Images of class folders by their number; see `rn50lib.data.Pipeline`.

    Batches are tensors on the host. Nothing in TensorFlow is touched before the first epoch: by
    then the backend has chosen its device.
    """

    ordered = True

    def __init__(self, config: TrainConfig, source: Source, batches: sampler.BatchSampler) -> None:
        self.source, self.sampler, self.examples = source, batches, batches.examples
        self.pixels = config.image_shape
        self.how: dict[str, Any] = FAST if batches.train else ACCURATE
        self.threads = max(1, config.data_nthreads)  # of this process in any case
        self.parallel = {"num_parallel_calls": self.threads, "deterministic": True}
        self.decoder = ImageDecoder(source, batches.train, config)
        self.error: Exception | None = None  # that Python raised in a graph

    def __len__(self) -> int:
        return len(self.sampler)

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        rows, valid = self.sampler.rows(epoch, skip)
        return self._batches(epoch, self._files(rows.ravel()), valid, rows)

    def _files(self, numbers: np.ndarray) -> tf.data.Dataset:
        """Return (number, encoded image, label) of one image after the other."""
        names = [os.fsencode(self.source.name(number)) for number in numbers.tolist()]
        labels = np.asarray(self.source.labels, np.int32)[numbers]
        files = tf.data.Dataset.from_tensor_slices((numbers, np.array(names, object), labels))

        @as_written
        def read(number: Any, name: Any, label: Any) -> tuple:
            return number, tf.io.read_file(name), label

        return files.map(read, **self.parallel)

    def _batches(
        self, epoch: int, stored: tf.data.Dataset, valid: np.ndarray, rows: np.ndarray | None = None
    ) -> Iterator[Batch]:
        """Yield the batches of `stored` images; `rows` are their numbers, if the order is known."""
        step = 0
        try:
            for images, labels in self._dataset(epoch, stored):
                yield self._filled(images, labels, int(valid[step]))
                step += 1
        except tf.errors.OpError as error:
            suspects = [] if rows is None else np.sort(rows[step]).tolist()
            raise self._explain(error, epoch, suspects) from error
        for count in valid[step:].tolist():  # other ranks have validation images left
            if count:
                raise UserError(
                    f"{self.source.path}: it was changed while it was read; start again"
                )
            images = tf.zeros((0, self.pixels, self.pixels, 3), tf.uint8)
            yield self._filled(images, tf.zeros((0,), tf.int32), 0)

    def _sample(self, epoch: int, numbers: np.ndarray, data: Sequence[bytes]) -> np.ndarray:
        """Return the crops of encoded images, int32 (k, 7).

        Top, left, height and width in the stored image; whether to exchange rows and columns then
        (0, 1); in which direction to read the rows and the columns (1, -1).
        """
        crops = []
        for number, encoded in zip(numbers.tolist(), data, strict=True):
            frame = find_frame(encoded)
            height, width = SIZE.unpack_from(encoded, frame + 5)[:2] if frame else (0, 0)
            if not 0 < height * width <= MAX_PIXELS:
                width, height = open_image(encoded, self.source.name(number)).size
            (left, top, w, h), turned = self.decoder.sample_crop(
                epoch, number, width, height, find_orientation(encoded)
            )
            rows, columns = (-1 if turned in flips else 1 for flips in (BOTTOM_UP, RIGHT_TO_LEFT))
            crops.append((top, left, h, w, turned >= 5, rows, columns))
        return np.array(crops, np.int32)

    # -- the stages --------------------------------------------------------------------------------

    def _dataset(self, epoch: int, stored: tf.data.Dataset) -> tf.data.Dataset:
        """Return the batches of an epoch: images uint8 (B, H, W, 3) and labels int32 (B,)."""

        def in_python(numbers: np.ndarray, data: Sequence[bytes]) -> np.ndarray:
            try:
                return self._sample(epoch, numbers, data)
            except Exception as error:
                self.error = error
                raise

        @as_written
        def sample(numbers: Any, data: Any, labels: Any) -> tuple:
            crops = tf.numpy_function(in_python, [numbers, data], tf.int32, stateful=False)
            return data, labels, tf.ensure_shape(crops, (None, None))

        size = self.sampler.batch_size
        images = stored.batch(size).map(sample, **self.parallel).unbatch()
        batches = images.map(as_written(self._traced), **self.parallel).batch(size)
        return batches.prefetch(BATCHES_AHEAD).with_options(self._options())

    def _options(self) -> tf.data.Options:
        """Return options with no more threads than this rank may use, and no automatic choices."""
        options = tf.data.Options()
        options.threading.private_threadpool_size = self.threads
        options.threading.max_intra_op_parallelism = 1
        options.deterministic = True
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        # an image is written into its batch as it is decoded
        options.experimental_optimization.map_and_batch_fusion = True
        return options

    @functools.cached_property
    def _traced(self) -> Callable:
        """`_decode` as a graph that is built once and not again for each epoch."""
        return tf.function(self._decode, autograph=False)

    def _decode(self, data: Any, label: Any, crop: Any) -> tuple[Any, Any]:
        """Return one image, its crop decoded, resized, turned and mirrored; and its label."""
        box = crop[:4]
        oversample = 1 if self.sampler.train else OVERSAMPLE
        fits = tf.reduce_min(box[2:]) // (oversample * self.pixels)  # how often it holds the wanted
        is_jpeg = tf.io.is_jpeg(data)
        smaller = tf.reduce_sum(tf.cast(fits >= RATIOS[1:], tf.int32))
        step = tf.where(is_jpeg, smaller, 0)
        ratio = tf.gather(RATIOS, step)
        first, last = box[:2] // ratio, -(-(box[:2] + box[2:]) // ratio)
        window = tf.concat([first, last - first], 0)

        def decode(ratio: int) -> Any:
            return tf.io.decode_and_crop_jpeg(data, window, channels=3, ratio=ratio, **self.how)

        def decode_other() -> Any:
            whole = tf.io.decode_image(data, channels=3, expand_animations=False)
            whole = tf.ensure_shape(whole, (None, None, 3))
            return whole[first[0] : last[0], first[1] : last[1]]

        ways = [*(functools.partial(decode, ratio) for ratio in RATIOS), decode_other]
        part = tf.switch_case(tf.where(is_jpeg, step, len(RATIOS)), ways)
        exact = tf.cast(box, tf.float32) / tf.cast(ratio, tf.float32)
        small = self._resized(part, exact[:2] - tf.cast(first, tf.float32), exact[2:])
        upright = tf.transpose(small, [crop[4], 1 - crop[4], 2])[:: crop[5], :: crop[6]]
        return tf.ensure_shape(upright, (self.pixels, self.pixels, 3)), label

    def _resized(self, part: Any, start: Any, size: Any) -> Any:
        """Return a rectangle of `part` as uint8 (pixels, pixels, 3).

        It has a `start` (y, x) and a `size` (height, width), both float32: it may begin within a
        pixel.
        """
        scale = self.pixels / size
        small = tf.raw_ops.ScaleAndTranslate(
            images=part[None],
            size=(self.pixels, self.pixels),
            scale=scale,
            translation=-start * scale,
            kernel_type="triangle",
            antialias=True,
        )[0]
        return tf.cast(small + 0.5, tf.uint8)  # a half goes up, as Pillow's; none exceeds 255

    def _filled(self, images: Any, labels: Any, valid: int) -> Batch:
        """Return a batch of full size: rows are added to the last one of a validation stream."""
        missing = self.sampler.batch_size - int(images.shape[0])
        if missing:
            images = tf.pad(images, [[0, missing], [0, 0], [0, 0], [0, 0]])
            labels = tf.pad(labels, [[0, missing]])
        return Batch(images, labels, valid)

    def _explain(self, error: tf.errors.OpError, epoch: int, suspects: list[int]) -> Exception:
        """Return the error that names the image of `suspects` because of which a batch failed.

        What Python raised is returned unchanged: a UserError, or a mistake in a learner's function.
        """
        if self.error is not None:
            return self.error
        for number in suspects:
            try:
                data = self.source.read(number)
                self.decoder.decode_crop(data, epoch, number)  # by Pillow
                self._decode(data, 0, self._sample(epoch, np.array([number]), [data])[0])
            except UserError as bad:
                return bad
            except tf.errors.OpError as reason:
                return UserError(
                    f"{self.source.name(number)}: TensorFlow does not decode this image"
                    f" ({first_line(reason)}); save it again as a JPEG, or use --backend torch"
                )
        # which record, or why an image does not decode; lines with [[ name nodes of a graph
        lines = [line for line in error.message.splitlines() if line and "[[" not in line]
        said = re.sub(r"\{\{.*?\}\} ?", "", lines[-1] if lines else error.message).rstrip(".")
        return UserError(
            f"{self.source.path}: TensorFlow cannot read an image of it: {said}",
            ("verify", self.source.root),
        )


class TfRecordStream(TfData):
    """Images of TFRecord shards, in the order in which several streams and a shuffle give them."""

    ordered = False

    def __init__(
        self, config: TrainConfig, source: ShardSource, batches: sampler.BatchSampler
    ) -> None:
        super().__init__(config, source, batches)
        self.shards = source
        self.steps = batches.stream_steps()
        # --num-examples takes the same part of every shard
        self.counts = np.diff(self.examples * source.firsts // len(source))
        self.buffer = batches.shuffle_buffer(source.shards)

    def __len__(self) -> int:
        return self.steps

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        size, ranges = self.sampler.batch_size, self._ranges(epoch)
        valid = np.clip(ranges[:, 2].sum() - size * np.arange(self.steps), 0, size)
        records = self._records(epoch, ranges).map(self._parse, **self.parallel)
        return self._batches(epoch, records, valid)

    def _ranges(self, epoch: int) -> np.ndarray:
        """Return what this rank reads, int64 (k, 3): shard, records to skip, records to take."""
        batches, shards = self.sampler, np.arange(len(self.counts))
        if batches.train:  # another part for every rank, and other images left over, each epoch
            shards = sampler.epoch_order(len(self.counts), batches.seed, epoch)
        ranges = sampler.stream_shard(self.counts[shards], batches.rank, batches.size)
        ranges[:, 0] = shards[ranges[:, 0]]
        return ranges

    def _records(self, epoch: int, ranges: np.ndarray) -> tf.data.Dataset:
        """Return (number, serialised example) of every record that this rank uses, shuffled."""
        paths = np.array([str(self.shards.shards[shard]) for shard in ranges[:, 0]], object)
        firsts = self.shards.firsts[ranges[:, 0]] + ranges[:, 1]
        shards = tf.data.Dataset.from_tensor_slices((paths, firsts, ranges[:, 1], ranges[:, 2]))

        @as_written
        def read(path: Any, first: Any, skip: Any, take: Any) -> tf.data.Dataset:
            records = tf.data.TFRecordDataset(path, buffer_size=READ_BYTES).skip(skip).take(take)
            return tf.data.Dataset.zip((tf.data.Dataset.range(first, first + take), records))

        records = shards.interleave(read, cycle_length=SHARDS_AT_ONCE, **self.parallel)
        if self.sampler.train:
            seed = sampler.image_seed(self.sampler.seed, epoch, self.sampler.rank)
            records = records.shuffle(self.buffer, seed=seed, reshuffle_each_iteration=False)
        return records.take(self.steps * self.sampler.batch_size)

    @as_written
    def _parse(self, number: Any, record: Any) -> tuple:
        """Return number, encoded image, and label from 0 on."""
        features = {
            IMAGE: tf.io.FixedLenFeature((), tf.string),
            LABEL: tf.io.FixedLenFeature((), tf.int64),
        }
        found = tf.io.parse_single_example(record, features)
        return number, found[IMAGE], tf.cast(found[LABEL], tf.int32) - 1
