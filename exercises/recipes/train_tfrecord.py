"""Both recipes in today's TensorFlow: Horovod, and tf.data on TFRecord in the talk's schema.

    python -m horovod.runner.launch -np 2 --gloo \\
        python exercises/recipes/train_tfrecord.py --data data/two-signs/tfrecord

"Change 1" to "Change 5" mark what recipe 1 adds to a script for one process.
"""

import argparse
import hashlib
import time
from pathlib import Path

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from model import densenet

parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
add = parser.add_argument
add("--data", type=Path, default="data/two-signs/tfrecord", help="folder with shards")
add("--batch-size", type=int, default=16, help="images per process and step (16)")
add("--epochs", type=int, default=10, help="passes over the images (10)")
add("--lr", type=float, default=0.001, help="learning rate of RMSProp for one process (0.001)")
add("--warmup-epochs", type=float, default=1, help="epochs of learning-rate warm-up (1)")
add("--seed", type=int, default=0, help="seed of the weights and of the order (0)")
add("--save", type=Path, help="write the weights to this file at the end: NAME.weights.h5")


augment = tf.keras.Sequential(  # as in the talk, but signs are not flipped top to bottom
    [tf.keras.layers.RandomFlip("horizontal"), tf.keras.layers.RandomRotation(10 / 360, "constant")]
)


def prepare(record):
    """Return the augmented image of a record, float32 from 0 to 1, and its label."""
    kinds = {"height": tf.int64, "img_raw": tf.string, "label": tf.float32}
    features = {name: tf.io.FixedLenFeature([], kind) for name, kind in kinds.items()}
    example = tf.io.parse_single_example(record, features)
    pixels = tf.io.decode_raw(example["img_raw"], tf.uint8)
    image = tf.cast(tf.reshape(pixels, [example["height"], -1, 3]), tf.float32) / 255
    return augment(image, training=True), tf.cast(example["label"], tf.int32)


def read(shards, rank, size, batch_size, seed):
    """Return the batches of a rank as a dataset: images and labels, in a new order on each pass."""
    files = tf.data.Dataset.from_tensor_slices(shards).shard(size, rank)  # Change 2
    records = files.interleave(tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=4)
    images = records.shuffle(1000, seed + rank).map(prepare, tf.data.AUTOTUNE)
    return images.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


def checksum(model):
    """Return a short hash of all weights: equal models have equal hashes."""
    weights = b"".join(np.ascontiguousarray(w).tobytes() for w in model.get_weights())
    return hashlib.sha256(weights).hexdigest()[:12]


def main():
    hvd.init()  # Change 1: start Horovod, and use one GPU for each process of this machine
    flags = parser.parse_args()
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")
    shards = sorted(map(str, flags.data.glob("train-*-of-*")))
    index = sorted((flags.data / "index").glob("train-*.idx"))
    if len(shards) < hvd.size() or len(index) < len(shards):
        parser.error(f"--data {flags.data}: {len(shards)} shards with index for {hvd.size()} ranks")
    counts = [len(path.read_text().splitlines()) for path in index]
    share = min(sum(counts[rank :: hvd.size()]) for rank in range(hvd.size()))
    steps_per_epoch = share // flags.batch_size
    if not steps_per_epoch:
        parser.error(f"--batch-size {flags.batch_size}: a process has only {share} images")

    tf.keras.utils.set_random_seed(flags.seed + hvd.rank())
    model = densenet()
    optimizer = tf.keras.optimizers.RMSprop(flags.lr)
    optimizer.build(model.trainable_variables)
    loss_function = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        gradients = hvd.grouped_allreduce(gradients, op=hvd.Average)  # Change 4
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for variable in [*model.variables, *optimizer.variables]:  # Change 5: rank 0's values for all
        variable.assign(hvd.broadcast(tf.convert_to_tensor(variable), root_rank=0))

    batches = read(shards, hvd.rank(), hvd.size(), flags.batch_size, flags.seed)
    batches = batches.take(steps_per_epoch)
    begin, step = time.perf_counter(), 0
    for epoch in range(flags.epochs):
        for images, labels in batches:
            step += 1
            risen = min(1, step / (flags.warmup_epochs * steps_per_epoch + 1))
            optimizer.learning_rate.assign(flags.lr * (1 + (hvd.size() - 1) * risen))  # Change 3
            loss = train_step(images, labels)
        for variable in model.non_trainable_variables:  # statistics of batch normalisation
            variable.assign(hvd.allreduce(tf.convert_to_tensor(variable), op=hvd.Average))
        if hvd.rank() == 0:
            print(f"epoch {epoch + 1} of {flags.epochs}: loss {loss:.4f}", flush=True)

    seconds = time.perf_counter() - begin
    images_per_s = hvd.size() * step * flags.batch_size / seconds
    if hvd.rank() == 0:  # Change 5: only rank 0 reports and saves
        if flags.save:
            model.save_weights(flags.save)
        print(f"{step} steps on {hvd.size()} rank(s), {images_per_s:.1f} images/s")
    print(f"rank {hvd.rank()}: weights {checksum(model)}")


if __name__ == "__main__":
    main()
