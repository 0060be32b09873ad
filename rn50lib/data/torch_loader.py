"""The native loader under PyTorch: images decoded in the worker processes of a DataLoader.

A worker makes a whole batch at a time. libjpeg-turbo (by simplejpeg) decodes and PyTorch resizes,
which is faster than Pillow. Only the rows of a crop and above it are decoded, so damage further
down goes unseen. Images other than plain JPEGs go through Pillow, and so do all images if
simplejpeg is not installed.
"""

from __future__ import annotations

import errno
import math
import multiprocessing.forkserver
import signal
import struct
import tempfile
import threading
import weakref
from collections.abc import Callable, Generator, Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, default_convert

from rn50lib import hooks
from rn50lib.config import TrainConfig
from rn50lib.data import Batch
from rn50lib.data.decode import (
    MAX_PIXELS,
    SIZE,
    ImageDecoder,
    find_frame,
    find_orientation,
    resize_part,
    turn,
)
from rn50lib.data.sampler import BatchSampler
from rn50lib.data.source import Source
from rn50lib.errors import UserError
from rn50lib.lifetime import end_with_creator
from rn50lib.recipe import Box

try:
    import simplejpeg
except ImportError:  # it has no wheel for some machines
    simplejpeg = None

AHEAD = 4  # batches that each worker makes before they are asked for
# why a folder takes no socket; None is Python's own error for a path that is too long
NO_SOCKET = (None, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT, errno.EOPNOTSUPP)
Key = tuple[int, int]  # epoch and image index: augmentation depends on both
Task = tuple[int | None, list[Key]]  # a batch, and the row of the shared memory to make it in

REST = "extraneous bytes before marker 0xd9"
"""libjpeg's warning that the image has more rows than its header says. It reports its first warning
only, so there was nothing wrong with the rows above; and an image whose file is cut off has no end
marker, 0xd9, and gets a different warning."""


