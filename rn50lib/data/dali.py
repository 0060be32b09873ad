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

from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from rn50lib import hooks, recipe
from rn50lib.config import TrainConfig
from rn50lib.data import Batch, sampler
from rn50lib.data.decode import ImageDecoder
from rn50lib.data.sampler import BatchSampler
from rn50lib.data.source import Source
from rn50lib.data.tfrecord import IMAGE, LABEL, ShardSource, index_path
from rn50lib.errors import UserError
from rn50lib.hardware import machine

try:
    from nvidia.dali import fn, tfrecord

    from rn50lib.data.dali_graph import (
        JPEG_ENGINES,
        ImageSpec,
        refuse_turned,
        training,
        validation,
    )
except ImportError as error:
    raise UserError(
        f"--loader dali: DALI does not import here ({error}): `make setup` installs it where there"
        " is a wheel; or use --loader native"
    ) from error

BATCHES_AHEAD = 2


class Dali:
    """Images of class folders by their number; see `rn50lib.data.Pipeline`.

    Batches are arrays; for PyTorch on a GPU, tensors there. `engine` says whether the GPU's JPEG
    engine decodes whole images; None uses it if there is one.
    """

    ordered = True
    engine: bool | None = None

    def __init__(self, config: TrainConfig, source: Source, batches: BatchSampler) -> None:
        if hooks.get("augment") is not recipe.augment:
            raise UserError(
                "--override augment: DALI draws its crops itself, in its own threads, and calls no"
                " Python function for it; use --loader native"
            )
        self.config, self.source, self.sampler = config, source, batches
        self.examples = batches.examples
        self.ahead = config.data_nthreads > 0  # else the training process makes the batches
        self.builder = ThreadPoolExecutor(1, "dali-build")
        self.next_graph: dict[int, Future] = {}  # by epoch

    def __len__(self) -> int:
        return len(self._valid(0))

    def epoch(self, epoch: int, skip: int = 0) -> Iterator[Batch]:
        """Yield the batches of an epoch."""
        group = self.sampler.size * self.sampler.batch_size
        start_step, skip = skip // group, skip % group
        if skip:  # by a different number of ranks: the rest is an epoch with its own crops
            start_step, skip = 0, skip + start_step * group
        valid = self._valid(skip)
        steps = len(valid)
        gpu, step = self._gpu(), 0
        built = self.next_graph.pop(epoch, None)
        graph = built.result() if built and not skip else self._build(epoch, gpu, skip)
        try:
            graph.schedule_run()  # the first call fills the queue
            left = steps - graph.prefetch_queue_depth
            for step in range(steps):
                images, labels = refuse_turned(*graph.share_outputs())
                made = None
                if step >= start_step:  # earlier batches are made too: they advance DALI's seeds
                    made = self._batch(images, labels, int(valid[step]), gpu is not None)
                graph.release_outputs()  # it is copied: DALI may work on while the batch is used
                if step < left:  # its own `run` would continue past the end, and be waited for
                    graph.schedule_run()
                elif step == max(left, 0) and self.ahead and epoch + 1 < self.config.num_epochs:
                    self.next_graph = {epoch + 1: self.builder.submit(self._build, epoch + 1, gpu)}
                if made is not None:
                    yield made
        except RuntimeError as error:
            raise self._explain(error, epoch, step) from error

    def close(self) -> None:
        """End the thread that builds graphs."""
        self.builder.shutdown(cancel_futures=True)
        self.next_graph.clear()

    # -- what a rank reads in an epoch -------------------------------------------------------------

    def _valid(self, skip: int) -> np.ndarray:
        """Return how many images of each batch count."""
        return self.sampler.rows(0, skip)[1]

    def _read(self, epoch: int, skip: int) -> tuple[Any, Any]:
        """Add the reader to a graph: (encoded image, label from 0 on)."""
        numbers = self.sampler.rows(epoch, skip)[0].ravel()
        files = [self.source.name(number) for number in numbers.tolist()]
        encoded, label = fn.readers.file(files=files, labels=self.source.labels[numbers].tolist())
        return encoded, label[0]

    def _suspects(self, epoch: int, step: int) -> Iterable[int]:
        """Return the images that DALI may have been reading when it failed: it works ahead."""
        return self.sampler.rows(epoch)[0][step : step + 2 * BATCHES_AHEAD + 2].ravel()

    # -- graphs and batches ------------------------------------------------------------------------

    def _build(self, epoch: int, gpu: int | None, skip: int = 0) -> Any:
        """Return the graph for an epoch without its first `skip` images, ready to run."""
        engine = self.engine
        if engine is None:
            engine = gpu is not None and machine().gpus[0].capability in JPEG_ENGINES
        graph = (training if self.sampler.train else validation)(
            lambda: self._read(epoch, skip),
            ImageSpec(
                pixels=self.config.image_shape,
                resize=self.config.val_resize,
                augmentation=self.config.augmentation,
                gpu=gpu is not None,
                engine=engine,
            ),
            batch_size=self.sampler.batch_size,
            num_threads=max(1, self.config.data_nthreads),
            device_id=gpu,
            seed=sampler.image_seed(self.config.seed, epoch, self.sampler.rank) % 2**31,
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

    def _gpu(self) -> int | None:
        """Return the GPU that the backend has chosen for this rank; None without one."""
        if not machine().gpus:
            return None
        if self.config.backend == "tensorflow":
            import tensorflow as tf

            seen = tf.config.get_visible_devices("GPU")
            return int(seen[0].name.rsplit(":", 1)[1]) if seen else None
        import torch

        return torch.cuda.current_device() if torch.cuda.is_available() else None

    def _batch(self, images: Any, labels: Any, valid: int, on_gpu: bool) -> Batch:
        """Return a batch copied from DALI's lists, which will be overwritten."""
        if on_gpu and self.config.backend == "tensorflow":
            images, labels, on_gpu = images.as_cpu(), labels.as_cpu(), False
        if not on_gpu:
            copied, copied_labels = (np.array(x.as_tensor(), copy=True) for x in (images, labels))
            return Batch(copied, copied_labels, valid)
        import torch
        from nvidia.dali.plugin.pytorch import feed_ndarray

        def copy(values: Any, dtype: Any) -> Any:
            dense = values.as_tensor()
            tensor = torch.empty(dense.shape(), dtype=dtype, device="cuda")
            feed_ndarray(dense, tensor, cuda_stream=torch.cuda.current_stream())
            return tensor

        return Batch(copy(images, torch.uint8), copy(labels, torch.int32), valid)

    def _explain(self, error: RuntimeError, epoch: int, step: int) -> UserError:
        """Return the error that names the file because of which a batch near `step` failed.

        DALI does not say which image did not decode, and a stream's position does not tell.
        """
        decoder = ImageDecoder(self.source, False, self.config)
        return decoder.find_bad(epoch, self._suspects(epoch, step)) or UserError(
            f"{self.source.path}: DALI fails at it: {in_short(error)}; "
            f"`python -m data_prep.verify {self.source.root}` names images that do not decode"
        )


def in_short(error: RuntimeError) -> str:
    """Return DALI's message, on one line and without its stack."""
    return " ".join(str(error).partition("Stacktrace")[0].split())


class DaliStream(Dali):
    """Images of record files, in the order in which DALI's readers give them.

    With `--num-examples`, an epoch ends early, and each may use different images. DALI compares no
    checksums: `python -m data_prep.verify` does.
    """

    ordered = False

    def __init__(self, config: TrainConfig, source: Source, batches: BatchSampler) -> None:
        super().__init__(config, source, batches)
        if hooks.get("shard") is not sampler.shard:
            raise UserError(
                "--override shard: DALI's reader shares a record file out among the ranks itself;"
                " use --data-format files, or --loader native"
            )
        if isinstance(source, ShardSource):
            self.paths, self.indexes = list(source.shards), [*map(index_path, source.shards)]
        else:
            self.paths, self.indexes = [source.path], [source.path.with_suffix(".idx")]
        for index in self.indexes:
            if not index.exists():
                raise UserError(
                    f"{index}: this index is missing, and --loader dali needs it:"
                    f" `python -m data_prep.tfrecord --index {source.path}` writes it"
                )
        self.buffer = batches.shuffle_buffer(self.paths)

    def _share(self, rank: int) -> int:
        """Return how many images a rank has in the order of the files."""
        size, images = self.sampler.size, self.sampler.images
        return images * (rank + 1) // size - images * rank // size

    def _valid(self, skip: int) -> np.ndarray:
        batch, steps = self.sampler.batch_size, self.sampler.stream_steps()
        return np.clip(self._share(self.sampler.rank) - batch * np.arange(steps), 0, batch)

    def _read(self, epoch: int, skip: int) -> tuple[Any, Any]:
        # share and order of the files change with each epoch, so that other images meet
        rank, files = self.sampler.rank, list(range(len(self.paths)))
        if self.sampler.train:
            rank = (rank + epoch) % self.sampler.size
            files = sampler.epoch_order(len(files), self.sampler.seed, epoch).tolist()
        how: dict[str, Any] = {
            "path": [str(self.paths[i]) for i in files],
            "index_path": [str(self.indexes[i]) for i in files],
            "shard_id": rank,
            "num_shards": self.sampler.size,
            "random_shuffle": self.sampler.train,
            "initial_fill": max(1, min(self.buffer, self._share(rank))),
            "stick_to_shard": True,
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

    def _suspects(self, epoch: int, step: int) -> Iterable[int]:
        return ()
