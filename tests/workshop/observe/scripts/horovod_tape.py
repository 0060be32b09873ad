"""A training script for several GPUs, TensorFlow 2 with its own loop and Horovod."""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

hvd.init()
images = np.random.RandomState(1).normal(size=(256, 20)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((images, np.arange(256) % 5))
data = data.shard(hvd.size(), hvd.rank()).shuffle(256).batch(8)
model = tf.keras.Sequential([tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(5)])
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.SGD(0.01 * hvd.size())
checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)


@tf.function
def train_step(images, labels, first):
    with tf.GradientTape() as tape:
        value = loss(labels, model(images, training=True))
    tape = hvd.DistributedGradientTape(tape)
    gradients = tape.gradient(value, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    if first:
        hvd.broadcast_variables(model.variables, root_rank=0)
    return value


for number, (images, labels) in enumerate(data):
    train_step(images, labels, number == 0)
if hvd.rank() == 0:
    checkpoint.save("checkpoints/model")
