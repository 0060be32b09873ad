# %% [markdown]
# # 07 · Inference
#
# After this notebook, you can score a checkpoint, find where a prediction spends its time, fold batch norms, capture a CUDA graph, compare engines and see where they are faster, and measure latency under load.
#
# **Time:** 60 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 3 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
epochs: int | None = None  # epochs of the training run
rounds: int | None = None  # rounds in which the versions take turns
requests: int | None = None  # number of requests in each experiment
seed: int = 0  # random seed

# %%
import os

import workshop

session = workshop.start("07", profile)
epochs, rounds = epochs or session.epochs, rounds or session.rounds
requests = requests or session.requests
os.chdir(session.folder)  # everything below is written here
os.environ |= {
    "DATA": str(session.data_root), "EPOCHS": str(epochs), "IMAGES": str(session.images),
    "LAYERS": str(session.layers), "SEED": str(seed),
}  # fmt: skip

# %% [markdown]
# In training, only **throughput** mattered: images per second. A user waits for one prediction, so **latency**, the time from request to response, matters too. Where does the time go? One prediction starts many operators. You remove some, launch the rest at once, compare engines, let a batch share fixed costs, and end with many users who wait for each other.
#
# ## A checkpoint and its score
#
# The next cell briefly trains ResNet-50 on the road signs, at the recipe's 64 pixels. `rn50 score` then scores the checkpoint in a new process that has only the files. **Predict:** how close will its top-1 be to the accuracy that training reported?

# %% language="bash" magic_args="-e"
# echo "$DATA: $IMAGES images per epoch, epochs: $EPOCHS"
# rm -f model-*  # from an earlier run
# rn50 run --data-root "$DATA" -e $EPOCHS -b 32 --num-examples $IMAGES --seed $SEED \
#   --num-layers $LAYERS --dtype float32 --disp-batches 10 --model-prefix model --report train.json 2>&1
# rn50 score model $EPOCHS --data-root "$DATA" --dtype float32 --report score.json 2>&1

# %% [markdown]
# With the same weights, images, crops and kernels, and no randomness, the numbers are equal to the last digit. If they differ, one of these is not what you think (on a GPU, cuDNN may have chosen other kernels; check [TF32](../docs/troubleshooting.md#results-in-float32-differ-between-two-gpus-tf32)).
#
# A checkpoint is a description of the network and a file of arrays. The next cell loads it and prepares images as in validation: resize the shorter side to 256/224 of the input size, take a centre crop, and normalise.

# %%
import copy
import json
import random
import time
from itertools import pairwise
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from torch import nn, profiler

from rn50.allocator import keep_memory
from rn50lib import checkpoint
from rn50lib.torch.inference import Predictor
from rn50lib.torch.model import ResNet, load_arrays
from workshop.lessons import nb07, nb07_checks

trained, scored = (
    json.loads(Path(file).read_text())["metrics"]["val.top1"][-1]
    for file in ("train.json", "score.json")
)
print(f"training reported {trained}, score computed {scored}; equal: {trained == scored}")

keep_memory()  # as `rn50` does, so that new arrays cost no page faults
torch.backends.cudnn.allow_tf32 = False  # real float32 (notebook 06)
torch.backends.cudnn.benchmark = True  # a GPU times its kernels and takes the fastest, as rn50 does
device = torch.device("cuda" if session.profile == "gpu" else "cpu")
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


files = sorted(Path(session.data_root, "val").glob("*/*.jpg"))
some = files[:: len(files) // session.by_hand]
images = torch.stack([prepare(file) for file in some]).to(device)


@torch.inference_mode()
def predict(net, dtype=torch.float32):
    """Return the logits of all images, in batches of 32."""
    return torch.cat([net(part.to(dtype)).cpu() for part in images.split(32)])


logits = predict(model)

# %% [markdown]
# ## Where is the time going?
#
# To time a prediction correctly, you need four things:
#
# - **evaluation mode**: in training mode, batch norm uses the statistics of the batch, and every call changes the running averages;
# - `inference_mode`: without it, **autograd** keeps activations for a backward pass that never comes;
# - **warm-up**: the first calls allocate memory and choose kernels;
# - a clock that **waits**: on a GPU, a call returns as soon as its work is queued.
#
# The clock below, with a first call that does not count, has all four. (Notebook 08 measures what such mistakes cost, and you write the clock.)
#
# From here on, images are 64 × 64 on a CPU, and 224 × 224 in `float16` on a GPU. Trace one image at a time. On a GPU, Python only queues **kernels**, one launch after another; `waiting` is the time in which none of them runs. On a CPU, each operator finishes before the next one starts. **Predict:** how many operators does one prediction start? (The network has 53 convolutions.)


# %%
wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)


