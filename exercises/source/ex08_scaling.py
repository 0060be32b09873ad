# %% [markdown]
# # ex08 · Benchmarks, scaling, and a capstone
#
# After these exercises, you can compute a trustworthy speed, calculate what a gradient exchange costs and how large its buckets should be, and turn a slow, wrong parallel script into a correct one that is at least four times as fast.
#
# **Time:** 90 minutes · **Needs:** notebook 08, PyTorch for the last exercise · **On a CPU:** half a minute to run, and one or two minutes for the last check
#
# Replace `...` in a cell, run it, then run the check below it. Stuck? `workshop.hint("ex08.rate")` gives the next of three hints, `workshop.solution("ex08.rate")` a solution.

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

# %%
import workshop

session = workshop.start("ex08", profile)

# %% [markdown]
# ## ex08.rate · How fast was it?
#
# *find the bug · easy · 5 minutes*
#
# A benchmark recorded the number of images and the seconds of each iteration. The first `warmup` iterations should not count. Run the cell: the function returns 83 images per second, although 200 images took 3 seconds after the warm-up.


# %%
def broken(images, seconds, warmup):
    """Return images per second after the warm-up. It has two bugs."""
    rates = [n / s for n, s in zip(images, seconds, strict=True)]
    return sum(rates) / len(rates)


print(f"{broken([100, 100, 100], [1.0, 1.0, 2.0], 1):.1f} images per second")

# %% [markdown]
# Copy it into the next cell as `rate` and fix it. The last iteration of an epoch may have fewer images than the others. If nothing is left after the warm-up, return `None`.


# %% tags=["answer", "ex08.rate"]
def rate(images: list[int], seconds: list[float], warmup: int) -> float | None:
    """Return images per second without the first `warmup` iterations; None if none are left."""
    ### BEGIN SOLUTION
    took = sum(seconds[warmup:])
    return sum(images[warmup:]) / took if took else None
    ### END SOLUTION


# %% tags=["check", "ex08.rate"]
workshop.check("ex08.rate", rate)

# %% [markdown]
# ## ex08.ring · The time of a ring all-reduce
#
# *predict, then measure · medium · 10 minutes*
#
# In notebook 03, you wrote a ring all-reduce: `n − 1` messages until the sums are complete, and `n − 1` more until every worker has all of them, each with 1/n of the gradients. Now compute the time. A message takes the **latency** of the link plus its bytes divided by the **bandwidth**; the next one starts when it has arrived. All workers send at the same time.
#
# | | |
# |---|---|
# | gradients | 100 MB (100 · 10⁶ bytes) |
# | bandwidth | 12.5 GB/s (12.5 · 10⁹ bytes per second) |
# | latency of a message | 20 µs |
#
# How many **milliseconds** does an all-reduce take with 2, 8 and 512 workers? Guess first: with 512 workers instead of 2, does it take 2, 5 or 256 times as long?

# %% tags=["answer", "ex08.ring"]
# milliseconds: {workers: ms of one all-reduce}; message_ms: the same for one message
### BEGIN SOLUTION
message_ms = {n: 0.020 + 1000 * 100e6 / n / 12.5e9 for n in (2, 8, 512)}
milliseconds = {n: 2 * (n - 1) * message_ms[n] for n in (2, 8, 512)}
### END SOLUTION

# %% tags=["check", "ex08.ring"]
workshop.check("ex08.ring", milliseconds)

# %% [markdown]
# With more workers, the bandwidth term levels off but the latency term keeps growing. This is why large machines do not use a single ring.
#
# ## ex08.overlap · How large should a bucket be?
#
# *fill in · medium · 15 minutes*
#
# Notebook 03 took DDP's buckets as they are. Now choose their size. Write `efficiency(compute, ready, nbytes, cap, latency, bandwidth)`: the time of a backward pass without exchange, divided by its time with it, from 0 to 1.
#
# - `compute`: seconds of the pass without exchange.
# - `ready[i]`: when gradient `i` is ready, in seconds after the start, in ascending order; `nbytes[i]`: its bytes.
# - The gradients fill a bucket in this order. It is closed as soon as it holds **at least** `cap` bytes. The last gradient closes the last bucket.
# - A bucket's message takes `latency` plus its bytes divided by `bandwidth`. There is **one link**: a message starts when its bucket is closed *and* the previous message is done.
# - The pass ends when the compute and all messages are done.
#
# Example: compute 0.1, ready `[0.02, 0.04, 0.06, 0.1]`, nbytes `[10e6, 40e6, 25e6, 5e6]`, cap 25e6, latency 0.004, bandwidth 1e9. The first bucket, 50 MB, is sent from 0.04 to 0.094, the second, 25 MB, from 0.094 to 0.123, the last from 0.123 to 0.132. The efficiency is 0.1 / 0.132 = 0.758.


