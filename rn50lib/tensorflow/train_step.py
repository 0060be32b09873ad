"""One training step in TensorFlow: forward, backward, gradient synchronisation, update.

The step is one graph, traced once per batch shape. Metrics are summed on the device. Weights,
batch-norm statistics, the last layer and the loss are always float32; `model` has Keras' policies.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

from rn50lib.config import TrainConfig
from rn50lib.data import Batch
from rn50lib.distributed import Comm
from rn50lib.errors import UserError, memory_full
from rn50lib.optim import weight_decays
from rn50lib.recipe import MEAN, STD
from rn50lib.report import SUMS, TOP
from rn50lib.resnet import Network
from rn50lib.tensorflow.model import build_model, load_arrays, tensors, to_canonical
from rn50lib.train_step import TrainStep

MESSAGES = 4  # groups of gradients that are sent one after the other


class Optimizer:
    """SGD over the parameters `names`, each with its velocity."""

    def __init__(self, config: TrainConfig, named: Mapping[str, Any], names: list[str]) -> None:
        self.weights = {name: named[name] for name in names}
        self.velocity = {
            name: tf.Variable(tf.zeros_like(named[name]), trainable=False, name=name)
            for name in names
        }
        self.decay = weight_decays(names, config.wd, config.bn_decay)
        self.momentum = config.mom

    def __call__(self, gradients: list[Any], lr: Any) -> None:
        """Update the weights by gradients in the order of `names`."""
        for (name, weight), gradient in zip(self.weights.items(), gradients, strict=True):
            if self.decay[name]:
                gradient += self.decay[name] * weight
            # velocity = momentum * velocity + gradient; weight -= lr * velocity, in one kernel
            tf.raw_ops.ResourceApplyMomentum(
                var=weight.handle,
                accum=self.velocity[name].handle,
                lr=lr,
                grad=gradient,
                momentum=self.momentum,
            )


class TensorflowStep(TrainStep):
    """A ResNet with its optimizer on one device."""

    saves = True

    def __init__(self, config: TrainConfig, net: Network, comm: Comm) -> None:
        self.device = configure(config.threads, comm.local_rank)
        # on a GPU, TensorFlow's default is to use TF32
        tf.config.experimental.enable_tensor_float_32_execution(config.dtype == "tf32")
        self.config, self.net = config, net
        self.model = build_model(net, config.dtype)
        self.named = tensors(self.model, net)
        start = net.initial_arrays(config.seed, config.zero_gamma)
        load_arrays(self.named, comm.broadcast(start))
        self.trained = list(net.parameters())
        self.update = Optimizer(config, self.named, self.trained)
        self.velocity = self.update.velocity
        self.sync = functools.partial(average_gradients, comm=comm)
        self.lr = tf.Variable(0.0, trainable=False)
        self.sums = tf.Variable(tf.zeros(len(SUMS), tf.float64), trainable=False)
        self.measure = not config.no_metrics
        self.train_graph = tf.function(self.compute)
        self.eval_graph = tf.function(self.evaluate)
        self.predict_graph = tf.function(self.probabilities)

    # --- the parts of the graphs ------------------------------------------------------------------

    def forward(self, images_NHWC: Any, training: bool) -> Any:
        """Return float32 logits of uint8 images."""
        normalised = (tf.cast(images_NHWC, tf.float32) - tf.constant(MEAN)) * (1 / np.array(STD))
        return self.model(normalised, training=training)

    def losses(self, logits: Any, labels: Any) -> Any:
        """Return the training loss of each image; validation does not smooth the labels."""
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        smoothing = self.config.label_smoothing
        if smoothing:
            of_all = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=1)
            losses = (1 - smoothing) * losses + smoothing * of_all
        return losses

    def backward(self, images_NHWC: Any, labels: Any) -> tuple[list[Any], Any, Any]:
        """Return gradients of the loss, logits, and losses."""
        weights = [self.named[name] for name in self.trained]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            logits = self.forward(images_NHWC, training=True)
            losses = self.losses(logits, labels)
            loss = tf.reduce_mean(losses)
        return tape.gradient(loss, weights), logits, losses

    def compute(self, images_NHWC: Any, labels: Any) -> None:
        gradients, logits, losses = self.backward(images_NHWC, labels)
        gradients = self.sync(gradients)  # now the average of all workers' gradients
        self.update(gradients, self.lr)
        self.update_metrics(logits, labels, losses)

    def evaluate(self, images_NHWC: Any, labels: Any, valid: Any) -> None:
        """Add the first `valid` images to the metrics."""
        logits = self.forward(images_NHWC, training=False)[:valid]
        labels = labels[:valid]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        self.update_metrics(logits, labels, losses)

    def update_metrics(self, logits: Any, labels: Any, losses: Any) -> None:
        """Add this batch to the `SUMS` on the device."""
        if not self.measure:
            return
        best = tf.math.top_k(logits, min(max(TOP.values()), self.net.num_classes)).indices
        hits = tf.cast(best == labels[:, None], tf.float64)
        loss = tf.reduce_sum(tf.cast(losses, tf.float64))
        count = tf.cast(tf.shape(labels)[0], tf.float64)
        sums = [loss, *(tf.reduce_sum(hits[:, :k]) for k in TOP.values()), count]
        self.sums.assign_add(tf.stack(sums))

    def probabilities(self, images_NHWC: Any) -> Any:
        return tf.nn.softmax(self.forward(images_NHWC, training=False))

    # --- the methods of `TrainStep` ---------------------------------------------------------------

    def train_step(self, batch: Batch, lr: float) -> None:
        self.lr.assign(lr)
        images, labels = as_tensor(batch.images), as_tensor(batch.labels)
        with self.explain_errors():
            self.train_graph(images, labels)

    def eval_step(self, batch: Batch) -> None:
        if not batch.valid:  # a last batch of padding only
            return
        images, labels = as_tensor(batch.images), as_tensor(batch.labels)
        valid = tf.constant(batch.valid)  # a tensor: each new number would be traced
        with self.explain_errors():
            self.eval_graph(images, labels, valid)

    @contextmanager
    def explain_errors(self) -> Iterator[None]:
        """Replace TensorFlow's error of a full memory by a UserError."""
        try:
            yield
        except tf.errors.ResourceExhaustedError:
            raise memory_full(self.config.batch_size, accumulates=False) from None

    def pop_metrics(self) -> np.ndarray:
        values = self.sums.numpy().copy()  # waits for a GPU
        self.sums.assign(tf.zeros_like(self.sums))
        return values

    def state(self) -> dict[str, np.ndarray]:
        arrays = {name: to_canonical(v.numpy()) for name, v in self.named.items()}
        for name, velocity in self.velocity.items():
            arrays[f"velocity/{name}"] = to_canonical(velocity.numpy())
        return arrays

    def load(
        self, arrays: dict[str, np.ndarray], loss_scale: dict[str, float] | None = None
    ) -> None:
        load_arrays(self.named, arrays)
        velocities = {f"velocity/{name}": velocity for name, velocity in self.velocity.items()}
        load_arrays({name: v for name, v in velocities.items() if name in arrays}, arrays)

    def predict(self, images: np.ndarray) -> np.ndarray:
        return self.predict_graph(as_tensor(images)).numpy()

    def versions(self) -> dict[str, str]:
        # tf.keras has no version; its package, keras or tf_keras, has
        keras = sys.modules[tf.keras.layers.Layer.__module__.split(".")[0]]
        found = {"tensorflow": tf.__version__, "keras": keras.__version__, "device": self.device}
        if self.device == "gpu":
            build = tf.sysconfig.get_build_info()
            (gpu,) = tf.config.get_visible_devices("GPU")
            found["device"] = tf.config.experimental.get_device_details(gpu)["device_name"]
            found["cuda"] = build.get("cuda_version", "")
            found["cudnn"] = build.get("cudnn_version", "")
        return found


