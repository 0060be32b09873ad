# %% [markdown]
# # 02 · One GPU
#
# This notebook gives you a training script for ResNet-50 v1.5 that you understand line by line. You also learn where its time goes and what a production run adds.
#
# **Time:** 55 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 4 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
epochs: int | None = None  # epochs of the library's run
batch: int | None = None  # images per step of the loop and of the library's run
pairs: int | None = None  # timed pairs of v1 and v1.5
seed: int = 0  # seed of all random numbers

# %%
import os

import workshop

session = workshop.start("02", profile)
epochs, batch, pairs = epochs or session.epochs, batch or session.batch, pairs or session.pairs
os.chdir(session.folder)  # everything below is written here
os.environ |= {
    "DATA": str(session.data_root), "TRAIN": str(session.runs / "train.py"), "SEED": str(seed),
    "SIZE": str(session.image_size), "BATCH": str(batch), "EPOCHS": str(epochs),
    "IMAGES": str(session.images),
    "FLAGS": f"--image-size {session.image_size} --batch-size {session.rung_batch}"
    f" --steps {session.steps}",
    "TINY": f"--network tiny --image-shape 32 --no-val -b 8 -e {session.tiny_epochs}",
}  # fmt: skip

# %% [markdown]
# ## One script
#
# From here to notebook 08 you work on one script, `train.py`. Notebook 03 runs it on several GPUs, 05 replaces its input pipeline, 06 changes its number format, and 08 tunes it. After every change you ask the same question: **where is the time going now?**
#
# A `Dataset` answers two questions: how many images are there, and what is image number `i`? This one crops a random square from each image, so the network rarely sees exactly the same crop twice.

# %%
import random

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

plt.style.use("tableau-colorblind10")


class Photos(Dataset):
    def __init__(self, folder, size):
        self.files, self.size = sorted(folder.glob("*/*.jpg")), size
        self.classes = sorted({file.parent.name for file in self.files})

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        image = Image.open(self.files[i]).convert("RGB")
        side = random.uniform(0.7, 1.0) * min(image.size)
        left, top = (random.uniform(0, length - side) for length in image.size)
        box = (left, top, left + side, top + side)
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box)
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        return pixels / 127.5 - 1, self.classes.index(self.files[i].parent.name)


photos = Photos(session.data_root / "train", session.loop_size)
pixels, label = photos[0]
print(f"{len(photos):,} images; the first shows {photos.classes[label]}, {tuple(pixels.shape)}")

# %% [markdown]
# The network is ResNet-50 v1.5. It comes from the course's library, because it would not fit on one screen. Here is the block it repeats 16 times: a 1×1 convolution to fewer channels, a 3×3 convolution, and a 1×1 convolution to more channels. The result is *added* to the input. So a block learns only a correction, and gradients have a short path back through the additions. Without these shortcuts, very deep networks train worse than shallower ones.

# %%
from rn50lib import resnet
from rn50lib.torch.model import ResNet

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(seed)
model = ResNet(resnet.resnet(50)).to(device)
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
workshop.show("rn50lib.torch.model:Bottleneck")

# %% [markdown]
# Next comes the loop. Each step takes a batch, computes the loss, propagates it backwards through the network, and moves every weight a little against its gradient. The next cell trains the 18-layer version, which learns something within a minute on a CPU.


