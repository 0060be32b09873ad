"""What DALI reads for one rank and one epoch: class folders by number, record files as streams."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from nvidia.dali import fn, tfrecord

from rn50lib import hooks as overrides
from rn50lib.errors import UserError
from rn50lib.data.sampler import Plan
from rn50lib.data import order
from rn50lib.data.checkonce import check_once
from rn50lib.data.index import prefix_of
from rn50lib.data.shards import IMAGE, LABEL, ShardSource
from rn50lib.data.source import Source
from rn50lib.data.tfrecord import index_path

BATCHES_AHEAD = 2
SEEN_AHEAD = 2 * BATCHES_AHEAD + 2
"""DALI works ahead: an error belongs to one of so many batches."""


class Numbered:
    """Images of class folders, by their number, in the order of `records.order`."""

    def __init__(self, source: Source, plan: Plan) -> None:
        self.source, self.plan = source, plan

    def __len__(self) -> int:
        return len(self.plan)

    def valid(self, skip: int = 0) -> np.ndarray:
        return self.plan.rows(0, skip)[1]

    def read(self, epoch: int, skip: int = 0) -> tuple[Any, Any]:
        """Adds the reader to a graph: (encoded image, label from 0 on)."""
        numbers = self.plan.rows(epoch, skip)[0].ravel()
        files = [self.source.name(number) for number in numbers.tolist()]
        encoded, label = fn.readers.file(files=files, labels=self.source.labels[numbers].tolist())
        return encoded, label[0]

    def suspects(self, epoch: int, step: int) -> np.ndarray:
        """The images that DALI may have been at when it failed."""
        return self.plan.rows(epoch)[0][step : step + SEEN_AHEAD].ravel()

    def close(self) -> None:
        return None


class Stream:
    """Images of record files, in the order in which DALI's readers give them."""

    def __init__(self, source: Source, plan: Plan) -> None:
        if overrides.get("shard") is not order.shard:
            raise UserError(
                "--override shard: DALI's reader shares a record file out among the ranks itself;"
                " use --data-format files, or --loader native"
            )
        if isinstance(source, ShardSource) and source.raw:
            raise UserError(
                f"{source.path}: these shards hold raw pixels, and --loader dali reads encoded"
                " images: use --loader native"
            )
        self.source, self.plan = source, plan
        self.steps = plan.stream_steps()
        self.paths, self.indexes = record_files(source)
        check_once(list(zip(self.paths, self.indexes, strict=True)), plan.rank, plan.size)
        firsts = source.firsts[1:-1] if isinstance(source, ShardSource) else np.zeros(0, np.int64)
        self.numbers = np.split(np.arange(len(source)), firsts)  # of the images in each file
        self.buffer = plan.shuffle_buffer(self.paths)
        self.parts: tempfile.TemporaryDirectory | None = None
        if plan.subset is not None:  # --num-examples: an index that lists a part
            self.parts = tempfile.TemporaryDirectory(prefix="rn50-index-")
            self.take(plan.subset, Path(self.parts.name))

    def __len__(self) -> int:
        return self.steps

    def share(self, rank: int) -> tuple[int, int]:
        """The first image of a rank's share in the order of the files, and the one behind it."""
        size, images = self.plan.size, self.plan.examples
        return images * rank // size, images * (rank + 1) // size

    def valid(self, skip: int = 0) -> np.ndarray:
        batch = self.plan.batch_size
        first, end = self.share(self.plan.rank)
        return np.clip(end - first - batch * np.arange(self.steps), 0, batch)

    def turn(self, epoch: int) -> tuple[int, list[int]]:
        """Whose share this rank reads in an epoch, of the files in which order: both change from
        epoch to epoch of training, so that other images meet, and others are left over."""
        files = np.arange(len(self.paths))
        if not self.plan.train:
            return self.plan.rank, files.tolist()
        shuffled = order.epoch_order(len(files), self.plan.seed, epoch)
        return (self.plan.rank + epoch) % self.plan.size, shuffled.tolist()

    def read(self, epoch: int, skip: int = 0) -> tuple[Any, Any]:
        """Adds the reader to a graph: (encoded image, label from 0 on)."""
        rank, files = self.turn(epoch)
        paths = [str(self.paths[i]) for i in files]
        indexes = [str(self.indexes[i]) for i in files]
        first, end = self.share(rank)
        how: dict[str, Any] = {
            "shard_id": rank,
            "num_shards": self.plan.size,
            "random_shuffle": self.plan.train,
            "initial_fill": max(1, min(self.buffer, end - first)),
            "stick_to_shard": True,
        }
        if self.source.format == "recordio":
            encoded, label = fn.readers.mxnet(path=paths, index_path=indexes, **how)
            return encoded, label[0]
        features = {
            IMAGE: tfrecord.FixedLenFeature((), tfrecord.string, ""),
            LABEL: tfrecord.FixedLenFeature([1], tfrecord.int64, -1),
        }
        found = fn.readers.tfrecord(path=paths, index_path=indexes, features=features, **how)
        return found[IMAGE], found[LABEL][0] - 1  # 0 is unused there

    def take(self, wanted: np.ndarray, folder: Path) -> None:
        """Read no other images than these: an index of one's own lists a part of a file."""
        for i, numbers in enumerate(self.numbers):
            here = np.isin(numbers, wanted)
            lines = self.indexes[i].read_text().splitlines(keepends=True)
            self.indexes[i] = folder / f"{i}.idx"
            self.indexes[i].write_text("".join(np.array(lines, object)[here]))
            self.numbers[i] = numbers[here]
        kept = [i for i, numbers in enumerate(self.numbers) if len(numbers)]
        self.paths = [self.paths[i] for i in kept]
        self.indexes = [self.indexes[i] for i in kept]
        self.numbers = [self.numbers[i] for i in kept]

    def suspects(self, epoch: int, step: int) -> np.ndarray:
        """The images that DALI may have been at when it failed: its messages do not say which."""
        rank, files = self.turn(epoch)
        first, end = self.share(rank)
        seen = first + (step + SEEN_AHEAD) * self.plan.batch_size + self.buffer
        return np.concatenate([self.numbers[i] for i in files])[first : min(end, seen)]

    def close(self) -> None:
        if self.parts is not None:
            self.parts.cleanup()


def record_files(source: Source) -> tuple[list[Path], list[Path]]:
    """The files of a split and their indexes. Raises UserError for an index that is missing."""
    if not isinstance(source, ShardSource):
        return [source.path], [Path(prefix_of(source.path) + ".idx")]
    indexes = [index_path(shard) for shard in source.shards]
    for index in indexes:
        if not index.exists():
            raise UserError(
                f"{index}: this index is missing, and --loader dali needs it:"
                f" `python -m data_prep.tfrecord --index {source.path}` writes it"
            )
    return list(source.shards), indexes
