# %% [markdown]
# # ex04 · Feeding
#
# After these exercises you can read somebody else's parallel script with suspicion, and replace its feeding loop by a pipeline.
#
# **Time:** 38 minutes · **Needs:** notebooks 03 and 04, TensorFlow for the last exercise · **On a CPU:** half a minute to run

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
# The whole way, from the slides' script to a parallel one that reads TFRecord, is `exercises/recipes`.
