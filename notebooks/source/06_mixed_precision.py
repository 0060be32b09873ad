# %% [markdown]
# # 06 · Mixed precision
#
# After this notebook you can explain what you gain and lose with 16-bit numbers, preserve small gradients with a loss scale that you wrote yourself, train with `autocast` and `GradScaler`, and predict from arithmetic and memory traffic how much faster a network becomes.
#
# **Time:** 50 minutes · **Needs:** DALI, Horovod, and the script from notebook 05, which you extend · **On a CPU:** about 3 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
pairs: int | None = None  # timed pairs of float32 and 16 bits
seed: int = 0  # seed of all random numbers

# %%
import io
import time

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
pairs = pairs or session.pairs
ranks = min(8, len(session.machine.gpus)) or session.ranks  # of the ladder's runs
device = torch.device("cuda" if session.profile == "gpu" else "cpu")
reduced = torch.float16 if device.type == "cuda" else torch.bfloat16  # compared with float32
workshop.ladder.figure()

# %% [markdown]
# ## Where is the time going?
#
# Once the input keeps up, computation dominates: arithmetic and memory traffic. A `float32` has 32 bits. A 16-bit array needs half the memory and half the traffic, and hardware built for 16 bits computes several times as fast.
#
# The right panel's first two bars show the published gain: [NVIDIA's ResNet-50 for MXNet](https://github.com/NVIDIA/DeepLearningExamples/tree/a8e1d1cd/MxNet/Classification/RN50v1.5) processes 400.2 images per second on one V100 in FP32 and 1,442.6 in FP16 (*Total IPS*, data and computation together). The method is from [Mixed Precision Training](https://arxiv.org/abs/1710.03740) (Micikevicius et al., 2017). Where does the factor of 3.6 come from, and what is at risk?
#
# Volta introduced Tensor Cores for `float16`, and Ampere added `bfloat16`. On x86 CPUs, instructions for `bfloat16` are more common than for `float16`, so a CPU uses `bfloat16` below. Without such instructions, PyTorch emulates it in `float32`, which is slower. Check your machine's flags:

# %% language="bash" magic_args="-e"
# grep -o -w -E 'avx512_bf16|amx_bf16|amx_fp16|bf16' /proc/cpuinfo | sort | uniq -c || true
# nvidia-smi --query-gpu=name,compute_cap --format=csv 2>/dev/null || echo "no NVIDIA GPU"

# %% [markdown]
# ## What a number can hold
#
# A floating-point number has a sign, an **exponent**, which sets its magnitude, and a **mantissa**, which divides the range between two powers of two into equal steps. Exponent bits give range, and mantissa bits give resolution. Here is 0.1 in three formats:

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

# %% [markdown]
# `float16` and `bfloat16` have the same size and opposite strengths. `bfloat16` is a `float32` rounded to its first 16 bits: nearly the same range, but only two or three decimal digits. `float16` resolves eight times as finely, but its range is only 0.00000006 to 65,504.
#
# **Predict** before you run: what happens to 70,000, 0.00000001 and 1.001 in each format?

# %%
for value in (70_000.0, 1e-8, 1.001):
    stored = [
        f"{str(dtype)[6:]} {torch.tensor(value, dtype=dtype).item():.6g}" for dtype in formats
    ]
    print(f"{value:g} becomes", ", ".join(stored))

# %% [markdown]
# ## Gradients that vanish
#
# Gradients are small, because the loss is a *mean*: each pixel of each feature map contributes only a little to a mean over all images. To look at real ones, briefly train a small network on road signs in `float32`.

# %%
signs = open_source(session.data_root, "train", "recordio")  # in random order
size = (session.pixels, session.pixels)
photos = [Image.open(io.BytesIO(signs.read(i))).convert("RGB") for i in range(session.images)]
images = torch.stack([torch.tensor(np.array(ImageOps.fit(photo, size))) for photo in photos])
images = ((images.permute(0, 3, 1, 2).float() - 118) / 58).to(device)
labels = torch.tensor(signs.labels[: len(photos)]).long().to(device)
batches = list(zip(images.split(16), labels.split(16), strict=True))


def fresh():
    """Return the same untrained network and its optimizer every time."""
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

# %% [markdown]
# A hook on every convolution now collects the gradients that flow back through the network. **Predict:** what share of the nonzero ones will become zero in `float16`?

# %%
flowing = []


def collect(layer, inputs, output):
    output.register_hook(lambda gradient: flowing.append(gradient.flatten().cpu()))


