# %% [markdown]
# # ex06 · Mixed precision
#
# After these exercises you know what 16 bits save, have trained with a loss scale of your own making, and recognise a step that is taken twice.
#
# **Time:** 40 minutes · **Needs:** notebook 06, PyTorch · **On a CPU:** half a minute to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

# %% [markdown]
# **How it works.** Replace `...` in a cell, run it, and run the check below it. A check says what is wrong and what to do. Stuck? Type `workshop.hint("ex06.scaler")` into a new cell: it gives three hints, one at a time, each saying more than the last. After them `workshop.solution("ex06.scaler")` shows a solution. What you have passed is kept in the folder `answers/`.

# %%
import workshop

session = workshop.start("ex06", profile)

# %% [markdown]
# ## ex06.memory · What 16 bits save
#
# *predict, then measure · medium · 8 minutes*
#
# ResNet-50 has 25.6 million parameters. For every image of a batch, training keeps 21.5 million activations at 224 pixels until the backward pass has used them.
#
# | | float32 | float16, mixed |
# |---|---|---|
# | an activation | 4 bytes | 2 bytes |
# | weight, gradient and momentum of a parameter | 4 bytes each | 4 bytes each: the master weights |
# | the copy of a weight that the step computes with | none | 2 bytes |
#
# How many **MB** (millions of bytes) do these four things take together, for a batch of 1 and for one of 96? Before you compute, guess: which of the two formats needs less for a single image?

# %% tags=["answer", "ex06.memory"]
# MB for batches of 1 and 96: {"float32": [.., ..], "float16": [.., ..]}
### BEGIN SOLUTION
megabytes = {
    "float32": [12 * 25.6 + 4 * 21.5 * n for n in (1, 96)],
    "float16": [14 * 25.6 + 2 * 21.5 * n for n in (1, 96)],
}
### END SOLUTION

# %% tags=["check", "ex06.memory"]
workshop.check("ex06.memory", megabytes)

# %% [markdown]
# Now count: the library knows every layer. It leaves the fully-connected layer in float32, so that the copy is a little smaller than yours, and it adds what the pooling and batch norm keep.

# %%
from rn50lib import memory
from rn50lib import resnet as network

resnet50 = network.resnet(50)
for dtype in ("float32", "float16"):
    for batch in (1, 96):
        m = memory.predict(resnet50, 224, batch, dtype)
        counted = (m.weights + m.gradients + m.momentum + m.activations) / 1e6
        print(f"{dtype}, batch {batch:2}: {counted:7,.0f} MB")

# %% [markdown]
# ## ex06.scaler · A loss scale that finds itself
#
# *fill in · medium · 10 minutes*
#
# Write the rule of the dynamic loss scale. It is called after every step, with the scale that the step had, the number of good steps in a row before it, whether all gradients were finite, and how many good steps it takes to grow. It returns the next scale and the next number of good steps.
#
# | what happened | the scale | good steps |
# |---|---|---|
# | a gradient was infinite or not a number | is halved, but not below 1 | begin at 0 again |
# | a good step, and with this one there are `growth_steps` in a row | is doubled, but not beyond 2^24 | begin at 0 again |
# | any other good step | stays | one more |


# %% tags=["answer", "ex06.scaler"]
def loss_scale_update(scale: float, good_steps: int, finite: bool, growth_steps: int):
    """The next loss scale, and the good steps in a row with it."""
    ### BEGIN SOLUTION
    if not finite:
        return max(scale / 2, 1.0), 0
    if good_steps + 1 < growth_steps:
        return scale, good_steps + 1
    return min(scale * 2, 2.0**24), 0
    ### END SOLUTION


# %% tags=["check", "ex06.scaler"]
workshop.check("ex06.scaler", loss_scale_update)

# %% [markdown]
# The reward: a real run in float16, whose scale your rule finds. It begins far too high, with 2^24, and grows after 10 good steps. How many steps do you expect to be skipped before it has come down?

# %%
run = workshop.use(
    loss_scale_update=loss_scale_update, dtype="float16", loss_scale="dynamic:16777216:10",
    disp_batches=1, no_val=True,
)  # fmt: skip

# %%
from workshop.lessons import nb06

if run:
    fig, finding = nb06.scaled_run(run.progress, run.report)
    workshop.figure(fig, alt=f"Training loss and loss scale of the run. {finding}")
    print(finding)

