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
# The next cell trains ResNet-50 on the road signs, at the recipe's 64 pixels. `rn50 score` then scores the checkpoint in a new process that has only the files. **Predict:** how close will its top-1 be to the accuracy that training reported?

# %% language="bash" magic_args="-e"
# rm -f model-*  # from an earlier run
# rn50 run --data-root "$DATA" -e $EPOCHS -b 32 --num-examples $IMAGES --seed $SEED \
#   --num-layers $LAYERS --dtype float32 --model-prefix model --report train.json 2>&1
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
from rn50lib.torch.model import ResNet, load_arrays
from workshop.lessons import nb07, nb07_checks

for file in ("train.json", "score.json"):
    print(file, json.loads(Path(file).read_text())["metrics"]["val.top1"][-1])

keep_memory()  # as `rn50` does, so that new arrays cost no page faults
torch.backends.cudnn.allow_tf32 = False  # real float32 (notebook 06)
torch.backends.cudnn.benchmark = True  # a GPU times its kernels and takes the fastest, as rn50 does
on_gpu = session.profile == "gpu"
device = "cuda" if on_gpu else "cpu"
size, dtype = session.pixels, getattr(torch, session.dtype)
small, *_, large = session.race  # batches
model = ResNet(checkpoint.read_network("model"))
load_arrays(model, checkpoint.load("model", epochs).arrays)
model = model.to(device).eval()
MEAN = 255 * torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1)
STD = 255 * torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1)


