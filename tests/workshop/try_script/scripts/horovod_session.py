"""A training script for several GPUs, a graph of TensorFlow 1 with Horovod's hook."""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
hvd.init()
everything = np.random.RandomState(1).normal(size=(256, 20)).astype("float32")
images = tf.placeholder(tf.float32, [None, 20])
labels = tf.placeholder(tf.int64, [None])
hidden = tf.nn.relu(images @ tf.get_variable("w", [20, 16]) + tf.get_variable("b", [16]))
logits = hidden @ tf.get_variable("v", [16, 5])
loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)
optimizer = tf.train.MomentumOptimizer(0.01 * hvd.size(), 0.9)
optimizer = hvd.DistributedOptimizer(optimizer)
step = tf.train.get_or_create_global_step()
train = optimizer.minimize(loss, global_step=step)
hooks = [hvd.BroadcastGlobalVariablesHook(0), tf.train.StopAtStepHook(8)]
folder = "checkpoints" if hvd.rank() == 0 else None
with tf.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks) as session:
    number = hvd.rank()
    while not session.should_stop():
        rows = np.arange(number * 8, number * 8 + 8)
        number += hvd.size()
        session.run(train, {images: everything[rows], labels: rows % 5})
