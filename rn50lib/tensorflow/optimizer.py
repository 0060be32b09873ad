"""The optimizers in TensorFlow, as parts of the step's graph: SGD with momentum, and LARS."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from rn50lib.config import TrainConfig
from rn50lib.optim import TRUST, weight_decays


class Optimizer:
    """SGD or LARS over the parameters `names`, each with its velocity."""

    def __init__(self, config: TrainConfig, named: Mapping[str, Any], names: list[str]) -> None:
        self.weights = {name: named[name] for name in names}
        self.velocity = {
            name: tf.Variable(tf.zeros_like(named[name]), trainable=False, name=name)
            for name in names
        }
        self.decay = weight_decays(config, names)
        self.momentum, self.lars = config.mom, config.optimizer == "lars"

    def __call__(self, gradients: list[Any], lr: Any, finite: Any = None) -> None:
        """Update the weights by gradients in the order of `names`, unless they are not `finite`."""

        def unless_skipped(value: Any, skipped: float) -> Any:
            # not a branch, which would wait for the device
            return value if finite is None else tf.where(finite, value, skipped)

        momentum = unless_skipped(self.momentum, 1.0)
        if self.lars:
            gradients = self.steps(gradients, lr)
            lr = tf.constant(1.0)
        lr = unless_skipped(lr, 0.0)
        for (name, weight), gradient in zip(self.weights.items(), gradients, strict=True):
            if self.lars:
                gradient = unless_skipped(gradient, 0.0)
            elif self.decay[name]:
                gradient += unless_skipped(self.decay[name], 0.0) * weight
            # velocity = momentum * velocity + gradient; weight -= lr * velocity, in one kernel
            tf.raw_ops.ResourceApplyMomentum(
                var=weight.handle,
                accum=self.velocity[name].handle,
                lr=lr,
                grad=gradient,
                momentum=momentum,
            )

    def steps(self, gradients: list[Any], lr: Any) -> list[Any]:
        """Return what LARS adds to the velocities: each gradient times its layer's rate."""
        found = []
        for (name, weight), gradient in zip(self.weights.items(), gradients, strict=True):
            rate, decay = lr, self.decay[name]
            if len(weight.shape) > 1:
                length, slope = tf.norm(weight), tf.norm(gradient)
                trust = TRUST * length / (slope + decay * length)
                rate = lr * tf.where((length > 0) & (slope > 0), trust, 1.0)
            found.append(rate * (gradient + decay * weight if decay else gradient))
        return found
