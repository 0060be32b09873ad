# %% [markdown]
# # 02 · One GPU
#
# After this notebook you have a training script for ResNet-50 v1.5 that you understand line by line, you know where its time goes, and you know what a production training run adds to it.
#
# **Time:** 40 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 4 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
epochs: int | None = None  # epochs of the library's run
batch: int | None = None  # images per step of the loop and of the library's run
pairs: int | None = None  # timed pairs of v1 and v1.5
seed: int = 0  # start of all randomness

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
# From here to notebook 08 you work on one script, `train.py`. It starts with plain PyTorch on one device. Notebook 03 runs it on several GPUs, 05 replaces its input pipeline, 06 changes its number format and 08 tunes it. After every change the question is the same: **where is the time going now?**
#
# First write the parts of the script. A `Dataset` answers two questions: how many images are there, and what is image number `i`? This one cuts a random square out of each photo, so that the network rarely sees the same pixels twice.

# %%
import random

import numpy as np
import torch
from PIL import Image
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset


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
# The network is ResNet-50 v1.5. It is the only part that comes from the course's library, because 50 layers do not fit on one screen. Here is the block it repeats 16 times: a 1×1 convolution to fewer channels, a 3×3, a 1×1 to more channels. The result is *added* to the input. A block only learns a correction, and gradients have a short path back through the additions. That is why 50 layers can be trained at all.

# %%
from rn50lib import resnet
from rn50lib.torch.model import ResNet

device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
torch.manual_seed(seed)
model = ResNet(resnet.resnet(50)).to(device)
print(f"{sum(p.numel() for p in model.parameters()):,} parameters")
workshop.show("rn50lib.torch.model:Bottleneck")

# %% [markdown]
# Now the loop. Each step takes a batch, computes the loss, sends it backwards through the network, and moves every weight a little against its gradient. The cell trains the 18-layer version, which learns something in a minute on a CPU.


# %%
def train(model, loader, steps, lr=0.0125):
    """Train for some steps at a constant learning rate; return the losses."""
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
# A network that guesses among 12 classes has a loss of ln 12 = 2.48. What does this one know about images it was not trained on?
#
# **Predict:** the next cell asks twice, and the second time it leaves out `model.eval()`. In training mode, batch norm uses the statistics of the current batch, and the validation files are sorted by class. What will that do to the accuracy?

# %%
validation = Photos(session.data_root / "val", session.loop_size)


@torch.no_grad()
def top1(model):
    right = 0
    for images, labels in DataLoader(validation, 50, num_workers=2):
        right += (model(images.to(device)).argmax(1).cpu() == labels).sum().item()
    return 100 * right / len(validation)


print(f"with model.eval():    {top1(small.eval()):.1f} % right")
print(f"without model.eval(): {top1(small.train()):.1f} % right")

# %% [markdown]
# Both numbers look like accuracies, and no error was raised. Training has such silent mistakes too. The next cell starts again from the same weights and forgets `shuffle=True`, so that nearly every batch holds one class. **Predict** how the loss will look.

# %%
small.load_state_dict(start)
sorted_loader = DataLoader(photos, batch, drop_last=True, num_workers=2)
unshuffled = train(small.train(), sorted_loader, session.loop_steps)
print("loss of every third step:", *(f"{loss:.1f}" for loss in unshuffled[::3]))
print(f"top-1 {top1(small.eval()):.1f} %")

# %% [markdown]
# The network learns to answer with the class of the moment, and the loss jumps when the next class begins. In the end it only knows the last class it saw: 1 of 12, or 8.3 %. Two more to try: leave out `optimizer.zero_grad()`, or pass `lr=1`.
#
# ## The whole script
#
# The same parts in one file, plus flags and a clock, are `exercises/ladder/1_single.py`. The next cell copies it to `train.py` in your folder of runs. From now on that file is yours. This is its loop:

