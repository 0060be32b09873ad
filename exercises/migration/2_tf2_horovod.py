"""TensorFlow 2 with Horovod: a function and a tape replace the graph and the session.

horovodrun -np 2 --gloo python exercises/migration/2_tf2_horovod.py weights.npz
"""

import common
import horovod.tensorflow as hvd
import tensorflow as tf

hvd.init()
weights = {n: tf.Variable(w) for n, w in common.first_weights(hvd.rank()).items()}
optimizer = tf.keras.optimizers.SGD(common.LR, common.MOMENTUM)


@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        x = tf.nn.conv2d(images, weights["kernel"], strides=2, padding="VALID") + weights["bias"]
        x = tf.reduce_mean(tf.nn.relu(x), axis=[1, 2])
        logits = x @ weights["matrix"] + weights["offset"]
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.reduce_mean(loss)
    gradients = tape.gradient(loss, list(weights.values()))
    gradients = hvd.grouped_allreduce(gradients, op=hvd.Average)
    optimizer.apply_gradients(zip(gradients, weights.values(), strict=True))


hvd.broadcast_variables(list(weights.values()), root_rank=0)
for step in range(common.STEPS):
    train_step(*common.batch(step, hvd.rank(), hvd.size()))

if hvd.rank() == 0:
    common.save(**{name: weight.numpy() for name, weight in weights.items()})
