# %% [markdown]
# # 02 · One GPU
#
# Notebook 01 prepared the images. Now you write a script that trains ResNet-50 v1.5 on them, and find out where its time goes.
#
# **Time:** 90 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 2 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
batch: int | None = None  # images per step of the loop in this notebook
seed: int = 0  # random seed of the cells; train.py always uses 0

# %%
import os
import time

import workshop

session = workshop.start("02", profile)
batch = batch or session.batch
os.chdir(session.folder)  # everything below is written here

# %% [markdown]
# From here to notebook 08, you work on one script, `train.py`, and keep asking one question: **where is the time going now?**
#
# ## Write the data set
#
# A `Dataset` answers two questions: how many images are there, and what is image number `i`? **Your turn:** write `__getitem__`, which answers the second. Crop a random square, so that the network rarely sees the same crop twice:
#
# 1. Open `self.files[i]` with `Image.open`, and convert it to RGB.
# 2. Choose a square with `random.uniform`: a side of 0.7 to 1.0 times the image's shorter side, anywhere in the image.
# 3. Crop and scale in one go: `image.resize((self.size, self.size), Image.Resampling.BILINEAR, (left, top, right, bottom))`.
# 4. Make a tensor with the channels first, and scale the bytes from [0, 255] to [-1, 1].
# 5. Return it with the label: the position of the folder's name in `self.classes`.

# %%
import copy
import itertools
import random

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

# Forked workers know this notebook's classes; fork is not the default on macOS and Python 3.14
torch.multiprocessing.set_start_method("fork", force=True)
random.seed(seed)
torch.manual_seed(seed)  # for the weights, the image order and the workers' crops


class Photos(Dataset):
    def __init__(self, folder, size):
        self.files, self.size = sorted(folder.glob("*/*.jpg")), size
        self.classes = sorted({file.parent.name for file in self.files})

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        """Return a random square of image `i`, 3 x size x size from -1 to 1, and its label."""
        return None  # your code


# %% [markdown]
# The next cell compares your crops of known images with Pillow's. Then a `DataLoader` makes a batch in two worker processes.

# %%
from workshop.lessons import nb02_checks

Photos.__getitem__ = nb02_checks.check("__getitem__", Photos)
photos = Photos(session.data_root / "train", session.loop_size)
loader = DataLoader(photos, batch, shuffle=True, drop_last=True, num_workers=2)
images, labels = next(iter(loader))
print(f"{len(photos):,} images; a batch: {tuple(images.shape)}")
fig, axes = plt.subplots(1, 4, figsize=(9, 2.6))
for ax, image, label in zip(axes, images, labels, strict=False):
    ax.imshow((image.permute(1, 2, 0) + 1) / 2)
    ax.set_title(photos.classes[label])
    ax.axis("off")
workshop.figure(fig, alt="Four crops, with their classes")

# %% [markdown]
# ## The network
#
# ResNet-50 v1.5 repeats this block 16 times: a 1×1 convolution to fewer channels, a 3×3 convolution, and a 1×1 convolution to more channels. **Batch norm** follows each: it brings every channel to mean 0 and variance 1 over the batch, then scales and shifts it by learned numbers. ReLU sets negative values to 0. Before the last ReLU, the result is *added* to the block's input; if the shapes differ, `downsample` first converts the input. So a block learns a correction, and gradients have a short path back through the additions. (Three of the 16 blocks also halve the height and width: v1.5 does so in the 3×3 convolution, v1 in the first 1×1. According to [NVIDIA](https://github.com/NVIDIA/DeepLearningExamples/tree/a8e1d1cd/MxNet/Classification/RN50v1.5), v1.5 gains about 0.5 percentage points of top-1 accuracy and loses 5% in speed; see `ex02.stride`.)

# %%
import inspect

from rn50lib import resnet
from rn50lib.torch.model import ResNet

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = ResNet(resnet.resnet(50)).to(device)
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
print(inspect.getsource(type(model.layer1[0])))

# %% [markdown]
# ## The recipe
#
# Besides the data and the network, the **recipe** decides the accuracy. Here is a published one ([docs/recipes.md](../docs/recipes.md) lists others; rows without a flag are fixed in the program):

# %% language="bash" magic_args="-e"
# rn50 run --preset RN50_FP16_8GPU --print recipe

