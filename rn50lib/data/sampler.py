"""The order of images on each rank: pure functions of seed, epoch, rank and size.

No function here keeps any state, so a resumed run, or one with other workers, sees the same order.
`BatchSampler` applies them to one split on one rank; every loader of stored images follows it.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rn50lib import hooks
from rn50lib.config import TrainConfig
from rn50lib.errors import UserError

if TYPE_CHECKING:
    from rn50lib.data.source import Source

SUBSET_SEED = 50  # the part that --num-examples keeps is the same in every run
SHUFFLE_BYTES = 128_000_000  # of encoded images in a stream's buffer: some 1,300 of ImageNet's
_WORD = 0xFFFFFFFFFFFFFFFF


def epoch_order(examples: int, seed: int, epoch: int) -> np.ndarray:
    """Return the order of an epoch: a permutation of range(examples), int64 of shape (examples,).

    It depends on nothing but (seed, epoch). The bit generator's raw numbers are sorted because
    NumPy promises never to change them, and makes no such promise for ``Generator.permutation``.
    """
    bits = np.random.PCG64(np.random.SeedSequence([seed, epoch])).random_raw(examples)
    return np.argsort(bits, kind="stable").astype(np.int64, copy=False)


def shard(order: np.ndarray, rank: int, size: int, batch: int) -> np.ndarray:
    """Return what one rank reads, int64 of shape (steps, batch).

    Step s takes order[s·G : (s+1)·G] with the global batch G = size · batch, and rank r the rows
    r·batch … (r+1)·batch of that. All ranks have len(order) // G steps; the rest is dropped.
    """
    global_batch = size * batch
    steps = len(order) // global_batch
    return order[: steps * global_batch].reshape(steps, size, batch)[:, rank]


def validation_shard(
    examples: int, rank: int, size: int, batch: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return what one rank validates: indices int64 (steps, batch), and valid int64 (steps,).

    Over all ranks every image is exactly once in the rows below ``valid``, and all ranks have the
    same number of steps. Rows from ``valid`` on repeat the last image and count nowhere.
    """
    global_batch = size * batch
    steps = -(-examples // global_batch)
    first = np.arange(steps, dtype=np.int64) * global_batch + rank * batch
    indices = np.minimum(first[:, None] + np.arange(batch), examples - 1)
    return indices, np.clip(examples - first, 0, batch)


def stream_shard(counts: np.ndarray, rank: int, size: int) -> np.ndarray:
    """Return what one rank reads of shards that are read as streams, int64 of shape (parts, 3).

    Each row is a shard, how many of its records to skip and how many to take. With all shards (of
    ``counts`` records each) laid end to end, rank r takes the records from floor(N·r / size) to
    floor(N·(r+1) / size): every record once over all ranks, whatever the number of shards.
    """
    ends = np.cumsum(counts, dtype=np.int64)
    total = int(ends[-1]) if len(ends) else 0
    first, last = total * rank // size, total * (rank + 1) // size
    starts = ends - counts
    skip, stop = np.clip(first - starts, 0, counts), np.clip(last - starts, 0, counts)
    parts = np.stack([np.arange(len(ends), dtype=np.int64), skip, stop - skip], axis=1)
    return parts[parts[:, 2] > 0]


def image_seed(seed: int, epoch: int, index: int) -> int:
    """Return a seed for the augmentation of one image in one epoch, below 2**63.

    Neighbouring arguments give unrelated seeds (the finalizer of SplitMix64 after each).
    """
    return _mix(_mix(_mix(seed) ^ epoch) ^ index) >> 1


def _mix(value: int) -> int:
    """SplitMix64's step and finalizer (Steele, Lea, Flood 2014): a bijection of 64-bit words."""
    value = (value + 0x9E3779B97F4A7C15) & _WORD
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _WORD
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _WORD
    return value ^ (value >> 31)


class BatchSampler:
    """The batches of one split on one rank, epoch by epoch, as image numbers.

    `examples` is how many of the split's `images` an epoch uses, `limit` how many steps at most.
    """

    def __init__(
        self, config: TrainConfig, source: Source, split: str, rank: int = 0, size: int = 1
    ) -> None:
        self.images, self.train = len(source), split == "train"
        self.examples = self.images
        if self.train:
            self.examples = min(self.images, config.num_examples or self.images)
        self.seed, self.batch_size = config.seed, config.batch_size
        self.rank, self.size, self.limit = rank, size, config.benchmark_iters

    def rows(self, epoch: int, skip: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Return image numbers (steps, batch), and how many of each batch count.

        The first `skip` images of the epoch's order are left out.
        """
        if self.train:
            order = epoch_order(self.examples, self.seed, epoch)
            if self.examples < self.images:  # drawn across all classes: files are sorted by class
                order = epoch_order(self.images, SUBSET_SEED, 0)[: self.examples][order]
            rows = hooks.get("shard")(order[skip:], self.rank, self.size, self.batch_size)
            rows = self.checked(rows)
            valid = np.full(len(rows), self.batch_size)
        else:
            rows, valid = validation_shard(self.examples, self.rank, self.size, self.batch_size)
        return rows[: self.limit], valid[: self.limit]

    def checked(self, rows: Any) -> np.ndarray:
        """Return what a function has shared out. Raise UserError if it is no batches of images."""
        try:
            found = np.asarray(rows)
        except ValueError:  # rows of different lengths
            found = np.asarray(None)
        is_batches = (
            found.ndim == 2 and found.shape[1] == self.batch_size and found.dtype.kind in "iu"
        )
        if found.size and not (is_batches and 0 <= found.min() <= found.max() < self.images):
            raise UserError(
                "--override shard: it must return whole numbers of shape (steps,"
                f" {self.batch_size}), from 0 to {self.images - 1}, and this is {found.dtype} of"
                f" shape {found.shape}"
            )
        return found

    @functools.cached_property
    def steps(self) -> int:
        """The steps of an epoch."""
        return len(self.rows(0)[0])

    def __len__(self) -> int:
        return self.steps

    def stream_steps(self) -> int:
        """Return the steps of an epoch whose images a reader of streams chooses."""
        if hooks.is_replaced("shard"):
            raise UserError(
                "--override shard: readers of streams share them out among the ranks themselves,"
                " and do not call this function: use --data-format files, or PyTorch with"
                " --loader native"
            )
        group = self.size * self.batch_size
        steps = self.examples // group if self.train else -(-self.examples // group)
        return min(steps, self.limit or steps)

    def shuffle_buffer(self, paths: Sequence[Path]) -> int:
        """Return how many of the images in these files are held to be shuffled."""
        stored = sum(path.stat().st_size for path in paths)
        return max(2 * self.batch_size, SHUFFLE_BYTES * self.images // max(1, stored))
