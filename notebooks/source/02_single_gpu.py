# %% [markdown]
# # 02 · One GPU
#
# Notebook 01 prepared the images. Now you write a script that trains ResNet-50 v1.5 on them, and find out where its time goes.
#
# **Time:** 60 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 2 minutes to run

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
# From here to notebook 08 you work on one script, `train.py`. The question stays the same: **where is the time going now?**
#
# ## Write the data set
#
# A `Dataset` answers two questions: how many images are there, and what is image number `i`? **Your turn:** write `__getitem__`, which answers the second. It crops a random square, so the network rarely sees the same crop twice:
#
# 1. Open `self.files[i]` with `Image.open`, and convert it to RGB.
# 2. Choose a square with `random.uniform`: a side of 0.7 to 1.0 times the image's shorter side, anywhere in the image.
# 3. Crop and scale in one go: `image.resize((self.size, self.size), Image.Resampling.BILINEAR, (left, top, right, bottom))`.
# 4. Make a tensor with the channels first, and scale the bytes from [0, 255] to [-1, 1].
# 5. Return it together with the label: the position of the folder's name in `self.classes`.

# %%
import itertools
import random

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

# Forked workers know this notebook's classes; fork is not the default on macOS and Python 3.14
torch.multiprocessing.set_start_method("fork", force=True)
random.seed(seed)
torch.manual_seed(seed)  # of the weights, the order of the images, and the workers' crops


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
# The next cell compares your crops of known images with Pillow's. Then a `DataLoader` makes batches in two worker processes.

# %%
from workshop.lessons import nb02_checks

Photos.__getitem__ = nb02_checks.check_photo(Photos)
photos = Photos(session.data_root / "train", session.loop_size)
loader = DataLoader(photos, batch, shuffle=True, drop_last=True, num_workers=2)
images, labels = next(iter(loader))
print(f"{len(photos):,} images; a batch: {tuple(images.shape)}, labels {labels[:4].tolist()} …")

# %% [markdown]
# ## The network
#
# What turns such a batch into predictions? ResNet-50 v1.5 repeats this block 16 times: a 1×1 convolution to fewer channels, a 3×3 convolution, and a 1×1 convolution to more channels. The result is *added* to the input, which `downsample` leaves as it is unless the shape changes. So a block learns only a correction, and gradients have a short path back through the additions. (v1.5 halves the image size in the 3×3 convolution, v1 in the first 1×1. [NVIDIA](https://github.com/NVIDIA/DeepLearningExamples/tree/a8e1d1cd/MxNet/Classification/RN50v1.5) reports about 0.5 percentage points more top-1 for about 5% less speed; see `ex02.stride`.)

# %%
import inspect

from rn50lib import resnet
from rn50lib.torch.model import ResNet

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = ResNet(resnet.resnet(50)).to(device)
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
print(inspect.getsource(type(model.layer1[0])))
print("Convolutions of the first block that halves the image size, the last in its shortcut:")
print(*(part for part in model.layer2[0].children() if isinstance(part, torch.nn.Conv2d)), sep="\n")

# %% [markdown]
# ## The recipe
#
# Besides data and network, the **recipe** decides the accuracy. Here is the whole published one ([docs/recipes.md](../docs/recipes.md) has others):

# %% language="bash" magic_args="-e"
# rn50 run --preset RN50_FP16_8GPU --print recipe

# %% [markdown]
# The next cells use three of its numbers: momentum, weight decay and the **learning rate**. The rate is 0.1 for 256 images and scales with the **global batch**, of all GPUs: with twice the batch, an epoch has half as many steps, so each goes twice as far (**linear scaling**). Early in training, such steps are too large, so a **warm-up** raises the rate from zero over five epochs. Later, the rate drops tenfold three times. You write this schedule in `ex02.schedule`; `train.py` leaves it out, like the recipe's mirroring, crop shapes, mean and standard deviation.
#
# ## Write the step
#
# Each step takes a batch, computes the loss (`F.cross_entropy`), finds the gradient of every weight (`backward`), and moves each weight a little against its gradient. **Your turn:** write one step. PyTorch adds new gradients to the old ones, so erase those first. Return `loss.detach()`: the loss, without the graph and its tensors. The cell after yours checks three of your steps, then briefly trains the faster 18-layer version.


