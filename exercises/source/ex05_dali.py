# %% [markdown]
# # ex05 · DALI
#
# In these exercises, you predict the speed of an input pipeline, build your own DALI graph, and count every validation image exactly once.
#
# **Time:** 36 minutes · **Needs:** notebook 05, DALI for one exercise · **On a CPU:** half a minute to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

# %% [markdown]
# **How it works.** Replace `...` in a cell, run the cell, then run the check below it. The check tells you what is wrong and what to do. Stuck? Run `workshop.hint("ex05.graph")` in a new cell for up to three hints, one per call; after that, `workshop.solution("ex05.graph")` shows a solution. Your progress is saved in the folder `answers/`.

# %%
import workshop
from workshop.session import ensure_data

session = workshop.start("ex05", profile)
ensure_data(session.data_root, session.profile)

# %% [markdown]
# ## ex05.bottleneck · What waits for what
#
# *predict, then measure · medium · 10 minutes*
#
# On a server, four cores prepare images. Each image takes one core for
#
# | work | core time |
# |---|---|
# | decoding the JPEG | 3.2 ms |
# | resizing, mirroring, copying | 0.8 ms |
#
# The device trains on 1,442.6 images per second, the published speed of a V100. Predict:
#
# | | |
# |---|---|
# | `"in turn"` | images per second if loader and device take turns and wait for each other |
# | `"overlapped"` | images per second if both work at the same time, with a queue between them |
# | `"cores"` | the number of cores at which the device never waits in the overlapped run |
# | `"half the decoding"` | images per second, overlapped, with four cores, if decoding takes 1.6 ms |
#
# It is easier to work with times than with rates: a loader that delivers `r` images per second takes `1 / r` seconds per image.

# %% tags=["answer", "ex05.bottleneck"]
# {"in turn": …, "overlapped": …, "cores": …, "half the decoding": …}
### BEGIN SOLUTION
rates = {
    "in turn": 1 / (1 / 1000 + 1 / 1442.6),
    "overlapped": min(1000, 1442.6),
    "cores": 6,
    "half the decoding": min(4 / 0.0024, 1442.6),
}
### END SOLUTION

# %% tags=["check", "ex05.bottleneck"]
workshop.check("ex05.bottleneck", rates)

# %% [markdown]
# Now measure. `rn50 diagnose` times your machine's loader alone, the device alone (your GPU, or a simulated one of that speed), and both together. Is the third number closer to *in turn* or to *overlapped*? The overlap is rarely perfect, because the loader's cores have other work too during a run.

# %%
import os

os.chdir(session.folder)
os.environ |= {"DATA": str(session.data_root), "PROFILE": session.profile}
os.environ["EACH"] = str(session.seconds)  # seconds of each measurement
os.environ["STEP"] = "" if session.machine.gpus else "--set step=1442.6"  # simulate a V100

# %% language="bash" magic_args="-e"
# rn50 diagnose --data-root "$DATA" --data-format files --recipe reference -b 32 --loader native \
#   $STEP -n 1 --profile $PROFILE --seconds $EACH --json diagnosis.json 2>&1

# %%
import json
from pathlib import Path

found = json.loads(Path("diagnosis.json").read_text())["rates"]
loader, device, both = (found[name] for name in ("loader", "compute", "both"))
print(f"In turn: {1 / (1 / loader + 1 / device):,.0f}. Overlapped: {min(loader, device):,.0f}.")
print(f"Measured: {both:,.0f} images per second.")

