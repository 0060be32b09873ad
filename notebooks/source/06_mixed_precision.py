# %% [markdown]
# # 06 · Mixed precision
#
# After this notebook you can say what training in 16 bits gains and what it endangers, keep small gradients alive with a loss scale, and predict from work and traffic which layers become faster and which do not.
#
# **Time:** 40 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 5 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
epochs: int | None = None  # epochs of the two training runs; None: 2, on a GPU those of the recipe
batch: int = 32  # images a step of those runs
pairs: int | None = None  # timed pairs of float32 and 16 bits; None: 10
rounds: int | None = None  # rounds of the measurement by kind of layer; None: 3
seed: int = 0  # start of all randomness

# %%
import io
import time

import workshop

session = workshop.start("06", profile)

# %% [markdown]
# ## Where is the time going?
#
# Notebook 02 found that this network spends its time computing, and the two notebooks before this one took care that the input keeps up. What is left is the arithmetic itself, and the bits of its numbers. An ordinary `float32` has 32. Half as many take half the memory, half the traffic, and on hardware that is made for it a fraction of the time. If your machine can do that, most runs of the notebooks before have used it already, since a run takes what suits the machine. Now you see what that is worth.
#
# NVIDIA's training package [ResNet-50 v1.5 for MXNet](https://github.com/NVIDIA/DeepLearningExamples/tree/master/MxNet/Classification/RN50v1.5) trains this way by default. On one V100 it publishes 1,442.6 images per second in FP16 and 400.2 in FP32, and the two reach the same accuracy. The method comes from the paper [Mixed Precision Training](https://arxiv.org/abs/1710.03740) (Micikevicius et al., 2017), and NVIDIA keeps a [guide](https://docs.nvidia.com/deeplearning/performance/mixed-precision-training/index.html) to it.
#
# It needs Tensor Cores to be fast: GPUs from the Volta generation on have them. The talk *AV Datasets & Multi-GPU Training* (2018) counts the two among NVIDIA's answers to growing data sets, beside 32 GB of memory, several GPUs, and NVLink with NVSwitch.
#
# This notebook takes the result apart: what fits into 16 bits, what gets lost, how it is saved, and where a factor of 3.6 comes from.
#
# The cell below says which 16 bits *your* machine computes in. Everything that follows compares them with `float32`.

# %%
from rn50 import precision

reduced = session.pick(cpu="bfloat16")
if session.profile == "gpu":
    reduced = precision.best_dtype(session.machine, "reference")[0]
emulated = session.profile != "gpu" and not session.machine.bfloat16
print(f"Compared with float32 here: {reduced}.")
if emulated:
    print("This processor has no instructions for bfloat16 and imitates them, which is slower than")
    print("float32. How much slower is measured below; the training runs take a smaller network.")
elif session.profile != "gpu":
    print(
        f"This processor computes in bfloat16 ({session.machine.bfloat16}). For float16 one needs"
    )
    print("a GPU: its lessons use a small network, real gradients, and published results.")

# %% [markdown]
# ## The whole thing in twelve lines
#
# Before any theory, do it. First some road signs as one tensor:

# %%
import numpy as np
import torch
from PIL import Image, ImageOps
from torch.nn.functional import cross_entropy

from rn50lib import resnet as network
from rn50lib.data.source import open_source
from rn50lib.torch.model import ResNet

device = torch.device("cuda" if session.profile == "gpu" else "cpu")
signs = open_source(session.data_root, "train", "recordio")  # in mixed order
count = session.pick(ci=96, cpu=480, gpu=2400)
images = [Image.open(io.BytesIO(signs.read(i))).convert("RGB") for i in range(count)]
images = torch.stack([torch.tensor(np.array(ImageOps.fit(image, (32, 32)))) for image in images])
images = ((images.permute(0, 3, 1, 2).float() - 118) / 58).to(device)
labels = torch.tensor(signs.labels[:count]).long().to(device)
print(tuple(images.shape), images.dtype)

# %% [markdown]
# And this trains on them in any precision. Two things are new in it. `torch.autocast` lets each operation choose its type: convolutions and matrix products run in the 16 bits asked for, sums over many values stay in `float32`, and the weights are `float32` all the time. The `GradScaler` multiplies the loss before the backward pass, divides the gradients by the same number before the update, leaves the update out where one of them is infinite, and then chooses the next factor.


