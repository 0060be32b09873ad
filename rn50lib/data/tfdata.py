"""The native loader under TensorFlow: tf.data, from stored images to batches, stage by stage.

    read → shuffle → choose crops → decode → batch → prefetch

Files and RecordIO are read by image number, in the order that `records.order` lays down: their
images and crops are those of PyTorch's loader. TFRecord shards are read as streams, several at
once, because that is what the format is for: large reads, one behind the other, where a disk or a
network would be slow at jumping. A stream cannot jump, so its order is a shuffle buffer's; it still
promises that no image comes twice in an epoch, on whichever rank, that all ranks step equally
often, and that (seed, epoch) gives the same batches again.

The crops are those of `recipe.augment` in every case, drawn in Python for a batch at a time: some
microseconds an image, for the same crops as in every other loader, and for a learner's own
`augment` too. Decoding, which is nearly all of the work, runs in tf.data's threads, without Python.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from rn50lib.tf import PythonCalls, tf
from rn50lib.config import TrainConfig
from rn50lib.errors import UserError
from rn50lib.data import Batch
from rn50lib.data.decode import SPARE, Pictures, quick
from rn50lib.data.sampler import Plan
from rn50lib.data.tfdata_readers import Ordered, Stream, as_written
from rn50lib.data.shards import ShardSource
from rn50lib.data.source import Source

BATCHES_AHEAD = 4

ACCURATE = {"dct_method": "INTEGER_ACCURATE", "fancy_upscaling": True}
FAST = {"dct_method": "INTEGER_FAST", "fancy_upscaling": False}
"""How libjpeg computes pixels. The accurate way is Pillow's, so that all loaders see the same
picture in validation. The fast one saves little, because most of the time goes into reading the
code and not into the cosine transform: see `images.quick`."""

RATIOS = (1, 2, 4, 8)
"""libjpeg decodes at a half, a quarter or an eighth of the size for little more than the reading:
done where the crop is still at least as large as what the network gets."""


@dataclass(frozen=True)
class Stages:
    """What the pipeline does to be fast, each of it to be switched off to see what it is worth.

    `decode_and_crop` decodes the part of a JPEG that is needed instead of all of it. `interleave`
    reads several shards (or, of files and RecordIO, batches) at the same time. `parallel_map`
    decodes several images at the same time. `prefetch` makes batches while the model computes.

    Without the last three everything happens one after the other in the training loop, as if a
    Python loop fed each batch. The order of a TFRecord stream depends on `interleave`; else only
    the speed changes. With `--data-nthreads 0` nothing happens at the same time as anything else.
    """

    decode_and_crop: bool = True
    interleave: bool = True
    parallel_map: bool = True
    prefetch: bool = True


class TfData:
    """See `rn50lib.data.Pipeline`. Batches are tensors on the host.

    Nothing of TensorFlow is touched before the first epoch: by then the backend has chosen its
    device.
    """

    def __init__(
        self,
        experiment: TrainConfig,
        source: Source,
        plan: Plan,
        stages: Stages = Stages(),
    ) -> None:
        self.source, self.plan, self.examples = source, plan, plan.examples
        self.pixels, self.antialias = experiment.image_shape, experiment.resample != "fast"
        self.decoder: dict[str, Any] = FAST if quick(experiment, plan.train) else ACCURATE
        self.threads = experiment.data_nthreads
        self.stages = stages
        self.pictures = Pictures(source, plan.train, experiment)
        self.labels = np.asarray(source.labels, np.int32)
        self.python = PythonCalls(stateful=False)
        self.reader: Ordered | Stream
        if isinstance(source, ShardSource):
            self.reader = Stream(self, source)
        else:
            self.reader = Ordered(self)
        self.ordered = isinstance(self.reader, Ordered)

    def __len__(self) -> int:
        return len(self.reader)

    def epoch(self, epoch: int, start_step: int = 0, skip: int = 0) -> Iterator[Batch]:
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
        return None

    # -- the stages --------------------------------------------------------------------------------

    def dataset(self, epoch: int, start_step: int = 0, skip: int = 0) -> tf.data.Dataset:
        """The batches of an epoch: images uint8 (B, H, W, 3) and labels int32 (B,)."""
        images = self.reader.images(epoch, start_step, skip)
        decode = as_written(functools.partial(self.traced, tf.constant(epoch)))
        images = images.map(decode, **self.at_once("parallel_map"))
        batches = images.batch(self.plan.batch_size)
        if self.stages.prefetch and self.threads:
            batches = batches.prefetch(BATCHES_AHEAD)
        return batches.with_options(self.options())

    def at_once(self, stage: str) -> dict[str, Any]:
        """How many calls of a stage may run at the same time, in the form that tf.data takes."""
        if not getattr(self.stages, stage) or not self.threads:
            return {}
        return {"num_parallel_calls": self.threads, "deterministic": True}

    def options(self) -> tf.data.Options:
        """As many threads as this rank may use, so that ranks never fight for cores; and of what
        tf.data would switch on by itself one thing alone: where batches are made ahead, an image is
        written into its batch as it is decoded, which saves a copy of all of them."""
        options = tf.data.Options()
        options.threading.private_threadpool_size = max(1, self.threads)
        options.threading.max_intra_op_parallelism = 1
        options.deterministic = True
        options.autotune.enabled = False
        options.experimental_optimization.apply_default_optimizations = False
        ahead = self.stages.prefetch and self.stages.parallel_map and self.threads > 0
        options.experimental_optimization.map_and_batch_fusion = ahead
        return options

    def choose(self, epoch: int, numbers: Any, sizes: Any) -> tuple[np.ndarray, np.ndarray]:
        """The crops of some images, int32 (k, 4) as top, left, height, width; and how they are
        turned, float32 (k, 3): mirrored (0 or 1), upside down (0 or 1), degrees.

        `sizes` is (k, 2): height and width. Images without a size are left to `decode_by_hand`.
        """
        boxes = np.zeros((len(numbers), 4), np.int32)
        turns = np.zeros((len(numbers), 3), np.float32)
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
        """`decode` as a graph that is built once and not for each epoch again."""
        return tf.function(self.decode, autograph=False)

    def decode(
        self, epoch: Any, number: Any, data: Any, label: Any, size: Any, box: Any, turn: Any
    ) -> tuple[Any, Any]:
        """One image: its crop decoded, made small, mirrored and turned; and its label."""

        def here() -> Any:
            return self.turned(self.cropped(data, box), turn)

        def by_hand() -> Any:
            return self.python(self.decode_by_hand, [epoch, number, data], tf.uint8)

        pixels = tf.cond(size[0] > 0, here, by_hand)
        return tf.ensure_shape(pixels, (self.pixels, self.pixels, 3)), label

    def cropped(self, data: Any, box: Any) -> Any:
        """The crop of a JPEG as uint8 (pixels, pixels, 3)."""
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
        """A window (top, left, height, width) of a JPEG decoded at 1 / `ratio` of its size."""
        return tf.io.decode_and_crop_jpeg(data, window, channels=3, ratio=ratio, **self.decoder)

    def resized(self, part: Any, start: Any, size: Any) -> Any:
        """A rectangle of `part`, from `start` (y, x) on and of `size` (height, width), as uint8
        (pixels, pixels, 3). Both are float32: a rectangle may begin within a pixel.

        Without antialiasing each new pixel is made of its four neighbours, and what lies between is
        passed over; the fraction of a pixel by which the rectangle is off is left out.
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
        """The image mirrored, turned over and turned, each where it was chosen."""
        if not self.plan.train:
            return pixels
        pixels = tf.cond(turn[0] > 0, lambda: tf.reverse(pixels, [1]), lambda: pixels)
        if self.pictures.augmentation.upside_down:
            level = pixels
            pixels = tf.cond(turn[1] > 0, lambda: tf.reverse(level, [0]), lambda: level)
        if self.pictures.augmentation.rotate:
            pixels = rotated(pixels, turn[2])
        return pixels

    # -- in Python ---------------------------------------------------------------------------------

    def decode_by_hand(self, epoch: Any, number: Any, data: bytes) -> np.ndarray:
        """What is no JPEG goes through Pillow, as in every other loader."""
        return np.ascontiguousarray(self.pictures.from_bytes(data, int(epoch), int(number)))

    def filled(self, images: Any, labels: Any, valid: int) -> Batch:
        """A batch of full size: rows are added to the last one of a validation stream."""
        missing = self.plan.batch_size - int(images.shape[0])
        if missing:
            images = tf.pad(images, [[0, missing], [0, 0], [0, 0], [0, 0]])
            labels = tf.pad(labels, [[0, missing]])
        return Batch(images, labels, valid)

    # -- what went wrong ---------------------------------------------------------------------------

    def explain(self, error: Exception, epoch: int, step: int, skip: int) -> Exception:
        """The error that names the record because of which batch `step` could not be made.

        What Python raised comes as it was: a UserError, or a mistake in a learner's own function.
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


def rotated(pixels: Any, degrees: Any) -> Any:
    """A square image turned counter-clockwise about its middle; the corners become black."""
    side = tf.cast(tf.shape(pixels)[0], tf.float32)
    middle = (side - 1) / 2
    radians = degrees * (np.pi / 180)
    cos, sin = tf.cos(radians), tf.sin(radians)
    # where each new pixel comes from: x = cos x' - sin y' + ..., y = sin x' + cos y' + ...
    across, down = middle - cos * middle + sin * middle, middle - sin * middle - cos * middle
    transform = tf.stack([cos, -sin, across, sin, cos, down, 0.0, 0.0])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=pixels[None],
        transforms=transform[None],
        output_shape=tf.shape(pixels)[:2],
        fill_value=0.0,
        interpolation="BILINEAR",
    )[0]
