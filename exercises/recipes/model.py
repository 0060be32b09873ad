"""The slides' network: a small DenseNet (Huang et al. 2017, https://arxiv.org/abs/1608.06993).

The slides give a growth rate of 12, two dense blocks with a transition after each, and 2 classes.
The rest follows the paper: a stem of 2 x growth filters with pooling, bottleneck
layers, and transitions that halve the channels. The number of layers in a block (4) is ours.
"""

from __future__ import annotations

import tensorflow as tf

GROWTH = 12
BLOCKS = 2
LAYERS = 4  # in each dense block


def densenet(classes: int = 2) -> tf.keras.Model:
    """Return a model from images (N, height, width, 3), float32, to logits (N, classes)."""
    layers = tf.keras.layers

    def convolve(x, filters, kernel, strides=1):
        return layers.Conv2D(filters, kernel, strides, padding="same", use_bias=False)(x)

    def normalise(x):
        return layers.ReLU()(layers.BatchNormalization()(x))

    images = layers.Input((None, None, 3))
    x = normalise(convolve(images, 2 * GROWTH, 7, strides=2))
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    for _ in range(BLOCKS):
        for _ in range(LAYERS):
            narrow = convolve(normalise(x), 4 * GROWTH, 1)  # the bottleneck
            new = convolve(normalise(narrow), GROWTH, 3)
            x = layers.Concatenate()([x, new])  # each layer sees all earlier ones
        x = convolve(normalise(x), x.shape[-1] // 2, 1)  # the transition
        x = layers.AveragePooling2D(2)(x)
    x = layers.GlobalAveragePooling2D()(normalise(x))
    return tf.keras.Model(images, layers.Dense(classes)(x))
