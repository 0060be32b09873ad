"""tf.distribute: a strategy owns the variables; TF_CONFIG names the processes.

    for i in 0 1; do
      TF_CONFIG='{"cluster": {"worker": ["localhost:5001", "localhost:5002"]},
                  "task": {"type": "worker", "index": '$i'}}' \\
        TF_USE_LEGACY_KERAS=1 no_proxy=localhost \\
        python exercises/migration/3_tf_distribute.py weights.npz &
    done; wait

Keras 3 does not train with this strategy (keras-team/keras#20585); its predecessor, tf-keras, does.
"""

import common
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()  # before any other TensorFlow call
rank, size = strategy.cluster_resolver.task_id, strategy.num_replicas_in_sync
with strategy.scope():  # the variables of all processes take the first one's values
    weights = {n: tf.Variable(w) for n, w in common.first_weights(rank).items()}
    optimizer = tf.keras.optimizers.SGD(common.LR, common.MOMENTUM)


def train_step(images, labels):
    with tf.GradientTape() as tape:
        x = tf.nn.conv2d(images, weights["kernel"], strides=2, padding="VALID") + weights["bias"]
        x = tf.reduce_mean(tf.nn.relu(x), axis=[1, 2])
        logits = x @ weights["matrix"] + weights["offset"]
        loss = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
        loss = tf.nn.compute_average_loss(
            loss, global_batch_size=common.BATCH
        )  # gradients are summed
    gradients = tape.gradient(loss, list(weights.values()))
    optimizer.apply_gradients(zip(gradients, weights.values(), strict=True))


@tf.function
def distributed(batch):
    strategy.run(train_step, batch)


def batches(context):
    mine = [common.batch(step, rank, size) for step in range(common.STEPS)]
    return tf.data.Dataset.from_generator(
        lambda: mine,
        output_signature=(tf.TensorSpec([None, 16, 16, 3]), tf.TensorSpec([None], tf.int64)),
    )


for batch in strategy.distribute_datasets_from_function(batches):
    distributed(batch)

if rank == 0:
    common.save(**{name: weight.numpy() for name, weight in weights.items()})
