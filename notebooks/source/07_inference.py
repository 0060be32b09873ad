# %% [markdown]
# # 07 · Inference
#
# After this notebook you can score a checkpoint, judge how far to trust its probabilities, make inference faster without changing its predictions, measure latency, and measure throughput the way published tables do.
#
# **Time:** 45 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 4 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
epochs: int | None = None  # epochs of the training run
rounds: int | None = None  # rounds in which the versions take turns
requests: int | None = None  # number of single requests to time
seed: int = 0  # random seed

# %%
import os

import workshop

session = workshop.start("07", profile)
epochs, rounds = epochs or session.epochs, rounds or session.rounds
requests = requests or session.requests
os.chdir(session.folder)  # everything below is written here
os.environ |= {
    "DATA": str(session.data_root),
    "EPOCHS": str(epochs),
    "IMAGES": str(session.images),
    "BATCHES": session.batches,
    "ITERATIONS": str(session.iterations),
    "SEED": str(seed),
}

# %% [markdown]
# ## Where is the time going?
#
# In training, only **throughput** mattered: images per second. A user waits for one prediction, so **latency**, the time from request to response, matters too.
#
# The batch size trades one for the other. This notebook first checks that the predictions are right, then makes the network faster, and finally measures single requests and large batches.
#
# ## A checkpoint and its score
#
# You need a checkpoint. This command briefly trains ResNet-50 on the road signs, at the recipe's 64 pixels. The variables in capitals were set above.

# %% language="bash" magic_args="-e"
# echo "$DATA: $IMAGES images per epoch, epochs: $EPOCHS"
# rm -f model-*  # from an earlier run
# rn50 run --data-root "$DATA" -e $EPOCHS -b 32 --num-examples $IMAGES --seed $SEED \
#   --dtype float32 --disp-batches 10 --model-prefix model --report train.json 2>&1

# %% [markdown]
# A checkpoint is a description of the network and a file of arrays. Load it, and prepare the images as in validation: resize the shorter side to 256/224 of the input size, take a centre crop, and normalise.

# %%
import json
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from rn50lib import checkpoint
from rn50lib.torch.model import ResNet, load_arrays