@torch.inference_mode()
def call(net, batch):
    """Return the milliseconds of one prediction of a network in evaluation mode."""
    begin = time.perf_counter()
    net(batch)
    wait()  # until the device has no work left
    return 1000 * (time.perf_counter() - begin)


def ready(net, dtype):
    """Return a copy of a network, its convolutions in `dtype` and channels last."""
    net = copy.deepcopy(net)
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            layer.to(dtype, memory_format=torch.channels_last)
    return net


dtype, size = getattr(torch, session.dtype), session.pixels
many = torch.stack([prepare(file, size) for file in some[: max(16, *session.race)]])
many = many.to(device, dtype, memory_format=torch.channels_last)
one, eager = many[:1], ready(model, dtype)


def traced(net, batch, file):
    """Trace three predictions; return the operators, kernels and kernel milliseconds of one."""
    when = profiler.schedule(wait=0, warmup=1, active=3)
    with profiler.profile(
        schedule=when, on_trace_ready=lambda done: done.export_chrome_trace(file), acc_events=True
    ) as trace:
        for _ in range(4):
            with profiler.record_function("forward"):
                call(net, batch)
            trace.step()
    calls = [e for e in trace.events() if e.name.startswith("aten::")]
    inner = [e for e in calls if e.cpu_parent and e.cpu_parent.name.startswith("aten::")]
    events = json.loads(Path(file).read_text())["traceEvents"]
    kernels = [event["dur"] / 1000 for event in events if event.get("cat") == "kernel"]
    return (len(calls) - len(inner)) // 3, len(kernels) // 3, sum(kernels) / 3


operators, kernels, busy = traced(eager, one, "one.json")
kinds = workshop.trace("one.json", of="prediction")
share = kinds["convolution"] / sum(kinds.values())
print(f"{operators} operators; convolutions take {share:.0%} of the time")

# %% [markdown]
# Folding, below, removes *normalisation* and some of the time between operators (in *other*, with Python; on a GPU, in *waiting*). What does it cost just to *start* an operator? Time a short and a long chain of convolution, batch norm and ReLU on a single number: there is nothing to compute. The time per added operator is its cost.


# %%
def chain(length):
    layers = [nn.Conv2d(1, 1, 1, bias=False), nn.BatchNorm2d(1), nn.ReLU(inplace=True)]
    copies = [copy.deepcopy(layer) for _ in range(length) for layer in layers]
    return nn.Sequential(*copies).to(device).eval()


def race(works, turns):
    """Time pairs of a network and a batch in turns; return the median of three calls by name.

    An untimed call before them hands the cores to the next engine's threads.
    """
    ms = {name: [] for name in works}
    for turn in range(turns + 1):  # the first one warms up
        for name in random.sample(list(works), len(works)):
            call(*works[name])
            took = [call(*works[name]) for _ in range(3)]
            if turn:
                ms[name].append(np.median(took))
    return {name: np.array(values) for name, values in ms.items()}


number = torch.zeros(1, 1, 1, 1, device=device)
works = {length: (chain(length), number) for length in (10, 80)} | {"network": (eager, one)}
ms = race(works, session.repeats)
alone = np.median(ms["network"])
starts = operators * (ms[80] - ms[10]) / (3 * 70)  # ms of all operators, one value per turn
started = np.median(starts)
low, high = 100 * np.quantile(starts / ms["network"], [0.1, 0.9])
print(f"One image takes {alone:.2f} ms, the median of {session.repeats} turns.")
print(f"Starting {operators} operators at {1000 * started / operators:.1f} µs", end=" ")
print(f"takes {started:.2f} ms, {started / alone:.0%} of it", end=" ")
print(f"({low:.0f} to {high:.0f}% in 8 of 10 turns)")
if kernels:
    print(f"{kernels} kernels run for {busy / alone:.0%} of the time")

