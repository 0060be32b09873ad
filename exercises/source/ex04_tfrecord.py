# %% [markdown]
# # ex04 · Feeding
#
# After these exercises you can read somebody else's parallel script with suspicion, and replace its feeding loop by a pipeline that reads TFRecord.
#
# **Time:** 58 minutes · **Needs:** notebooks 03 and 04, TensorFlow and Horovod for the last exercises · **On a CPU:** a minute and a half to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

# %% [markdown]
# **How it works.** Replace `...` in a cell, run it, and run the check below it. A check says what is wrong and what to do. Stuck? Type `workshop.hint("ex04.hunt")` into a new cell: it gives three hints, one at a time, each saying more than the last. After them `workshop.solution("ex04.hunt")` shows a solution. What you have passed is kept in the folder `answers/`.

# %%
import workshop

session = workshop.start("ex04", profile)

# %% [markdown]
# ## ex04.hunt · Made parallel in a hurry
#
# *find the bug · hard · 15 minutes*
#
# Somebody has applied recipe 1 to the slides' script, and has been in a hurry: eight lines are wrong. Some are mistakes of the slides themselves, others are seen in many scripts. On one machine with a few GPUs it would run, and its loss would fall.
#
# Recipe 1, for comparison: start Horovod and take one GPU for each *local* rank; share the pictures; scale the learning rate, with a warm-up; average the gradients; start all ranks alike; let rank 0 alone print and save; take 1/size of the steps.

# %%
from workshop.checks import ex04

print(ex04.listing())

# %% [markdown]
# Write down the numbers of the eight lines. The check tells you which of them are right after all, and roughly where to look for the next.

# %% tags=["answer", "ex04.hunt"]
# The numbers of the wrong lines, such as {3, 14, 15}
### BEGIN SOLUTION
wrong_lines = {19, 23, 25, 27, 34, 52, 56, 61}
### END SOLUTION

# %% tags=["check", "ex04.hunt"]
workshop.check("ex04.hunt", wrong_lines)

# %% [markdown]
# ## ex04.order · The stages of a pipeline
#
# *fill in · medium · 8 minutes*
#
# Here are the seven stages of an input pipeline that reads TFRecord files on many ranks, in the order of the alphabet. Put them in one that is right, and in which nothing is read, decoded or kept in memory in vain.
#
# | stage | what it does |
# |---|---|
# | `"batch"` | puts N elements together into arrays |
# | `"interleave"` | opens files, several at a time, and gives their records by turns |
# | `"list files"` | gives the names of all files |
# | `"map"` | decodes the JPEG of a record, crops it and resizes it |
# | `"prefetch"` | keeps a few elements ready, ahead of what is asked for |
# | `"shard"` | lets every size-th element pass, starting with element number rank |
# | `"shuffle"` | keeps 1,000 elements, and gives one of them at random, in an order of each rank's own |

# %% tags=["answer", "ex04.order"]
# A list of the seven names
### BEGIN SOLUTION
stages = ["list files", "shard", "interleave", "shuffle", "map", "batch", "prefetch"]
### END SOLUTION

# %% tags=["check", "ex04.order"]
workshop.check("ex04.order", stages)

# %% [markdown]
# ## ex04.feed · From feed_dict to tf.data
#
# *fill in · hard · 15 minutes*
#
# The slides feed their network by hand, as this loop does in today's words:
#
# ```
# for step in range(steps):
#     chosen = order[step * batch : (step + 1) * batch]
#     sess.run(train_op, feed_dict={images_in: images[chosen] / 255, labels_in: labels[chosen]})
# ```
#
# Python picks the pictures, one step after the other, while the GPU waits. Write `dataset(images, labels, rank, size, batch, seed)`, which returns a `tf.data.Dataset` of batches for one rank instead.
#
# - An element is a pair: pictures `(batch, height, width, 3)`, float32 from 0 to 1, and labels `(batch,)`. The arrays hold uint8 and int32.
# - Every rank reads other pictures, in a random order that is new in every epoch; one pass over the dataset is one epoch.
# - All ranks take `len(labels) // (size · batch)` batches, all of them full.
# - The next batch is made ready while a step computes.
#
# This kernel only reads pictures, so it leaves the GPUs alone: TensorFlow would otherwise take their memory.

# %%
import os

os.environ["CUDA_VISIBLE_DEVICES"] = ""
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"  # errors only


