# %% [markdown]
# # ex08 · Benchmark, scaling, and all of it
#
# After these exercises you can compute a speed that others may believe, say what an exchange costs and how much of it hides, and turn a slow, wrong script into a right one that is at least three times as fast.
#
# **Time:** 90 minutes · **Needs:** notebook 08, PyTorch for the last exercise · **On a CPU:** half a minute to run, and one or two minutes for the last check

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

# %% [markdown]
# **How it works.** Replace `...` in a cell, run it, and run the check below it. A check says what is wrong and what to do. Stuck? Type `workshop.hint("ex08.rate")` into a new cell: it gives three hints, one at a time, each saying more than the last. After them `workshop.solution("ex08.rate")` shows a solution. What you have passed is kept in the folder `answers/`.

# %%
import workshop

session = workshop.start("ex08", profile)

# %% [markdown]
# ## ex08.rate · How fast was it?
#
# *find the bug · easy · 8 minutes*
#
# A benchmark has noted how many images each iteration had, and how many seconds it took. The first `warmup` iterations should not count. Run the cell: the function says 83 images per second. Yet after the warm-up 200 images took 3 seconds.


# %%
def broken(images, seconds, warmup):
    """Images per second after the warm-up. Something is wrong here."""
    rates = [n / s for n, s in zip(images, seconds, strict=True)]
    return sum(rates) / len(rates)


print(f"{broken([100, 100, 100], [1.0, 1.0, 2.0], 1):.1f} images per second")

# %% [markdown]
# Copy it into the next cell as `rate` and mend it. Two more things should hold: the last iteration of an epoch may have fewer images than the others, and where nothing is left after the warm-up the answer is `None`.


# %% tags=["answer", "ex08.rate"]
def rate(images: list[int], seconds: list[float], warmup: int) -> float | None:
    """Images per second without the first `warmup` iterations; None where none are left."""
    ### BEGIN SOLUTION
    took = sum(seconds[warmup:])
    return sum(images[warmup:]) / took if took else None
    ### END SOLUTION


# %% tags=["check", "ex08.rate"]
workshop.check("ex08.rate", rate)

# %% [markdown]
# ## ex08.ring · What a ring takes
#
# *predict, then measure · medium · 10 minutes*
#
# In ex03 you counted what a worker sends in a ring all-reduce: `n − 1` messages until the sums are complete, and `n − 1` more until everybody has all of them, each with 1/n of the gradients. Now the time. A message takes the **latency** of the link, whatever its size, and then its bytes over the **bandwidth**; the next one begins when it has arrived. All workers send at the same time.
#
# | | |
# |---|---|
# | gradients | 100 MB (100 · 10⁶ bytes) |
# | bandwidth | 12.5 GB/s (12.5 · 10⁹ bytes per second) |
# | latency of a message | 20 µs |
#
# How many **milliseconds** does an all-reduce take with 2, 8 and 512 workers? Guess first: from 2 to 512, does it take 2 times, 5 times or 256 times as long?

# %% tags=["answer", "ex08.ring"]
# {workers: milliseconds of one all-reduce}
### BEGIN SOLUTION
message_ms = {n: 0.020 + 1000 * 100e6 / n / 12.5e9 for n in (2, 8, 512)}
milliseconds = {n: 2 * (n - 1) * message_ms[n] for n in (2, 8, 512)}
### END SOLUTION

# %% tags=["check", "ex08.ring"]
workshop.check("ex08.ring", milliseconds)

# %% [markdown]
# The check sent every message of the ring on a clock of its own. Here is how the two parts grow: the bytes stop growing, the latency does not. That is why large machines do not use one ring for all.

# %%
from workshop.checks import ex08

for n in (2, 8, 64, 512, 4096):
    total, latency = 1000 * ex08.ring_seconds(n), 2 * (n - 1) * 0.020
    print(f"{n:5} workers: {total:6.1f} ms, {latency:6.1f} of them latency")

# %% [markdown]
# ## ex08.overlap · What hides
#
# *fill in · medium · 12 minutes*
#
# The gradients of the last layers are ready long before the backward pass ends. So they are sent in **buckets** while the rest is still being computed. Write `efficiency(compute, ready, takes)`: the seconds of compute over the seconds of the whole step, a number from 0 to 1.
#
# - `compute`: seconds of a step without any exchange.
# - `ready[i]`: when bucket `i` is ready, in seconds after the start of the step, in rising order.
# - `takes[i]`: seconds that its exchange takes.
# - There is **one wire**. A bucket is sent as soon as it is ready *and* the bucket before it is through.
# - The step ends when the compute has ended and all buckets are through.
#
# An example: compute 0.1, ready `[0.04, 0.06, 0.1]`, takes `[0.05, 0.03, 0.02]`. The first bucket is sent from 0.04 to 0.09, the second from 0.09 to 0.12, the third from 0.12 to 0.14. The efficiency is 0.1 / 0.14 = 0.714.


# %% tags=["answer", "ex08.overlap"]
def efficiency(compute: float, ready: list[float], takes: list[float]) -> float:
    """Seconds of compute over seconds of the step, with what of the exchange is not hidden."""
    ### BEGIN SOLUTION
    free = 0.0
    for at, seconds in zip(ready, takes, strict=True):
        free = max(free, at) + seconds
    return compute / max(compute, free)
    ### END SOLUTION


# %% tags=["check", "ex08.overlap"]
workshop.check("ex08.overlap", efficiency)

