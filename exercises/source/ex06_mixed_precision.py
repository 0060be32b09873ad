# %% [markdown]
# # ex06 · Mixed precision
#
# In these exercises, you compute how much memory 16 bits save, count autocast's conversions, fix a training step with three bugs, and compute memory strides.
#
# **Time:** 40 minutes · **Needs:** notebook 06, PyTorch · **On a CPU:** half a minute to run
#
# Replace `...` in a cell, run it, then run the check below it. Stuck? `workshop.hint("ex06.casts")` gives the next of three hints, `workshop.solution("ex06.casts")` a solution.

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

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
# How many **MB** (millions of bytes) do all of these take together, for a batch of 1 and a batch of 96? Guess first: which of the two formats needs less for a single image?

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
# In reality, 16 bits keep slightly more than half of the activations' bytes, because a few things do not shrink, such as the indices that max pooling stores.
#
# ## ex06.casts · The price of autocast
#
# *fill in · medium · 10 minutes*
#
# `autocast` converts inputs and weights to 16 bits before each convolution or linear layer. Each conversion reads and writes a whole tensor. How many are there? Write `casts(work)`, which calls `work()` under `torch.profiler` and returns the number of conversions.
#
# | operator in the profile | runs |
# |---|---|
# | `aten::to` | for every `x.to(…)`, `x.float()` or `x.half()`, even if `x` already has that type |
# | `aten::_to_copy` | inside it, only if something is converted |
# | `aten::copy_` | inside that, and for every other copy: `clone()`, `contiguous()` … |
#
# `torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])` is a context manager. Afterwards, its `key_averages()` returns one entry per kind of operator, with a `key` such as `"aten::to"` and a `count`.


# %% tags=["answer", "ex06.casts"]
def casts(work) -> int:
    """Return how many tensors are converted to a different type while work() runs."""
    import torch

    ### BEGIN SOLUTION
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        work()
    return sum(row.count for row in profile.key_averages() if row.key == "aten::_to_copy")
    ### END SOLUTION


# %% tags=["check", "ex06.casts"]
workshop.check("ex06.casts", casts)

# %% [markdown]
# Now avoid some. This step accumulates the gradients of four micro-batches. `autocast` remembers the converted *weights* until its block ends. Which version below converts them only once? **Predict** how many conversions it saves. The network has three weights and three biases.

# %%
import torch
from torch.nn import functional as F

device = torch.device("cuda" if session.machine.gpus else "cpu")
half = torch.float16 if session.machine.gpus else torch.bfloat16
layers = [torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Conv2d(8, 8, 3), torch.nn.ReLU()]
net = torch.nn.Sequential(*layers, torch.nn.Flatten(), torch.nn.Linear(8 * 12 * 12, 10)).to(device)
images, labels = torch.randn(4, 4, 3, 16, 16, device=device), torch.arange(4, device=device)
micro_batches = [(part, labels) for part in images]


def block_for_each():
    for images, labels in micro_batches:
        with torch.autocast(device.type, half):
            loss = F.cross_entropy(net(images), labels)
        loss.backward()


def one_block():
    with torch.autocast(device.type, half):
        for images, labels in micro_batches:
            loss = F.cross_entropy(net(images), labels)
            with torch.autocast(device.type, enabled=False):  # backward needs no autocast
                loss.backward()


from workshop.checks import engine

guess = None  # conversions saved
gradients = []
if not engine.unanswered(casts):
    for work in (block_for_each, one_block):
        net.zero_grad()
        print(f"{work.__name__:14} {casts(work)} conversions")
        gradients.append(torch.cat([weight.grad.ravel() for weight in net.parameters()]))
    print(f"you predicted {'?' if guess is None else guess} fewer;", end=" ")
    print(f"the gradients differ by at most {(gradients[0] - gradients[1]).abs().max():.1g}")

# %% [markdown]
# Autocast kept the weights and biases that it had converted for the first micro-batch. It still converts nine tensors in each: the images, the logits, their gradient, and those of the six weights and biases. For ResNet-50's 25.6 million parameters, each round of conversions reads 102 MB and writes 51 MB.
#
# ## ex06.step · One step too many
#
# *find the bug · hard · 14 minutes*
#
# This training step runs, and its loss may even fall, but three things are wrong with it. It uses PyTorch's [loss scaler](../docs/troubleshooting.md#nan-in-float16-which-layer-and-what-the-loss-scale-does), which works like this:
#
# | call | what it does |
# |---|---|
# | `scaler.scale(loss)` | returns the loss times the scale |
# | `scaler.unscale_(optimizer)` | divides the gradients by the scale, in place; once per step |
# | `scaler.step(optimizer)` | unscales, unless you have done it; then calls `optimizer.step()`, but not if a gradient is infinite or NaN |
# | `scaler.update()` | halves the scale after an overflow, doubles it after enough good steps |
# | `torch.nn.utils.clip_grad_norm_(parameters, 1.0)` | scales the gradients down if their total norm is larger than 1 |
#
# PyTorch *adds* new gradients to the existing ones; `optimizer.zero_grad()` clears them. Run the cell and use its table to find out what happens. The model has two weights; an "overflow" is a batch whose gradients are infinite; "two steps" starts with a scale of 2.


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
# In 16 bits, Tensor Cores are fastest if the channels are adjacent and their number is a multiple of 8. So round `c` up to a multiple: with `multiple=8`, 3 channels take the space of 8. (PyTorch does not pad its tensors.)
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
# PyTorch calls NHWC `channels_last`. The shape does not change, only the strides ([a layer can lose them](../docs/troubleshooting.md#channels_last-has-no-effect-a-layer-loses-it)). Compare yours with PyTorch's:

# %%
import torch

from workshop.checks import engine

images = torch.empty(2, 3, 4, 5)
for name, one in ("NCHW", images), ("NHWC", images.to(memory_format=torch.channels_last)):
    print(f"{name}: {tuple(one.shape)}, PyTorch's strides {one.stride()}")
if not engine.unanswered(strides):
    print(f"Yours: {strides((2, 3, 4, 5), 'NCHW', 1)} and {strides((2, 3, 4, 5), 'NHWC', 1)}")
