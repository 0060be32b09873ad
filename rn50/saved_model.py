"""An exported network as a TensorFlow SavedModel: plain operations, no Keras needed to load it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import tensorflow as tf

from rn50lib.recipe import MEAN, STD
from rn50lib.resnet import Conv, Network

Weights = tuple[np.ndarray, np.ndarray]  # a layer's weight and its bias


class Served(tf.Module):
    """uint8 images (N, size, size, 3) to float32 logits (N, classes)."""

    def __init__(self, net: Network, convs: Mapping[str, Weights], fc: Weights) -> None:
        super().__init__()
        self.net = net
        self.convs = {
            name: (tf.Variable(weight.transpose(2, 3, 1, 0)), tf.Variable(bias))
            for name, (weight, bias) in convs.items()
        }
        self.fc = (tf.Variable(np.ascontiguousarray(fc[0].T)), tf.Variable(fc[1]))

    def convolve(self, conv: Conv, x_NHWC: tf.Tensor) -> tf.Tensor:
        kernel, bias = self.convs[conv.name]
        beside = [conv.padding, conv.padding]  # "SAME" would with a stride pad two sides only
        padding = [[0, 0], beside, beside, [0, 0]]
        return tf.nn.conv2d(x_NHWC, kernel, conv.stride, padding) + bias

    def logits(self, images: tf.Tensor) -> tf.Tensor:
        x = (tf.cast(images, tf.float32) - tf.constant(MEAN)) / tf.constant(STD)
        x = tf.nn.relu(self.convolve(self.net.stem, x))
        # zeros are as good as minus infinity here: nothing is negative after a ReLU
        x = tf.nn.max_pool2d(tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]]), 3, 2, "VALID")
        for block in self.net.blocks():
            inner = x
            for conv in block.convs[:-1]:
                inner = tf.nn.relu(self.convolve(conv, inner))
            shortcut = self.convolve(block.downsample, x) if block.downsample else x
            x = tf.nn.relu(self.convolve(block.convs[-1], inner) + shortcut)
        weight, bias = self.fc
        return tf.reduce_mean(x, axis=[1, 2]) @ weight + bias


def save(net: Network, convs: Mapping[str, Weights], fc: Weights, size: int, folder: Path) -> None:
    """Write the SavedModel with the signature `serving_default`: images -> logits.

    `convs` holds each convolution's weight (OIHW) and bias by its name, batch norm folded in; `fc`
    the last layer's (out, in) and bias; `size` is the side of an image in pixels.
    """
    served = Served(net, convs, fc)
    images = tf.TensorSpec((None, size, size, 3), tf.uint8, name="images")
    signature = tf.function(lambda images: {"logits": served.logits(images)}, [images])
    tf.saved_model.save(served, str(folder), signatures=signature.get_concrete_function())
