# %% [markdown]
# # ex04 · Input pipelines
#
# In these exercises, you find the records of a TFRecord shard and the bugs in a parallel script, and write a pipeline that reads TFRecord on many ranks.
#
# **Time:** 43 minutes · **Needs:** notebooks 03 and 04, TensorFlow for the last exercise · **On a CPU:** a minute to run
#
# Replace `...` in a cell, run it, then run the check below it. Stuck? `workshop.hint("ex04.index")` gives the next of three hints, `workshop.solution("ex04.index")` a solution.

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

# %%
import workshop

session = workshop.start("ex04", profile)

# %% [markdown]
# ## ex04.index · Where the records start
#
# *fill in · easy · 8 minutes*
#
# Some shards come without the index that DALI, in notebook 05, needs. Write `index(shard)`, which takes the bytes of a shard and returns a list of pairs `(offset, size)`, like the lines of the index in notebook 04: the size is that of the whole record. You don't need to verify the checksums.

# %% tags=["answer", "ex04.index"]
import struct


def index(shard: bytes) -> list[tuple[int, int]]:
    """Return (offset, size) of each record in a TFRecord shard."""
    ### BEGIN SOLUTION
    entries = []
    offset = 0
    while offset < len(shard):
        (length,) = struct.unpack_from("<Q", shard, offset)
        entries.append((offset, length + 16))
        offset += length + 16
    return entries
    ### END SOLUTION


# %% tags=["check", "ex04.index"]
workshop.check("ex04.index", index)

# %% [markdown]
# ## ex04.hunt · Made parallel in a hurry
#
# *find the bug · hard · 15 minutes*
#
# This is the slides' script in TensorFlow 2, with recipe 1 applied in a hurry. Eight lines have a bug. Some of the bugs are on the slides themselves; the others are common elsewhere. If something is missing, name the line that should have it. On one machine with a few GPUs it would run, and its loss would fall.
#
# Recipe 1, for comparison: start Horovod and use one GPU for each *local* rank; share the images; scale the learning rate, with a warm-up; average the gradients; broadcast rank 0's weights; print and save only on rank 0; take 1/size of the steps.

# %%
from workshop.checks import ex04

print(ex04.listing())

# %% [markdown]
# Write down the eight line numbers. If you name a line without a bug, the check tells you which; otherwise, it tells you in which third of the script to look.

# %% tags=["answer", "ex04.hunt"]
# The numbers of the lines with a bug, such as {3, 14, 15}
### BEGIN SOLUTION
wrong_lines = {19, 23, 25, 27, 34, 52, 56, 61}
### END SOLUTION

# %% tags=["check", "ex04.hunt"]
workshop.check("ex04.hunt", wrong_lines)

# %% [markdown]
# ## ex04.recipe · Recipe 2
#
# *fill in · hard · 20 minutes*
#
# Now write the input pipeline for TFRecord files like those on the slides. Their records have `height` and `width` (int64), the pixels `img_raw` as bytes (`tf.io.decode_raw(…, tf.uint8)` returns a flat tensor of them), and the `label`, a float32 that counts from 0.
#
# The next cell hides the GPUs, because TensorFlow would reserve their memory, and this notebook only reads images.

# %%
import os

os.environ |= {"CUDA_VISIBLE_DEVICES": "", "TF_CPP_MIN_LOG_LEVEL": "3"}  # log errors only

# %% [markdown]
# Write `read(shards, rank, size, batch, steps, seed)`, which returns a `tf.data.Dataset` of one rank's batches from the files in the list `shards`.
#
# - An element is a pair: images `(batch, height, width, 3)`, float32 from 0 to 1, and integer labels `(batch,)`.
# - Each rank opens its own files only, as many as the others or one more: for example, rank `r` files `r`, `r + size`, `r + 2·size` …
# - An epoch has exactly `steps` full batches on every rank; the rest is dropped. The files differ in length, so some ranks have more, and a rank that takes an extra step [waits for the others' gradients forever](../docs/troubleshooting.md#ranks-with-different-numbers-of-steps-stall).
# - The files are sorted by class. Return a new random order in each epoch, from `seed`; one pass over the dataset is one epoch. A buffer of 1,000 records is large enough here.
#
# For speed, prepare the next batch while a step computes.
#
# The slides' `string_input_producer`, `TFRecordReader` and `shuffle_batch` did this with queues (`exercises/recipes/slides_tfrecord.py`). Their flips and rotation are omitted here.


# %% tags=["answer", "ex04.recipe"]
def read(shards, rank: int, size: int, batch: int, steps: int, seed: int):
    """Return a tf.data.Dataset of one rank's batches: (images float32 0..1, labels)."""
    import tensorflow as tf

    def parse(record):
        """Return the image and the label of a record."""
        # number: the feature of one int64; schema: the features of a record, by name
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
    return images.batch(batch, drop_remainder=True).take(steps).prefetch(tf.data.AUTOTUNE)
    ### END SOLUTION


# %% tags=["check", "ex04.recipe"]
workshop.check("ex04.recipe", read)

# %% [markdown]
# Complete scripts are in `exercises/recipes`, as on the slides and in current TensorFlow. To train with your `read` on two ranks, replace the one in `train_tfrecord.py`, pass `steps_per_epoch` to it, and follow the README there.
