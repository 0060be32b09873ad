"""Train a small DenseNet to recognise two road signs: the talk's script in today's TensorFlow.

    python exercises/recipes/train_single.py --data data/roadsigns --classes stop yield

It runs in one process, and Python opens the images. train_horovod.py and train_tfrecord.py are the
next versions of this script: README.md says how to get there.
"""

import argparse
import hashlib
import itertools
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from model import densenet
from PIL import Image, ImageOps

parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
add = parser.add_argument
add("--data", type=Path, default="data/roadsigns", help="folder with train/CLASS/*.jpg")
add("--classes", nargs=2, default=["stop", "yield"], metavar=("A", "B"), help="two classes")
add("--size", type=int, default=223, help="height and width of the images in pixels (223)")
add("--batch-size", type=int, default=16, help="images per process and step (16)")
add("--epochs", type=int, default=10, help="passes over the images (10)")
add("--steps", type=int, help="stop after this many steps, even in the middle of an epoch")
add("--lr", type=float, default=0.001, help="learning rate of RMSProp for one process (0.001)")
add("--seed", type=int, default=0, help="seed of the weights and of the order (0)")
add("--log-every", type=int, default=10, help="steps between two lines of the log (10)")
add("--checkpoints", type=Path, help="save here after each epoch, and resume from this folder")
add("--seen", type=Path, help="write the names of the images read to this file (or FILE.RANK)")


def find_images(data, classes):
    """Return (path, label) of all training images, in the same order on every machine."""
    files = []
    for label, name in enumerate(classes):
        found = sorted((data / "train" / name).glob("*.jpg"))
        if not found:
            draw = "`python -m data_prep.roadsigns data/roadsigns` draws the road signs"
            parser.error(f"--data {data}: no images in {data / 'train' / name}; {draw}")
        files += [(path, label) for path in found]
    return files


def load(path, size):
    """Return the centre of an image, float32 (size, size, 3) from 0 to 1."""
    image = ImageOps.fit(Image.open(path).convert("RGB"), (size, size), Image.Resampling.BILINEAR)
    return np.asarray(image, np.float32) / 255


def read(files, size, batch_size, seed, epoch):
    """Yield the images, labels and names of each batch of an epoch, loaded one after the other."""
    order = np.random.default_rng([seed, epoch]).permutation(len(files))
    for first in range(0, len(files) - batch_size + 1, batch_size):
        chosen = [files[i] for i in order[first : first + batch_size]]
        images = np.stack([load(path, size) for path, _ in chosen])
        labels = np.array([label for _, label in chosen], np.int32)
        yield images, labels, [f"{epoch}\t{path}\n" for path, _ in chosen]


def checksum(model):
    """Return a short hash of all weights: equal models have equal hashes."""
    weights = b"".join(np.ascontiguousarray(w).tobytes() for w in model.get_weights())
    return hashlib.sha256(weights).hexdigest()[:12]


def main():
    flags = parser.parse_args()
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    files = find_images(flags.data, flags.classes)
    share = len(files)
    steps_per_epoch = share // flags.batch_size
    if not steps_per_epoch:
        parser.error(f"--batch-size {flags.batch_size}: a process has only {share} images")
    last_step = min(flags.epochs * steps_per_epoch, flags.steps or 10**9)

    tf.keras.utils.set_random_seed(flags.seed)
    model = densenet()
    optimizer = tf.keras.optimizers.RMSprop(flags.lr)
    optimizer.build(model.trainable_variables)
    loss_function = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    done = tf.Variable(0, dtype=tf.int64)  # epochs so far
    manager = None
    if flags.checkpoints:
        state = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
        manager = tf.train.CheckpointManager(state, str(flags.checkpoints), max_to_keep=3)
        if manager.restore_or_initialize():
            print(f"resuming from {manager.latest_checkpoint}, after epoch {int(done)}")

    batches = itertools.chain.from_iterable(
        read(files, flags.size, flags.batch_size, flags.seed, epoch)
        for epoch in range(int(done), flags.epochs)
    )
    steps = range(int(done) * steps_per_epoch, last_step)
    seen = []
    begin = time.perf_counter()
    for step, (images, labels, names) in zip(steps, batches, strict=False):
        loss = train_step(images, labels)
        seen += names
        epoch = step // steps_per_epoch + 1
        if step % flags.log_every == 0 or step + 1 == last_step:
            print(f"step {step + 1} of {last_step}, epoch {epoch}: loss {loss:.4f}", flush=True)
        if (step + 1) % steps_per_epoch == 0:
            done.assign(epoch)
            if manager:
                manager.save()

    seconds = time.perf_counter() - begin
    if flags.seen:
        flags.seen.write_text("".join(seen))
    images_per_s = len(steps) * flags.batch_size / seconds
    print(f"{len(steps)} steps, {images_per_s:.1f} images/s")
    print(f"weights {checksum(model)}")


if __name__ == "__main__":
    main()
