# %% [markdown]
# # ex02 · One GPU
#
# In these exercises, you turn ResNet v1 into v1.5, write its learning-rate schedule and its weight-decay groups, and train with them.
#
# **Time:** 44 minutes · **Needs:** notebook 02 · **On a CPU:** about a minute to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

# %% [markdown]
# **How it works.** Replace `...` in a cell, run the cell, then run the check below it. The check tells you what is wrong and what to do. Stuck? Run `workshop.hint("ex02.stride")` in a new cell for up to three hints, one per call; after that, `workshop.solution("ex02.stride")` shows a solution. Your progress is saved in the folder `answers/`.

# %%
import workshop

session = workshop.start("ex02", profile)

# %% [markdown]
# ## ex02.stride · From v1 to v1.5
#
# *fill in · easy · 8 minutes*
#
# ResNet-50 has four stages of 3, 4, 6 and 3 bottlenecks. A bottleneck is three convolutions, 1×1, 3×3 and 1×1, with a shortcut around them. In the first block of a stage the number of channels changes, so its shortcut needs a convolution too, the *projection*. The first block of stages 1, 2 and 3 also halves the image size: a convolution there has stride 2.
#
# | | first 1×1 | 3×3 | last 1×1 | projection |
# |---|---|---|---|---|
# | v1, stage 2, block 0 | **2** | 1 | 1 | 2 |
# | v1, stage 2, block 1 | 1 | 1 | 1 | none |
#
# In v1 the first 1×1 has the stride, so it uses only a quarter of the pixels. In v1.5 the **3×3** has it. Write `strides(stage, index)` for v1.5, with both counted from 0. It returns four values, with `None` for a missing projection.


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
# Now let the library count:

# %%
from rn50lib import resnet as network

v1, v15 = (network.resnet(50, version=name).macs(224) for name in ("v1", "v1.5"))
print(f"v1   {v1:>13,} multiply-adds\nv1.5 {v15:>13,}, {100 * (v15 - v1) / v1:.2f}% more")

# %% [markdown]
# ## ex02.schedule · The learning rate
#
# *fill in · medium · 12 minutes*
#
# Write `schedule(progress, global_batch, recipe)`, which returns the learning rate after `progress` epochs. `progress` may be fractional. The rate follows three rules.
#
# - **Linear scaling**: the rate is `recipe.lr` at a global batch of `recipe.lr_batch`, and proportional to the global batch.
# - **Warm-up**: it rises linearly from 0 and reaches that rate after `recipe.warmup_epochs` (which may be 0).
# - **Decay**: it is multiplied by `recipe.lr_factor` at each epoch in the tuple `recipe.lr_step_epochs`.


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
# `workshop.use` writes your cell to `answers/ex02.py` and trains with it: the training loop now calls your function before every step.

# %%
run = workshop.use(schedule=schedule)

# %% [markdown]
# ## ex02.decay · What should not decay
#
# *fill in · easy · 8 minutes*
#
# Weight decay pulls weights towards zero. Batch norm's scales and shifts and the biases do not benefit: they are few, and a scale of zero switches a channel off. Many recipes exclude them (this course's reference recipe does not).
#
# Write `decay_groups(names)`: it takes the names of all parameters and returns two lists, first the names with weight decay, then those without, each in the original order. In this library, convolutions have a `weight`, the fully-connected layer has a `weight` and a `bias`, and batch norm has `gamma` and `beta`. For example:
#
# ```
# layer1.0.conv1.weight  layer1.0.bn1.gamma  layer1.0.downsample.weight  layer1.0.downsample_bn.beta  fc.bias
# ```


# %% tags=["answer", "ex02.decay"]
def decay_groups(names):
    """Return two lists of parameter names: with and without weight decay."""
    ### BEGIN SOLUTION
    names = list(names)
    decayed = [name for name in names if name.endswith(".weight")]
    plain = [name for name in names if not name.endswith(".weight")]
    return decayed, plain
    ### END SOLUTION


# %% tags=["check", "ex02.decay"]
workshop.check("ex02.decay", decay_groups)

# %%
run = workshop.use(decay_groups=decay_groups)

# %% [markdown]
# ## ex02.tune · Through the valley
#
# *tune to a target · hard · 10 minutes*
#
# Why is there a maximum learning rate, and what is momentum for? The simplest problem that shows both is a valley whose walls are 100 times steeper than its floor. SGD starts at a distance of 1 from the bottom in both directions, and updates each direction like this:
#
# ```
# velocity = momentum · velocity + curvature · distance
# distance = distance − lr · velocity
# ```
#
# It is stable while `lr · curvature < 2 (1 + momentum)`. After 60 steps, both distances should be at most 0.001. With the usual momentum of 0.9, no learning rate on the slider reaches that target. Move the controls to find a pair that does, and enter it below.

# %%
from workshop.lessons import nb02

nb02.explore_valley()

# %% tags=["answer", "ex02.tune"]
# (learning rate, momentum)
### BEGIN SOLUTION
settings = (0.03, 0.72)
### END SOLUTION

# %% tags=["check", "ex02.tune"]
workshop.check("ex02.tune", settings)
