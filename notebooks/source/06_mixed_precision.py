# %% [markdown]
# # 06 · Mixed precision
#
# After this notebook, you can explain what you gain and lose with 16-bit numbers, preserve small gradients with a loss scale that you wrote, train with `autocast` and `GradScaler`, predict from your own count which layers gain, check it in a trace, and fuse what only moves bytes.
#
# **Time:** 60 minutes · **Needs:** DALI, and the script from notebook 05, which you extend · **On a CPU:** about 2 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
turns: int | None = None  # how often each precision is timed
seed: int = 0  # seed of all random numbers

# %%
import io
import time
from itertools import pairwise

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image, ImageOps
from torch.nn.functional import cross_entropy

import workshop
from rn50lib import resnet
from rn50lib.data.source import open_source
from rn50lib.torch.model import ResNet

session = workshop.start("06", profile)
turns = turns or session.turns
ranks = min(8, len(session.machine.gpus)) or 1  # of the ladder's runs
workers = max(1, session.machine.cores // ranks)  # per rank
device = torch.device("cuda" if session.profile == "gpu" else "cpu")
reduced = torch.float16 if device.type == "cuda" else torch.bfloat16  # compared with float32
emulated = device.type == "cpu" and not session.machine.bfloat16  # slow: fewer images
batch, pixels = 2 if emulated else session.batch_size, session.image_size  # of all timed steps

# %% [markdown]
# ## Where is the time going?
#
# The next cell traces your script, now with DALI, in `float32` (recent GPUs: TF32). **Predict:** what share of a step is input, and what share is convolution?

# %%
file = session.folder / "float32.json.gz"
sizes = {"image_size": pixels, "batch_size": batch, "workers": workers}
ready = 2 * workers  # batches that a loader has prepared before the first step
brief = {**sizes, "warm_up": ready + 1, "steps": 4, "trace": file}
found = workshop.ladder.climb("3_dali", ranks=ranks, **brief)
found = found or workshop.ladder.climb("1_single", **brief)
kinds = workshop.trace(file, show=False)
parts = [found.get(f"{part}_ms", 0) for part in ("input", "compute", "communication")]
shares = np.divide(parts, sum(parts))
print("A step: input {:.1%}, computation {:.1%}, communication {:.1%}.".format(*shares))
longest = sorted(kinds.items(), key=lambda item: -item[1])[:4]
step_ms = sum(kinds.values())
print("Most of it:", ", ".join(f"{kind} {ms / step_ms:.0%}" for kind, ms in longest))
optimizer_ms = kinds["optimizer"]
passes = max(0.0, shares[1] - optimizer_ms / step_ms)  # forward and backward

# %% [markdown]
# Once the input keeps up, computation dominates: arithmetic, mostly in convolutions, and memory traffic, mostly elsewhere. 16-bit numbers need half the memory and traffic of `float32`, and suitable hardware computes several times as fast.
#
# [NVIDIA's ResNet-50 for MXNet](https://github.com/NVIDIA/DeepLearningExamples/tree/a8e1d1cd/MxNet/Classification/RN50v1.5) processes 400.2 images per second on one V100 in FP32 and 1,442.6 in FP16. The method is from [Mixed Precision Training](https://arxiv.org/abs/1710.03740) (Micikevicius et al., 2017). Where does the factor of 3.6 come from, and what can go wrong?
#
# On a CPU, the 16-bit format is `bfloat16`. If the first output shows no instructions for it, PyTorch emulates it: convolutions lose time, but arrays still take half the memory and traffic.
#
# ## What each format can represent
#
# A floating-point number has a sign, an **exponent**, which sets its magnitude, and a **mantissa**, which divides the range between two powers of two into equal steps. Here is 0.1 in three formats. **Predict:** what happens to 70,000, 0.00000001 and 1.001 in each?

# %%
formats = {
    torch.float32: (torch.int32, 8),  # an integer of the same size, and the exponent bits
    torch.bfloat16: (torch.int16, 8),
    torch.float16: (torch.int16, 5),
}
for dtype, (integer, exponent) in formats.items():
    info, value = torch.finfo(dtype), torch.tensor(0.1, dtype=dtype)
    bits = f"{value.view(integer).item():0{info.bits}b}"  # 0.1 is positive
    print(
        f"{str(dtype):15} {bits[0]} {bits[1 : 1 + exponent]:8} {bits[1 + exponent :]:23}", end="  "
    )
    print(f"{value.item():.9f}, largest {info.max:.3g}, spacing at 1: {info.eps:.2g},", end=" ")
    print(f"smallest {info.smallest_normal * info.eps:.2g}")

for value in (70_000.0, 1e-8, 1.001):
    stored = [
        f"{str(dtype)[6:]} {torch.tensor(value, dtype=dtype).item():.6g}" for dtype in formats
    ]
    print(f"{value:g} becomes", ", ".join(stored))

# %% [markdown]
# `bfloat16` is a `float32` rounded to its first 16 bits: nearly the same range, but only two or three decimal digits. `float16` is eight times as precise, but covers only 6e-8 to 65,504.
#
# ## Gradients that underflow
#
# Gradients are small, because the loss is a *mean*: each pixel of each feature map contributes only a little. To see real ones, the next cell briefly trains a small network on road signs in `float32`. Then a hook on every convolution collects the gradients that flow back. **Predict:** what fraction of the nonzero ones will underflow to zero in `float16`?

# %%
signs = open_source(session.data_root, "train", "recordio")  # in random order
size = (session.pixels, session.pixels)
photos = [Image.open(io.BytesIO(signs.read(i))).convert("RGB") for i in range(session.images)]
images = torch.stack([torch.tensor(np.array(ImageOps.fit(photo, size))) for photo in photos])
images = ((images.permute(0, 3, 1, 2).float() - 118) / 58).to(device)
labels = torch.tensor(signs.labels[: len(photos)]).long().to(device)
batches = list(zip(images.split(16), labels.split(16), strict=True))


def fresh():
    """Return an untrained network and its optimizer, the same ones at every call."""
    torch.manual_seed(seed)
    model = ResNet(resnet.tiny(12)).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


model, optimizer = fresh()
for x, y in batches:
    loss = cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{len(batches)} steps, loss {loss.item():.2f}")

flowing = []


def collect(layer, inputs, output):
    output.register_hook(lambda gradient: flowing.append(gradient.flatten().cpu()))


convolutions = [layer for layer in model.modules() if isinstance(layer, torch.nn.Conv2d)]
hooks = [layer.register_forward_hook(collect) for layer in convolutions]
optimizer.zero_grad()
few = slice(208)  # at most NVIDIA's batch in FP16
cross_entropy(model(images[few]), labels[few]).backward()
for hook in hooks:
    hook.remove()
gradients = torch.cat(flowing)
gradients = gradients[gradients != 0]
vanish = 100 * (gradients.half() == 0).float().mean().item()
vanish_bfloat16 = 100 * (gradients.bfloat16() == 0).float().mean().item()

counts, edges = np.histogram(gradients.abs().log2().numpy(), bins=range(-60, 24))
zones = {"zero in float16": (-45, -25, "0.8"), "fewer bits": (-25, -14, "0.9"),
         "full precision": (-14, 16, "1"), "infinite": (16, 23, "0.8")}  # fmt: skip
finding = f"{vanish:.1f}% underflow in float16, {vanish_bfloat16:.2f}% in bfloat16"
fig, axes = plt.subplots()
axes.stairs(100 * counts / counts.sum(), edges, fill=True, color=workshop.FINDING)
for name, (low, high, grey) in zones.items():
    axes.axvspan(low, high, color=grey, zorder=0)
    axes.text((low + high) / 2, 1.01, name, transform=axes.get_xaxis_transform(), ha="center")
axes.set_title(f"Gradients that flow back: {finding}", pad=20)
axes.set(xlabel="magnitude of a gradient, power of two", ylabel="% of them", xlim=(-45, 23))
workshop.figure(fig, alt=f"Histogram of the size of gradients. {finding}")
session.note("vanish", vanish, "%", "gradients flowing back that become zero in float16")
session.expect({"precision.vanish": vanish if device.type == "cpu" else None})

# %% [markdown]
# Nearly all gradients are in the lower half of `float16`'s range or below it. The fix: **multiply the loss** by a large number before the backward pass. By the chain rule, every gradient grows by the same factor, and the histogram moves to the right. Divide by the same number, in `float32`, before the update. If it is a power of two, the mantissa bits do not change.
#
# Weight gradients add up contributions from all pixels and images, so they are larger. **Predict:** at which scale do they first overflow?

# %%
weights = torch.cat([weight.grad.flatten() for weight in model.parameters()])
for power in range(0, 25, 4):
    zero = 100 * ((gradients * 2.0**power).half() == 0).float().mean().item()
    infinite = (weights * 2.0**power).half().isinf().sum().item()
    print(f"loss x 2^{power:<2}: {zero:6.2f}% of what flows back becomes zero,", end=" ")
    print(f"{infinite} of {len(weights):,} weight gradients infinite")

# %% [markdown]
# ## Write the loss scale yourself
#
# A good scale is large but does not overflow, and it changes. Find it by trial and error:
#
# - If any gradient is infinite or NaN, skip the update and halve the scale.
# - After `wait` good steps in a row, double it.
#
# **Your turn:** write `next_scale`; the folded cell below checks it.


# %%
def next_scale(scale, good, finite, wait=2000):
    """Return the loss scale of the next step, and the number of good steps in a row.

    `good` counts the consecutive good steps before this one; `finite` is True if all gradients of
    this step are finite. The count restarts at 0 whenever the scale changes.
    """
    return None  # your code


# %% tags=["folded"]
from workshop.lessons.choice import choose_by_cases


def finished(scale, good, finite, wait=2000):
    if not finite:
        return scale / 2, 0
    if good + 1 == wait:
        return scale * 2, 0
    return scale, good + 1


mistakes = (  # a wrong version, what is wrong, what to do
    (lambda *case: finished(*case)[::-1], "The count comes first.", "Return the scale first."),
    (lambda scale, good, finite, wait: finished(scale, good, finite, wait + 1),
     "It does not double after `wait` good steps.", "This step counts, too: it is step good + 1."),
    (lambda scale, good, finite, wait: (finished(scale, good, finite, wait)[0], good + finite),
     "The count does not restart.", "Return 0 for it whenever the scale changes."),
)  # fmt: skip
cases = ((1024.0, 3, False, 5), (1024.0, 3, True, 5), (1024.0, 4, True, 5), (1.0, 0, True, 1),
         (1.0, 0, False, 5))  # fmt: skip
next_scale = choose_by_cases("next_scale", next_scale, finished, cases, mistakes)

# %% [markdown]
# The next cell uses it in a training loop. A larger network or batch, or a lower loss, makes gradients smaller. To imitate that, this loop divides them by 2^16 before they are rounded to `float16`, and multiplies them by it before the update. **Predict** six outcomes: your rule, starting far too high at 2^36; no scale; a fixed scale of 2^36, with and without the overflow check; and no scale, rounded to `bfloat16` or not at all.


# %%
def train_scaled(scale, adapt=False, test=True, dtype=torch.float16):
    """Train with tiny rounded gradients; return losses, scales and the count of skipped steps."""
    model, optimizer = fresh()
    small = 2.0**-16

    def rounded(layer, inputs, output):
        output.register_hook(lambda gradient: gradient.to(dtype).float())

    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            layer.register_forward_hook(rounded)
    losses, scales, good, skipped = [], [], 0, 0
    for x, y in batches:
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        (loss * small * scale).backward()
        gradients = [
            weight.grad.copy_(weight.grad.to(dtype)).div_(small * scale)
            for weight in model.parameters()
        ]
        finite = all(gradient.isfinite().all() for gradient in gradients)
        if finite or not test:
            optimizer.step()
        else:
            skipped += 1
        losses.append(loss.item())
        scales.append(scale)
        if adapt:
            scale, good = next_scale(scale, good, finite, wait=5)  # 2,000 is too long here
    return losses, [*scales, scale], skipped


runs = {
    "your rule": train_scaled(2.0**36, adapt=True),
    "no scale": train_scaled(1.0),
    "always 2^36": train_scaled(2.0**36),
    "always 2^36, no check": train_scaled(2.0**36, test=False),
    "no scale, bfloat16": train_scaled(1.0, dtype=torch.bfloat16),
    "not rounded": train_scaled(1.0, dtype=torch.float32),
}

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2))
names, ends = [], {name: np.mean(losses[-5:]) for name, (losses, _, _) in runs.items()}
for row, (name, end) in enumerate(ends.items()):
    names.append(f"{name}, {skipped} skipped" if (skipped := runs[name][2]) else name)
    left.plot(end, row, "o", color="black" if row else workshop.FINDING, ms=7)
    at = end if np.isfinite(end) else np.nanmean(list(ends.values()))
    left.annotate(f"{end:.2f}", (at, row), (8, 0), textcoords="offset points", va="center")
