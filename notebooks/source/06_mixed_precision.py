# %% [markdown]
# # 06 · Mixed precision
#
# After this notebook, you can explain what 16-bit formats gain and lose, implement loss scaling, and train with `autocast` and `GradScaler`. By counting operations and bytes, you can predict which layers become faster, and check the prediction in a trace.
#
# **Time:** 100 minutes · **Needs:** DALI, and the script from notebook 05 (supplied if missing), which you extend · **On a CPU:** about 2 minutes to run

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
from torch import profiler
from torch.nn.functional import cross_entropy
from torch.utils import benchmark

import workshop
from rn50.allocator import keep_memory
from rn50lib import resnet
from rn50lib.data.source import open_source
from rn50lib.torch.model import ResNet
from workshop.lessons import nb06

session = workshop.start("06", profile)
keep_memory()  # as `rn50` does: new arrays then cost no page faults
turns = turns or session.turns
ranks = min(8, len(session.machine.gpus)) or 1  # of the ladder's runs
workers = max(1, min(12, session.machine.cores // ranks))  # per rank
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
# The next cell traces your DALI script, or the finished one, in `float32` (recent GPUs: TF32). **Predict** convolution's share: replace `None` in `guess = None`, here and below.

# %%
guess = None  # percent of a step


def predicted(guess):
    return f"you predicted {'nothing' if guess is None else guess}"


file = session.folder / "float32.json.gz"
sizes = {"image_size": pixels, "batch_size": batch, "workers": workers}
brief = {**sizes, "warm_up": 2 * workers + 1, "steps": 4, "trace": file}  # skip prepared batches
dali = workshop.ladder.climb("3_dali", ranks=ranks, **brief)
report = dali or workshop.ladder.climb("1_single", **brief)
trace_ms = workshop.trace(file)
shares = {kind: ms / sum(trace_ms.values()) for kind, ms in trace_ms.items()}
step_ms = sum(report.get(f"{part}_ms", 0) for part in ("input", "compute", "communication"))
both_passes = max(0.0, report["compute_ms"] / step_ms - shares["optimizer"])
print(f"Input takes {report['input_ms'] / step_ms:.1%} of a step, convolution", end=" ")
print(f"{shares['convolution']:.0%} ({predicted(guess)}),", end=" ")
print(f"both passes (forward and backward) {both_passes:.0%}.")

# %% [markdown]
# Once the input keeps up, computation dominates: arithmetic, mostly in convolutions, and memory traffic, mostly elsewhere. 16-bit numbers need half the memory and traffic of `float32`, and suitable hardware computes with them several times as fast.
#
# [NVIDIA's ResNet-50 for MXNet](https://github.com/NVIDIA/DeepLearningExamples/tree/a8e1d1cd/MxNet/Classification/RN50v1.5) processes 400.2 training images per second on one V100 in FP32 and 1,442.6 in FP16. Method: [Mixed Precision Training](https://arxiv.org/abs/1710.03740) (Micikevicius et al., 2017). Where does the factor of 3.6 come from, and what can go wrong?
#
# On a CPU, this notebook times `bfloat16`. If the processor has no instructions for it (see the first table), convolutions become slower.
#
# ## What each format can represent
#
# A floating-point number has a sign, an **exponent**, which sets its magnitude, and a **mantissa**, which divides the range between two powers of two into equal steps. The next cell shows 0.1 in three formats, and what 70,000, 0.00000001 and 1.001 become in each.

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
# `bfloat16` is a `float32` rounded to its first 16 bits: nearly the same range, but only two or three decimal digits. `float16` is eight times as precise, but its range is only 6e-8 to 65,504.
#
# ## Gradients that underflow
#
# Gradients are small: the network averages over pixels and the loss over images. To see real ones, the next cell trains a small network on road signs in `float32`. Then hooks collect the *gradients of the outputs* of its convolutions and its last layer. **Predict:** what percentage of the nonzero ones underflows to zero in `float16`?

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
    """Call `use` with the gradient of the output of each convolution and linear layer."""

    def register(layer, inputs, output):
        output.register_hook(use)

    for layer in model.modules():
        if isinstance(layer, torch.nn.Conv2d | torch.nn.Linear):
            layer.register_forward_hook(register)


guess = None  # percent
flowing = []
on_gradients(model, lambda gradient: flowing.append(gradient.flatten().cpu()))
optimizer.zero_grad()
cross_entropy(model(images[:208]), labels[:208]).backward()  # 208: NVIDIA's batch in FP16
gradients = torch.cat(flowing)
gradients = gradients[gradients != 0]
vanish = 100 * (gradients.half() == 0).float().mean().item()
vanish_bfloat16 = 100 * (gradients.bfloat16() == 0).float().mean().item()

fig, axes = plt.subplots()
powers = gradients.abs().log2().numpy()
axes.hist(powers, bins=range(-45, 24), density=True, color=workshop.FINDING)
regions = [(-34, -25, "0.8", "zero in float16"), (-25, -14, "0.9", "fewer bits"),
           (-14, 16, "1.0", "full precision"), (16, 22, "0.8", "infinite")]  # fmt: skip
for left, right, grey, name in regions:
    axes.axvspan(left, right, color=grey, zorder=0)
    axes.text((left + right) / 2, 0.12, name, ha="center")
finding = f"{vanish:.1f}% underflow in float16, {vanish_bfloat16:.2f}% in bfloat16"
axes.set(title=f"Gradients of outputs: {finding}", ylabel="share of gradients")
axes.set(xlabel="magnitude, power of two", xlim=(-34, 22), ylim=(0, 0.13))
workshop.figure(fig, alt="Histogram of the magnitudes of gradients, in powers of two.")
print(f"{vanish:.1f}%; {predicted(guess)}")
weights = torch.cat([weight.grad.flatten() for weight in model.parameters()])
print(f"Largest gradient of an output: {gradients.abs().max():.2g}", end=", ")
print(f"of a weight: {weights.abs().max():.2g}")

# %% [markdown]
# Most gradients are below 2^-14, where `float16` keeps fewer bits or rounds to zero. The fix: **multiply the loss** by a large number before the backward pass. By the chain rule, every gradient grows by the same factor, and the histogram moves to the right. Before the update, divide the gradients by it in `float32`.
#
# *Gradients of weights* add up contributions from all pixels and images, so they can be much larger (last line above). **Predict:** at which loss scale, 2^n, do they first overflow?

# %%
guess = None  # the power n
for power in (0, 4, 8, 12, *range(16, 25)):
    zero = 100 * ((gradients * 2.0**power).half() == 0).float().mean().item()
    infinite = (weights * 2.0**power).half().isinf().sum().item()
    print(f"loss x 2^{power:<2}: {zero:6.2f}% of the outputs' gradients become zero,", end=" ")
    print(f"{infinite} of the weights' {len(weights):,} infinite")
first = next(p for p in range(99) if (weights * 2.0**p).half().isinf().any())
print(f"A weight's gradient first overflows at 2^{first}; {predicted(guess)}")

# %% [markdown]
# ## Implement loss scaling yourself
#
# A good scale is as large as possible without overflow, and it changes during training. Find it by trial and error:
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
# The next cell trains with it. A larger network or batch makes gradients smaller. To imitate that, the cell divides gradients by 2^16 before they are rounded to `float16`, and undoes that before the update. **Predict** which of four `float16` runs learns best, which makes no update, and which ends in NaN: your rule, starting at 2^36 (in effect 2^20, too high); no scale; and a fixed scale of 2^36, with and without the overflow check.


# %%
def train_scaled(scale, adapt=False, test=True, dtype=torch.float16):
    """Train with tiny rounded gradients; return the losses, and each step's scale and update."""
    model, optimizer = fresh()
    small = 2.0**-16
    on_gradients(model, lambda gradient: gradient.to(dtype).float())
    losses, scales, updated, good = [], [], [], 0
    for x, y in batches * rounds:
        loss = cross_entropy(model(x), y)
        optimizer.zero_grad()
        (loss * small * scale).backward()
        for weight in model.parameters():
            weight.grad = weight.grad.to(dtype).float() / (small * scale)
        finite = all(weight.grad.isfinite().all() for weight in model.parameters())
        updated.append(finite or not test)
        if updated[-1]:
            optimizer.step()
        losses.append(loss.item())
        scales.append(scale)
        if adapt:
            scale, good = next_scale(scale, good, finite, wait=10)  # 2,000 is too long here
    return losses, scales, updated


rounds = 3
guess = {"learns best": None, "makes no update": None, "ends in NaN": None}  # names of runs
runs = {
    "your rule": train_scaled(2.0**36, adapt=True),
    "no scale": train_scaled(1.0),
    "always 2^36": train_scaled(2.0**36),
    "always 2^36, no check": train_scaled(2.0**36, test=False),
    "no scale, bfloat16": train_scaled(1.0, dtype=torch.bfloat16),
    "not rounded": train_scaled(1.0, dtype=torch.float32),
}

print(f"Mean loss of the last of {rounds} passes over the images")
for name, (losses, _, updated) in runs.items():
    print(f"{name:22}{np.mean(losses[-len(batches) :]):5.2f}, {sum(updated)} updates")
print("You predicted:", guess)
_, scales, _ = runs["your rule"]
print("Your rule's scale of the first steps: 2 to the", *np.log2(scales[:30]).astype(int))

# %% [markdown]
# Your rule skips steps until the scale is low enough, and one more each time doubling goes too far. Dividing by 2^16 moves nearly all of the histogram below `float16`'s smallest number. Without a scale, all gradients except the last layer's come from the few remaining values and point in the wrong direction, so the loss falls less. Skipped updates can leave your rule behind the last two runs. `bfloat16` has the range, so it needs no scale.
#
# The third run **fails silently**: no update, no error. The fourth, without the check, writes [infinities or NaN](../docs/troubleshooting.md#nan-in-float16-which-layer-and-what-the-loss-scale-does) into the weights.
#
# ## Master weights
#
# Updates can be lost, too: an update smaller than half the gap between neighbouring representable numbers changes nothing. The next cell applies one update to the trained network, at its learning rate of 0.01 and at lower ones, as at the end of a schedule. **Predict:** what percentage of the weights does not change in `bfloat16` at 0.01?

# %%
guess = None  # percent
stored = torch.cat([weight.detach().flatten() for weight in model.parameters()])
velocity = torch.cat([optimizer.state[w]["momentum_buffer"].flatten() for w in model.parameters()])
for rate in (1e-2, 1e-3, 1e-4):
    for dtype in formats:
        rounded = stored.to(dtype)
        unchanged = (rounded.float() - rate * velocity).to(dtype) == rounded
        share = 100 * unchanged[velocity != 0].float().mean().item()
        print(f"rate {rate:<6g} {str(dtype):15} {share:5.1f}% do not change")
print("At 0.01 in bfloat16,", predicted(guess))

# %% [markdown]
# Mixed precision therefore keeps **master weights** in `float32`: updates change these, and each step computes with a 16-bit copy.
#
# ## `autocast` and `GradScaler`
#
# `torch.autocast` runs convolutions and matrix products in 16 bits and sensitive operations such as the loss in `float32`. `GradScaler` applies your rule, starting at 2^16 with a wait of 2,000 steps.
#
# **Your turn:** write a step with both. `scaler.scale(loss)` returns the scaled loss; `scaler.step(optimizer)` unscales the gradients and, if they are finite, updates the weights; `scaler.update()` changes the scale.


# %%
def scaled_step(model, optimizer, scaler, x, y):
    """Train one step on a batch: compute in float16, scale the loss; return the loss.

    `torch.autocast(x.device.type, torch.float16)` is a context manager for the forward pass,
    which includes the loss: cross_entropy(model(x), y).
    """
    return None  # your code


scaled_step = nb06.check("scaled_step", scaled_step, next_scale, device)

# %% [markdown]
# The next cell trains a small dense network with your step and two values of `wait`, starting at 2^24. **Predict:** how many steps does each one skip?

# %%
guess = {3: None, 2000: None}  # your numbers
for wait in guess:
    torch.manual_seed(seed)
    scaler = torch.amp.GradScaler(device.type, init_scale=2.0**24, growth_interval=wait)
    hidden, outputs = torch.nn.Linear(images[0].numel(), 64), torch.nn.Linear(64, 12)
    dense = torch.nn.Sequential(torch.nn.Flatten(), hidden, torch.nn.ReLU(), outputs).to(device)
    sgd = torch.optim.SGD(dense.parameters(), lr=0.01, momentum=0.9)
    losses, scales = [], []
    for x, y in batches:
        scales.append(scaler.get_scale())
        losses.append(scaled_step(dense, sgd, scaler, x, y))
    print(f"wait {wait}, scale of each step: 2 to the", *np.log2(scales).astype(int))
    skipped = np.sum(np.diff([*scales, scaler.get_scale()]) < 0)
    print(f"{skipped} of {len(scales)} steps skipped ({predicted(guess[wait])});", end=" ")
    print(f"loss {losses[0]:.2f}, then {losses[-1]:.2f}")

# %% [markdown]
# The scale falls until a step is good, and again when gradients grow. With a wait of 2,000, no other steps are skipped. A wait of 3 also loses steps to doubling: at most one in four.
#
# ## V100: 8 times the arithmetic, the same bandwidth. Why only 3.6?
#
# A **Tensor Core** multiplies small matrices of 16-bit numbers and accumulates in `float32`, in one instruction. On a CPU, AMX does the same. GPUs since Ampere have one more precision, [**TF32**](../docs/troubleshooting.md#results-in-float32-differ-between-two-gpus-tf32): numbers are stored as `float32`, but Tensor Cores ignore the last 13 mantissa bits (PyTorch's default for convolutions).
#
# A V100's peaks are 125 (FP16) and 15.7 (FP32) TFLOP/s. But a layer is limited by arithmetic *or* by memory traffic. A convolution can reuse each value it loads hundreds of times; a ReLU uses it once. The next cell measures both limits of this device: the rate of a large matrix product, and the bandwidth of a copy.


# %%
def seconds(statement, least=0.3, **names):
    timer = benchmark.Timer(statement, globals=names, num_threads=torch.get_num_threads())
    return min(timer.blocked_autorange(min_run_time=least).times)


precisions = {"float32": torch.float32, half: getattr(torch, half)}
if device.type == "cuda" and torch.cuda.get_device_capability() >= (8, 0):
    precisions |= {"bfloat16": torch.bfloat16, "tf32": torch.float32}
before = "tf32" if "tf32" in precisions else "float32"  # the precision of your script


def set_tf32(name):
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = name == "tf32"


peaks, bandwidth, side = dict.fromkeys(precisions, 0.0), 0.0, session.side
array, copy = torch.zeros(2, 2**27 if device.type == "cuda" else 2**24, device=device)
for _ in range(5):  # in turns, so that a busy moment affects only some rounds
    for name, dtype in precisions.items():
        set_tf32(name)
        a = torch.randn(side, side, device=device).to(dtype)
        peaks[name] = max(peaks[name], 2 * side**3 / seconds("a @ a", 0.2, a=a))
    took = seconds("copy.copy_(array)", 0.2, array=array, copy=copy)
    bandwidth = max(bandwidth, 2 * array.nbytes / took)
if emulated:  # bfloat16 is then computed in float32
    peaks["bfloat16"] = max(peaks.values())
for name, peak in peaks.items():
    print(f"{name:8} {peak / 1e9:10,.1f} GFLOP/s, the limit", end=" ")
    print(f"for layers with more than {peak / bandwidth:.0f} FLOP per byte")
print(f"memory   {bandwidth / 1e9:10,.1f} GB/s")

# %% [markdown]
# A layer takes at least *operations / peak rate* and at least *bytes / bandwidth*. The larger of the two is its bound in the **roofline** model.
#
# **Your turn:** count operations and bytes of two layers of ResNet-50 in the forward pass. A multiplication and an addition are two operations; multiplications by padding count, too.
#
# - A convolution, 3 × 3, from 64 to 64 channels, on 56 × 56 pixels. It reads its input and its weights and writes its output, each once.
# - The batch norm after it, which normalises with the mean and the variance of the batch. How many times, *at least*, must it read its input to compute its output? Count 5 operations per number. Leave out its parameters.


# %%
def convolution(images, size):
    """Return (operations, bytes) of the convolution; a number has `size` bytes."""
    return None  # your code


def batch_norm(images, size):
    """Return (operations, bytes) of the batch norm; a number has `size` bytes."""
    return None  # your code


convolution = nb06.check("convolution", convolution)
batch_norm = nb06.check("batch_norm", batch_norm)

# %%
many = timed if emulated else session.tail  # images
layers = {"convolution": (convolution, torch.nn.Conv2d(64, 64, 3, padding=1, bias=False)),
          "batch norm": (batch_norm, torch.nn.BatchNorm2d(64))}  # fmt: skip
rows = []
for name, (count, layer) in layers.items():
    row = [name]
    for dtype in (before, half):
        set_tf32(dtype)
        operations, moved = count(many, nb06.BYTES[dtype])
        row.append(1000 * max(operations / peaks[dtype], moved / bandwidth))
        x = torch.randn(many, 64, 56, 56, device=device).to(precisions[dtype])
        x = x.to(memory_format=torch.channels_last)
        with torch.no_grad(), torch.autocast(device.type, precisions[half], enabled=dtype == half):
            row.append(1000 * seconds("layer(x)", layer=layer.to(device), x=x))
    rows.append([*row, row[1] / row[3], row[2] / row[4]])
columns = ["", f"{before} (ms): your count", "measured", f"{half} (ms): your count", "measured"]
columns += ["gain: your count", "measured"]
workshop.table(rows, columns, f"Forward pass of two layers, {many} images")
for name, *ms, _, _ in rows:
    print(f"{name}: {ms[1] / ms[0]:.1f} × the count in {before}, {ms[3] / ms[2]:.1f} × in {half}")

# %% [markdown]
# *Gain* is the speed-up from 16 bits. A layer that gains more than counted was further from its bound in 32 bits; one that gains less, in 16. (At slightly under 1 × the count, a layer beats the matrix product or copy; far under, measure the limits again.)
#
# ## Compare all precisions
#
# The next cell times both passes of the whole network in all precisions and two memory layouts: NCHW, as in your script, and [**channels last**](../docs/troubleshooting.md#channels_last-has-no-effect-a-layer-loses-it). **MFU** (model FLOP utilisation) is the network's FLOP/s divided by the peak, here the measured one. **Predict** the fastest row.

# %%
guess = None  # such as "float32, NCHW"
network = resnet.resnet(session.layers)
nets = {"NCHW": ResNet(network).to(device),
        "channels last": ResNet(network).to(device, memory_format=torch.channels_last)}  # fmt: skip
x = torch.randn(timed, 3, pixels, pixels, device=device)
inputs = {"NCHW": x, "channels last": x.to(memory_format=torch.channels_last)}
targets = torch.zeros(timed, dtype=torch.long, device=device)


def passes(name, layout):
    """Compute a network's gradients in a precision and a layout."""
    set_tf32(name)
    nets[layout].zero_grad()  # otherwise each pass adds to the last one's gradients
    dtype = precisions[name]
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        loss = cross_entropy(nets[layout](inputs[layout]), targets)
    loss.backward()
    if device.type == "cuda":
        torch.cuda.synchronize()  # wait for the GPU


times = {(name, layout): [] for name in precisions for layout in nets}
for turn in range(turns + 1):  # the first one warms up
    for (name, layout), seconds_each in times.items():
        took = []
        for _ in range(2):
            begin = time.perf_counter()
            passes(name, layout)
            took.append(time.perf_counter() - begin)
        if turn:
            seconds_each.append(min(took))  # a disturbance only adds time

rows, speeds = [], {}
for (name, layout), seconds_each in times.items():
    ips = speeds[name] = timed / np.median(seconds_each)  # channels last overwrites NCHW
    mfu = ips * network.train_flops(pixels) / peaks[name]
    row = [f"{name}, {layout}", ips]
    for other in (before, layout), (name, "NCHW"):
        over = workshop.ratio(np.divide(times[other], seconds_each))
        row.append("–" if other == (name, layout) else str(over))
    rows.append([*row, f"{mfu:.0%}"])
columns = ["", "images/s: median", f"over {before}, per turn", "over NCHW", "MFU"]
workshop.table(rows, columns, f"Batch {timed}, {pixels} px, turns: {turns}; {predicted(guess)}")
gain = workshop.ratio(np.divide(times[before, "channels last"], times[half, "channels last"]))
session.note("speedup", str(gain), "", f"speed of {half} over {before}, channels last")
same = (timed, pixels) == (256, 224)  # as recorded
yours = speeds if same else {}
shown = ("float16", "bfloat16", "compiled")
session.expect({f"h100.{name}.ips": yours.get(name) for name in shown})

# %% [markdown]
# Use the ratios per turn to compare rows. If the MFU is lower in 16 bits, the other layers gain less than the peak does, or the convolutions reach less of it. On a GPU, cuDNN often converts NCHW around a convolution, because its kernels for Tensor Cores want channels last; notebook 08 adds that layout to your script. On the recorded H100, whose steps include the update, `bfloat16` was slower than `float16`, because of its batch-norm kernels.
#
# ## Trace two precisions
#
# Next, trace both passes, channels last, alternating between your script's precision and 16 bits. (*Pointwise* is ReLU and addition.) The count now includes all layers and the backward pass, in which a convolution does twice the work.
#
# **Your turn:** count the other layers' reads and writes. Then, in the cell that traces, **predict** the gain of each kind.


# %%
def accesses(layer):
    """Return how often both passes read or write an array of the size of the layer's output.

    `layer` is "batch norm", "ReLU" (in place) or "addition". Backward, a batch norm needs two sums
    over its input and its output's gradient before it can combine them; a ReLU needs its output,
    too; and where a shortcut branches off, the gradients of both branches are added.
    """
    return None  # your code


accesses = nb06.check("accesses", accesses)

# %%
guess = {"convolution": None, "normalisation": None, "pointwise": None}  # such as 1.5


def traced(name):
    """Trace both passes once, after a warm-up; return the ms of each kind of layer."""
    file = session.folder / f"{name}.json"
    schedule = profiler.schedule(wait=0, warmup=1, active=1, repeat=1)
    with profiler.profile(schedule=schedule) as trace:
        for _ in range(2):
            passes(name, "channels last")
            trace.step()
    trace.export_chrome_trace(str(file))
    ms = workshop.trace(file, show=False)
    return ms | {"both passes": sum(ms.values())}


kinds = {"convolution": ["convolution"], "normalisation": ["batch norm"],
         "pointwise": ["ReLU", "addition"]}  # fmt: skip
traces = {name: [] for name in (before, half)}
for _ in range(session.traces):
    for name, its_turns in traces.items():
        its_turns.append(traced(name))
counted = {
    name: nb06.least_ms(network, pixels, timed, name, peaks[name], bandwidth, accesses)
    for name in traces
}
rows = []
for kind, layers in {**kinds, "both passes": [*counted[half]]}.items():
    low = [sum(counted[name][layer] for layer in layers) for name in traces]
    ms = [[turn[kind] for turn in its_turns] for its_turns in traces.values()]
    gain = low[0] / low[1], str(workshop.ratio(np.divide(*ms)))
    rows.append([kind, low[0], min(ms[0]), low[1], min(ms[1]), guess.get(kind) or "–", *gain])
columns = ["", f"{before} (ms): counted", "fastest turn", f"{half} (ms): counted", "fastest turn"]
columns += ["gain: yours", "counted", "measured, per turn"]
workshop.table(rows, columns, f"Batch {timed}, {pixels} px")
for name, its_turns in traces.items():
    if min(turn["both passes"] for turn in its_turns) > 2000 * timed / speeds[name]:
        print(f"{name} took twice as long as in the last table: the machine is busy. Run it again.")

# %% [markdown]
# The count assumes arithmetic as fast as a large matrix product, and memory as fast as a copy. Compare it with the fastest turns. A kind that takes much longer reaches neither limit. If *convolution* takes far less, the peak was measured too low. If another kind does, its traffic is overestimated: on a CPU, its arrays stay in the cache, so halving the traffic gains little; on a GPU, kernels that mostly read can be faster than a copy.
#
# Next, compare with a recorded H100; then apply your count to the V100: **predict** the gain from 8 times the arithmetic alone, and from half the traffic alone.

# %%
resnet50 = resnet.resnet(50)
recorded = {key: result.value for key, result in session.results.items()}
peak, traffic = 1e12 * recorded["h100.fp16"], 1e9 * recorded["h100.bandwidth"]
counted = nb06.least_ms(resnet50, 224, 256, "float16", peak, traffic, accesses)
least = [sum(counted[layer] for layer in layers) for layers in kinds.values()]
measured = [sum(recorded[f"h100.{layer}.ms"] for layer in layers) for layers in kinds.values()]
step_ms = 1000 * 256 / recorded["h100.float16.ips"]

fig, axes = plt.subplots()
axes.bar([*kinds], measured, color=workshop.FINDING, label="H100, recorded")
axes.bar([*kinds], least, fill=False, ls="--", label="counted for it")
if same:
    own_ms = [min(turn[kind] for turn in traces[half]) for kind in kinds]
    axes.plot([*kinds], own_ms, "kD", label="your GPU")
finding = f"normalisation and pointwise take {sum(measured[1:]):.1f} of about {step_ms:.0f} ms"
axes.set(title=f"H100: {finding}", ylabel="ms per step, float16")
axes.legend()
workshop.figure(fig, alt="Bars of three kinds of layers; a dashed outline shows the counted time.")
print("Channels last, batch 256, 224 px,", session.results["h100.convolution.ms"].provenance)

# %%
guess = None  # (arithmetic, traffic)
totals = []  # ms
for what, peak, dtype in [
    ("FP32", "v100.fp32", "float32"),
    ("faster arithmetic alone", "v100.fp16", "float32"),
    ("half the traffic alone", "v100.fp32", "float16"),
    ("both", "v100.fp16", "float16"),
]:
    rate, traffic = 1e12 * recorded[peak], 1e9 * recorded["v100.bandwidth"]
    counted = nb06.least_ms(resnet50, 224, 96, dtype, rate, traffic, accesses)
    totals.append(sum(counted.values()))
    ips = 1000 * 96 / totals[-1]
    print(f"V100, {what}: {ips:,.0f} images/s by the count, × {totals[0] / totals[-1]:.2f}")
print(f"For the two gains, {predicted(guess)}.")
print(f"Limits of the V100: {session.results['v100.fp16'].provenance}")

# %% [markdown]
# On the H100, layers that do almost no arithmetic take more than half of the step, about as long as counted.
#
# So where does the V100's 3.6 come from? Faster arithmetic alone gives 2.1, half the traffic alone 1.2, both together 3.75: once arithmetic is fast, traffic is the limit. (This is so close to 3.6 partly by luck: real layers do not reach data-sheet limits, and the published FP16 run fuses layers.)
#
# ### Move fewer bytes
#
# [`torch.compile`](../docs/troubleshooting.md#torchcompile-is-slow-it-compiles-again-in-every-step) **fuses** layers, so that no intermediate result goes to memory. A residual block ends with a batch norm, an addition of the shortcut and a ReLU.
#
# **Your turn:** count how often they read and write an array, first one by one, then fused. Your count predicts two gains: from fusing, and from 16 bits.


# %%
def block_end(fused):
    """Return how many arrays the end of a block reads, and how many it writes.

    An array that is read twice counts twice. `fused` is False for one layer after the other:
    addition and ReLU then change the result of the batch norm in place, which saves memory, not
    traffic. It is True for as few passes as possible.
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

ways = [(version, name) for version in versions for name in pairs]
least = dict.fromkeys(ways, np.inf)  # seconds
for _ in range(4):  # the first one compiles what is fused
    for version, name in ways:
        given = {"function": versions[version], "pair": pairs[name]}
        took = seconds("function(*pair)", 0.1, **given)
        least[version, name] = min(took, least[version, name])
rows = []
for (version, name), took in least.items():
    arrays = sum(block_end(version == "fused"))
    counted_ms = 1000 * arrays * nb06.BYTES[name] * pair[0].numel() / bandwidth
    rows.append([f"{name}, {version}", counted_ms, 1000 * took])
_, slowest, slow = rows[0]
rows = [[*row, slowest / row[1], slow / row[2]] for row in rows]
columns = ["", "ms: your count", "measured", "gain: your count", "measured"]
workshop.table(rows, columns, f"The end of a block, {session.tail} images")
del pair, pairs

# %% [markdown]
# The closer a measured time is to the count, the more traffic limits it; at several times the count, something else does. On a CPU, [PyTorch's batch norm](https://github.com/pytorch/pytorch/blob/02793981e2a23214e0a159b7eef8685ea5738310/aten/src/ATen/native/cpu/batch_norm_kernel.cpp) adds up NCHW values one at a time in `float32`, but as vectors in 16 bits, so the gain can exceed 2. For the whole network, `torch.compile` gained about × 1.2 (recorded above, on two different H100s).
#
# ## Your turn: one more rung
#
# Add mixed precision to `runs/train.py`: `float16` with a `GradScaler` on a GPU; on a CPU, `bfloat16` with `GradScaler(enabled=False)`. DDP's `backward()` averages the gradients. Horovod must exchange them *before* `scaler.step` tests them, so that all ranks skip a step or none does: `optimizer.synchronize()` comes first, and `scaler.step(optimizer)` stays inside `skip_synchronize()`. The next cell names what is missing and shows a solution, or tests the exchange on the CPU, where the scaler is off.

# %%
workshop.ladder.try_rung(
    "4_amp", ranks=2, only_yours=True, env={"CUDA_VISIBLE_DEVICES": ""},
    image_size=32, batch_size=16, steps=3, warm_up=0,  # 96 images
)  # fmt: skip

# %% [markdown]
# Only the two passes get faster, by the factor measured in NCHW above; the first run gave their share of a step. **Predict** how many times as fast your script becomes, by Amdahl's law (see 02).

# %%
guess = None  # your number
torch.cuda.empty_cache()  # the scripts need the memory
raced = workshop.ladder.race(
    ["3_dali", "4_amp"], own="4_amp", guess=guess, turns=session.rung_turns, ranks=ranks, **sizes,
    warm_up=1, steps=1 if emulated else session.steps,
)  # fmt: skip
gains = np.divide(times[before, "NCHW"], times[half, "NCHW"])
formula = workshop.ratio(1 / (1 - both_passes + both_passes / gains))
print(f"Speed of 4_amp over 3_dali: by the formula {formula}; {predicted(guess)}")
if raced and raced["4_amp"]["paired"]:
    measured = workshop.ratio(raced["4_amp"]["gains"])
    print("In the race:", measured)
    if measured.high < formula.low or formula.high < measured.low:
        old, new = (raced[rung]["compute_ms"] for rung in ("3_dali", "4_amp"))
        print(f"Passes and update, median: {old:.0f} ms, then {new:.0f} ms")
else:
    print("Not tested: this needs DALI, memory for both scripts, and trace.step() in yours.")
workshop.ladder.figure("4_amp")

# %% [markdown]
# Overlapping ranges cannot refute the formula. Otherwise, subtract the optimizer's time (first trace) from both printed times, and divide: this is the gain of your script's passes (on GPUs: smaller batch, DALI decodes meanwhile). On two CPU cores, race and formula differed by up to 10%. If a range is very wide, rerun *Compare all precisions*, then the cell above. Bars show medians of different turns. The square: a recorded H100, 1,735 to 2,530 images/s, batch 128, JPEG files.
#
# ## The same accuracy?
#
# NVIDIA published single runs; for the road signs, ten seeds per precision were recorded. **Predict:** how many points lower is `bfloat16` there?

# %%
guess = None  # points
for n in (1, 4, 8):
    fp16, fp32 = (session.results[f"published.v100.{n}gpu.{p}.top1"] for p in ("fp16", "fp32"))
    print(f"FP16 {fp16.value:.2f}%, FP32 {fp32.value:.2f}%: {fp16.provenance}")
keys = [f"roadsigns.resnet50.{dtype}.top1" for dtype in ("bfloat16", "float32")]
session.expect(dict.fromkeys(keys))
short, full = (session.results[key].each for key in keys)  # top-1 of each seed
gaps = np.subtract(full, short)  # of the same seed
errors = gaps.mean() / gaps.std(ddof=1) * len(gaps) ** 0.5
print(f"bfloat16 is {gaps.mean():.2f} points lower on average:", end=" ")
print(f"{errors:.1f} standard errors; {predicted(guess)}")

# %% [markdown]
# On ImageNet, FP16 is below FP32 all three times, by 0.04 to 0.18 points, and FP32 varies as much between GPU counts. On the road signs, ten seeds do not settle whether `bfloat16` costs accuracy.
#
# ## Key takeaways
#
# - Exponent bits set the range, mantissa bits the precision: `float16` lacks range, `bfloat16` precision.
# - A loss scale moves gradients into `float16`'s range. A fixed scale can fail silently.
# - Many updates are too small for 16 bits, so the weights stay in `float32`.
# - By the count, layers that stay arithmetic-bound gain as much as the peak (8 on a V100), memory-bound layers 2, and layers that become memory-bound something in between.
#
# Next: how long does a prediction take?
