"""Recipe 1: the same training on several processes, one GPU each, by Horovod.

    python -m horovod.runner.launch -np 2 --gloo \\
        python exercises/recipes/train_horovod.py --data data/roadsigns

The five changes against train_single.py are marked "Change 1" to "Change 5". The step is our own
(GradientTape), so it works with Keras 3 and with Keras 2 alike.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import time
from pathlib import Path

import horovod.tensorflow as hvd
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
    add("--batch-size", type=int, default=16, help="pictures of a step, on each rank (16)")
    add("--epochs", type=int, default=10, help="times through the pictures (10)")
    add("--steps", type=int, help="stop after so many steps of one process, shared by the ranks")
    add("--lr", type=float, default=0.001, help="learning rate of RMSProp for one process (0.001)")
    add("--warmup-epochs", type=float, default=1, help="epochs until the rate is full (1)")
    add("--seed", type=int, default=0, help="of the first weights and of the order (0)")
    add("--log-every", type=int, default=10, help="steps between two lines of the log (10)")
    add("--checkpoints", type=Path, help="save here after each epoch, and go on from what is here")
    add("--seen", type=Path, help="write the names of the pictures read to this file, plus .RANK")
    flags = parser.parse_args()
    flags.pictures = find_pictures(flags.data, flags.classes, parser)
    if len(flags.pictures) < flags.batch_size * hvd.size():
        parser.error(
            f"--batch-size {flags.batch_size}: {hvd.size()} ranks read "
            f"{flags.batch_size * hvd.size()} pictures a step, but there are only "
            f"{len(flags.pictures)}"
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


def learning_rate(base: float, size: int, warmup_steps: float, step: int) -> float:
    """`base` at step 0, then linearly up to `base` x `size`, which holds from `warmup_steps` on."""
    risen = min(1.0, step / warmup_steps) if warmup_steps else 1.0
    return base * (1 + (size - 1) * risen)


def main() -> None:
    # Change 1: start Horovod, and take one GPU for each process of this machine.
    hvd.init()
    rank, size = hvd.rank(), hvd.size()
    gpus = tf.config.list_physical_devices("GPU")
    for gpu in gpus:
        tf.config.experimental.set_memory_growth(gpu, True)
    if gpus:
        tf.config.set_visible_devices(gpus[hvd.local_rank()], "GPU")

    flags = arguments()
    pictures, batch_size = flags.pictures, flags.batch_size

    tf.keras.utils.set_random_seed(flags.seed + rank)
    model = densenet(flags.size)
    optimizer = tf.keras.optimizers.RMSprop(flags.lr)
    optimizer.build(model.trainable_variables)
    loss_function = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)

    @tf.function
    def train_step(images, labels):
        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(images, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        # Change 4: all ranks apply the average of their gradients, so they stay alike.
        gradients = hvd.grouped_allreduce(gradients, op=hvd.Average)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    # Change 2: the ranks share the work. A step of all of them is `size` steps of one process, and
    # all take the same number of steps: a rank that stopped early would leave the others waiting.
    global_batch = batch_size * size
    steps_per_epoch = len(pictures) // global_batch
    last_step = flags.epochs * steps_per_epoch
    if flags.steps is not None:
        last_step = min(last_step, flags.steps // size)

    done = tf.Variable(0, dtype=tf.int64)  # steps so far ...
    taken = tf.Variable(global_batch)  # ... of so many pictures
    manager = None
    if flags.checkpoints and rank == 0:  # Change 5: rank 0 alone reads and writes checkpoints, ...
        state = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done, taken=taken)
        manager = tf.train.CheckpointManager(state, str(flags.checkpoints), max_to_keep=3)
        if manager.restore_or_initialize():
            if int(taken) != global_batch:
                sys.exit(
                    f"{flags.checkpoints}: its steps are of {int(taken)} pictures; keep to that"
                )
            print(f"going on from {manager.latest_checkpoint}, after step {int(done)}")

    # ... and all start from what rank 0 has. Many programs do this after the first step, because
    # the optimizer has no variables before; `build` has made them, so a resumed run loses no step.
    for variable in [*model.variables, *optimizer.variables, done]:
        variable.assign(hvd.broadcast(tf.convert_to_tensor(variable), root_rank=0))

    start, begin = int(done), time.perf_counter()
    seen = []
    for step in range(start, last_step):
        epoch, place = divmod(step, steps_per_epoch)
        # Change 2: the order is the same on all ranks, and each takes its own part of this step's.
        order = np.random.default_rng([flags.seed, epoch]).permutation(len(pictures))
        first = place * global_batch + rank * batch_size
        chosen = [pictures[i] for i in order[first : first + batch_size]]
        images = np.stack([load(path, flags.size) for path, _ in chosen])
        labels = np.array([label for _, label in chosen], np.int32)
        seen += [f"{epoch}\t{path}\n" for path, _ in chosen]

        # Change 3: `size` times the pictures in a step allow `size` times the learning rate, but
        # not at once: the first steps are where a large rate does harm.
        warmup = flags.warmup_epochs * steps_per_epoch
        optimizer.learning_rate.assign(learning_rate(flags.lr, size, warmup, step))
        loss = train_step(images, labels)
        done.assign_add(1)

        if rank == 0 and (step % flags.log_every == 0 or step + 1 == last_step):  # Change 5
            line = f"step {step + 1} of {last_step}, epoch {epoch + 1}: loss {float(loss):.4f}"
            print(line, flush=True)
        if place + 1 == steps_per_epoch or step + 1 == last_step:
            # Each rank's batch normalisation has seen its own pictures: keep the average.
            for variable in model.non_trainable_variables:
                variable.assign(hvd.allreduce(tf.convert_to_tensor(variable), op=hvd.Average))
            if manager:
                manager.save()

    seconds = time.perf_counter() - begin
    if flags.seen:
        Path(f"{flags.seen}.{rank}").write_text("".join(seen))
    if rank == 0:
        rate = size * len(seen) / seconds
        print(f"{last_step - start} steps of {size} ranks, {rate:.1f} pictures/s")
    print(f"rank {rank}: weights {checksum(model)}")


if __name__ == "__main__":
    main()
