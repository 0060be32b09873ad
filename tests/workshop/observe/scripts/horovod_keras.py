"""A training script for several GPUs, tf.keras with Horovod's optimizer and its callbacks."""

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
images = np.random.RandomState(1).normal(size=(256, 20)).astype("float32")
data = tf.data.Dataset.from_tensor_slices((images, np.arange(256) % 5))
data = data.shard(hvd.size(), hvd.rank()).shuffle(256).batch(8)
model = tf.keras.Sequential([tf.keras.layers.Dense(16, "relu"), tf.keras.layers.Dense(5)])
rate = 0.01 * hvd.size()
optimizer = tf.keras.optimizers.legacy.SGD(rate, momentum=0.9)
optimizer = hvd.DistributedOptimizer(optimizer)
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss)
callbacks = [
    hvd.callbacks.BroadcastGlobalVariablesCallback(0),
    hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=2),
]
if hvd.rank() == 0:
    callbacks.append(tf.keras.callbacks.ModelCheckpoint("model.h5"))
model.fit(data, epochs=2, callbacks=callbacks, verbose=0)