# %% [markdown]
# The operators are 53 convolutions, 53 batch norms, 49 ReLUs, 16 additions, two poolings and a linear layer. Starting fewer of them helps on *your* device only if the share above is large. If it is small, look at the convolutions: other engines, below, may run faster ones.
#
# ## Fewer operators: fold the batch norms
#
# In inference, the mean and variance of a batch norm are fixed, so it is one multiplication and one addition per value, with constants for each channel. The preceding convolution can absorb both:
#
# `gamma · (W x − mean) / std + beta  =  (gamma / std · W) x + (beta − gamma · mean / std)`, with `std = √(var + eps)`
#
# **Your turn:** write `fold`. In PyTorch, gamma and beta are `norm.weight` and `norm.bias`; the rest is `norm.running_mean`, `norm.running_var` and `norm.eps`. `conv.weight` has the shape (channels out, channels in, height, width), and there is no `conv.bias`.


# %%
def fold(conv, norm):
    """Return the weight and the bias of a convolution that includes the batch norm after it."""
    return None  # your code


# %%
fold = nb07_checks.check_fold(fold)

# %% [markdown]
# Apply it to every pair of a convolution and a batch norm. (PyTorch has `torch.nn.utils.fusion.fuse_conv_bn_eval`.) **Predict:** by how much do the logits, the outputs before softmax, change?

# %%
folded = copy.deepcopy(model)
count = 0
for module in list(folded.modules()):
    for (_, conv), (norm_name, norm) in pairwise(list(module.named_children())):
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            weight, bias = fold(conv, norm)
            conv.weight, conv.bias = (nn.Parameter(part.detach()) for part in (weight, bias))
            setattr(module, norm_name, nn.Identity())
            count += 1
folding = (predict(folded) - logits).abs().max().item()
print(f"{count} batch norms folded; logits up to {logits.abs().max():.1f} change by {folding:.1e}")
folded = ready(folded, dtype)
fewer, *_ = traced(folded, one, "folded.json")
share = kinds["normalisation"] / sum(kinds.values())  # of the trace above, starts included
if kernels:  # they run behind the launches
    share = max((1 - fewer / operators) * started / alone, share)
print(f"{operators} operators before, {fewer} now; the removed ones took {share:.0%}", end=" ")
print(f"of a prediction: × {1 / (1 - share):.2f} without")
ms = race({"eager": (eager, one), "folded": (folded, one)}, rounds)
print(f"In turns, the speed of folded over eager: {workshop.ratio(ms['eager'] / ms['folded'])}")

# %% [markdown]
# The difference is only rounding. (A difference is clear if at least five turns are all on one side of 1.) Folding saves hardly any arithmetic. It can save the time of starts and of **memory traffic**: a separate layer reads its input and writes its output.
#
# ## One launch for all kernels
#
# A **CUDA graph** records all kernel launches of a prediction once; `replay()` then starts them with a single call. **Your turn:** write `capture`:
#
# 1. Make `static`, a clone of `example`. The graph always reads its input there.
# 2. Warm up on a side stream: create `side = torch.cuda.Stream()`, then `side.wait_stream(torch.cuda.current_stream())`, call `net(static)` three times in `with torch.cuda.stream(side):`, and let the current stream wait for `side`.
# 3. Create `graph = torch.cuda.CUDAGraph()`, and call `output = net(static)` in `with torch.cuda.graph(graph):`. This only records; nothing runs.
# 4. Return a function `replay(batch)` that copies `batch` into `static`, calls `graph.replay()` and returns `output`. The graph knows addresses only, so keep the weights alive: `def replay(batch, net=net)`.
#
# The check compares your graph with **eager** (operator-by-operator) execution. Without a GPU, it replaces these parts of `torch.cuda` with stand-ins, which record and repeat operators, but save no time. Then **predict:** how much faster is an H100 with a graph at batch 1, 16 and 256?


