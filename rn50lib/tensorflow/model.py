"""The ResNet of `rn50lib.resnet` as a Keras model in NHWC, and its arrays by canonical name."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from rn50lib.errors import UserError
from rn50lib.recipe import BN_EPS, BN_MOMENTUM
from rn50lib.resnet import Block, Conv, Network

POLICIES = {
    "float32": "float32",
    "tf32": "float32",  # the tensors are float32: only the multipliers round
    "bfloat16": "mixed_bfloat16",
}
NHWC = "channels_last"  # passed to every layer: a user's keras.json may set another default


class BatchNorm(tf.keras.layers.Layer):
    """Batch normalisation by TensorFlow's fused kernel, in float32.

    Its running variance is unbiased (divided by n - 1) as in PyTorch; Keras 3's is biased.
    """

    def __init__(self, name: str, channels: int) -> None:
        super().__init__(name=name, dtype="float32", autocast=False)
        for part, value in INITIAL.items():
            trained = not part.startswith("running_")
            added = self.add_weight(
                name=part, shape=(channels,), initializer=value, trainable=trained
            )
            setattr(self, part, added)

    def call(self, x_NHWC: Any, training: bool = False) -> Any:
        """Normalise the images; in training, update the running statistics."""
        mean, variance = self.running_mean, self.running_var
        y_NHWC, batch_mean, batch_variance, *_ = tf.raw_ops.FusedBatchNormV3(
            x=x_NHWC,
            scale=tf.convert_to_tensor(self.gamma),
            offset=tf.convert_to_tensor(self.beta),
            mean=[] if training else tf.convert_to_tensor(mean),
            variance=[] if training else tf.convert_to_tensor(variance),
            epsilon=BN_EPS,
            data_format="NHWC",
            is_training=training,
        )
        if training:
            for running, batch in ((mean, batch_mean), (variance, batch_variance)):
                running.assign(BN_MOMENTUM * running + (1 - BN_MOMENTUM) * batch)
        return y_NHWC


INITIAL = {"gamma": "ones", "beta": "zeros", "running_mean": "zeros", "running_var": "ones"}


def convolution(conv: Conv, x_NHWC: Any, policy: str) -> Any:
    """Apply a convolution with symmetric padding; with a stride, "same" would pad two sides."""
    same = conv.stride == 1
    if conv.padding and not same:
        x_NHWC = tf.keras.layers.ZeroPadding2D(
            conv.padding, data_format=NHWC, dtype=policy, name=f"{conv.name}.pad"
        )(x_NHWC)
    return tf.keras.layers.Conv2D(
        conv.out_channels,
        conv.kernel,
        conv.stride,
        padding="same" if same else "valid",
        data_format=NHWC,
        use_bias=False,
        kernel_initializer="zeros",  # the network's own initial arrays are loaded
        dtype=policy,
        name=conv.name,
    )(x_NHWC)


def norm(conv: Conv, x_NHWC: Any) -> Any:
    return BatchNorm(conv.norm, conv.out_channels)(x_NHWC)


def relu(x_NHWC: Any, policy: str, name: str) -> Any:
    return tf.keras.layers.ReLU(dtype=policy, name=f"{name}.relu")(x_NHWC)


def residual(block: Block, x_NHWC: Any, policy: str) -> Any:
    """Apply a residual block: convolutions, each with batch norm, and the shortcut."""
    y_NHWC, shortcut = x_NHWC, x_NHWC
    for conv in block.convs:
        y_NHWC = norm(conv, convolution(conv, y_NHWC, policy))
        if conv is not block.convs[-1]:
            y_NHWC = relu(y_NHWC, policy, conv.norm)
    if block.downsample:
        shortcut = norm(block.downsample, convolution(block.downsample, x_NHWC, policy))
    added = tf.keras.layers.Add(dtype=policy, name=f"{block.name}.add")([y_NHWC, shortcut])
    return relu(added, policy, block.name)


def build_model(net: Network, dtype: str) -> Any:
    """Return a model with float32 weights and logits whose other layers compute in `dtype`."""
    keras, policy = tf.keras, POLICIES[dtype]
    if keras.backend.backend() != "tensorflow":
        raise UserError(
            f"--backend tensorflow: Keras is set to {keras.backend.backend()} here: unset"
            " KERAS_BACKEND, or set it to tensorflow"
        )
    images_NHWC = keras.Input((None, None, net.stem.in_channels), name="images")
    x_NHWC = norm(net.stem, convolution(net.stem, images_NHWC, policy))
    x_NHWC = relu(x_NHWC, policy, net.stem.norm)
    # padding with zeros is right: nothing is negative after a ReLU
    x_NHWC = keras.layers.ZeroPadding2D(1, data_format=NHWC, dtype=policy, name="maxpool.pad")(
        x_NHWC
    )
    x_NHWC = keras.layers.MaxPooling2D(3, 2, data_format=NHWC, dtype=policy, name="maxpool")(x_NHWC)
    for block in net.blocks():
        x_NHWC = residual(block, x_NHWC, policy)
    # The last layer stays in float32: rounding costs most in its logits.
    pooled_NC = keras.layers.GlobalAveragePooling2D(
        data_format=NHWC, dtype="float32", name="avgpool"
    )(x_NHWC)
    logits = keras.layers.Dense(
        net.num_classes, kernel_initializer="zeros", dtype="float32", name="fc"
    )(pooled_NC)
    return keras.Model(images_NHWC, logits, name=net.name)


def tensors(model: Any, net: Network) -> dict[str, Any]:
    """Return the model's variables, in Keras' shapes, by canonical name and in order."""
    named: dict[str, Any] = {}
    for conv in net.convolutions():
        named[f"{conv.name}.weight"] = model.get_layer(conv.name).kernel
        for part in INITIAL:
            named[f"{conv.norm}.{part}"] = getattr(model.get_layer(conv.norm), part)
    named["fc.weight"], named["fc.bias"] = model.get_layer("fc").kernel, model.get_layer("fc").bias
    return {name: plain(variable) for name, variable in named.items()}


def plain(variable: Any) -> tf.Variable:
    """Return the TensorFlow variable of a Keras one: Keras 3 wraps it."""
    return variable if isinstance(variable, tf.Variable) else variable.value


def to_canonical(array: np.ndarray) -> np.ndarray:
    """Return a copy in a checkpoint's layout: convolutions HWIO -> OIHW, last layer (out, in)."""
    order = {4: (3, 2, 0, 1), 2: (1, 0)}.get(array.ndim)
    return np.array(array.transpose(order) if order else array, np.float32, order="C")


def from_canonical(array: np.ndarray) -> np.ndarray:
    order = {4: (2, 3, 1, 0), 2: (1, 0)}.get(array.ndim)
    return np.ascontiguousarray(array.transpose(order) if order else array, np.float32)


def load_arrays(named: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    """Copy arrays, by canonical name, into variables. Raise KeyError for a missing one."""
    for name, variable in named.items():
        variable.assign(from_canonical(arrays[name]))