# %%
script = workshop.ladder.script("1_single")
text = script.read_text()
print(text[text.index("    def now():") :])

# %% [markdown]
# A GPU works through a queue: Python adds work to it and continues. A clock that does not wait for the queue measures how fast Python can type. Hence `synchronize()` in `now()`.
#
# ### Where is the time going?
#
# **Predict:** of every 100 ms, how many does the loop wait for images? Write the number down, then run the script. While it runs, watch the device from a terminal as well: `nvidia-smi dmon -s um` for a GPU, `htop` for a CPU. For a CPU, `psutil` in the cell does the same.

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
print(f"{waiting:.0f} % of a step is waiting for input; the CPU was busy {busy:.0f} % of the time")

# %% [markdown]
# Two worker processes decode the images *while* the model computes, so you only see the part that is not hidden behind it. **Predict** `input_ms` with `--workers 0`, where the loop has to decode its own images.

# %% language="bash" magic_args="-e"
# python "$TRAIN" --data "$DATA" $FLAGS --workers 0

# %% [markdown]
# With overlap, the slower of the two parts decides: making the other one faster gains nothing. Without overlap, the times add up. On a CPU both also share the cores, so even hidden decoding costs something.
#
# **Your turn.** Open the file named above, `runs/train.py`, in the file browser. After `Image.open(...)`, let the JPEG decoder skip pixels that the resize would throw away:
#
# ```python
# image = Image.open(self.files[i])
# image.draft("RGB", (2 * self.size, 2 * self.size))
# image = image.convert("RGB")
# ```
#
# Predict both `input_ms` with 0 workers and images/s with 2 workers, then run the two cells above again. Only one of the two should change much. Which one, and why?
#
# ## How long will it take?
#
# Data sets grow: more images, and larger ones. The hours are images × epochs ÷ images per second, and the work per image grows with its area.

# %%
imagenet, training = 1_281_167, 90  # images, epochs
speeds = {
    "this script, here": rung["images_per_s"] * (session.image_size / 224) ** 2,
    "one V100, FP32": session.results["published.v100.1gpu.fp32.ips"].value,
    "one V100, FP16": session.results["published.v100.1gpu.fp16.ips"].value,
}
print(f"{imagenet * training / 1e6:.0f} million images, {imagenet * 110e3 / 1e9:.0f} GB per epoch")
for name, ips in speeds.items():
    hours = imagenet * training / ips / 3600
    print(f"{name}: {ips:,.1f} images/s, {hours:,.0f} h; 10 x images of twice the side: "
          f"{10 * 4 * hours / 24:,.0f} days")  # fmt: skip

# %% [markdown]
# NVIDIA published 82.0 h and 22.9 h for the two V100 lines, with validation included. (If you compare a newer GPU in "float32": PyTorch's convolutions use TF32 there by default, its matrix products do not.) A fleet of cars needs its new model sooner than in 40 × 22.9 hours: the reason for everything that follows.
#
# ### Minibatching is memory-bound
#
# Why not use a larger batch, to keep the GPU busier? Because the backward pass needs the output of every layer, and these outputs must stay in memory until then. PyTorch has a hook that sees every tensor it keeps.


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
        outputs = network(torch.randn(count, 3, 224, 224))
    return sum(kept.values()) if outputs is not None else 0


per_image = kept_bytes(2) - kept_bytes(1)
fixed = 3 * 4 * 25_557_032  # weights, gradients, momentum
print(f"per image {per_image / 1e6:.0f} MB, whatever the batch {fixed / 1e6:.0f} MB")
for name, size, published in (("FP32", per_image, 96), ("FP16", per_image / 2, 208)):
    limit = (16e9 - fixed) / size
    print(f"{name}: at most {limit:.0f} images in the 16 GB of a V100; published batch {published}")

# %% [markdown]
# The weights are a small part. The published batches of 96 and 208 are below these limits, because work space and copies need memory too. Half the bytes per number allow twice the batch: one reason for notebook 06. How much is a larger batch worth here?

