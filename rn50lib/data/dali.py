"""The DALI loader: NVIDIA's readers and decoders, through DALI's own iterator for PyTorch.

    read → decode and crop → resize → mirror → uint8 pixels

The same two pipelines, for training and for validation, run on a CPU and on a GPU, with the
recipe's numbers, none of which are DALI's defaults. Crops are DALI's, by the rule of the recipe.

Training reads files in the order of `sampler`, and record files as streams through a shuffle
buffer. Each epoch has its own pipeline: DALI fixes files and seeds when it builds one, and one
that continued from epoch to epoch would give a resumed run different batches. The next epoch's is
built during the last batches of this one.
"""

from __future__ import annotations

import inspect
import itertools
import weakref
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F

from rn50lib import hooks
from rn50lib.config import TrainConfig
from rn50lib.data import Batch, sampler
from rn50lib.data.decode import ImageDecoder, find_orientation
from rn50lib.data.sampler import BatchSampler
from rn50lib.data.source import FileSource, ShardSource, Source
from rn50lib.data.tfrecord import IMAGE, LABEL, index_path
from rn50lib.errors import UserError
from rn50lib.hardware import machine

try:
    from nvidia import dali
    from nvidia.dali import fn, math, pipeline_def, tfrecord, types
    from nvidia.dali.plugin.base_iterator import LastBatchPolicy
    from nvidia.dali.plugin.pytorch import DALIGenericIterator
except ImportError as error:
    raise UserError(
        f"--loader dali: DALI does not import here ({error}): use --loader native", ("setup",)
    ) from error

BATCHES_AHEAD = 2
TURNS = "adjust_orientation" in inspect.signature(fn.decoders.image).parameters
"""Whether DALI turns images upright, as their EXIF block says: DALI 2 does, DALI 1 cannot."""
JPEG_ENGINES = ((8, 0), (9, 0), (10, 0))  # of A100 and A30, H100 and H200, B200