# %% [markdown]
# Your training below uses this recipe's momentum, weight decay and **learning rate**, which scales with the **global batch**: the number of images per step across all GPUs. With twice the batch, an epoch has half as many steps, so each step goes twice as far (**linear scaling**). At first, such steps are too large, so a **warm-up** raises the rate from zero over five epochs; later, the rate is divided by ten three times. (You write this schedule in `ex02.schedule`.)
#
# **Your turn:** write a function for the rate, with the recipe's numbers.


# %%
def scaled_lr(n_gpus, batch):
    """Return the recipe's learning rate, after the warm-up, for `batch` images on each GPU."""
    return None  # your code


scaled_lr = nb02_checks.check("scaled_lr", scaled_lr)
print(f"lr {scaled_lr(1, batch):.4f} here, {scaled_lr(8, 208):.2f} in the published run")

# %% [markdown]
# ## Write the step
#
# Each step computes the loss of a batch (`F.cross_entropy`) and the gradient of every weight (`backward`), and moves each weight a little against its gradient. **Your turn:** write one step. PyTorch adds new gradients to the old ones, so erase the old ones first. Return `loss.detach()`: the loss without its graph. The next cell compares three of your steps with a reference, then briefly trains ResNet-18, which is faster.


# %%
def training_step(model, optimizer, images, labels):
    """Train on one batch; return the loss, without its graph."""
    return None  # your code