# %%
def train(dtype, scaler, batch=16):
    torch.manual_seed(seed)
    model = ResNet(network.tiny(12)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    losses, scales = [], [scaler.get_scale()]
    for x, y in zip(images.split(batch), labels.split(batch), strict=True):
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses, scales


# %%
kinds = {
    "float32": (torch.float32, torch.amp.GradScaler(device.type, enabled=False)),
    "bfloat16": (torch.bfloat16, torch.amp.GradScaler(device.type, enabled=False)),
    "float16": (torch.float16, torch.amp.GradScaler(device.type)),
}
for name, (dtype, scaler) in kinds.items():
    begin = time.perf_counter()
    losses, _ = train(dtype, scaler)
    last = losses[-5:]  # one batch of 16 says little
    print(f"{name:9} loss {losses[0]:.2f} -> {sum(last) / len(last):.2f}", end=", ")
    print(f"{len(losses)} steps in {time.perf_counter() - begin:.1f} s")

# %% [markdown]
# Do not read too much into the losses on the right: so short a run on so few pictures is mostly chance. With another `seed` they change as much as from one precision to another. The end of this notebook compares properly.
#
# What did `autocast` do? The model was not converted. A hook on a few of its layers shows in which precision each of them answers, and in which its weights are kept:


# %%
model = ResNet(network.tiny(12)).to(device)


def look_at(name, layer):
    """Print what a layer keeps and what it gives when it is used."""

    def note(layer, inputs, output):
        print(f"{name:15} weights {layer.weight.dtype}   answers {output.dtype}")

    return layer.register_forward_hook(note)


hooks = [look_at(name, model.get_submodule(name)) for name in ("conv1", "bn1", "layer4.0.conv3", "fc")]  # fmt: skip
with torch.autocast(device.type, torch.float16):
    loss = cross_entropy(model(images[:16]), labels[:16])
for hook in hooks:
    hook.remove()
print(f"{'the loss':15} {loss.dtype}")

# %% [markdown]
# The weights stay in `float32`, the convolutions answer in 16 bits, and this network computes its last layer and its loss in `float32`.
#
# Change the cells: train with `torch.float16` and without a scaler, or write `model.half()` in the place of `autocast`, so that the weights have 16 bits too. What you see then is what the first half of this notebook explains. The seconds are the second half: this network is so small that they say little, and most processors have no instructions for `float16` and imitate it.
#
# TensorFlow says the same in other words. A **policy** gives every layer two types, one to compute in and one for its variables, and an optimizer wrapped in `LossScaleOptimizer` does the scaling:

# %%
# %%writefile {session.folder}/keras_scale.py
import tensorflow as tf

for gpu in tf.config.list_physical_devices("GPU"):
    tf.config.experimental.set_memory_growth(gpu, True)
layers, precision = tf.keras.layers, tf.keras.mixed_precision
precision.set_global_policy("mixed_float16")
model = tf.keras.Sequential(
    [
        layers.Conv2D(8, 3, 2, activation="relu"),
        layers.GlobalAveragePooling2D(),
        layers.Dense(12, dtype="float32"),  # the last layer is not trusted to 16 bits
    ]
)
optimizer = precision.LossScaleOptimizer(
    tf.keras.optimizers.SGD(0.1), initial_scale=2.0**24, dynamic_growth_steps=5
)
cross_entropy = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
images = tf.random.normal((32, 64, 64, 3), seed=0)
labels = tf.random.uniform((32,), 0, 12, tf.int32, seed=0)
model(images)
optimizer.build(model.trainable_variables)

for step in range(12):
    with tf.GradientTape() as tape:
        loss = cross_entropy(labels, model(images))
        scaled = optimizer.scale_loss(loss)
    gradients = tape.gradient(scaled, model.trainable_variables)
    optimizer.apply(gradients, model.trainable_variables)
    scale = int(optimizer.dynamic_scale)
    print(f"step {step + 1:2}: loss {float(loss):.3f}, scale {scale:12,}")

# %%
if workshop.has("tensorflow"):
    workshop.run_script(session.folder / "keras_scale.py")

# %% [markdown]
# ## What a number can hold
#
# A floating-point number has a sign, an **exponent**, which says how large it is, and a **mantissa**, which says where it lies between two powers of two. Bits of the exponent buy range, bits of the mantissa buy resolution, and a format is nothing but the decision how to divide them: `float32` has 8 and 23 of them, `bfloat16` 8 and 7, `float16` 5 and 10. What follows from that, PyTorch knows:

# %%
rows = []
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    info = torch.finfo(dtype)
    rows.append([str(dtype).split(".")[1], info.bits, f"{info.max:.3g}", f"{info.tiny:.3g}",
                 f"{info.smallest_normal * info.eps:.3g}", f"{info.eps:.3g}"])  # fmt: skip
columns = ["", "bits", "largest", "smallest, all bits", "smallest of all", "step from 1 on"]
workshop.table(rows, columns)
for value in (70_000.0, 1e-8, 1.001):
    told = [f"{name} {torch.tensor(value).to(kind[0]).item():.6g}" for name, kind in kinds.items()]
    print(f"{value:g} becomes", ", ".join(told))

# %% [markdown]
# `float16` and `bfloat16` have the same size and opposite characters. `float16` resolves eight times as finely, but everything beyond 65,504 is infinite and everything below 0.00000003 is zero. `bfloat16` is a `float32` with its last 16 bits cut off: the same range, and only two or three decimal digits. `tf32` is no format for storing: Tensor Cores read a `float32` and ignore the last 13 bits of its mantissa.

# %% [markdown]
# ## Why 208 in FP16 and 96 in FP32?
#
# These are NVIDIA's batches on a V100 with 16 GB. The weights of ResNet-50 take 0.1 GB. What fills the other 15?
#
# Training keeps the output of almost every layer until the backward pass has used it. These **activations** grow with the batch, and they are what 16 bits cut in half.


# %%
def kept_bytes(dtype, batch, size=64):
    """Bytes that a forward pass keeps for the backward pass, weights not counted."""
    kept = {}

    def pack(tensor):
        kept[tensor.data_ptr()] = tensor.nbytes
        return tensor

    model = ResNet(network.resnet(50)).to(device)
    x = torch.randn(batch, 3, size, size, device=device)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = model(x).sum()
    for weight in model.parameters():
        kept.pop(weight.data_ptr(), None)
    del loss  # which has kept the arrays alive until here
    return sum(kept.values())


for dtype in (torch.float32, torch.bfloat16):
    one, two = (kept_bytes(dtype, batch) for batch in (1, 2))
    print(f"{str(dtype):15} {(two - one) / 1e6:.1f} MB more for one more image of 64 x 64 pixels")

# %% [markdown]
# You have just asked PyTorch itself, whose autograd hands over every array that it keeps. `rn50lib.memory` predicts the same from the description of the network, for any size and batch, without running anything:

# %%
from rn50lib import memory
from workshop.lessons.precision import figures as drawn
from workshop.lessons.precision import memory as step_memory

workshop.show(memory.kept)
resnet50 = network.resnet(50)
points = [("float32", 96), ("float32", 208), ("float16", 208)]
fig, finding = step_memory.parts(resnet50, 224, points, capacity=16e9)
workshop.figure(fig, alt=f"Memory of a training step by part, and a line at 16 GB. {finding}")
print(finding)

# %% [markdown]
# So 208 images in FP32 cannot fit, and the two published batches need nearly the same memory. Notice also what does *not* become smaller: weights, gradients and momentum stay in `float32`, for a reason that comes later, and a copy of the weights in 16 bits is added.
#
# The count is not the whole story. By it, larger batches would fit too: a framework also keeps a pool of blocks, and convolutions want scratch memory. The published batches leave room for that.

# %% [markdown]
# ### Measured
#
# A prediction that nobody checks is an opinion. The cell takes real training steps with two batch sizes, each in a process of its own, and asks the operating system (on a GPU, the allocator) how much memory it had at most. Libraries and code are in that number too. They are the same for both batches, so that the *difference* shows what one more image takes.

# %%
from rn50lib.config import Experiment

at_224 = Experiment(image_shape=64 if emulated else 224, num_classes=1000, seed=seed)
sizes = session.pick(ci=(2, 66), cpu=(2, 8), gpu=(16, 64))
peaks = step_memory.measure(at_224, sizes, ("float32", reduced))
workshop.table(
    [[dtype, *(peaks.bytes[dtype, batch] / 1e9 for batch in sizes),
      peaks.per_image(dtype) / 1e6, peaks.predicted_per_image(dtype) / 1e6]
     for dtype in peaks.dtypes],
    columns=["", *(f"GB with {batch} images" for batch in sizes), "MB per image", "predicted"],
    caption="The most memory that a step had at once",
)  # fmt: skip
halved = peaks.per_image(reduced) / peaks.per_image("float32")
print(f"In {reduced} an image takes {halved:.2f} times the memory that it takes in float32.")

# %% [markdown]
# ## A run to look at
#
# To ask what the gradients of a real network look like, one needs a real network. This cell trains one in `float32` for a short while on a part of the road signs. Further down, the same run in 16 bits is laid beside it.

# %%
from dataclasses import replace

from rn50lib import recipe

epochs = epochs or session.pick(cpu=2, gpu=recipe.ROADSIGNS.epochs)
common = Experiment(
    network="tiny" if emulated else "resnet", num_epochs=epochs, batch_size=batch, seed=seed,
    num_examples=session.pick(ci=96, cpu=1440, gpu=2400), model_prefix="model", disp_batches=5,
)  # fmt: skip
full = workshop.train(replace(common, dtype="float32"), name="float32").wait()

# %% [markdown]
# ## Which gradients vanish
#
# Now one training step of that network with real pictures, computed in `float32` so that nothing is lost, and all of its gradients counted by size. There are two kinds: those that **flow back** through the network, one for every activation, and those **of the weights**, which the optimizer uses. In mixed precision both are computed in 16 bits.
#
# First by hand, with the small network as it is before any training. A hook on each convolution sees the gradient that flows back to its output; turned into `float16`, some of it is zero.

# %%
torch.manual_seed(seed)
model = ResNet(network.tiny(12)).to(device)
flowing = []
for module in model.modules():
    if isinstance(module, torch.nn.Conv2d):
        module.register_forward_hook(
            lambda _, given, out: (
                out.register_hook(lambda grad: flowing.append(grad.flatten())) and None
            )
        )
cross_entropy(model(images), labels).backward()
flowing = torch.cat(flowing)
flowing = flowing[flowing != 0]
for power in (0, 4, 8, 12, 24):
    scaled = (flowing * 2.0**power).to(torch.float16)
    print(f"loss x 2^{power:<2}: {100 * (scaled == 0).float().mean():7.3f} % become zero,", end=" ")
    print(f"{100 * scaled.isinf().float().mean():7.3f} % infinite")

# %% [markdown]
# Now both kinds, in the network that you have trained. The bars show the ranges of the two formats. What lies left of a bar becomes zero in that format.

# %%
from rn50lib import checkpoint
from workshop.lessons.precision import gradients

prefix = full.dir / "model"
last = checkpoint.epochs(prefix)[-1]
look = gradients.look(prefix, last)
fig, finding = drawn.gradients(look.kinds, scale=0)
workshop.figure(fig, alt=f"How many gradients have which size, and what float16 keeps. {finding}")
print(f"{look.experiment.to_network().name} after {last} epochs, loss {look.loss:.2f}.")
print(finding)
flowing, of_weights = look.kinds
zero = 100 * flowing.vanish(drawn.FLOAT16)

# %% [markdown]
# They are so small because the loss is a *mean*: the gradient of one position of one feature map of one image is its share of a mean over all of them. A larger batch or a larger picture makes them smaller still.
#
# ### The loss scale
#
# At the other end, on the right, float16 has room that nobody uses. So one **multiplies the loss** by a large number before the backward pass. By the chain rule every gradient is multiplied by the same number: the whole histogram moves to the right, and the gradients of the weights are divided by it again in `float32`, before the optimizer sees them. A power of two changes no bit of any mantissa.
#
# Move the scale. Where is the smallest one that saves all but a thousandth? Where do the first become infinite? And which scale does `bfloat16` need?


# %%
def scaled(scale, dtype):
    return drawn.gradients(look.kinds, scale, dtype)


from ipywidgets import Dropdown, IntSlider

scale_knobs = workshop.explore(
    scaled,
    alt=lambda **values: "Sizes of the gradients, moved by the loss scale. " + scaled(**values)[1],
    scale=IntSlider(10, min=0, max=40),
    dtype=Dropdown(options=["float16", "bfloat16"]),
)
lost16 = 100 * look.kinds[0].vanish(drawn.BFLOAT16)
print(f"In bfloat16, without any scale: {lost16:.3f} % become zero. It has float32's range.")

# %% [markdown]
# ### Who chooses the scale?
#
# The best scale is the largest one that overflows nowhere, and it changes while the network learns. So it is found by trying. Before each update one looks whether a gradient became infinite. If so, the update is **skipped** and the scale halved; after many good steps in a row it is doubled, to see whether more is possible. This is the whole rule:

# %%
from rn50lib import optim

workshop.show(optim.loss_scale_update)

# %% [markdown]
# The figure plays this very function through, over gradients that are made up so that you see every case. Predict before you turn: does a shorter wait (`growth steps`) make training better, because the scale is higher, or worse, because more steps are skipped? What does a start of 2^24 cost?

# %%
from workshop.lessons.precision import loss_scale

rule_knobs = workshop.explore(
    loss_scale.rule,
    alt=lambda **values: "The loss scale over the steps. " + loss_scale.rule(**values)[1],
    start=IntSlider(16, min=6, max=24),
    growth_steps=IntSlider(60, min=5, max=200, step=5),
)

# %% [markdown]
# `GradScaler` is this rule, with 2^16 to begin with, a factor of 2 and 2,000 good steps. It costs something on a GPU: to decide whether to skip, `scaler.step` fetches one number from the device in every step (`.item()` in its source), and the queue runs empty (notebook 02). In this library check, skip and rule run on the device, and the loop reads the scale only when it reads the loss. With several workers the check comes after the exchange, so that all of them skip the same step or none does.
#
# ### Seen at work
#
# Your own loop again, three times in `float16`: with a scale that begins far too high and doubles after 5 good steps, so that you see it work; without a scale; and with one that stays at 2^24. Predict the end of each.

# %%
steady = {"backoff_factor": 1 - 1e-6, "growth_interval": 10**9}  # a trace of each overflow, no more
scalers = {
    "dynamic": torch.amp.GradScaler(device.type, init_scale=2.0**24, growth_interval=5),
    "none": torch.amp.GradScaler(device.type, enabled=False),
    "fixed at 2^24": torch.amp.GradScaler(device.type, init_scale=2.0**24, **steady),
}
ways = {name: train(torch.float16, scaler) for name, scaler in scalers.items()}
fig, finding = loss_scale.own_runs(ways)
workshop.figure(fig, alt=f"Training loss and loss scale of three runs in float16. {finding}")
print(finding)

# %% [markdown]
# A fixed scale that overflows is worse than none: every update is left out, so that nothing is ever learnt, and the loss that it prints is that of a network that never changes. A dynamic scale pays for a start that is too high with the first updates. From then on it loses one each time that it tries a scale too high: often if it tries after 5 good steps, almost never with the usual 2,000.
#
# Whether the run without a scale is worse, so few steps of so small a network cannot tell: the gradients that matter most are the large ones. In the histogram above you have seen what share it does without. This library uses the dynamic scale, `--loss-scale dynamic`, wherever it trains in `float16`. NVIDIA's program for MXNet names none and has one all the same: its loss is the *sum* over the images of a GPU, and the division comes afterwards, in `float32`. With 208 images that is a fixed scale of 208.

# %% [markdown]
# ## Small steps: the master weights
#
# The gradients are saved, and a second loss is waiting. An update is a small number that is added to a large one. In a format with a mantissa of 7 bits, it is lost if it is smaller than 1/512 to 1/256 of the weight (which of the two depends on where the weight lies between two powers of two): the sum is rounded back. Each such update may be negligible, yet all of them together are the training. The cell adds a ten-thousandth to 1, a thousand times:

# %%
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    weight = torch.tensor(1.0, dtype=dtype)
    for _ in range(1000):
        weight += 0.0001
    print(f"{str(dtype):15} {weight.item():.6g} after 1,000 updates; it should be 1.1")

# %% [markdown]
# Are real updates that small? Here are real weights and the real velocity of the optimizer, both from the checkpoint of the run above. The learning rates are those of the recipe: its peak, and after each of its three decays.

# %%
arrays = {name: torch.from_numpy(a) for name, a in checkpoint.load(prefix, last).arrays.items()}
names = [n for n, a in arrays.items() if a.ndim == 4 and not n.startswith("velocity/")]
weights = torch.cat([arrays[n].flatten() for n in names])
velocity = torch.cat([arrays[f"velocity/{n}"].flatten() for n in names])
moved = velocity != 0
peak = recipe.ROADSIGNS.lr * batch / recipe.ROADSIGNS.lr_batch
rows = []
for name, rate in {"peak": peak, **{f"decay {n}": peak / 10**n for n in (1, 2, 3)}}.items():
    lost = []
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        weight = weights.to(dtype)
        same = (weight + rate * velocity).to(dtype) == weight  # the sum is taken in float32
        lost.append(100 * same[moved].float().mean().item())
    rows.append([name, f"{rate:.2g}", *lost])
workshop.table(
    rows, columns=["", "learning rate", "float32", "bfloat16", "float16"],
    caption="Weights that an update leaves as they are, per cent, by the format they are kept in",
)  # fmt: skip

# %% [markdown]
# The lower the rate, the more weights stand still in 16 bits. That is why they are kept in `float32`: the **master weights**. Every step makes a copy in 16 bits, computes with it, and adds the update to the master. The copy is small beside the activations, as you have seen in the memory. Batch norm's statistics, the last layer and the loss stay in `float32` too, since they are sums over many values, where small ones must not get lost beside a large total.

# %% [markdown]
# ## What the hardware wants
#
# Now the speed. A Tensor Core multiplies small blocks of matrices at once, and a block that is not full takes as long as a full one. NVIDIA's rule for 16 bits is that channels should be multiples of 8. AMX, the matrix unit of Intel's newer processors, multiplies tiles of 16 rows by 32 numbers of 16 bits. So where does this network break the rule of 8?

# %%
from workshop.lessons.precision import roofline

classes = look.experiment.num_classes
workshop.table(
    roofline.channel_rows(network.resnet(50, classes)),
    columns=["layer", "channels in", "channels out"],
    caption=f"Layers of ResNet-50 with {classes} classes whose channels are no multiples of 8",
)
print(f"It has {len(list(resnet50.convolutions()))} convolutions in all.")

# %% [markdown]
# A picture has 3 channels. For FP16 NVIDIA's program pads it to 4 on its way to the GPU; the padding is zeros, and so are the weights that meet it. The last layer has as many outputs as there are classes.
#
# The second wish is the **layout**. In NCHW memory a feature map lies behind the other; in NHWC all channels of a pixel lie together, and they are what a matrix product sums over. Where the unit that multiplies wants the other one, every convolution has to rearrange its input first.
#
# PyTorch calls NHWC `channels_last`. Time one convolution of the network both ways, forward and backward:

# %%
from torch.utils import benchmark

conv = torch.nn.Conv2d(64, 64, 3, padding=1, bias=False).to(device)
pixels = torch.randn(8, 64, 56, 56, device=device)
for layout in (torch.contiguous_format, torch.channels_last):
    given = {"x": pixels.to(memory_format=layout), "conv": conv.to(memory_format=layout)}
    timer = benchmark.Timer(
        "conv(x).sum().backward()", globals=given, num_threads=torch.get_num_threads()
    )
    median = timer.blocked_autorange(min_run_time=session.pick(ci=0.2, cpu=2)).median
    print(f"{str(layout):24} {1000 * median:.2f} ms")

# %% [markdown]
# Training here uses NHWC on a GPU. On a processor there is a third layout: PyTorch's library for it, oneDNN, puts the channels in blocks as long as a vector register. `rn50lib` chooses it for the layers where a batch has many pixels (`rn50lib/torch/cpu.py`), because batch norm gains even more from it than the convolutions do.
#
# ## The roofline
#
# A layer reads numbers, computes, and writes numbers. It can be no faster than its arithmetic at the full rate of the machine, and no faster than its reading and writing at the full rate of the memory. Which of the two holds it up depends on one ratio, its **FLOP per byte**: a convolution uses each number hundreds of times, a ReLU just once.
#
# 16 bits change the two limits differently. The traffic halves. The arithmetic becomes faster by what the hardware has for it: eight times on a V100, by its data sheet. So the *kinds* of layers profit differently.
#
# A limit is easily measured. A product of two square matrices of side n takes 2n³ operations, a copy reads and writes every byte once:

# %%
side = session.pick(ci=128, cpu=256 if emulated else 1024, gpu=8192)
threads = torch.get_num_threads()
for dtype in (torch.float32, getattr(torch, reduced)):
    a = torch.randn(side, side, device=device).to(dtype)
    timer = benchmark.Timer("a @ a", globals={"a": a}, num_threads=threads)
    seconds = timer.blocked_autorange(min_run_time=session.pick(ci=0.2, cpu=1)).median
    print(f"{str(dtype):15} {2 * side**3 / seconds / 1e9:10,.1f} GFLOP/s, {side} x {side}")
array, copy = torch.zeros(2, 2**24, device=device)
given = {"array": array, "copy": copy}
timer = benchmark.Timer("copy.copy_(array)", globals=given, num_threads=threads)
seconds = timer.blocked_autorange(min_run_time=session.pick(ci=0.2, cpu=1)).median
print(f"{'memory':15} {2 * array.nbytes / seconds / 1e9:10,.1f} GB/s")

# %% [markdown]
# The cell below trains with both precisions in turns under PyTorch's profiler, adds up the time by kind of layer, and measures the two limits of this machine with a large product of matrices and a large copy.

# %%
step = replace(at_224, batch_size=2 if emulated else session.pick(cpu=8, gpu=64))
turns = rounds or session.pick(ci=1, cpu=3)
by_layer = roofline.measure(step, ("float32", reduced), turns)
print(roofline.limits(by_layer))

# %% [markdown]
# Here are the numbers. A kind of layer that takes far longer than its least time has room: it is too small to fill the machine, or runs in a kernel that is not a good one. One that takes less is no mistake of physics: small arrays stay in the cache and never go to memory.

# %%
for dtype in by_layer.dtypes:
    workshop.table(
        roofline.rows(by_layer, dtype),
        columns=["kind of layer", "GFLOP", "GB", "FLOP per byte", "ms at least", "ms measured",
                 "% of the step"],
        caption=f"A training step in {dtype}: batch {by_layer.experiment.batch_size}, "
        f"{by_layer.experiment.image_shape} px, median of {turns} rounds",
    )  # fmt: skip

# %% [markdown]
# The last row is what belongs to no layer. 16 bits add work to it: every step casts the weights, and every border between the two precisions copies an array. Where the arithmetic becomes faster, its share of the step grows.
#
# ## Where the speed-up comes from
#
# Now lay the two steps beside each other. Predict: which part of the bar shrinks, and which becomes the longest?

# %%
fig, finding = roofline.comparison(by_layer)
workshop.figure(fig, alt=f"A training step by kind of layer in both precisions. {finding}")
print(finding)
alone = by_layer.only("convolution")
print(f"If only the convolutions changed, the step would be {alone:.2f} times as fast.")

# %% [markdown]
# The profiler itself takes time, and three rounds prove little. So here is the whole step once more without it, in pairs: both precisions take turns, each in a process of its own.

# %%
from workshop.lessons import figures
from workshop.pairs import median_interval, time_pairs

both = {dtype: replace(step, dtype=dtype) for dtype in (reduced, "float32")}
count = pairs or session.pick(ci=2, cpu=6 if emulated else 10)
timed = time_pairs(both, pairs=count, steps=session.pick(cpu=1, gpu=10))
published = {
    name: session.results[f"published.v100.1gpu.{name}.ips"].value for name in ("fp16", "fp32")
}
factor = published["fp16"] / published["fp32"]
fig, finding = figures.pairs(timed, {"1 V100, FP16, published": factor})
workshop.figure(fig, alt=f"Milliseconds a step in both precisions, and their ratio. {finding}")
done = timed.experiment
print(f"{done.image_shape} px, batch {done.batch_size}, {done.threads} threads. {finding}")
speedup = median_interval(timed.ratios)[0]
if session.profile != "gpu":  # float16 on Tensor Cores
    session.recorded("published.v100.1gpu.fp16.ips")
if emulated and session.profile != "ci":
    print(f"This processor imitates bfloat16: it is {1 / speedup:.1f} times as slow as float32.")
    print("Train in float32 here; a run with --dtype auto does so by itself.")

# %% [markdown]
# ### And the V100's 3.6?
#
# The same sum can be done for a machine that is not here. A V100 computes 15.7 TFLOP per second in FP32 and 125 in FP16 with Tensor Cores, eight times as many, and moves 900 GB per second in either: this is its data sheet. Work and traffic are those of ResNet-50. What does the roofline allow?

# %%
sheet = {key: session.results[f"v100.{key}"] for key in ("fp32", "fp16", "bandwidth")}
v100 = roofline.Device(
    "V100",
    {"float32": 1e12 * sheet["fp32"].value, "float16": 1e12 * sheet["fp16"].value},
    1e9 * sheet["bandwidth"].value,
)
fig, finding = roofline.bounds(v100, resnet50, 224, batch=96)
workshop.figure(fig, alt=f"Least milliseconds an image on a V100 by kind of layer. {finding}")
print(finding)
workshop.table(
    [["FP32", published["fp32"]], ["FP16", published["fp16"]]],
    columns=["published, 1 V100", "img/s"],
    caption=session.results["published.v100.1gpu.fp16.ips"].provenance,
)
print(f"Published: FP16 is {factor:.2f} times as fast as FP32.")

# %% [markdown]
# The published speed-up lies a little below what the roofline allows. Convolutions become eight times as fast at best, batch norm, ReLU and addition only twice, and then *these* take most of the time. The sum assumes that each layer goes to memory by itself.
#
# ### What else differs
#
# A published ratio compares two runs, and these two differ in more than the width of their numbers:
#
# - the **batch**: 208 against 96, which fits only because the activations are half as large;
# - the **layout**: NVIDIA's program sets NHWC for FP16 and leaves FP32 in NCHW;
# - **fusing**: for FP16 alone it joins a batch norm with the addition and the ReLU behind it, so that they read and write once. That saves traffic, and it is also what compilers do (`--compile`).
#
# So 3.6 is what the whole package gains. How much may that be? On an A100 FP32 has been replaced by TF32, which computes on Tensor Cores too and has the *traffic* of FP32. Work out first what 16 bits by themselves can bring there, with the two rates of its data sheet:

# %%
rate = {kind: session.results[f"a100.{kind}"] for kind in ("tf32", "fp16")}
a100 = {kind: session.results[f"published.a100.1gpu.{kind}.ips"] for kind in ("tf32", "mixed")}
workshop.table(
    [[item.what, item.value, item.unit] for item in (*rate.values(), *a100.values())],
    columns=["", "published", ""],
    caption=f"{rate['fp16'].source}; {a100['mixed'].source}, {a100['mixed'].hardware}",
)
most = max(rate["fp16"].value / rate["tf32"].value, 4 / 2)  # arithmetic; bytes of a number
ratio = a100["mixed"].value / a100["tf32"].value
print(f"Arithmetic and traffic allow {most:.0f} times; published are {ratio:.2f} times.")

# %% [markdown]
# A layer at its roof can gain no more than that. The rest must come from elsewhere, and the same program sets layout and fusing there as well. Before you promise anybody a factor, change the precision *alone* and measure, as this notebook did.

# %% [markdown]
# ## The same accuracy?
#
# Speed is worth nothing if the result is another one. Here is the run from above once more, in 16 bits: the same network, pictures, order, recipe and seed.

# %%
half = workshop.train(replace(common, dtype=reduced), name=reduced).wait()

# %%
runs = {"float32": full, reduced: half}
fig, finding = figures.loss_curves(
    {name: run.progress for name, run in runs.items()}, "The same run in two precisions"
)
workshop.figure(fig, alt=f"Training loss over the epochs in both precisions. {finding}")
print(finding)
rows = []
for name, run in runs.items():
    metrics = run.report["metrics"]
    rows.append([name, metrics["train.loss"][-1], metrics["val.top1"][-1], run.seconds])
workshop.table(
    rows, columns=["", "training loss", "validation top-1, %", "seconds, start included"],
    caption=f"{full.report['model']}, {epochs} epochs of a part of the road signs",
)  # fmt: skip
apart = rows[1][2] - rows[0][2]

# %% [markdown]
# Rounding differs in the last bits, and training amplifies every difference, just as another seed would: of two such runs no step is the same after a while. Two short runs prove nothing either way. So look at whole runs of the road-sign recipe, recorded with three seeds in each precision:

# %%
recorded = {
    dtype: [session.results[f"precision.{dtype}.seed{s}.top1"].value for s in range(3)]
    for dtype in ("float32", "bfloat16")
}
workshop.table(
    [[dtype, *values, sum(values) / 3, max(values) - min(values)]
     for dtype, values in recorded.items()],
    columns=["top-1, %", "seed 0", "seed 1", "seed 2", "mean", "from best to worst"],
    caption=session.results["precision.float32.seed0.top1"].provenance,
)  # fmt: skip
means = {dtype: sum(values) / 3 for dtype, values in recorded.items()}
difference = means["float32"] - means["bfloat16"]
spread = max(max(values) - min(values) for values in recorded.values())
print(f"The means differ by {difference:.1f} points; seeds of one precision by up to {spread:.1f}.")

# %% [markdown]
# The difference between the precisions is smaller than that between two seeds, so these runs show none. To see a tenth of a point one needs many more runs, or ImageNet. There, NVIDIA publishes one run for each number of GPUs:

# %%
rows = []
for n in (1, 4, 8):
    item = {p: session.results[f"published.v100.{n}gpu.{p}.top1"].value for p in ("fp16", "fp32")}
    values = (item["fp16"], item["fp32"], item["fp16"] - item["fp32"])
    rows.append([n, *(f"{value:.3f}" for value in values)])
workshop.table(
    rows, columns=["V100s", "FP16", "FP32", "difference, points"],
    caption="Top-1 on ImageNet after 90 epochs, " + session.results[
        "published.v100.1gpu.fp16.top1"].source,
)  # fmt: skip

# %% [markdown]
# All three differences have the same sign, and all are below 0.2 points; the FP32 runs differ as much among each other.

# %% [markdown]
# ## Beside the recorded numbers

# %%
yours = {
    "precision.memory.float32": peaks.per_image("float32") / 1e6,
    "precision.memory.bfloat16": peaks.per_image(reduced) / 1e6 if reduced == "bfloat16" else None,
    "precision.vanish": zero,
    "precision.speedup": speedup if reduced == "bfloat16" else None,
}
if emulated or session.profile == "ci":  # other sizes and another network
    yours = dict.fromkeys(yours)
session.expect({key: value for key, value in yours.items() if key in session.results})

# %% [markdown]
# ## Where is the time going now?

# %%
shares = {}
for dtype in by_layer.dtypes:
    seconds = {k: by_layer.seconds(dtype, k) for k in (*roofline.KINDS, roofline.REST)}
    shares[dtype] = {kind: 100 * value / sum(seconds.values()) for kind, value in seconds.items()}
before, now = shares["float32"], shares[reduced]
moved = ("batch norm", "ReLU", "addition", "pooling")
print(f"Convolutions: {before['convolution']:.0f} % of a step in float32,", end=" ")
print(f"{now['convolution']:.0f} % in {reduced}.")
print(f"Layers that only move numbers: {sum(before[k] for k in moved):.0f} %,", end=" ")
print(f"then {sum(now[k] for k in moved):.0f} %.")
print(
    f"Casts, update and the rest: {before[roofline.REST]:.0f} %, then {now[roofline.REST]:.0f} %."
)
share = now["convolution"]

# %% [markdown]
# Only the first of the three lines is arithmetic. And beware of what has happened to everything around the step: a step that is faster waits a larger part of its time for the input and for the other workers. A run that was bound by computing may now be bound by decoding, and then FP32 and 16 bits "take the same time". `rn50 diagnose` measures loader, step and communication each by itself and says which of them it is; run it with `--dtype float32` and with yours.

# %% [markdown]
# ## Your numbers
#
# What this notebook measured on your machine, in one place: to compare with a colleague's, or with those of another machine.

# %% tags=["results"]
session.note("memory_ratio", halved, "times", f"memory of an image in {reduced} over float32")
session.note("vanish", zero, "%", "gradients flowing back that become zero in float16")
session.note("speedup", speedup, "times", f"speed of a training step in {reduced} over float32")
session.note("top1_apart", apart, "points", f"top-1 in {reduced} less that in float32, short run")
session.note("convolution_share", share, "%", f"of a step in {reduced} spent in convolutions")

# %% [markdown]
# ## What to take with you
#
# - Exponent bits are range, mantissa bits are resolution. `float16` lacks range, `bfloat16` lacks resolution.
# - Activations fill the memory, and 16 bits halve them: that is where the larger batch comes from.
# - In PyTorch two names do it: `torch.autocast` around the forward pass, `GradScaler` around the update.
# - In `float16` small gradients vanish. A loss scale moves them into its range, and a simple rule finds the scale.
# - Updates are too small for 16 bits, so the weights stay in `float32`.
# - Channels in multiples of 8 and NHWC suit the units that multiply matrices.
# - Arithmetic gets much faster, traffic only twice as fast; a step gains what its mix of layers allows.
# - Judge accuracy by several seeds. One pair of runs shows the noise.
#
# Something to try: in your loop, call `scaler.step` and forget `scaler.update`, or update the weights without dividing the gradients, and see which of the two goes unpunished.
#
# The network is trained. What is left is to use it: how fast is one answer, and how fast are many? That is the next notebook, on inference.
