"""The slides' training script in today's TensorFlow, for one process: a DenseNet that tells two
road signs apart.

    python exercises/recipes/train_single.py --data data/roadsigns --classes stop yield

Your work: run it on several GPUs (recipe 1), then let TensorFlow read the data (recipe 2). See
README.md beside this file.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path

import numpy as np
import tensorflow as tf
from model import densenet
from PIL import Image, ImageOps


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    add = parser.add_argument
    add("--data", type=Path, default=Path("data/roadsigns"), help="folder with train/CLASS/*.jpg")
    add("--classes", nargs=2, default=["stop", "yield"], metavar=("A", "B"), help="two folders")
    add("--size", type=int, default=223, help="height and width of the pictures in pixels (223)")
    add("--batch-size", type=int, default=16, help="pictures of a step (16)")
    add("--epochs", type=int, default=10, help="times through the pictures (10)")
    add("--steps", type=int, help="stop after so many steps, even in the middle of an epoch")
    add("--lr", type=float, default=0.001, help="learning rate of RMSProp (0.001)")
    add("--seed", type=int, default=0, help="of the first weights and of the order (0)")
    add("--log-every", type=int, default=10, help="steps between two lines of the log (10)")
    add("--checkpoints", type=Path, help="save here after each epoch, and go on from what is here")
    add("--seen", type=Path, help="write the name of each picture that was read to this file")
    flags = parser.parse_args()
    flags.pictures = find_pictures(flags.data, flags.classes, parser)
    if len(flags.pictures) < flags.batch_size:
        parser.error(
            f"--batch-size {flags.batch_size}: there are only {len(flags.pictures)} pictures"
        )
    return flags


def find_pictures(data: Path, classes: list[str], parser: argparse.ArgumentParser) -> list:
    """[(path, label)] of all training pictures, in the same order on every machine."""
    pictures = []
    for label, name in enumerate(classes):
        found = sorted((data / "train" / name).glob("*.jpg"))
        if not found:
            parser.error(
                f"--data {data}: no pictures in {data / 'train' / name}; "
                "`python -m data_prep.roadsigns data/roadsigns` draws the road signs"
            )
        pictures += [(path, label) for path in found]
    return pictures


def load(path: Path, size: int) -> np.ndarray:
    """The middle of a picture, (size, size, 3), float32 from 0 to 1."""
    picture = Image.open(path).convert("RGB")
    picture = ImageOps.fit(picture, (size, size), Image.Resampling.BILINEAR)
    return np.asarray(picture, np.float32) / 255


def checksum(model: tf.keras.Model) -> str:
    """A short hash of all weights: two models with the same one are the same."""
    weights = b"".join(np.ascontiguousarray(w).tobytes() for w in model.get_weights())
    return hashlib.sha256(weights).hexdigest()[:12]


def main() -> None:
    flags = arguments()
    pictures, batch_size = flags.pictures, flags.batch_size

    for gpu in tf.config.list_physical_devices("GPU"):
        tf.config.experimental.set_memory_growth(gpu, True)

    tf.keras.utils.set_random_seed(flags.seed)
    model = densenet(flags.size)
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

    steps_per_epoch = len(pictures) // batch_size
    last_step = flags.epochs * steps_per_epoch
    if flags.steps is not None:
        last_step = min(last_step, flags.steps)

    done = tf.Variable(0, dtype=tf.int64)  # steps so far ...
    taken = tf.Variable(batch_size)  # ... of so many pictures
    manager = None
    if flags.checkpoints:
        state = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done, taken=taken)
        manager = tf.train.CheckpointManager(state, str(flags.checkpoints), max_to_keep=3)
        if manager.restore_or_initialize():
            if int(taken) != batch_size:
                sys.exit(
                    f"{flags.checkpoints}: its steps are of {int(taken)} pictures; keep to that"
                )
            print(f"going on from {manager.latest_checkpoint}, after step {int(done)}")

    start, begin = int(done), time.perf_counter()
    seen = []
    for step in range(start, last_step):
        # The slides' way to feed: Python opens the pictures of this step, one after the other,
        # while the GPU waits for them.
        epoch, place = divmod(step, steps_per_epoch)
        order = np.random.default_rng([flags.seed, epoch]).permutation(len(pictures))
        chosen = [pictures[i] for i in order[place * batch_size : (place + 1) * batch_size]]
        images = np.stack([load(path, flags.size) for path, _ in chosen])
        labels = np.array([label for _, label in chosen], np.int32)
        seen += [f"{epoch}\t{path}\n" for path, _ in chosen]

        loss = train_step(images, labels)
        done.assign_add(1)

        if step % flags.log_every == 0 or step + 1 == last_step:
            line = f"step {step + 1} of {last_step}, epoch {epoch + 1}: loss {float(loss):.4f}"
            print(line, flush=True)
        if manager and (place + 1 == steps_per_epoch or step + 1 == last_step):
            manager.save()

    seconds = time.perf_counter() - begin
    if flags.seen:
        flags.seen.write_text("".join(seen))
    print(f"{last_step - start} steps, {len(seen) / seconds:.1f} pictures/s")
    print(f"weights {checksum(model)}")


if __name__ == "__main__":
    main()