# %%
def training_step(model, optimizer, images, labels):
    """Train on one batch; return the loss, without its graph."""
    return None  # your code


# %%
training_step = nb02_checks.check_step(training_step)
small = ResNet(resnet.resnet(18, num_classes=len(photos.classes))).to(device)
start = {name: value.clone() for name, value in small.state_dict().items()}
lr = 0.1 * batch / 256  # linear scaling
optimizer = torch.optim.SGD(small.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
losses = []
for images, labels in itertools.islice(loader, session.loop_steps):
    losses.append(training_step(small, optimizer, images.to(device), labels.to(device)))
losses = [float(loss) for loss in losses]  # waits for the device only here
print(f"loss {losses[0]:.2f} at the start, {np.mean(losses[-5:]):.2f} in the last 5 steps")

# %% [markdown]
# Guessing, with equal probabilities for all 12 classes, has a loss of ln 12 = 2.48.
#
# ## Does it learn?
#
# Only unseen images can tell. The next cell measures the accuracy on crops of those: with `model.eval()`, then without it, for images sorted by class and for shuffled ones. In training mode, batch norm uses the current batch's statistics, and updates its averages. **Predict** the first three accuracies.


# %%
validation = Photos(session.data_root / "val", session.loop_size)
validation.files = validation.files[::2]  # 50 per class, as in a sorted batch


@torch.no_grad()
def top1(model, shuffle=False):
    right = 0
    for images, labels in DataLoader(validation, batch_size=50, shuffle=shuffle):
        right += (model(images.to(device)).argmax(1).cpu() == labels).sum().item()
    return 100 * right / len(validation)


print(f"with model.eval():              {top1(small.eval()):.1f}% correct")
print(f"without model.eval(), sorted:   {top1(small.train()):.1f}% correct")
print(f"without model.eval(), shuffled: {top1(small, shuffle=True):.1f}% correct")
print(f"with model.eval(), once more:   {top1(small.eval()):.1f}% correct")

# %% [markdown]
# A sorted batch holds one class, so normalisation removes much of what distinguishes it; shuffling helps. It can even beat `eval()`, whose running averages lag behind the weights. In the last line, the passes in training mode have updated them with validation images: not a cure. Guessing would get 8.3% right.
#
# ## The whole script
#
# The next cell shows `runs/train.py`. If there is none, it writes one with four gaps. (If yours is finished, keep it and read on, or move it away and rerun.)

# %%
script = workshop.ladder.start_script()
print(script, script.read_text(), sep="\n\n")

# %% [markdown]
# **Your turn:** open `runs/train.py`, and replace each line `...  # your code`: in `Photos`, with the lines of your `__getitem__`; in `main`, with those of your step. `main` reads `loss` after the loop, so there is no `return`. Save the file. The next cell runs your parts on known images and a small network.

# %%
mine = nb02_checks.check_script(script)

# %% [markdown]
# `main` names the parts of your step for the profiler, and times input and computation. A GPU works through a queue: Python adds work and moves on. A clock that does not wait measures only how fast Python fills the queue. That is why `now()` calls `synchronize()`. But then Python cannot prepare a step while the GPU computes the one before.
#
# ## Where is the time going?
#
# **Predict:** out of every 100 ms, how many milliseconds does the loop spend waiting for images? Replace `None`. Because speed varies, the cell times several turns; it prints their median speed and mean step.

# %%
guess = None  # your number
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
print(f"{waiting:.0f}% is waiting for input, and you expected {guess or '?'}%")
session.note("ladder_1_ips", rung["images_per_s"], "img/s", "speed of your script")

# %% [markdown]
# Each version of the script is a **rung** of the **ladder**, the figure at the end of notebook 00; yours is the first. The batch stays the same, so that rungs differ by one change.
#
# On an A100 or a newer GPU, PyTorch computes its float32 convolutions in **TF32**, with fewer bits, [by default](https://docs.pytorch.org/docs/stable/notes/cuda.html#tensorfloat-32-tf32-on-ampere-and-later-devices); notebook 06 measures both.
#
# Two worker processes decode images *while* the model computes, so `input_ms` is only what this overlap does not hide, plus the copy to the GPU, which overlaps nothing here. With overlap, the slower sets the pace; without it, times add up.
#
# ### Which operations?
#
# A **profiler** records every operation. Above, `trace=` ran `torch.profiler` for three untimed steps of the script: compare shares, not milliseconds. [Perfetto](https://ui.perfetto.dev) opens the file, too.
#
# **Predict:** what share of a step is convolution, and which kind is second?

# %%
by_kind = workshop.trace("trace.json.gz")  # ms of a step

# %% [markdown]
# Faster arithmetic helps convolutions; on a GPU, normalisation, pointwise (ReLU and additions), copy and optimizer mostly move data (see 06). On a CPU, `waiting` is loading a batch; on a GPU, no kernel running. `other` has max pooling, the loss and Python; `optimizer` has `zero_grad`, too.
#
# Which kind is worth attacking? The rest of the step limits the gain (**Amdahl's law**). **Your turn:** write the limit. **Predict** it for the convolutions of your step, and of a recorded one of an H100 (float16, batch 256, 224 px).


# %%
def at_most(part, whole):
    """Return how many times as fast a step of `whole` ms can get if its `part` takes no time."""
    return None  # your code


at_most = nb02_checks.check_at_most(at_most)
h100 = 1000 * 256 / session.results["h100.float16.ips"].value  # ms of a step
for whose, part, whole in (
    ("your", by_kind["convolution"], sum(by_kind.values())),
    ("the H100's", session.results["h100.convolution.ms"].value, h100),
):
    print(f"{whose} step of {whole:.0f} ms: convolution is {part / whole:.0%};", end=" ")
    print(f"without it, a step is at most {at_most(part, whole):.2f} × as fast")

# %% [markdown]
# (The H100's convolutions take between 25% and 32%; the cell uses 32%.) Most of its other kernels move data, as 06 shows. 06 brings your step to 16 bits, too; 04 and 05 reduce waiting. What can workers do?
#
# ## Can you feed the device faster?
#
# With 0 workers, the loop itself decodes; with more, other processes do so meanwhile. The next cell trains with 0 and with 2, on a CPU an 18-layer network, so that decoding matters. It times each step and its wait for a batch. **Predict:** does the step shrink by as much as the wait?
#
# **Your turn:** each further row of `tries` adds a change. Try more workers, and rows like the commented one. **Predict** which one helps most, and rerun. (On a CPU, pinning cannot help.)
#
# - `"pin": True`: batches in pinned memory, which a GPU copies while Python continues (`non_blocking=True`);
# - `"layout": torch.channels_last`: each pixel's channels next to each other in memory, which convolutions may prefer.

# %%
tries = {"0 workers": {"workers": 0}, "2 workers": {"workers": 2}}
# tries["2, channels last"] = {"workers": 2, "layout": torch.channels_last}
full = Photos(session.data_root / "train", session.feed_size)


def step_ms(workers, pin=False, layout=torch.contiguous_format):
    """Return the mean ms of a training step, and of its wait for a batch."""
    network = ResNet(resnet.resnet(session.layers, num_classes=len(full.classes)))
    network.to(device, memory_format=layout)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.001)
    loader = DataLoader(full, session.rung_batch, shuffle=True, num_workers=workers, pin_memory=pin)
    batches, times = iter(loader), []
    lead = 2 * max(workers, 2) + 1  # untimed: warm-up, and ready batches
    for _ in range(lead + session.feed_steps):
        begin = time.perf_counter()
        images, labels = next(batches)
        ready = time.perf_counter()
        images = images.to(device, memory_format=layout, non_blocking=pin)
        training_step(network, optimizer, images, labels.to(device, non_blocking=pin))
        if device.type == "cuda":
            torch.cuda.synchronize()
        times.append((time.perf_counter() - begin, ready - begin))
    return 1000 * np.mean(times[lead:], axis=0)