# %%
def train(model, loader, steps, lr=0.0125):
    """Train for `steps` steps, one epoch at most, at a constant rate; return the losses."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9, weight_decay=1e-4)
    losses = []
    for _, (images, labels) in zip(range(steps), loader, strict=False):
        loss = F.cross_entropy(model(images.to(device)), labels.to(device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).tolist()


small = ResNet(resnet.resnet(18, num_classes=len(photos.classes))).to(device)
start = {name: value.clone() for name, value in small.state_dict().items()}
loader = DataLoader(photos, batch, shuffle=True, drop_last=True, num_workers=2)
losses = train(small, loader, session.loop_steps)
print(f"loss {losses[0]:.2f} at the start, {np.mean(losses[-5:]):.2f} in the last 5 steps")

# %% [markdown]
# Equal probabilities for 12 classes give a loss of ln 12 = 2.48. How well does the trained network do on new images?
#
# The next cell measures that twice, the second time without `model.eval()`. In training mode, batch norm uses the statistics of the current batch, and the validation files are sorted by class. **Predict:** what will that do to the accuracy?

# %%
validation = Photos(session.data_root / "val", session.loop_size)


@torch.no_grad()
def top1(model):
    right = 0
    for images, labels in DataLoader(validation, 50, num_workers=2):
        right += (model(images.to(device)).argmax(1).cpu() == labels).sum().item()
    return 100 * right / len(validation)


print(f"with model.eval():    {top1(small.eval()):.1f}% correct")
print(f"without model.eval(): {top1(small.train()):.1f}% correct")

# %% [markdown]
# In training mode the statistics come from a batch that holds a single class, so normalisation removes much of what distinguishes that class from the others. Training code can contain such silent mistakes too. The next cell starts again from the same initial weights but omits `shuffle=True`, so that most batches hold a single class. **Predict** what the loss curve will look like.

# %%
small.load_state_dict(start)
sorted_loader = DataLoader(photos, batch, drop_last=True, num_workers=2)
unshuffled = train(small.train(), sorted_loader, session.loop_steps)
print(f"top-1 {top1(small.eval()):.1f}%")
fig, axes = plt.subplots(figsize=(10, 3), layout="constrained")
axes.plot(losses, label="shuffled")
axes.plot(unshuffled, "--", label="sorted by class")
axes.set(title="Loss of the same network", xlabel="step", ylabel="cross-entropy (nats)")
axes.legend()
workshop.figure(fig, alt="Loss by step, for shuffled images and for images sorted by class.")

# %% [markdown]
# The network learns to answer with the current class, so the loss jumps when the next class begins, most clearly at first. A network that always gives the same answer is correct 1 time in 12, or 8.3%.
#
# ## The whole script
#
# `exercises/ladder/1_single.py` has the same parts in one file, plus flags and a clock. The next cell copies it to `runs/train.py`, which is yours from now on, and prints its loop:

# %%
script = workshop.ladder.script("1_single")
text = script.read_text()
print(text[text.index("    def now():") :])

# %% [markdown]
# A GPU works through a queue: Python adds work to it and moves on. A clock that does not wait for the queue measures only how fast Python fills it. That is why `now()` calls `synchronize()`.
#
# ### Where is the time going?
#
# **Predict:** out of every 100 ms, how many milliseconds does the loop spend waiting for images? While the cell runs, watch the utilisation in a terminal, with `nvidia-smi dmon -s um` for a GPU and `htop` for a CPU. (The loss is for one small batch after a few steps: 2 to 20 is normal.)

# %%
import psutil

psutil.cpu_percent()  # start the measurement
rung = workshop.ladder.climb(
    "1_single",
    image_size=session.image_size,
    batch_size=session.rung_batch,
    steps=session.steps,
)
busy = psutil.cpu_percent()
step_ms = rung["input_ms"] + rung["compute_ms"]
waiting = 100 * rung["input_ms"] / step_ms
print(f"{waiting:.0f}% of a step is waiting for input")
print(f"CPU utilisation, start-up of the script included: {busy:.0f}%")

# %% [markdown]
# Two worker processes decode images *while* the model computes, so `input_ms` counts only what this overlap does not hide, and the copy to the GPU. **Predict** `input_ms` with `--workers 0`, when the loop has to decode its own images.

# %% language="bash" magic_args="-e"
# python "$TRAIN" --data "$DATA" $FLAGS --workers 0

# %% [markdown]
# With overlap, the slower of the two parts sets the pace, and making the other one faster gains nothing. Without overlap, the times add up. On a CPU both share the cores, so hidden decoding slows the computation, and `--workers 0` may even be faster.
#
# **Your turn.** Open `runs/train.py` in the file browser. Make the JPEG decoder produce a smaller image. It can decode at 1/2, 1/4 or 1/8 size, never below the `draft` size, so this helps only if the shorter side is at least four times `--image-size`. The road signs are about 500 × 375 pixels: with 224-pixel images, the size used on a GPU, nothing changes.
#
# ```python
# image = Image.open(self.files[i])
# image.draft("RGB", (2 * self.size, 2 * self.size))
# image = image.convert("RGB")
# ```
#
# Predict `input_ms` with 0 workers and images/s with 2 workers, then run the two cells above again. Which of the two changes more, and why?
#
# ## How long will it take?
#
# Data sets grow in both the number and the size of their images. Training time is images × epochs ÷ images per second, and the work per image grows with its area.

# %%
imagenet, training = 1_281_167, 90  # images (115.4 KB each on average), epochs
speeds = {
    "this script, scaled to 224 px (rough)": rung["images_per_s"] * (session.image_size / 224) ** 2,
    "one V100, FP32": session.results["published.v100.1gpu.fp32.ips"].value,
    "one V100, FP16": session.results["published.v100.1gpu.fp16.ips"].value,
    "one H100, the tuned script of notebook 08": session.results["ladder.h100.5_tuned.ips"].value,
}
print(
    f"{imagenet * training / 1e6:.0f} million images, {imagenet * 115.4e3 / 1e9:.0f} GB per epoch"
)
for name, ips in speeds.items():
    hours = imagenet * training / ips / 3600
    print(f"{name}: {ips:,.1f} images/s, {hours:,.0f} h")
    print(f"    10 x as many images, twice as wide and high: {10 * 4 * hours / 24:,.0f} days")

# %% [markdown]
# For the V100, the estimate is close: NVIDIA published 82.0 h and 22.9 h, validation included.
#
# ## Memory limits the batch
#
# Why not use a larger batch, to keep the GPU busier? The backward pass needs the outputs of the layers, the **activations**, which must stay in memory until it runs. A PyTorch hook lets you count their bytes.


# %%
def kept_bytes(count):
    """Bytes that autograd keeps for the backward pass of `count` ImageNet-sized images."""
    kept = {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    network = ResNet(resnet.resnet(50))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        network(torch.randn(count, 3, 224, 224))
    return sum(kept.values())


per_image = kept_bytes(2) - kept_bytes(1)
fixed = 3 * 4 * 25_557_032  # weights, gradients, momentum
print(f"per image {per_image / 1e6:.0f} MB, plus a fixed {fixed / 1e6:.0f} MB")
for name, size, published in (("FP32", per_image, 96), ("FP16", per_image / 2, 208)):
    limit = (16e9 - fixed) / size
    print(f"{name}: at most {limit:.0f} images in the 16 GB of a V100; published batch {published}")

# %% [markdown]
# The published batches of 96 and 208 are well below these limits, which leave out workspace and temporary copies. With half as many bytes per number, twice as many images fit, which is one reason for notebook 06. **Predict** the speed-up per image from batch 2 to 32.

# %%
import time

model.train()


def rate(count):
    """Images per second of forward and backward passes with `count` images."""
    images = torch.randn(count, 3, session.image_size, session.image_size, device=device)
    for repeat in range(session.repeats + 1):
        if repeat == 1:  # the first pass is warm-up
            begin = time.perf_counter()
        F.cross_entropy(
            model(images), torch.zeros(count, dtype=torch.long, device=device)
        ).backward()
        float(model.fc.bias.grad[0])  # wait for the device
    return session.repeats * count / (time.perf_counter() - begin)


counts = [2, 4, 8, 16, 32]
rates = [rate(count) for count in counts]
found = ", ".join(f"{count}: {r:.1f}" for count, r in zip(counts, rates, strict=True))
print("images/s by batch:", found)
gain = rates[-1] / rates[0]
print(f"A batch of 32 is {gain:.1f} times as fast per image as a batch of 2:")
print("more images share the fixed costs of a step, such as reading the weights.")
print(f"The fastest batch here is {counts[int(np.argmax(rates))]}.")

# %% [markdown]
# Once the device is fully busy, a larger batch gains nothing.
#
# ## The recipe
#
# Two people who train "ResNet-50" and get different accuracies have often used different recipes. Here is the whole published one: each value with its flag and its meaning.

# %% language="bash" magic_args="-e"
# rn50 run --preset RN50_FP16_8GPU --print recipe

# %% [markdown]
# The learning rate depends on the batch size. With twice the batch, an epoch has half as many steps. If you also double the rate, each step moves the weights twice as far, so the epoch ends in much the same place. This is **linear scaling**: a rate of 0.1 for a global batch of 256, scaled in proportion for other batches.
#
# The argument assumes that the weights change little from step to step. At the start they change a lot, so the rate rises linearly from zero over the first five epochs: the **warm-up**. Later it is divided by 10 three times.
#
# The next cell chains two PyTorch schedulers for this, first correctly, then with an easy-to-make mistake.

# %%
from torch.optim.lr_scheduler import LinearLR, MultiStepLR, SequentialLR

from rn50lib import recipe

per_epoch = 10  # steps; an epoch of ImageNet has 5,004 of them at a batch of 256


def scheduled(falls):
    """The learning rate of each step by PyTorch's schedulers, with decays at `falls` (epochs)."""
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=0.1)
    warm_up = LinearLR(optimizer, 1e-6, total_iters=5 * per_epoch)
    decay = MultiStepLR(optimizer, [fall * per_epoch for fall in falls], gamma=0.1)
    schedule = SequentialLR(optimizer, [warm_up, decay], [5 * per_epoch])
    rates = []
    for _ in range(90 * per_epoch):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return rates