# %%
import time

import matplotlib.pyplot as plt

plt.style.use("tableau-colorblind10")
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
fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4), layout="constrained")
left.plot(counts, rates, "o-")
left.set(title=f"Speed here, {session.image_size} pixels", xlabel="batch", ylabel="images/s")
left.set_ylim(0)
sizes = np.arange(0, 257)
right.plot(sizes, (fixed + sizes * per_image) / 1e9, label="FP32")
right.plot(sizes, (fixed + sizes * per_image / 2) / 1e9, "--", label="FP16 activations")
right.axhline(16, color="black", ls=":", label="V100, 16 GB")
right.set(title="Memory for ResNet-50, 224 pixels", xlabel="batch", ylabel="GB, computed")
right.legend()
gain = rates[-1] / rates[0]
print(f"A batch of 32 is {gain:.1f} times as fast per image as a batch of 2.")
workshop.figure(
    fig, alt=f"Images/s and memory by batch. A batch of 32 is {gain:.1f} times as fast."
)

# %% [markdown]
# ## The recipe
#
# Two people who train "ResNet-50" and get different accuracies mostly use different recipes. Here the recipe is data, in one place.

# %%
workshop.show("rn50lib.recipe:REFERENCE")

# %% [markdown]
# The learning rate belongs to a batch size. A step on twice as many images averages twice as many gradients, and an epoch has half as many steps. If each step is also twice as long, the weights end up in much the same place. This is **linear scaling**: 0.1 for a global batch of 256, and in proportion for others.
#
# The argument needs weights that change little from step to step. At the start they change a lot, so the rate rises linearly from zero over the first five epochs: the **warm-up**. Later it falls to a tenth three times.
#
# The next cell chains two schedulers from PyTorch for this, and once more with an easy mistake.

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
print(f"largest difference to the function: {np.abs(np.subtract(right, ours)).max():.1e}")
print(f"with (30, 60, 80): still {wrong[32 * per_epoch]:g} in epoch 32")

# %%
fig, axes = plt.subplots(figsize=(10, 3), layout="constrained")
axes.semilogy(at, ours, lw=5, alpha=0.4, label="recipe.learning_rate")
axes.semilogy(at, right, "--", color="black", label="PyTorch's schedulers")
axes.semilogy(at, wrong, ":", label="the same, decays not shifted by the warm-up")
axes.set(title="The learning rate, batch 256", xlabel="epoch", ylabel="learning rate", ylim=1e-5)
axes.legend()
workshop.figure(fig, alt="Learning rate over 90 epochs: the function and the schedulers agree.")
workshop.show(recipe.learning_rate)

# %% [markdown]
# In a sequence, the second scheduler counts from its own start: the third line decays five epochs late, without an error. Look at what the function does *not* have: a counter, a state, a call that must happen once per step. It is a pure function of the progress. Ask it about epoch 45.5 in any order, on any worker, after any crash, and the answer is the same. Schedulers must be saved and restored.
#
# ## v1 and v1.5
#
# Between two stages the maps shrink to half their width and height by a convolution with a stride of 2. The original network, now called v1, does this in the block's first 1×1 convolution. Version 1.5 moves the stride to the 3×3. The gradient shows the difference: pixels with a gradient of zero are never used.

# %%
from torch import nn

ones = torch.ones(1, 1, 8, 8, requires_grad=True)
for name, conv in {
    "v1, 1×1 with stride 2": nn.Conv2d(1, 1, 1, stride=2),
    "v1.5, 3×3 with stride 2": nn.Conv2d(1, 1, 3, stride=2, padding=1),
}.items():
    (gradient,) = torch.autograd.grad(conv(ones).sum(), ones)
    used = (gradient != 0)[0, 0]
    print(f"{name}: uses {100 * used.float().mean():.0f} % of its input")
    print("\n".join("".join(" ■" if pixel else " ·" for pixel in row) for row in used[:4]), "\n")