# %%
@torch.no_grad()
def capture(net, example):
    """Return a function that predicts a batch like `example` by replaying a CUDA graph."""
    return None  # your code


# %%
capture = nb07_checks.check_capture(capture, device.type)
share, what = started / alone, "starting takes"
if kernels:
    share, what = 1 - busy / alone, "no kernel runs for"
print(f"Here, {what} {share:.0%} of a prediction: one launch for all saves at most that")
print(f"ResNet-50, float16, 224 px, {session.results['h100.predict.eager.1'].provenance}:")
for key, item in session.results.items():
    if key.startswith("h100.predict") and "eager" not in key:
        eagerly = session.results[f"h100.predict.eager.{key.split('.')[-1]}"].value
        way = item.what.split("px, ")[1]
        print(f"{item.value / eagerly:.1f} times eager's {eagerly:,} img/s: {way}")

# %% [markdown]
# In a large batch, kernels hide the launches; at 256, the graph gains hardly more than **pinned** memory alone, from which a GPU copies directly. Faster kernels gain more: `torch.compile` fuses what follows a convolution (last line: torchvision's network and its own eager speed).
#
# ## Faster kernels: other engines
#
# The program that serves a network is often not the one that trained it. **ONNX** is a file format for this: it stores operations and weights, and most engines read it, on GPUs also NVIDIA's TensorRT. The next cell exports your folded network. (Engines also offer [quantisation](https://onnxruntime.ai/docs/performance/model-optimizations/quantization.html) to eight bits. It changes some answers: score all images before you use it.)

# %%
import logging
import warnings
from importlib.util import find_spec

import onnxruntime

logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it looks for torchvision
warnings.simplefilter("ignore", FutureWarning)  # about the exporter's own calls
provider = "CUDAExecutionProvider" if device.type == "cuda" else "CPUExecutionProvider"
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = torch.get_num_threads()
# no spinning: other versions run in between
options.add_session_config_entry("session.intra_op.allow_spinning", "0")


def serve_onnx():
    """Return a function that predicts a batch with ONNX Runtime, or None if it fell back."""
    engine = onnxruntime.InferenceSession("float.onnx", options, providers=[provider])
    if engine.get_providers()[0] != provider:  # ONNX Runtime then uses the CPU without an error
        return None

    def run(x):
        if device.type == "cpu":
            return torch.from_numpy(engine.run(["logits"], {"images": x.numpy()})[0])
        x, binding = x.contiguous(), engine.io_binding()  # the batch stays on the GPU
        torch.cuda.synchronize()
        binding.bind_input("images", "cuda", 0, np.float16, tuple(x.shape), x.data_ptr())
        binding.bind_output("logits", "cuda")
        engine.run_with_iobinding(binding)
        return torch.from_numpy(binding.copy_outputs_to_cpu()[0])

    return run


forms, served = {"eager": eager, "folded": folded, "Predictor": Predictor(model, dtype)}, None
if provider in onnxruntime.get_available_providers():
    torch.onnx.export(
        folded, (many[:2],), "float.onnx", dynamo=True, dynamic_shapes=({0: "N"},), verbose=False,
        input_names=["images"], output_names=["logits"], external_data=False,
    )  # fmt: skip
    served = serve_onnx()
if served:
    forms["ONNX Runtime"] = served
else:
    print(f"ONNX Runtime is left out: {provider} is missing or did not load, so it would use")
    print("the CPU. Install onnxruntime-gpu for your version of CUDA.")
if device.type == "cpu" and find_spec("openvino"):
    import openvino

    limits = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    network = openvino.Core().compile_model("float.onnx", "CPU", limits)
    forms["OpenVINO"] = lambda x: torch.from_numpy(network(x.numpy())[0])
if device.type == "cuda":  # the exported file takes only images of this size
    images = torch.stack([prepare(file, size) for file in some]).to(device)
    logits = predict(model)
for name, form in forms.items():
    found = predict(form, dtype)
    same = 100 * (found.argmax(1) == logits.argmax(1)).float().mean()
    print(f"{name:12} logits change by up to {(found - logits).abs().max():.1e},", end=" ")
    print(f"{same:.1f}% of {len(images)} predictions stay the same")