at = [step / per_epoch for step in range(90 * per_epoch)]
ours = [recipe.learning_rate(epoch, 256, recipe.REFERENCE) for epoch in at]
right, wrong = scheduled([30 - 5, 60 - 5, 80 - 5]), scheduled([30, 60, 80])
print(f"largest difference from the function: {np.abs(np.subtract(right, ours)).max():.1e}")
print(f"with (30, 60, 80): still {wrong[32 * per_epoch]:g} in epoch 32")

# %%
fig, axes = plt.subplots(figsize=(10, 3), layout="constrained")
axes.semilogy(at, ours, lw=5, alpha=0.4, label="recipe.learning_rate")
axes.semilogy(at, right, "--", color="black", label="PyTorch's schedulers")
axes.semilogy(at, wrong, ":", label="the same, without shifting the decays")
axes.set(title="The learning rate, batch 256", xlabel="epoch", ylabel="learning rate", ylim=1e-5)
axes.legend()
workshop.figure(fig, alt="Learning rate over 90 epochs: the function and the schedulers agree.")
workshop.show(recipe.learning_rate)

# %% [markdown]
# (On a log axis, the linear warm-up looks curved.) In a sequence, the second scheduler counts from its own start, so the dotted line decays five epochs late. The library's function has no state: for epoch 45.5 it returns the same rate on any worker and after any crash. Schedulers must be saved and restored.
#
# ## v1 and v1.5
#
# Between two stages, a convolution with a stride of 2 halves the width and height of the feature maps. In the original network, now called v1, this is the block's first 1×1 convolution. Version 1.5 moves the stride to the 3×3. The next cell prints the strides of both networks and the library's code that sets them; find the line. Then gradients show the difference: a pixel whose gradient is zero is never used.