# %% [markdown]
# ## ex06.step · A step too many
#
# *find the bug · hard · 14 minutes*
#
# This training step runs, and its loss may even fall. Three things are wrong with it. It uses PyTorch's loss scaler, which does the following:
#
# | call | what it does |
# |---|---|
# | `scaler.scale(loss)` | the loss times the scale |
# | `scaler.unscale_(optimizer)` | divides the gradients by the scale, in place; once in a step |
# | `scaler.step(optimizer)` | unscales, unless you have done it; then calls `optimizer.step()`, but not if a gradient is infinite or not a number |
# | `scaler.update()` | halves or doubles the scale, by what `step` has seen |
# | `torch.nn.utils.clip_grad_norm_(parameters, 1.0)` | makes the gradients shorter, where all together are longer than 1 |
#
# PyTorch *adds* new gradients to those that are still there; `optimizer.zero_grad()` empties them. Run the cell, and find out from the table what happens. The model in it has two weights; an "overflow" is a batch whose gradients are infinite.


# %%
def broken_step(model, images, targets, optimizer, scaler):
    """One training step with a loss scale. Three things are wrong."""
    import torch

    loss = torch.nn.functional.mse_loss(model(images), targets)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    optimizer.step()
    scaler.update()


from workshop.checks import ex06

ex06.show_steps(broken_step)

# %% [markdown]
# Copy it into the next cell as `train_step` and mend it. A small gradient should be used as it is, a large one clipped to a length of 1, and an overflow should change nothing but the scale. Two good steps double the scale here.


# %% tags=["answer", "ex06.step"]
def train_step(model, images, targets, optimizer, scaler):
    """One training step: scaled loss, gradients clipped to a norm of 1, no step on an overflow."""
    import torch

    ### BEGIN SOLUTION
    optimizer.zero_grad()  # what is left of the last step would be added
    scaler.scale(torch.nn.functional.mse_loss(model(images), targets)).backward()
    scaler.unscale_(optimizer)  # first, so that real gradients are clipped
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.step(optimizer)  # the only step, and none on an overflow
    scaler.update()  # after every step, taken or not
    ### END SOLUTION


# %% tags=["check", "ex06.step"]
workshop.check("ex06.step", train_step)

# %% [markdown]
# ## ex06.layout · Where the numbers lie
#
# *fill in · medium · 8 minutes*
#
# A batch of feature maps has four axes: image `n`, channel `c`, row `h`, column `w`. Memory has one. A layout says which axis changes slowest and which fastest: in `"NCHW"` the columns of a row lie side by side, in `"NHWC"` the channels of a pixel.
#
# The **stride** of an axis says how many numbers further on its next element lies. The fastest axis has 1; each slower one steps over all that is faster than it. Here is a batch of two pictures with 3 channels, 4 rows and 5 columns:
#
# | | `n` | `c` | `h` | `w` |
# |---|---|---|---|---|
# | `"NCHW"` | 3 · 4 · 5 = 60 | 4 · 5 = 20 | 5 | 1 |
# | `"NHWC"` | ? | ? | ? | ? |
#
# The units that multiply matrices want channels side by side, in multiples of 8 if there are 16 bits. So the channels in memory are rounded up to a multiple, and the rest is zeros: with `multiple` 4, 3 channels take the room of 4.
#
# Write `strides(shape, order, multiple)`: four numbers, for `n`, `c`, `h`, `w`, whichever of the two orders it is.


# %% tags=["answer", "ex06.layout"]
def strides(shape, order: str, multiple: int) -> tuple:
    """The strides of n, c, h and w in "NCHW" or "NHWC", with channels padded to a multiple."""
    n, c, h, w = shape
    ### BEGIN SOLUTION
    c = -(-c // multiple) * multiple
    if order == "NCHW":
        return c * h * w, h * w, w, 1
    return h * w * c, 1, w * c, c
    ### END SOLUTION


# %% tags=["check", "ex06.layout"]
workshop.check("ex06.layout", strides)

# %% [markdown]
# PyTorch calls NHWC `channels_last`. The shape that it shows stays the same, and only the strides tell the two apart. These are its own:

# %%
try:
    import torch
except ImportError:
    print("PyTorch is not installed here.")
else:
    pictures = torch.empty(2, 3, 4, 5)
    last = pictures.to(memory_format=torch.channels_last)
    print(f"NCHW: {tuple(pictures.shape)}, PyTorch's strides {pictures.stride()}")
    print(f"NHWC: {tuple(last.shape)}, PyTorch's strides {last.stride()}")
    print(f"Yours: {strides((2, 3, 4, 5), 'NCHW', 1)} and {strides((2, 3, 4, 5), 'NHWC', 1)}")
