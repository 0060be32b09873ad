"""Recipe 1: the same training on several processes, one GPU each, with Horovod.

    python -m horovod.runner.launch -np 2 --gloo \\
        python exercises/recipes/train_horovod.py --data data/roadsigns

"Change 1" to "Change 5" mark what differs from train_single.py.
"""

import argparse
import hashlib
import itertools
import time
from pathlib import Path

import horovod.tensorflow as hvd
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
add("--steps", type=int, help="stop after this many steps, divided among the ranks")
add("--lr", type=float, default=0.001, help="learning rate of RMSProp for one process (0.001)")
add("--warmup-epochs", type=float, default=1, help="epochs of learning-rate warm-up (1)")
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
    share = len(files) // hvd.size()
    order = order[hvd.rank() * share :][:share]  # Change 2: each rank reads its own part
    for first in range(0, share - batch_size + 1, batch_size):
        chosen = [files[i] for i in order[first : first + batch_size]]
        images = np.stack([load(path, size) for path, _ in chosen])
        labels = np.array([label for _, label in chosen], np.int32)
        yield images, labels, [f"{epoch}\t{path}\n" for path, _ in chosen]


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
    files = find_images(flags.data, flags.classes)
    share = len(files) // hvd.size()  # as many images, and so as many steps, on each rank
    steps_per_epoch = share // flags.batch_size
    if not steps_per_epoch:
        parser.error(f"--batch-size {flags.batch_size}: a process has only {share} images")
    last_step = min(flags.epochs * steps_per_epoch, (flags.steps or 10**9) // hvd.size())

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

    done = tf.Variable(0, dtype=tf.int64)  # epochs so far
    manager = None
    if flags.checkpoints and hvd.rank() == 0:  # Change 5: only rank 0 reads and writes checkpoints
        state = tf.train.Checkpoint(model=model, optimizer=optimizer, done=done)
        manager = tf.train.CheckpointManager(state, str(flags.checkpoints), max_to_keep=3)
        if manager.restore_or_initialize():
            print(f"resuming from {manager.latest_checkpoint}, after epoch {int(done)}")
    for variable in [*model.variables, *optimizer.variables, done]:  # the others get its values
        variable.assign(hvd.broadcast(tf.convert_to_tensor(variable), root_rank=0))

    batches = itertools.chain.from_iterable(
        read(files, flags.size, flags.batch_size, flags.seed, epoch)
        for epoch in range(int(done), flags.epochs)
    )
    steps = range(int(done) * steps_per_epoch, last_step)
    seen = []
    begin = time.perf_counter()
    for step, (images, labels, names) in zip(steps, batches, strict=False):
        risen = min(1, (step + 1) / (flags.warmup_epochs * steps_per_epoch + 1))
        optimizer.learning_rate.assign(flags.lr * (1 + (hvd.size() - 1) * risen))  # Change 3
        loss = train_step(images, labels)
        seen += names
        epoch = step // steps_per_epoch + 1
        if hvd.rank() == 0 and (step % flags.log_every == 0 or step + 1 == last_step):
            print(f"step {step + 1} of {last_step}, epoch {epoch}: loss {loss:.4f}", flush=True)
        if (step + 1) % steps_per_epoch == 0:
            done.assign(epoch)
            for variable in model.non_trainable_variables:  # statistics of batch normalisation
                variable.assign(hvd.allreduce(tf.convert_to_tensor(variable), op=hvd.Average))
            if manager:
                manager.save()

    seconds = time.perf_counter() - begin
    if flags.seen:
        Path(f"{flags.seen}.{hvd.rank()}").write_text("".join(seen))
    images_per_s = hvd.size() * len(steps) * flags.batch_size / seconds
    if hvd.rank() == 0:
        print(f"{len(steps)} steps on {hvd.size()} rank(s), {images_per_s:.1f} images/s")
    print(f"rank {hvd.rank()}: weights {checksum(model)}")


if __name__ == "__main__":
    main()