# %%
import inspect

from torch import nn

for version in ("v1", "v1.5"):
    block = ResNet(resnet.resnet(50, version=version)).layer2[0]  # the first to halve the size
    print(
        f"{version:4}: 1×1 {block.conv1.stride}, 3×3 {block.conv2.stride}, 1×1 {block.conv3.stride}"
    )
print(f"\n{inspect.getsource(resnet.Network.blocks)}")

ones = torch.ones(1, 1, 8, 8, requires_grad=True)
for name, conv in {
    "v1, 1×1 with stride 2": nn.Conv2d(1, 1, 1, stride=2),
    "v1.5, 3×3 with stride 2": nn.Conv2d(1, 1, 3, stride=2, padding=1),
}.items():
    (gradient,) = torch.autograd.grad(conv(ones).sum(), ones)
    used = (gradient != 0)[0, 0]
    print(f"{name}: uses {100 * used.float().mean():.0f}% of its input")
    print("\n".join("".join(" ■" if pixel else " ·" for pixel in row) for row in used[:4]), "\n")

# %% [markdown]
# Moving the stride adds no parameters, but it adds work: the first 1×1 convolution now computes four times as many pixels. NVIDIA's [*ResNet-50 v1.5 for MXNet*](https://github.com/NVIDIA/DeepLearningExamples/tree/a8e1d1cd/MxNet/Classification/RN50v1.5) says v1.5 is about 0.5% better in top-1 and about 5% slower. Checking the accuracy takes several runs of 90 epochs on ImageNet, but you can check the time. The machine's speed varies, so the networks take turns.

# %%
versions = ("v1", "v1.5")
networks = {v: ResNet(resnet.resnet(50, version=v)).to(device) for v in versions}
images = torch.randn(session.pair_batch, 3, session.pair_size, session.pair_size, device=device)
seconds = {v: [] for v in versions}
for turn in range(pairs + 1):
    for version, network in networks.items():
        begin = time.perf_counter()
        network(images).sum().backward()
        float(network.fc.bias.grad[0])  # wait for the device
        if turn:  # the first turn is warm-up
            seconds[version].append(time.perf_counter() - begin)