# %% tags=["answer", "ex08.overlap"]
def efficiency(compute, ready, nbytes, cap, latency, bandwidth) -> float:
    """Return compute time divided by the time with an exchange in buckets of at least `cap`."""
    ### BEGIN SOLUTION
    free = filled = 0.0
    for i, (at, size) in enumerate(zip(ready, nbytes, strict=True)):
        filled += size
        if filled >= cap or i == len(ready) - 1:
            free, filled = max(free, at) + latency + filled / bandwidth, 0.0
    return compute / max(compute, free)
    ### END SOLUTION


# %% tags=["check", "ex08.overlap"]
workshop.check("ex08.overlap", efficiency)

# %% [markdown]
# Now choose for ResNet-50, with what notebook 03 measured on this machine: the backward pass, and the latency and bandwidth of Gloo. (Without a run of it in profile `cpu` or `gpu`, recorded numbers are used.) The second column assumes that the pass is 10 times as fast on the same link. **Predict** a good cap for each: one whose efficiency is at most 1% below the best.

# %%
import numpy as np

from rn50lib import resnet
from workshop.checks import engine, ex08

guess = None  # two of the caps 0, 0.1, 1, 5, 25 and 100 MB, for example (100, 0)
shapes = resnet.resnet(50, num_classes=12).parameters().values()
nbytes = [4 * int(np.prod(shape)) for shape in reversed(shapes)]
found = ex08.read_timeline(session.runs)
# between two full buckets, the gradients are ready evenly by bytes
ready = np.interp(np.cumsum(nbytes), np.cumsum([0, *found.nbytes]), [0, *found.full])
link = found.latency, found.bandwidth
print(found.source)
print(f"{1e3 * found.alone:.0f} ms, {len(nbytes)} gradients, {sum(nbytes) / 1e6:.0f} MB;", end=" ")
print(f"{1e6 * found.latency:.0f} µs, {found.bandwidth / 1e9:.2f} GB/s")
if not engine.unanswered(efficiency):
    print("cap in MB     this pass  10 times as fast")
    caps = np.array([0, 0.1, 1, 5, 25, 100])
    table = np.array([
        [efficiency(found.alone / fast, list(ready / fast), nbytes, 1e6 * cap, *link)
         for fast in (1, 10)] for cap in caps
    ])  # fmt: skip
    for cap, (one, ten) in zip(caps, table, strict=True):
        print(f"{cap:9g}{one:14.1%}{ten:18.1%}")
    good = [", ".join(f"{cap:g}" for cap in caps[of >= 0.99 * of.max()]) for of in table.T]
    print(f"good caps: {good[0]} MB | {good[1]} MB; you predicted {guess or '?'}")
    print(f"DDP's buckets of about 25 MB, this pass: {found.alone / found.together:.0%} measured")

# %% [markdown]
# A cap of 0 sends every gradient alone and pays the latency 161 times; one of 100 MB sends nothing before the end. Which cap is best depends on the link *and* on how much compute there is to hide messages. DDP calls it `bucket_cap_mb`. If DDP's measured efficiency is far below the computed one, the cap is not the reason: one rank waits for the other, or the exchange slows down the computation (notebook 03 measures both).
#
# ## ex08.capstone · Slow and wrong
#
# *tune to a target · hard · 60 minutes*
#
# `exercises/capstone/train_slow.py` trains a small network on the road signs, on two ranks. It runs, and it reports a loss and an accuracy. But it is slow in several ways and **wrong in seven**. Fix it, and make it at least **4 times as fast** on this machine. You may use DistributedDataParallel or Horovod. First run it, with a trace of six steps on rank 0, each from the end of one update to the end of the next:

# %%
from workshop.checks import ex08

ex08.look()

# %% [markdown]
# These rules are fixed; everything else is up to you. The network, the constants in capitals and `learning_rate` are correct.
#
# | | |
# |---|---|
# | answer | `train(data, out)`, which the check calls on two ranks, started with `torchrun` or, if the cell imports Horovod, with `horovodrun`; both arguments are paths |
# | images | `data/train/CLASS/*.jpg` and `data/val/CLASS/*.jpg`; a label is the class folder's position in alphabetical order, from 0 |
# | network input | whole images, resized to 64 × 64 with any filter that averages, RGB, (x − MEAN) / STD; no augmentation |
# | start | all ranks begin with rank 0's weights |
# | step | 16 images, 8 on each rank; the update uses the mean gradient of all 16 |
# | update | SGD with momentum 0.9, as in the script |
# | epoch | each training image at most once, in a new random order each time; as many full steps as possible |
# | learning rate | `learning_rate(progress)` at each **step**; `progress` counts epochs, with the fraction of the current one: (steps so far) / (steps per epoch), before or after the step |
# | validation | after each epoch, all images of `data/val` once, on any of the ranks, in evaluation mode |
# | `out/report.json` | written by rank 0: `val_loss` and `val_top1` (percent), each a list with one number per epoch, over all validation images |
#
# The check ignores what you print: it records images, logits, gradients and weights on both ranks. If all of them are right, it reads the **trace** of a few steps: at most a quarter of a step may wait for input, none may read a tensor's value (`.item()`, `float(x)`, `print(x)`), and all gradients are exchanged once per step, in a few messages. Then the **clock** decides: your script and the slow one run in turns, each from the JPEGs. What counts is the time of the whole run. Fixing the mistakes already makes it about twice as fast, because the slow script takes 102 steps where 36 are right; the rest is tuning. No GPU is used, and float32 is enough.
#
# To start, replace the next cell's content with `%load capstone/train_slow.py` and run it. The cell then contains the script. (If the file is not found, open it in an editor and copy it.) Run the cell once more to define `train`. Or fill in the skeleton in the cell. Fix the mistakes first: a wrong script may be fast for the wrong reason. The check names them one at a time.