# %% [markdown]
# If an independent program gives the same answers, the export works.
#
# ## Which version is fastest, and at which batch?
#
# All versions and batches take turns in random order. (`Predictor`, this library's, folds, too; OpenVINO, if installed, is Intel's engine.) Speeds drift, so compare within a race, and believe a small gain (folding's) only if two races show it. **Predict** the order at batch 1, and at the largest batch.

# %%
if device.type == "cuda":
    graphs = {n: capture(folded, many[:n]) for n in session.race}
    forms["CUDA graph"] = lambda x: graphs[len(x)](x)
works = {(name, n): (form, many[:n]) for n in session.race for name, form in forms.items()}
small, *_, large = session.race
if session.compiled:  # each batch compiles for itself
    forms["torch.compile"] = torch.compile(copy.deepcopy(folded), dynamic=False)
    works["torch.compile", large] = forms["torch.compile"], many[:large]
else:
    print("torch.compile takes a minute to compile here, so it is left out")
results = race(works, rounds)

fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
best, said = {}, []
for ax, n in zip(axes, (small, large), strict=True):
    ms = {name: values for (name, batch), values in results.items() if batch == n}
    order = sorted(ms, key=lambda name: np.median(ms[name]))
    best[n], second, *_ = order
    lead = workshop.ratio(ms[second] / ms[best[n]])
    print(f"Batch {n}: {best[n]} has the lowest median; its speed over {second}: {lead}")
    for name in order:
        if name != "eager":
            print(f"  {name}, speed over eager: {workshop.ratio(ms['eager'] / ms[name])}")
    found = f"{lead.median:.2f} × {second}" if lead.clear else f"no clear lead on {second}"
    said.append(f"Batch {n}: {best[n]},\n{found}")
    workshop.spans(
        ax, {name: ms[name] for name in order}, {best[n]: workshop.FINDING} if lead.clear else {}
    )
    ax.set(title=said[-1], xlabel="ms per batch (log scale)")
name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
fig.suptitle(f"Median and range, {rounds} rounds; {name}, {session.dtype}, {size} px")
workshop.figure(fig, alt=f"Time per batch. {' '.join('; '.join(said).split())}.")

# %% [markdown]
# *Where* is a version faster than `folded`: does it start fewer operators, or are its convolutions faster? The next cell traces PyTorch's versions, and ONNX Runtime profiles itself. The time of a convolution includes what is fused into it. **Predict** which saves more: fewer operators or faster convolutions.


# %%
def parts(name, batch):
    """Return a version's number of operators, and its ms in convolutions and in the rest."""
    if name == "ONNX Runtime":
        options.enable_profiling = True
        engine = onnxruntime.InferenceSession("float.onnx", options, providers=[provider])
        for _ in range(4):
            engine.run(["logits"], {"images": batch.numpy()})
        return nb07.onnx_parts(engine.end_profiling(), runs=4)
    count = traced(forms[name], batch, "version.json")[bool(kernels)]
    ms = workshop.trace("version.json", show=False)
    return count, ms["convolution"], sum(ms.values()) - ms["convolution"]


rows, other = [], "torch.compile" if kernels else "ONNX Runtime"
for n in [n for n in (small, large) if (other, n) in results]:
    found = {}
    for name in ("folded", other):
        count, *ms = np.median([parts(name, many[:n]) for _ in range(3)], axis=0)
        rows.append([f"batch {n}, {name}", int(count), *ms])
        found[name] = np.array(ms)
    saved = found["folded"] - found[other]
    print(f"Batch {n}: {other} saves {saved.sum():.2f} ms, {saved[0]:.2f} of them in convolutions")
    if not kernels:
        nb07.print_convolutions("version.json", n)  # of folded
columns = ["", "kernels" if kernels else "operators", "convolution, ms", "the rest, ms"]
workshop.table(rows, columns, "Under the profilers, medians of three profiles")

# %% [markdown]
# On a CPU, PyTorch chooses a convolution's code by its input's size: its own, or that of the library oneDNN. Compare the engines' leads with how many run its own.
#
# ## Shared costs: one image, or many
#
# The images of a batch share its starts. If nothing else changed, a batch of *n* would take the time of the starts once and the rest of one image's time *n* times (on a GPU, the longer of the starts and *n* times the kernels of one image). The next cell compares this with `eager` in the race above. **Predict** by what factor the throughput rises from batch 1 to the largest.