convolutions = [layer for layer in model.modules() if isinstance(layer, torch.nn.Conv2d)]
hooks = [layer.register_forward_hook(collect) for layer in convolutions]
cross_entropy(model(images[:208]), labels[:208]).backward()
for hook in hooks:
    hook.remove()
gradients = torch.cat(flowing)
gradients = gradients[gradients != 0]
for power in (0, 4, 8, 12, 16, 20, 24):
    scaled = (gradients * 2.0**power).half()
    zero, infinite = (100 * kind.float().mean().item() for kind in (scaled == 0, scaled.isinf()))
    print(f"loss x 2^{power:<2}: {zero:6.2f}% become zero, {infinite:7.4f}% infinite")
vanish = 100 * (gradients.half() == 0).float().mean().item()
vanish_bfloat16 = 100 * (gradients.bfloat16() == 0).float().mean().item()

fig, axes = plt.subplots(figsize=(9, 3.4))
axes.hist(gradients.abs().log2().numpy(), bins=range(-60, 10), color="#0072b2")
axes.axvspan(-60, -25, color="#d55e00", alpha=0.25, zorder=0, label="zero in float16")
axes.axvspan(
    -25, -14, color="#e69f00", alpha=0.25, zorder=0, label="fewer mantissa bits in float16"
)
axes.axvline(16, color="black", ls="--", label="infinite in float16")
axes.set(title="Gradients that flow back", xlabel="magnitude, power of two")
axes.set(ylabel="count", xlim=(-60, 20))
axes.legend(loc="upper left")
finding = f"{vanish:.1f}% vanish in float16, {vanish_bfloat16:.2f}% in bfloat16."
workshop.figure(
    fig,
    alt=f"Histogram of gradients by size, mostly in the lower part of float16's range. {finding}",
)
print(finding)

# %% [markdown]
# These are the gradients of the convolutions' outputs, mostly in the lower half of `float16`'s range or below it. Weight gradients add up contributions from all pixels and images, so they are larger and overflow at a smaller scale. The fix: **multiply the loss** by a large number before the backward pass. By the chain rule, every gradient grows by the same factor, and the histogram moves to the right. Divide the gradients by the same number, in `float32`, before the optimizer uses them. If it is a power of two, the mantissa bits do not change.
#
# ## Write the loss scale yourself
#
# The best scale is the largest one that does not overflow, and it changes as the network learns. So find it by trial and error:
#
# - If any gradient is infinite or NaN, skip the update and halve the scale.
# - After `wait` good steps in a row, double it.
#
# **Your turn:** write `next_scale`; the folded cell below checks it against a finished version. `ex06.scaler` adds limits.


# %%
def next_scale(scale, good, finite, wait=2000):
    """Return the loss scale of the next step, and the number of good steps in a row.

    `good` is that number before this step, and `finite` is True if this step is good. The count
    restarts at 0 whenever the scale changes. The training loop below skips the update.
    """
    return None  # your code


# %% tags=["folded"]
def finished(scale, good, finite, wait=2000):
    if not finite:
        return scale / 2, 0
    if good + 1 == wait:
        return scale * 2, 0
    return scale, good + 1


if next_scale(1.0, 0, True) is None:
    print("`next_scale` returns None, so the finished version is used.")
    next_scale = finished
cases = ((1024.0, 3, False, 5), (1024.0, 3, True, 5), (1024.0, 4, True, 5), (1.0, 0, False, 5))
wrong = [case for case in cases if next_scale(*case) != finished(*case)]
for case in wrong:
    print(f"next_scale{case} is {next_scale(*case)}; the rule above gives {finished(*case)}")
if not wrong and next_scale is not finished:
    print(f"Right in all {len(cases)} cases that were tried.")

# %% [markdown]
# The next cell uses it in a training loop. **Predict** four outcomes: your rule, starting far too high at 2^24; no scale; a fixed scale of 2^24; and a fixed scale of 2^24 without the test for infinity.


# %%
def train_scaled(scale, adapt=True, test=True):
    """Train in float16; return the losses, the scales and the number of skipped steps."""
    model, optimizer = fresh()
    losses, scales, good, skipped = [], [], 0, 0
    for x, y in batches:
        with torch.autocast(device.type, torch.float16):
            loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        (loss * scale).backward()
        gradients = [weight.grad.div_(scale) for weight in model.parameters()]
        finite = all(gradient.isfinite().all() for gradient in gradients)
        if finite or not test:
            optimizer.step()
        else:
            skipped += 1
        losses.append(loss.item())
        scales.append(scale)
        if adapt:
            scale, good = next_scale(scale, good, finite, wait=5)  # 2,000 is too long here
    return losses, scales, skipped


