"""Recipe 2: TensorFlow itself reads the pictures, from TFRecord, and Keras trains with `fit`.

    python -m data_prep.tfrecord data/two-signs --schema slides --size 223
    TF_USE_LEGACY_KERAS=1 python -m horovod.runner.launch -np 2 --gloo \\
        python exercises/recipes/train_tfrecord.py --data data/two-signs/tfrecord

The loop of recipe 1 that fed pictures is gone: its work is done by `fit`, by Horovod's optimizer
and callbacks, and by TensorFlow's own threads, which read ahead while the GPU computes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import sys
from importlib.metadata import version
from pathlib import Path

if int(version("keras").split(".")[0]) >= 3 and os.environ.get("TF_USE_LEGACY_KERAS") != "1":
    sys.exit(
        "train_tfrecord.py: set TF_USE_LEGACY_KERAS=1 (and install tf-keras): under Keras 3, "
        "Horovod's DistributedOptimizer does not average the gradients, and does not say so"
    )

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf
from model import densenet

DEGREES = 10  # the slides turn each picture by up to this much to either side


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path("data/two-signs/tfrecord"), help="folder with shards")
    add("--batch-size", type=int, default=16, help="pictures of a step, on each rank (16)")
    add("--epochs", type=int, default=10, help="times through the pictures (10)")
    add("--lr", type=float, default=0.001, help="learning rate of RMSProp for one process (0.001)")
    add("--warmup-epochs", type=int, default=1, help="epochs until the rate is full (1)")
    add("--checkpoints", type=Path, help="save here after each epoch, and go on from what is here")
    add("--seed", type=int, default=0, help="of the first weights, the order and the flips (0)")
    flags = parser.parse_args()
    flags.shards = sorted(map(str, flags.data.glob("train-*-of-*")))
    if len(flags.shards) < hvd.size():
        parser.error(
            f"--data {flags.data}: {len(flags.shards)} shards for {hvd.size()} ranks; "
            "`python -m data_prep.tfrecord ROOT --schema slides --size 223` writes them "
            "(--train-shards N: how many)"
        )
    flags.counts = [count_records(shard) for shard in flags.shards]
    return flags


def count_records(shard: str) -> int:
    """How many examples a shard holds, from the index that data_prep.tfrecord wrote beside it."""
    index = Path(shard).parent / "index" / f"{Path(shard).name}.idx"
    if not index.exists():
        sys.exit(f"{index}: missing; `python -m data_prep.tfrecord --index FOLDER` writes it")
    return len(index.read_text().splitlines())


def parse(record: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """A record of the slides' schema → picture (height, width, 3), uint8, and label, int32."""
    example = tf.io.parse_single_example(
        record,
        {
            "height": tf.io.FixedLenFeature([], tf.int64),
            "width": tf.io.FixedLenFeature([], tf.int64),
            "img_raw": tf.io.FixedLenFeature([], tf.string),
            "label": tf.io.FixedLenFeature([], tf.float32),
        },
    )
    pixels = tf.io.decode_raw(example["img_raw"], tf.uint8)
    image = tf.reshape(pixels, [example["height"], example["width"], 3])
    return image, tf.cast(example["label"], tf.int32)


def rotate(image: tf.Tensor, angle: tf.Tensor) -> tf.Tensor:
    """Turn a picture (height, width, 3), float32, counter-clockwise about its middle.

    The angle is in radians; what comes in at the corners is black.
    """
    shape = tf.shape(image)
    x, y = tf.unstack(tf.cast(shape[1::-1] - 1, tf.float32) / 2)  # the middle
    cos, sin = tf.cos(angle), tf.sin(angle)
    # where a pixel of the new picture comes from: (a x + b y + c, d x + e y + f)
    a, b, d, e = cos, -sin, sin, cos
    transform = tf.stack([a, b, x - a * x - b * y, d, e, y - d * x - e * y, 0.0, 0.0])
    return tf.raw_ops.ImageProjectiveTransformV3(
        images=image[None],
        transforms=transform[None],
        output_shape=shape[:2],
        fill_value=0.0,
        interpolation="BILINEAR",
        fill_mode="CONSTANT",
    )[0]


def augment(image: tf.Tensor, seed: tf.Tensor) -> tf.Tensor:
    """The slides' augmentation, drawn anew for each picture: flips, then up to 10° of rotation.

    It suits their photographs of cracks. On road signs leave two of the three out: upside down, a
    give-way sign has the outline of a warning sign, and no camera meets it so; and the signs
    already lean by up to 12° of themselves, so that turning them shows what does not occur, with
    black corners.
    """
    image = tf.image.stateless_random_flip_left_right(image, seed)
    image = tf.image.stateless_random_flip_up_down(image, seed + 1)
    angle = tf.random.stateless_uniform([], seed + 2, -DEGREES, DEGREES) * np.pi / 180
    return rotate(image, angle)