ratios = np.divide(seconds["v1.5"], seconds["v1"])
work = [resnet.resnet(50, version=version).macs(224) for version in versions]
print(f"v1.5 does {100 * (work[1] / work[0] - 1):.1f}% more work")
print(
    f"and takes {np.median(ratios):.2f} times as long, from {min(ratios):.2f} to {max(ratios):.2f}"
)
if min(ratios) < 1 < max(ratios):
    print("The range includes 1: this machine's speed varies too much to show 5%.")

# %% [markdown]
# ## What your script lacks
#
# Your script trains, but a run that takes days on many GPUs needs more:
#
# | your script | the library | because |
# |---|---|---|
# | one learning rate | warm-up and decay, a function of progress | large batches need warm-up; decay improves accuracy |
# | the loss of the last step only | sums that stay on the device, read every 20 steps by default | you want to see the loss during the run, and each read makes Python wait for the GPU |
# | a printed line | a report with every setting and its reason | others need to compare their runs |
# | weights at the end | a checkpoint per epoch, and `--resume` | machines fail |
# | no validation | each validation image exactly once | accuracy is the goal |
#
# The library's command is `rn50 run`. Any training setting you omit comes from the recipe `roadsigns`, with its own `lr`. A 16-bit `dtype` (notebook 06) makes the run faster than your script. On a CPU, the schedule is shortened. Progress appears at most every 10 seconds.

# %% language="bash" magic_args="-e"
# rm -f whole-*  # from an earlier run
# rn50 run --data-root "$DATA" -e $EPOCHS -b $BATCH --image-shape $SIZE --num-examples $IMAGES \
#   --recipe roadsigns --seed $SEED --disp-batches 10 --model-prefix whole --report report.json 2>&1

# %% [markdown]
# The run's report uses the same keys as NVIDIA's program, in the same order. Each metric has one value per epoch: accuracies in per cent, losses in nats, times in seconds. Unmeasured values are `null`, never 0. `train.time` is the mean time per iteration, excluding the first of each epoch, which waits for the first batch. `total_ips` is *Total IPS* in images/s: global batch ÷ `train.time`, input and computation together. `env` records every setting and its reason: `lr` is the rate for a batch of 256, which the log scales to this run's peak.

# %%
import json
from pathlib import Path

report = json.loads(Path("report.json").read_text())
metrics = report["metrics"]
for key, values in metrics.items():
    print(f"{key}: {', '.join('null' if value is None else f'{value:.4g}' for value in values)}")
for name in ("dtype", "batch_size", "lr", "warmup_epochs", "threads", "data_nthreads"):
    axis = report["env"]["axes"][name]
    value = axis["value"]
    print(f"{name} = {value:.3g}" if isinstance(value, float) else f"{name} = {value}", end=": ")
    print(axis["reason"])
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3), layout="constrained")
done = range(1, epochs + 1)
left.plot(done, metrics["train.loss"], "o-")
left.set(title="Training loss", xlabel="epoch", ylabel="cross-entropy (nats)", xticks=done)
right.plot(done, metrics["train.top1"], "o-", label="training")
right.plot(done, metrics["val.top1"], "s--", label="validation")
right.set(title="Accuracy", xlabel="epoch", ylabel="top-1 (%)", xticks=done)
right.legend()
accuracy = metrics["val.top1"][-1]
workshop.figure(fig, alt=f"Loss and accuracy by epoch. Validation ends at {accuracy:.1f}%.")

# %% [markdown]
# **Predict:** what accuracy does the full recipe reach on the road signs (9 epochs of 2,400 images, 64 pixels, batch 32)? `rn50 run --preset roadsigns` runs it in full.

# %%
yours = {"roadsigns.untrained.top1": None}
for precision in ("float32", "bfloat16"):
    yours |= dict.fromkeys(f"roadsigns.resnet50.{precision}.{key}" for key in ("top1", "minutes"))
for kind in ("fp32.top1", "fp32.hours", "fp16.top1", "fp16.hours"):
    yours[f"published.v100.1gpu.{kind}"] = None
session.expect(yours)

# %% [markdown]
# ## Kill it and resume
#
# Machines fail, and jobs hit their time limit. A run that takes days must survive this and still give the same result. What has to be saved? The next cell trains for four steps. Then it trains for two, saves the state, and resumes for the other two: once with the weights alone, once with the momentum too.

# %%
import copy

fixed_batches = [b for _, b in zip(range(4), loader, strict=False)]