def prepare(file):
    """Return a JPEG file as the network's input, float32 (3, size, size)."""
    image = Image.open(file).convert("RGB")
    scale = size * 256 / 224 / min(image.size)
    image = image.resize([round(side * scale) for side in image.size], Image.Resampling.BILINEAR)
    left, top = [(side - size) // 2 for side in image.size]
    image = image.crop((left, top, left + size, top + size))
    return (torch.tensor(np.asarray(image)).permute(2, 0, 1) - MEAN) / STD


files = sorted(Path(session.data_root, "val").glob("*/*.jpg"))
some = files[:: len(files) // session.by_hand][: session.by_hand]
images = torch.stack([prepare(file) for file in some]).to(device)


@torch.inference_mode()
def predict(net, batch):
    """Return the logits of a batch, `large` images at a time."""
    return torch.cat([net(part).cpu() for part in batch.split(large)])


logits = predict(model, images)

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
# Images are 64 × 64 on a CPU; on a GPU, 224 × 224 and from here on in `float16`. Trace one image at a time. On a GPU, Python only queues **kernels**, one launch after another; `waiting` is the time in which none of them runs. On a CPU, each operator finishes before the next one starts. **Predict:** how many operators does one prediction start? (The network has 53 convolutions.)


# %%
wait = torch.cuda.synchronize if on_gpu else (lambda: None)


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


many = images.to(dtype, memory_format=torch.channels_last)
one, eager = many[:1], ready(model, dtype)


def traced(net, batch):
    """Trace three predictions in trace.json; return the number of operators of one."""
    when = profiler.schedule(wait=0, warmup=1, active=3, repeat=1)
    with profiler.profile(schedule=when, acc_events=True) as trace:
        for _ in range(4):
            call(net, batch)
            trace.step()
    trace.export_chrome_trace("trace.json")
    calls = [e for e in trace.events() if e.name.startswith("aten::")]
    inner = [e for e in calls if e.cpu_parent and e.cpu_parent.name.startswith("aten::")]
    return (len(calls) - len(inner)) // 3


operators = traced(eager, one)
kinds = workshop.trace("trace.json", of="prediction")
busy = sum(kinds.values()) - kinds["waiting"]  # on a GPU, ms in which a kernel runs
print(f"{operators} operators")

# %% [markdown]
# What does it cost just to *start* an operator (in *other*, with Python; on a GPU, in *waiting*)? Time a short and a long chain of convolution, batch norm and ReLU on a single number: there is nothing to compute. The time per added operator is its cost.


# %%
def chain(length):
    layers = [nn.Conv2d(1, 1, 1, bias=False), nn.BatchNorm2d(1), nn.ReLU(inplace=True)]
    copies = [copy.deepcopy(layer) for _ in range(length) for layer in layers]
    return nn.Sequential(*copies).to(device).eval()


def race(works, turns):
    """Time pairs of a network and a batch in turns; return the median of three calls by name."""
    times = {name: [] for name in works}
    for turn in range(turns + 1):  # the first one warms up
        for name in random.sample(list(works), len(works)):
            call(*works[name])  # hands the cores to this engine's threads
            took = [call(*works[name]) for _ in range(3)]
            if turn:
                times[name].append(np.median(took))
    return {name: np.array(values) for name, values in times.items()}


number = torch.zeros(1, 1, 1, 1, device=device)
works = {length: (chain(length), number) for length in (10, 80)} | {"network": (eager, one)}
times = race(works, session.repeats)
alone = np.median(times["network"])
per_start = np.median(times[80] - times[10]) / (3 * 70)  # ms of one operator
started = operators * per_start
print(f"{operators} starts of {1000 * per_start:.1f} µs take {started:.2f} ms,", end=" ")
print(f"{started / alone:.0%} of a prediction of {alone:.2f} ms")

# %% [markdown]
# The operators are 53 convolutions, 53 batch norms, 49 ReLUs, 16 additions, two poolings and a linear layer. Starting fewer of them helps on *your* device only if the share above is large. If it is small (5% on two CPU cores), graphs gain little: faster convolutions, below, gain more.
#
# ## Fewer operators: fold the batch norms
#
# In inference, the mean and variance of a batch norm are fixed, so it is one multiplication and one addition per value, with constants for each channel. The preceding convolution can absorb both:
#
# `gamma · (W x − mean) / std + beta  =  (gamma / std · W) x + (beta − gamma · mean / std)`, with `std = √(var + eps)`
#
# **Your turn:** write `fold`, which the cell below applies to every pair of a convolution and a batch norm. (PyTorch has `torch.nn.utils.fusion.fuse_conv_bn_eval`.) In PyTorch, gamma and beta are `norm.weight` and `norm.bias`; the rest is `norm.running_mean`, `norm.running_var` and `norm.eps`. `conv.weight` has the shape (channels out, channels in, height, width), and there is no `conv.bias`. **Predict:** by how much do the logits, the outputs before softmax, change, and how much time can folding save, by the table of kinds?


# %%
def fold(conv, norm):
    """Return the weight and the bias of a convolution that includes the batch norm after it."""
    return None  # your code


# %%
fold = nb07_checks.check_fold(fold)
folded = copy.deepcopy(model)
for module in list(folded.modules()):
    children = list(module.named_children())  # in the order in which they run
    for (_, conv), (name, norm) in pairwise(children):
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            weight, bias = fold(conv, norm)
            conv.weight, conv.bias = nn.Parameter(weight.detach()), nn.Parameter(bias.detach())
            setattr(module, name, nn.Identity())
change = (predict(folded, images) - logits).abs().max()
print(f"Logits of up to {logits.abs().max():.1f} change by up to {change:.1e}")
folded = ready(folded, dtype)
print(f"{operators} operators before, {traced(folded, one)} now")
times = race({"eager": (eager, one), "folded": (folded, one)}, rounds)
speed = workshop.ratio(times["eager"] / times["folded"])
print(f"In turns, the speed of folded over eager: {speed}")

# %% [markdown]
# The logits differ by rounding only. Folding saves at most about *normalisation* in the table: starts and **memory traffic** (a separate layer reads its input and writes its output). (A speed differs clearly if at least five turns are all on one side of 1: a gain smaller than their scatter stays unclear.)
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
capture = nb07_checks.check_capture(capture, device)
avoided = 1 - busy / alone if on_gpu else started / alone
print(f"One launch for all would save at most {avoided:.0%} of a prediction here")
print(f"float16, 224 px, by batch, {session.results['h100.predict.eager.1'].provenance}:")
for way, what in (("graph", 1), ("graph", 16), ("graph", 256), ("pinned", 256),
                  ("compiled", "torchvision")):  # fmt: skip
    eagerly = session.results[f"h100.predict.eager.{what}"].value
    gain = session.results[f"h100.predict.{way}.{what}"].value / eagerly
    print(f"{way}, {what}: {gain:.1f} times eager's {eagerly:,} img/s")

# %% [markdown]
# In a large batch, kernels hide the launches; at 256, the graph gains hardly more than *pinned*: a batch in **pinned** memory, from which a GPU copies directly. Faster kernels gain more: `torch.compile` fuses what follows a convolution (last row: torchvision's network at batch 256, over its own eager speed).
#
# ## Faster kernels: other engines
#
# The program that serves a network is often not the one that trained it. **ONNX** is a file format for this: it stores operations and weights, and most engines read it, on GPUs also NVIDIA's TensorRT. The next cell exports your folded network for ONNX Runtime and, on a CPU, Intel's OpenVINO; if independent programs give the same answers, the export works. On a GPU, your CUDA graph and `torch.compile` compete, too.

# %%
import logging
import warnings
from importlib.util import find_spec

import onnxruntime

logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it looks for torchvision
warnings.simplefilter("ignore", FutureWarning)  # about the exporter's own calls
forms = {"eager": eager, "folded": folded}
if on_gpu:
    graphs = {n: capture(folded, many[:n]) for n in (1, 2, 4, 8, 16, large)}
    forms["CUDA graph"] = lambda x: graphs[len(x)](x)
    forms["torch.compile"] = torch.compile(copy.deepcopy(folded), dynamic=False)
provider = "CUDAExecutionProvider" if on_gpu else "CPUExecutionProvider"
if provider in onnxruntime.get_available_providers():  # on a GPU: pip install onnxruntime-gpu
    torch.onnx.export(
        folded, (many[:2],), "float.onnx", dynamo=True, dynamic_shapes=({0: "N"},), verbose=False,
        input_names=["images"], output_names=["logits"], external_data=False,
    )  # fmt: skip
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    # no spinning: other versions run in between
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    onnx = onnxruntime.InferenceSession("float.onnx", options, [provider])

    def run_onnx(x):
        if not on_gpu:
            return torch.tensor(onnx.run(None, {"images": x.numpy()})[0])
        x, binding = x.contiguous(), onnx.io_binding()  # the batch stays on the GPU
        torch.cuda.synchronize()
        binding.bind_input("images", "cuda", 0, np.float16, tuple(x.shape), x.data_ptr())
        binding.bind_output("logits", "cuda")
        onnx.run_with_iobinding(binding)
        return torch.tensor(binding.copy_outputs_to_cpu()[0])

    forms["ONNX Runtime"] = run_onnx
if not on_gpu and find_spec("openvino"):
    import openvino

    config = {"INFERENCE_NUM_THREADS": torch.get_num_threads(), "INFERENCE_PRECISION_HINT": "f32"}
    network = openvino.Core().compile_model("float.onnx", "CPU", config)
    forms["OpenVINO"] = lambda x: torch.tensor(network(x.numpy())[0])
for name, form in forms.items():
    answers = predict(form, many)
    same = (answers.argmax(1) == logits.argmax(1)).sum()
    print(f"{name:13} {same} of {len(logits)} predictions stay the same;", end=" ")
    print(f"logits change by up to {(answers - logits).abs().max():.1e}")

# %% [markdown]
# ## Which version is fastest, and at which batch?
#
# All versions and batches take turns in random order (`torch.compile` only in the largest batch, because it compiles for each). Speeds drift, so compare within a race, and believe a small gain (folding's) only if two races show it. **Predict** the order at batch 1, and at the largest batch.

# %%
works = {
    (name, n): (form, many[:n])
    for name, form in forms.items()
    for n in ([large] if name == "torch.compile" else session.race)
}
results = race(works, rounds)

fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
best = {}
for ax, n in zip(axes, (small, large), strict=True):
    times = {name: values for (name, batch), values in results.items() if batch == n}
    speeds = {name: workshop.ratio(times["eager"] / values) for name, values in times.items()}
    order = sorted(times, key=lambda name: np.median(times[name]))
    best[n], second, *_ = order
    lead = workshop.ratio(times[second] / times[best[n]])
    print(f"Batch {n}: the speed of {best[n]} over {second}: {lead}")
    for name in order:
        if name != "eager":
            print(f"  {name}, speed over eager: {speeds[name]}")
    clearly = "clearly" if lead.clear else "not clearly"
    colours = {best[n]: workshop.FINDING} if lead.clear else {}
    workshop.spans(ax, {name: times[name] for name in order}, colours)
    ax.set(title=f"Batch {n}: {best[n]},\n{clearly} ahead of {second}", xlabel="ms per batch")
fig.suptitle(f"Median and range, {rounds} rounds; {device}, {session.dtype}, {size} px")
workshop.figure(fig, alt="ms per batch of each version, with its range.")

# %% [markdown]
# *Where* is ONNX Runtime (GPU: `torch.compile`) faster than `folded`: in convolutions (with what is fused into them) or in the rest? The next cell profiles both three times; a disturbance only adds time, so the least counts. **Predict** which part saves more.


# %%
def parts(name, batch):
    """Return a version's milliseconds in convolutions and in the rest."""
    if name == "ONNX Runtime":
        options.enable_profiling = True
        profiled = onnxruntime.InferenceSession("float.onnx", options, [provider])
        for _ in range(4):
            profiled.run(None, {"images": batch.numpy()})
        return nb07.onnx_parts(profiled.end_profiling(), runs=4)
    traced(forms[name], batch)
    ms = workshop.trace("trace.json", show=False)
    return ms["convolution"], sum(ms.values()) - ms["convolution"]


rows, other = [], "torch.compile" if on_gpu else "ONNX Runtime"
for n in [large] if on_gpu else [small, large]:
    for name in ("folded", other):
        least = np.min([parts(name, many[:n]) for _ in range(3)], axis=0)
        race_ms = min(results[name, n])
        rows.append([f"batch {n}, {name} (race: {race_ms:.1f} ms)", *least])
    if not on_gpu:
        print(f"Batch {n}, convolutions of folded:", nb07.convolutions("trace.json"))
workshop.table(rows, ["", "convolution, ms", "the rest, ms"], "The least of three profiles")

# %% [markdown]
# On a CPU, PyTorch chooses a convolution's code by its input's size: its own, or that of the library oneDNN. Compare the engines' leads with how many convolutions run PyTorch's own.
#
# ## A larger batch
#
# The images of a batch share its starts. **Predict** by what factor the throughput of `eager` rises from batch 1 to the largest in the race, and how much of it shared starts can explain.

# %%
for n in session.race[1:]:
    gain = workshop.ratio(n * results["eager", small] / results["eager", n])
    print(f"Batch {n}: images per second over batch 1: {gain}")
print(f"Shared starts explain at most {alone / (busy if on_gpu else alone - started):.2f}")

# %% [markdown]
# The rest is faster convolutions: on a CPU, other code (above); on a GPU, one image cannot keep all cores busy.
#
# ## One request
#
# A real request is a JPEG file, which must be decoded, resized and cropped. Time the preparation and the network separately, without a queue. The **p95** is the time within which 95% of requests are answered; p50 is the median. Services promise a p95 or p99, because the mean and the median hide the slowest requests. **Predict:** what fraction of the time does the preparation take, and what is p95 / p50?

# %%
version = best[small]
quick = forms[version]
preparing, latency = [], []
with torch.inference_mode():
    for file in random.choices(files, k=requests + 3):
        begin = time.perf_counter()
        x = prepare(file)[None].to(device, dtype, memory_format=torch.channels_last)
        preparing.append(1000 * (time.perf_counter() - begin))
        quick(x).argmax().item()  # waits for a GPU
        latency.append(1000 * (time.perf_counter() - begin))
preparing, latency = np.array(preparing[3:]), np.array(latency[3:])  # the first warm up
p50, p95 = np.percentile(latency, (50, 95), method="inverted_cdf")
share = 100 * np.median(preparing / latency)
print(f"{version}: p50 {p50:.2f} ms, p95 {p95:.2f} ms ({p95 / p50:.2f} times p50),", end=" ")
print(f"slowest {latency.max():.2f} ms; preparation {share:.0f}% of a typical request")

# %% [markdown]
# ## Many users: latency under load
#
# A loop that sends the next request after the last answer never sees a queue. Real requests arrive at their own rate, whatever the queue (an **open loop**), and latency counts from the arrival. Two servers answer prepared images: *single* takes one request at a time, *batched* all that wait, up to `most` of them (**dynamic batching**). One random sequence of arrivals proves little, so each row has several.
#
# **Your turn:** predict the mean latency of *single*. If requests arrive independently and all services take equally long, a request waits load / (2 (1 − load)) service times on average (Pollaczek and Khinchine), then takes its own. **Predict** p95 at loads of 80 and 150% (100%: it never pauses).


# %%
def mean_latency(service, load):
    """Return the mean latency in ms at a `load` below 1."""
    return None  # your code


# %%
mean_latency = nb07_checks.check_latency(mean_latency)
most = 16
sizes = graphs if on_gpu else range(1, most + 1)


@torch.inference_mode()
def answer(count):
    """Answer `count` requests at once; a graph has a fixed batch, so take the next larger one."""
    quick(many[: min(n for n in sizes if n >= count)])
    wait()


def serve(rate, limit, sequence):
    """Answer requests that arrive at random, `rate` per ms; return latencies and services in ms."""
    gaps = np.random.default_rng([seed, sequence]).exponential(1 / rate, requests)
    arrivals = np.cumsum(gaps)
    latencies, services, begin = [], [], time.perf_counter()
    while (done := len(latencies)) < requests:
        now = 1000 * (time.perf_counter() - begin)
        if now < arrivals[done]:  # nothing to do
            time.sleep((arrivals[done] - now) / 1000)
            continue
        count = min(limit, np.searchsorted(arrivals, now, side="right") - done)
        answer(count)
        end = 1000 * (time.perf_counter() - begin)
        services.append(end - now)
        latencies += [*(end - arrivals[done : done + count])]
    return np.array(latencies), np.array(services)


# %%
for n in sizes:
    answer(n)  # warm up
idle = race({n: (answer, n) for n in (1, most)}, session.repeats)
service = np.median(idle[1])
servers, loads = {"single": 1, "batched": most}, (0.8, 1.5)
served = {(load, name): [] for load in loads for name in servers}
for sequence in range(session.sequences):
    for (load, name), runs in served.items():
        runs.append(serve(load / service, servers[name], sequence))

latencies, services = map(np.array, zip(*served[0.8, "single"], strict=True))
over = workshop.ratio(latencies.mean(axis=1) / mean_latency(service, 0.8))
print(f"single, load 80%: mean latency over the formula's: {over};", end=" ")
middle, slow = np.percentile(services, (50, 95)) / service
print(f"services: median {middle:.2f}, p95 {slow:.2f} times the idle median")
more = workshop.ratio(most * idle[1] / idle[most])
print(f"Requests per second in batches of {most} over single: {more}")
tails = {}
for key, runs in served.items():
    tails[key] = np.percentile([ms for ms, _ in runs], 95, axis=1, method="inverted_cdf")
gain = workshop.ratio(tails[0.8, "single"] / tails[0.8, "batched"])
rows = {f"{load:.0%} load, {name}": p95s for (load, name), p95s in tails.items()}
fig, ax = plt.subplots(figsize=(9, 3.4), layout="constrained")
workshop.spans(ax, rows, {row: workshop.FINDING for row in rows if "batched" in row})
ax.set(title=f"p95 at 80% load, single over batched: {gain}")
ax.set_xlabel(f"p95 in ms (log scale), {session.sequences} sequences; {version}, {size} px")
workshop.figure(fig, alt="p95 of both servers at each load, with its range.")

# %% [markdown]
# The formula assumes independent arrivals, services of one length and an endless run. Services longer than when idle (their median) raise the real load, varying services (their p95) make waits longer; a short run, which starts with an empty queue, shorter. Above 100%, the p95 of *single* shows how long you measured. Batches raise the limit by about the last printed factor, but each request waits for its whole batch.
#
# ## Where is the time going now?

# %% tags=["results"]
session.note("decoding", share, "%", "share of a request spent on preparation")
session.note("p95", float(p95), "ms", f"p95 of {requests} single requests, without a queue")
session.note("p95_load", float(np.median(tails[0.8, "single"])), "ms", "p95 of single at 80% load")

# %% [markdown]
# A single request waits for its preparation and its operators; near capacity, for other requests. So latency cannot be derived from throughput: publish both, with batch, image size, precision, threads and load.
#
# ## Key takeaways
#
# - Score a checkpoint before you build on it, and expect equality, on a CPU to the last digit.
# - A correct timing needs evaluation mode, `inference_mode`, warm-up and synchronisation.
# - A CUDA graph saves at most the time in which no kernel runs.
# - Call a version faster only if it wins every round, for a small gain in two races; then ask a profiler why.
# - Report p95 or p99 at a stated load, measured with an open loop and several sequences of arrivals.
#
# **Try it:** set `most` to 2 and to 8. Which one has the lowest p95 at each load?
#
# The last notebook asks whether eight more GPUs pay off.