left.set_yticks(range(len(runs)), names)
left.invert_yaxis()
left.margins(x=0.25, y=0.1)
left.set_title(f"Your rule: {ends['your rule']:.2f}; not rounded: {ends['not rounded']:.2f}")
left.set_xlabel(f"mean loss of the last 5 of {len(batches)} steps, nats")
_, scales, skipped = runs["your rule"]
missed = np.flatnonzero(np.diff(scales) < 0)
right.step(range(len(scales)), np.log2(scales), where="post", color=workshop.FINDING)
right.plot(missed, np.log2(scales)[missed], "x", color="black", ms=8)
right.set_title(f"Your rule skips {skipped} steps (x)")
right.set(xlabel="step", ylabel="loss scale, power of two", xticks=range(0, len(batches), 5))
right.yaxis.get_major_locator().set_params(integer=True)
said = ", ".join(f"{name} {end:.2f}" for name, end in zip(names, ends.values(), strict=True))
workshop.figure(fig, alt=f"Final losses: {said}. The loss scale of your rule, step by step.")

# %% [markdown]
# Your rule skips steps until the scale fits, and one when doubling is too much. Dividing by 2^16 moves nearly all of the histogram to zero: without a scale, the loss is hardly lower than without updates (third run). `bfloat16` has the range, so it needs no scale.
#
# The third run is a **silent failure**: every update is skipped, without an error, and the weights stay as they were. The fourth run, without the check, writes [infinities or NaN](../docs/troubleshooting.md#nan-in-float16-which-layer-and-what-the-loss-scale-does) into the weights. Its loss is NaN from then on, so you notice.
#
# ## Master weights
#
# Updates can be lost, too. An update adds a small number to a large one; if it is smaller than half the gap between neighbouring representable numbers, nothing changes. The next cell applies one update to the trained network, with its momentum, at its learning rate of 0.01 and lower ones. **Predict:** what fraction of the weights does not change at all?