def train_on(batches, weights, momentum=None):
    network = ResNet(resnet.resnet(18, num_classes=len(photos.classes))).to(device)
    network.load_state_dict(weights)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    if momentum:
        optimizer.load_state_dict(copy.deepcopy(momentum))  # it is updated in place
    for images, labels in batches:
        optimizer.zero_grad()
        F.cross_entropy(network(images.to(device)), labels.to(device)).backward()
        optimizer.step()
    return copy.deepcopy(network.state_dict()), optimizer.state_dict()


undisturbed, _ = train_on(fixed_batches, start)
saved = train_on(fixed_batches[:2], start)
for what, state in {"weights": saved[:1], "weights and momentum": saved}.items():
    resumed, _ = train_on(fixed_batches[2:], *state)
    gap = max((resumed[name] - undisturbed[name]).abs().max().item() for name in start)
    print(f"{what} restored: the weights differ by up to {gap:.2g}")

# %% [markdown]
# If you save only the weights, the run continues differently, because the optimizer has state too. A real run must also restore its place in the epoch, the order of the images and the metrics. The library writes all of this after every epoch, and on SIGTERM, to a new file, then renames it: a crash never leaves half a checkpoint.
#
# The library promises that, on a CPU, a run that was killed and resumed ends with the *same bits* as an uninterrupted one. The next cells run both with the `tiny` network. The second is ended by SIGKILL, which no program can catch. Look in the log for the epoch from which the killed run resumes.

# %%
import subprocess

for file in [*Path().glob("calm-*"), *Path().glob("killed-*")]:
    file.unlink()
command = ["rn50", "run", "--data-root", os.environ["DATA"], *os.environ["TINY"].split()]
command += ["--seed", str(seed)]
log = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
subprocess.run([*command, "--model-prefix", "calm"], check=True, **log)
process = subprocess.Popen([*command, "--model-prefix", "killed"], **log)
while not list(Path().glob("killed-0001*")) and process.poll() is None:
    time.sleep(0.02)
if process.poll() is not None:
    raise RuntimeError(process.stdout.read())
for worker in psutil.Process(process.pid).children():  # `rn50 run` starts it and waits
    worker.kill()  # SIGKILL
print(f"exit status {process.wait()}; files: {sorted(p.name for p in Path().glob('killed-*'))}")

# %% language="bash" magic_args="-e"
# rn50 run --data-root "$DATA" $TINY --seed $SEED --model-prefix killed --resume 2>&1

# %%
from rn50lib import checkpoint

calm, killed = (
    checkpoint.load(prefix, session.tiny_epochs).arrays for prefix in ("calm", "killed")
)
same = sum(np.array_equal(calm[name], killed[name]) for name in calm)
print(f"{same} of {len(calm)} arrays are equal, bit for bit")

# %% [markdown]
# This holds for the same number of threads, because the terms of each sum are then added in the same order. On a GPU some operations add in whatever order their threads finish, so rounding makes the runs drift apart. The promise also requires that the order of the images and every random crop depend only on seed, epoch and image. Your script's random crops do not meet this requirement.
#
# ## The ladder
#
# This figure, the ladder, reappears in every notebook that changes the script. Each version of the script is a **rung**; yours is the first. The bars are speeds, and their colours show the shares of a step. Published V100 and recorded H100 speeds are on the right.

# %% tags=["results"]
workshop.ladder.figure()
session.note("ladder_1_ips", rung["images_per_s"], "img/s", "speed of your script")
session.note("data_share", waiting, "%", "share of a step waiting for input")
session.note("v15_over_v1", float(np.median(ratios)), "times", "time of a v1.5 step over a v1 step")
session.note("short_top1", accuracy, "%", "top-1 of ResNet-50 after the short run")

# %% [markdown]
# ## Key takeaways
#
# - A training script takes about a hundred lines. Much of a training library exists to make long runs reliable.
# - Silent mistakes raise no error, so check the accuracy on unseen images in `eval()` mode.
# - If input and computation overlap, only the slower one counts. Measure first.
# - Activations fill the memory, and they grow with the batch and the image area.
# - The learning rate scales with the global batch and starts with a warm-up. Compute it without hidden state.
# - If everything is restored, a killed and resumed CPU run gives the same result as an uninterrupted one.
#
# **Try it:** set `batch = 128` in the first code cell, and predict the learning rate and the speed of the library's run.
#
# If computation is the bottleneck, use more devices, as in notebook 03.
