"""The native loader under PyTorch: images decoded in the worker processes of a DataLoader.

A worker makes a whole batch at a time, in memory that is shared and used again, so that nothing is
stacked or copied twice and no new pages are asked for.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import multiprocessing.connection
import multiprocessing.forkserver
import os
import signal
import threading
import weakref
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader

from rn50lib import hooks as overrides
from rn50lib.config import TrainConfig
from rn50lib.errors import UserError
from rn50lib.data import Batch
from rn50lib.data.sampler import Plan
from rn50lib.data.torch_images import TorchPictures
from rn50lib.data.source import Source

AHEAD = 4  # batches that each worker makes before they are asked for
Key = tuple[int, int]  # epoch and image index: augmentation depends on both


Task = tuple[int | None, list[Key]]  # the row of `Shared` that the batch is made in


class Shared:
    """Memory for as many batches as are under way at a time, shared with the workers.

    A row is free again when nothing refers to its batch any more. Where a batch finds none (its
    reader keeps them) it gets memory of its own. New memory for each would be cleared by the
    kernel, and faulted in page by page.
    """

    def __init__(self, rows: int, shape: tuple[int, ...]) -> None:
        self.memory = torch.empty((rows, *shape), dtype=torch.uint8).share_memory_()
        self.free: list[int] = []
        self.held: set[int] = set()  # rows of batches that somebody has

    def tasks(self, batches: list[list[Key]]) -> Iterator[Task]:
        """Each batch with the row that it is made in. No worker must be at work at the start."""
        self.free[:] = [row for row in range(len(self.memory)) if row not in self.held]
        for keys in batches:
            yield (self.free.pop() if self.free else None), keys

    def take(self, row: int) -> torch.Tensor:
        """The batch that was made in `row`."""
        self.held.add(row)
        array = self.memory[row].numpy()
        weakref.finalize(array, self.give_back, row).atexit = False
        return torch.from_numpy(array)

    def give_back(self, row: int) -> None:
        self.held.discard(row)
        self.free.append(row)


class Tasks:
    """What the workers are to make in the next epoch, as a DataLoader's sampler of batches."""

    def __init__(self, shared: Shared | None) -> None:
        self.shared = shared
        self.batches: list[list[Key]] = []

    def __iter__(self) -> Iterator[Task]:
        if self.shared is not None:
            return self.shared.tasks(self.batches)
        return ((None, keys) for keys in self.batches)


class Batches(torch.utils.data.Dataset):
    """Whole batches by their keys. Lives in the workers; `source` opens its files in each."""

    def __init__(
        self, source: Source, train: bool, experiment: TrainConfig, memory: torch.Tensor | None
    ) -> None:
        self.pictures = TorchPictures(source, train, experiment)
        self.pixels = experiment.image_shape
        self.overrides = experiment.override
        self.memory = memory

    def __getitems__(self, task: Task) -> torch.Tensor | int | UserError:
        """The images of a batch, uint8 (B, H, W, 3), or the row of the shared memory where they
        are. A bad image comes back as its error, not as a traceback."""
        row, keys = task
        if row is not None and self.memory is not None:
            images = self.memory[row]
        else:
            images = torch.empty((len(keys), self.pixels, self.pixels, 3), dtype=torch.uint8)
            if torch.utils.data.get_worker_info() is not None:
                images.share_memory_()  # now: it would be copied there on its way otherwise
        pixels = images.numpy()
        try:
            for image, key in enumerate(keys):
                pixels[image] = self.pictures.image(*key)
        except UserError as error:
            return error
        return images if row is None else row


def as_it_is(made: torch.Tensor | int | UserError) -> torch.Tensor | int | UserError:
    return made


def start_worker(worker: int) -> None:
    """Runs first in each worker: one thread each, and the learner's own functions in force."""
    threading.Thread(target=end_with_parent, daemon=True).start()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # as SIGINT: the training process ends it
    torch.set_num_threads(1)
    info = torch.utils.data.get_worker_info()
    assert info is not None
    overrides.install(info.dataset.overrides)  # type: ignore[attr-defined]