# %%
for rate in (1e-2, 1e-3, 1e-4):
    for dtype in formats:
        kept, total = 0, 0
        for weight, state in optimizer.state.items():
            velocity = state["momentum_buffer"]
            stored = weight.detach().to(dtype)
            changed = (stored.float() - rate * velocity).to(dtype)
            kept += ((changed == stored) & (velocity != 0)).sum().item()
            total += (velocity != 0).sum().item()
        print(f"rate {rate:<6g} {str(dtype):15} {100 * kept / total:5.1f}% do not change")

# %% [markdown]
# Mixed precision therefore keeps **master weights** in `float32`: updates change these, and each step computes with a 16-bit copy.
#
# ## `autocast` and `GradScaler`
#
# PyTorch has two tools. `torch.autocast` runs convolutions and matrix products in 16 bits and sensitive operations such as the loss in `float32`; the weights stay in `float32`. `GradScaler` applies your rule, starting at 2^16 with a wait of 2,000 steps.
#
# The next cell trains a dense network, fast in `float16` even on a CPU, from a scale of 2^24; `growth_interval=3` is your `wait`. **Predict** how the scale changes.

# %%
scaler = torch.amp.GradScaler(device.type, init_scale=2.0**24, growth_interval=3)
hidden, outputs = torch.nn.Linear(images[0].numel(), 64), torch.nn.Linear(64, 12)
dense = torch.nn.Sequential(torch.nn.Flatten(), hidden, torch.nn.ReLU(), outputs).to(device)
sgd = torch.optim.SGD(dense.parameters(), lr=0.01, momentum=0.9)
losses, scales = [], []
for x, y in batches:
    scales.append(scaler.get_scale())
    with torch.autocast(device.type, torch.float16):
        loss = cross_entropy(dense(x), y)
    sgd.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(sgd)
    scaler.update()
    losses.append(loss.item())
print("float16, loss scale of each step: 2 to the", *(f"{np.log2(scale):.0f}" for scale in scales))
print(f"{np.sum(np.diff(scales) < 0)} steps skipped; loss {losses[0]:.2f}, then {losses[-1]:.2f}")
state, yours = (2.0**24, 0), [2.0**24]
for before, after in pairwise(scales):  # PyTorch halves the scale after an overflow only
    state = next_scale(*state, finite=after >= before, wait=3)
    yours.append(state[0])
print("Your rule gives the same scales:", yours == scales)

# %% [markdown]
# The scale falls until a step is good, then hovers: up after three good steps, down at the next overflow. If it ends lower, the gradients grew.
#
# ## Memory
#
# Notebook 02 estimated the largest batch from `float32` activations. **Predict** the ratio with 16 bits:


# %%
def kept_bytes(dtype, batch, size=64):
    """Return the bytes that a forward pass keeps for the backward pass, without the weights."""
    model, kept = ResNet(resnet.resnet(50)).to(device), {}

    def pack(tensor):
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = model(torch.randn(batch, 3, size, size, device=device)).sum()
    own = {weight.data_ptr() for weight in model.parameters()}
    total = sum(count for pointer, count in kept.items() if pointer not in own)
    del loss  # kept the arrays alive until here
    return total


per_image = {}
for dtype in (torch.float32, torch.bfloat16):
    at_64 = kept_bytes(dtype, 2) - kept_bytes(dtype, 1)
    per_image[dtype] = at_64 * (224 / 64) ** 2
    print(f"{str(dtype):15} {per_image[dtype] / 1e6:.0f} MB for each image of 224 x 224 pixels")
memory_ratio = per_image[torch.bfloat16] / per_image[torch.float32]
session.note("memory_ratio", memory_ratio, "times", "activations in bfloat16 over float32")

# %% [markdown]
# It is a little over a half, because max pooling keeps the places of its maxima, 8-byte integers. Weights, gradients and momentum do *not* shrink: they stay in `float32`.
#
# ## Which layers become faster?
#
# A **Tensor Core** multiplies small matrices of 16-bit numbers and accumulates in `float32`, in one instruction; Intel's AMX does the same on a CPU, and `avx512_bf16` with pairs of numbers. But a layer is limited by arithmetic *or* by memory traffic. A convolution can reuse each value it loads hundreds of times; a ReLU uses it once. A layer takes at least *operations / peak rate* and at least *bytes / bandwidth*; the larger one limits it. So count both.
#
# **Your turn.** Count two layers of ResNet-50 in the forward pass. A multiplication and an addition are two operations; multiplications by padding count, too.
#
# - A convolution, 3 × 3, from 64 to 64 channels, on 56 × 56 pixels. It reads its input and its weights and writes its output, each once.
# - The batch norm after it, which normalises with the mean and the variance of the batch. What does it read, how often, before it can write? Its few operations per number do not matter; count 5. Leave out its parameters.


# %%
def convolution(images, size):
    """Return (operations, bytes) of the convolution; a number has `size` bytes."""
    return None  # your code


def batch_norm(images, size):
    """Return (operations, bytes) of the batch norm; a number has `size` bytes."""
    return None  # your code


# %% tags=["folded"]
outputs, weights = 64 * 56 * 56, 64 * 64 * 3 * 3  # of an image, of the layer


def right_convolution(images, size, each=2 * 64 * 3 * 3, passes=2, weight_reads=1):
    bytes_ = size * (passes * images * outputs + weight_reads * weights)
    return each * images * outputs, bytes_


def right_batch_norm(images, size, passes=3):
    return 5 * images * outputs, size * passes * images * outputs


mistakes = (  # a wrong version, what is wrong, what to do
    (lambda *case: right_convolution(*case, each=64 * 9), "Half of the operations are missing.",
     "A multiplication and an addition are 2 operations."),
    (lambda *case: right_convolution(*case, each=2 * 64), "There are too few operations.",
     "Each output needs 3 × 3 pixels."),
    (lambda *case: right_convolution(*case, each=2 * 9), "There are too few operations.",
     "Each output needs all 64 input channels."),
    (lambda *case: right_convolution(*case, passes=1), "There are too few bytes.",
     "Reading and writing both count."),
    (lambda *case: right_convolution(*case, weight_reads=0), "There are too few bytes.",
     "The weights are read, too."),
    (lambda *case: right_convolution(*case, weight_reads=case[0]), "There are too many bytes.",
     "The weights are read once per batch."),
    (lambda images, size: right_convolution(images, 1), "There are too few bytes.",
     "A number has `size` bytes."),
    (lambda *case: right_convolution(*case)[::-1], "The bytes come first.",
     "Return the operations first."),
    (lambda *case: right_batch_norm(*case, passes=2), "There are too few bytes.",
     "Mean and variance are known only after all of the input was read: then it is read again."),
    (lambda *case: right_batch_norm(*case, passes=4), "There are too many bytes.",
     "One pass is enough for mean and variance: add up x and x² together."),
    (lambda images, size: right_batch_norm(images, 1), "There are too few bytes.",
     "A number has `size` bytes."),
    (lambda *case: right_batch_norm(*case)[::-1], "The bytes come first.",
     "Return the operations first."),
)  # fmt: skip
cases = (1, 2), (3, 4)
convolution = choose_by_cases("convolution", convolution, right_convolution, cases, mistakes)
batch_norm = choose_by_cases("batch_norm", batch_norm, right_batch_norm, cases, mistakes)
for name, layer in (("convolution", convolution), ("batch norm", batch_norm)):
    print(f"{name}: {np.divide(*layer(96, 2)):.1f} operations per byte in 16 bits")

# %% [markdown]
# GPUs since Ampere have one more precision, [**TF32**](../docs/troubleshooting.md#results-in-float32-differ-between-two-gpus-tf32): numbers are stored as `float32`, but Tensor Cores ignore the last 13 mantissa bits. It is PyTorch's default for convolutions.
#
# The next cell measures both limits of this device: the rate of a large matrix product, and the bandwidth of a copy. It draws them, the **roofline**, and your two layers (hollow: your count; filled: measured), for this device and an H100. **Predict** from your count: which layer can gain more than a factor of 2, and where?

# %%
from torch.utils import benchmark

from workshop.lessons import nb06


def seconds(statement, **names):
    timer = benchmark.Timer(statement, globals=names, num_threads=torch.get_num_threads())
    return min(timer.blocked_autorange(min_run_time=0.3).times)


precisions = {"float32": torch.float32, "bfloat16": torch.bfloat16}
if device.type == "cuda":
    precisions["float16"] = torch.float16
    if torch.cuda.get_device_capability() >= (8, 0):
        precisions["tf32"] = torch.float32


def set_tf32(name):
    torch.backends.cuda.matmul.allow_tf32 = name == "tf32"
    torch.backends.cudnn.allow_tf32 = name == "tf32"


