"""The native loader under TensorFlow: tf.data, from stored images to batches, stage by stage.

    read → shuffle → choose crops → decode → batch → prefetch

Files and RecordIO are read by image number, in the order of `sampler`: images and crops equal
those of the PyTorch loader. TFRecord shards are read as streams, several at once, shuffled by a
buffer. A stream still promises that no image occurs twice in an epoch on any rank, that all ranks
make the same number of steps, and that (seed, epoch) gives the same batches again.

The crops come from `recipe.augment` or a learner's function, in Python for a batch at a time.
Decoding, which is nearly all of the work, runs in tf.data's threads, without Python.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rn50lib import hooks
from rn50lib.config import TrainConfig
from rn50lib.data import Batch, sampler
from rn50lib.data.decode import SIZE, SPARE, Pictures, find_frame, quick
from rn50lib.data.shard_scan import HEIGHT, IMAGE, LABEL, RAW, RAW_LABEL, WIDTH
from rn50lib.data.shards import ShardSource
from rn50lib.data.source import Source
from rn50lib.errors import UserError
from rn50lib.recipe import Turn
from rn50lib.tf import PythonCalls, tf

BATCHES_AHEAD = 4

SHARDS_AT_ONCE = 16
"""A constant, not a number of threads: the order of a stream must not depend on the machine."""

READ_BYTES = 1 << 20
"""What is read of a shard at a time."""

ACCURATE = {"dct_method": "INTEGER_ACCURATE", "fancy_upscaling": True}
FAST = {"dct_method": "INTEGER_FAST", "fancy_upscaling": False}
"""How libjpeg computes pixels. The accurate way is Pillow's, so that all loaders give the same
image in validation. The fast one saves little, because most of the time goes into reading the
code and not into the cosine transform: see `decode.quick`."""

RATIOS = (1, 2, 4, 8)
"""libjpeg decodes at a half, a quarter or an eighth of the size for little more than the reading:
done if the crop is still at least as large as what the network gets."""

TURN = 1 + len(Turn._fields)
"""Values of a turn: mirrored, then the fields of `recipe.Turn`."""

as_written = tf.autograph.experimental.do_not_convert
"""The stages hold no Python loops or branches over tensors, which TensorFlow would look for."""


@dataclass(frozen=True)
class Stages:
    """The stages that make the pipeline fast; switch one off to measure its effect.

    `decode_and_crop` decodes only the part of a JPEG that is needed. `interleave` reads several
    shards (or, of files and RecordIO, batches) at the same time. `parallel_map` decodes several
    images at the same time. `prefetch` makes batches while the model computes.

    Without the last three everything happens in turn in the training loop, as if a Python loop fed
    each batch. The order of a TFRecord stream depends on `interleave`; otherwise only the speed
    changes. With `--data-nthreads 0` nothing happens at the same time as anything else.
    """

    decode_and_crop: bool = True
    interleave: bool = True
    parallel_map: bool = True
    prefetch: bool = True


class TfData:
    """See `rn50lib.data.Pipeline`. Batches are tensors on the host.

    Nothing in TensorFlow is touched before the first epoch: by then the backend has chosen its
    device.
    """

    def __init__(
        self, config: TrainConfig, source: Source, plan: sampler.Plan, stages: Stages = Stages()
    ) -> None:
        self.source, self.plan, self.examples = source, plan, plan.examples
        self.pixels, self.antialias = config.image_shape, config.resample != "fast"
        self.decoder: dict[str, Any] = FAST if quick(config, plan.train) else ACCURATE
        self.threads = config.data_nthreads
        self.stages = stages
        self.pictures = Pictures(source, plan.train, config)
        self.labels = np.asarray(source.labels, np.int32)
        self.python = PythonCalls(stateful=False)
        self.ordered = not isinstance(source, ShardSource)
        self.reader: Ordered | Stream
        self.reader = Stream(self, source) if isinstance(source, ShardSource) else Ordered(self)

    def __len__(self) -> int:
        return len(self.reader)

    def epoch(self, epoch: int, start_step: int = 0, skip: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch."""
        valid = self.reader.valid(epoch, skip)
        step = start_step
        try:
            for images, labels in self.dataset(epoch, step, skip):
                yield self.filled(images, labels, int(valid[step]))
                step += 1
        except tf.errors.OpError as error:
            raise self.explain(error, epoch, step, skip) from error
        for count in valid[step:].tolist():  # other ranks have validation images left
            if count:
                raise UserError(
                    f"{self.source.path}: it was changed while it was read; start again"
                )
            images = tf.zeros((0, self.pixels, self.pixels, 3), tf.uint8)
            yield self.filled(images, tf.zeros((0,), tf.int32), 0)

    def close(self) -> None:
        """Do nothing: tf.data has no processes to end."""

    # -- the stages --------------------------------------------------------------------------------

    def dataset(self, epoch: int, start_step: int = 0, skip: int = 0) -> tf.data.Dataset:
        """Return the batches of an epoch: images uint8 (B, H, W, 3) and labels int32 (B,)."""
        images = self.reader.images(epoch, start_step, skip)
        decode = as_written(functools.partial(self.traced, tf.constant(epoch)))
        images = images.map(decode, **self.at_once("parallel_map"))
        batches = images.batch(self.plan.batch_size)
        if self.stages.prefetch and self.threads:
            batches = batches.prefetch(BATCHES_AHEAD)
        return batches.with_options(self.options())

    def at_once(self, stage: str) -> dict[str, Any]:
        """Return how many calls of a stage may run at the same time, as tf.data's arguments."""
        if not getattr(self.stages, stage) or not self.threads:
            return {}
        return {"num_parallel_calls": self.threads, "deterministic": True}

    def options(self) -> tf.data.Options:
        """Return options with no more threads than this rank may use, and no automatic choices."""
        options = tf.data.Options()
        options.threading.private_threadpool_size = max(1, self.threads)
        options.threading.max_intra_op_parallelism = 1
        options.deterministic = True
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        # an image is written into its batch as it is decoded, if batches are made ahead
        ahead = self.stages.prefetch and self.stages.parallel_map and self.threads > 0
        options.experimental_optimization.map_and_batch_fusion = ahead
        return options

    def choose(self, epoch: int, numbers: Any, sizes: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return the crops of some images, and how they are turned.

        Crops are int32 (k, 4): top, left, height, width; turns float32 (k, TURN):
        mirrored (0 or 1), then `recipe.Turn`. `sizes` is (k, 2): height and width. Images without
        a size are left to `decode_by_hand`.
        """
        boxes = np.zeros((len(numbers), 4), np.int32)
        turns = np.zeros((len(numbers), TURN), np.float32)
        for i, (number, (height, width)) in enumerate(
            zip(numbers.tolist(), sizes.tolist(), strict=True)
        ):
            if height:
                (left, top, w, h), mirror = self.pictures.choose(epoch, number, width, height)
                boxes[i] = top, left, h, w
                turns[i] = mirror, *self.pictures.turn(epoch, number)
        return boxes, turns

    @functools.cached_property
    def traced(self) -> Callable:
        """`decode` as a graph that is built once and not again for each epoch."""
        return tf.function(self.decode, autograph=False)

    def decode(
        self, epoch: Any, number: Any, data: Any, label: Any, size: Any, box: Any, turn: Any
    ) -> tuple[Any, Any]:
        """Return one image, its crop decoded, resized, mirrored and turned; and its label."""

        def here() -> Any:
            return self.turned(self.cropped(data, box), turn)

        def by_hand() -> Any:
            return self.python(self.decode_by_hand, [epoch, number, data], tf.uint8)

        pixels = tf.cond(size[0] > 0, here, by_hand)
        return tf.ensure_shape(pixels, (self.pixels, self.pixels, 3)), label

    def cropped(self, data: Any, box: Any) -> Any:
        """Return the crop of a JPEG as uint8 (pixels, pixels, 3)."""
        if not self.stages.decode_and_crop:
            whole = tf.io.decode_jpeg(data, channels=3, **self.decoder)
            top, left, height, width = tf.unstack(box)
            part = whole[top : top + height, left : left + width]
            return self.resized(part, tf.zeros(2), tf.cast(box[2:], tf.float32))
        spare = 1 if self.plan.train or not self.antialias else SPARE
        fits = tf.reduce_min(box[2:]) // (spare * self.pixels)  # how often it holds what is wanted
        step = tf.reduce_sum(tf.cast(fits >= RATIOS[1:], tf.int32))
        ratio = tf.gather(RATIOS, step)
        first, last = box[:2] // ratio, -(-(box[:2] + box[2:]) // ratio)
        window = tf.concat([first, last - first], 0)
        part = tf.switch_case(
            step, [functools.partial(self.jpeg_part, data, window, r) for r in RATIOS]
        )
        exact = tf.cast(box, tf.float32) / tf.cast(ratio, tf.float32)
        return self.resized(part, exact[:2] - tf.cast(first, tf.float32), exact[2:])

    def jpeg_part(self, data: Any, window: Any, ratio: int) -> Any:
        """Return a window (top, left, height, width) of a JPEG at 1 / `ratio` of its size."""
        return tf.io.decode_and_crop_jpeg(data, window, channels=3, ratio=ratio, **self.decoder)

    def resized(self, part: Any, start: Any, size: Any) -> Any:
        """Return a rectangle of `part` as uint8 (pixels, pixels, 3).

        It has a `start` (y, x) and a `size` (height, width), both float32: it may begin within a
        pixel. Without antialiasing each new pixel is made of its four neighbours, the pixels
        between are skipped, and the fraction of a pixel in `start` is left out.
        """
        if not self.antialias:
            small = tf.image.resize(part, (self.pixels, self.pixels))
        else:
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

    def turned(self, pixels: Any, turn: Any) -> Any:
        """Return the image mirrored, flipped and rotated as drawn."""
        if not self.plan.train:
            return pixels
        pixels = tf.cond(turn[0] > 0, lambda: tf.reverse(pixels, [1]), lambda: pixels)
        if self.pictures.augmentation.upside_down:
            level = pixels
            pixels = tf.cond(turn[1] > 0, lambda: tf.reverse(level, [0]), lambda: level)
        if self.pictures.augmentation.rotate:
            pixels = _rotated(pixels, turn[2])
        return pixels

    # -- in Python ---------------------------------------------------------------------------------

    def decode_by_hand(self, epoch: Any, number: Any, data: bytes) -> np.ndarray:
        """Return an image that is not a JPEG, decoded by Pillow, as in every other loader."""
        return np.ascontiguousarray(self.pictures.from_bytes(data, int(epoch), int(number)))

    def filled(self, images: Any, labels: Any, valid: int) -> Batch:
        """Return a batch of full size: rows are added to the last one of a validation stream."""
        missing = self.plan.batch_size - int(images.shape[0])
        if missing:
            images = tf.pad(images, [[0, missing], [0, 0], [0, 0], [0, 0]])
            labels = tf.pad(labels, [[0, missing]])
        return Batch(images, labels, valid)

    def explain(self, error: Exception, epoch: int, step: int, skip: int) -> Exception:
        """Return the error that names the record because of which batch `step` failed.

        What Python raised is returned unchanged: a UserError, or a mistake in a learner's function.
        """
        if self.python.error is not None:
            return self.python.error
        if isinstance(self.source, ShardSource) and isinstance(error, tf.errors.DataLossError):
            return self.source.find_damage(error.message)
        numbers = sorted({int(n) for n in self.reader.numbers(epoch, step, skip)})
        try:
            for number in numbers:
                self.pictures.image(epoch, number)
        except UserError as found:
            return found
        names = f"{self.source.name(numbers[0])} and {len(numbers) - 1} more images"
        return UserError(f"TensorFlow cannot make the batch of {names}: {error}")


def _rotated(pixels: Any, degrees: Any) -> Any:
    """Return a square image turned counter-clockwise about its middle, with black corners."""
    side = tf.cast(tf.shape(pixels)[0], tf.float32)
    middle = (side - 1) / 2
    radians = degrees * (np.pi / 180)
    cos, sin = tf.cos(radians), tf.sin(radians)
    # the origin of each new pixel: x = cos x' - sin y' + ..., y = sin x' + cos y' + ...
    across, down = middle - cos * middle + sin * middle, middle - sin * middle - cos * middle
    transform = tf.stack([cos, -sin, across, sin, cos, down, 0.0, 0.0])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=pixels[None],
        transforms=transform[None],
        output_shape=tf.shape(pixels)[:2],
        fill_value=0.0,
        interpolation="BILINEAR",
    )[0]


# -- what a rank reads in an epoch ---------------------------------------------------------------


class Ordered:
    """Images of files and RecordIO, by their number, in the order of `sampler`."""

    def __init__(self, pipeline: TfData) -> None:
        self.pipeline, self.plan = pipeline, pipeline.plan

    def __len__(self) -> int:
        return len(self.plan)

    def valid(self, epoch: int, skip: int) -> np.ndarray:
        """Return how many images of each batch count."""
        return self.plan.rows(epoch, skip)[1]

    def numbers(self, epoch: int, step: int, skip: int) -> np.ndarray:
        """Return the images of one batch."""
        return self.plan.rows(epoch, skip)[0][step]

    def images(self, epoch: int, start_step: int, skip: int) -> tf.data.Dataset:
        """Return (number, encoded image, label, size, crop, turn) of one image after the other."""
        rows = tf.data.Dataset.from_tensor_slices(self.plan.rows(epoch, skip)[0][start_step:])

        @as_written
        def read(row: Any) -> tuple:
            types = [tf.string, tf.int32, tf.int32, tf.int32, tf.float32]
            read = functools.partial(self.read, epoch)
            found = self.pipeline.python(read, [row], types)
            shapes = [(None,), (None,), (None, 2), (None, 4), (None, TURN)]
            return row, *(tf.ensure_shape(x, s) for x, s in zip(found, shapes, strict=True))

        return rows.map(read, **self.pipeline.at_once("interleave")).unbatch()

    def read(self, epoch: int, row: np.ndarray) -> tuple:
        """Return encoded images, labels, sizes, crops and turns of a batch."""
        pipeline = self.pipeline
        data = [pipeline.source.read(number) for number in row.tolist()]
        sizes = np.zeros((len(row), 2), np.int32)
        for i, encoded in enumerate(data):
            if (frame := find_frame(encoded)) is not None:
                sizes[i] = SIZE.unpack_from(encoded, frame + 5)[:2]
        boxes, turns = pipeline.choose(epoch, row, sizes)
        return np.array(data, object), pipeline.labels[row], sizes, boxes, turns


class Stream:
    """Images of TFRecord shards, in the order in which several streams and a shuffle give them."""

    def __init__(self, pipeline: TfData, source: ShardSource) -> None:
        if hooks.get("shard") is not sampler.shard:
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
        """Return what this rank reads, int64 (k, 3): shard, records to skip, records to take."""
        plan = self.plan
        shards = np.arange(len(self.counts))
        if plan.train:  # another part for every rank, and other images left over, each epoch
            shards = sampler.epoch_order(len(self.counts), plan.seed, epoch)
        ranges = sampler.stream_shard(self.counts[shards], plan.rank, plan.size)
        ranges[:, 0] = shards[ranges[:, 0]]
        return ranges

    def valid(self, epoch: int, skip: int) -> np.ndarray:
        """Return how many images of each batch count."""
        size = self.plan.batch_size
        count = int(self.ranges(epoch)[:, 2].sum())
        return np.clip(count - size * np.arange(self.steps), 0, size)

    def numbers(self, epoch: int, step: int, skip: int) -> np.ndarray:
        """Return the images of one batch, by reading the same streams again up to there."""
        size = self.plan.batch_size
        records = self.records(epoch).skip(step * size).take(size)
        records = records.with_options(self.pipeline.options())
        return np.array([number.numpy() for number, _ in records], np.int64)

    def images(self, epoch: int, start_step: int, skip: int) -> tf.data.Dataset:
        """Return (number, encoded image, label, size, crop, turn) of one image after the other."""
        pipeline = self.pipeline
        records = self.records(epoch).skip(start_step * self.plan.batch_size)
        parsed = records.map(self.parse, **pipeline.at_once("parallel_map"))

        @as_written
        def choose(number: Any, data: Any, label: Any, size: Any) -> tuple:
            choose = functools.partial(pipeline.choose, epoch)
            boxes, turns = pipeline.python(choose, [number, size], [tf.int32, tf.float32])
            boxes, turns = tf.ensure_shape(boxes, (None, 4)), tf.ensure_shape(turns, (None, TURN))
            return number, data, label, size, boxes, turns

        batches = parsed.batch(self.plan.batch_size)
        return batches.map(choose, **pipeline.at_once("parallel_map")).unbatch()

    def records(self, epoch: int) -> tf.data.Dataset:
        """Return (number, serialised example) of every record that this rank uses, shuffled."""
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
            seed = sampler.image_seed(self.plan.seed, epoch, self.plan.rank)
            records = records.shuffle(self.buffer, seed=seed, reshuffle_each_iteration=False)
        return records.take(self.steps * self.plan.batch_size)

    @as_written
    def parse(self, number: Any, record: Any) -> tuple:
        """Return number, encoded image, label from 0 on and size; 0 x 0 if it is not a JPEG."""
        no_size = tf.zeros(2, tf.int32)
        if self.source.raw:
            kinds = {HEIGHT: tf.int64, WIDTH: tf.int64, RAW: tf.string, RAW_LABEL: tf.float32}
            found = tf.io.parse_single_example(record, _features(kinds))
            size = tf.strings.format("P6 {} {} 255\n", (found[WIDTH], found[HEIGHT]))
            return number, size + found[RAW], tf.cast(found[RAW_LABEL], tf.int32), no_size
        found = tf.io.parse_single_example(record, _features({IMAGE: tf.string, LABEL: tf.int64}))
        data, is_jpeg = found[IMAGE], tf.io.is_jpeg(found[IMAGE])
        size = tf.cond(is_jpeg, lambda: tf.io.extract_jpeg_shape(data)[:2], lambda: no_size)
        return number, data, tf.cast(found[LABEL], tf.int32) - 1, size


def _features(kinds: dict[str, Any]) -> dict[str, Any]:
    """Return one value of each of these types, in tf.io's form."""
    return {key: tf.io.FixedLenFeature((), kind) for key, kind in kinds.items()}
