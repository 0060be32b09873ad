# %% [markdown]
# # ex02 · One GPU
#
# In these exercises, you turn ResNet v1 into v1.5, write its learning-rate schedule and train with it, find a data set's slow part, and tune SGD.
#
# **Time:** 48 minutes · **Needs:** notebook 02 · **On a CPU:** about a minute to run
#
# Replace `...` in a cell, run it, then run the check below it. Stuck? `workshop.hint("ex02.stride")` gives the next of three hints, `workshop.solution("ex02.stride")` a solution.

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

# %%
import workshop

session = workshop.start("ex02", profile)

# %% [markdown]
# ## ex02.stride · From v1 to v1.5
#
# *fill in · easy · 8 minutes*
#
# ResNet-50 has four stages of 3, 4, 6 and 3 bottlenecks. A bottleneck is three convolutions, 1×1, 3×3 and 1×1, with a shortcut around them. In the first block of a stage the number of channels changes, so its shortcut needs a convolution too, the *projection*. The first block of every stage but 0 also halves the image size: the projection and one of the three convolutions there have stride 2.
#
# | | first 1×1 | 3×3 | last 1×1 | projection |
# |---|---|---|---|---|
# | v1, stage 2, block 0 | **2** | 1 | 1 | 2 |
# | v1, stage 2, block 1 | 1 | 1 | 1 | none |
#
# In v1 the first 1×1 has the stride, and in v1.5 the **3×3**. A pixel whose gradient is zero is never used:

# %%
import torch
from torch import nn

ones = torch.ones(1, 1, 8, 8, requires_grad=True)
for name, conv in {
    "v1, 1×1 with stride 2": nn.Conv2d(1, 1, 1, stride=2),
    "v1.5, 3×3 with stride 2": nn.Conv2d(1, 1, 3, stride=2, padding=1),
}.items():
    (gradient,) = torch.autograd.grad(conv(ones).sum(), ones)
    used = (gradient != 0)[0, 0]
    print(f"{name}: uses {100 * used.float().mean():.0f}% of its input")
    print("\n".join("".join(" ■" if pixel else " ·" for pixel in row) for row in used[:4]), "\n")

# %% [markdown]
# Write `strides(stage, index)` for v1.5, with both counted from 0. It returns four values, with `None` for a missing projection.


# %% tags=["answer", "ex02.stride"]
def strides(stage: int, index: int) -> tuple:
    """Return the strides of a v1.5 bottleneck: first 1x1, 3x3, last 1x1, projection (or None)."""
    ### BEGIN SOLUTION
    stride = 2 if stage > 0 and index == 0 else 1
    projection = stride if index == 0 else None
    return 1, stride, 1, projection
    ### END SOLUTION


# %% tags=["check", "ex02.stride"]
workshop.check("ex02.stride", strides)

# %% [markdown]
# ## ex02.work · What the stride costs
#
# *predict, then measure · medium · 6 minutes*
#
# Moving the stride does not change the number of parameters. How many more multiplications does v1.5 need per image, in **percent**? Predict before you count.
#
# A convolution takes `in channels × out channels × kernel² × output pixels` multiplications. At 224 pixels, v1 needs 3,858 million in total. In v1, these blocks halve the image before the 3×3 convolution:
#
# | first 1×1 of the block | in | out | output in v1 |
# |---|---|---|---|
# | stage 1, block 0 | 256 | 128 | 28 × 28 |
# | stage 2, block 0 | 512 | 256 | 14 × 14 |
# | stage 3, block 0 | 1024 | 512 | 7 × 7 |

# %% tags=["answer", "ex02.work"]
# Extra multiplications compared with v1, in percent
### BEGIN SOLUTION
extra_percent = 100 * 3 * 3 * (256 * 128 * 28**2) / 3858e6
### END SOLUTION

# %% tags=["check", "ex02.work"]
workshop.check("ex02.work", extra_percent)

# %% [markdown]
# ## ex02.schedule · The learning rate
#
# *fill in · medium · 12 minutes*
#
# Write `schedule(progress, global_batch, recipe)`, which returns the learning rate after `progress` epochs. `progress` may be fractional. The rate follows three rules.
#
# - **Linear scaling**: the rate is `recipe.lr` at a global batch of `recipe.lr_batch`, and proportional to the global batch.
# - **Warm-up**: it rises linearly from 0 and reaches that rate after `recipe.warmup_epochs` (which may be 0).
# - **Decay**: it is multiplied by `recipe.lr_factor` from each epoch in the tuple `recipe.lr_step_epochs` on (`progress >= epoch`).


# %% tags=["answer", "ex02.schedule"]
def schedule(progress: float, global_batch: int, recipe) -> float:
    """Return the learning rate after `progress` epochs."""
    ### BEGIN SOLUTION
    peak = recipe.lr * global_batch / recipe.lr_batch
    if progress < recipe.warmup_epochs:
        return peak * progress / recipe.warmup_epochs
    reached = sum(progress >= epoch for epoch in recipe.lr_step_epochs)
    return peak * recipe.lr_factor**reached
    ### END SOLUTION


# %% tags=["check", "ex02.schedule"]
workshop.check("ex02.schedule", schedule)

# %% [markdown]
# `workshop.use` writes your cell to `answers/ex02.py` and trains with it: the training loop now calls your function before every step. The last line shows the rate every 10 training steps; so short a training learns nothing else.