peaks, side = {}, session.side
for name, dtype in precisions.items():
    set_tf32(name)
    a = torch.randn(side, side, device=device).to(dtype)
    peaks[name] = 2 * side**3 / seconds("a @ a", a=a)
if emulated:  # bfloat16 is then computed in float32
    peaks["bfloat16"] = max(peaks.values())
array, copy = torch.zeros(2, 2**27 if device.type == "cuda" else 2**24, device=device)
bandwidth = 2 * array.nbytes / seconds("copy.copy_(array)", array=array, copy=copy)
for name, peak in peaks.items():
    print(
        f"{name:8}  {peak / 1e9:10,.1f} GFLOP/s, with {peak / bandwidth:.0f} FLOP per byte or more"
    )
print(f"memory    {bandwidth / 1e9:10,.1f} GB/s")

half = str(reduced)[6:]
h100 = {key[5:]: item.value for key, item in session.results.items() if key.startswith("h100.")}
devices = {
    "this device": ("float32", peaks["float32"], half, peaks[half], bandwidth),
    "an H100": (
        "TF32",
        1e12 * h100["tf32"],
        "float16",
        1e12 * h100["fp16"],
        1e9 * h100["bandwidth"],
    ),
}


one_convolution = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False).to(device)
one_norm = torch.nn.BatchNorm2d(64).to(device)
layers = {"convolution": (convolution, one_convolution), "batch norm": (batch_norm, one_norm)}
maps = torch.randn(batch, 64, 56, 56, device=device).to(memory_format=torch.channels_last)

fig, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharex=True, sharey=True)
gains = []
for ax, (name, (full, slow, low, fast, traffic)) in zip(axes, devices.items(), strict=True):
    lines, found = ((full, 4, slow, "black"), (low, 2, fast, workshop.FINDING)), []
    for label, _, rate, color in lines:
        heights = np.divide([traffic / 10, rate, rate], 1e9)
        ax.loglog([0.1, rate / traffic, 4000], heights, color=color)
        place = "top" if label == full else "bottom"
        ax.text(0.004, heights[1], f"{label}: {rate / 1e12:.3g} TFLOP/s", va=place)
    for kind, (count, layer) in layers.items():
        took = []
        for label, size, rate, color in lines:
            operations, moved = count(batch, size)
            took.append(max(operations / rate, moved / traffic))
            at, roof = operations / moved, operations / took[-1] / 1e9
            ax.plot(at, roof, "o", color=color, mfc="white", ms=10)
            if name == "this device":
                set_tf32(label)
                inputs = maps.to(precisions[label])
                if kind == "convolution":  # a batch norm's weights stay in float32
                    layer.to(inputs.dtype)
                real = operations / seconds("layer(inputs)", layer=layer, inputs=inputs) / 1e9
                ax.plot(at, real, "o", color=color, ms=7)
                print(f"{kind}, {label}: {real:,.1f} GFLOP/s, {real / roof:.0%} of the roofline")
        ax.text(at, 0.03, kind, transform=ax.get_xaxis_transform(), ha="center")
        found.append(f"{kind} {took[0] / took[1]:.1f}×")
    gains.append(f"Gain on {name}, by the count: {', '.join(found)}")
    ax.set(title=gains[-1].replace(": ", ":\n"), xlabel="FLOP per byte (log scale)")
axes[0].set(ylabel="GFLOP/s (log scale)", xlim=(0.003, 6000))
print(f"({batch} images. H100: TF32 from the data sheet, the rest recorded.)")
workshop.figure(fig, alt=f"Rooflines of this device and an H100. {'. '.join(gains)}")

# %% [markdown]
# ## Compare all precisions
#
# By the count, the batch norm gains 2, the convolution what the peaks differ by; on the H100, less than 2, because in TF32 memory limits it. Below the roofline, a layer is less efficient than a matrix product, or a copy; above it, more, or its arrays fit in a cache.
#
# How much faster is the whole network? The next cell times forward and backward passes in all precisions and two memory layouts: NCHW, as in your script, and [**channels last**](../docs/troubleshooting.md#channels_last-has-no-effect-a-layer-loses-it), which Tensor Cores prefer. **MFU** (model FLOP utilisation) is the network's FLOP/s divided by the peak, here the measured one. **Predict** the fastest row.

# %%
network = resnet.resnet(session.layers)
model = ResNet(network).to(device)
last = ResNet(network).to(device, memory_format=torch.channels_last)
x = torch.randn(batch, 3, pixels, pixels, device=device)
y = torch.zeros(batch, dtype=torch.long, device=device)
rows = {(name, layout): net for name in precisions
        for layout, net in (("NCHW", model), ("channels last", last))}  # fmt: skip


def passes_of(net, inputs, name):
    """Compute the gradients of a network in a precision."""
    set_tf32(name)
    dtype = precisions[name]
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        loss = cross_entropy(net(inputs), y)
    loss.backward()
    next(net.parameters()).grad.sum().item()  # waits for the device


times, each = {row: [] for row in rows}, 1 if emulated else session.passes
for turn in range(turns + 1):  # the first one warms up
    for (name, layout), net in rows.items():
        inputs = x if layout == "NCHW" else x.to(memory_format=torch.channels_last)
        begin = time.perf_counter()
        for _ in range(each):
            passes_of(net, inputs, name)
        times[name, layout] += [(time.perf_counter() - begin) / each] if turn else []
flops, lines = network.train_flops(pixels), []
base = times["float32", "NCHW"]
for (name, layout), found in times.items():
    low, middle, high = batch / np.quantile(found, [1, 0.5, 0])
    ips = f"{middle:,.4g} ({low:,.4g} to {high:,.4g})"
    faster = "1" if found is base else str(workshop.ratio(np.divide(base, found)))
    lines.append([f"{name}, {layout}", ips, faster, f"{middle * flops / peaks[name]:.0%}"])