runs = {
    "your rule": train_scaled(2.0**24),
    "no scale": train_scaled(1.0, adapt=False),
    "always 2^24": train_scaled(2.0**24, adapt=False),
    "always 2^24, not tested": train_scaled(2.0**24, adapt=False, test=False),
}

fig, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4))
looks = (("#0072b2", "-"), ("#d55e00", "--"), ("#009e73", "-."), ("black", ":"))
for (name, (losses, scales, skipped)), (color, style) in zip(runs.items(), looks, strict=True):
    left.plot(losses, style, color=color, label=name)
    right.step(range(len(scales)), np.log2(scales), style, color=color, where="post")
    print(f"{name:24} mean loss of the last 5 steps {np.mean(losses[-5:]):.2f}, {skipped} skipped")
left.set(title="Training in float16", xlabel="step", ylabel="cross-entropy loss")
right.set(title="Loss scale", xlabel="step", ylabel="power of two")
left.legend(fontsize="small")
workshop.figure(
    fig, alt="Loss and loss scale of four runs in float16; the numbers are printed above"
)

# %% [markdown]
# Your rule skips the first steps until the scale fits, and later one step each time the scale becomes too large. With the usual wait of 2,000 steps, that costs almost nothing.
#
# The third run is a **silent failure**. Every update is skipped and the network learns nothing. There is no error, only a loss that varies from batch to batch and does not fall. The fourth run, without the test, writes infinities or NaN into the weights. Its loss is NaN from then on, so its line is missing from the left plot. At least you notice that.
#
# The run without a scale may look better than yours, which spent its first steps finding the scale. This network's gradients are large enough, but a larger network, a larger batch or a lower loss can make them smaller. The next cell shrinks the gradients of the network that you trained in `float32`, by 2^12 and 2^16. **Predict** the error without a scale, and with one of 2^12.

# %%
x, y = batches[0]


def weight_gradients(scale, half):
    with torch.autocast(device.type, torch.float16, enabled=half):
        loss = cross_entropy(model(x), y)
    parts = torch.autograd.grad(scale * loss, list(model.parameters()))
    return torch.cat([part.flatten() for part in parts]) / scale


exact = weight_gradients(1, half=False)
for shrink in (0, 12, 16):
    for power in (0, 12):
        found = weight_gradients(2.0 ** (power - shrink), half=True)
        error = ((found - exact).norm() / exact.norm()).item()
        print(
            f"gradients / 2^{shrink}, scale 2^{power}: {error:.0%} error in the weights' gradients"
        )

# %% [markdown]
# Without a scale, the error grows as the gradients shrink, until most of the gradient is lost. With a scale of 2^12 it stays at the few per cent that rounding in `float16` causes anyway.
#
# ## Master weights
#
# There is a second way to lose information. An update adds a small number to a large one, and has no effect if it is less than half the spacing of representable numbers. Add a ten-thousandth to 1, a thousand times:

# %%
for dtype in formats:
    weight = torch.tensor(1.0, dtype=dtype)
    for _ in range(1000):
        weight += 0.0001
    print(f"{str(dtype):15} {weight.item():.6g}; it should be 1.1")

# %% [markdown]
# Are real updates that small? Take the weights and the momentum of the network that you trained in `float32`, and apply one update at its learning rate of 0.01 and at lower rates, as later in a schedule. What share of the weights does not change at all?

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
# So keep the weights in `float32`: these are the **master weights**. Each step copies them to 16 bits, computes with the copy, and updates the master weights.
#
# ## A training loop in twelve lines
#
# PyTorch has two tools for this. `torch.autocast` runs convolutions and matrix products in 16 bits and sensitive operations such as the loss in `float32`; the weights stay in `float32`. `GradScaler` applies your rule, starting at 2^16 with a wait of 2,000 steps.


# %%
def train(dtype, scaler):
    model, optimizer = fresh()
    losses = []
    for x, y in batches:
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    return np.mean(losses[-5:])


for dtype in formats:
    begin = time.perf_counter()
    loss = train(dtype, torch.amp.GradScaler(device.type, enabled=dtype == torch.float16))
    print(f"{str(dtype):15} loss {loss:.2f}, {time.perf_counter() - begin:.1f} s")