# %% [markdown]
# Moving the stride adds no parameters. It does add work, because the first 1×1 convolution now runs on four times the pixels. NVIDIA's [*ResNet-50 v1.5 for MXNet*](https://github.com/NVIDIA/DeepLearningExamples/tree/master/MxNet/Classification/RN50v1.5) says v1.5 is about 0.5 % better in top-1 and about 5 % slower. You cannot check the accuracy here: half a per cent needs ImageNet, 90 epochs and several runs of each. The time you can. Two runs one after the other would compare two moments of this machine, so the networks take turns.

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
print(f"v1.5 does {100 * (work[1] / work[0] - 1):.1f} % more work")
print(
    f"and takes {np.median(ratios):.2f} times as long, from {min(ratios):.2f} to {max(ratios):.2f}"
)

# %% [markdown]
# ## What your script lacks
#
# Your script trains. For days on many GPUs it lacks nearly everything else:
#
# | your script | the library | because |
# |---|---|---|
# | one learning rate | warm-up and decay, a function of the progress | large batches need the first, accuracy the second |
# | `loss.item()` at the end | sums that stay on the device, read every 20 steps | each question to a GPU stops its queue |
# | a printed line | a report with every setting and its reason | others must be able to compare |
# | weights at the end | a checkpoint per epoch, and `--resume` | machines fail |
# | no validation | each validation image exactly once | accuracy is the goal |
#
# The library's command is `rn50 run`. It takes everything that you leave out from the recipe. On a CPU this run is shorter than the recipe; its schedule shrinks with it.

# %% language="bash" magic_args="-e"
# rm -f whole-*  # from an earlier run
# rn50 run --data-root "$DATA" -e $EPOCHS -b $BATCH --image-shape $SIZE --num-examples $IMAGES \
#   --recipe roadsigns --seed $SEED --disp-batches 10 --model-prefix whole --report report.json 2>&1

# %% [markdown]
# You cannot compare with a run that leaves no report. This one has the keys of the published report, in the same order. Each metric has one value per epoch; what was not measured is `null`, never 0. `train.time` leaves out the first iteration of an epoch, which waits for the first batch. `total_ips` is *Total IPS*: global batch ÷ `train.time`, input and computation together. Under `env` is every setting with the reason for it.

# %%
import json
from pathlib import Path

report = json.loads(Path("report.json").read_text())
for key, values in report["metrics"].items():
    print(f"{key}: {values}")
for name in ("dtype", "batch_size", "lr", "warmup_epochs", "threads", "data_nthreads"):
    axis = report["env"]["axes"][name]
    print(f"{name} = {axis['value']}: {axis['reason']}")
accuracy = report["metrics"]["val.top1"][-1]

# %% [markdown]
# **Predict** before you look at the table: what accuracy does the full recipe reach on the road signs (9 epochs of 2,400 images)? And how long does one V100 need for ImageNet? Your number is next to the published one only if your run was the full recipe.

# %%
full = epochs == recipe.ROADSIGNS.epochs and session.images == 2400
dtype = report["env"]["axes"]["dtype"]["value"]
yours = {"roadsigns.untrained.top1": None}
for precision in ("float32", "bfloat16"):
    mine = accuracy if full and dtype == precision else None
    yours[f"roadsigns.resnet50.{precision}.top1"] = mine
    yours[f"roadsigns.resnet50.{precision}.minutes"] = None
for kind in ("fp32.top1", "fp32.hours", "fp16.top1", "fp16.hours"):
    yours[f"published.v100.1gpu.{kind}"] = None
session.expect(yours)

# %% [markdown]
# ## Kill it, and continue
#
# Machines fail and queues end. A run of days must survive that without a change to its result. What has to be saved? The next cell saves after two steps, continues undisturbed, and compares with two ways to restore.

# %%
import copy

fixed_batches = [next(iter(loader)) for _ in range(2)]