torch.backends.cudnn.allow_tf32 = False  # real float32 (notebook 06)
device = "cuda" if session.profile == "gpu" else "cpu"
model = ResNet(checkpoint.read_network("model"))
load_arrays(model, checkpoint.load("model", epochs).arrays)
model = model.to(device).eval()
MEAN = 255 * torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = 255 * torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def prepare(file, size=64):
    """Return a JPEG file as the network's input, float32 (3, size, size)."""
    image = Image.open(file).convert("RGB")
    scale = size * 256 / 224 / min(image.size)
    image = image.resize([round(side * scale) for side in image.size], Image.Resampling.BILINEAR)
    left, top = [(side - size) // 2 for side in image.size]
    image = image.crop((left, top, left + size, top + size))
    return (torch.tensor(np.asarray(image)).permute(2, 0, 1) - MEAN) / STD


# %%
files = sorted(Path(session.data_root, "val").glob("*/*.jpg"))
classes = sorted({file.parent.name for file in files})
print(", ".join(classes))
some = files[:: len(files) // session.by_hand]
labels = torch.tensor([classes.index(file.parent.name) for file in some])
images = torch.stack([prepare(file) for file in some]).to(device)
with torch.inference_mode():
    logits = torch.cat([model(part) for part in images.split(32)]).cpu()
print(
    f"{100 * (logits.argmax(1) == labels).float().mean():.1f}% of {len(some)} images are classified correctly"
)

# %% [markdown]
# `rn50 score` does this for the whole validation set, in a new process that has only the files. **Predict:** how close will its top-1 be to the accuracy that training reported?

# %% language="bash" magic_args="-e"
# rn50 score model $EPOCHS --data-root "$DATA" --dtype float32 --report score.json 2>&1

# %%
trained, scored = (
    json.loads(Path(file).read_text())["metrics"]["val.top1"][-1]
    for file in ("train.json", "score.json")
)
print(f"training reported {trained}, score computed {scored}; equal: {trained == scored}")

# %% [markdown]
# With the same weights, images, crops and kernels, and no randomness, the numbers are equal to the last digit. If they differ, one of these is not what you think, and everything you build on the checkpoint inherits the error.
#
# ## Images that are not in the data set
#
# The validation images were drawn by the same generator, from the same seed, as the training images, so high accuracy on them says little about other images. The next cell generates four signs from a new seed, a road without a sign, and pure noise. (Without a GPU, training was so short that even signs are often misclassified.) **Predict:** which class will the network choose for the road, and with what probability?

# %%
from workshop.lessons import nb07

new = nb07.draw_signs(Path("new"), classes)

# %% language="bash" magic_args="-e"
# rn50 predict model $EPOCHS new/*.jpg -o new.npz 2>&1

# %%
import matplotlib.pyplot as plt

plt.style.use("tableau-colorblind10")
with np.load("new.npz") as found:
    sure = {Path(n).stem: p for n, p in zip(found["names"], found["probabilities"], strict=True)}
fig, axes = plt.subplots(2, 3, figsize=(10, 6), layout="constrained")
told = []
for ax, file in zip(axes.flat, new, strict=True):
    best = sure[file.stem].argsort()[::-1][:3]
    lines = [f"{classes[i]} {100 * sure[file.stem][i]:.0f}%" for i in best]
    ax.imshow(Image.open(file))
    ax.set_title(file.stem, fontweight="bold")
    ax.set_xlabel("\n".join(lines))
    ax.set(xticks=[], yticks=[])
    told.append(f"{file.stem}: {lines[0]}")
fig.suptitle("Six new images, with the three most likely classes for each")
workshop.figure(fig, alt=f"Six new images and their most likely classes. {'; '.join(told)}.")
print(f"{told[-2]}; {told[-1]}; its 12 probabilities add up to {sure['noise'].sum():.3f}")

# %% [markdown]
# The network can be more confident about noise than about a sign. It always answers, because softmax turns any 12 numbers into positive numbers that add up to 1. It has no class for "none of these". The probabilities answer "If it is one of the twelve, which one?", not "Is it one of the twelve?" If your camera sees other things, add images of them to the training set, as a separate class.
#
# ## How far to trust a probability
#
# Does "90%" mean that 9 of 10 such predictions are right? Count: group the validation predictions by the probability of the predicted class, and compare each group's mean probability with its fraction of correct predictions. **Predict:** are the probabilities too high, or too low?

# %%
chosen = torch.softmax(logits, dim=1).max(dim=1)
claimed, right = chosen.values.numpy(), (chosen.indices == labels).numpy()
edges = np.array([0, 0.3, 0.5, 0.7, 0.9, 1])
group = np.digitize(claimed, edges[1:-1])
there = np.unique(group)
mean = [100 * claimed[group == g].mean() for g in there]
share = [100 * right[group == g].mean() for g in there]
size = [np.sum(group == g) for g in there]
x = np.arange(len(there))
fig, ax = plt.subplots(figsize=(10, 3.5), layout="constrained")
ax.bar_label(ax.bar(x - 0.2, mean, 0.38, label="mean probability"), fmt="%.0f")
ax.bar_label(
    ax.bar(x + 0.2, share, 0.38, hatch="//", edgecolor="white", label="correct"), fmt="%.0f"
)
names = [f"{100 * edges[g]:.0f} to {100 * edges[g + 1]:.0f}%" for g in there]
ax.set_xticks(x, [f"{name}\n{n} images" for name, n in zip(names, size, strict=True)])
ax.set(title="Mean probability and fraction of correct predictions", ylabel="%", ylim=(0, 110))
ax.set_xlabel("probability of the predicted class")
ax.legend(loc="upper left")
finding = f"{names[-1]}: {size[-1]} images, {share[-1]:.0f}% right, {mean[-1]:.0f}% claimed."
workshop.figure(fig, alt=f"Two bars for each range of probability. {finding}")
print(finding)

# %% [markdown]
# If the two bars of a group agree, the network is **calibrated** there. If the hatched bar is lower, it is overconfident. A threshold such as "act above 90%" is valid for one checkpoint only, so repeat the count for the next one. If a network is overconfident throughout, *temperature scaling* helps: divide the logits by a constant, fitted on validation images. The chosen classes stay the same.
#
# ## A benchmark with six mistakes
#
# How fast is the network? The benchmark below makes six mistakes. **Find as many as you can** before you read on.

# %%
import copy
import time

net = copy.deepcopy(model).train()  # as it is after training
begin = time.perf_counter()
for start in range(0, 16, 4):
    net(torch.stack([prepare(file) for file in some[start : start + 4]]).to(device))
first = 1000 * (time.perf_counter() - begin) / 4
print(f"A batch of 4 takes {first:.1f} ms!")

# %% [markdown]
# 1. The network is in **training mode**: batch norm uses the statistics of these four images, so each prediction depends on the other images in the batch, and every call changes the running averages.
# 2. Without `inference_mode`, autograd **keeps all activations** for a backward pass that never comes.
# 3. The time includes **decoding**. That can be what you want, but then say so.
# 4. It includes the **first calls**, which allocate memory and choose kernels.
# 5. On a GPU, the code **does not wait** for the result: the call returns as soon as the work is queued.
# 6. It reports **one mean**, without its spread, image size, precision or threads.
#
# Here is the corrected version:


# %%
def answer_times(net, batch, repeats, warm_up=3):
    """Return the seconds that each of `repeats` calls takes on a batch in memory."""
    seconds = []
    with torch.inference_mode():
        for _ in range(warm_up + repeats):
            begin = time.perf_counter()
            net(batch)
            if device == "cuda":
                torch.cuda.synchronize()
            seconds.append(time.perf_counter() - begin)
    return seconds[warm_up:]


# %%
off = (net.train()(images[:4]).detach().cpu() - logits[:4]).abs().max()
took = 1000 * np.array(answer_times(model, images[:4], session.repeats))
print(f"in training mode the logits are off by up to {off:.2f}")
print(
    f"median {np.median(took):.1f} ms, slowest {took.max():.1f}; the first benchmark said {first:.1f}"
)
print(f"batch 4, 64 px, float32, {torch.get_num_threads()} threads, {device}, {len(took)} calls")

# %% [markdown]
# ## Fold the batch norms
#
# Training needs batch norm as a separate layer. In inference its mean and variance are fixed, so batch norm is one multiplication and one addition per value, with constants for each channel. The preceding convolution can absorb both:
#
# `gamma · (W x − mean) / std + beta  =  (gamma / std · W) x + (beta − gamma · mean / std)`
#
# PyTorch's `fuse_conv_bn_eval` computes these weights. Apply it to all 53 pairs of a convolution and a batch norm. **Predict:** by how much do the logits, the outputs before softmax, change?

# %%
from itertools import pairwise

from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

folded = copy.deepcopy(model)
count = 0
for module in list(folded.modules()):
    for (name, conv), (norm_name, norm) in pairwise(list(module.named_children())):
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            setattr(module, name, fuse_conv_bn_eval(conv, norm))
            setattr(module, norm_name, nn.Identity())
            count += 1
with torch.inference_mode():
    again = torch.cat([folded(part) for part in images.split(32)]).cpu()
folding = (again - logits).abs().max().item()
print(f"{count} batch norms folded; logits up to {logits.abs().max():.1f} change by {folding:.1e}")

# %% [markdown]
# The difference is only rounding. Folding saves almost no arithmetic; it saves **memory traffic**: a separate layer reads its input from memory and writes its output back. After folding, the same kernel can also apply the ReLU and add the shortcut while the result is still in registers.

# %%
(flops, separate), (_, fused) = (nb07.traffic(16, "float32", fused) for fused in (False, True))
print(f"ResNet-50, 224 px, batch 16, float32: {flops / 1e9:.1f} GFLOP per image in both versions")
print(f"separate layers:                      {separate / 1e6:.0f} MB of traffic per image")
print(
    f"folded, with ReLU and addition fused: {fused / 1e6:.0f} MB, {separate / fused:.1f} times less"
)

# %% [markdown]
# ## Export the network
#
# The program that serves a network is often not the one that trained it. **ONNX** is a common file format for this: it stores operations and weights. `rn50 export` includes the normalisation, because a caller who forgets to normalise gets wrong answers and no error.
#
# For any PyTorch model, use what `rn50 export` uses: `torch.onnx.export(model, (images,), "model.onnx", dynamo=True, dynamic_shapes=({0: "N"},), external_data=False)`, which needs `onnxscript`. (By default, the weights go to a second file.) The older, TorchScript-based exporter (`dynamo=False`) is deprecated.

# %% language="bash" magic_args="-e"
# rn50 export model $EPOCHS -o model.onnx 2>&1
# ls -lh model.onnx

# %%
import onnxruntime

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = torch.get_num_threads()
# no spinning: other versions run in between
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
serving = onnxruntime.InferenceSession("model.onnx", options, providers=["CPUExecutionProvider"])
pixels = (images.cpu() * STD + MEAN).round().permute(0, 2, 3, 1).numpy().astype(np.uint8)
(theirs,) = serving.run(["logits"], {"images": pixels})
exported = float(np.abs(theirs - logits.numpy()).max())
print(f"ONNX Runtime and PyTorch: logits differ by up to {exported:.1e},", end=" ")
print(f"{100 * np.mean(theirs.argmax(1) == logits.argmax(1).numpy()):.0f}% of predictions agree")

# %% [markdown]
# The best test of an export is whether an independent program gives the same answers. (`rn50 score --engine onnxruntime` or `openvino` scores the whole validation set with that engine; `auto` times all and takes the fastest.)
#
# ## Which version is fastest?
#
# Now compare all versions on a batch of 64-pixel images: your model with and without `inference_mode`, your folded model, the library's `Predictor`, ONNX Runtime, OpenVINO, and `Predictor` in 16 bits. `Predictor` folds, uses channels-last and, on x86 CPUs, fuses ReLU and addition. The versions take turns, so a temporary slowdown hits all of them. **Predict** the order, and whether `Predictor` gains as much as the traffic suggests. (At 64 pixels, many activations stay in cache, and the weights' share is larger.)

# %%
from rn50lib.torch.inference import Predictor

reduced = torch.float16 if device == "cuda" else torch.bfloat16
batch = images[: session.form_batch]
batch_pixels = pixels[: session.form_batch]
half = Predictor(model, reduced)
forms = {
    "autograd on": model,
    "inference_mode": torch.inference_mode()(model.forward),
    "folded": torch.inference_mode()(folded.forward),
    "Predictor": Predictor(model, torch.float32),
    "ONNX Runtime, CPU": lambda _: serving.run(["logits"], {"images": batch_pixels}),
    "Predictor, 16 bits": half,
}
try:
    import openvino
except ImportError:
    print("OpenVINO is not installed here, so it is left out.")
else:
    limits = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model("model.onnx", "CPU", limits)
    forms["OpenVINO, CPU"] = lambda _: compiled(batch_pixels)
seconds = {name: [] for name in forms}
for turn in range(rounds + 2):  # the first two warm up
    for name, form in forms.items():
        begin = time.perf_counter()
        form(batch)
        if device == "cuda":
            torch.cuda.synchronize()
        if turn >= 2:
            seconds[name].append(time.perf_counter() - begin)
ms = {name: 1000 * np.array(values) for name, values in seconds.items()}
middle = [np.median(values) for values in ms.values()]
ends = [
    [np.median(v) - v.min() for v in ms.values()],
    [v.max() - np.median(v) for v in ms.values()],
]
fig, ax = plt.subplots(figsize=(10, 3.5), layout="constrained")
names = [f"{name}\n{m:.1f} ms" for name, m in zip(ms, middle, strict=True)]
ax.barh(names, middle, xerr=ends, capsize=4)
ax.invert_yaxis()
ax.set(title=f"Time for a batch of {len(batch)} images, 64 px ({device})")
ax.set(xlabel=f"milliseconds: median and range of {rounds} rounds")
plain = ms["inference_mode"]
gain = {name: float(np.median(plain / values)) for name, values in ms.items()}
finding = "; ".join(f"{name} {value:.2f}" for name, value in gain.items())
workshop.figure(fig, alt=f"Time per batch by version. Speed relative to inference_mode: {finding}.")
print(f"Speed relative to inference_mode, median of {rounds} rounds' ratios: {finding}")
print(f"The memory traffic suggests up to {separate / fused:.1f} for Predictor.")

# %% [markdown]
# Expect `Predictor` to gain less than the traffic suggests: folding and fusing save only memory traffic and kernel launches, while the arithmetic of the convolutions remains. (The printed speeds are medians of the ratios within each round. If a version's times vary widely, they differ from the ratio of the bars.) 16-bit arithmetic is fast only if the hardware supports it. A CPU that must emulate bfloat16 is usually slower with it than with float32.
#
# Training in float16 needed a loss scale and master weights. Inference has no gradients, so only one question remains: do the predictions change?

# %%
with torch.inference_mode():
    short = torch.cat([half(part) for part in images.split(32)]).cpu()
same = 100 * (short.argmax(1) == logits.argmax(1)).float().mean().item()
print(f"{reduced}: logits change by up to {(short - logits).abs().max():.3f},", end=" ")
print(f"{same:.1f}% of {len(images)} predictions stay the same")

# %% [markdown]
# ## Eight bits
#
# Recent processors multiply 8-bit integers several times as fast as floats (on x86, look for `vnni` in `lscpu`). So store each value *x* as an integer *q*, with *x* ≈ *s* (*q* − *z*). The **scale** *s* is the size of one step, and the **zero point** *z* is the integer for 0. The weights' range is known. The activations' range must be measured on some images; this, too, is called **calibration**. **Your turn:** write `quantise`, for a range that includes 0; the collapsed cell below has a finished version. **Predict:** how large is the rounding error, relative to the values?


# %%
def quantise(x):
    """Return q (torch.uint8), the scale s and the zero point z of a tensor."""
    return None  # your code


# %% tags=["folded"]
def finished(x):
    low, high = min(0.0, x.min().item()), max(0.0, x.max().item())
    scale = (high - low) / 255
    zero_point = round(-low / scale)
    return (x / scale).round().add(zero_point).clamp(0, 255).to(torch.uint8), scale, zero_point


def rounding_error(x, q, scale, zero_point):
    return ((scale * (q.float() - zero_point) - x).norm() / x.norm()).item()


with torch.inference_mode():
    x = folded.conv1(images[:64])
if quantise(x) is None:
    print("`quantise` returns None, so the finished version is used.")
    quantise = finished
q, scale, zero_point = quantise(x)
error = rounding_error(x, q, scale, zero_point)
print(f"range {x.min():.2f} to {x.max():.2f}: scale {scale:.4f}, zero point {zero_point}")
print(f"bytes: {x.nbytes:,} as float32, {q.nbytes:,} as {q.dtype}; error {100 * error:.1f}%")
if error > 1.1 * rounding_error(x, *finished(x)):
    print(f"The finished version's error is {100 * rounding_error(x, *finished(x)):.1f}%.")
    print("Does your range include 0? Is q rounded, and clamped before it becomes uint8?")

# %% [markdown]
# `rn50 export --int8` calibrates all layers on up to 256 validation images, with ONNX Runtime's own tool. It uses one scale per output channel for weights and one per tensor for activations, and scores both files on other validation images. (They are not the ones above, so float32's score differs slightly.)

# %% language="bash" magic_args="-e"
# rn50 export model $EPOCHS -o int8.onnx --int8 2>&1
# ls -lh model.onnx int8.onnx

# %%
files_of = {"float32": "model.onnx", "int8": "int8.onnx"}
sessions = {
    name: onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    for name, file in files_of.items()
}
for count in (1, session.form_batch):
    took = {name: [] for name in sessions}
    for _ in range(rounds + 2):
        for name, run in sessions.items():
            begin = time.perf_counter()
            run.run(["logits"], {"images": pixels[:count]})
            took[name].append(time.perf_counter() - begin)
    ratio = np.divide(took["float32"], took["int8"])[2:]
    print(f"batch {count}: int8 is {np.median(ratio):.2f} times as fast as float32", end=" ")
    print(f"({ratio.min():.2f} to {ratio.max():.2f})")

# %% [markdown]
# A few predictions may change, so always score a quantised network. With 600 images, a difference of a few images, in either direction, is noise. On GPUs, use TensorRT; this course has not tested it.
#
# ## One request
#
# A real request is a JPEG file, which must be decoded, resized and cropped. Time the preparation and the network separately, without a queue. The **p99** is the time within which 99% of the requests are answered; p50 is the median. **Predict:** what fraction of the time does the preparation take, and how many times p50 is p99?

# %%
decoding, answering = [], []
with torch.inference_mode():
    for i in range(requests + 3):
        begin = time.perf_counter()
        x = prepare(files[i % len(files)])[None].to(device)
        decoded = time.perf_counter()
        folded(x).argmax().item()  # waits for the GPU
        decoding.append(1000 * (decoded - begin))
        answering.append(1000 * (time.perf_counter() - decoded))
decoding, answering = np.array(decoding[3:]), np.array(answering[3:])
latency = decoding + answering
p50, p90, p99 = np.percentile(latency, (50, 90, 99), method="inverted_cdf")
fig, ax = plt.subplots(figsize=(10, 3.5), layout="constrained")
ax.ecdf(latency, label="whole request")
ax.ecdf(decoding, ls="--", label="preparation only")
ax.axvline(latency.mean(), color="black", ls=":", label=f"mean {latency.mean():.1f} ms")
for name, value, share in (("p50", p50, 0.5), ("p90", p90, 0.9), ("p99", p99, 0.99)):
    ax.plot(value, share, "ks")
    ax.annotate(
        f"{name} {value:.1f} ms", (value, share), xytext=(6, -12), textcoords="offset points"
    )
ax.set(title="Latency of single requests", xlabel="milliseconds", ylabel="share of requests")
ax.set(xlim=(0, 1.3 * p99))
ax.legend(loc="center right")
finding = (
    f"Half of {len(latency)} requests take at most {p50:.1f} ms and 99% at most {p99:.1f} ms;"
    f" decoding and cropping take {100 * decoding.sum() / latency.sum():.0f}% of the time."
)
workshop.figure(fig, alt=f"Cumulative distribution of the latency. {finding}")
print(finding)
print(f"p99 is {p99 / p50:.1f} times p50; the mean is {latency.mean():.1f} ms.")
if p90 > 3 * p50:
    print("The slowest tenth took over 3 times p50: repeat on an idle machine.")

# %% [markdown]
# Services promise a p99 because neither the mean nor the median shows how slow the slowest requests are. A page that needs ten answers waits for the slowest. If 1% of the answers are slow, 1 − 0.99¹⁰ ≈ 10% of such pages are slow. With n requests, every percentile above 100 − 100/n is simply the slowest request.
#
# ## One at a time, or many
#
# The published inference tables report **Total IPS**: the batch size divided by the mean seconds per iteration, data and computation together, excluding the first iteration of each epoch. Reading, decoding and cropping real JPEGs are included. To compare with such a table, measure the same quantity. The second command below uses random images in memory, so it shows the network alone.
#
# **Predict** for this machine: by what factor does the throughput rise from batch 1 to the largest batch, and from real to synthetic images?

# %% language="bash" magic_args="-e"
# common="-n 1 -b $BATCHES -i $ITERATIONS -e 3 -w 1 --only-inference --image-shape 224 --dtype float32"
# rn50 benchmark $common --data-root "$DATA" -o real.json 2>&1
# rn50 benchmark $common --loader synthetic --num-classes 12 -o synthetic.json 2>&1

# %% [markdown]
# The published figures come from one 16 GB V100 and real ImageNet records, in NVIDIA's MXNet container 18.12, with the command below (for FP32, up to batch 96). `rn50 benchmark` has the same flags. [docs/recipes.md](../docs/recipes.md) lists what else is known about them.
#
# ```bash
# python benchmark.py -n 1 -b 1,2,4,8,16,32,64,96,128,192,208 --dtype float16 \
#   -o inferbenchmark_report_fp16.json --data-root <path to imagenet> \
#   -i 200 -e 12 -w 4 --only-inference
# ```

# %%
from rn50 import published

yours = {}
for kind in ("real", "synthetic"):
    cells = json.loads(Path(f"{kind}.json").read_text())["metrics"]["1"]
    yours[kind] = {int(b): cell["val.total_ips"] for b, cell in cells.items()}
series = {"FP16": published.load()["DGX-1", "mixed"], "FP32": published.load()["DGX-1", "FP32"]}
v100 = {k: {int(b): ips for b, ips in s.inference_ips.items()} for k, s in series.items()}
fig, axes = plt.subplots(1, 2, figsize=(10, 3.6), layout="constrained")
titles = ("This machine, float32", "One V100 16 GB, real images, published")
for ax, title, rates in zip(axes, titles, (yours, v100), strict=True):
    for (name, values), style in zip(rates.items(), ("o-", "s--"), strict=True):
        ax.plot(*zip(*sorted(values.items()), strict=True), style, label=name)
    ax.set(title=title, xlabel="batch", ylabel="Total IPS, images/s", xscale="log")
    ax.set_ylim(0, 1.1 * max(max(values.values()) for values in rates.values()))
    ax.set_xticks((1, 4, 16, 64, 208), (1, 4, 16, 64, 208))
    ax.minorticks_off()
    ax.legend()
rise = {n: r[max(r)] / r[min(r)] for n, r in (yours | v100).items()}
finding = ", ".join(f"{name} {value:.1f}" for name, value in rise.items())
workshop.figure(fig, alt=f"Total IPS by batch size. Largest over smallest batch: {finding}.")
print(f"Throughput of the largest batch over that of the smallest: {finding}")
last = max(yours["real"])
for size in sorted({min(yours["synthetic"]), last}):
    ms_per_batch = 1000 * size / yours["synthetic"][size]
    print(f"Network alone, batch {size}: {ms_per_batch:,.0f} ms per batch")
ratio = yours["synthetic"][last] / yours["real"][last]
print(
    f"Batch {last} on this machine: synthetic images give {ratio:.2f} times the throughput of real ones"
)

# %%
flops, moved = nb07.traffic(1, "float16")
bandwidth = 1e9 * session.results["v100.bandwidth"].value  # the data sheet's bytes per second
peak = 1e12 * session.results["v100.fp16"].value
print(
    f"V100, FP16, batch 1: published {1000 / v100['FP16'][1]:.1f} ms per image; by the data sheet,"
)
print(f"the network needs at least {1000 * max(moved / bandwidth, flops / peak):.2f} ms")

# %% [markdown]
# Why is a batch of 1 so slow on the V100? At the data sheet's rates, memory traffic and arithmetic would take about a tenth of a millisecond, so nearly all of the time must go elsewhere. Three causes are likely, but the table cannot tell them apart:
#
# - **Decoding.** A batch of 1 holds one JPEG, so only one of DALI's ten validation threads has work.
# - **Kernel launches.** A forward pass launches many kernels one after another, each at a fixed cost. (H100, PyTorch 2.11: a CUDA graph raised batch 1 from 204 to 1,461 images/s.)
# - **Small layers.** The last stage has feature maps of 7 × 7 pixels, too few to keep 80 multiprocessors busy.
#
# A larger batch helps with all three. The published table has no synthetic column. Yours has: the gap between your two curves comes from the input, and the rise of the synthetic curve from the network. (If synthetic is below real, that is noise: without a GPU, each point averages few iterations.) On a CPU, one 224-pixel image already keeps a few cores busy: the curve is flatter and may even fall.
#
# ## Your numbers
#
# The table compares your measurements with recorded ones from another CPU, on one thread. Even the winner may differ.

# %% tags=["results"]
over_onnx = float(np.median(ms["ONNX Runtime, CPU"] / ms["Predictor"]))
batch1 = min(yours["real"])
session.expect({
    "inference.folded_faster": gain["Predictor"],
    "inference.over_onnx": over_onnx,
    "inference.decoding": 100 * decoding.sum() / latency.sum(),
})  # fmt: skip
session.note("score_equal", "yes" if trained == scored else "no", "", "score equals training")
session.note("folded_apart", folding, "", "largest change of a logit due to folding")
session.note("folded_faster", gain["Predictor"], "times", "Predictor over inference_mode")
session.note("over_onnx", over_onnx, "times", "Predictor over ONNX Runtime")
session.note("half_same", same, "%", f"same prediction in {str(reduced).removeprefix('torch.')}")
session.note("export_onnx", exported, "", "largest difference of a logit, ONNX Runtime")
session.note("p99", float(p99), "ms", "99% of single requests are answered within")
session.note("real_ips", yours["real"][batch1], "img/s", f"Total IPS, real images, batch {batch1}")

# %% [markdown]
# ## Where is the time going now?
#
# A single request waits for decoding, then for the network. A batch shares fixed costs, but its first image waits for its last, and under load requests also queue (ex07). Latency cannot be derived from throughput: publish both, with batch, image size, precision and threads.
#
# ## Key takeaways
#
# - Score a checkpoint before you build on it, and expect equality to the last digit.
# - The probabilities say which known class is most likely, never whether the image shows one. Compare them with the fraction of correct predictions to see how far to trust them.
# - Folding and fusing give the same results, up to rounding, with less memory traffic.
# - For a correct timing you need evaluation mode, `inference_mode`, warm-up, synchronisation, and a decision about decoding.
# - Report p99, not the mean.
# - Total IPS includes the input. Compare it only with Total IPS.
#
# **Try it:** change `epochs` and run all cells again. Is a network with less training over- or underconfident? To train for a new task from these weights, use `rn50 run --init-from model` ([docs/weights.md](../docs/weights.md)).
#
# The last notebook asks how much faster 8 or 512 GPUs would be.