def read(shards: list[str], rank: int, size: int, batch_size: int, seed: int) -> tf.data.Dataset:
    """A rank's batches: pictures (N, height, width, 3), float32 from 0 to 1, and labels (N,).

    Each pass over them is an epoch, with an order, flips and angles of its own.
    """
    # The first thing is the shard: whole files, so that no rank reads what it throws away.
    files = tf.data.Dataset.from_tensor_slices(shards).shard(size, rank)
    records = files.interleave(
        tf.data.TFRecordDataset, cycle_length=4, num_parallel_calls=tf.data.AUTOTUNE
    )
    records = records.shuffle(1000, seed=seed, reshuffle_each_iteration=True)
    seeds = tf.data.Dataset.random(seed=seed * size + rank, rerandomize_each_iteration=True)

    def prepare(record, seed):
        image, label = parse(record)
        return augment(tf.cast(image, tf.float32) / 255, seed), label

    pictures = tf.data.Dataset.zip((records, seeds.batch(2)))
    pictures = pictures.map(prepare, num_parallel_calls=tf.data.AUTOTUNE)
    return pictures.batch(batch_size, drop_remainder=True).prefetch(tf.data.AUTOTUNE)


class EndOfEpoch(tf.keras.callbacks.Callback):
    """Averages the batch normalisation of all ranks; then rank 0 saves."""

    def __init__(self, done: tf.Variable, manager: tf.train.CheckpointManager | None):
        super().__init__()
        self.done, self.manager = done, manager

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        for variable in self.model.non_trainable_variables:
            variable.assign(hvd.allreduce(variable))
        self.done.assign(epoch + 1)
        if self.manager:
            self.manager.save()


def checksum(model: tf.keras.Model) -> str:
    """A short hash of all weights: two models with the same one are the same."""
    weights = b"".join(np.ascontiguousarray(w).tobytes() for w in model.get_weights())
    return hashlib.sha256(weights).hexdigest()[:12]


def main() -> None:
    # Change 1: start Horovod, and take one GPU for each process of this machine.
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    # Change 2: own files, and as many steps as the rank with the fewest pictures can take.
    flags = arguments()
    steps = min(sum(flags.counts[r::size]) for r in range(size)) // flags.batch_size
    if not steps:
        sys.exit(f"--batch-size {flags.batch_size}: a rank has fewer pictures than that")
    record = next(iter(tf.data.TFRecordDataset(flags.shards[0])))
    try:
        height, width, _ = parse(record)[0].shape
    except tf.errors.InvalidArgumentError:
        sys.exit(f"{flags.shards[0]}: not in the slides' schema; write it with --schema slides")
    if height != width:
        sys.exit(f"{flags.shards[0]}: its pictures are not square; write them with --size 223")
    dataset = read(flags.shards, rank, size, flags.batch_size, flags.seed).take(steps)
    # Nobody can tell from TFRecord files how many steps they hold. Where Keras does not know, it
    # begins one step more than there is, in which the warm-up below would go on rising.
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(steps))

    tf.keras.utils.set_random_seed(flags.seed + rank)
    model = densenet(height)
    # Change 3: the larger rate, and its warm-up (below). Change 4: the optimizer that averages.
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.RMSprop(flags.lr * size))
    optimizer.build(model.trainable_variables)
    model.compile(
        optimizer=optimizer,
        loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )

    done = tf.Variable(0, dtype=tf.int64)  # epochs so far
    manager = None
    if flags.checkpoints and rank == 0:  # Change 5: rank 0 alone reads and writes checkpoints, ...
        state = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
        manager = tf.train.CheckpointManager(state, str(flags.checkpoints), max_to_keep=3)
        if manager.restore_or_initialize():
            print(f"going on from {manager.latest_checkpoint}, after epoch {int(done)}")

    # ... and all start from what rank 0 has. Horovod's BroadcastGlobalVariablesCallback does it
    # after the first batch: too late for a resumed run, in which the other ranks' gradients of that
    # batch would come from untrained weights.
    for variable in [*model.variables, *optimizer.variables, done]:
        variable.assign(hvd.broadcast(variable, root_rank=0))

    warmup = hvd.callbacks.LearningRateWarmupCallback(
        initial_lr=flags.lr * size,
        warmup_epochs=flags.warmup_epochs,
        momentum_correction=False,  # RMSProp as here has no momentum, and Keras 2.11 or later fails
        steps_per_epoch=steps,
    )
    model.fit(
        dataset,
        initial_epoch=int(done),
        epochs=flags.epochs,
        callbacks=[hvd.callbacks.MetricAverageCallback(), warmup, EndOfEpoch(done, manager)],
        verbose=2 if rank == 0 else 0,
    )
    print(f"rank {rank}: weights {checksum(model)}")


if __name__ == "__main__":
    main()
