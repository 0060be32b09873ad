"""The native loader under PyTorch: images decoded in the worker processes of a DataLoader.

A worker makes a whole batch at a time, so that one array travels and nothing is stacked twice.
"""

from __future__ import annotations

import functools
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Sampler

from rn50lib import seams
from rn50lib.config import Experiment
from rn50lib.errors import UserError
from rn50lib.pipelines import Batch
from rn50lib.pipelines.plan import Plan
from rn50lib.pipelines.torch_images import TorchPictures
from rn50lib.records.source import Source

Key = tuple[int, int]  # epoch and image index: augmentation depends on both
Asked = tuple[list[Key], torch.Tensor]  # a batch's keys, and the memory that it is to be made in


class Images(torch.utils.data.Dataset):
    """Batches by their keys. Lives in the workers; `source` opens its files there, each its own."""

    def __init__(self, source: Source, train: bool, experiment: Experiment) -> None:
        self.pictures = TorchPictures(source, train, experiment)
        self.overrides = experiment.override
        self.seen: deque[torch.Tensor] = deque(maxlen=100)

    def __getitems__(self, asked: Asked) -> torch.Tensor | UserError:
        """The images of a batch, in the memory that came with their keys. A bad image comes back as
        its error, not as a traceback."""
        keys, images = asked
        if torch.utils.data.get_worker_info() is not None:
            self.seen.append(images)  # memory that comes again is still mapped then
        rows = images.numpy()
        try:
            for row, key in enumerate(keys):
                rows[row] = self.pictures.image(*key)
        except UserError as error:
            return error
        return images


class Batches(Sampler):
    """The keys of each batch of an epoch, and memory for it: set `keys`, then iterate the loader.

    A batch is made in memory that the workers share with the training process, and goes nowhere.
    Fresh memory would have to be cleared first, page by page, which takes a twentieth of a worker's
    time: what nobody holds any more is used again.
    """

    def __init__(self, shape: tuple[int, ...], workers: int) -> None:
        self.keys: list[list[Key]] = []
        self.shape, self.workers = shape, workers
        self.memory: list[torch.Tensor] = []
        self.away: deque[torch.Tensor] = deque()  # with a worker, in the order of their batches

    def __iter__(self) -> Iterator[Asked]:
        for images in self.away:  # an epoch was broken off: who knows who still writes there
            self.memory = [other for other in self.memory if other is not images]
        self.away.clear()
        for keys in self.keys:
            self.away.append(self.unused())
            yield keys, self.away[-1]

    def __len__(self) -> int:
        return len(self.keys)

    def arrived(self) -> None:
        """The first of the batches that are away was delivered."""
        self.away.popleft()

    def unused(self) -> torch.Tensor:
        """Memory for a batch, uint8 (B, H, W, 3), that nothing else refers to."""
        for images in self.memory:
            if not held(images) and not any(images is other for other in self.away):
                return images
        made = torch.empty(self.shape, dtype=torch.uint8)
        if self.workers:
            made.share_memory_()
            if count_holders is not None:
                self.memory.append(made)
        return made


count_holders: Any = getattr(torch._C, "_storage_Use_Count", None)
"""How many refer to a storage. A PyTorch without it gets fresh memory for every batch."""


def held(images: torch.Tensor) -> bool:
    """Whether anything but this tensor refers to its memory: a batch, a view of it, an array."""
    alone = 2  # the tensor, and the storage by which is asked
    return count_holders(images.untyped_storage()._cdata) > alone


def as_it_is(made: torch.Tensor | UserError) -> torch.Tensor | UserError:
    return made


def start_worker(worker: int) -> None:
    """Runs first in each worker: one thread each, and the learner's own functions in force."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as SIGINT: the training process ends it
    silence_hand_overs()
    torch.set_num_threads(1)
    info = torch.utils.data.get_worker_info()
    assert info is not None
    seams.install(info.dataset.overrides)  # type: ignore[attr-defined]


def end_with_parent() -> None:
    """End this worker when the training process is gone, however it went.

    A worker's parent is the fork server, which lives as long as any of its workers: without this,
    a killed run would leave all of them behind.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


@functools.cache  # once in a process
def silence_hand_overs() -> None:
    """Print no traceback when the process at the other end goes away while it is handed memory.

    Python's thread for that (`multiprocessing.resource_sharer`) prints what it meets, and a run
    that Ctrl-C ends does end its workers in the middle of something. No other thread reports by way
    of `sys.excepthook`: they have `threading.excepthook`.
    """
    show = sys.excepthook

    def hook(kind: Any, error: BaseException, trace: Any) -> None:
        here = threading.current_thread() is threading.main_thread()
        if here or not isinstance(error, EOFError | OSError):
            show(kind, error, trace)

    sys.excepthook = hook


def fork_server() -> Any:
    """The context of the server that forks the loaders' workers; the server is started.

    Forking a process that runs OpenMP, CUDA or MPI threads can hang, and spawning would import
    PyTorch once in every worker: the server is clean, and has imported it.
    """
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rn50lib.pipelines.torch_loader"])
    if threading.current_thread() is threading.main_thread():
        # Ctrl-C reaches all processes of a terminal, and a scheduler's SIGTERM all of a job: the
        # training process ends its workers itself
        numbers = (signal.SIGINT, signal.SIGTERM)
        earlier = {number: signal.signal(number, signal.SIG_IGN) for number in numbers}
        try:
            multiprocessing.forkserver.ensure_running()
        finally:
            for number, handler in earlier.items():
                signal.signal(number, handler)
    return context


class TorchLoader:
    """See `rn50lib.pipelines.Pipeline`. Order and augmentation are a function of (seed, epoch)."""

    ordered = True

    def __init__(
        self,
        experiment: Experiment,
        source: Source,
        split: str,
        examples: int,
        rank: int,
        size: int,
    ) -> None:
        self.examples = examples
        self.plan = Plan(experiment, len(source), split, examples, rank, size)
        self.labels = np.asarray(source.labels, np.int32)
        workers = experiment.data_nthreads
        pixels = experiment.image_shape
        self.batches = Batches((experiment.batch_size, pixels, pixels, 3), workers)
        options: dict[str, Any] = {}
        if workers:
            silence_hand_overs()
            options = {"multiprocessing_context": fork_server(), "persistent_workers": True}
            options["prefetch_factor"] = 4
        self.loader = DataLoader(
            Images(source, self.plan.train, experiment),
            batch_sampler=self.batches,
            num_workers=workers,
            collate_fn=as_it_is,
            worker_init_fn=start_worker,
            pin_memory=torch.cuda.is_available(),
            **options,
        )

    def __len__(self) -> int:
        return len(self.plan)

    def epoch(self, epoch: int, start_step: int = 0, done: int = 0) -> Iterator[Batch]:
        rows, valid = self.plan.rows(epoch, done)
        rows, valid = rows[start_step:], valid[start_step:]
        self.batches.keys = [[(epoch, int(index)) for index in row] for row in rows]
        for images, row, count in zip(self.loader, rows, valid, strict=True):
            self.batches.arrived()
            if isinstance(images, UserError):
                raise images
            yield Batch(images, self.labels[row], int(count))

    def close(self) -> None:
        iterator = getattr(self.loader, "_iterator", None)
        if iterator is not None:
            iterator._shutdown_workers()
