"""The DALI loader: NVIDIA's readers and decoders, in their own threads and on the GPU if any.

Files are read by number, in the order of `sampler`. RecordIO and TFRecord are read by DALI's own
readers as streams, through a shuffle buffer, with the promises of tf.data's streams. For these each
epoch has its own graph: DALI fixes files and seeds when a graph is built, and one that continued
from epoch to epoch would give a resumed run different batches. The next epoch's is built while the
last batches of this one are used. Crops are DALI's, by the rule and numbers of the recipe.

PyTorch on a GPU gets tensors there, never through the host. TensorFlow gets them through host
memory: DALI's plugin for it exists for some pairs of versions only.
"""

from __future__ import annotations

import collections
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from rn50lib import hooks, recipe
from rn50lib.config import TrainConfig
from rn50lib.data import Batch, sampler
from rn50lib.data.decode import Pictures, quick
from rn50lib.data.recordfile import LARGE, Arrays, disk_cache, file_state, load_arrays
from rn50lib.data.recordio import Reader, checksum_path, prefix_of
from rn50lib.data.shard_scan import IMAGE, LABEL
from rn50lib.data.shards import ShardSource
from rn50lib.data.source import Source
from rn50lib.data.tfrecord import TFRecordReader, index_path
from rn50lib.errors import UserError
from rn50lib.hardware import machine

try:
    from nvidia.dali import fn, tfrecord

    from rn50lib.data.dali_graph import JPEG_ENGINES, Look, training, validation
except ImportError as error:
    raise UserError(
        f"--loader dali: DALI does not import here ({error}): `make setup` installs it where there"
        " is a wheel; or use --loader native"
    ) from error

BATCHES_AHEAD = 2


