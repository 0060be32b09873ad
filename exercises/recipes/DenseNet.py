"""The network of model.py in TensorFlow 1; the slides import it as `dn`, but do not show it.

`DenseNet(x, nb_blocks, filters, training).model` is the logits (N, 2). If the boolean tensor
`training` is true, batch normalisation uses the batch's statistics and updates the running ones.
"""

import tensorflow.compat.v1 as tf

LAYERS = 4  # in each dense block
CLASSES = 2


def convolve(x, filters, kernel, strides=1):
    with tf.variable_scope(None, default_name="convolution"):
        weights = tf.get_variable("weights", [kernel, kernel, x.shape[-1], filters])
    return tf.nn.conv2d(x, weights, strides, "SAME")


def normalise(x, training, momentum=0.99):
    """Apply batch normalisation and ReLU."""
    shape = [x.shape[-1]]
    with tf.variable_scope(None, default_name="normalisation"):
        gamma = tf.get_variable("gamma", shape, initializer=tf.ones_initializer())
        beta = tf.get_variable("beta", shape, initializer=tf.zeros_initializer())
        running = [
            tf.get_variable("mean", shape, initializer=tf.zeros_initializer(), trainable=False),
            tf.get_variable("variance", shape, initializer=tf.ones_initializer(), trainable=False),
        ]

    def of_the_batch():
        batch = tf.nn.moments(x, [0, 1, 2])
        moves = [
            r.assign_sub((1 - momentum) * (r - b)) for r, b in zip(running, batch, strict=True)
        ]
        with tf.control_dependencies(moves):
            return [tf.identity(b) for b in batch]

    mean, variance = tf.cond(training, of_the_batch, lambda: [tf.identity(r) for r in running])
    return tf.nn.relu(tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-3))


class DenseNet:
    def __init__(self, x, nb_blocks, filters, training):
        x = normalise(convolve(x, 2 * filters, 7, strides=2), training)
        x = tf.nn.max_pool2d(x, 3, 2, "SAME")
        for _ in range(nb_blocks):
            for _ in range(LAYERS):
                narrow = convolve(normalise(x, training), 4 * filters, 1)
                new = convolve(normalise(narrow, training), filters, 3)
                x = tf.concat([x, new], axis=3)
            x = convolve(normalise(x, training), int(x.shape[-1]) // 2, 1)
            x = tf.nn.avg_pool2d(x, 2, 2, "VALID")
        x = tf.reduce_mean(normalise(x, training), axis=[1, 2])
        weights = tf.get_variable("classes/weights", [x.shape[-1], CLASSES])
        bias = tf.get_variable("classes/bias", [CLASSES], initializer=tf.zeros_initializer())
        self.model = tf.matmul(x, weights) + bias
