"""One training step in TensorFlow: forward, backward, exchange, update, in this order, every time.

The whole step is one graph, traced once per shape of a batch. Nothing in it waits for the device:
losses and hits are added up where they arise, and the loop reads them every `disp_batches` steps.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from rn50lib import hooks as overrides
from rn50lib.config import TrainConfig
from rn50lib.data import Batch
from rn50lib.distributed import Comm
from rn50lib.distributed.gpu import own_gpu
from rn50lib.errors import UserError
from rn50lib.hardware import machine
from rn50lib.recipe import MEAN, STD
from rn50lib.resnet import Network
from rn50lib.step_common import first_line, memory_full
from rn50lib.tensorflow import amp as precision
from rn50lib.tensorflow.gradient_sync import exchange_for
from rn50lib.tensorflow.model import build_model, load_arrays, tensors, to_canonical
from rn50lib.tensorflow.optimizer import Optimizer

XLA_ERRORS = (tf.errors.InvalidArgumentError, tf.errors.UnimplementedError)
"""What TensorFlow raises where XLA cannot compile an operation."""


class TensorflowStep:
    """A ResNet with its optimizer's state on one device. See `rn50lib.train_step.Step`."""

    def __init__(self, config: TrainConfig, net: Network, comm: Comm) -> None:
        if config.cuda_graphs:
            raise UserError("--cuda-graphs: PyTorch's alone; for TensorFlow there is --compile")
        if config.profile_trace:
            raise UserError(
                "--profile-trace: PyTorch's profiler writes it: use --backend torch with it; for"
                " TensorFlow there is tf.profiler, whose files TensorBoard shows"
            )
        self.device = configure(config.threads, comm.local_rank)
        precision.configure(self.device, config.dtype)
        self.config, self.net, self.local_rank = config, net, comm.local_rank
        self.model = build_model(net, config.dtype)
        self.named = tensors(self.model, net)
        start = net.initial_arrays(config.seed, config.to_recipe().zero_gamma)
        load_arrays(self.named, overrides.get("broadcast_start")(start, comm))
        frozen = net.up_to(config.freeze_until)
        self.trained = [name for name in net.parameters() if name not in frozen]
        for layer in self.model.layers:  # a batch norm that is not trainable keeps its statistics
            layer.trainable = f"{layer.name}.running_mean" not in frozen
        self.update = Optimizer(config, self.named, self.trained)
        self.velocity = self.update.velocity
        self.exchange = exchange_for(comm)
        self.lr = tf.Variable(0.0, trainable=False)
        self.sums = tf.Variable(tf.zeros(4, tf.float64), trainable=False)
        self.measure = not config.no_metrics
        self.scaler: precision.LossScaler | None = None
        if config.loss_scale:
            self.scaler = precision.LossScaler(config.loss_scale)
        self.micro_batches, self.batches = config.grad_accum_steps, 0
        self.held: list[Any] = []  # the sum of the gradients of the batches before the last
        if self.micro_batches > 1:
            zeros = [tf.zeros_like(self.named[name]) for name in self.trained]
            self.held = [tf.Variable(zero, trainable=False) for zero in zeros]
        # XLA compiles the model, forwards and backwards; the exchange between workers it cannot
        self.fast_backward, self.fast_infer = self.backward, self.infer
        if config.compile:
            self.fast_backward = tf.function(self.backward, jit_compile=True)
            self.fast_infer = tf.function(self.infer, jit_compile=True)
        self.train_graph = tf.function(self.compute)
        self.hold_graph = tf.function(self.hold)
        self.eval_graph = tf.function(self.evaluate)
        self.predict_graph = tf.function(self.probabilities)

    # --- what the graphs are made of --------------------------------------------------------------

    def forward(self, images_NHWC: Any, training: bool) -> Any:
        """Float32 logits of uint8 images."""
        normalised = (tf.cast(images_NHWC, tf.float32) - tf.constant(MEAN)) * (1 / np.array(STD))
        return self.model(normalised, training=training)

    def infer(self, images_NHWC: Any) -> Any:
        return self.forward(images_NHWC, training=False)

    def losses(self, logits: Any, labels: Any) -> Any:
        """What training makes small: with --label-smoothing not what validation reports."""
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        smoothing = self.config.label_smoothing
        if smoothing:
            of_all = -tf.reduce_mean(tf.nn.log_softmax(logits), axis=1)
            losses = (1 - smoothing) * losses + smoothing * of_all
        return losses

    def backward(self, images_NHWC: Any, labels: Any) -> tuple[list[Any], Any, Any]:
        """Gradients of this batch's share of the loss, times the loss scale; logits; losses."""
        weights = [self.named[name] for name in self.trained]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(weights)
            logits = self.forward(images_NHWC, training=True)
            losses = self.losses(logits, labels)
            loss = tf.reduce_mean(losses) / self.micro_batches
            if self.scaler is not None:
                loss *= self.scaler.scale
        return tape.gradient(loss, weights), logits, losses

    def hold(self, images_NHWC: Any, labels: Any) -> None:
        """A micro-batch whose update is still to come: its gradients are kept."""
        gradients, logits, losses = self.fast_backward(images_NHWC, labels)
        for held, gradient in zip(self.held, gradients, strict=True):
            held.assign_add(gradient)
        self.update_metrics(logits, labels, losses)

    def compute(self, images_NHWC: Any, labels: Any) -> None:
        """A batch, the last one of its update, and the update."""
        gradients, logits, losses = self.fast_backward(images_NHWC, labels)
        if self.held:
            gradients = [g + held for g, held in zip(gradients, self.held, strict=True)]
            for held in self.held:
                held.assign(tf.zeros_like(held))
        gradients = self.exchange(gradients)  # now the average of all workers' gradients
        if self.scaler is None:
            self.update(gradients, self.lr)
        else:
            gradients, finite = self.scaler.unscale(gradients)
            self.update(gradients, self.lr, finite)  # none where one of them is not finite
            self.scaler.advance(finite)
        self.update_metrics(logits, labels, losses)

    def evaluate(self, images_NHWC: Any, labels: Any, valid: Any) -> None:
        logits = self.fast_infer(images_NHWC)[:valid]
        labels = labels[:valid]
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        self.update_metrics(logits, labels, losses)

    def update_metrics(self, logits: Any, labels: Any, losses: Any) -> None:
        """Add this batch to the sums on the device: loss, top-1 hits, top-5 hits, images."""
        if not self.measure:
            return
        best = tf.math.top_k(logits, min(5, self.net.num_classes)).indices
        hits = tf.cast(best == labels[:, None], tf.float64)
        loss = tf.reduce_sum(tf.cast(losses, tf.float64))
        count = tf.cast(tf.shape(labels)[0], tf.float64)
        sums = [loss, tf.reduce_sum(hits[:, 0]), tf.reduce_sum(hits), count]
        self.sums.assign_add(tf.stack(sums))

    def probabilities(self, images_NHWC: Any) -> Any:
        return tf.nn.softmax(self.fast_infer(images_NHWC))

    # --- what the loop calls ----------------------------------------------------------------------

    def train_step(self, batch: Batch, lr: float) -> None:
        self.lr.assign(lr)
        images, labels = as_tensor(batch.images), as_tensor(batch.labels)
        self.batches += 1
        with self.explain_errors(training=True):
            last = self.batches % self.micro_batches == 0
            (self.train_graph if last else self.hold_graph)(images, labels)

    def eval_step(self, batch: Batch) -> None:
        if not batch.valid:  # a last batch of nothing but padding
            return
        images, labels = as_tensor(batch.images), as_tensor(batch.labels)
        valid = tf.constant(batch.valid)  # a tensor: a number would be traced anew each time
        with self.explain_errors(training=False):
            self.eval_graph(images, labels, valid)

    @contextmanager
    def explain_errors(self, training: bool) -> Iterator[None]:
        """In place of TensorFlow's error the learner's own, or one line for the user."""
        try:
            yield
        except tf.errors.ResourceExhaustedError:
            gpus = machine().gpus if self.device == "gpu" else ()
            capacity = gpus[own_gpu(self.local_rank, len(gpus))].memory if gpus else None
            raise memory_full(self.config, self.net, capacity, training) from None
        except tf.errors.OpError as error:
            for holder in (self.exchange, self.scaler):
                python = getattr(holder, "python", None)
                if python and python.error:
                    raise python.error from None
            if self.config.compile and isinstance(error, XLA_ERRORS):
                raise UserError(f"--compile: {first_line(error)}: leave the flag out") from error
            raise

    def pop_metrics(self) -> np.ndarray:
        values = self.sums.numpy().copy()  # a GPU finishes all that it was given before it copies
        self.sums.assign(tf.zeros_like(self.sums))
        return values

    def state(self) -> dict[str, np.ndarray]:
        arrays = {name: to_canonical(v.numpy()) for name, v in self.named.items()}
        for name, velocity in self.velocity.items():
            arrays[f"velocity/{name}"] = to_canonical(velocity.numpy())
        return arrays

    def loss_scale_state(self) -> dict[str, float]:
        return self.scaler.state() if self.scaler else {}

    def load(self, arrays: dict[str, np.ndarray], scaling: dict[str, float] | None = None) -> None:
        load_arrays(self.named, arrays)
        held = {f"velocity/{name}": velocity for name, velocity in self.velocity.items()}
        load_arrays({name: v for name, v in held.items() if name in arrays}, arrays)
        if self.scaler and scaling:
            self.scaler.load(scaling)

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

    def trace(self, file: Path, steps: int) -> AbstractContextManager[Any]:
        raise NotImplementedError  # refused at the start