# %%
import json

if run := workshop.use(schedule=schedule):
    lines = map(json.loads, (run / "progress.jsonl").read_text().splitlines())
    print("rate:", *(f"{line['lr']:.2g}" for line in lines if line["phase"] == "train"))

# %% [markdown]
# ## ex02.profile · The slow part of a data set
#
# *fill in · medium · 12 minutes*
#
# A GPU waits for input, and you have found that the data set is slow. But which part of `__getitem__`? Python's profiler, `cProfile`, times every function:
#
# | | |
# |---|---|
# | `cProfile.Profile(clock)` | a profiler, here `profile`, that reads the time from `clock`, such as `time.perf_counter` |
# | `profile.runcall(function, …)` | calls a function and records everything that it calls |
# | `pstats.Stats(profile).stats` | a dictionary: `(file, line, name): (primitive calls, all calls, own, total, callers)` |
#
# `own` is the time spent in the function itself, in seconds; `total` includes the functions it calls.
#
# Write `loader_ms(dataset, clock)`. It reads every item of the data set under the profiler. `dataset.parts` lists the names of the methods that `__getitem__` calls. Return a dictionary with these names only: how many **milliseconds per image** each takes, including what it calls.

# %% tags=["answer", "ex02.profile"]
import cProfile
import pstats


def loader_ms(dataset, clock) -> dict[str, float]:
    """Return the milliseconds per image of each of `dataset.parts`, by name."""
    ### BEGIN SOLUTION
    profile = cProfile.Profile(clock)
    for i in range(len(dataset)):
        profile.runcall(dataset.__getitem__, i)
    found = dict.fromkeys(dataset.parts, 0.0)
    for (_, _, name), (_, _, _own, total, _) in pstats.Stats(profile).stats.items():
        if name in found:
            found[name] += 1000 * total / len(dataset)
    return found
    ### END SOLUTION


# %% tags=["check", "ex02.profile"]
workshop.check("ex02.profile", loader_ms)

# %% [markdown]
# Now use it on this data set of road signs. The code is typical, but one part takes far too long. **Predict** which.

# %%
import time

from PIL import Image

from workshop.checks import engine
from workshop.session import ensure_data


class Photos:
    parts = ("decode", "crop", "label")

    def __init__(self, folder):
        self.folder, self.files = folder, sorted(folder.glob("*/*.jpg"))[:48]

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        return self.crop(self.decode(i)), self.label(i)

    def decode(self, i):
        return Image.open(self.files[i]).convert("RGB")

    def crop(self, image):
        return image.resize((64, 64), Image.Resampling.BILINEAR, (16, 16, 112, 112))

    def label(self, i):
        classes = {file.parent.name for file in self.folder.glob("*/*.jpg")}
        return sorted(classes).index(self.files[i].parent.name)


ensure_data(session.data_root, session.profile)
if not engine.unanswered(loader_ms):
    found = loader_ms(Photos(session.data_root / "train"), time.perf_counter)
    for name, ms in sorted(found.items(), key=lambda item: -item[1]):
        print(f"{name:9} {ms:7.2f} ms per image")

# %% [markdown]
# `label` searches the whole folder for every image: the total grows with the *square* of the data set's size. Change the cell: collect the classes once, in `__init__`, and run it again. Decoding should then be the largest part.
#
# A profiler adds time to every Python call. `label` makes very many of them and looks slower than it is, possibly several times; `decode` spends its time in C and hardly changes. So use a profiler to find what to look at, and measure times without it.
#
# ## ex02.tune · Through the valley
#
# *tune to a target · medium · 10 minutes*
#
# Why is there a maximum learning rate, and what is momentum for? The simplest problem that shows both is a valley with curvature 1 along its floor and 100 across it. SGD starts at a distance of 1 from the bottom in both directions, and updates each distance like this:
#
# ```
# velocity = momentum · velocity + curvature · distance
# distance = distance − lr · velocity
# ```
#
# It is stable while `lr · curvature < 2 (1 + momentum)`. After 60 steps, both distances should be at most 0.001. With the usual momentum of 0.9, almost no learning rate reaches that target. Find a pair that does: change the two numbers, and rerun. Then enter it below.

# %%
import matplotlib.pyplot as plt
import numpy as np

lr, momentum = 0.02, 0.9  # change these
distance, velocity, path = np.ones(2), np.zeros(2), []
for _ in range(60):
    velocity = momentum * velocity + np.array([1, 100]) * distance
    distance = distance - lr * velocity
    path.append(abs(distance))
fig, ax = plt.subplots(figsize=(9, 3.4))
ax.semilogy(path, label=["along the valley", "across it"])
ax.axhline(0.001, color="black", ls="--", label="target")
ax.legend()
ax.set(xlabel="step", ylabel="distance from the bottom")
ax.set_title(f"After 60 steps with lr {lr} and momentum {momentum}: {max(path[-1]):.1e}")
workshop.figure(fig, alt="{:.1e} along the valley, {:.1e} across it".format(*path[-1]))

# %% tags=["answer", "ex02.tune"]
# (learning rate, momentum)
### BEGIN SOLUTION
settings = (0.03, 0.72)
### END SOLUTION

# %% tags=["check", "ex02.tune"]
workshop.check("ex02.tune", settings)
