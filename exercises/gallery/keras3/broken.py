import os

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

hvd.init()
tf.keras.utils.set_random_seed(0)
data = np.random.default_rng(hvd.rank()).normal(size=(64, 5)).astype("float32")
model = tf.keras.Sequential([tf.keras.Input((4,)), tf.keras.layers.Dense(1)])
optimizer = tf.keras.optimizers.SGD(0.01 * hvd.size())
model.compile(hvd.DistributedOptimizer(optimizer), "mse")
model.fit(data[:, :4], data[:, 4], batch_size=8, verbose=0)
weights = hvd.allgather(model.weights[0][:1])
if hvd.rank() == 0:
    print(f"weights of the ranks: {weights[0][0]:.4f} {weights[1][0]:.4f}")