columns = ["", "images/s, median and range", "speed over float32, NCHW", "MFU"]
workshop.table(lines, columns, f"Training, batch {batch}, {pixels} px, turns: {turns}")
best = {name: min((times[name, layout] for layout in ("NCHW", "channels last")), key=np.median)
        for name in ("float32", half)}  # fmt: skip
gain = workshop.ratio(np.divide(best["float32"], best[half]))
print(f"Speed of {half} over float32, each in its faster layout: {gain}")
if gain.clear:
    print(f"Train in {half if gain.median > 1 else 'float32'} on this device.")
session.note("speedup", str(gain), "", "speed of forward and backward in 16 bits over float32")
session.expect(dict.fromkeys(["h100.float16.ips", "h100.bfloat16.ips"]))

# %% [markdown]
# If the network gains less than its convolutions could, what gains less takes a larger part, and the MFU falls. On the recorded H100, `bfloat16` is slower than `float16`: PyTorch uses slower batch-norm kernels for it.
#
# ## Trace both precisions
#
# The next cell traces steps in both precisions, channels last (*pointwise*: ReLU and addition; *the rest* includes the optimizer and conversions). **Predict:** which kind gains most, and which takes the largest share in 16 bits?

# %%
from torch import profiler
from torch.profiler import schedule

from rn50.allocator import keep_memory

keep_memory()  # on a CPU, a new array otherwise costs page faults
optimizer = torch.optim.SGD(last.parameters(), lr=0.01, momentum=0.9, fused=True)
inputs = x.to(memory_format=torch.channels_last)


def traced(name):
    """Trace three training steps, each after one that warms up; return median ms by kind."""
    steps, when = [], schedule(wait=0, warmup=1, active=1)

    def read(trace):
        file = session.folder / f"{name}.json"
        trace.export_chrome_trace(str(file))
        steps.append(workshop.trace(file, show=False))

    with profiler.profile(schedule=when, on_trace_ready=read, acc_events=True) as trace:
        for _ in range(6):
            optimizer.zero_grad()
            passes_of(last, inputs, name)
            optimizer.step()
            trace.step()
    found = {kind: np.median([step[kind] for step in steps]) for kind in steps[0]}
    listed = sum(found[kind] for kind in ("convolution", "normalisation", "pointwise"))
    return found | {"the rest": sum(found.values()) - listed}


traces = {"float32": [], half: []}
for _ in range(session.traces):
    for name, found in traces.items():
        found.append(traced(name))
kinds = {"convolution": ["convolution"], "normalisation": ["batch norm"],
         "pointwise": ["ReLU", "addition"], "the rest": []}  # fmt: skip
predicted = {name: nb06.least_ms(network, pixels, batch, name, peaks[name], bandwidth)
             for name in traces}  # fmt: skip
rows, gains = [], {}
for kind, layers in kinds.items():
    row, took = [kind], {name: [each[kind] for each in found] for name, found in traces.items()}
    for name, ms in took.items():
        counted = sum(predicted[name][layer] for layer in layers) if layers else None
        row += [counted, np.median(ms)]
    if all(took[half]):
        gains[kind] = np.divide(took["float32"], took[half])
        row.append(str(workshop.ratio(gains[kind])))
    rows.append([*row, *[None] * (6 - len(row))])
columns = ["ms per step", "float32: counted", "measured", f"{half}: counted", "measured", "gain"]
workshop.table(rows, columns, f"This device, batch {batch}, {pixels} px, turns: {session.traces}")
far = max(rows[:3], key=lambda row: row[4] / row[3])
print(f"In {half}, {far[0]} takes {far[4] / far[3]:.1f} × its count, the most of the first three.")
first, second, *_ = sorted(gains, key=lambda kind: -np.median(gains[kind]))
print(f"Gain of {first} over that of {second}:", workshop.ratio(gains[first] / gains[second]))
for name, found in traces.items():
    shares = {k: [each[k] / sum(each[kind] for kind in kinds) for each in found] for k in kinds}
    parts = (f"{k} {np.median(v):.0%} ({min(v):.0%} to {max(v):.0%})" for k, v in shares.items())
    print(f"{name}, share of the step:", ", ".join(parts))

# %% [markdown]
# The same for a recorded H100:

# %%
_, _, low, fast, traffic = devices["an H100"]
counted = nb06.least_ms(resnet.resnet(50), 224, 256, low, fast, traffic)
rows, moving = [], 0.0
for kind in ("convolution", "batch norm", "ReLU", "addition"):
    took = session.results[f"h100.{kind}.ms"]
    spread = f" ± {took.spread}" if took.spread else ""  # kernels counted as convolutions vary
    ratio = f"{took.value / counted[kind]:.2f}"
    rows.append([kind, counted[kind], f"{took.value}{spread}", ratio])
    moving += took.value if kind != "convolution" else 0
columns = ["ms per step, float16", "counted", "measured", "measured / counted"]
workshop.table(rows, columns, "H100, channels last, batch 256, 224 px")
print(took.provenance)
step = 1000 * 256 / h100["float16.ips"]
print(f"A step takes {step:.1f} ms; batch norm, ReLU and addition take {moving:.1f} ms of it.")
mfu = h100["float16.ips"] * resnet.resnet(50).train_flops(224) / fast
print(f"MFU at {h100['float16.ips']:,} images/s: {mfu:.0%} of {h100['fp16']} TFLOP/s")


def v100(peak, dtype):
    """Return the images/s that a V100 cannot exceed without fusion, by its data sheet."""
    rate, traffic = (session.results[f"v100.{key}"].value for key in (peak, "bandwidth"))
    each = nb06.least_ms(resnet.resnet(50), 224, 96, dtype, 1e12 * rate, 1e9 * traffic)
    return 96 / sum(each.values()) * 1000