def end_with_parent() -> None:
    """End this worker when the training process is gone, however it went.

    A worker's parent is the fork server, which lives as long as any of its workers: without this,
    a killed run would leave all of them behind.
    """
    parent = multiprocessing.parent_process()
    if parent is not None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)


def fork_server() -> Any:
    """The context of the server that forks the loaders' workers; the server is started.

    Forking a process that runs OpenMP, CUDA or MPI threads can hang, and spawning would import
    PyTorch once in every worker: the server is clean, and has imported it.
    """
    context = torch.multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["rn50lib.data.torch_loader"])
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


@contextlib.contextmanager
def signals_wait() -> Iterator[None]:
    """Ctrl-C and SIGTERM take effect at the end of the block: a worker whose batch is not taken
    over whole prints a traceback that has nothing to say."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    changed = {number: handler for number, handler in handlers.items() if callable(handler)}
    for number in changed:
        signal.signal(number, lambda number, frame: received.append(number))
    try:
        yield
    finally:
        for number, handler in changed.items():
            signal.signal(number, handler)
    for caught in received:
        changed[signal.Signals(caught)](caught, None)


@contextlib.contextmanager
def explain_pinning() -> Iterator[None]:
    """One line where the host has no more memory that a GPU can copy from."""
    try:
        yield
    except RuntimeError as error:
        if "CUDA error: out of memory" not in str(error):
            raise
        raise UserError(
            "--loader native: no more memory can be pinned for the batches on their way to the GPU:"
            " use a smaller -b or --data-nthreads, or end what else fills this machine's memory"
        ) from error


class TorchLoader:
    """See `rn50lib.data.Pipeline`. Order and augmentation are a function of (seed, epoch)."""

    ordered = True

    def __init__(self, experiment: TrainConfig, source: Source, plan: Plan) -> None:
        self.plan, self.examples = plan, plan.examples
        self.labels = np.asarray(source.labels, np.int32)
        workers, pin = experiment.data_nthreads, torch.cuda.is_available()
        shape = (plan.batch_size, experiment.image_shape, experiment.image_shape, 3)
        # those made ahead, and what the reader has; what is pinned is copied anyway
        rows = AHEAD * workers + 3 if workers and plan.train and not pin else 0
        self.shared = Shared(min(rows, len(plan)), shape) if rows else None
        self.tasks = Tasks(self.shared)
        self.batches: Generator[Batch, None, None] | None = None  # of the latest one
        options: dict[str, Any] = {}
        if workers:
            options = {"multiprocessing_context": fork_server(), "persistent_workers": True}
            options["prefetch_factor"] = AHEAD
        memory = self.shared.memory if self.shared else None
        self.loader: DataLoader | None = DataLoader(
            Batches(source, plan.train, experiment, memory),
            batch_sampler=self.tasks,
            num_workers=workers,
            collate_fn=as_it_is,
            worker_init_fn=start_worker,
            pin_memory=pin,
            **options,
        )

    def __len__(self) -> int:
        return len(self.plan)

    def epoch(self, epoch: int, start_step: int = 0, skip: int = 0) -> Iterator[Batch]:
        rows, valid = self.plan.rows(epoch, skip)
        self.batches = self.load(epoch, rows[start_step:], valid[start_step:])
        return self.batches

    def load(self, epoch: int, rows: np.ndarray, valid: np.ndarray) -> Generator[Batch, None, None]:
        assert self.loader is not None, "the pipeline is closed"
        self.tasks.batches = [[(epoch, int(index)) for index in row] for row in rows]
        batches = iter(self.loader)
        try:
            for row, count in zip(rows, valid, strict=True):
                with signals_wait(), explain_pinning():
                    images = next(batches)
                if isinstance(images, UserError):
                    raise images
                if isinstance(images, int):
                    assert self.shared is not None
                    images = self.shared.take(images)
                yield Batch(images, self.labels[row], int(count))
            next(batches, None)  # its workers are through with the epoch
        finally:
            del batches  # an error's traceback would keep it, and with it the workers

    def close(self) -> None:
        """A DataLoader ends its workers when nothing refers to it and its iterators any more."""
        if self.batches is not None:
            self.batches.close()
        self.batches = self.loader = None