turns = {name: [] for name in tries}
for _ in range(session.feed_turns):
    for name, row in tries.items():
        turns[name].append(step_ms(**row))
for name, ms in turns.items():
    whole, waited = np.median(ms, axis=0)
    print(f"{name}: {waited:.1f} ms waiting + {whole - waited:.1f} ms computing per step")
for above, name in itertools.pairwise(turns):
    print(f"{name} over {above}:", workshop.ratio(np.divide(turns[above], turns[name])[:, 0]))

# %% [markdown]
# If computing takes longer with workers, they compete with it, for cores or for memory. A ratio of speeds is the median of all turns; a difference is clear if there are at least five, all on one side of 1.
#
# Leave `runs/train.py` as it is, even if pinning helps: 03 compares it with a finished script that does not pin. 05 comes back to pinning, 08 to `channels_last`.
#
# ## Does a larger batch help?
#
# **Predict:** by what factor does the largest batch beat the script's in images/s?
#
# A gain suggests a cost that each step has, whatever its batch. If so, a step takes *fixed + batch × time per image*: images/s rise, then flatten.


# %%
def measure(count):
    """Return the ms of several training steps with `count` images."""
    images = torch.randn(count, 3, session.image_size, session.image_size, device=device)
    labels = torch.zeros(count, dtype=torch.long, device=device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    ms = []
    for _ in range(session.repeats + 1):
        begin = time.perf_counter()
        training_step(model, optimizer, images, labels)
        if device.type == "cuda":
            torch.cuda.synchronize()  # wait for the queue
        ms.append(1000 * (time.perf_counter() - begin))
    return ms[1:]  # the first step is warm-up


turns = {}
count = 2
while count <= session.most_images:
    try:
        turns[count] = measure(count)
    except torch.OutOfMemoryError:
        print(f"{count} images do not fit into this GPU's memory.")
        break
    count *= 2
torch.cuda.empty_cache()  # for other processes on this GPU
counts, ms = np.array(list(turns)), np.median(list(turns.values()), axis=1)
each, fixed = np.polyfit(counts, ms, 1, w=1 / ms)
fit = fixed + each * counts
speeds = 1000 * counts / ms
rows = zip(turns, ms, fit, speeds, strict=True)
workshop.table(rows, ["batch", "ms", "fitted", "images/s"])
print(f"Fitted, up to {np.abs(fit / ms - 1).max():.0%} off: {fixed:.0f} ms + batch × {each:.1f} ms")
same = np.median(turns[session.rung_batch])
print(f"Your script's batch takes {compute_ms:.0f} ms, {compute_ms / same:.2f} × as long.")
print(f"The largest batch is {speeds[-1] * same / session.rung_batch / 1000:.2f} × as fast.")

# %% [markdown]
# If all times are within about 20% of the fit, a fixed cost can explain the gain; in notebook 00, a batch of 8 paid it four times as often. If Python fills a GPU's queue too slowly, small batches take equally long. Your script's step has fewer classes, and two workers decode meanwhile, on a CPU with the same cores.
#
# ### What limits the batch?
#
# The backward pass needs the outputs of the layers, the **activations**, which stay in memory until then ([out of memory?](../docs/troubleshooting.md#out-of-memory)). A PyTorch hook counts their bytes. **Predict:** how many images fit into a V100's 16 GB in FP32? On a GPU, the cell compares the count with the measured peak.


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
fixed = 3 * 4 * 25_557_032  # weights, gradients, momentum
print(f"per image {per_image / 1e6:.0f} MB, plus a fixed {fixed / 1e6:.0f} MB")
for name, size, published in (("FP32", per_image, 96), ("FP16", per_image / 2, 208)):
    print(f"{name}, 16 GB as on a V100: room for {(16e9 - fixed) // size:.0f} images;", end=" ")
    print(f"the published batch of {published} needs {(fixed + published * size) / 1e9:.1f} GB")
if device.type == "cuda":
    before = torch.cuda.memory_allocated()
    network = ResNet(resnet.resnet(50)).to(device)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    images, labels = torch.randn(16, 3, 224, 224), torch.zeros(16, dtype=torch.long)
    torch.cuda.reset_peak_memory_stats()
    for _ in range(2):
        training_step(network, optimizer, images.to(device), labels.to(device))
    peak = torch.cuda.max_memory_allocated() - before
    print(f"16 images: predicted {(fixed + 16 * per_image) / 1e9:.2f} GB, peak {peak / 1e9:.2f} GB")

# %% [markdown]
# By this count, both published batches need little more than half of a V100's memory. It halves the activations for FP16, and leaves out the gradients of activations, cuDNN's workspace and DALI's buffers. On a GPU, *peak* shows what it misses.
#
# ## What does a long run need?
#
# However fast a step is, a real run takes hours or days and has to survive failures. What must a checkpoint contain? The next cell trains for four steps. Then it trains for two, saves the state, and resumes for the other two: with the weights alone, then with the momentum too. **Predict:** do both end with the same weights as the uninterrupted run?

# %%
import copy

four = list(itertools.islice(loader, 4))  # batches


def train_on(batches, checkpoint):
    """Return the checkpoint after training on some batches, from the state of `checkpoint`."""
    small.train().load_state_dict(checkpoint["model"])
    optimizer = torch.optim.SGD(small.parameters(), lr=0.01, momentum=0.9)
    if "optimizer" in checkpoint:
        optimizer.load_state_dict(checkpoint["optimizer"])
    for images, labels in batches:
        training_step(small, optimizer, images.to(device), labels.to(device))
    return copy.deepcopy({"model": small.state_dict(), "optimizer": optimizer.state_dict()})


def difference(one, other):
    """Return the largest difference of a weight."""
    names = [name for name, _ in small.named_parameters()]
    return max((one["model"][name] - other["model"][name]).abs().max().item() for name in names)


whole, half = train_on(four, {"model": start}), train_on(four[:2], {"model": start})
print(f"four steps move the weights by up to {difference(whole, {'model': start}):.2g}")
for parts in (["model"], ["model", "optimizer"]):
    resumed = train_on(four[2:], {part: half[part] for part in parts})
    print(f"{' and '.join(parts)} restored: off by up to {difference(whole, resumed):.2g}")

# %% [markdown]
# If you save only the weights, the run continues differently, because the optimizer has state too. A real run must also restore its place in the epoch, the order of the images and the metrics. `rn50 run` saves all of this after every epoch and on SIGTERM. On a CPU, `rn50 run --resume` ends with the *same bits* as an uninterrupted run, which the project's tests check.
#
# ## Key takeaways
#
# - Check the accuracy on unseen images, in `eval()` mode.
# - On separate hardware, input and computation overlap, and only the slower counts; on shared cores, both count. Time the parts, then trace the slow one.
# - Activations fill the memory; they grow with the batch.
# - The learning rate scales with the global batch. Long runs start with a warm-up.
# - A run that resumes needs the optimizer's state, too.
#
# If your step mostly computes, more devices help: notebook 03. If it mostly waits for input, 04 and 05 help more.