def average_gradients(gradients: list[Any], comm: Any) -> list[Any]:
    """Average gradients over all ranks, a few at a time, in the order of the backward pass.

    Horovod's Keras integration and DistributedOptimizer average nothing under Keras 3.
    """
    if comm.size == 1:
        return gradients
    hvd, waiting, averaged = comm.hvd, gradients[::-1], []
    size = math.ceil(len(waiting) / MESSAGES)
    for first in range(0, len(waiting), size):
        group, name = waiting[first : first + size], f"gradients/{first}"
        averaged += hvd.grouped_allreduce(group, op=hvd.Average, name=name)
    return averaged[::-1]


def as_tensor(values: Any) -> Any:
    """Return an array, or a PyTorch tensor in host memory, as a TensorFlow tensor."""
    return values if tf.is_tensor(values) else tf.convert_to_tensor(np.asarray(values))


def configure(threads: int, local_rank: int) -> str:
    """Set TensorFlow's threads and this rank's GPU; return "cpu" or "gpu"."""
    gpus = tf.config.list_physical_devices("GPU")
    try:
        if tf.config.threading.get_intra_op_parallelism_threads() != threads:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            # the gradients of a convolution's input and weights are computed in parallel
            tf.config.threading.set_inter_op_parallelism_threads(min(threads, 2))
        if gpus:
            mine = gpus[local_rank % len(gpus)]
            if tf.config.get_visible_devices("GPU") != [mine]:
                tf.config.set_visible_devices([mine], "GPU")
            tf.config.experimental.set_memory_growth(mine, True)
    except RuntimeError as error:
        raise UserError(
            f"--threads {threads}: TensorFlow has already started in this process with different"
            " settings: start the run in a separate process"
        ) from error
    return "gpu" if gpus else "cpu"
