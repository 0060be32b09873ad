# %% [markdown]
# # ex06 · Mixed precision
#
# In these exercises, you compute how much memory 16 bits save, train with your own dynamic loss scale, and fix a training step that updates the weights twice.
#
# **Time:** 40 minutes · **Needs:** notebook 06, PyTorch · **On a CPU:** half a minute to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

# %% [markdown]
# **How it works.** Replace `...` in a cell, run the cell, then run the check below it. The check tells you what is wrong and what to do. Stuck? Run `workshop.hint("ex06.scaler")` in a new cell for up to three hints, one per call; after that, `workshop.solution("ex06.scaler")` shows a solution. Your progress is saved in the folder `answers/`.

# %%
import workshop

session = workshop.start("ex06", profile)

# %% [markdown]
# ## ex06.memory · What 16 bits save
#
# *predict, then measure · medium · 8 minutes*
#
# ResNet-50 has 25.6 million parameters. For every 224-pixel image of a batch, training keeps 21.5 million activations until the backward pass has used them.
#
# | | float32 | float16, mixed |
# |---|---|---|
# | an activation | 4 bytes | 2 bytes |
# | weight, gradient and momentum of a parameter | 4 bytes each | 4 bytes each, as in float32 |
# | the copy of a weight that the step computes with | none | 2 bytes |
#
# How many **MB** (millions of bytes) do weights, gradients, momentum and activations take together, for a batch of 1 and a batch of 96? Guess first: which of the two formats needs less for a single image?

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
# Notebook 06 measured this: it printed how many MB autograd keeps for one 224-pixel image. In 16 bits, it is slightly more than half, because a few things do not shrink, such as the indices that max pooling stores.
#
# ## ex06.scaler · A dynamic loss scale
#
# *fill in · medium · 10 minutes*
#
# Write the update rule for a dynamic loss scale. After every step it receives the scale, the number of consecutive good steps before this one, whether all gradients were finite, and the number of good steps after which the scale grows. It returns the next scale and the new number of good steps.
#
# | what happened | the scale | good steps |
# |---|---|---|
# | a gradient was infinite or NaN | is halved, but not below 1 | reset to 0 |
# | a good step, the `growth_steps`-th in a row | is doubled, but not beyond 2^24 | reset to 0 |
# | any other good step | does not change | one more |


# %% tags=["answer", "ex06.scaler"]
def loss_scale_update(scale: float, good_steps: int, finite: bool, growth_steps: int):
    """Return the next loss scale, and the number of consecutive good steps."""
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
# Your reward: a real run in float16 with your rule. The scale starts far too high, at 2^24, and grows after 10 good steps. How many steps do you expect to be skipped before it is low enough?

# %%
run = workshop.use(
    loss_scale_update=loss_scale_update, dtype="float16", loss_scale="dynamic:16777216:10",
    disp_batches=1, no_val=True,
)  # fmt: skip

# %%
if run:
    found = run.report["env"]["loss_scale"]
    print(f"{found['skipped_updates']} updates skipped; the scale ends at {found['scale']:,.0f}.")

# %% [markdown]
# ## ex06.step · One step too many
#
# *find the bug · hard · 14 minutes*
#
# This training step runs, and its loss may even fall, but three things are wrong with it. It uses PyTorch's loss scaler, which works like this:
#
# | call | what it does |
# |---|---|
# | `scaler.scale(loss)` | returns the loss times the scale |
# | `scaler.unscale_(optimizer)` | divides the gradients by the scale, in place; once per step |
# | `scaler.step(optimizer)` | unscales, unless you have done it; then calls `optimizer.step()`, but not if a gradient is infinite or NaN |
# | `scaler.update()` | halves the scale after an overflow, doubles it after enough good steps |
# | `torch.nn.utils.clip_grad_norm_(parameters, 1.0)` | scales the gradients down if their total norm is larger than 1 |
#
# PyTorch *adds* new gradients to the existing ones; `optimizer.zero_grad()` clears them. Run the cell and use its table to find out what happens. The model has two weights; an "overflow" is a batch whose gradients are infinite.


# %%
def broken_step(model, images, targets, optimizer, scaler):
    """Run one training step with a loss scale. Three things are wrong."""
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
# Copy it into the next cell as `train_step` and fix it. A small gradient should be used unchanged, a large one should be clipped to a norm of 1, and an overflow should only change the scale. Here, two good steps double the scale.


# %% tags=["answer", "ex06.step"]
def train_step(model, images, targets, optimizer, scaler):
    """Run one step: scale the loss, clip gradients to a norm of 1, skip the update on overflow."""
    import torch

    ### BEGIN SOLUTION
    optimizer.zero_grad()  # otherwise the last step's gradients are added
    scaler.scale(torch.nn.functional.mse_loss(model(images), targets)).backward()
    scaler.unscale_(optimizer)  # first, so that the unscaled gradients are clipped
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
    scaler.step(optimizer)  # the only update; skipped on an overflow
    scaler.update()  # after every step, skipped or not
    ### END SOLUTION


# %% tags=["check", "ex06.step"]
workshop.check("ex06.step", train_step)

# %% [markdown]
# ## ex06.layout · Memory layouts
#
# *fill in · medium · 8 minutes*
#
# A batch of feature maps has four axes: image `n`, channel `c`, row `h`, column `w`. Memory has only one. A layout defines which axis changes slowest and which fastest: in `"NCHW"`, the columns of a row are adjacent; in `"NHWC"`, the channels of a pixel.
#
# The **stride** of an axis is the distance in memory to its next element, counted in elements. The fastest axis has stride 1; the stride of any other axis is the product of the sizes of all faster axes. Here is a batch of two images with 3 channels, 4 rows and 5 columns:
#
# | | `n` | `c` | `h` | `w` |
# |---|---|---|---|---|
# | `"NCHW"` | 3 · 4 · 5 = 60 | 4 · 5 = 20 | 5 | 1 |
# | `"NHWC"` | ? | ? | ? | ? |
#
# Tensor Cores are fastest with adjacent channels, in multiples of 8 for 16 bits. So the number of channels is rounded up to a multiple and padded with zeros: with `multiple` 4, 3 channels take the space of 4.
#
# Write `strides(shape, order, multiple)` for both layouts. It returns four numbers, for `n`, `c`, `h` and `w`.


# %% tags=["answer", "ex06.layout"]
def strides(shape, order: str, multiple: int) -> tuple:
    """Return the strides of n, c, h and w in "NCHW" or "NHWC", channels padded to a multiple."""
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
# PyTorch calls NHWC `channels_last`. The shape does not change, only the strides. Compare yours with PyTorch's:

# %%
import torch

images = torch.empty(2, 3, 4, 5)
last = images.to(memory_format=torch.channels_last)
print(f"NCHW: {tuple(images.shape)}, PyTorch's strides {images.stride()}")
print(f"NHWC: {tuple(last.shape)}, PyTorch's strides {last.stride()}")
print(f"Yours: {strides((2, 3, 4, 5), 'NCHW', 1)} and {strides((2, 3, 4, 5), 'NHWC', 1)}")
