# %% [markdown]
# # ex02 · One GPU
#
# After these exercises you have turned ResNet v1 into v1.5, written its learning rate and its weight decay, and trained with them.
#
# **Time:** 44 minutes · **Needs:** notebook 02 · **On a CPU:** about a minute to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

# %% [markdown]
# **How it works.** Replace `...` in a cell, run it, and run the check below it. A check says what is wrong and what to do. Stuck? Type `workshop.hint("ex02.stride")` into a new cell: it gives three hints, one at a time, each saying more than the last. After them `workshop.solution("ex02.stride")` shows a solution. What you have passed is kept in the folder `answers/`.

# %%
import workshop

session = workshop.start("ex02", profile)

# %% [markdown]
# ## ex02.stride · From v1 to v1.5
#
# *fill in · easy · 8 minutes*
#
# ResNet-50 has four stages of 3, 4, 6 and 3 bottlenecks. A bottleneck is three convolutions, 1×1, 3×3 and 1×1, and a shortcut around them. The shortcut of a stage's first block has a convolution of its own, the *projection*, because the number of channels changes there. The first block of stages 1, 2 and 3 also halves the picture: a convolution there has stride 2.
#
# | | first 1×1 | 3×3 | last 1×1 | projection |
# |---|---|---|---|---|
# | v1, stage 2, block 0 | **2** | 1 | 1 | 2 |
# | v1, stage 2, block 1 | 1 | 1 | 1 | none |
#
# In v1 the stride stands on the first 1×1, which therefore looks at a quarter of the pixels only. In v1.5 the **3×3** has it. Write `strides(stage, index)` for v1.5, both counted from 0: four values, `None` where there is no projection.


# %% tags=["answer", "ex02.stride"]
def strides(stage: int, index: int) -> tuple:
    """The strides of a v1.5 bottleneck: first 1x1, 3x3, last 1x1, projection (None: it has none)."""
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
# Moving the stride changes no parameter. How many **per cent** more multiplications does v1.5 need for a picture? Predict it before you count.
#
# A convolution takes `in channels × out channels × kernel² × pixels of the output` multiplications. At 224 pixels, v1 needs 3,858 million in all. These are the convolutions in front of which the picture is halved:
#
# | first 1×1 of the block | in | out | output in v1 |
# |---|---|---|---|
# | stage 1, block 0 | 256 | 128 | 28 × 28 |
# | stage 2, block 0 | 512 | 256 | 14 × 14 |
# | stage 3, block 0 | 1024 | 512 | 7 × 7 |

# %% tags=["answer", "ex02.work"]
# How many per cent more multiplications than v1?
### BEGIN SOLUTION
extra_percent = 100 * 3 * 3 * (256 * 128 * 28**2) / 3858e6
### END SOLUTION

# %% tags=["check", "ex02.work"]
workshop.check("ex02.work", extra_percent)

# %% [markdown]
# Now count: the library knows every layer of both.

# %%
from rn50lib import resnet as network

v1, v15 = (network.resnet(50, version=name).macs(224) for name in ("v1", "v1.5"))
print(f"v1   {v1:>13,} multiply-adds\nv1.5 {v15:>13,}, {100 * (v15 - v1) / v1:.2f} % more")

# %% [markdown]
# ## ex02.schedule · The learning rate
#
# *fill in · medium · 12 minutes*
#
# Write `schedule(progress, global_batch, recipe)`: the learning rate after `progress` epochs, a number with a fraction. Three rules make it.
#
# - **Linear scaling**: the rate is `recipe.lr` at a global batch of `recipe.lr_batch`, and proportional to the global batch.
# - **Warm-up**: from 0 at the start it rises in a straight line, and reaches that rate after `recipe.warmup_epochs` (which may be 0).
# - **Decay**: from each epoch of the tuple `recipe.lr_step_epochs` on, it is multiplied by `recipe.lr_factor` once more.


# %% tags=["answer", "ex02.schedule"]
def schedule(progress: float, global_batch: int, recipe) -> float:
    """The learning rate after `progress` epochs."""
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
# `workshop.use` writes your cell to `answers/ex02.py` and trains with it: the real loop now asks your function before every step.

# %%
run = workshop.use(schedule=schedule)

# %% [markdown]
# ## ex02.decay · What should not decay
#
# *fill in · easy · 8 minutes*
#
# Weight decay pulls weights towards zero. For the scales and shifts of batch norm and for biases that helps nobody: they are few, and a scale of zero switches a channel off. Many recipes leave them out (the reference of this course does not).
#
# Write `decay_groups(names)`: it takes the names of all parameters, and returns two lists, first the names with weight decay, then those without, each in the order in which they came. In this library convolutions and the fully-connected layer have a `weight`, the latter also a `bias`; batch norm has `gamma` and `beta`. Some names:
#
# ```
# layer1.0.conv1.weight  layer1.0.bn1.gamma  layer1.0.downsample.weight  layer1.0.downsample_bn.beta  fc.bias
# ```


# %% tags=["answer", "ex02.decay"]
def decay_groups(names):
    """Two lists of parameter names: with and without weight decay."""
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
# Why is there a largest learning rate, and what is momentum for? The smallest problem that shows both is a valley whose walls are 100 times steeper than its floor. SGD starts at a distance of 1 from the bottom in both directions, and does this with each of them:
#
# ```
# velocity = momentum · velocity + curvature · distance
# distance = distance − lr · velocity
# ```
#
# It stays stable while `lr · curvature < 2 (1 + momentum)`. The target: after 60 steps both distances are at most 0.001. The usual momentum of 0.9 does not reach it, whatever the rate. Move the controls, then write down a pair that does.

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
