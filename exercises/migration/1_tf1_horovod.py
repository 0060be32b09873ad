"""2018: TensorFlow 1 sessions with Horovod, as in the talk.

horovodrun -np 2 --gloo python exercises/migration/1_tf1_horovod.py weights.npz
"""

import common
import horovod.tensorflow as hvd
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
hvd.init()
images, labels = tf.placeholder(tf.float32, [None, 16, 16, 3]), tf.placeholder(tf.int64, [None])
weights = {n: tf.Variable(w, name=n) for n, w in common.first_weights(hvd.rank()).items()}
x = tf.nn.conv2d(images, weights["kernel"], strides=2, padding="VALID") + weights["bias"]
x = tf.reduce_mean(tf.nn.relu(x), axis=[1, 2])
logits = x @ weights["matrix"] + weights["offset"]
loss = tf.losses.sparse_softmax_cross_entropy(labels, logits)

optimizer = tf.train.MomentumOptimizer(common.LR, common.MOMENTUM)
optimizer = hvd.DistributedOptimizer(optimizer)  # averages the gradients
train = optimizer.minimize(loss, global_step=tf.train.get_or_create_global_step())

with tf.train.MonitoredTrainingSession(hooks=[hvd.BroadcastGlobalVariablesHook(0)]) as session:
    for step in range(common.STEPS):
        mine = common.batch(step, hvd.rank(), hvd.size())
        session.run(train, dict(zip((images, labels), mine, strict=True)))
    trained = session.run(weights)

if hvd.rank() == 0:
    common.save(**trained)