class TorchDecoder(ImageDecoder):
    """The images of a split as the network gets them; see `ImageDecoder`.

    A validation image's pixels are Pillow's to within a rounding. Training decodes faster, with a
    coarser cosine transform and repeated colours, and crops of what was decoded smaller begin and
    end at a pixel: small errors compared with a random crop's.
    """

    def __init__(self, source: Source, train: bool, config: TrainConfig) -> None:
        super().__init__(source, train, config)
        self.memory = bytearray()  # holds the decoded image, also if a warning ends the call

    def decode_crop(self, data: bytes, epoch: int, index: int) -> np.ndarray:
        """Return the crop as `ImageDecoder.decode_crop` does, but faster."""
        frame = find_frame(data) if simplejpeg else None
        height, width, components = SIZE.unpack_from(data, frame + 5) if frame else (0, 0, 0)
        if frame is None or not 0 < height * width <= MAX_PIXELS or components not in (1, 3):
            return super().decode_crop(data, epoch, index)
        box, turned = self.sample_crop(epoch, index, width, height, find_orientation(data))
        least = self.oversample * self.size  # pixels per side of the crop after decoding
        ratio = next(r for r in (8, 4, 2, 1) if r == 1 or min(box[2:]) >= r * least)
        try:
            pixels = self.decode_rows(data, frame, box[1] + box[3], ratio)
        except ValueError:  # damaged: Pillow says how, or decodes what it can
            return super().decode_crop(data, epoch, index)
        return turn(self.resize_box(pixels, box, ratio), turned)

    def decode_rows(self, data: bytes, frame: int, bottom: int, ratio: int) -> np.ndarray:
        """Return at least the rows above `bottom` of a JPEG, at 1 / `ratio` of its size, uint8 HWC.

        `frame` is the place of its start of frame. The result is valid until the next call. Raises
        ValueError if these rows are damaged.
        """
        height, width, _ = SIZE.unpack_from(data, frame + 5)
        smaller = {"min_width": -(-width // ratio), "min_factor": ratio}
        smaller |= {"fastdct": self.train, "fastupsample": self.train}
        if len(self.memory) < height * width * 3:
            self.memory = bytearray(height * width * 3)
        rows = bottom + 2 * ratio  # the colour of a row is made from the next row's, too
        # other JPEGs than baseline ones (0xc0) do not hold their rows one after the other
        if rows < height and data[frame + 1] == 0xC0:
            less = bytearray(data)
            struct.pack_into(">H", less, frame + 5, rows)
            made = (-(-rows // ratio), smaller["min_width"], 3)
            try:
                return simplejpeg.decode_jpeg(
                    less, min_height=made[0], buffer=self.memory, **smaller
                )
            except ValueError as warning:
                if REST in str(warning):
                    return np.frombuffer(self.memory, np.uint8, math.prod(made)).reshape(made)
        made_height = -(-height // ratio)
        return simplejpeg.decode_jpeg(data, min_height=made_height, buffer=self.memory, **smaller)

    def resize_box(self, pixels_HWC: np.ndarray, box: Box, ratio: int) -> np.ndarray:
        """Return the `box`, resized, of an image that was decoded at 1 / `ratio` of its size."""
        left, top, width, height = box
        if ratio > 1:  # the box begins and ends within pixels
            right, bottom = (left + width) / ratio, (top + height) / ratio
            if not self.train:  # PyTorch cannot do that
                part = (left / ratio, top / ratio, right, bottom)
                return resize_part(Image.fromarray(pixels_HWC), part, self.size)
            left, top = round(left / ratio), round(top / ratio)  # too small a shift to matter
            width, height = round(right) - left, round(bottom) - top
        part_NHWC = torch.from_numpy(pixels_HWC[None, top : top + height, left : left + width])
        # the fast kernel is that for channels_last without gaps, and its result is so, too:
        # copying the crop costs less than it saves when the result is put into the batch
        part_NCHW = part_NHWC.permute(0, 3, 1, 2).contiguous(memory_format=torch.channels_last)
        small = F.interpolate(part_NCHW, (self.size, self.size), mode="bilinear", antialias=True)
        return small[0].permute(1, 2, 0).numpy()


# -- in the workers ------------------------------------------------------------------------------


class BatchDataset(torch.utils.data.Dataset):
    """Whole batches. Lives in the workers; `source` opens its files in each."""

    def __init__(self, source: Source, train: bool, config: TrainConfig, memory: Tensor) -> None:
        self.decoder, self.memory = TorchDecoder(source, train, config), memory
        self.overrides = config.override

    def __getitems__(self, task: Task) -> Tensor | int | UserError:
        """Return the images of a batch, uint8 (B, H, W, 3), or the row of the memory with them.

        For a bad image its error is returned, because a raised one would come with a traceback.
        """
        row, keys = task
        if row is None:
            images = torch.empty((len(keys), *self.memory.shape[2:]), dtype=torch.uint8)
            if torch.utils.data.get_worker_info() is not None:
                images.share_memory_()  # now: otherwise it would be copied there when it is sent
        else:
            images = self.memory[row]
        pixels = images.numpy()
        try:
            for image, key in enumerate(keys):
                pixels[image] = self.decoder.decode(*key)
        except UserError as error:
            return error
        return images if row is None else row


def _start_worker(worker: int) -> None:
    """Prepare a worker: one thread, and the learner's own functions installed."""
    end_with_creator()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as SIGINT: the training process ends it
    torch.set_num_threads(1)
    info = torch.utils.data.get_worker_info()
    assert info is not None
    hooks.install(info.dataset.overrides)  # type: ignore[attr-defined]


# -- in the training process ---------------------------------------------------------------------


def _fork_server() -> Any:
    """Return the context of a server that forks workers: it runs no threads, so none can hang."""
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rn50lib.data.torch_loader"])
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C reaches all processes of a terminal, and a scheduler's SIGTERM all of a job: the
        # training process ends its workers itself
        numbers = (signal.SIGINT, signal.SIGTERM)
        earlier = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
        try:
            multiprocessing.forkserver.ensure_running()
        except OSError as error:
            problem, remedy = f"the loader's workers cannot be started ({error})", ""
            if error.errno in NO_SOCKET:
                folder = tempfile.gettempdir()
                problem = f"TMPDIR {folder}: the loader's workers cannot connect there ({error})"
                remedy = "set it to another folder, or "
            raise UserError(f"{problem}: {remedy}use --data-nthreads 0") from error
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)
    return context


class TorchLoader:
    """See `rn50lib.data.Pipeline`. Order and augmentation are a function of (seed, epoch)."""

    ordered = True

    def __init__(self, config: TrainConfig, source: Source, sampler: BatchSampler) -> None:
        self.sampler, self.examples = sampler, sampler.examples
        self.labels = np.asarray(source.labels, np.int32)
        workers = min(config.data_nthreads, len(sampler))  # at most one per batch
        # Rows for the batches under way and two that are read, or else the kernel would clear new
        # memory for each, which costs a tenth of the speed. What goes to a GPU is copied anyway.
        rows = AHEAD * workers + 3 if workers and not torch.cuda.is_available() else 0
        shape = (min(rows, len(sampler)), sampler.batch_size, *[config.image_shape] * 2, 3)
        self.memory = torch.empty(shape, dtype=torch.uint8).share_memory_()
        # by row: its latest batch, None when nothing refers to that any more
        self.latest: dict[int | None, Callable[[], np.ndarray | None]] = {}
        self.epoch_rows: tuple[int, np.ndarray] = (0, np.empty((0, 0), np.int64))
        self.batches: Generator[Batch, None, None] | None = None  # of the latest epoch
        options: dict[str, Any] = {}
        if workers:
            options = {"multiprocessing_context": _fork_server(), "persistent_workers": True}
            options["prefetch_factor"] = AHEAD
        self.loader: DataLoader | None = DataLoader(
            BatchDataset(source, sampler.train, config, self.memory),
            batch_sampler=self,
            num_workers=workers,
            collate_fn=default_convert,  # they are whole batches
            worker_init_fn=_start_worker,
            pin_memory=torch.cuda.is_available(),
            **options,
        )

    def __len__(self) -> int:
        return len(self.sampler)

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        self.batches = self._load(epoch, *self.sampler.rows(epoch, skip))
        return self.batches

    def __iter__(self) -> Iterator[Task]:
        """Yield the tasks of an epoch; the DataLoader asks for one when it hands over a batch."""
        epoch, rows = self.epoch_rows
        for i, numbers in enumerate(rows):
            keys = [(epoch, int(index)) for index in numbers]
            row = i % len(self.memory) if len(self.memory) else None
            yield (row if self.latest.get(row, lambda: None)() is None else None), keys

    def _load(
        self, epoch: int, rows: np.ndarray, valid: np.ndarray
    ) -> Generator[Batch, None, None]:
        assert self.loader is not None, "the pipeline is closed"
        self.epoch_rows = epoch, rows
        batches = iter(self.loader)
        try:
            for row, count in zip(rows, valid, strict=True):
                images = next(batches)
                if isinstance(images, UserError):
                    raise images
                if isinstance(images, int):
                    array = self.memory[images].numpy()
                    self.latest[images] = weakref.ref(array)
                    images = torch.from_numpy(array)
                yield Batch(images, self.labels[row], int(count))
            next(batches, None)  # its workers have finished the epoch
        except RuntimeError as error:
            if "exited unexpectedly" not in str(error):
                raise
            raise UserError(
                "a worker of the loader was killed or crashed: the machine may have run out of"
                " memory, or of /dev/shm; use a smaller --data-nthreads, or 0"
            ) from error
        finally:
            del batches

    def close(self) -> None:
        """End the workers: a DataLoader does so when nothing refers to it and its iterators."""
        if self.batches is not None:
            self.batches.close()
        self.batches = self.loader = None