class Dali:
    """See `rn50lib.data.Pipeline`. Batches are arrays; for PyTorch on a GPU, tensors there.

    `engine` says whether the GPU's JPEG engine decodes whole images; None uses it if there is one.
    """

    def __init__(
        self,
        config: TrainConfig,
        source: Source,
        plan: sampler.Plan,
        engine: bool | None = None,
    ) -> None:
        if hooks.get("augment") is not recipe.augment:
            raise UserError(
                "--override augment: DALI draws its crops itself, in its own threads, and calls no"
                " Python function for it; use --loader native"
            )
        self.config, self.source, self.plan, self.engine = config, source, plan, engine
        self.examples = plan.examples
        reader = Numbered if source.format == "files" else Stream
        self.reader: Numbered | Stream = reader(source, plan)
        self.ordered = isinstance(self.reader, Numbered)
        self.ahead = config.data_nthreads > 0  # else the training process makes the batches
        self.builder = ThreadPoolExecutor(1, "dali-build")
        self.next_graph: dict[int, Future] = {}  # by epoch

    def __len__(self) -> int:
        return len(self.reader)

    def epoch(self, epoch: int, start_step: int = 0, skip: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch."""
        group = self.plan.size * self.plan.batch_size
        start_step, skip = start_step + skip // group, skip % group
        if skip:  # by a different number of ranks: the rest is an epoch with its own crops
            start_step, skip = 0, skip + start_step * group
        valid = self.reader.valid(skip)
        steps = len(valid)
        gpu, step = self.gpu(), 0
        on_gpu = gpu is not None
        built = self.next_graph.pop(epoch, None)
        graph = built.result() if built and not skip else self.build(epoch, gpu, skip)
        try:
            graph.schedule_run()  # the first call fills the queue
            left = steps - graph.prefetch_queue_depth
            for step in range(steps):
                images, labels = graph.share_outputs()
                made = None
                if step >= start_step:  # earlier batches are made too: they advance DALI's seeds
                    made = self.batch(images, labels, int(valid[step]), on_gpu)
                graph.release_outputs()  # it is copied: DALI may work on while the batch is used
                if step < left:  # its own `run` would continue past the end, and be waited for
                    graph.schedule_run()
                elif step == max(left, 0) and self.ahead and epoch + 1 < self.config.num_epochs:
                    self.next_graph = {epoch + 1: self.builder.submit(self.build, epoch + 1, gpu)}
                if made is not None:
                    yield made
        except RuntimeError as error:
            raise self.explain(error, epoch, step) from error

    def close(self) -> None:
        """End the thread that builds graphs, and remove temporary files."""
        self.builder.shutdown(cancel_futures=True)
        self.next_graph.clear()
        self.reader.close()

    def build(self, epoch: int, gpu: int | None, skip: int = 0) -> Any:
        """Return the graph for an epoch without its first `skip` images, ready to run."""
        graph = (training if self.plan.train else validation)(
            lambda: self.reader.read(epoch, skip),
            self.look(gpu),
            batch_size=self.plan.batch_size,
            num_threads=max(1, self.config.data_nthreads),
            device_id=gpu,
            seed=sampler.image_seed(self.config.seed, epoch, self.plan.rank) % 2**31,
            exec_pipelined=self.ahead,
            exec_async=self.ahead,
            prefetch_queue_depth=BATCHES_AHEAD if self.ahead else 1,
        )
        try:
            graph.build()
        except RuntimeError as error:
            raise UserError(
                f"--loader dali: DALI cannot start here: {in_short(error)}; `rn50 doctor` looks at"
                " it; or use --loader native"
            ) from error
        return graph

    def look(self, gpu: int | None) -> Look:
        """Return what images become, by the recipe and on this machine."""
        engine = self.engine
        if engine is None:
            engine = gpu is not None and machine().gpus[0].capability in JPEG_ENGINES
        return Look(
            pixels=self.config.image_shape,
            resize=self.config.val_resize,
            augmentation=self.config.to_recipe().augmentation,
            antialias=self.config.resample != "fast",
            gpu=gpu is not None,
            engine=engine,
            quick=quick(self.config, self.plan.train),
        )

    def gpu(self) -> int | None:
        """Return the GPU that the backend has chosen for this rank; None without one."""
        if not machine().gpus:
            return None
        if self.config.backend == "tensorflow":
            import tensorflow as tf

            seen = tf.config.get_visible_devices("GPU")
            return int(seen[0].name.rsplit(":", 1)[1]) if seen else None
        import torch

        return torch.cuda.current_device() if torch.cuda.is_available() else None

    def batch(self, images: Any, labels: Any, valid: int, on_gpu: bool) -> Batch:
        """Return a batch copied from DALI's lists, which will be overwritten."""
        if on_gpu and self.config.backend == "tensorflow":
            images, labels, on_gpu = images.as_cpu(), labels.as_cpu(), False
        if not on_gpu:
            copied, copied_labels = (np.array(x.as_tensor(), copy=True) for x in (images, labels))
            return Batch(copied, copied_labels, valid)
        import torch
        from nvidia.dali.plugin.pytorch import feed_ndarray

        made = []
        for values, dtype in ((images, torch.uint8), (labels, torch.int32)):
            dense = values.as_tensor()
            tensor = torch.empty(dense.shape(), dtype=dtype, device="cuda")
            feed_ndarray(dense, tensor, cuda_stream=torch.cuda.current_stream())
            made.append(tensor)
        return Batch(made[0], made[1], valid)

    def explain(self, error: RuntimeError, epoch: int, step: int) -> Exception:
        """Return the error that names the file because of which a batch near `step` failed.

        DALI does not say which image did not decode, and a stream's position does not tell.
        """
        pictures = Pictures(self.source, False, self.config)
        numbers = self.reader.suspects(epoch, step) if isinstance(self.reader, Numbered) else []
        try:
            for number in numbers:
                pictures.image(epoch, number)
        except UserError as found:
            return found
        return UserError(
            f"{self.source.path}: DALI fails at it: {in_short(error)}; "
            f"`python -m data_prep.verify {self.source.root}` names images that do not decode"
        )


def in_short(error: RuntimeError) -> str:
    """Return DALI's message, on one line and without its stack."""
    return " ".join(str(error).partition("Stacktrace")[0].split())


# -- what a rank reads in an epoch ---------------------------------------------------------------


class Numbered:
    """Images of class folders, by their number, in the order of `sampler`."""

    def __init__(self, source: Source, plan: sampler.Plan) -> None:
        self.source, self.plan = source, plan

    def __len__(self) -> int:
        return len(self.plan)

    def valid(self, skip: int = 0) -> np.ndarray:
        """Return how many images of each batch count."""
        return self.plan.rows(0, skip)[1]

    def read(self, epoch: int, skip: int = 0) -> tuple[Any, Any]:
        """Add the reader to a graph: (encoded image, label from 0 on)."""
        numbers = self.plan.rows(epoch, skip)[0].ravel()
        files = [self.source.name(number) for number in numbers.tolist()]
        encoded, label = fn.readers.file(files=files, labels=self.source.labels[numbers].tolist())
        return encoded, label[0]

    def suspects(self, epoch: int, step: int) -> list[int]:
        """Return the images that DALI may have been reading when it failed: it works ahead."""
        return self.plan.rows(epoch)[0][step : step + 2 * BATCHES_AHEAD + 2].ravel().tolist()

    def close(self) -> None:
        """Do nothing, as no temporary files exist."""


class Stream:
    """Images of record files, in the order in which DALI's readers give them."""

    def __init__(self, source: Source, plan: sampler.Plan) -> None:
        if hooks.get("shard") is not sampler.shard:
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
        self.paths, self.indexes = _record_files(source)
        check_once(list(zip(self.paths, self.indexes, strict=True)), plan.rank, plan.size)
        self.buffer = plan.shuffle_buffer(self.paths)
        self.parts: tempfile.TemporaryDirectory | None = None
        if plan.subset is not None:  # --num-examples: an index that lists a part
            self.parts = tempfile.TemporaryDirectory(prefix="rn50-index-")
            self._keep_only(plan.subset, Path(self.parts.name))

    def __len__(self) -> int:
        return self.steps

    def _share(self, rank: int) -> tuple[int, int]:
        """Return where a rank's share starts and stops in the order of the files."""
        size, images = self.plan.size, self.plan.examples
        return images * rank // size, images * (rank + 1) // size

    def valid(self, skip: int = 0) -> np.ndarray:
        """Return how many images of each batch count."""
        batch = self.plan.batch_size
        first, end = self._share(self.plan.rank)
        return np.clip(end - first - batch * np.arange(self.steps), 0, batch)

    def read(self, epoch: int, skip: int = 0) -> tuple[Any, Any]:
        """Add the reader to a graph: (encoded image, label from 0 on)."""
        # share and order of the files change with each epoch, so that other images meet
        rank, files = self.plan.rank, list(range(len(self.paths)))
        if self.plan.train:
            rank = (rank + epoch) % self.plan.size
            files = sampler.epoch_order(len(files), self.plan.seed, epoch).tolist()
        paths = [str(self.paths[i]) for i in files]
        indexes = [str(self.indexes[i]) for i in files]
        first, end = self._share(rank)
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

    def _keep_only(self, wanted: np.ndarray, folder: Path) -> None:
        """Read only these images: new indexes in `folder` list a part of each file."""
        first, kept = 0, []
        for i, (path, index) in enumerate(zip(self.paths, self.indexes, strict=True)):
            lines = index.read_text().splitlines(keepends=True)
            here = np.isin(np.arange(first, first + len(lines)), wanted)
            first += len(lines)
            if here.any():
                part = folder / f"{i}.idx"
                part.write_text("".join(np.array(lines, object)[here]))
                kept.append((path, part))
        self.paths, self.indexes = [path for path, _ in kept], [index for _, index in kept]

    def close(self) -> None:
        """Remove the indexes of a part."""
        if self.parts is not None:
            self.parts.cleanup()


def _record_files(source: Source) -> tuple[list[Path], list[Path]]:
    """Return the files of a split and their indexes. Raises UserError if an index is missing."""
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


def check_once(files: list[tuple[Path, Path]], rank: int, size: int) -> None:
    """Compare record files or shards, each given with its index, with their checksums, once.

    DALI itself checks none. The result is cached next to the index as `NAME.checked`. The ranks of
    a machine begin at different files. Raises RecordError for a damaged record.
    """
    left = []
    for path, index in files:
        sums = [checksum_path(path)] if path.suffix == ".rec" else []
        if all(file.exists() for file in sums):
            note, used = index.with_suffix(".checked"), [path, *sums]
            if load_arrays(note, file_state(used)) is None:
                left.append((note, used))
    stored = sum(used[0].stat().st_size for _, used in left)
    if rank == 0 and stored >= LARGE:
        print(
            f"{left[0][1][0].parent}: looking at the checksums of {len(left)} files, "
            f"{stored / 1e9:.1f} GB, because DALI does not; this is done once",
            file=sys.stderr,
        )
    first = len(left) * rank // size
    for note, used in [*left[first:], *left[:first]]:
        disk_cache(note, used, partial(_read_all, used[0]))


def _read_all(path: Path) -> Arrays:
    """Return nothing. Raises RecordError if a record is damaged."""
    if path.suffix == ".rec":
        reader = Reader(path)
        records: Iterable = map(reader.read, reader.offsets.argsort().tolist())
    else:
        records = TFRecordReader(path).records()
    collections.deque(records, maxlen=0)
    return {}