# %% tags=["answer", "ex04.feed"]
def dataset(images, labels, rank: int, size: int, batch: int, seed: int):
    """A tf.data.Dataset of one rank's batches: (pictures float32 0..1, labels)."""
    import tensorflow as tf

    ### BEGIN SOLUTION
    steps = len(labels) // (size * batch)
    pairs = tf.data.Dataset.from_tensor_slices((images, labels)).shard(size, rank)
    pairs = pairs.shuffle(len(labels), seed=seed)
    pairs = pairs.map(
        lambda image, label: (tf.cast(image, tf.float32) / 255, label),
        num_parallel_calls=tf.data.AUTOTUNE,
    )
    return pairs.batch(batch, drop_remainder=True).take(steps).prefetch(tf.data.AUTOTUNE)
    ### END SOLUTION


# %% tags=["check", "ex04.feed"]
workshop.check("ex04.feed", dataset)

# %% [markdown]
# ## ex04.recipe · Recipe 2
#
# *fill in · hard · 20 minutes*
#
# Now from files. The records are as on the slides: `height`, `width` and raw pixels `img_raw`, and the `label` as a float, counted from 0. This is how one is written:

# %%
import numpy as np
import tensorflow as tf


def record(pixels, label):
    """A picture (height, width, 3), uint8, and its label as the bytes of a tf.train.Example."""
    height, width, _ = pixels.shape
    numbers, floats, text = tf.train.Int64List, tf.train.FloatList, tf.train.BytesList
    feature = {
        "height": tf.train.Feature(int64_list=numbers(value=[height])),
        "width": tf.train.Feature(int64_list=numbers(value=[width])),
        "img_raw": tf.train.Feature(bytes_list=text(value=[pixels.tobytes()])),
        "label": tf.train.Feature(float_list=floats(value=[label])),
    }
    return tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString()


print(tf.train.Example.FromString(record(np.zeros((1, 2, 3), np.uint8), 1.0)))

# %% [markdown]
# Write `read(shards, rank, size, batch, seed)`: a `tf.data.Dataset` of one rank's batches from the files of the list `shards`.
#
# - An element is a pair: pictures `(batch, height, width, 3)`, float32 from 0 to 1, and labels `(batch,)`, whole numbers.
# - Each rank reads whole files, every `size`-th one, to their ends. What does not fill a batch is dropped.
# - The files are sorted by class. The order is random and new in each epoch; one pass over the dataset is one epoch. A buffer of 1,000 records is large enough here.
# - The next batch is made ready while a step computes.
#
# The slides' `string_input_producer`, `TFRecordReader` and `shuffle_batch` did this work with queues (`exercises/recipes/slides_tfrecord.py`). Their flips and their rotation are left out here.


# %% tags=["answer", "ex04.recipe"]
def read(shards, rank: int, size: int, batch: int, seed: int):
    """A tf.data.Dataset of one rank's batches: (pictures float32 0..1, labels)."""
    import tensorflow as tf

    def parse(record):
        """A record as a picture and its label."""
        ### BEGIN SOLUTION
        number = tf.io.FixedLenFeature([], tf.int64)
        schema = {"height": number, "width": number}
        schema["img_raw"] = tf.io.FixedLenFeature([], tf.string)
        schema["label"] = tf.io.FixedLenFeature([], tf.float32)
        example = tf.io.parse_single_example(record, schema)
        pixels = tf.io.decode_raw(example["img_raw"], tf.uint8)
        image = tf.reshape(pixels, [example["height"], example["width"], 3])
        return tf.cast(image, tf.float32) / 255, tf.cast(example["label"], tf.int32)
        ### END SOLUTION

    ### BEGIN SOLUTION
    files = tf.data.Dataset.from_tensor_slices(shards).shard(size, rank)
    records = files.interleave(tf.data.TFRecordDataset, num_parallel_calls=tf.data.AUTOTUNE)
    images = records.shuffle(1000, seed=seed).map(parse, num_parallel_calls=tf.data.AUTOTUNE)
    return images.batch(batch, drop_remainder=True).prefetch(tf.data.AUTOTUNE)
    ### END SOLUTION


# %% tags=["check", "ex04.recipe"]
workshop.check("ex04.recipe", read)

# %% [markdown]
# The check has tried your function on files whose pictures it knows. Then it has run it on two ranks, with this script below it, and watched what went into the network:

# %%
from workshop.checks import recipes

print(recipes.READING)

# %% [markdown]
# The whole way, from the slides' script to a parallel one that reads TFRecord, is `exercises/recipes`, as on the slides and as of today.