# %% tags=["answer", "ex08.capstone"]
# This cell contains the whole script; the check calls train(data, out) on each rank.
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

SIZE, BATCH, EPOCHS, PEAK = 64, 16, 3, 0.1  # pixels, images per step of all ranks, epochs, top rate
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of red, green and blue, 0 to 255


class Net(nn.Sequential):
    """Four convolutions and a linear layer. Do not change it."""

    def __init__(self, classes):
        layers, before = [], 3
        for channels in (16, 32, 64, 64):
            layers += [nn.Conv2d(before, channels, 3, 2, 1, bias=False), nn.BatchNorm2d(channels)]
            layers += [nn.ReLU()]
            before = channels
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def learning_rate(progress):
    """Return the rate after `progress` epochs: linear warm-up for one epoch, then down to 0."""
    return PEAK * min(progress, (EPOCHS - progress) / (EPOCHS - 1))


def load_image(file):
    """Return the pixels of one image."""
    ### BEGIN SOLUTION
    image = Image.open(file)
    image.draft("RGB", (2 * SIZE, 2 * SIZE))  # decodes at 1/8, 1/4 or 1/2 of the size
    return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC))
    ### END SOLUTION


def load_images(files, classes):
    """Return the normalised images of some files, and their labels."""
    ### BEGIN SOLUTION
    images = torch.from_numpy(np.stack([load_image(file) for file in files]))
    images = images.permute(0, 3, 1, 2).float()
    mean, std = (torch.tensor(three).view(3, 1, 1) for three in (MEAN, STD))
    return (images - mean) / std, torch.tensor([classes.index(f.parent.name) for f in files])
    ### END SOLUTION


def validate(net, images, labels):
    """Return the mean loss and the top-1 accuracy in percent, over the images of all ranks."""
    ### BEGIN SOLUTION
    net.eval()
    with torch.inference_mode():
        logits = net(images)
        loss = F.cross_entropy(logits, labels, reduction="sum")
        hits = (logits.argmax(1) == labels).sum()
        sums = torch.stack([loss, hits, torch.tensor(len(labels))]).double()
    net.train()
    dist.all_reduce(sums)
    loss, hits, count = sums.tolist()
    return loss / count, 100 * hits / count
    ### END SOLUTION


def train(data, out):
    """Train, validate after every epoch, and write OUT/report.json."""
    ### BEGIN SOLUTION
    dist.init_process_group("gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    classes = sorted(folder.name for folder in Path(data, "train").iterdir())
    images, labels = load_images(sorted(Path(data, "train").glob("*/*.jpg")), classes)
    validation = load_images(sorted(Path(data, "val").glob("*/*.jpg"))[rank::size], classes)
    net = Net(len(classes))
    model = DistributedDataParallel(net)  # rank 0's weights for all, and mean gradients
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=0.9)
    report = {"val_loss": [], "val_top1": []}
    steps = len(labels) // BATCH
    for epoch in range(EPOCHS):
        order = torch.randperm(len(labels))  # with the same seed on all ranks
        for step in range(steps):
            chosen = order[step * BATCH : (step + 1) * BATCH].chunk(size)[rank]
            optimizer.param_groups[0]["lr"] = learning_rate(epoch + step / steps)
            optimizer.zero_grad()
            F.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
        for statistics in net.buffers():  # of batch norm: each rank has seen different images
            dist.broadcast(statistics, 0)
        loss, top1 = validate(net, *validation)
        report["val_loss"].append(loss)
        report["val_top1"].append(top1)
    if rank == 0:
        Path(out, "report.json").write_text(json.dumps(report))
    dist.destroy_process_group()
    ### END SOLUTION


# %% tags=["check", "ex08.capstone"]
workshop.check("ex08.capstone", train)

# %% [markdown]
# Where does the time go now? The slow script spent it on 102 steps instead of 36, on Python loops, on decoding every image again in every epoch, on a second forward pass per step, on 64-bit arithmetic, and on many small messages. `ex08.look(train)` runs only yours and shows its speed and its trace.