# %% [markdown]
# The losses differ, but another seed would change them too. The times mean little for such a small network, and most CPUs emulate `float16`.
#
# A common claim is that `GradScaler` makes Python wait for the GPU in every step, because it calls `.item()` to find out whether to skip. Count the calls, with an ordinary optimizer and with a fused one, which updates all weights in a few kernels:

# %%
from torch.utils._python_dispatch import TorchDispatchMode


class CountItems(TorchDispatchMode):
    calls = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.calls += "_local_scalar_dense" in str(function)  # what .item() calls
        return function(*args, **(kwargs or {}))


for fused in (False, True):
    layer, scaler = torch.nn.Linear(4, 4).to(device), torch.amp.GradScaler(device.type)
    sgd = torch.optim.SGD(layer.parameters(), lr=0.1, fused=fused)
    scaler.scale(layer(torch.ones(1, 4, device=device)).sum()).backward()
    with CountItems() as count:
        scaler.step(sgd)
        scaler.update()
    print(f"fused={fused!s:5}: {count.calls} call(s) of .item() in a step")

# %% [markdown]
# A fused optimizer skips the update on the device, so the claim is true only for non-fused optimizers.
#
# ## Why 208 images in FP16 and 96 in FP32?
#
# These are NVIDIA's batch sizes on a 16 GB V100. Notebook 02 estimated the limit from `float32` activations, the layer outputs that the backward pass needs. Now measure what 16 bits change:


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
    per_image[dtype] = kept_bytes(dtype, 2) - kept_bytes(dtype, 1)
    megabytes = per_image[dtype] * (224 / 64) ** 2 / 1e6
    print(f"{str(dtype):15} {megabytes:.0f} MB for each image of 224 x 224 pixels")
memory_ratio = per_image[torch.bfloat16] / per_image[torch.float32]

# %% [markdown]
# If an image needs half the memory, 96 images in FP32 and 208 in FP16 need about the same. Twice the batch is the first gain from 16 bits. Weights, gradients and momentum do *not* shrink, because they stay in `float32`.
#
# ## Tensor Cores and the roofline
#
# The second gain is speed. A **Tensor Core** multiplies small matrices of 16-bit numbers and accumulates in `float32`, in one instruction. Intel's AMX does the same on a CPU. A layer is limited by arithmetic *or* by memory traffic, depending on its **FLOP per byte**, the floating-point operations per byte moved. A convolution can use each number hundreds of times, but a ReLU uses it once. Measure both limits of this machine:

# %%
from torch.utils import benchmark


def seconds(statement, **names):
    timer = benchmark.Timer(statement, globals=names, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=0.3).median


peaks, side = {}, session.side
for dtype in (torch.float32, reduced):
    a = torch.randn(side, side, device=device).to(dtype)
    peaks[str(dtype)[6:]] = 2 * side**3 / seconds("a @ a", a=a)
array, copy = torch.zeros(2, 2**24, device=device)
bandwidth = 2 * array.nbytes / seconds("copy.copy_(array)", array=array, copy=copy)
for name, peak in peaks.items():
    print(f"{name:8}  {peak / 1e9:,.1f} GFLOP/s")
print(f"memory    {bandwidth / 1e9:.1f} GB/s")

# %% [markdown]
# The next figure, a **roofline**, shows both limits for this machine and, from NVIDIA's data sheet, for a V100. Each mark is one type of layer in ResNet-50 during training. On the slope a layer is limited by memory, and on the flat part by arithmetic. **Predict:** which marks can Tensor Cores raise?

# %%
from workshop.lessons import nb06

v100 = {key: session.results[f"v100.{key}"].value for key in ("fp32", "fp16", "bandwidth")}
sheet = {"float32": 1e12 * v100["fp32"], "float16": 1e12 * v100["fp16"]}
roofs = {"This machine": (peaks, bandwidth), "V100, data sheet": (sheet, 1e9 * v100["bandwidth"])}
fig, panels = plt.subplots(1, 2, figsize=(10, 3.8))
for axes, (name, (limits, bytes_per_s)) in zip(panels, roofs.items(), strict=True):
    for (dtype, peak), colour in zip(limits.items(), ("#0072b2", "#d55e00"), strict=True):
        x = np.logspace(-1.2, 3, 200)
        axes.loglog(x, np.minimum(peak, bytes_per_s * x) / 1e9, color=colour, label=dtype)
        marks = {"convolution": "o", "batch norm": "s", "ReLU": "D", "addition": "v"}
        for kind, mark in marks.items():
            work = nb06.count(resnet.resnet(50), 224, 96, dtype)[kind]
            height = min(peak, bytes_per_s * work.intensity) / 1e9
            label = kind if dtype == "float32" else None
            axes.plot(work.intensity, height, mark, color=colour, label=label)
    axes.set(title=name, xlabel="FLOP per byte", ylabel="GFLOP/s at most")
    axes.legend(fontsize="small")  # the 16-bit format differs between the panels