# %%
one_image = results["eager", small]
for n in session.race[1:]:
    gain = workshop.ratio(n * one_image / results["eager", n])
    predicted = max(started, n * busy) if kernels else started + n * (one_image - started)
    expected = np.median(n * one_image / predicted)
    print(f"Batch {n}: images per second over batch 1: {gain}; expected: {expected:.2f}")
if kernels:
    _, _, busy_many = traced(eager, many[:large], "many.json")
    print(f"Kernels, ms per image: {busy:.3f} in batch 1, {busy_many / large:.3f} in {large}")

# %% [markdown]
# If a batch gains more than expected, it shares more costs or runs faster kernels (on a CPU, see the cell before). On a GPU, one image cannot keep all cores busy.
#
# ## One request
#
# A real request is a JPEG file, which must be decoded, resized and cropped. Time the preparation and the network separately, without a queue. The **p95** is the time within which 95% of requests are answered; p50 is the median. Services promise a p95 or p99, because the mean and the median hide the slowest requests. **Predict:** what fraction of the time does the preparation take, and what is p95 / p50?

# %%
version = best[small]
quick = forms[version]
decoding, latency = [], []
with torch.inference_mode():
    for i in range(requests + 3):
        begin = time.perf_counter()
        x = prepare(files[i % len(files)], size)[None].to(device, dtype)
        decoding.append(1000 * (time.perf_counter() - begin))
        quick(x.contiguous(memory_format=torch.channels_last)).argmax().item()  # waits for a GPU
        latency.append(1000 * (time.perf_counter() - begin))
decoding, latency = np.array(decoding[3:]), np.array(latency[3:])
p50, p95 = np.percentile(latency, (50, 95), method="inverted_cdf")
share = 100 * np.median(decoding / latency)
print(f"{version}: p50 {p50:.2f} ms, p95 {p95:.2f} ms ({p95 / p50:.2f} times p50),", end=" ")
print(f"slowest {latency.max():.2f} ms; preparation {share:.0f}% of a typical request")

# %% [markdown]
# ## Many users: latency under load
#
# A loop that sends the next request after the last answer never sees a queue. Real requests arrive at their own rate, whatever the queue (an **open loop**), and latency counts from the arrival. Two servers answer prepared images: *single* takes one request at a time, *batched* all that wait, up to `most` of them (**dynamic batching**). One random sequence of arrivals proves little, so each point has several.
#
# **Your turn:** predict the mean latency of *single*. If all services take equally long, a request waits for load / (2 (1 − load)) of them on average (Pollaczek and Khinchine), then for its own. **Predict** p95 at 50, 80 and 150% of its capacity, too.


# %%
def mean_latency(service, load):
    """Return the mean latency in ms at a `load` below 1."""
    return None  # your code


# %%
mean_latency = nb07_checks.check_latency(mean_latency)


@torch.inference_mode()
def serve(rate, most, sequence):
    """Answer requests that arrive at random, `rate` per ms; return the latency of each in ms."""
    gaps = np.random.default_rng([seed, sequence]).exponential(1 / rate, requests)
    arrivals = np.cumsum(gaps)
    latencies, begin = [], time.perf_counter()
    while (done := len(latencies)) < requests:
        now = 1000 * (time.perf_counter() - begin)
        if now < arrivals[done]:  # nothing to do
            time.sleep((arrivals[done] - now) / 1000)
            continue
        waiting = np.searchsorted(arrivals, now, side="right") - done
        count = min(waiting, most)
        answer(count)
        end = 1000 * (time.perf_counter() - begin)
        latencies += [*(end - arrivals[done : done + count])]
    return np.array(latencies)


most = 16
sizes, servers = range(1, most + 1), dict.fromkeys(range(1, most + 1), quick)
if device.type == "cuda":  # a graph has a fixed batch: take the next larger one
    version, sizes = "CUDA graph", (1, 2, 4, 8, most)
    servers = {n: capture(folded, many[:n]) for n in sizes}


