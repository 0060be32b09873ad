# %% [markdown]
# # ex07 · Inference
#
# After these exercises, you can compute latency percentiles, make a network faster without changing its predictions, and detect that a server's answers depend on the other requests in the batch.
#
# **Time:** 32 minutes · **Needs:** notebook 07, and PyTorch for the last two exercises · **On a CPU:** half a minute to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

# %% [markdown]
# **How it works.** Replace `...` in a cell, run the cell, then run the check below it. The check tells you what is wrong and what to do. Stuck? Run `workshop.hint("ex07.fold")` in a new cell for up to three hints, one per call; after that, `workshop.solution("ex07.fold")` shows a solution. Your progress is saved in the folder `answers/`.

# %%
import workshop

session = workshop.start("ex07", profile)

# %% [markdown]
# ## ex07.percentile · How long do they wait?
#
# *fill in · easy · 8 minutes*
#
# A service promises its p99: the time within which 99 out of 100 requests are answered. Write `percentile(seconds, per_cent)`. `seconds` is an unsorted list of latencies.
#
# - The result is the **smallest measured value** that is at least as large as `per_cent` percent of all values (the *nearest rank*). Do not interpolate.
# - p100 is the largest value, and p0 the smallest.
#
# | latencies | p50 | p75 | p90 | p100 |
# |---|---|---|---|---|
# | 10, 40, 20, 30 | 20 | 30 | 40 | 40 |
# | 10, 20, 30 | 20 | 30 | 30 | 30 |

# %% tags=["answer", "ex07.percentile"]
import math


def percentile(seconds: list[float], per_cent: float) -> float:
    """Return the smallest value that is at least as large as `per_cent` percent of all values."""
    ### BEGIN SOLUTION
    rank = math.ceil(len(seconds) * per_cent / 100)
    return sorted(seconds)[max(0, rank - 1)]
    ### END SOLUTION


# %% tags=["check", "ex07.percentile"]
workshop.check("ex07.percentile", percentile)

# %% [markdown]
# Now use it. A server needs 10 ms per request and handles one at a time. Requests arrive at random; one that arrives while the server is busy waits in a queue. At 50 requests per second, the server is busy half of the time; at 95, nearly all of it. Predict p50 and p99 before you run the cell.

# %%
import numpy as np

from workshop.checks import engine

if not engine.unanswered(percentile):
    for rate in (50, 80, 95):
        gaps = np.random.default_rng(0).exponential(1 / rate, 10_000)
        free, latencies = 0.0, []
        for arrived in np.cumsum(gaps):
            free = max(free, arrived) + 0.01  # the server starts when it is free
            latencies.append(free - arrived)
        p50, p99 = (1000 * percentile(latencies, p) for p in (50, 99))
        print(f"{rate} requests a second: p50 {p50:.0f} ms, p99 {p99:.0f} ms")

# %% [markdown]
# ## ex07.fold · One layer fewer
#
# *fill in · medium · 12 minutes*
#
# In inference, a batch norm multiplies each channel by a constant and adds a constant. The preceding convolution can do both, if you change its weights:
#
# `gamma · (W x − mean) / std + beta  =  (gamma / std · W) x + (beta − gamma · mean / std)`, with `std = √(var + eps)`
#
# Write `fold(conv, bn)` for two PyTorch layers in evaluation mode. It returns a new `torch.nn.Conv2d` and does not change the inputs.
#
# | | shape | |
# |---|---|---|
# | `conv.weight` | (channels out, channels in, height, width) | there is no bias |
# | `bn.weight`, `bn.bias` | (channels out,) | gamma and beta |
# | `bn.running_mean`, `bn.running_var` | (channels out,) | the variance, not its root |
# | `bn.eps` | a number | |
#
# Take `in_channels`, `out_channels`, `kernel_size`, `stride` and `padding` of the new convolution from `conv`. The check runs under `torch.no_grad()`, in float64.


# %% tags=["answer", "ex07.fold"]
def fold(conv, bn):
    """Return a convolution that includes the batch norm after it."""
    import torch

    ### BEGIN SOLUTION
    folded = torch.nn.Conv2d(
        conv.in_channels, conv.out_channels, conv.kernel_size, conv.stride, conv.padding
    ).to(conv.weight.dtype)
    scale = bn.weight / torch.sqrt(bn.running_var + bn.eps)
    folded.weight.copy_(conv.weight * scale.view(-1, 1, 1, 1))
    folded.bias.copy_(bn.bias - bn.running_mean * scale)
    return folded
    ### END SOLUTION


# %% tags=["check", "ex07.fold"]
workshop.check("ex07.fold", fold)

# %% [markdown]
# Now compare a layer that has seen a few batches: unfolded, folded by you, and folded by PyTorch's function.

# %%
if engine.unanswered(fold):
    print("Not run: fold is not written yet.")
else:
    import torch
    from torch.nn.utils.fusion import fuse_conv_bn_eval

    conv, bn = torch.nn.Conv2d(64, 128, 3, bias=False), torch.nn.BatchNorm2d(128)
    with torch.no_grad():
        for _ in range(5):
            bn(conv(2 + torch.randn(8, 64, 14, 14)))
        conv.eval(), bn.eval()
        x = 2 + torch.randn(8, 64, 14, 14)
        unfolded = bn(conv(x))
        for name, layer in (("yours", fold(conv, bn)), ("PyTorch's", fuse_conv_bn_eval(conv, bn))):
            print(f"{name}: differences up to {(unfolded - layer(x)).abs().max():.1e}")
    print(f"The outputs reach {unfolded.abs().max():.2f}, so this is rounding.")

# %% [markdown]
# ## ex07.likeliest · It depends on the batch
#
# *find the bug · medium · 12 minutes*
#
# A server combines the waiting requests into a batch. For each image, it returns the `k` most likely classes and their probabilities, the most likely first. Users complain that the same image gets a different answer every time. The next cell sends an image alone, then with two others.


# %%
import torch


def broken(logits, k):
    """Return the k most likely classes of each image and their probabilities. It has three bugs."""
    power = torch.exp(logits)
    probabilities = power / power.sum(dim=0)
    classes = probabilities.argsort(dim=1)[:, -k:]
    return classes, probabilities.gather(1, classes)


image, others = torch.tensor([[1.0, 3.0, 0.0, 2.0]]), torch.tensor([[0.0, 6.0, 1.0, 0.0]] * 2)
for batch in (image, torch.cat([image, others])):
    classes, probabilities = broken(batch, 2)
    print(f"in a batch of {len(batch)}: classes {classes[0].tolist()}, {probabilities[0]}")

# %% [markdown]
# In any batch, the correct answer is classes 1 and 3, with probabilities 0.644 and 0.237. Copy the function into the next cell as `likeliest` and fix its three bugs. You have just seen two of them; the third appears when a network is *very* confident, with a logit of 1000.


# %% tags=["answer", "ex07.likeliest"]
def likeliest(logits, k: int):
    """Return each image's k most likely classes, the most likely first, and their probabilities.

    Both are tensors of shape (images, k); `logits` has shape (images, classes).
    """
    import torch

    ### BEGIN SOLUTION
    probabilities = torch.softmax(logits, dim=1)  # it subtracts each row's largest logit itself
    values, classes = torch.topk(probabilities, k, dim=1)
    return classes, values
    ### END SOLUTION


# %% tags=["check", "ex07.likeliest"]
workshop.check("ex07.likeliest", likeliest)

# %% [markdown]
# A test that always sends one image gets the same answer every time. So test a server with one image and with a batch, and compare.