slow, arithmetic, fast = v100("fp32", "float32"), v100("fp16", "float32"), v100("fp16", "float16")
fp32, fp16 = (session.results[f"published.v100.1gpu.{p}.ips"].value for p in ("fp32", "fp16"))
print(f"V100: at most {slow:,.0f} and {fast:,.0f} images/s; published: {fp32:,} and {fp16:,}.")
print(f"Gain from faster arithmetic alone: {arithmetic / slow:.1f};", end=" ")
print(f"with half the traffic: {fast / slow:.1f}; published: {fp16 / fp32:.1f}.")

# %% [markdown]
# On the H100, all four kinds take about as long as counted (below 1: faster than a copy). Batch norm takes longest, and over half of that 16-bit step hardly computes: hence its low MFU. (A CPU's caches can beat the count.) On the V100, faster arithmetic and half the traffic allow a factor of 3.8. The published FP16 run also has a larger batch, channels last and fused layers.
#
# ### Move fewer bytes
#
# [`torch.compile`](../docs/troubleshooting.md#torchcompile-is-slow-it-compiles-again-in-every-step) **fuses** layers, so that no intermediate result goes to memory. A residual block ends with a batch norm, an addition of the shortcut and a ReLU, which compute almost nothing.
#
# **Your turn:** write their passes over memory, one by one and fused. **Predict** both gains from them: of fusing, and of 16 bits. The cell also times the batch norm alone: in both layouts, and without its sums. (Compiling takes up to half a minute. The measurement is untested on a GPU.)


# %%
def block_end(fused):
    """Return the passes in order, a list of pairs: the arrays that one reads, and those it writes.

    The arrays: "x", the input; "s", the shortcut; "y", the result, which addition and ReLU change
    in place. ("xs", "y") is a pass that reads x and s and writes y.
    """
    return None  # your code


block_end = nb06.check_block_end(block_end)
accesses = {"copy": 2}  # of arrays
for name, fused in (("one by one", False), ("fused", True)):
    accesses[name] = sum(len(reads) + len(writes) for reads, writes in block_end(fused))
print(", ".join(f"{name}: {count} arrays read or written" for name, count in accesses.items()))

# %%
norm, known = (torch.nn.BatchNorm2d(64).to(device) for _ in range(2))
known.eval()  # normalises with stored averages


def tail(x, shortcut):
    """Return the output of a residual block."""
    return norm(x).add_(shortcut).relu_()  # in place, as in the network


shape = (session.tail, 64, 56, 56)
arrays = {
    dtype: torch.randn(2, *shape, device=device).to(dtype) for dtype in (torch.float32, reduced)
}
versions = {"copy": lambda x, shortcut: x.clone(), "one by one": tail,
            "sums": lambda x, shortcut: norm(x), "channels last": lambda x, shortcut: norm(x),
            "no sums": lambda x, shortcut: known(x)}  # fmt: skip
spent = {}
with torch.no_grad():
    if session.compile:
        begin = time.perf_counter()
        try:
            fused = torch.compile(tail)
            gaps = [(fused(*pair) - tail(*pair)).abs().max().item() for pair in arrays.values()]
            versions["fused"] = fused
            print(f"Compiling took {time.perf_counter() - begin:.0f} s;", end=" ")
            print(f"largest difference {gaps[0]:.2g} in float32, {gaps[1]:.2g} in 16 bits")
        except RuntimeError as error:  # such as a missing C++ compiler
            print("torch.compile does not work here:", str(error).splitlines()[0])
    for turn in range(turns + 1):  # the first one warms up
        for dtype, (block, shortcut) in arrays.items():
            other = block.to(memory_format=torch.channels_last)
            for name, version in versions.items():
                array = other if name == "channels last" else block
                begin = time.perf_counter()
                version(array, shortcut)[0, 0, 0, 0].item()  # waits for the device
                found = spent.setdefault((str(dtype)[6:], name), [])
                found += [time.perf_counter() - begin] if turn else []
rows, base = [], spent["float32", "one by one"]
for (dtype, name), found in spent.items():
    if name not in ("one by one", "fused"):
        continue
    counted = accesses[name] / 2 * np.median(spent[dtype, "copy"])
    gain = accesses["one by one"] / accesses[name] * 4 / nb06.BYTES[dtype]
    measured = "1" if found is base else str(workshop.ratio(np.divide(base, found)))
    row = [f"{dtype}, {name}", accesses[name], 1000 * counted, 1000 * np.median(found)]
    rows.append([*row, gain, measured])
columns = ["", "arrays read or written", "ms: counted", "measured", "gain: counted", "measured"]
title = f"The end of a block, {session.tail} images, turns: {turns}; counted at the copy's speed"
workshop.table(rows, columns, title)
for dtype in (str(dtype)[6:] for dtype in arrays):
    ms = {name: 1000 * np.median(spent[dtype, name]) for name in versions}
    print(f"{dtype}: batch norm {ms['sums']:.1f} ms,", end=" ")
    print(f"channels last {ms['channels last']:.1f} (counted {1.5 * ms['copy']:.1f}),", end=" ")
    print(f"without its sums {ms['no sums']:.1f} ms (counted {ms['copy']:.1f})")
session.expect({"h100.compiled.ips": None})
del arrays, array, block, shortcut, other

# %% [markdown]
# A time far above its count is computing: it stays with `shape = (2, 64, 56, 56)`, whose arrays fit in a cache. On a CPU, the `float32` sums in NCHW are an example: PyTorch adds one number after the other, but in channels last several at once ([source](https://github.com/pytorch/pytorch/blob/02793981e2a23214e0a159b7eef8685ea5738310/aten/src/ATen/native/cpu/batch_norm_kernel.cpp)). In the whole network, compiling gained 1.2 (two H100s, on two days).
#
# ## Your turn: one more rung
#
# Add mixed precision to `runs/train.py` in six to eight lines, before you open the solution:

# %%
workshop.ladder.changes("4_amp")