def answer(count):
    n = min(n for n in sizes if n >= count)
    servers[n](many[:n])
    wait()


with torch.inference_mode():
    for n in sizes:
        answer(n)  # warm up
times = race({n: (answer, n) for n in (1, most)}, session.repeats)
capacity = 1 / np.median(times[1])
loads, limits = np.array([0.5, 0.8, 1.5]), {"single": 1, "batched": most}
served = {name: [[] for _ in loads] for name in limits}
for sequence in range(session.sequences):
    for name, runs in served.items():
        for load, latencies in zip(loads, runs, strict=True):
            latencies.append(serve(load * capacity, limits[name], sequence))

for load, latencies in zip(loads[:2], served["single"], strict=False):
    over = workshop.ratio(np.mean(latencies, axis=1) / mean_latency(1 / capacity, load))
    print(f"single, load {load:.0%}: measured over predicted mean: {over}")
tails = {}
fig, ax = plt.subplots(figsize=(9, 3.4), layout="constrained")
for name, colour in zip(limits, ("black", workshop.FINDING), strict=True):
    tails[name] = np.percentile(served[name], 95, axis=2, method="inverted_cdf")
    low, middle, high = np.quantile(tails[name], [0, 0.5, 1], axis=1)
    for i, load in enumerate(loads):
        print(f"{name}, load {load:.0%}: p95 {middle[i]:.1f} ms", end=" ")
        print(f"({low[i]:.1f} to {high[i]:.1f}, {session.sequences} sequences)")
    at, errors = 100 * loads + len(tails), (middle - low, high - middle)  # side by side
    ax.errorbar(at, middle, errors, fmt="o-", capsize=3, color=colour, label=name)
more = workshop.ratio(most * times[1] / times[most])
gain = workshop.ratio(tails["single"][-1] / tails["batched"][-1])
ax.set(title=f"p95 at {loads[-1]:.0%} load, single over batched: {gain}")
ax.set(yscale="log", ylabel="p95 in ms (log scale)", xlim=(45, 160), xticks=100 * loads)
workshop.log_ticks(ax.yaxis)
ax.axvspan(100, 160, color="0.93", zorder=0)
ax.legend()
ax.set_xlabel(f"load, % of single's capacity (grey: its queue only grows); {version}, {size} px")
workshop.figure(fig, alt=f"p95 by load; single over batched at the largest load: {gain}.")
print(f"Requests per second in batches of {most} over single: {more}")

# %% [markdown]
# The formula assumes services of one length and an endless run: services that vary make waits longer; a short run, which starts with an empty queue, shorter. Near 100%, a few requests prove little; above it, the p95 of *single* shows how long you measured. Batches raise the limit by about the last line's factor, but each request waits for its whole batch.
#
# ## Where is the time going now?

# %% tags=["results"]
queued = float(np.median(tails["single"][1]))
budget = np.median(decoding), np.median(latency - decoding), max(0, queued - 1 / capacity)
print("One request: preparation {:.1f} ms, network {:.1f} ms;".format(*budget), end=" ")
print(f"at 80% load, p95 of single: {budget[2]:.1f} ms above its median service")
session.note("decoding", share, "%", "share of a request spent on preparation")
session.note("p95", float(p95), "ms", f"p95 of {requests} single requests")
session.note("p95_load", queued, "ms", "p95 at 80% load, one request at a time")

# %% [markdown]
# A single request waits for its preparation, its starts and its kernels; near capacity, for other requests. So latency cannot be derived from throughput: publish both, with batch, image size, precision, threads and load.
#
# ## Key takeaways
#
# - Score a checkpoint before you build on it, and expect equality, on a CPU to the last digit.
# - A correct timing needs evaluation mode, `inference_mode`, warm-up and synchronisation.
# - A CUDA graph saves at most the time in which no kernel runs.
# - Call a version faster only if it wins every round, for a small gain in two races; then ask a profiler why.
# - A batch shares starts, and may get faster kernels.
# - Report p95 or p99 at a stated load, measured with an open loop and several sequences of arrivals.
#
# **Try it:** set `most` to 2 and to 8. Which one has the lowest p95 at each load?
#
# The last notebook asks whether eight more GPUs pay off.
