"""The update in TensorFlow, as part of the step's graph: SGD, TF32 and the loss scale.

Weights, batch-norm statistics, the last layer and the loss are always float32; `model` has the
Keras policies.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from rn50lib import hooks, optim
from rn50lib.config import TrainConfig
from rn50lib.errors import UserError
from rn50lib.optim import weight_decays
from rn50lib.tf import PythonCalls


def set_precision(device: str, dtype: str) -> None:
    """Allow TF32, TensorFlow's default, for --dtype tf32 only.

    Raises UserError if `dtype` needs a GPU that TensorFlow does not reach.
    """
    if dtype == "tf32" and device != "gpu":
        raise UserError("--dtype tf32: TensorFlow reaches no GPU here", ("doctor",))
    tf.config.experimental.enable_tensor_float_32_execution(dtype == "tf32")


class LossScaler:
    """The loss scale and its rule, in the step's graph; a learner's own rule is called from it."""

    def __init__(self, text: str) -> None:
        start, self.growth_steps = optim.parse_loss_scale(text)
        self.scale = tf.Variable(start, trainable=False)
        self.good_steps = tf.Variable(0, trainable=False)
        self.skipped = tf.Variable(0, trainable=False)
        self.rule: Callable[..., Any] = hooks.get("loss_scale_update")
        self.python = PythonCalls()

    def unscale(self, gradients: Sequence[Any]) -> tuple[list[Any], Any]:
        """Return the synchronised gradients without the scale, and whether all are finite.

        If one is not, all become zeros.
        """
        norms = tf.stack([tf.nn.l2_loss(gradient) for gradient in gradients])
        finite = tf.reduce_all(tf.math.is_finite(norms))
        factor = 1 / self.scale
        kept = [tf.where(finite, g * factor, tf.zeros_like(g)) for g in gradients]
        return kept, finite

    def advance(self, finite: Any) -> None:
        """Set the scale of the next step: `optim.loss_scale_update`, for tensors."""
        self.skipped.assign_add(tf.cast(~finite, tf.int32))
        if self.growth_steps is None:
            return
        if self.rule is not optim.loss_scale_update:
            inputs = [self.scale, self.good_steps, finite]
            scale, good_steps = self.python(self.ask, inputs, [tf.float32, tf.int32])
            self.scale.assign(tf.ensure_shape(scale, ()))
            self.good_steps.assign(tf.ensure_shape(good_steps, ()))
            return
        good_steps = tf.where(finite, self.good_steps + 1, 0)
        grown = good_steps >= self.growth_steps
        factor = tf.where(finite, tf.where(grown, optim.GROWTH, 1.0), optim.BACKOFF)
        scale = self.scale * factor
        self.scale.assign(tf.clip_by_value(scale, optim.SMALLEST_SCALE, optim.LARGEST_SCALE))
        self.good_steps.assign(tf.where(grown, 0, good_steps))

    def ask(self, scale: Any, good_steps: Any, finite: Any) -> tuple[Any, Any]:
        """Call the learner's rule; the graph does this at every step."""
        new_scale, new_steps = self.rule(
            float(scale), int(good_steps), bool(finite), self.growth_steps
        )
        return tf.float32.as_numpy_dtype(new_scale), tf.int32.as_numpy_dtype(new_steps)

    def state(self) -> dict[str, float]:
        """Return the state that a checkpoint holds."""
        return {
            "scale": float(self.scale.numpy()),
            "good_steps": int(self.good_steps.numpy()),
            "skipped": int(self.skipped.numpy()),
        }

    def load(self, state: dict[str, float]) -> None:
        """Continue from `state()`; a static scale stays the configured one."""
        self.skipped.assign(int(state["skipped"]))
        if self.growth_steps is not None:
            self.scale.assign(state["scale"])
            self.good_steps.assign(int(state["good_steps"]))


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

    def __call__(self, gradients: list[Any], lr: Any, finite: Any = None) -> None:
        """Update the weights by gradients in the order of `names`, unless they are not `finite`."""

        def unless_skipped(value: Any, skipped: float) -> Any:
            # not a branch, which would wait for the device
            return value if finite is None else tf.where(finite, value, skipped)

        momentum = unless_skipped(self.momentum, 1.0)
        lr = unless_skipped(lr, 0.0)
        for (name, weight), gradient in zip(self.weights.items(), gradients, strict=True):
            if self.decay[name]:
                gradient += unless_skipped(self.decay[name], 0.0) * weight
            # velocity = momentum * velocity + gradient; weight -= lr * velocity, in one kernel
            tf.raw_ops.ResourceApplyMomentum(
                var=weight.handle,
                accum=self.velocity[name].handle,
                lr=lr,
                grad=gradient,
                momentum=momentum,
            )
