# %% [markdown]
# # ex07 · Inference
#
# After these exercises, you can measure latency percentiles, calibrate probabilities, and detect a server whose answers depend on the other requests in the batch.
#
# **Time:** 32 minutes · **Needs:** notebook 07, PyTorch · **On a CPU:** half a minute to run
#
# Replace `...` in a cell, run it, then run the check below it. Stuck? `workshop.hint("ex07.temperature")` gives the next of three hints, `workshop.solution("ex07.temperature")` a solution.

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

# %%
import workshop

session = workshop.start("ex07", profile)

# %% [markdown]
# ## ex07.percentile · How long do they wait?
#
# *fill in · easy · 8 minutes*
#
# A provider promises a p99: the time within which 99 out of 100 requests are answered. Write `percentile(seconds, per_cent)`. `seconds` is an unsorted list of latencies.
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
# Now use it on this device. The next cell times single predictions of ResNet; on a GPU, `.item()` waits for the result. Predict p99 / p50.

# %%
import time

import numpy as np
import torch

from rn50lib import resnet
from rn50lib.torch.model import ResNet
from workshop.checks import engine

device = torch.device("cuda" if session.machine.gpus else "cpu")
net = ResNet(resnet.resnet(session.layers, num_classes=12)).to(device).eval()
image = torch.randn(1, 3, session.pixels, session.pixels, device=device)

guess = None  # your number
if not engine.unanswered(percentile):
    where = torch.cuda.get_device_name() if session.machine.gpus else "the CPU"
    print(f"ResNet-{session.layers}, {session.pixels} px, {session.requests} times, on {where}")
    takes = []  # seconds of each prediction
    with torch.inference_mode():
        for _ in range(10 + session.requests):
            begin = time.perf_counter()
            net(image).argmax().item()
            takes.append(time.perf_counter() - begin)
    p50, p99 = (1000 * percentile(takes[10:], p) for p in (50, 99))  # the first ones warm up
    print(f"p50 {p50:.1f} ms, p99 {p99:.1f} ms: {p99 / p50:.2f} times as long;", end=" ")
    print(f"you predicted {'?' if guess is None else guess}")

# %% [markdown]
# ## ex07.temperature · How sure is sure?
#
# *fill in · medium · 12 minutes*
#
# Does "90%" mean that 9 of 10 such predictions are right? Then the network is **calibrated**. Trained networks are often overconfident: they claim 90% but are right in, say, 70%. **Temperature scaling** corrects this with one number: divide all logits by `T` before softmax. A `T` above 1 makes all probabilities more even; the order of the classes, and so the accuracy, stays the same.
#
# The right `T` makes the probabilities of the true labels as high as possible: it minimises the cross-entropy on images that the network was not trained on. Write `temperature(logits, labels)`, which returns this `T`, a number greater than 0. `logits` is a tensor of shape (images, classes); `labels` holds the true classes. An error of 2% is accepted, so a grid search is fine, and so is a PyTorch optimizer (SciPy may be missing). The method `step` of `torch.optim.LBFGS` takes a closure: a function that clears the gradients, computes the loss, calls its `backward()` and returns it.


# %% tags=["answer", "ex07.temperature"]
def temperature(logits, labels) -> float:
    """Return the T > 0 for which logits / T have the smallest cross-entropy."""
    import torch

    ### BEGIN SOLUTION
    log_t = torch.zeros((), dtype=logits.dtype, requires_grad=True)  # exp keeps T above 0
    optimizer = torch.optim.LBFGS([log_t], max_iter=100)

    def closure():
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(logits / log_t.exp(), labels)
        loss.backward()
        return loss

    optimizer.step(closure)
    return log_t.exp().item()
    ### END SOLUTION


# %% tags=["check", "ex07.temperature"]
workshop.check("ex07.temperature", temperature)

# %% [markdown]
# Now find `T` for your checkpoint from notebook 07. (Without one, the next cell first trains a small network, on only 160 images. It takes less than half a minute on two free cores.) Half of the validation images are for the fit; the other half shows whether it helps.

# %%
import os
from pathlib import Path

import numpy as np
import torch

from workshop.checks import engine, ex07

prefix, epoch = ex07.checkpoint_of_notebook(session)
os.chdir(session.folder)
os.environ |= {"PREFIX": str(prefix), "EPOCH": str(epoch), "DATA": str(session.data_root)}
classes = sorted({file.parent.name for file in session.data_root.glob("val/*/*.jpg")})
print(f"{prefix}, epoch {epoch}")

# %% language="bash" magic_args="-e"
# rn50 predict "$PREFIX" $EPOCH "$DATA"/val/*/*.jpg -o val.npz > predict.txt 2>&1 || (cat predict.txt; exit 1)

# %%
with np.load("val.npz") as found:
    files = [Path(str(name)) for name in found["names"]]
    logits = torch.tensor(found["probabilities"], dtype=torch.float64).clamp(min=1e-30).log()
labels = torch.tensor([classes.index(file.parent.name) for file in files])
fit, rest = torch.arange(0, len(labels), 2), torch.arange(1, len(labels), 2)

if not engine.unanswered(temperature):
    best, losses = temperature(logits[fit], labels[fit]), []
    for t in (1.0, best):
        sure, chosen = torch.softmax(logits[rest] / t, 1).max(1)
        right = (chosen == labels[rest]).double().mean()
        loss = torch.nn.functional.cross_entropy(logits[rest] / t, labels[rest], reduction="none")
        losses.append(loss)
        print(f"T = {t:.3g}: claims {sure.mean():.0%}, {right:.0%} right, loss {loss.mean():.3f}")
    saved = losses[0] - losses[1]
    error = 2 * saved.std() / len(saved) ** 0.5
    print(f"On {len(rest)} other images, T changes the loss by", end=" ")
    print(f"{-saved.mean():.3f} ± {error:.3f} (two standard errors).")
    if right < 2 / len(classes):
        print("Hardly better than guessing, so the best T only evens out its probabilities.")

# %% [markdown]
# Log-probabilities serve as logits, because softmax does not change if a constant is added to all of them. A threshold such as "act above 90%" is valid for one checkpoint and its `T`: fit it again for the next one, and for images from a different camera.
#
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
# So test a server with the same image alone and in a batch, and compare the answers.