def two_steps(weights, momentum=None):
    network = ResNet(resnet.resnet(18, num_classes=len(photos.classes))).to(device)
    network.load_state_dict(weights)
    optimizer = torch.optim.SGD(network.parameters(), lr=0.01, momentum=0.9)
    if momentum:
        optimizer.load_state_dict(copy.deepcopy(momentum))  # it is updated in place
    for images, labels in fixed_batches:
        optimizer.zero_grad()
        F.cross_entropy(network(images.to(device)), labels.to(device)).backward()
        optimizer.step()
    return copy.deepcopy(network.state_dict()), optimizer.state_dict()


saved = two_steps(start)
undisturbed, _ = two_steps(*saved)
for what, state in {"weights": saved[:1], "weights and momentum": saved}.items():
    resumed, _ = two_steps(*state)
    gap = max((resumed[name] - undisturbed[name]).abs().max().item() for name in start)
    print(f"{what} restored: the weights differ by up to {gap:.2g}")

# %% [markdown]
# If you save the weights alone, you get a different run: the optimizer has a memory too. A real run must also restore its place in the epoch, the order of the images and the metrics. The library writes all of this after every epoch, to a new file that is then renamed, so that there is a whole checkpoint at any moment.
#
# Its promise: on a CPU, a run that was killed and resumed ends with the *same bits* as an undisturbed one. The test needs both. The network is `tiny` here, because the promise is about bits, not accuracy. SIGKILL cannot be caught: this is what a power cut looks like to software. It comes in the middle of an epoch; see in the log where the resumed run begins.

# %%
import signal
import subprocess

for file in [*Path().glob("calm-*"), *Path().glob("killed-*")]:
    file.unlink()
command = ["rn50", "run", "--data-root", os.environ["DATA"], *os.environ["TINY"].split()]
command += ["--seed", str(seed)]
log = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
subprocess.run([*command, "--model-prefix", "calm"], check=True, **log)
process = subprocess.Popen([*command, "--model-prefix", "killed"], start_new_session=True, **log)
while not list(Path().glob("killed-0001*")) and process.poll() is None:
    time.sleep(0.02)
os.killpg(process.pid, signal.SIGKILL)
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
# On a CPU this holds for the same number of threads, because sums are then added in the same order. On a GPU some operations add in whatever order their threads finish, so there the runs agree up to rounding. It also needs the order of the images and every random crop to be a function of seed, epoch and image. Your script's `random.uniform` is not: another thing it lacks.
#
# ## The ladder
#
# Every notebook from here on ends with this figure. It has one rung so far. Bars are speeds, colours the shares of a step; the published rungs are on the right.

# %% tags=["results"]
workshop.ladder.figure()
session.note("ladder_1_ips", rung["images_per_s"], "img/s", "speed of your script")
session.note("data_share", waiting, "%", "of a step spent waiting for input")
session.note("v15_over_v1", float(np.median(ratios)), "times", "time of a v1.5 step over a v1 step")
session.note("short_top1", accuracy, "%", "top-1 of ResNet-50 after the short run")

# %% [markdown]
# ## What to take with you
#
# - A training script fits on one page. What it takes to trust it with days of computing is the rest.
# - Silent mistakes give plausible numbers: check the accuracy on unseen images in `eval()` mode.
# - Input and computation overlap, so only the slower one counts. Measure before you make anything faster.
# - Activations fill the memory, and they grow with the batch and the image area.
# - The learning rate scales with the global batch, starts with a warm-up, and is a pure function of the progress.
# - v1.5 moves one stride: the same parameters, more work, and no pixel skipped.
# - With everything restored, a killed run ends as if nothing had happened.
#
# **Try it:** run the notebook with `batch = 16` or `batch = 64` in its second cell, and predict the learning rate and the speed of the library's run first.
#
# If computing is the bottleneck, more processors are the next idea. They must agree on one model, and that takes time as well: notebook 03.