# %%
training_step = nb02_checks.check("training_step", training_step)
small = ResNet(resnet.resnet(18, num_classes=len(photos.classes))).to(device)
start = {name: value.clone() for name, value in small.state_dict().items()}
lr = scaled_lr(1, batch)
optimizer = torch.optim.SGD(small.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
losses = []
for images, labels in itertools.islice(loader, session.loop_steps):
    losses.append(training_step(small, optimizer, images.to(device), labels.to(device)))
losses = [float(loss) for loss in losses]  # waits for the device only here
print(f"loss {losses[0]:.2f} at the start, {np.mean(losses[-5:]):.2f} in the last 5 steps")

# %% [markdown]
# An untrained network guesses. With equal probabilities for 12 classes, its loss is ln 12 = 2.48; with unequal ones, usually more.
#
# ## Does it learn?
#
# The next cell measures the accuracy on crops of unseen images: once with `model.eval()`, and twice without, first sorted by class, then shuffled. Without it, batch norm uses the statistics of the current batch, and updates its running averages, which `eval()` uses. Before the last line, 20 batches of training images update the averages. **Predict** the first three accuracies.


# %%
guesses = "?", "?", "?"  # your percentages
validation = Photos(session.data_root / "val", session.loop_size)
validation.files = validation.files[::2]  # 50 per class, as in a sorted batch


@torch.no_grad()
def top1(model, shuffle=False):
    right = 0
    for images, labels in DataLoader(validation, batch_size=50, shuffle=shuffle):
        right += (model(images.to(device)).argmax(1).cpu() == labels).sum().item()
    return 100 * right / len(validation)


print(f"with model.eval():               {top1(small.eval()):.1f}% correct")
leaking = copy.deepcopy(small).train()  # validation images update its averages
print(f"without model.eval(), sorted:    {top1(leaking):.1f}% correct")
print(f"without model.eval(), shuffled:  {top1(leaking, shuffle=True):.1f}% correct")
print("you expected", *guesses)
with torch.no_grad():
    for images, _ in itertools.islice(loader, 20):
        small.train()(images.to(device))
print(f"with model.eval(), new averages: {top1(small.eval()):.1f}% correct")

# %% [markdown]
# A sorted batch holds one class, so normalisation removes much of what distinguishes it. Shuffling can even beat `eval()` while the averages lag behind the weights; before the last line, they catch up. Only `eval()` makes a prediction independent of the rest of the batch. (With 600 images, differences of 5 points can be due to chance.)
#
# ## The whole script
#
# The next cell shows `runs/train.py`. If the file does not exist yet, the cell creates it, with four gaps. (To start over, rename your file and rerun the cell.) Read `main`; `profiler` and the arguments can wait.
#
# `main` names the parts of your step for the profiler, and times input and computation. On a GPU, Python only puts work into a queue, and the GPU works through it. A clock that does not wait for the GPU measures how fast Python fills the queue, so `now()` calls `synchronize()`. The price: Python can no longer prepare the next step while the GPU computes.

# %%
script = workshop.ladder.start_script()
print(script, script.read_text(), sep="\n\n")

# %% [markdown]
# **Your turn:** open `runs/train.py`, and replace each line `...  # your code`: in `Photos`, with the lines of your `__getitem__`; in `main`, with those of your step (no `return`: `main` reads `loss` after the loop). Save the file.

# %%
mine = nb02_checks.check_script(script)

# %% [markdown]
# ## Where is the time going?
#
# **Predict:** what percentage of its time does the loop spend waiting for images? The cell runs several turns, takes the step time of the median turn, and splits it into input and computation.

# %%
guess = "?"  # your number
rung = workshop.ladder.race(
    ["1_single"], turns=session.turns, ranks=1, own=mine, workers=2, steps=session.steps,
    image_size=session.image_size, batch_size=session.rung_batch,
    warm_up=5, trace=session.folder / "trace.json.gz",  # 5: uses up the prefetched batches
)["1_single"]  # fmt: skip
speeds = rung["turns"]
print(f"{rung['images_per_s']:.1f} images/s ({min(speeds):.1f} to {max(speeds):.1f})")
input_ms, compute_ms = rung["input_ms"], rung["compute_ms"]
waiting = 100 * input_ms / (input_ms + compute_ms)
print(f"a step: {input_ms:.1f} ms of input and {compute_ms:.1f} ms of computation;", end=" ")
print(f"{waiting:.1f}% is waiting for input, and you expected {guess}%")
files, dali = (session.results[f"ladder.h100.{name}.ips"].value for name in ("1_single", "3_dali"))
print(f"an H100, recorded (224 px, batch 128, 12 workers): {files:,} images/s;", end=" ")
print(f"the same network with DALI reading JPEG files (see 05): {dali:,};", end=" ")
print(f"so at least {1 - files / dali:.0%} of the step without DALI was input")
session.note("ladder_1_ips", rung["images_per_s"], "img/s", "speed of rung 1")
workshop.ladder.figure("1_single")

# %% [markdown]
# Each version of the script is a **rung** of the **ladder**, the figure at the end of notebook 00; this is the first. All rungs use the same batch size.
#
# Two worker processes decode *while* the model computes, so `input_ms` is only the part that is not hidden, plus the copy to the GPU. On a CPU, even the hidden part costs time: see below.
#
# ### Which operations?
#
# A **profiler** records every operation. Above, `trace=` profiled three extra, untimed steps. Compare shares rather than milliseconds: three steps are too few for exact times, and profiling slows them down. The workers read ahead while the profiler starts, so for waiting, trust the turns, not the trace. [Perfetto](https://ui.perfetto.dev) can open the trace file, `trace.json.gz`, too.
#
# Kinds: convolution, normalisation (batch norm), pointwise (ReLU and additions), optimizer (with `zero_grad`), copy, waiting (on a CPU, for a batch; on a GPU, the time without a running kernel), and other (pooling, the last layer, the loss, Python). **Predict:** what share is convolution, and which other kind takes longest?

# %%
share, second = "?", "?"  # your numbers: percent, and a kind
by_kind = workshop.trace("trace.json.gz")  # ms of a step
print(f"You expected {share}% convolution, and {second} as the longest of the others.")

# %% [markdown]
# Faster arithmetic helps convolutions; on a GPU, normalisation, pointwise, copy and optimizer mostly move data (see 06).
#
# Which kind is worth attacking (for waiting, see the turns)? The rest of the step limits the gain (**Amdahl's law**). **Your turn:** write a function for this limit. **Predict** it for the convolutions of your step, and for those of a step on an H100 (float16, batch 256, 224 px).


# %%
def at_most(part, whole):
    """Return the speed-up of a step of `whole` ms if `part` ms of it took no time."""
    return None  # your code


guesses = "?", "?"  # your factors, before you run your function
at_most = nb02_checks.check("at_most", at_most)
h100 = 1000 * 256 / session.results["h100.float16.ips"].value  # ms of a step
for guess, whose, part, whole in (
    (guesses[0], "your traced", by_kind["convolution"], sum(by_kind.values())),
    (guesses[1], "the H100's", session.results["h100.convolution.ms"].value, h100),
):
    print(f"{whose} step of {whole:.0f} ms: convolution is {part / whole:.0%};", end=" ")
    print(f"without it, at most {at_most(part, whole):.2f} × as fast; you expected {guess}")

# %% [markdown]
# 04 and 05 reduce waiting. 06 computes in 16 bits and in **TF32**, which is float32 with fewer bits. Convolutions use TF32 [by default](https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices) on an A100 or newer.
#
# ## Can you feed the device faster?
#
# With 0 workers, the loop itself decodes; with workers, other processes decode while it trains. The next cell trains with 0 and with 2 workers (on a CPU, a network with 18 layers, so that decoding matters), and times each step and its wait for a batch. **Predict:** does the step shrink by as much as the wait?
#
# **Your turn:** add rows to `tries`: more workers (PyTorch warns if they outnumber the cores; [bus error?](../docs/troubleshooting.md#bus-error-in-a-dataloader-worker-devshm-is-too-small)), and changes like the commented one. **Predict** which helps most, and rerun. (On a CPU, pinning cannot help.)
#
# - `"pin": True`: batches in pinned memory, from which a GPU can copy while Python continues (`non_blocking=True`);
# - `"layout": torch.channels_last`: each pixel's channels next to each other in memory, which convolutions may prefer.

# %%
guess = "?"  # yes or no
tries = {"0 workers": {"workers": 0}, "2 workers": {"workers": 2}}
# a row is compared with the one above, so change one thing:
# tries["2, channels last"] = {"workers": 2, "layout": torch.channels_last}
full = Photos(session.data_root / "train", session.feed_size)


def now():
    if device.type == "cuda":
        torch.cuda.synchronize()  # wait for the queue
    return time.perf_counter()


def step_ms(workers, pin=False, layout=torch.contiguous_format):
    """Return the mean ms of a training step, and of its wait for a batch."""
    network = ResNet(resnet.resnet(session.layers, num_classes=len(full.classes)))
    network.to(device, memory_format=layout)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.001)
    lead = 2 * max(workers, 2) + 1  # untimed: warm-up, and ready batches
    steps = -(-session.feed_steps // max(workers, 1)) * max(workers, 1)  # whole rounds of workers
    count = (lead + steps + 2 * workers) * session.rung_batch  # no worker is idle at the end
    draw = torch.utils.data.RandomSampler(full, replacement=True, num_samples=count)
    loader = DataLoader(full, session.rung_batch, sampler=draw, num_workers=workers, pin_memory=pin)
    batches, times = iter(loader), []
    for _ in range(lead + steps):
        begin = now()
        images, labels = next(batches)
        ready = now()
        images = images.to(device, memory_format=layout, non_blocking=pin)
        training_step(network, optimizer, images, labels.to(device, non_blocking=pin))
        times.append((now() - begin, ready - begin))
    return 1000 * np.mean(times[lead:], axis=0)


turns = {name: [] for name in tries}
for _ in range(session.feed_turns):
    for name, row in tries.items():
        turns[name].append(step_ms(**row))
print(f"ResNet-{session.layers}, {session.feed_size} px, batch {session.rung_batch};", end=" ")
print(f"does the step shrink by as much as the wait? You expected {guess}")
for name, ms in turns.items():
    whole, waited = np.median(ms, axis=0)
    print(f"{name}: {waited:.1f} ms waiting + {whole - waited:.1f} ms copying and computing")
for above, name in itertools.pairwise(turns):
    (whole, waited), (whole_now, waited_now) = np.transpose(turns[above]), np.transpose(turns[name])
    less, saved = np.median([waited - waited_now, whole - whole_now], axis=1)
    print(f"{name} after {above}, compared turn by turn (median):", end=" ")
    print(f"the wait shrinks by {less:.1f} ms, the step by {saved:.1f} ms")
    print(f"{name} ÷ {above}: speed", workshop.ratio(whole / whole_now), end="; ")
    print("computing time", workshop.ratio((whole_now - waited_now) / (whole - waited)))

# %% [markdown]
# If computing clearly takes longer with workers, they compete with it, for cores or memory. A ratio is the median over all turns, and clear if all turns, at least five, are on the same side of 1; if none is, rerun the cell.
#
# Leave `runs/train.py` as it is: 05 comes back to pinning, 08 to `channels_last`.
#
# ## Does a larger batch help?
#
# **Predict** by what factor images/s grow from a batch of 2 to rung 1's batch, and from there to four times that batch. (The images are random numbers, made beforehand.)
#
# If part of its cost is fixed, a step takes *fixed + batch × time per image*: images/s rise, then flatten. **Your turn:** set `row` to the kind in your trace that cannot depend on the batch, and compare its share of the step with the fixed share, if printed.


# %%
def batch_ms(count):
    """Return the ms of a training step with `count` images."""
    images = torch.randn(count, 3, session.image_size, session.image_size, device=device)
    labels = torch.zeros(count, dtype=torch.long, device=device)
    begin = now()
    training_step(model, optimizer, images, labels)
    return 1000 * (now() - begin)


guesses = "?", "?"  # your ratios
row = "?"  # a kind in your trace
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
sweep = {2**k: [] for k in range(1, session.most_images.bit_length())}
for _ in range(session.repeats + 1):
    for count in [*sweep]:
        try:
            sweep[count].append(batch_ms(count))
        except torch.OutOfMemoryError:
            print(f"{count} images do not fit into this GPU's memory.")
            sweep = {fits: times for fits, times in sweep.items() if fits < count}
            break
torch.cuda.empty_cache()  # for other processes on this GPU
counts = np.array([*sweep])
turns = np.array([times[1:] for times in sweep.values()])  # the first is warm-up
ms, speeds = np.median(turns, axis=1), 1000 * counts[:, None] / turns
each, fixed = np.polyfit(counts, ms, 1, w=1 / ms)
fit = fixed + each * counts
off = np.abs(fit / ms - 1).max()
same = np.abs(counts - session.rung_batch).argmin()
print(f"ResNet-50, {session.image_size} px: a step of {counts[same]} images takes", end=" ")
if off < 0.12:
    print(f"{ms[same]:.0f} ms, and {fixed / fit[same]:.0%} of it is fixed: {fixed:.0f} ms")
    title = f"A step takes {fixed:.0f} ms + batch × {each:.3g} ms, within {off:.0%}"
else:
    print(f"{ms[same]:.0f} ms")
    title = f"Fixed + batch × time per image: this fit is off by up to {off:.0%}"
if row in by_kind:
    depends = "does not depend" if row == "optimizer" else "can depend"
    busy = sum(by_kind.values()) - by_kind["waiting"]
    print(f"{row} in your trace: {by_kind[row] / busy:.0%} of the step without waiting;", end=" ")
    print(f"it {depends} on the batch")
elif row != "?":
    print(f"{row} is none of these kinds:", ", ".join(by_kind))
for guess, more, fewer in ((guesses[0], same, 0), (guesses[1], -1, same)):
    gain = workshop.ratio(speeds[more] / speeds[fewer])
    print(f"batch {counts[more]} over {counts[fewer]}: × {gain}; you expected × {guess}")
fig, ax = plt.subplots(figsize=(9, 3.6))
ax.plot(
    counts, speeds, "o", mfc="white", mec="black", label=["a turn"] + [""] * (session.repeats - 1)
)
ax.plot(counts, 1000 * counts / ms, "o", color="black", label="median")
ax.plot(counts, 1000 * counts / fit, color="0.5", label="fixed + batch × time per image")
ax.set_xscale("log", base=2)
ax.set_xticks(counts, counts)
ax.set(xlabel="images per step (log scale)", ylabel="images/s", ylim=0)
ax.legend()
ax.set_title(title)
found = ", ".join(f"batch {n}: {1000 * n / time:.0f}" for n, time in zip(counts, ms, strict=True))
workshop.figure(fig, alt=f"Images/s, medians: {found}.")

# %% [markdown]
# If the fit is within 12%, a fixed cost can explain the curve, and its share is the most that larger batches can save. Part of it is the optimizer, which updates the same weights for any batch. The rest includes Python's work per operation and, mainly on a CPU, the time in which convolutions read all weights and write all their gradients. If the fit is worse and all small batches take equally long, Python cannot fill the GPU's queue fast enough: a step takes the longer of Python's time and the GPU's, not their sum.
#
# ### How much memory does the batch take?
#
# The backward pass needs the outputs of the layers, the **activations**, so they stay in memory until then ([out of memory?](../docs/troubleshooting.md#out-of-memory)). The first convolution returns 3.2 MB per image. **Predict:** how many images fit into a V100's 16 GiB in FP32?


# %%
def kept_bytes(count):
    """Return the bytes that autograd keeps for a backward pass of `count` images of 224 pixels."""
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    network = ResNet(resnet.resnet(50))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        network(torch.randn(count, 3, 224, 224))
    return sum(kept.values())


per_image = kept_bytes(2) - kept_bytes(1)  # the weights, kept as well, cancel out
state = 3 * 4 * 25_557_032  # weights, gradients, momentum
guess = "?"  # your number of images
print(f"per image {per_image / 1e6:.0f} MB, plus {state / 1e6:.0f} MB; you expected {guess} images")
for name, size, published in (("FP32", per_image, 96), ("FP16, half", per_image / 2, 208)):
    print(f"{name}: a V100's 16 GiB (17.2 GB) hold {(2**34 - state) // size:.0f} images;", end=" ")
    print(f"the published batch of {published} needs {(state + published * size) / 1e9:.1f} GB")
if device.type == "cuda":
    network, peaks = ResNet(resnet.resnet(50)).to(device), []
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    for count in (8, 16):
        images, labels = torch.randn(count, 3, 224, 224), torch.zeros(count, dtype=torch.long)
        for _ in range(2):  # the first step adds the momentum
            torch.cuda.reset_peak_memory_stats()
            training_step(network, optimizer, images.to(device), labels.to(device))
        peaks.append(torch.cuda.max_memory_allocated())
    print(f"the peak grows by {(peaks[1] - peaks[0]) / 8e6:.0f} MB per image on this GPU")

# %% [markdown]
# By this count, both published batches need about half of a V100's memory. The count leaves out the gradients of activations and cuDNN's workspace, so it is a lower bound; on a GPU, the last line includes them. Unless these double the total, memory is not what limited the batch.
#
# ## What does a long run need?
#
# What must a checkpoint contain? The next cell trains for four steps, twice. Then it trains for two, saves, and resumes for the other two. **Predict:** does it end with the same weights? **Your turn:** complete `save` and `resume` until it does (on a GPU, nearly).


# %%
def save(model, optimizer):
    """Return a checkpoint."""
    return {"model": model.state_dict()}  # your turn


def resume(checkpoint, model, optimizer):
    """Load all of a checkpoint."""
    model.load_state_dict(checkpoint["model"])  # your turn


def train_on(batches, checkpoint=None):
    """Train on batches, from the start or from a checkpoint; return a checkpoint and weights."""
    small.train().load_state_dict(start)
    optimizer = torch.optim.SGD(small.parameters(), lr=0.01, momentum=0.9)
    if checkpoint is not None:
        resume(checkpoint, small, optimizer)
    for images, labels in batches:
        training_step(small, optimizer, images.to(device), labels.to(device))
    return copy.deepcopy((save(small, optimizer), [*small.parameters()]))


def difference(one, other):
    """Return the largest difference of a weight."""
    return max((a - b).abs().max().item() for a, b in zip(one, other, strict=True))


four = list(itertools.islice(loader, 4))  # batches
(_, first), (_, whole), (_, again) = (train_on(some) for some in ([], four, four))
half, _ = train_on(four[:2])
_, resumed = train_on(four[2:], half)
print(f"four steps move the weights by up to {difference(whole, first):.2g}")
print(f"the same four steps again: off by up to {difference(whole, again):.2g}")
print(f"two steps, then two resumed: off by up to {difference(whole, resumed):.2g}")

# %% [markdown]
# With the model alone, the run continues differently, because the [optimizer's momentum is missing](../docs/troubleshooting.md#the-learning-rate-is-wrong-after-resuming) (`optimizer.state_dict()` has it). On a GPU, even repeated steps may differ slightly, because sums may be computed in a different order. A real run must also restore its place in the epoch, the order of the images and the metrics. `rn50 run` saves all of this after every epoch and on SIGTERM.
#
# ## Key takeaways
#
# - Check the accuracy on unseen images, in `eval()` mode.
# - On separate hardware, input and computation overlap, and the slower one sets the pace; on shared cores, they compete, and overlap gains little. Time the parts, then trace the slow one.
# - Amdahl's law: speeding up a part that takes a share *p* of the step makes the step at most 1 / (1 − *p*) times as fast. On the H100, convolution takes only a third of the 16-bit step.
# - A larger batch spreads each step's fixed cost over more images, and needs more memory.
# - The learning rate scales with the global batch.
# - A run that resumes needs the optimizer's state, too.
#
# If your step mostly computes, more devices help (03); if it waits for input, 04 and 05 do.
