"""One training step in TensorFlow: forward, backward, exchange, update, in this order, every time.

The whole step is one graph, traced once per shape of a batch. Nothing in it waits for the device:
losses and hits are added up where they arise, and the loop reads them every `disp_batches` steps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rn50lib import seams
from rn50lib.backends.tensorflow.model import build_model, load_arrays, tensors, to_canonical
from rn50lib.backends.tensorflow.parallel import exchange_for
from rn50lib.comm import Comm
from rn50lib.errors import UserError
from rn50lib.experiment import FullExperiment
from rn50lib.network import Network
from rn50lib.pipelines import Batch
from rn50lib.recipe import MEAN, STD


class TensorflowStep:
    """A ResNet with its SGD state on one device. See `rn50lib.backends.Step`."""

    def __init__(self, experiment: FullExperiment, net: Network, comm: Comm) -> None:
        self.device = configure(experiment.threads, comm.local_rank)
        self.net = net
        self.model = build_model(net, experiment.dtype)
        self.named = tensors(self.model, net)
        start = net.initial_arrays(experiment.seed, experiment.to_recipe().zero_gamma)
        load_arrays(self.named, seams.get("broadcast_start")(start, comm))
        self.trained = list(net.parameters())
        self.velocity = {
            name: tf.Variable(tf.zeros_like(self.named[name]), trainable=False, name=name)
            for name in self.trained
        }
        self.momentum = experiment.mom
        self.decay = self._decay(experiment.wd)
        self.exchange = exchange_for(comm, experiment)
        self.lr = tf.Variable(0.0, trainable=False)
        self.sums = tf.Variable(tf.zeros(4, tf.float64), trainable=False)
        self.measure = not experiment.no_metrics
        self.train_graph = tf.function(self._train)
        self.eval_graph = tf.function(self._eval)
        self.predict_graph = tf.function(self._predict)

    def _decay(self, weight_decay: float) -> dict[str, float]:
        names = list(self.net.parameters())
        decayed, plain = seams.get("decay_groups")(names)
        if sorted([*decayed, *plain]) != sorted(names):
            raise UserError(
                f"decay_groups put {len(decayed)} + {len(plain)} names in its groups: each of the"
                f" {len(names)} parameters must be in exactly one, or it is not trained"
            )
        return dict.fromkeys(decayed, weight_decay) | dict.fromkeys(plain, 0.0)

    # --- the graphs -------------------------------------------------------------------------------

    def forward(self, images_NHWC: Any, training: bool) -> Any:
        """Float32 logits of uint8 images."""
        normalised = (tf.cast(images_NHWC, tf.float32) - tf.constant(MEAN)) * (1 / np.array(STD))
        return self.model(normalised, training=training)

    def _train(self, images_NHWC: Any, labels: Any) -> None:
        weights = [self.named[name] for name in self.trained]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            logits = self.forward(images_NHWC, training=True)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        self._update(self.exchange(tape.gradient(loss, weights)))
        self._add_up(logits, labels, losses)

    def _update(self, gradients: list[Any]) -> None:
        """SGD with momentum: L2 in the gradient, and no learning rate in the velocity."""
        for name, gradient in zip(self.trained, gradients, strict=True):
            weight = self.named[name]
            if self.decay[name]:
                gradient += self.decay[name] * weight
            # velocity = momentum * velocity + gradient; weight -= lr * velocity, in one kernel
            tf.raw_ops.ResourceApplyMomentum(
                var=weight.handle,
                accum=self.velocity[name].handle,
                lr=self.lr,
                grad=gradient,
                momentum=self.momentum,
            )

    def _eval(self, images_NHWC: Any, labels: Any, valid: Any) -> None:
        logits = self.forward(images_NHWC, training=False)[:valid]
        labels = labels[:valid]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        self._add_up(logits, labels, losses)

    def _add_up(self, logits: Any, labels: Any, losses: Any) -> None:
        """Add this batch to the sums on the device: loss, top-1 hits, top-5 hits, images."""
        if not self.measure:
            return
        best = tf.math.top_k(logits, min(5, self.net.num_classes)).indices
        hits = tf.cast(best == labels[:, None], tf.float64)
        loss = tf.reduce_sum(tf.cast(losses, tf.float64))
        count = tf.cast(tf.shape(labels)[0], tf.float64)
        sums = [loss, tf.reduce_sum(hits[:, 0]), tf.reduce_sum(hits), count]
        self.sums.assign_add(tf.stack(sums))

    def _predict(self, images_NHWC: Any) -> Any:
        return tf.nn.softmax(self.forward(images_NHWC, training=False))

    # --- what the loop calls ----------------------------------------------------------------------

    def train_step(self, batch: Batch, lr: float) -> None:
        self.lr.assign(lr)
        try:
            self.train_graph(as_tensor(batch.images), as_tensor(batch.labels))
        except tf.errors.OpError:
            learners = getattr(self.exchange, "error", None)
            if learners is None:
                raise
            raise learners from None

    def eval_step(self, batch: Batch) -> None:
        if not batch.valid:  # a last batch of nothing but padding
            return
        valid = tf.constant(batch.valid)  # a tensor: a number would be traced anew each time
        self.eval_graph(as_tensor(batch.images), as_tensor(batch.labels), valid)

    def read_sums(self) -> np.ndarray:
        values = self.sums.numpy().copy()  # a GPU finishes all that it was given before it copies
        self.sums.assign(tf.zeros_like(self.sums))
        return values

    def state(self) -> dict[str, np.ndarray]:
        arrays = {name: to_canonical(v.numpy()) for name, v in self.named.items()}
        for name, velocity in self.velocity.items():
            arrays[f"velocity/{name}"] = to_canonical(velocity.numpy())
        return arrays

    def load(self, arrays: dict[str, np.ndarray]) -> None:
        load_arrays(self.named, arrays)
        held = {f"velocity/{name}": velocity for name, velocity in self.velocity.items()}
        load_arrays({name: v for name, v in held.items() if name in arrays}, arrays)

    def predict(self, images: np.ndarray) -> np.ndarray:
        return self.predict_graph(as_tensor(images)).numpy()

    def versions(self) -> dict[str, str]:
        # tf.keras is the package keras, or tf_keras: not under either name has it a version itself
        keras = sys.modules[tf.keras.layers.Layer.__module__.split(".")[0]]
        found = {"tensorflow": tf.__version__, "keras": keras.__version__, "device": self.device}
        if self.device == "gpu":
            build = tf.sysconfig.get_build_info()
            (gpu,) = tf.config.get_visible_devices("GPU")
            found["device"] = tf.config.experimental.get_device_details(gpu)["device_name"]
            found["cuda"] = build.get("cuda_version", "")
            found["cudnn"] = build.get("cudnn_version", "")
        return found

    @contextmanager
    def trace(self, file: Path, steps: int) -> Iterator[Any]:
        from rn50lib.backends.tensorflow.trace import Recording

        with Recording(file, steps) as recording:
            yield recording


def as_tensor(values: Any) -> Any:
    """A batch's images or labels as a tensor: from an array, or PyTorch's tensor in host memory."""
    return values if tf.is_tensor(values) else tf.convert_to_tensor(np.asarray(values))


def configure(threads: int, local_rank: int) -> str:
    """Set what TensorFlow keeps globally, before its first operation; returns "cpu" or "gpu".

    Compute threads; on GPUs the one that belongs to this rank, memory as it is needed, and float32
    that is float32. Raises UserError where TensorFlow has begun with other settings.
    """
    gpus = tf.config.list_physical_devices("GPU")
    try:
        if tf.config.threading.get_intra_op_parallelism_threads() != threads:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            # the gradients of a convolution's input and of its weights are made side by side
            tf.config.threading.set_inter_op_parallelism_threads(min(threads, 2))
        if gpus:
            mine = gpus[local_rank % len(gpus)]
            if tf.config.get_visible_devices("GPU") != [mine]:
                tf.config.set_visible_devices([mine], "GPU")
            tf.config.experimental.set_memory_growth(mine, True)
    except RuntimeError as error:
        raise UserError(
            f"--threads {threads}: TensorFlow has already begun in this process, with other"
            " settings: start the run in a process of its own"
        ) from error
    # "float32" says float32: without this, convolutions run in TF32 from Ampere on
    tf.config.experimental.enable_tensor_float_32_execution(False)
    return "gpu" if gpus else "cpu"