# %% [markdown]
# DDP's `backward()` averages the gradients. Horovod must exchange them *before* `scaler.step` tests them, so that all workers skip a step or none does. So `optimizer.synchronize()` comes first, and `scaler.step(optimizer)` stays inside `skip_synchronize()`.
#
# How much faster will the script become? Only forward and backward gain, by the factor in the NCHW rows (on a GPU, over TF32, which the previous rung uses); the first run and its trace gave their share. **Your turn:** write the formula. The race below tests its prediction, the figure's diamond.


# %%
def script_gain(share, faster):
    """Return a step's speed-up if a `share` of it (0 to 1) becomes `faster` times as fast.

    `faster` is a factor: 2 halves that share's time. The rest takes as long as before.
    """
    return None  # your code


# %% tags=["folded"]
def amdahl(share, faster):
    return 1 / (1 - share + share / faster)


mistakes = (  # a wrong version, what is wrong, what to do
    (lambda share, faster: 1 - share + share / faster, "This is the new time.",
     "The speed is 1 / time."),
    (lambda share, faster: 1 / (share + (1 - share) / faster), "Share and rest are exchanged.",
     "The rest takes as long as before."),
    (lambda share, faster: 1 / (1 - share + share * faster), "The share takes longer.",
     "Divide it by `faster`."),
    (lambda share, faster: faster / share, "The rest is missing.", "The rest takes time, too."),
    (lambda share, faster: 1 - share + share * faster, "These are speeds.",
     "Add up times, not speeds."),
    (lambda share, faster: share * faster, "The rest is missing.",
     "The rest does not become faster."),
    (lambda share, faster: 100 * amdahl(share, faster), "This is a percentage.",
     "Return a factor: 1 is as fast as before."),
    (lambda share, faster: amdahl(share, faster) - 1, "This is the gain only.",
     "Return a factor: 1 is as fast as before."),
    (lambda share, faster: 100 * (amdahl(share, faster) - 1), "This is the gain as a percentage.",
     "Return a factor: 1 is as fast as before."),
)  # fmt: skip
said = "This is Amdahl's law: 80% of a step, 4 times as fast, makes the step 2.5 times as fast."
cases = (0.8, 4), (0.5, 0.5)
script_gain = choose_by_cases("script_gain", script_gain, amdahl, cases, mistakes, said)

# %%
before = "tf32" if "tf32" in precisions else "float32"
faster = workshop.ratio(np.divide(times[before, "NCHW"], times[half, "NCHW"]))
guess, least_gain, most = (script_gain(passes, x) for x in (faster.median, faster.low, faster.high))
print(f"Speed of both passes, {passes:.0%} of a step, in {half}: {faster}")
workshop.ladder.predict("4_amp", guess)
torch.cuda.empty_cache()  # the scripts need the memory
found = workshop.ladder.race(
    ["3_dali", "4_amp"], turns=session.rung_turns, ranks=ranks, own="4_amp", **sizes,
    warm_up=1, steps=1 if emulated else session.steps,
)  # fmt: skip
if found and found["4_amp"]["paired"]:
    gains = np.divide(found["4_amp"]["turns"], found["3_dali"]["turns"])
    print(f"Speed of 4_amp over 3_dali: {workshop.ratio(gains)};", end=" ")
    print(f"predicted: {guess:.2f} ({least_gain:.2f} to {most:.2f})")
    before, after = (report["compute_ms"] - optimizer_ms for report in found.values())
    print(f"The passes alone gained {before / after:.2f} in the script.")
else:
    print("The prediction is not tested: this needs DALI, memory for both scripts,", end=" ")
    print("and a script that calls trace.step().")
workshop.ladder.figure("4_amp")

# %% [markdown]
# If the prediction is off, the passes gained more or less than alone (compare the printed factors), or the rest changed. The recorded H100's rung 4 reached 2,530 images/s, not 4,833 as above. It differs in layout (NCHW), batch (128), input (JPEG files) and waiting between a step's parts.
#
# ## The same accuracy?
#
# NVIDIA published one run each; for the road signs, ten seeds per precision were recorded:

# %%
for n in (1, 4, 8):
    for precision in ("fp16", "fp32"):
        key = f"published.v100.{n}gpu.{precision}"
        top1, hours = (session.results[f"{key}.{what}"].value for what in ("top1", "hours"))
        print(f"{n} V100, {precision}: {top1:.3f}% top-1 on ImageNet after {hours:4.1f} h")
seeds = {}
for dtype in ("float32", "bfloat16"):
    recorded = session.results[f"roadsigns.resnet50.{dtype}.top1"]
    top1 = seeds[dtype] = recorded.each
    print(f"road signs, {dtype}: mean {np.mean(top1):.2f}%,", end=" ")
    print(f"{min(top1):.1f} to {max(top1):.1f}, standard deviation {np.std(top1, ddof=1):.1f}")
    print(f"  ({recorded.provenance})")
gap = np.mean(seeds["float32"]) - np.mean(seeds["bfloat16"])
error = np.sqrt(sum(np.var(top1, ddof=1) / len(top1) for top1 in seeds.values()))
print(f"The means differ by {gap:.2f} points, or {gap / error:.1f} standard errors.")

# %% [markdown]
# On ImageNet, FP16 is below FP32 all three times, by less than 0.2 points, and FP32 varies as much between GPU counts. On the road signs, ten seeds do not settle whether `bfloat16` costs accuracy: the means differ by less than two standard errors.
#
# ## Key takeaways
#
# - Exponent bits set the range, mantissa bits the precision: `float16` lacks range, `bfloat16` precision.
# - A loss scale moves gradients into `float16`'s range. A fixed scale can fail silently.
# - Many updates are too small for 16 bits, so the weights stay in `float32`.
# - Activations take about half the memory: room for a larger batch.
# - Arithmetic-bound layers can gain most; by the count, memory-bound ones gain a factor of 2, the optimizer nothing. Fusing multiplies that.
#
# **Try it:** in `train_scaled`, round the weights to `bfloat16` after each step, and predict the loss of the last run. (On an EPYC, it was 2.06 instead of 1.91.)
#
# The next notebook uses a trained network: how long is one prediction?