# %% [markdown]
# ## ex08.capstone · Slow and wrong
#
# *tune to a target · hard · 60 minutes*
#
# `exercises/capstone/train_slow.py` trains a small network on the road signs. It runs, its loss falls, it reports an accuracy. It is slow in several ways and **wrong in six**. Make it right, and at least **3 times as fast** on this machine. First see how it does:

# %%
ex08.look()

# %% [markdown]
# These are the rules of the training; whatever they do not name is free. The network, the constants in capitals and `learning_rate` are right as they are.
#
# | | |
# |---|---|
# | answer | `train(data, out)`, both paths; the pictures are `data/train/CLASS/*.jpg` and `data/val/CLASS/*.jpg` |
# | what goes into the network | whole pictures, resized to 64 × 64, RGB, (x − MEAN) / STD; no augmentation |
# | label | the place of the class folder's name in the alphabet, from 0 |
# | epoch | every training picture once, in an order that is new each time; 16 pictures a step, the last step may have fewer |
# | learning rate | `learning_rate(progress)` at each **step**; progress counts epochs and grows with every step |
# | validation | after each epoch, all pictures of `data/val` once, in evaluation mode |
# | `out/report.json` | `val_loss` and `val_top1` (per cent), a list each with a number for each epoch, over all validation pictures |
#
# The check runs your script and the slow one in turns, each in a process of its own and with nothing but JPEGs to begin with. It counts the pictures that are trained on and divides by the seconds of the whole run. It believes nothing that is printed: it looks at the pictures that go into the network and at the logits that come out. A GPU is not used, and float32 is enough.
#
# To begin, write `%load capstone/train_slow.py` as the only line into the next cell and run it: the cell then holds the script. (Should the file not be found, open it in an editor and copy it.) Run the cell once more to define `train`. Or fill in the frame that stands there. The mistakes come first, since a wrong script may be fast for the wrong reason; the check names them one at a time. When all is right, look for the time.

# %% tags=["answer", "ex08.capstone"]
# The whole script stands in this cell; the check calls train(data, out).
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F

SIZE, BATCH, EPOCHS, PEAK = 64, 16, 3, 0.1  # pixels, pictures a step, epochs, highest learning rate
MEAN, STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)  # of red, green and blue, 0 to 255


class Net(nn.Sequential):
    """The network, four convolutions and a linear layer: it stays as it is."""

    def __init__(self, classes):
        layers, before = [], 3
        for channels in (16, 32, 64, 64):
            layers += [nn.Conv2d(before, channels, 3, 2, 1, bias=False), nn.BatchNorm2d(channels)]
            layers += [nn.ReLU()]
            before = channels
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def learning_rate(progress):
    """The rate after `progress` epochs: up during the first one, then down to 0, on two lines."""
    return PEAK * min(progress, (EPOCHS - progress) / (EPOCHS - 1))


def picture(file):
    """The pixels of one picture."""
    ### BEGIN SOLUTION
    image = Image.open(file)
    image.draft("RGB", (2 * SIZE, 2 * SIZE))  # JPEG can decode at an eighth, a quarter or a half
    return np.asarray(image.convert("RGB").resize((SIZE, SIZE), Image.Resampling.BICUBIC))
    ### END SOLUTION


def pictures(folder, classes):
    """What goes into the network from a folder, and the labels."""
    ### BEGIN SOLUTION
    from concurrent.futures import ThreadPoolExecutor

    files = sorted(folder.glob("*/*.jpg"))
    with ThreadPoolExecutor() as pool:  # Pillow decodes without holding Python's lock
        images = torch.from_numpy(np.stack(list(pool.map(picture, files))))
    images = images.permute(0, 3, 1, 2).float()
    mean, std = (torch.tensor(three).view(3, 1, 1) for three in (MEAN, STD))
    return (images - mean) / std, torch.tensor([classes.index(f.parent.name) for f in files])
    ### END SOLUTION


def validate(net, images, labels):
    """Mean loss, and the per cent of pictures whose class is the first guess."""
    ### BEGIN SOLUTION
    net.eval()
    with torch.inference_mode():
        logits = torch.cat([net(x) for x in images.split(4 * BATCH)])
    net.train()
    hits = (logits.argmax(1) == labels).sum().item()
    return F.cross_entropy(logits, labels).item(), 100 * hits / len(labels)
    ### END SOLUTION


def train(data, out):
    """Train, validate after every epoch, and write OUT/report.json."""
    ### BEGIN SOLUTION
    torch.manual_seed(0)
    classes = sorted(folder.name for folder in Path(data, "train").iterdir())
    images, labels = pictures(Path(data, "train"), classes)
    validation = pictures(Path(data, "val"), classes)
    net = Net(len(classes))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.0, momentum=0.9)
    report = {"val_loss": [], "val_top1": []}
    steps = -(-len(labels) // BATCH)
    for epoch in range(EPOCHS):
        for step, chosen in enumerate(torch.randperm(len(labels)).split(BATCH)):
            optimizer.param_groups[0]["lr"] = learning_rate(epoch + step / steps)
            optimizer.zero_grad()
            F.cross_entropy(net(images[chosen]), labels[chosen]).backward()
            optimizer.step()
        loss, top1 = validate(net, *validation)
        report["val_loss"].append(loss)
        report["val_top1"].append(top1)
    Path(out, "report.json").write_text(json.dumps(report))
    ### END SOLUTION


# %% tags=["check", "ex08.capstone"]
workshop.check("ex08.capstone", train)

# %% [markdown]
# Where is the time going now? In the slow script it went into Python, into decoding every picture again and again, and into 64 bits. `ex08.look(train)` says how fast yours is by itself. Whether it should be faster still is the question with which every notebook of this course has begun.
