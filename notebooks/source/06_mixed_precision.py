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

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image, ImageOps
from torch.nn.functional import cross_entropy

import workshop
from rn50lib import resnet
from rn50lib.data.source import open_source
from rn50lib.torch.model import ResNet
from workshop.lessons import nb06

session = workshop.start("06", profile)
turns = turns or session.turns
ranks = min(8, len(session.machine.gpus)) or 1  # of the ladder's runs
workers = max(1, session.machine.cores // ranks)  # per rank
device = torch.device("cuda" if session.profile == "gpu" else "cpu")
half = "float16" if device.type == "cuda" else "bfloat16"  # compared with float32
emulated = device.type == "cpu" and not session.machine.bfloat16  # slow: fewer images
batch, pixels = 2 if emulated else session.batch_size, session.image_size  # of your script
timed = 2 if emulated else session.timed_batch  # images of the passes that are timed here
if device.type == "cuda" and torch.cuda.mem_get_info()[1] < 40e9:
    timed = batch  # float32 keeps 23 GB for 256 images

# %% [markdown]
# ## Where is the time going?
#
# The next cell traces your script, now with DALI, in `float32` (recent GPUs: TF32). **Predict:** what share of a step is input, and what share is convolution?

# %%
file = session.folder / "float32.json.gz"
sizes = {"image_size": pixels, "batch_size": batch, "workers": workers}
brief = {**sizes, "warm_up": 2 * workers + 1, "steps": 4, "trace": file}  # past prepared batches
dali = workshop.ladder.climb("3_dali", ranks=ranks, **brief)
report = dali or workshop.ladder.climb("1_single", **brief)
trace_ms = workshop.trace(file, show=False)
shares = {kind: ms / sum(trace_ms.values()) for kind, ms in trace_ms.items()}
step_ms = sum(report.get(f"{part}_ms", 0) for part in ("input", "compute", "communication"))
both_passes = max(0.0, report["compute_ms"] / step_ms - shares["optimizer"])
print(f"Input takes {report['input_ms'] / step_ms:.1%} of a step, convolution", end=" ")
print(f"{shares['convolution']:.0%}, both passes (forward and backward) {both_passes:.0%}.")

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
    parts = bits[0], bits[1 : 1 + exponent], bits[1 + exponent :]
    print("{:15} {} {:8} {:23}".format(str(dtype), *parts), end=" ")
    print(f"largest {info.max:.3g}, smallest {info.smallest_normal * info.eps:.2g},", end=" ")
    print(f"spacing at 1: {info.eps:.2g}")
    stored = torch.tensor([70_000, 1e-8, 1.001], dtype=dtype).tolist()
    print("    70000, 1e-08 and 1.001 become", ", ".join(f"{number:.6g}" for number in stored))

# %% [markdown]
# `bfloat16` is a `float32` rounded to its first 16 bits: nearly the same range, but only two or three decimal digits. `float16` is eight times as precise, but covers only 6e-8 to 65,504.
#
# ## Gradients that underflow
#
# Gradients are small, because the network averages over pixels and the loss over images: each number contributes only a little. To see real ones, the next cell briefly trains a small network on road signs in `float32`. Then hooks collect the gradients that flow back to its convolutions and its last layer. **Predict:** what fraction of the nonzero ones will underflow to zero in `float16`?

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


# %%
def on_gradients(model, use):
    """Call `use` with every gradient that flows back to the output of a layer with products."""

    def register(layer, inputs, output):
        output.register_hook(use)

    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            layer.register_forward_hook(register)


flowing = []
on_gradients(model, lambda gradient: flowing.append(gradient.flatten().cpu()))
optimizer.zero_grad()
cross_entropy(model(images[:208]), labels[:208]).backward()  # at most NVIDIA's batch in FP16
gradients = torch.cat(flowing)
gradients = gradients[gradients != 0]
vanish = 100 * (gradients.half() == 0).float().mean().item()
vanish_bfloat16 = 100 * (gradients.bfloat16() == 0).float().mean().item()

fig, axes = plt.subplots()
powers = gradients.abs().log2().numpy()
axes.hist(powers, bins=range(-45, 24), density=True, color=workshop.FINDING)
for edge, left in ((-25, "zero in float16"), (-14, "fewer bits"), (16, "full precision")):
    axes.axvline(edge, color="0.5")
    axes.text(edge - 0.4, 0.12, left, ha="right")
finding = f"{vanish:.1f}% underflow in float16, {vanish_bfloat16:.2f}% in bfloat16"
axes.set(title=f"Gradients that flow back: {finding}", ylabel="share of gradients")
axes.set(xlabel="magnitude, power of two (from 16: infinite)", ylim=(0, 0.13))
workshop.figure(fig, alt="Histogram of the magnitudes of gradients, in powers of two.")

# %% [markdown]
# Most gradients are below 2^-14, where `float16` has fewer bits or only zero. The fix: **multiply the loss** by a large number before the backward pass. By the chain rule, every gradient grows by the same factor, and the histogram moves to the right. Divide by the same number, in `float32`, before the update. If it is a power of two, the mantissa bits do not change.
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
# **Your turn:** write `next_scale`; the cell checks it.


# %%
def next_scale(scale, good, finite, wait=2000):
    """Return the loss scale of the next step, and the number of good steps in a row.

    `good` counts the consecutive good steps before this one; `finite` is True if all gradients of
    this step are finite. The count restarts at 0 whenever the scale changes.
    """
    return None  # your code


next_scale = nb06.check("next_scale", next_scale)

# %% [markdown]
# The next cell uses it in a training loop. A larger network or batch, or a lower loss, makes gradients smaller. To imitate that, this loop divides them by 2^16 before they are rounded to `float16`, and multiplies them by it before the update. **Predict** the four `float16` outcomes: your rule, from 2^36, too high (in effect 2^20, see above); no scale; and a fixed scale of 2^36, with and without the overflow check.


# %%
def train_scaled(scale, adapt=False, test=True, dtype=torch.float16):
    """Train with tiny rounded gradients; return the losses, and the scale of each step."""
    model, optimizer = fresh()
    small = 2.0**-16
    on_gradients(model, lambda gradient: gradient.to(dtype).float())
    losses, scales, good = [], [], 0
    for x, y in batches:
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        (loss * small * scale).backward()
        for weight in model.parameters():
            weight.grad = weight.grad.to(dtype).float() / (small * scale)
        finite = all(weight.grad.isfinite().all() for weight in model.parameters())
        if finite or not test:
            optimizer.step()
        losses.append(loss.item())
        scales.append(scale)
        if adapt:
            scale, good = next_scale(scale, good, finite, wait=5)  # 2,000 is too long here
    return losses, scales


runs = {
    "your rule": train_scaled(2.0**36, adapt=True),
    "no scale": train_scaled(1.0),
    "always 2^36": train_scaled(2.0**36),
    "always 2^36, no check": train_scaled(2.0**36, test=False),
    "no scale, bfloat16": train_scaled(1.0, dtype=torch.bfloat16),
    "not rounded": train_scaled(1.0, dtype=torch.float32),
}

print(f"Mean loss of the last 5 of {len(batches)} steps")
for name, (losses, _) in runs.items():
    print(f"{name:22}{np.mean(losses[-5:]):5.2f}")
_, scales = runs["your rule"]
print("Your rule's scale of each step: 2 to the", *np.log2(scales).astype(int))

# %% [markdown]
# Your rule skips steps until the scale fits, and one when doubling is too much. It makes fewer updates than the last run, and its loss is higher. Dividing by 2^16 moves nearly all of the histogram to zero: without a scale, the loss is hardly lower than without updates (third run). `bfloat16` has the range, so it needs no scale.
#
# The third run is a **silent failure**: every update is skipped, without an error, and the weights stay as they were. The fourth run, without the check, writes [infinities or NaN](../docs/troubleshooting.md#nan-in-float16-which-layer-and-what-the-loss-scale-does) into the weights. Its loss is NaN from then on, so you notice.
#
# ## Master weights
#
# Updates can be lost, too. An update adds a small number to a large one; if it is smaller than half the gap between neighbouring representable numbers, nothing changes. The next cell applies one update to the trained network, with its momentum, at its learning rate of 0.01 and lower ones. **Predict:** what fraction of the weights does not change at all?

# %%
stored = torch.cat([weight.detach().flatten() for weight in model.parameters()])
velocity = torch.cat([optimizer.state[w]["momentum_buffer"].flatten() for w in model.parameters()])
for rate in (1e-2, 1e-3, 1e-4):
    for dtype in formats:
        rounded = stored.to(dtype)
        unchanged = (rounded.float() - rate * velocity).to(dtype) == rounded
        share = 100 * unchanged[velocity != 0].float().mean().item()
        print(f"rate {rate:<6g} {str(dtype):15} {share:5.1f}% do not change")

# %% [markdown]
# Mixed precision therefore keeps **master weights** in `float32`: updates change these, and each step computes with a 16-bit copy.
#
# ## `autocast` and `GradScaler`
#
# `torch.autocast` runs convolutions and matrix products in 16 bits and sensitive operations such as the loss in `float32`; the weights stay in `float32`. `GradScaler` applies your rule, starting at 2^16 with a wait of 2,000 steps.
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

# %% [markdown]
# The scale falls until a step is good. Then it doubles after three good steps and halves at each overflow. With a wait of 3, many steps are lost; with 2,000, hardly any would be.
#
# ## Which layers become faster?
#
# A **Tensor Core** multiplies small matrices of 16-bit numbers and accumulates in `float32`, in one instruction; Intel's AMX does the same on a CPU, and `avx512_bf16` with pairs of numbers. GPUs since Ampere have one more precision, [**TF32**](../docs/troubleshooting.md#results-in-float32-differ-between-two-gpus-tf32): numbers are stored as `float32`, but Tensor Cores ignore the last 13 mantissa bits. It is PyTorch's default for convolutions.
#
# But a layer is limited by arithmetic *or* by memory traffic. A convolution can reuse each value it loads hundreds of times; a ReLU uses it once. The next cell measures both limits of this device: the rate of a large matrix product, and the bandwidth of a copy.

# %%
from torch.utils import benchmark


def seconds(statement, **names):
    timer = benchmark.Timer(statement, globals=names, num_threads=torch.get_num_threads())
    return min(timer.blocked_autorange(min_run_time=0.3).times)


precisions = {"float32": torch.float32, "bfloat16": torch.bfloat16}
if device.type == "cuda":
    precisions["float16"] = torch.float16
    if torch.cuda.get_device_capability() >= (8, 0):
        precisions["tf32"] = torch.float32


def set_tf32(name):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "tf32"


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
    print(f"{name:8} {peak / 1e9:10,.1f} GFLOP/s, limit above {peak / bandwidth:.0f} FLOP per byte")
print(f"memory   {bandwidth / 1e9:10,.1f} GB/s")

# %% [markdown]
# A layer takes at least *operations / peak rate* and at least *bytes / bandwidth*. The larger of the two times is its **roofline**.
#
# **Your turn.** Count two layers of ResNet-50 in the forward pass. A multiplication and an addition are two operations; multiplications by padding count, too.
#
# - A convolution, 3 × 3, from 64 to 64 channels, on 56 × 56 pixels. It reads its input and its weights and writes its output, each once.
# - The batch norm after it, which normalises with the mean and the variance of the batch. What does it read, how often, before it can write? Its few operations per number do not matter; count 5. Leave out its parameters.
#
# **Predict** from your count and the limits above: what does each layer gain with 16 bits?


# %%
def convolution(images, size):
    """Return (operations, bytes) of the convolution; a number has `size` bytes."""
    return None  # your code


def batch_norm(images, size):
    """Return (operations, bytes) of the batch norm; a number has `size` bytes."""
    return None  # your code


convolution = nb06.check("convolution", convolution)
batch_norm = nb06.check("batch_norm", batch_norm)
for name, layer in (("convolution", convolution), ("batch norm", batch_norm)):
    roofline = {}
    for dtype in ("float32", half):
        operations, moved = layer(timed, nb06.BYTES[dtype])
        roofline[dtype] = max(operations / peaks[dtype], moved / bandwidth)
    print(f"{name}: {operations / moved:.1f} FLOP per byte in 16 bits;", end=" ")
    print(f"by the count, 16 bits gain {roofline['float32'] / roofline[half]:.2f}")

# %% [markdown]
# By the count, 16 bits gain 2 for the batch norm, and for the convolution at most the ratio of the peaks. A trace tests it below.
#
# ## Compare all precisions
#
# How much faster is the whole network? The next cell times forward and backward passes in all precisions and two memory layouts: NCHW, as in your script, and [**channels last**](../docs/troubleshooting.md#channels_last-has-no-effect-a-layer-loses-it), which Tensor Cores prefer. **MFU** (model FLOP utilisation) is the network's FLOP/s divided by the peak, here the measured one. **Predict** the fastest row.

# %%
network = resnet.resnet(session.layers)
nets = {"NCHW": ResNet(network).to(device),
        "channels last": ResNet(network).to(device, memory_format=torch.channels_last)}  # fmt: skip
x = torch.randn(timed, 3, pixels, pixels, device=device)
inputs = {"NCHW": x, "channels last": x.to(memory_format=torch.channels_last)}
y = torch.zeros(timed, dtype=torch.long, device=device)


def passes(name, layout):
    """Compute a network's gradients in a precision and a layout."""
    set_tf32(name)
    nets[layout].zero_grad()  # otherwise each pass adds to the last one's gradients
    dtype = precisions[name]
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        loss = cross_entropy(nets[layout](inputs[layout]), y)
    loss.backward()
    if device.type == "cuda":
        torch.cuda.synchronize()  # wait for the GPU


times = {(name, layout): [] for name in precisions for layout in nets}
for turn in range(turns + 1):  # the first one warms up
    for (name, layout), seconds_each in times.items():
        begin = time.perf_counter()
        passes(name, layout)
        if turn:
            seconds_each.append(time.perf_counter() - begin)

rows = []
for (name, layout), seconds_each in times.items():
    ips = timed / np.median(seconds_each)
    faster = workshop.ratio(np.divide(times["float32", layout], seconds_each))
    mfu = ips * network.train_flops(pixels) / peaks[name]
    rows.append([f"{name}, {layout}", ips, str(faster) if name != "float32" else "1", f"{mfu:.0%}"])
columns = ["", "images/s: median", "over float32, per turn", "MFU"]
workshop.table(rows, columns, f"Training, batch {timed}, {pixels} px, turns: {turns}")
gain = workshop.ratio(np.divide(times["float32", "channels last"], times[half, "channels last"]))
session.note("speedup", str(gain), "", f"speed of {half} over float32, channels last")
session.expect(dict.fromkeys(["h100.float16.ips", "h100.bfloat16.ips"]))

# %% [markdown]
# If the network gains less than the peaks differ, layers that gain less take a larger share, and the MFU falls. On the recorded H100, `bfloat16` is slower than `float16`: PyTorch uses slower batch-norm kernels for it.
#
# ## Trace both precisions
#
# The next cell traces both passes in both precisions, channels last (*pointwise*: ReLU and addition). **Predict:** which kind gains most?

# %%
from torch import profiler


def traced(name):
    """Trace both passes after a warm-up; return the mean ms of each kind of layer."""
    file = session.folder / f"{name}.json"
    schedule = profiler.schedule(wait=0, warmup=1, active=session.traces, repeat=1)
    with profiler.profile(schedule=schedule) as trace:
        for _ in range(1 + session.traces):
            passes(name, "channels last")
            trace.step()
    trace.export_chrome_trace(str(file))
    return workshop.trace(file, show=False)


kinds = {"convolution": ["convolution"], "normalisation": ["batch norm"],
         "pointwise": ["ReLU", "addition"]}  # fmt: skip
traces = {name: traced(name) for name in ("float32", half)}
rows = []
for kind, layers in kinds.items():
    row = [kind]
    for name, measured in traces.items():
        counted = nb06.least_ms(network, pixels, timed, name, peaks[name], bandwidth)
        row += [sum(counted[layer] for layer in layers), measured[kind]]
    rows.append([*row, row[1] / row[3], row[2] / row[4]])
columns = ["ms", "float32: counted", "measured", f"{half}: counted", "measured"]
columns += ["gain: counted", "measured"]
workshop.table(rows, columns, f"Both passes, batch {timed}, {pixels} px")

# %% [markdown]
# On a CPU with instructions for `bfloat16`, convolution gains most, but less than counted. If a kind takes less time than counted, its arrays are in the cache: less traffic gains little. And on a GPU? The next cell draws the same count for a recorded H100. The one after it counts for a V100: the question at the start. **Predict:** what takes the longest on the H100?

# %%
resnet50 = resnet.resnet(50)
recorded = {key: result.value for key, result in session.results.items()}
peak, traffic = 1e12 * recorded["h100.fp16"], 1e9 * recorded["h100.bandwidth"]
counted = nb06.least_ms(resnet50, 224, 256, "float16", peak, traffic)
kinds = ["convolution", "batch norm", "ReLU", "addition"]
measured = [recorded[f"h100.{kind}.ms"] for kind in kinds]
step_ms = 1000 * 256 / recorded["h100.float16.ips"]

fig, axes = plt.subplots()
axes.bar(kinds, measured, color=workshop.FINDING, label="measured")
axes.bar(kinds, [counted[kind] for kind in kinds], fill=False, ls="--", label="counted")
finding = f"batch norm, ReLU and addition take {sum(measured[1:]):.1f} of {step_ms:.1f} ms"
axes.set(title=f"H100: {finding}", ylabel="ms per step, float16")
axes.legend()
workshop.figure(fig, alt="Bars of four kinds of layers; a dashed outline shows the counted time.")
print("Channels last, batch 256, 224 px,", session.results["h100.convolution.ms"].provenance)

# %%
for what, peak, dtype in [
    ("FP32", "v100.fp32", "float32"),
    ("faster arithmetic alone", "v100.fp16", "float32"),
    ("half the traffic, too", "v100.fp16", "float16"),
]:
    rate, traffic = 1e12 * recorded[peak], 1e9 * recorded["v100.bandwidth"]
    counted = nb06.least_ms(resnet50, 224, 96, dtype, rate, traffic)
    print(f"V100, {what}: {1000 * 96 / sum(counted.values()):,.0f} images/s by the count")

# %% [markdown]
# On the H100, batch norm takes as long as convolution, and over half of the step hardly computes. These layers take about as long as counted (if less, they are faster than the copy).
#
# So where does the V100's 3.6 come from? By the count, 2.1 from faster arithmetic and 1.8 from half the traffic, together 3.8. The published FP16 run also has a larger batch, channels last and fused layers, which the count leaves out.
#
# ### Move fewer bytes
#
# [`torch.compile`](../docs/troubleshooting.md#torchcompile-is-slow-it-compiles-again-in-every-step) **fuses** layers, so that no intermediate result goes to memory. A residual block ends with a batch norm, an addition of the shortcut and a ReLU, which compute almost nothing.
#
# **Your turn:** count how often they read and write an array, one by one and fused. **Predict** both gains from that: of fusing, and of 16 bits. (Compiling takes up to half a minute. The measurement is untested on a GPU.)


# %%
def block_end(fused):
    """Return how often the block's end reads an array of this size, and how often it writes one.

    `fused` is False for one layer after the other: addition and ReLU then change the result of the
    batch norm in place, which saves memory, not traffic. It is True for as few passes as possible.
    """
    return None  # your code


block_end = nb06.check("block_end", block_end)

# %%
norm = torch.nn.BatchNorm2d(64).to(device).requires_grad_(False)


def tail(x, shortcut):
    """Return the output of a residual block."""
    return norm(x).add_(shortcut).relu_()  # in place, as in the network


pair = torch.randn(2, session.tail, 64, 56, 56, device=device)
pairs = {"float32": pair, half: pair.to(precisions[half])}
versions = {"one by one": tail}
if session.compile:
    try:
        fused = torch.compile(tail)
        fused(*pair)
        versions["fused"] = fused
    except RuntimeError as error:  # such as a missing C++ compiler
        print("torch.compile does not work here:", str(error).splitlines()[0])

rows = []
for version, function in versions.items():
    accesses = sum(block_end(version == "fused"))
    for name, pair in pairs.items():
        ms = 1000 * seconds("function(*pair)", function=function, pair=pair)
        rows.append([f"{name}, {version}", accesses * nb06.BYTES[name], ms])
_, moved, slow = rows[0]
rows = [[*row, moved / row[1], slow / row[2]] for row in rows]
columns = ["", "bytes per element", "ms", "gain: counted", "measured"]
workshop.table(rows, columns, f"The end of a block, {session.tail} images")
session.expect({"h100.compiled.ips": None})
del pair, pairs

# %% [markdown]
# Where the gains differ, time is not spent on traffic alone. A CPU's batch norm reads its input three times and, in `float32`, adds number by number, so 16 bits can gain more than 2 ([source](https://github.com/pytorch/pytorch/blob/02793981e2a23214e0a159b7eef8685ea5738310/aten/src/ATen/native/cpu/batch_norm_kernel.cpp)). In the whole network, compiling gained about 1.2 (two H100s, on two days).
#
# ## Your turn: one more rung
#
# Add mixed precision to `runs/train.py` in six to eight lines, before you open the solution: `float16` with a `GradScaler` on a GPU; on a CPU, `bfloat16` with `GradScaler(enabled=False)`. DDP's `backward()` averages the gradients. Horovod must exchange them *before* `scaler.step` tests them, so that all ranks skip a step or none does: `optimizer.synchronize()` comes first, and `scaler.step(optimizer)` stays inside `skip_synchronize()`. Then run the cell again: it tries the exchange, as in notebook 05; the race below also reads which lines are missing.

# %%
workshop.ladder.changes("4_amp")
own = session.runs / "train.py"
if not dali or "autocast" not in own.read_text():
    print("Your script is not tried: this needs DALI, and autocast in your runs/train.py.")
else:
    small = ["--image-size", 32, "--batch-size", 16, "--steps", 3, "--warm-up", 0]  # all classes
    print(workshop.try_script(
        own, "--data", workshop.ladder.shards(), *small,
        ranks=2, steps=3, single=False, reseed=False, env={"CUDA_VISIBLE_DEVICES": ""},
    ))  # fmt: skip

# %% [markdown]
# How much faster will the script become? Only forward and backward gain, by the factor in the NCHW rows (on a GPU, over TF32, which the previous rung uses); the first run and its trace gave their share. **Your turn:** write the formula, Amdahl's law: if 80% of a step become 4 times as fast, the step becomes 2.5 times as fast. The race below tests it.


# %%
def script_gain(share, faster):
    """Return a step's speed-up if a `share` of it (0 to 1) becomes `faster` times as fast.

    `faster` is a factor: 2 halves that share's time. The rest takes as long as before.
    """
    return None  # your code


script_gain = nb06.check("script_gain", script_gain)

# %%
before = "tf32" if "tf32" in precisions else "float32"
faster = workshop.ratio(np.divide(times[before, "NCHW"], times[half, "NCHW"]))
guess = script_gain(both_passes, faster.median)
low, high = script_gain(both_passes, faster.low), script_gain(both_passes, faster.high)
print(f"Speed of both passes, {both_passes:.0%} of a step, in {half}: {faster}")
print(f"Predicted speed of 4_amp over 3_dali: {guess:.2f} ({low:.2f} to {high:.2f})")
workshop.ladder.predict("4_amp", guess)
torch.cuda.empty_cache()  # the scripts need the memory
raced = workshop.ladder.race(
    ["3_dali", "4_amp"], turns=session.rung_turns, ranks=ranks, own="4_amp", **sizes,
    warm_up=1, steps=1 if emulated else session.steps,
)  # fmt: skip
if raced and raced["4_amp"]["paired"]:
    print("Speed of 4_amp over 3_dali:", workshop.ratio(raced["4_amp"]["gains"]))
else:
    print("Not tested: this needs DALI, memory for both scripts, and trace.step() in yours.")
workshop.ladder.figure("4_amp")

# %% [markdown]
# If the two ranges overlap, nothing refutes the formula. If not, the passes gained more or less than alone (on a GPU: in a larger batch), or the rest changed. The square is a recorded H100: from 1,735 to 2,530 images/s, not 4,833 as above (NCHW, batch 128, JPEG files, waiting between a step's parts).
#
# ## The same accuracy?
#
# NVIDIA published one run each; for the road signs, ten seeds per precision were recorded:

# %%
for n in (1, 4, 8):
    fp16, fp32 = (session.results[f"published.v100.{n}gpu.{p}.top1"] for p in ("fp16", "fp32"))
    print(f"FP16 {fp16.value:.2f}%, FP32 {fp32.value:.2f}%: {fp16.provenance}")
recorded = [f"roadsigns.resnet50.{dtype}.top1" for dtype in ("bfloat16", "float32")]
session.expect(dict.fromkeys(recorded))
short, full = (session.results[key].each for key in recorded)  # top-1 of each seed
gap = np.mean(full) - np.mean(short)
error = np.sqrt(np.var(full, ddof=1) / len(full) + np.var(short, ddof=1) / len(short))
print(f"The means differ by {gap:.2f} points, or {gap / error:.1f} standard errors.")

# %% [markdown]
# On ImageNet, FP16 is below FP32 all three times, by 0.04 to 0.18 points, and FP32 varies as much between GPU counts. On the road signs, ten seeds do not settle whether `bfloat16` costs accuracy.
#
# ## Key takeaways
#
# - Exponent bits set the range, mantissa bits the precision: `float16` lacks range, `bfloat16` precision.
# - A loss scale moves gradients into `float16`'s range. A fixed scale can fail silently.
# - Many updates are too small for 16 bits, so the weights stay in `float32`.
# - Arithmetic-bound layers can gain most; by the count, memory-bound ones gain a factor of 2. Fusing saves traffic, too.
#
# **Try it:** in `train_scaled`, round the weights to `bfloat16` after each step, and predict the loss of the last run. (On an EPYC, it was 2.06 instead of 1.91.)
#
# The next notebook uses a trained network: how long is one prediction?
