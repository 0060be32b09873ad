"""The DALI loader: NVIDIA's readers and decoders, in threads of their own and on the GPU if any.

Files are read by number, in the order that `records.order` lays down. RecordIO and TFRecord are
read by DALI's own readers as streams, through a shuffle buffer. These promise what tf.data's
streams do: no image twice in an epoch, on whichever rank; equal steps on all ranks; the same
batches again for the same (seed, epoch); and validation on every image exactly once. For that each
epoch has a graph of its own: DALI fixes files and seeds when a graph is built, and one that went on
from epoch to epoch would give a resumed run other batches. The next epoch's is built while the last
batches of this one are used, so that short epochs do not wait for it. Crops are DALI's, with the
recipe's numbers: other ones than the other loaders draw, by the same rule.

Both backends get their batches from the same loop. PyTorch on a GPU gets tensors there, copied from
DALI's buffers and never through the host. TensorFlow gets them through host memory: DALI's plugin
for it exists for some pairs of versions only, and not for 1.34 with TensorFlow 2.21.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np

from rn50lib import hooks as overrides
from rn50lib import recipe
from rn50lib.config import TrainConfig
from rn50lib.errors import UserError
from rn50lib.hardware import machine
from rn50lib.data import Batch
from rn50lib.data.decode import Pictures, quick
from rn50lib.data.sampler import Plan
from rn50lib.data import order
from rn50lib.data.source import Source

try:
    from rn50lib.data.dali_graph import JPEG_ENGINES, Look, training, validation
    from rn50lib.data.dali_readers import BATCHES_AHEAD, Numbered, Stream
except ImportError as error:
    raise UserError(
        f"--loader dali: DALI does not import here ({error}): `make setup` installs it where there"
        " is a wheel; or use --loader native"
    ) from error


class Dali:
    """See `rn50lib.data.Pipeline`. Batches are arrays; for PyTorch on a GPU, tensors there.

    `engine` says whether to decode whole images by the GPU's JPEG engine; left out, that is done
    where there is one.
    """

    def __init__(
        self,
        experiment: TrainConfig,
        source: Source,
        plan: Plan,
        engine: bool | None = None,
    ) -> None:
        if overrides.get("augment") is not recipe.augment:
            raise UserError(
                "--override augment: DALI draws its crops itself, in its own threads, and calls no"
                " Python function for it; use --loader native"
            )
        self.experiment, self.source, self.plan, self.engine = experiment, source, plan, engine
        self.examples = plan.examples
        reader = Numbered if source.format == "files" else Stream
        self.reader: Numbered | Stream = reader(source, plan)
        self.ordered = isinstance(self.reader, Numbered)
        self.beside = experiment.data_nthreads > 0  # else the training process makes the batches
        self.builder = ThreadPoolExecutor(1, "dali-build")
        self.ahead: dict[int, Future] = {}  # the next epoch's graph

    def __len__(self) -> int:
        return len(self.reader)

    def epoch(self, epoch: int, start_step: int = 0, skip: int = 0) -> Iterator[Batch]:
        group = self.plan.size * self.plan.batch_size
        start_step, skip = start_step + skip // group, skip % group
        if skip:  # by a group of another size: the rest is an epoch of its own, with its own crops
            start_step, skip = 0, skip + start_step * group
        valid = self.reader.valid(skip)
        steps = len(valid)
        gpu, step = self.gpu(), 0
        on_gpu = gpu is not None
        built = self.ahead.pop(epoch, None)
        graph = built.result() if built and not skip else self.build(epoch, gpu, skip)
        try:
            graph.schedule_run()  # the first call fills the queue
            left = steps - graph.prefetch_queue_depth
            for step in range(steps):
                images, labels = graph.share_outputs()
                made = None
                if step >= start_step:  # what comes before is made too: DALI's chance moves on
                    made = self.batch(images, labels, int(valid[step]), on_gpu)
                graph.release_outputs()  # it is copied: DALI may work on while the batch is used
                if step < left:  # its own `run` would go on past the end, and be waited for
                    graph.schedule_run()
                elif step == max(left, 0):
                    self.build_ahead(epoch + 1, gpu)
                if made is not None:
                    yield made
        except RuntimeError as error:
            raise self.explain(error, epoch, step) from error

    def close(self) -> None:
        self.builder.shutdown(cancel_futures=True)
        self.ahead.clear()
        self.reader.close()

    def build_ahead(self, epoch: int, gpu: int | None) -> None:
        """Begin with the graph of an epoch that is to come, if it is."""
        if self.beside and epoch < self.experiment.num_epochs:
            self.ahead = {epoch: self.builder.submit(self.build, epoch, gpu)}

    def build(self, epoch: int, gpu: int | None, skip: int = 0) -> Any:
        """The graph for an epoch without its first `skip` images, ready to run."""
        graph = (training if self.plan.train else validation)(
            lambda: self.reader.read(epoch, skip),
            self.look(gpu),
            batch_size=self.plan.batch_size,
            num_threads=max(1, self.experiment.data_nthreads),
            device_id=gpu,
            seed=order.image_seed(self.experiment.seed, epoch, self.plan.rank) % 2**31,
            exec_pipelined=self.beside,
            exec_async=self.beside,
            prefetch_queue_depth=BATCHES_AHEAD if self.beside else 1,
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
        """What images become, by the recipe and on this machine."""
        engine = self.engine
        if engine is None:
            engine = gpu is not None and machine().gpus[0].capability in JPEG_ENGINES
        return Look(
            pixels=self.experiment.image_shape,
            resize=self.experiment.val_resize,
            augmentation=self.experiment.to_recipe().augmentation,
            antialias=self.experiment.resample != "fast",
            gpu=gpu is not None,
            engine=engine,
            quick=quick(self.experiment, self.plan.train),
        )

    def gpu(self) -> int | None:
        """The GPU that the backend has chosen for this rank; None without one."""
        if not machine().gpus:
            return None
        if self.experiment.backend == "tensorflow":
            import tensorflow as tf

            seen = tf.config.get_visible_devices("GPU")
            return int(seen[0].name.rsplit(":", 1)[1]) if seen else None
        import torch

        return torch.cuda.current_device() if torch.cuda.is_available() else None

    def batch(self, images: Any, labels: Any, valid: int, on_gpu: bool) -> Batch:
        """DALI's lists, which are its own and will be overwritten, as a batch that stays."""
        if on_gpu and self.experiment.backend == "tensorflow":
            images, labels, on_gpu = images.as_cpu(), labels.as_cpu(), False
        if not on_gpu:
            return Batch(own(images), own(labels), valid)
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
        """The error that names the image because of which a batch near `step` could not be made.

        DALI says only that some image of some batch did not decode. (DALI 2.4 on a CPU was seen to
        crash there instead, in batches of some 50 images and more: signal 11, and no message.)
        """
        pictures = Pictures(self.source, False, self.experiment)
        for number in self.reader.suspects(epoch, step).tolist():
            try:
                pictures.image(epoch, number)
            except UserError as found:
                return found
        return UserError(f"{self.source.path}: DALI fails at it: {in_short(error)}")


def in_short(error: RuntimeError) -> str:
    """What DALI says, on one line and without its stack."""
    return " ".join(str(error).partition("Stacktrace")[0].split())


def own(values: Any) -> np.ndarray:
    """A copy of a list of equal arrays in host memory."""
    return np.array(values.as_tensor(), copy=True)