def as_tensor(values: Any) -> Any:
    """A batch's images or labels as a tensor: from an array, or PyTorch's tensor in host memory."""
    return values if tf.is_tensor(values) else tf.convert_to_tensor(np.asarray(values))


def configure(threads: int, local_rank: int) -> str:
    """Set what TensorFlow keeps globally, before its first operation; returns "cpu" or "gpu".

    Compute threads; on GPUs the one that belongs to this rank, and memory as it is needed. Raises
    UserError where TensorFlow has begun with other settings.
    """
    gpus = tf.config.list_physical_devices("GPU")
    try:
        if tf.config.threading.get_intra_op_parallelism_threads() != threads:
            tf.config.threading.set_intra_op_parallelism_threads(threads)
            # the gradients of a convolution's input and of its weights are made side by side
            tf.config.threading.set_inter_op_parallelism_threads(min(threads, 2))
        if gpus:
            mine = gpus[own_gpu(local_rank, len(gpus))]
            if tf.config.get_visible_devices("GPU") != [mine]:
                tf.config.set_visible_devices([mine], "GPU")
            tf.config.experimental.set_memory_growth(mine, True)
    except RuntimeError as error:
        raise UserError(
            f"--threads {threads}: TensorFlow has already begun in this process, with other"
            " settings: start the run in a process of its own"
        ) from error
    return "gpu" if gpus else "cpu"
