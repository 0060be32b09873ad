# %% [markdown]
# # ex05 · DALI
#
# In these exercises, you measure whether the input limits training, build your own DALI graph, and count every validation image exactly once.
#
# **Time:** 38 minutes · **Needs:** notebook 05, DALI for one exercise · **On a CPU:** half a minute to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

# %% [markdown]
# Replace `...` in a cell, run it, then run the check below it. Stuck? `workshop.hint("ex05.graph")` gives the next of three hints, `workshop.solution("ex05.graph")` a solution.

# %%
import workshop
from workshop.session import ensure_data

session = workshop.start("ex05", profile)
ensure_data(session.data_root, session.profile)

# %% [markdown]
# ## ex05.headroom · What limits the training?
#
# *fill in · medium · 12 minutes*
#
# Three measurements tell you whether a faster loader would help: the loader alone, the device alone, and both together. Write `headroom(load, train, wait, clock, images, steps)`:
#
# | | |
# |---|---|
# | `load()` | returns the next batch of `images` images |
# | `train(batch)` | starts a training step; on a GPU it returns *before* the step is done |
# | `wait()` | returns when all steps are done, like `torch.cuda.synchronize` |
# | `clock()` | returns the time in seconds |
#
# - First warm up: load a batch, train on it, and wait. The first step is much slower, and no measurement may contain it.
# - Then measure `steps` batches in three ways: only loading them; only training, on the same batch again and again; loading and training in turn. Wait for the device at the end of each, before you look at the clock, but not after every step.
# - Return images per second by name: `{"loader": …, "device": …, "both": …}`.
#
# The check simulates loaders and devices of known speeds. **Predict** for one of them: if loading a batch takes 20 ms and training 30 ms, how long do 10 batches take in turn, if `train` returns at once?


# %% tags=["answer", "ex05.headroom"]
def headroom(load, train, wait, clock, images: int, steps: int) -> dict[str, float]:
    """Return images per second of the loader, of the device, and of both."""
    ### BEGIN SOLUTION
    batch = load()
    train(batch)
    wait()
    works = {"loader": load, "device": lambda: train(batch), "both": lambda: train(load())}
    rates = {}
    for name, work in works.items():
        begin = clock()
        for _ in range(steps):
            work()
        wait()
        rates[name] = images * steps / (clock() - begin)
    return rates
    ### END SOLUTION


# %% tags=["check", "ex05.headroom"]
workshop.check("ex05.headroom", headroom)

# %% [markdown]
# They take 320 ms, not 500: while the device trains on one batch, the next one is loaded. Only the first load is not hidden. Now measure this machine, with a plain loader and a network whose size suits the device:

# %%
import time

import numpy as np
import torch
from PIL import Image

from rn50lib import resnet
from rn50lib.torch.model import ResNet
from workshop.checks import engine

files = sorted((session.data_root / "train").glob("*/*.jpg"))
device = torch.device("cuda" if session.machine.gpus else "cpu")
count, size = session.batch, session.pixels
net = ResNet(resnet.resnet(session.layers, num_classes=12)).to(device)
targets = torch.arange(count, device=device) % 12
position = 0


def load():
    global position
    chosen = [files[(position + i) % len(files)] for i in range(count)]
    position += count
    photos = [Image.open(file).convert("RGB").resize((size, size)) for file in chosen]
    return torch.from_numpy(np.stack([np.asarray(photo) for photo in photos]))


def train(batch):
    pixels = batch.to(device).permute(0, 3, 1, 2) / 255
    torch.nn.functional.cross_entropy(net(pixels), targets).backward()


wait = torch.cuda.synchronize if session.machine.gpus else lambda: None
if not engine.unanswered(headroom):
    where = torch.cuda.get_device_name() if session.machine.gpus else "the CPU"
    print(f"ResNet-{session.layers}, {size} px, {session.steps} batches of {count}, on {where}:")
    found = headroom(load, train, wait, time.perf_counter, count, session.steps)
    for name, rate in found.items():
        print(f"{name:7} {rate:8,.0f} images per second")
    loader, rate = found["loader"], found["device"]
    print(f"without overlap: {1 / (1 / loader + 1 / rate):,.0f}; with overlap: at most", end=" ")
    print(f"{min(loader, rate):,.0f}")

# %% [markdown]
# On a GPU, kernels run while the next batch loads, so `both` can approach the slower of the two. On a CPU, `train` returns when the step is done, so nothing overlaps: `both` is close to *without overlap*. `rn50 diagnose` makes these measurements for any configuration, and `rn50 workshop try --headroom` for any script.

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
# The library normalises in the training step, as notebook 05 explains. This graph does everything, and mirrors as for ImageNet.


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
# Dropping incomplete batches would have left out 27 − 16 = 11 images, and counting every row would have counted 5 images too many. With thousands of images, either mistake changes the accuracy only *slightly*, so it is easy to miss.
