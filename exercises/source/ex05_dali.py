# %% [markdown]
# # ex05 · DALI
#
# In these exercises, you measure whether the input limits training, and count every validation image exactly once.
#
# **Time:** 22 minutes · **Needs:** notebook 05 · **On a CPU:** about 15 seconds to run
#
# Replace `...` in a cell, run it, then run the check below it. Stuck? `workshop.hint("ex05.exact")` gives the next of three hints, `workshop.solution("ex05.exact")` a solution.

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

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
# - First warm up: load a batch, train on it, and wait. The first step is much slower and must not be part of any measurement.
# - Then measure `steps` batches in three ways: only loading them; only training, on the same batch again and again; loading and training in turn. Wait for the device at the end of each, before you look at the clock, but not after every step.
# - Return images per second by name: `{"loader": …, "device": …, "both": …}`. `device` divided by `both` is the headroom of notebook 05.
#
# The check simulates loaders and devices of known speeds. **Predict** for one of them: if loading a batch takes 20 ms and training 30 ms, how long do 10 batches take, if you load and train in turn and `train` returns at once?


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
# They take 320 ms, not 500: while the device trains on one batch, the next one is loaded. Only the first load is not hidden. Now measure this machine, with a plain loader and a network whose size suits the device (only its forward and backward pass). **Predict** which is slower.

# %%
import itertools
import time

import numpy as np
import torch
from PIL import Image

from rn50lib import resnet
from rn50lib.torch.model import ResNet
from workshop.checks import engine

files = itertools.cycle(sorted((session.data_root / "train").glob("*/*.jpg")))
device = torch.device("cuda" if session.machine.gpus else "cpu")
count, size = session.batch, session.pixels
net = ResNet(resnet.resnet(session.layers, num_classes=12)).to(device)
targets = torch.arange(count, device=device) % 12


def load():
    chosen = itertools.islice(files, count)
    photos = [Image.open(file).convert("RGB").resize((size, size)) for file in chosen]
    return torch.from_numpy(np.stack([np.asarray(photo) for photo in photos]))


def train(batch):
    pixels = batch.to(device).permute(0, 3, 1, 2) / 255
    torch.nn.functional.cross_entropy(net(pixels), targets).backward()


guess = None  # the slower one: "loader" or "device"
wait = torch.cuda.synchronize if session.machine.gpus else lambda: None
if engine.judge("ex05.headroom", headroom).passed:
    where = torch.cuda.get_device_name() if session.machine.gpus else "the CPU"
    print(f"ResNet-{session.layers}, {size} px, {session.steps} batches of {count}, on {where}:")
    turns = [headroom(load, train, wait, time.perf_counter, count, session.steps) for _ in range(3)]
    found = {name: np.median([turn[name] for turn in turns]) for name in turns[0]}
    for name, rate in found.items():
        print(f"{name:7} {rate:8,.0f} images per second (median of 3)")
    loader, rate = found["loader"], found["device"]
    apart, perfect = 1 / (1 / loader + 1 / rate), min(loader, rate)
    print(f"computed: {apart:,.0f} without overlap, {perfect:,.0f} with perfect overlap")
    print(f"you predicted {guess or '?'}; slower is the {min(('loader', 'device'), key=found.get)}")
    print(f"headroom: without waiting for images, {rate / found['both']:.2f} times as fast")

# %% [markdown]
# On a GPU, kernels run while the next batch loads, so `both` can approach the slower of the two. On a CPU, `train` returns when the step is done, so nothing overlaps: `both` is close to *without overlap* (unless other programs slowed one of the three). [If the loader is the slower one](../docs/troubleshooting.md#the-gpu-waits-for-data-or-dali-is-not-faster), more workers or DALI help. `rn50 diagnose` makes these measurements for any configuration, and `rn50 workshop try --headroom` for any script.
#
# ## ex05.exact · Every image once
#
# *fill in · medium · 10 minutes*
#
# Validation must not drop images or count them twice. With `pad_last_batch=True`, DALI's reader does this:
#
# - Of `N` images, rank `r` of `size` gets image number `r·N // size` up to, but not including, `(r+1)·N // size`. So some ranks have one more image than others.
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