class Dali:
    """Images of files, RecordIO or TFRecord; see `rn50lib.data.Pipeline`.

    Batches are tensors, on the GPU if there is one. If `engine`, the GPU's JPEG engine decodes
    whole images. Else only the part that the crop needs is decoded, which is less work.

    With `--num-examples`, an epoch of a stream ends early, and each may use different images. DALI
    compares no checksums.
    """

    ordered = False

    def __init__(self, config: TrainConfig, source: Source, batches: BatchSampler) -> None:
        self.config, self.source, self.sampler = config, source, batches
        self.examples, self.files = batches.examples, source.format == "files"
        self.steps = len(batches) if self.files else batches.stream_steps()
        if hooks.is_replaced("augment"):
            raise UserError(
                "--override augment: DALI draws its crops itself, in its own threads, and calls no"
                " Python function for it; use --loader native"
            )
        if len(source) < batches.size:  # else known when an epoch has been trained
            raise UserError(
                f"{source.path}: it has {len(source)} images for {batches.size} workers, and DALI"
                " needs one for each: use fewer workers or --loader native"
            )
        if isinstance(source, ShardSource):
            self.paths, self.indexes = list(source.shards), [*map(index_path, source.shards)]
        else:
            self.paths, self.indexes = [source.path], [source.path.with_suffix(".idx")]
        for index in () if self.files else self.indexes:
            if not index.exists():
                problem = f"{index}: this index is missing, and --loader dali needs it"
                raise UserError(problem, ("index_shards", source.path))
        check_names(source, self.paths)
        self.gpu: int | None = None
        if machine().gpus and torch.cuda.is_available():
            self.gpu = torch.cuda.current_device()  # this rank has chosen it when it connected
        self.engine = self.gpu is not None and machine().gpus[0].capability in JPEG_ENGINES
        self.ahead = config.data_nthreads > 0  # else the training process makes the batches
        self.builder = ThreadPoolExecutor(1, "dali-build")
        self.next_epoch: dict[int, Future] = {}  # the iterator, by epoch

    def __len__(self) -> int:
        return self.steps

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        built = self.next_epoch.pop(epoch, None)
        batches = built.result() if built else self._open(epoch)
        build_at = max(0, len(self) - 1 - BATCHES_AHEAD)
        step = 0
        try:
            for step, (batch,) in enumerate(itertools.islice(batches, len(self))):
                if step == build_at and self.ahead and epoch + 1 < self.config.num_epochs:
                    self.next_epoch = {epoch + 1: self.builder.submit(self._open, epoch + 1)}
                images, labels = batch["images"], batch["labels"]
                valid = len(labels)
                if missing := self.sampler.batch_size - valid:  # of the last one in validation
                    images = F.pad(images, (0, 0, 0, 0, 0, 0, 0, missing))
                    labels = F.pad(labels, (0, missing))
                yield Batch(images, labels, valid)
        except RuntimeError as error:
            raise self._explain(error, epoch, step) from error

    def close(self) -> None:
        """End the thread that builds pipelines."""
        self.builder.shutdown(cancel_futures=True)
        self.next_epoch.clear()

    def _open(self, epoch: int) -> DALIGenericIterator:
        """Return the iterator of an epoch, ready to run."""
        define = pipeline_def(self._training if self.sampler.train else self._validation)
        pipeline = define(
            epoch,
            batch_size=self.sampler.batch_size,
            num_threads=max(1, min(self.config.data_nthreads, self.sampler.batch_size)),
            device_id=self.gpu,
            seed=sampler.image_seed(self.config.seed, epoch, self.sampler.rank) % 2**31,
            exec_pipelined=self.ahead,
            exec_async=self.ahead,
            prefetch_queue_depth=BATCHES_AHEAD if self.ahead else 1,
        )
        share, this = type(pipeline).share_outputs, weakref.proxy(pipeline)
        # a method of the pipeline would keep it, with its threads and buffers, after its epoch
        pipeline.share_outputs = lambda: refuse_turned(*share(this))
        try:
            batches = DALIGenericIterator(
                pipeline,
                ["images", "labels"],
                reader_name="reader",
                last_batch_policy=LastBatchPolicy.PARTIAL,
                prepare_first_batch=False,  # here its errors would be those of building
            )
        except RuntimeError as error:
            problem = (
                f"--loader dali: DALI cannot start here: {in_short(error)}; use --loader native"
            )
            raise UserError(problem, ("doctor",)) from error
        read = pipeline.reader_meta("reader")["epoch_size"]
        if not self.files and read != len(self.source):
            problem = f"{self.indexes[0].parent}: the index files here list {read:,} records, and"
            problem += f" {self.source.path} has {len(self.source):,}"
            raise UserError(problem, ("index_shards", self.source.path))
        return batches

    def _explain(self, error: RuntimeError, epoch: int, step: int) -> UserError:
        """Return the error that says why a batch after `step` failed.

        An image is at fault only if it fails to decode on its own. For a stream, `verify` finds
        that out.
        """
        suspects: Any = ()  # DALI works ahead and names no image; of a stream, the place is unknown
        if self.files:
            (numbers, rank, size), batch = self._files(epoch), self.sampler.batch_size
            start = rank * self.examples // size + step * batch
            suspects = numbers[start : start + (2 * BATCHES_AHEAD + 2) * batch]
        decoder = ImageDecoder(self.source, False, self.config)
        if bad := decoder.find_bad(epoch, suspects):
            return bad
        problem = f"--loader dali: DALI fails on {self.source.path}: {in_short(error)}"
        return UserError(
            f"{problem}; use --loader native if no image is damaged", ("verify", self.source.root)
        )

    # -- what is read ------------------------------------------------------------------------------

    def _files(self, epoch: int) -> tuple[np.ndarray, int, int]:
        """Return the files for DALI's reader, as image numbers; which part it takes, of how many.

        In training they are this rank's, in order. In validation they are all.
        """
        if self.sampler.train:
            return self.sampler.rows(epoch)[0].ravel(), 0, 1
        return np.arange(self.examples), self.sampler.rank, self.sampler.size

    def _read(self, epoch: int) -> tuple[Any, Any]:
        """Add the reader of an epoch: (encoded image, label from 0 on as a scalar)."""
        how: dict[str, Any] = {"name": "reader", "stick_to_shard": True}
        if self.files:
            numbers, rank, size = self._files(epoch)
            names = [self.source.name(number) for number in numbers.tolist()]
            labels = self.source.labels[numbers].tolist()
            encoded, label = fn.readers.file(
                files=names, labels=labels, shard_id=rank, num_shards=size, **how
            )
            return encoded, label[0]
        rank, size = self.sampler.rank, self.sampler.size
        # share and order of the record files change with each epoch, so that other images meet
        order = list(range(len(self.paths)))
        if self.sampler.train:
            rank = (rank + epoch) % size
            order = sampler.epoch_order(len(order), self.sampler.seed, epoch).tolist()
        images = len(self.source)
        share = images * (rank + 1) // size - images * rank // size
        how |= {
            "path": [str(self.paths[i]) for i in order],
            "index_path": [str(self.indexes[i]) for i in order],
            "shard_id": rank,
            "num_shards": size,
            "random_shuffle": self.sampler.train,
            "initial_fill": max(1, min(self.sampler.shuffle_buffer(self.paths), share)),
        }
        if self.source.format == "recordio":
            encoded, label = fn.readers.mxnet(**how)
            return encoded, label[0]
        features = {
            IMAGE: tfrecord.FixedLenFeature((), tfrecord.string, ""),
            LABEL: tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
        }
        found = fn.readers.tfrecord(features=features, **how)
        return found[IMAGE], found[LABEL][0] - 1  # 0 is unused there

    # -- the operators -----------------------------------------------------------------------------

    def _training(self, epoch: int) -> tuple[Any, ...]:
        """Define a random part of each image, uint8, and its label."""
        encoded, label = self._read(epoch)
        augmentation = self.config.augmentation
        crop = {
            "random_area": list(augmentation.area),
            "random_aspect_ratio": list(augmentation.aspect),
            "num_attempts": 10,
        }
        mirror = fn.random.coin_flip(probability=augmentation.flip)
        if self.engine:
            images = self._decoded(fn.decoders.image, encoded)
            images = fn.random_resized_crop(
                images, size=self.config.image_shape, **crop, antialias=True
            )
            images = fn.flip(images, horizontal=mirror)
        else:
            images = self._decoded(fn.decoders.image_random_crop, encoded, **crop)
            # from right to left where it is mirrored: so the mirror image costs nothing
            left = fn.cast(mirror, dtype=types.FLOAT)
            sides = {"roi_start": fn.stack(0.0, left), "roi_end": fn.stack(1.0, 1.0 - left)}
            images = self._resized(images, roi_relative=True, **sides)
        return self._delivered(images, label, encoded)

    def _validation(self, epoch: int) -> tuple[Any, ...]:
        """Define the middle of each image (`recipe.center_crop_box`), uint8, and its label."""
        encoded, label = self._read(epoch)
        shape = fn.peek_image_shape(encoded, dtype=types.INT32)
        height, width = shape[0], shape[1]
        side = center_side(math.min(height, width), self.config.image_shape, self.config.val_resize)
        start = fn.stack((height - side) // 2, (width - side) // 2)
        square = {"start": start, "shape": fn.stack(side, side), "axes": [0, 1]}
        if self.engine:  # cut before it is resized: the filter must not see what lies around
            images = fn.slice(self._decoded(fn.decoders.image, encoded), **square)
        else:
            images = self._decoded(fn.decoders.image_slice, encoded, **square)
        return self._delivered(self._resized(images), label, encoded)

    def _decoded(self, operator: Callable, encoded: Any, **how: Any) -> Any:
        """Return decoded images: faster for training, and for validation as in all other loaders.

        DALI chooses how many images go to the JPEG engine. Nothing is allocated ahead
        (`preallocate_*`): that would take a batch of the largest image.
        """
        train = self.sampler.train
        how |= {"device": "cpu" if self.gpu is None else "mixed", "output_type": types.RGB}
        how |= {"use_fast_idct": train, "jpeg_fancy_upsampling": not train}
        how |= {} if self.engine else {"hw_decoder_load": 0.0}
        return operator(encoded, **how)

    def _resized(self, images: Any, **how: Any) -> Any:
        """Return a rectangle of each image, or all of it, as (pixels, pixels, 3)."""
        # with antialiasing, linear interpolation is Pillow's BILINEAR
        how |= {"resize_x": self.config.image_shape, "resize_y": self.config.image_shape}
        return fn.resize(images, interp_type=types.INTERP_LINEAR, antialias=True, **how)

    def _delivered(self, images: Any, label: Any, encoded: Any) -> tuple[Any, ...]:
        """Return images and labels (int32); with DALI 1 also the files, for `refuse_turned`."""
        label = fn.cast(label, dtype=types.INT32)
        made = (images, label if self.gpu is None else label.gpu())
        return made if TURNS else (*made, encoded)


def center_side(shorter: Any, pixels: int, resize: int) -> Any:
    """Return round(shorter x pixels / resize), from 1 to `shorter`, as `recipe.center_crop_box`.

    A half goes to the even number, as Python's.
    """
    doubled = 2 * pixels * shorter + resize
    nearest = doubled // (2 * resize)
    is_half = fn.cast(doubled == nearest * (2 * resize), dtype=types.INT32)
    return math.clamp(nearest - is_half * (nearest & 1), 1, shorter)


def check_names(source: Source, paths: list[Path]) -> None:
    """Raise UserError for a path that is not UTF-8, which no reader of DALI takes."""
    names = [*map(str, paths)]
    if isinstance(source, FileSource):
        try:
            b"\n".join(source.paths.tolist()).decode()  # all at once: there may be millions
        except UnicodeDecodeError:
            names += map(source.name, range(len(source)))
    for name in names:
        try:
            name.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"{name}: --loader dali needs names in UTF-8: rename it, or use --loader native"
            ) from None


def in_short(error: RuntimeError) -> str:
    """Return DALI's message, on one line and without its stack."""
    return " ".join(str(error).partition("Stacktrace")[0].split())


def refuse_turned(images: Any, labels: Any, encoded: Iterable[Any] = ()) -> tuple[Any, Any]:
    """Return images and labels of a batch. Raises UserError that names the first turned image."""
    for image in encoded:
        if find_orientation(np.asarray(image).data) != 1:
            name = image.source_info().replace(" at index ", ": record at offset ")
            raise UserError(
                f"{name}: this image is turned by its EXIF block, which DALI {dali.__version__}"
                " ignores: use --loader native or DALI 2, or pack the images upright",
                ("pack_upright",),
            )
    return images, labels