# %% [markdown]
# ## ex05.graph · Your own graph
#
# *fill in · hard · 16 minutes*
#
# Write `graph(files, labels, rank, size)`, which adds the operators of one rank to a DALI graph on the CPU. `files` are the paths of all JPEGs, `labels` their classes. You need a chain of four operators and a coin flip:
#
# | operator | inputs | output |
# |---|---|---|
# | `fn.readers.file` | `files`, `labels`, `shard_id`, `num_shards`, `random_shuffle` | two nodes: the JPEG, and the label |
# | `fn.decoders.image_random_crop` | a JPEG, `random_area`, `random_aspect_ratio` | a random crop, uint8, height × width × 3 |
# | `fn.resize` | pixels, `resize_x`, `resize_y` | pixels of that size |
# | `fn.random.coin_flip` | `probability` | 0 or 1, drawn for each image |
# | `fn.crop_mirror_normalize` | pixels, `mean`, `std`, `mirror`, `dtype`, `output_layout` | `(pixel − mean) / std` |
#
# - Every rank reads different images, in a random order: its *shard* is number `rank` of `size`.
# - A crop covers 5 to 100% of the image's area (`1.0` is all of it), and its width is 3/4 to 4/3 of its height. Pass both ranges as lists `[from, to]`.
# - The output images are 64 × 64, half of them mirrored, `types.FLOAT` (float32), one plane per colour: `"CHW"`.
# - The recipe's mean is 0.485, 0.456, 0.406 and its std 0.229, 0.224, 0.225, for red, green and blue from 0 to 1. The decoder's pixels range from 0 to 255.
#
# The library normalises in the training step, as notebook 05 explains. This graph does everything, like most examples.


# %% tags=["answer", "ex05.graph"]
def graph(files, labels, rank: int, size: int):
    """Return two nodes of one rank's graph: images float32 (3, 64, 64), and their labels."""
    from nvidia.dali import fn, types

    ### BEGIN SOLUTION
    jpeg, label = fn.readers.file(
        files=files, labels=labels, shard_id=rank, num_shards=size, random_shuffle=True
    )
    part = fn.decoders.image_random_crop(
        jpeg, random_area=[0.05, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
    )
    small = fn.resize(part, resize_x=64, resize_y=64)
    images = fn.crop_mirror_normalize(
        small,
        mean=[255 * 0.485, 255 * 0.456, 255 * 0.406],
        std=[255 * 0.229, 255 * 0.224, 255 * 0.225],
        mirror=fn.random.coin_flip(probability=0.5),
        dtype=types.FLOAT,
        output_layout="CHW",
    )
    return images, label
    ### END SOLUTION


# %% tags=["check", "ex05.graph"]
workshop.check("ex05.graph", graph)

# %% [markdown]
# The check ran your graph on test images in which the colour of a pixel encodes its position. Here are road signs decoded, cropped and mirrored by your graph; only the normalisation is undone, to show the colours.

# %%
from workshop.checks import ex05_graph

ex05_graph.show(graph, session.data_root)

# %% [markdown]
# ## ex05.exact · Every image once
#
# *fill in · medium · 10 minutes*
#
# Validation must not drop images or count them twice. With `pad_last_batch=True`, DALI's reader does this:
#
# - Of `N` images, rank `r` of `size` gets numbers `r·N // size` to `(r+1)·N // size`, excluding the last. So some ranks have one more image than others.
# - All ranks make the same number of batches, enough for the rank with the most images.
# - All batches are full. They are padded with copies of the rank's last image, a whole batch of them if necessary.
#
# Take 27 images, two ranks and a batch of 8:
#
# | | batch 0 | batch 1 |
# |---|---|---|
# | rank 0 | 0 … 7 | 8 … 12, and 12 three more times |
# | rank 1 | 13 … 20 | 21 … 26, and 26 two more times |
#
# Write `valid(images, rank, size, batch)`, which returns the number of rows that count in each batch of a rank. Here it returns `[8, 5]` for rank 0 and `[8, 6]` for rank 1.


# %% tags=["answer", "ex05.exact"]
def valid(images: int, rank: int, size: int, batch: int) -> list[int]:
    """Return the number of rows that count in each batch of a rank."""
    ### BEGIN SOLUTION
    mine = (rank + 1) * images // size - rank * images // size
    most = -(-images // size)
    steps = -(-most // batch)
    return [min(batch, mine - step * batch) for step in range(steps)]
    ### END SOLUTION


# %% tags=["check", "ex05.exact"]
workshop.check("ex05.exact", valid)

# %% [markdown]
# Dropping incomplete batches would have left out 27 − 16 = 11 images, and counting every row would have counted 5 images too many. Either mistake makes the accuracy only *slightly* wrong, so it is easy to miss.
