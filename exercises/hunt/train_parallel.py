"""The talk's network on several GPUs, made parallel in a hurry, with eight bugs.

Exercise ex04.hunt is to find them. The script is not meant to be run: `densenet` is the talk's
network, without a softmax, and its readers; they are correct and not shown.
"""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf
from densenet import densenet, find_images, load, rotate

EPOCHS, BATCH, LR, SEED = 10, 16, 0.001, 42

hvd.init()
gpus = tf.config.list_physical_devices("GPU")
for gpu in gpus:
    tf.config.experimental.set_memory_growth(gpu, True)
if gpus:
    tf.config.set_visible_devices(gpus[hvd.rank()], "GPU")

paths, labels = find_images("data/two-signs/train")
network = densenet(size=223, classes=2)
model = tf.keras.Sequential([network, tf.keras.layers.Softmax()])
loss_function = tf.nn.sparse_softmax_cross_entropy_with_logits
optimizer = tf.keras.optimizers.RMSprop(LR * hvd.size())
optimizer.build(model.trainable_variables)
flips = tf.random.Generator.from_seed(SEED)


@tf.function
def augment(images):
    mirrored = flips.uniform([len(images), 1, 1, 1]) < 0.5
    images = tf.where(mirrored, images[:, :, ::-1], images)
    angle = np.random.uniform(-10, 10)
    return rotate(images, angle * np.pi / 180)


@tf.function
def train_step(images, labels):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(loss_function(labels, model(augment(images), training=True)))
    gradients = tape.gradient(loss, model.trainable_variables)
    gradients = [hvd.allreduce(g, op=hvd.Average) for g in gradients]
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


for variable in [*model.variables, *optimizer.variables]:
    variable.assign(hvd.broadcast(variable, root_rank=0))

checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
steps_per_epoch = len(paths) // BATCH
for epoch in range(EPOCHS):
    order = np.random.default_rng([SEED, epoch]).permutation(len(paths))
    for place in range(steps_per_epoch):
        chosen = order[place * BATCH : (place + 1) * BATCH]
        images = np.stack([load(paths[i], 223) for i in chosen])
        loss = train_step(images, np.array([labels[i] for i in chosen]))
        if hvd.rank() == 0 and place % 10 == 0:
            print(f"epoch {epoch + 1}, step {place + 1}: loss {float(loss):.4f}")
    checkpoint.save("checkpoints/model")