workshop.figure(
    fig,
    alt="Rooflines of this machine and a V100: on the V100 only convolutions reach the flat part",
)

# %% [markdown]
# Only the convolutions' marks reach the V100's flat roof. (An H100 needs more FLOP per byte to get there, so in 16 bits even the convolutions may stay on the slope.) The other marks are on the slope, where 16 bits help only by halving the bytes. The step's speed-up lies between 2 and 8. **Predict** it, then add up the minimum times of all types of layers, unfused, on a V100:

# %%
least = {}
for dtype, peak in sheet.items():
    work = nb06.count(resnet.resnet(50), 224, 96, dtype).values()
    least[dtype] = sum(max(w.flops / peak, w.bytes / (1e9 * v100["bandwidth"])) for w in work) / 96
published = [session.results[f"published.v100.1gpu.{p}.ips"].value for p in ("fp32", "fp16")]
for (dtype, time_per_image), ips in zip(least.items(), published, strict=True):
    print(f"{dtype}: at most {1 / time_per_image:,.0f} images/s unfused, published {ips:,.1f}")
factor = least["float32"] / least["float16"]
work = nb06.count(resnet.resnet(50), 224, 96, "float32").values()
traffic = 1e9 * v100["bandwidth"]
faster = sum(max(w.flops / sheet["float16"], w.bytes / traffic) for w in work) / 96
print(
    f"With float16's arithmetic and float32's traffic: {least['float32'] / faster:.1f} times;",
    end=" ",
)
print(f"with half the traffic, too: {factor:.1f} times.")
print(f"Published: {published[1] / published[0]:.2f} times.")

# %% [markdown]
# By this estimate, eightfold arithmetic speed and half the traffic make the step four times as fast. The published factor is 3.6. The two runs, whose commands are in notebook 08, differ in more than the precision: the batch is larger, and for FP16 the program also uses the NHWC memory layout (channels last) and fused layers. So 3.6 is the gain from the whole package.
#
# On newer GPUs there is another format, **TF32**: its values are stored as `float32`, but Tensor Cores ignore the last 13 mantissa bits. Does PyTorch use it by default? The next cell checks:

# %%
print("matrix products:", torch.get_float32_matmul_precision())  # highest: real float32
print("convolutions:   ", torch.backends.cudnn.conv.fp32_precision)

# %% [markdown]
# On such GPUs, PyTorch uses TF32 by default for convolutions, but not for matrix products. There, a "float32" ResNet is mostly TF32: its convolutions may exceed the float32 roof above, and a speed-up over it looks smaller than over real FP32.
#
# ## Your turn: one more rung
#
# Open `runs/train.py`, which has used DALI since notebook 05, and add mixed precision. It takes seven lines. Try it before you open the solution:

# %%
workshop.ladder.changes("4_amp")

# %% [markdown]
# DDP's `backward()` averages the gradients. Horovod must exchange the gradients *before* `scaler.step` tests them, so that either all workers skip a step or none does. That is why `optimizer.synchronize()` comes first and `scaler.step(optimizer)` stays inside `skip_synchronize()`. In notebook 03 these lines were there only for the clock; here they are needed.
#
# **Predict** how much faster the script becomes on this machine. Does it emulate `bfloat16`, or does its float32 use TF32? Replace the number, then run the cell, which runs both rungs with the same sizes. While they run, check the utilisation with `htop`, or with `nvidia-smi dmon` on a GPU.

# %%
workshop.ladder.predict("4_amp", 1.5)  # your number
climbed = {}
for rung in ("3_dali", "4_amp"):
    climbed[rung] = workshop.ladder.climb(
        rung, ranks=ranks, own=rung == "4_amp",  # your train.py is past rung 3
        image_size=session.image_size, batch_size=session.batch_size,
        steps=session.steps, workers=max(1, session.machine.cores // ranks),
    )  # fmt: skip

# %% [markdown]
# The machine's speed may change between two runs. For a ratio that you can defend, let the two precisions take turns on the same network and batch:

# %%
model = ResNet(resnet.resnet(50)).to(device)
x = torch.randn(session.batch_size, 3, session.image_size, session.image_size, device=device)
y = torch.zeros(len(x), dtype=torch.long, device=device)


def step_seconds(dtype):
    begin = time.perf_counter()
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        loss = cross_entropy(model(x), y)
    loss.backward()
    model.conv1.weight.grad.sum().item()  # waits for the device
    return time.perf_counter() - begin


step_seconds(torch.float32), step_seconds(reduced)  # warm up
ratios = [step_seconds(torch.float32) / step_seconds(reduced) for _ in range(pairs)]
speedup = float(np.median(ratios))
print(f"{reduced} over float32: median {speedup:.2f}, from {min(ratios):.2f} to {max(ratios):.2f}")
native = speedup if "amx" in session.machine.bfloat16 and device.type == "cpu" else None
session.expect(
    {"precision.speedup": native, "precision.vanish": vanish if device.type == "cpu" else None}
)

# %% [markdown]
# This ratio and the ladder's can disagree: the rungs ran one after the other, include input and communication, and on a CPU have fewer threads per process. Only this cell compares like with like. On a CPU, a ratio near 1 or below usually means other load, a tiny batch, or emulation. (The rungs' losses, after so few steps, mean nothing.) The recorded speed-up is for AMX and 224 px; without AMX, *yours* is empty. A CPU that emulates should train in `float32`; `rn50 run --dtype auto` decides by the processor's flags.
#
# ## The same accuracy?
#
# Speed is useless if the result is worse. NVIDIA published one run of 90 epochs for each precision and number of GPUs. For the road-sign recipe, ten seeds per precision were recorded:

# %%
for n in (1, 4, 8):
    for precision in ("fp16", "fp32"):
        key = f"published.v100.{n}gpu.{precision}"
        top1, hours = (session.results[f"{key}.{what}"].value for what in ("top1", "hours"))
        print(f"{n} V100, {precision}: {top1:.3f}% top-1 on ImageNet after {hours:4.1f} h")
seeds = {  # recorded, 0 to 9: rn50 run --preset roadsigns --dtype DTYPE --seed N
    "float32": [87.5, 87.42, 86.75, 86.58, 88.0, 87.75, 88.33, 88.25, 87.25, 85.75],
    "bfloat16": [87.83, 87.67, 84.58, 85.0, 87.58, 88.83, 85.75, 85.0, 87.5, 86.67],
}
for dtype, top1 in seeds.items():
    print(f"road signs, {dtype}: mean {np.mean(top1):.2f}%,", end=" ")
    print(f"{min(top1):.1f} to {max(top1):.1f}, standard deviation {np.std(top1, ddof=1):.1f}")
gap = np.mean(seeds["float32"]) - np.mean(seeds["bfloat16"])
error = np.sqrt(sum(np.var(top1, ddof=1) / len(top1) for top1 in seeds.values()))
print(f"The means differ by {gap:.2f} points, or {gap / error:.1f} standard errors.")

# %% [markdown]
# On ImageNet, FP16 is below FP32 all three times, by less than 0.2 points, and FP32 itself varies as much from one number of GPUs to another. On the road signs, the means differ by less than two standard errors, so ten seeds do not settle whether `bfloat16` costs accuracy. Judge accuracy over several seeds, because a single pair of runs mostly shows noise.
#
# ## The ladder
#
# Compare your prediction, the diamond, with the new bar:

# %% tags=["results"]
workshop.ladder.figure()
session.note("vanish", vanish, "%", "gradients flowing back that become zero in float16")
session.note("memory_ratio", memory_ratio, "times", "activations in bfloat16 over float32")
session.note("speedup", speedup, "times", "speed of a training step in 16 bits over float32")

# %% [markdown]
# ## Key takeaways
#
# - Exponent bits give range, and mantissa bits give resolution. `float16` lacks range, and `bfloat16` lacks resolution.
# - A loss scale moves gradients into `float16`'s range. A fixed scale can fail silently.
# - Many updates are too small for 16 bits, so the weights stay in `float32`.
# - Activations take about half the memory, which allows the larger batch.
# - Arithmetic becomes much faster, but memory traffic is only halved. The mix of layers decides the total.
# - A faster step may have to wait for its input. After each rung, ask again where the time goes; `rn50 diagnose` measures it.
#
# **Try it:** replace `torch.float16` in `train_scaled` with `torch.bfloat16`, and predict how the four runs will differ.
#
# So far the course has been about training. The next notebook uses a trained network: how long does one answer take, and how many can it give per second?
