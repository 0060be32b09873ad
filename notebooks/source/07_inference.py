# %% [markdown]
# # 07 · Inference
#
# After this notebook, you can score a checkpoint, find where a prediction spends its time, fold batch norms, capture a CUDA graph, compare inference engines and see where they save time, and measure latency under load.
#
# **Time:** 75 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 2 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
epochs: int | None = None  # epochs of the training run
rounds: int | None = None  # turns of each version
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
# In training, only **throughput** mattered: images per second. A user waits for one prediction, so **latency**, the time from request to response, matters too.
#
# ## A checkpoint and its score
#
# The Bash cell below trains ResNet-50 on the road signs, at 64 × 64 pixels. `rn50 score` then scores the checkpoint in a new process that has only the files. **Predict:** by how many points will its top-1 accuracy differ from the one that training reported?

# %%
guess = "?"  # your number

# %% language="bash" magic_args="-e"
# set -o pipefail
# rm -f model-*  # from an earlier run
# rn50 run --data-root "$DATA" -e $EPOCHS -b 32 --num-examples $IMAGES --seed $SEED \
#   --num-layers $LAYERS --dtype float32 --model-prefix model --report train.json 2>&1 \
#   | grep --line-buffered -v '^  '  # without the settings
# rn50 score model $EPOCHS --data-root "$DATA" --dtype float32 --report score.json 2>&1 \
#   | grep --line-buffered -v '^  '

# %% [markdown]
# A checkpoint is a description of the network and a file of arrays. The next cell prints both accuracies, loads the checkpoint and prepares images as in validation.

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
from workshop.lessons import nb07_checks

for file in ("train.json", "score.json"):
    print(file, json.loads(Path(file).read_text())["metrics"]["val.top1"][-1])
print(f"You predicted a difference of {guess} points.")

random.seed(seed)
keep_memory()  # as `rn50` does, so that new arrays cost no page faults
torch.backends.cudnn.allow_tf32 = False  # real float32 (notebook 06)
torch.backends.cudnn.benchmark = (
    True  # on a GPU, cuDNN times its kernels and keeps the fastest, as in rn50
)
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
# With the same weights, images, crops and kernels, and no randomness, the numbers are equal to the last digit. If they differ, one of these has changed (on a GPU, cuDNN may have chosen other kernels; check [TF32](../docs/troubleshooting.md#results-in-float32-differ-between-two-gpus-tf32)).
#
# ## Where is the time going?
#
# To time a prediction correctly, you need four things:
#
# - **evaluation mode**: in training mode, batch norm uses the statistics of the batch, and every call changes the running averages;
# - `inference_mode`: without it, **autograd** keeps activations for a backward pass that never comes;
# - **warm-up**: the first calls allocate memory and choose kernels;
# - a clock that **waits**: on a GPU, a call returns as soon as its work is queued.
#
# `call` below uses `inference_mode` and waits. Its caller must do the rest: pass a network in evaluation mode and discard the first call.
#
# On a CPU, images are 64 × 64, as in training. On a GPU, they are 224 × 224 and, from here on, in `float16`: the speeds are realistic, the accuracy is not. The next cell traces one image at a time and keeps the fastest of five traces. On a GPU, Python launches **kernels** one after another; `waiting` is the time when no kernel is running. On a CPU, each operator finishes before the next one starts. **Predict:** how many operators does one prediction start? (The network has 53 convolutions.)


# %%
expected = "?"  # your number
wait = torch.cuda.synchronize if on_gpu else (lambda: None)


@torch.inference_mode()
def call(net, batch):
    """Return the milliseconds of one prediction of a network in evaluation mode."""
    begin = time.perf_counter()
    net(batch)
    wait()  # until the device has no work left
    return 1000 * (time.perf_counter() - begin)


def ready(net, dtype):
    """Return a copy of a network with its convolutions in `dtype` and channels-last format."""
    net = copy.deepcopy(net)
    for layer in net.modules():
        if isinstance(layer, nn.Conv2d):
            layer.to(dtype, memory_format=torch.channels_last)
    return net


many = images.to(dtype, memory_format=torch.channels_last)
one, eager = many[:1], ready(model, dtype)


def traced(net, batch, tries=1):
    """Trace three predictions; return operators and GPU kernels per prediction.

    The fastest of `tries` traces stays in trace.json: a disturbance only adds time.
    """
    when = profiler.schedule(wait=0, warmup=1, active=3, repeat=1)
    least = float("inf")
    for _ in range(tries):
        with profiler.profile(schedule=when, acc_events=True) as trace:
            for _ in range(4):
                call(net, batch)
                trace.step()
        trace.export_chrome_trace("new.json")
        if (took := sum(workshop.trace("new.json", show=False).values())) < least:
            least = took
            Path("new.json").replace("trace.json")
    calls = [e for e in trace.events() if e.name.startswith("aten::")]
    inner = [e for e in calls if e.cpu_parent and e.cpu_parent.name.startswith("aten::")]
    events = json.loads(Path("trace.json").read_text())["traceEvents"]
    kernels = sum(event.get("cat") == "kernel" for event in events)
    return (len(calls) - len(inner)) // 3, kernels // 3


operators, launched = traced(eager, one, tries=5)
kinds = workshop.trace("trace.json", of="prediction")
busy = sum(kinds.values()) - kinds["waiting"]  # on a GPU, ms in which a kernel runs
print(f"{operators} operators; you predicted {expected}")
if on_gpu:
    print(f"{launched} GPU kernels")

# %% [markdown]
# What does it cost just to *start* an operator? In the table, part of this cost is in *other* and part in the operator's own row; on a GPU, it is in *waiting*. The next cell times a short and a long chain of convolution, batch norm and ReLU on a single number, so that almost nothing is computed. The extra time of the long chain, divided by its extra operators, is the cost of one start. In the network, it may be higher: convolutions evict data from the caches. **Predict:** what percentage of a prediction's time do all its starts take?


# %%
def chain(length):
    layers = [nn.Conv2d(1, 1, 1, bias=False), nn.BatchNorm2d(1), nn.ReLU(inplace=True)]
    copies = [copy.deepcopy(layer) for _ in range(length) for layer in layers]
    return nn.Sequential(*copies).to(device).eval()


def race(works, turns):
    """Time (network, batch) pairs in turns; return by name the fastest of three calls per turn."""
    times = {name: [] for name in works}
    for turn in range(turns + 1):  # the first one warms up
        for name in random.sample(list(works), len(works)):
            call(*works[name])  # hands the cores to this engine's threads
            took = [call(*works[name]) for _ in range(3)]
            if turn:
                times[name].append(min(took))  # a disturbance only adds time
    return {name: np.array(values) for name, values in times.items()}


guess = "?"  # percent
number = torch.zeros(1, 1, 1, 1, device=device)
works = {length: (chain(length), number) for length in (10, 80)} | {"network": (eager, one)}
times = race(works, session.repeats)
alone = np.median(times["network"])
per_start = np.median(times[80] - times[10]) / (3 * 70)  # ms of one operator
started = operators * per_start
print(f"{operators} starts of {1000 * per_start:.1f} µs take {started:.2f} ms,", end=" ")
print(f"{started / alone:.0%} of a prediction of {alone:.2f} ms; you predicted {guess}%")

# %% [markdown]
# The operators are 53 convolutions, 53 batch norms, 49 ReLUs, 16 additions, two pooling operations and a linear layer. If the share above is small (under 10% on two CPU cores), starting fewer operators gains little; faster convolutions gain more. Near 100% (a fast GPU), starting takes longer than computing.
#
# ## Fewer operators: fold the batch norms
#
# In inference, the mean and variance of a batch norm are fixed, so the layer is just one multiplication and one addition per value, with one pair of constants per channel. The preceding convolution can absorb both:
#
# `gamma · (W x − mean) / std + beta  =  (gamma / std · W) x + (beta − gamma · mean / std)`, with `std = √(var + eps)`
#
# **Your turn:** write `fold`, which is then applied to each convolution and its batch norm. In PyTorch, gamma and beta are `norm.weight` and `norm.bias`; the rest is `norm.running_mean`, `norm.running_var` and `norm.eps`. `conv.weight` has the shape (channels out, channels in, height, width), and there is no `conv.bias`. **Predict** by how much the logits (the outputs before softmax) change and, judging by the table, how many times as fast a prediction can become.
#
# The course's rule: a difference is clear if the ratios of at least five turns are all on the same side of 1.


# %%
def fold(conv, norm):
    """Return the weight and the bias of a convolution that includes the batch norm after it."""
    return None  # your code


guesses = "?", "?"  # the largest change of a logit; how many times as fast


# %%
fold = nb07_checks.check("fold", fold)
folded = copy.deepcopy(model)
for module in list(folded.modules()):
    children = list(module.named_children())  # in the order in which they run
    for (_, conv), (name, norm) in pairwise(children):
        if isinstance(conv, nn.Conv2d) and isinstance(norm, nn.BatchNorm2d):
            weight, bias = fold(conv, norm)
            conv.weight, conv.bias = nn.Parameter(weight.detach()), nn.Parameter(bias.detach())
            setattr(module, name, nn.Identity())
change = (predict(folded, images) - logits).abs().max()
print(f"Logits of up to {logits.abs().max():.1f} change by up to {change:.1e};", end=" ")
print(f"you predicted {guesses[0]}")
folded = ready(folded, dtype)
operators_now, launched_now = traced(folded, one, tries=5)
print(f"{operators_now} operators now")
workshop.trace("trace.json", of="prediction")
part = kinds["normalisation"] / sum(kinds.values())  # a share: the trace's own times may be slow
# ms: the norms' rows and their starts, partly counted twice
saved = alone * part + (operators - operators_now) * per_start
if on_gpu:  # kernels run while others are launched: only the host's time counts
    print(f"{launched_now} GPU kernels now")
    saved = (operators - operators_now) * per_start  # roughly: a bias needs a launch, too
predicted = alone / (alone - saved)
near = "about " if on_gpu else ""
print(f"Predicted from the measurements: {near}{predicted:.2f} times the speed;", end=" ")
print(f"by you: {guesses[1]}")
times = race({"eager": (eager, one), "folded": (folded, one)}, rounds)
speed = workshop.ratio(times["eager"] / times["folded"])
print(f"In turns, the speed of folded over eager: {speed}")

# %% [markdown]
# The logits differ only by rounding. Don't compare the milliseconds of the two tables: compare speeds only in turns. On a CPU, folding saves the starts of the batch norms and their passes over the data. Part of that comes back as *copy*: one of PyTorch's convolution implementations first copies the bias into its output. On a GPU, eager PyTorch adds the bias in a separate kernel, so as many kernels are launched as before. At batch 1, folding still saves the host the calls to 53 operators; at a large batch, it pays off only when `torch.compile` or an engine fuses the addition with the ReLU after it.
#
# ## One launch for all kernels
#
# A **CUDA graph** records all kernel launches once; `replay()` then starts them with a single call. **Your turn:** write `capture`:
#
# 1. Make `static`, a clone of `example`: the graph's input.
# 2. Warm up: create `side = torch.cuda.Stream()` and call `net(static)` three times inside `with torch.cuda.stream(side):`. Before that, `side` must wait for `torch.cuda.current_stream()`; after it, `torch.cuda.current_stream()` must wait for `side` (`wait_stream`).
# 3. Create `graph = torch.cuda.CUDAGraph()`, and run `output = net(static)` inside `with torch.cuda.graph(graph):`. This only records; nothing runs.
# 4. Return a function `replay(batch)` that copies `batch` into `static`, calls `graph.replay()` and returns `output`. The graph stores only addresses, so keep the weights alive: `def replay(batch, net=net)`.
#
# Without a GPU, the check replaces these parts of `torch.cuda` with stand-ins, which save no time.
#
# **Then predict** a graph's gain: write `graph_gain`. On the recorded H100, **eager** (operator-by-operator) execution with folded batch norms takes 4.9 ms for 1 image, 4.6 ms for 16 and 27 ms for 256. Launches and kernels overlap, so eager takes as long as the longer of the two; a graph takes as long as its kernels. (`launches` will be 4.9, `kernels` 27 / 256.)


# %%
@torch.no_grad()
def capture(net, example):
    """Return a function that predicts a batch like `example` by replaying a CUDA graph."""
    return None  # your code


def graph_gain(batch, launches, kernels):
    """Return a graph's speed as a multiple of eager's.

    `launches`: ms of all launches; `kernels`: ms of the kernels per image.
    """
    return None  # your code


# %%
capture = nb07_checks.check("capture", capture, device)
avoided = 1 - busy / alone if on_gpu else started / alone
bound = "at most" if on_gpu else "about"
print(f"One launch for all would save {bound} {avoided:.0%} of a prediction's time here")
graph_gain = nb07_checks.check("graph_gain", graph_gain)
speeds = {key.removeprefix("h100.predict."): one.value for key, one in session.results.items()}
launches, kernels = 1000 / speeds["eager.1"], 1000 / speeds["eager.256"]  # ms; ms per image
rows = []
for name in ("graph.1", "graph.16", "graph.256", "pinned.256", "compiled.torchvision"):
    way, n = name.split(".")
    yours = graph_gain(int(n), launches, kernels) if way == "graph" else None
    times = speeds[name] / speeds[f"eager.{n}"]
    batch = "256, torchvision" if way == "compiled" else n
    rows.append([batch, way, speeds[name], times, yours])
caption = f"{session.results['h100.predict.eager.1'].provenance}, float16, 224 px, copies included;"
caption += " batch norms folded, except torchvision's"
workshop.table(rows, ["batch", "version", "img/s", "times eager", "your model"], caption)

# %% [markdown]
# At batch 1, the model is wrong: one image cannot keep a GPU's cores busy. Still, no kernel runs for at least 1 − 1/7.2 = 86% of eager's time (first row). At batch 256, the kernels hide the launches, as your model says; the graph's 1.21× is mostly due to **pinned** memory, from which a GPU copies directly: eager execution reaches 1.19× with it. Faster kernels gain more: `torch.compile` fuses what follows a convolution; with `mode="reduce-overhead"`, it also captures graphs for you.
#
# ## Faster kernels: other engines
#
# **ONNX** is a file format that stores operations and weights; most engines read it, including NVIDIA's TensorRT. The next cell exports your folded network for ONNX Runtime and, on a CPU, Intel's OpenVINO. If independent programs agree up to rounding, the export works (in `float16`, a near tie may flip).

# %%
import logging
import warnings
from importlib.util import find_spec

import onnxruntime

logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it looks for torchvision
warnings.simplefilter("ignore", FutureWarning)  # about the exporter's own calls
warnings.filterwarnings("ignore", "TensorFloat32")  # it is off on purpose
forms = {"eager": eager, "folded": folded}
if on_gpu:
    graphs = {n: capture(folded, many[:n]) for n in (1, 2, 4, 8, 16, large)}
    forms["CUDA graph"] = lambda x: graphs[len(x)](x)
    compiled = torch.compile(copy.deepcopy(folded), dynamic=False)
    try:
        predict(compiled, many[:large])
        forms["torch.compile"] = compiled
    except RuntimeError as error:  # such as a missing C compiler
        print("torch.compile does not work here:", str(error).splitlines()[0])
provider = f"{device.upper()}ExecutionProvider"
if provider not in onnxruntime.get_available_providers():
    provider = "CPUExecutionProvider"
torch.onnx.export(
    folded, (many[:2],), "float.onnx", dynamo=True, dynamic_shapes=({0: "N"},), verbose=False,
    input_names=["images"], output_names=["logits"], external_data=False,
)  # fmt: skip
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = torch.get_num_threads()
# no spinning: other versions run in between
options.add_session_config_entry("session.intra_op.allow_spinning", "0")
onnx = onnxruntime.InferenceSession("float.onnx", options, [provider])
provider = onnx.get_providers()[0]  # the CPU's if CUDA's libraries do not load
slow = on_gpu and provider == "CPUExecutionProvider"


def run_onnx(x):
    if provider == "CPUExecutionProvider":
        return torch.tensor(onnx.run(None, {"images": x.cpu().numpy()})[0])
    # the batch stays on the GPU; ONNX Runtime wants channels first
    x, binding = x.contiguous(), onnx.io_binding()
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
if slow:
    del forms["ONNX Runtime"]
    print("ONNX Runtime cannot use this GPU, so it leaves the race.", end=" ")
    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        print("Its CUDA libraries did not load: does its CUDA version match PyTorch's?")
    else:
        print("Replace the package onnxruntime with onnxruntime-gpu.")

# %% [markdown]
# ## Which version is fastest at each batch size?
#
# All versions and batches take turns in random order. Speeds drift, so compare only within a race, and believe a small gain, such as folding's, only if a second race confirms it. On a GPU, `torch.compile` takes part only at the largest batch, because it compiles for each size. **Predict** the fastest version at batch 1 and at the largest batch.

# %%
guess = "?", "?"  # the names of two versions
works = {
    (name, n): (form, many[:n])
    for name, form in forms.items()
    for n in ([large] if name == "torch.compile" else session.race)  # it compiles for each
}
results = race(works, rounds)

fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
best = {}
for ax, n, yours in zip(axes, (small, large), guess, strict=True):
    times = {name: values for (name, batch), values in results.items() if batch == n}
    order = sorted(times, key=lambda name: np.median(times[name]))
    best[n], second, *_ = order
    lead = workshop.ratio(times[second] / times[best[n]])
    print(f"Batch {n} (you predicted {yours}): the speed of {best[n]} over {second}: {lead}")
    for name in order:
        if name != "eager":
            print(f"  {name}, speed over eager: {workshop.ratio(times['eager'] / times[name])}")
    ahead = lead.clear and lead.low > 1
    found = f"no clear winner\n({best[n]}, {second})"
    if ahead:
        found = f"{best[n]} beats\n{second} in all {rounds} turns"
    colours = {best[n]: workshop.FINDING} if ahead else {}
    workshop.spans(ax, {name: times[name] for name in order}, colours)
    ax.set(title=f"Batch {n}: {found}", xlabel="ms per batch",
           xscale="linear", xlim=(0, 1.1 * max(map(max, times.values()))))  # fmt: skip
fig.suptitle(f"Median and range of {rounds} turns; {device}, {session.dtype}, {size} px")
workshop.figure(fig, alt="ms per batch of each version, with its range.")
if on_gpu:
    print(f"Batch {small}: by the trace, a graph is at most {alone / busy:.1f} × eager's speed")
again = workshop.ratio(results["eager", small] / results["folded", small])
clear = sum(one.clear and one.low > 1 for one in (speed, again))
print(f"Folding at batch {small}: predicted {predicted:.2f}, then {speed.median:.2f},", end=" ")
print(f"now {again.median:.2f}; clear gain in {clear} of 2 races")
off = max(abs(one.median / predicted - 1) for one in (speed, again))
if not on_gpu and rounds >= 5 and off > 0.1:  # on a GPU, the prediction is rough
    print("A race is over 10% off the prediction: repeat the trace and both races.")

# %% [markdown]
# A range as wide as 0.5 to 4 means that something else was running: run the race again. If the figure's medians and the printed ratios disagree, believe the ratios: each compares two times of the same turn, so drift cancels. Folding's gain is confirmed if both races show a clear gain; otherwise the question remains open, because one disturbed turn can hide the gain. The prediction can be slightly too high: it leaves out the bias and, on a CPU, counts part of the starts twice. If the medians are further off, repeat the trace and both races before you doubt the prediction.
#
# *Where* is ONNX Runtime (GPU: `torch.compile`) faster than `folded`: in convolutions (including what is fused into them) or in the rest? **Predict** which part saves more.


# %%
guess = "?"  # "convolutions" or "the rest"


def parts(name, batch):
    """Return a version's milliseconds in convolutions and in the rest."""
    if name == "ONNX Runtime":
        options.enable_profiling = True
        profiled = onnxruntime.InferenceSession("float.onnx", options, [provider])
        for _ in range(4):
            profiled.run(None, {"images": batch.numpy()})
        events = json.loads(Path(profiled.end_profiling()).read_text())
        events = [event for event in events if "op_name" in event.get("args", {})]
        ms = np.array([event["dur"] for event in events]).reshape(4, -1)[1:] / 1000  # warmed up
        names = [event["args"]["op_name"] for event in events[: ms.shape[1]]]
        conv = np.array([name.endswith("Conv") for name in names])
        return np.median(ms[:, conv].sum(1)), np.median(ms[:, ~conv].sum(1))
    traced(forms[name], batch)
    ms = workshop.trace("trace.json", show=False)
    return ms["convolution"], sum(ms.values()) - ms["convolution"]


rows, other = [], "ONNX Runtime"
if on_gpu:
    other = "torch.compile" if "torch.compile" in forms else "CUDA graph"
for n in [large] if on_gpu else [small, large]:
    for name in ("folded", other):
        least = np.min([parts(name, many[:n]) for _ in range(3)], axis=0)
        rows.append([f"batch {n}, {name}", *least])
    gain = np.subtract(rows[-2][1:], rows[-1][1:])
    print(f"Batch {n} (you predicted {guess}): {other} saves {sum(gain):.1f} ms,", end=" ")
    print(f"{gain[0]:.1f} of them in convolutions")
    if sum(gain) < 0 and workshop.ratio(results["folded", n] / results[other, n]).median > 1:
        print(f"But {other} won the race: the machine was disturbed, so run this cell again.")
    if not on_gpu:
        events = json.loads(Path("trace.json").read_text())["traceEvents"]
        names = [event["name"] for event in events]
        own = names.count("aten::_slow_conv2d_forward") // 3
        onednn = names.count("aten::mkldnn_convolution") // 3
        print(f"Batch {n}, convolutions of folded: {own} by PyTorch's own code,", end=" ")
        print(f"{onednn} by oneDNN's")
caption = "The least of three profiles; " + (
    "the rest includes waiting"
    if on_gpu
    else "PyTorch's rest includes Python, ONNX Runtime's does not"
)
workshop.table(rows, ["", "convolution, ms", "the rest, ms"], caption)

# %% [markdown]
# On a CPU, PyTorch picks the code for a convolution by its input's size: its own or the oneDNN library's. Compare the engines' leads with the number of convolutions that run PyTorch's own code. Even in oneDNN's code, PyTorch reorders the weights in every call (`ONEDNN_VERBOSE=1` lists this); the engines do it once, on loading. On a GPU, both versions run cuDNN's convolutions by default; `torch.compile` fuses the rest.
#
# ## A larger batch
#
# All images of a batch share the same operator starts. **Predict** by what factor the throughput of `eager` rises from batch 1 to the largest.

# %%
guess = "?"  # your number
print(f"Images per second at batch {large} over batch {small} (you predicted {guess}):")
for name in forms:
    if name != "torch.compile":
        gain = workshop.ratio(large * results[name, small] / (small * results[name, large]))
        print(f"  {name}: {gain}")
factor = alone / (busy if on_gpu else alone - started)
print(f"Shared starts explain a factor of {bound} {factor:.2f}")

# %% [markdown]
# If engines or graphs gain, too, it is probably because weights (94 MB in `float32`) are read once per batch and larger matrices keep the cores busier. On a CPU, `eager` gains more if a large batch moves convolutions to oneDNN's code (counted above).
#
# ## One request
#
# A real request is a JPEG file. Time its preparation and the network separately, without a queue. The **p95** is the time within which 95% of requests are answered; p50 is the median. Providers promise a p95 or p99, because the mean and the median hide the slowest requests. **Predict:** what percentage of the time does the preparation take, and what is p95 / p50?

# %%
guess = "?", "?"  # percent; p95 / p50
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
preparing, latency = np.array(preparing[3:]), np.array(latency[3:])  # the first three warm up
p50, p95 = np.percentile(latency, (50, 95), method="inverted_cdf")
share = 100 * np.median(preparing / latency)
print(f"{version}: p50 {p50:.2f} ms, p95 {p95:.2f} ms, slowest {latency.max():.2f} ms")
print(f"p95 / p50: {p95 / p50:.2f}; you predicted {guess[1]}")
print(f"Preparation: {share:.0f}% of a typical request; you predicted {guess[0]}%")
print(f"The network alone: {np.median(latency - preparing):.2f} ms; next: {requests} requests")

# %% [markdown]
# ## Many users: latency under load
#
# Real requests arrive at their own rate, however long the queue (an **open loop**), and latency is measured from the arrival. You compare two servers: *single* takes one request at a time; *batched* takes all that are waiting, up to 16 of them (**dynamic batching**). The **load** is the arrival rate times the service time of one request. Near 100%, *single* hardly ever pauses; above it, its queue grows for as long as requests arrive. The images are already prepared; if the server prepared them, too, its capacity would fall by the share above.
#
# **Your turn:** write `ideal_latencies`, a simulation of *single* without disturbances: a request starts when it has arrived and the server is free. Then write `take`, which chooses the real servers' batches. **Predict** the p95 of *single* at a load of 150% from the last line above. (How much longer does each request wait than the one before it?)


# %%
def ideal_latencies(arrivals, service):
    """Return the ms from each arrival to its answer; a request takes `service` ms.

    `arrivals` are in ms and in order; the server is free at 0.
    """
    return None  # your code


def take(arrivals, done, now, limit):
    """Return how many requests to answer at once: all that have arrived by `now`, at most `limit`.

    The first `done` requests are answered; at least one more has arrived.
    """
    return None  # your code


guess = "?"  # your number: p95 of single at 150% load, in ms


# %%
ideal_latencies = nb07_checks.check("ideal_latencies", ideal_latencies)
take = nb07_checks.check("take", take)
most = 16
sizes = graphs if on_gpu else range(1, most + 1)


@torch.inference_mode()
def answer(count):
    """Answer `count` requests at once; a graph has a fixed batch, so take the next larger one."""
    quick(many[: min(n for n in sizes if n >= count)])
    wait()


def serve(arrivals, limit):
    """Answer requests that arrive at these times; return latencies and service times, all in ms."""
    latencies, services, begin = [], [], time.perf_counter()
    while (done := len(latencies)) < requests:
        now = 1000 * (time.perf_counter() - begin)
        if now < arrivals[done]:  # nothing to do: wake 0.2 ms early, since sleep overshoots
            time.sleep(max(0, arrivals[done] - now - 0.2) / 1000)
            continue
        count = int(take(arrivals, done, now, limit))
        answer(count)
        end = 1000 * (time.perf_counter() - begin)
        services.append(end - now)
        latencies += [*(end - arrivals[done : done + count])]
    return np.array(latencies), np.array(services)


# %%
for n in sizes:
    answer(n)  # warm up
at_once = np.zeros(requests)  # all wait from the start, so the server never pauses
# measured again: the race kept only the fastest of three calls
service = np.median([serve(at_once, 1)[1].mean() for _ in range(3)])
servers, loads = {"single": 1, "batched": most}, (0.8, 1.5)
served = {(load, name): [] for load in loads for name in servers}
drawn = [np.random.default_rng([seed, i]) for i in range(session.sequences)]
sequences = [np.cumsum(one.exponential(service, requests)) for one in drawn]  # at 100% load
for arrivals in sequences:
    for (load, name), runs in served.items():
        runs.append(serve(arrivals / load, servers[name]))

latencies, services = map(np.array, zip(*served[0.8, "single"], strict=True))
own = services.mean(1)  # ms: the mean service time of each run
ideal = np.array([[list(ideal_latencies(arrivals / load, service)) for arrivals in sequences]
                  for load in loads])  # fmt: skip
slowed = [list(ideal_latencies(arrivals / 0.8, ms))
         for arrivals, ms in zip(sequences, own, strict=True)]  # fmt: skip
low, middle, high = 0.8 * np.percentile(own, (0, 50, 100)) / service
print(f"One request takes {service:.1f} ms. Nominal load 80%;", end=" ")
print(f"real load {middle:.0%} ({low:.0%} to {high:.0%})")
if abs(middle - 0.8) > 0.1 or high > 1:
    print("The machine became faster or slower: run this cell again.")
means = ideal[0].mean(1)
print("Mean latency of single, measured over simulated:", workshop.ratio(latencies.mean(1) / means))
print(
    "  over a simulation with each run's mean service time:",
    workshop.ratio(latencies.mean(1) / np.mean(slowed, 1)),
)
print(f"Arrivals alone vary the simulated mean from {min(means):.1f} to {max(means):.1f} ms")
tails = {}
for key, runs in served.items():
    tails[key] = np.percentile([ms for ms, _ in runs], 95, axis=1, method="inverted_cdf")
gains = {}
for load, name in tails:
    if name != "single":
        gains[load, name] = workshop.ratio(tails[load, "single"] / tails[load, name])
        print(f"p95 at {load:.0%} load, single over {name}: {gains[load, name]}")
marks = np.median(np.percentile(ideal, 95, axis=2, method="inverted_cdf"), axis=1)
late = np.median(tails[1.5, "single"])
print(f"p95 of single at 150% load: {late:.0f} ms, {marks[1]:.0f} simulated;", end=" ")
print(f"you predicted {guess}")
rows = {f"{load:.0%} load, {name}": p95s for (load, name), p95s in tails.items()}
fig, ax = plt.subplots(figsize=(9, 1.6 + 0.45 * len(rows)), layout="constrained")
sure = {f"{load:.0%} load, {name}" for (load, name), gain in gains.items() if gain.clear}
workshop.spans(ax, rows, dict.fromkeys(sure, workshop.FINDING))
ax.plot(marks, (0.25, len(servers) + 0.25), "k^", label="single, simulated")
ax.axvline(service, color="grey", ls=":", label="service time")
fig.legend(loc="outside lower center", ncols=2)
effects = {}
for (load, name), gain in gains.items():
    if name == "batched":
        effect = ("lower" if gain.low > 1 else "higher") if gain.clear else "no clear change"
        effects.setdefault(effect, []).append(f"{load:.0%}")
found = ", ".join(f"{effect} at {' and '.join(at)}" for effect, at in effects.items())
ax.set(title=f"p95 with batching: {found} load")
ax.set_xlabel(
    f"p95 in ms (log scale), median and range of {session.sequences} sequences, nominal loads\n"
    f"{version}, {device}, {session.dtype}, {size} px, {torch.get_num_threads()} CPU threads"
)
workshop.figure(fig, alt="p95 of both servers at each load, with its range.")

# %% [markdown]
# Your simulation uses the same arrivals, so a difference comes mostly from the service times: a different mean changes the real load, and variation makes waits longer on average, but not in every run. If the second ratio is much nearer to 1, or its range much narrower, the changed mean explains most of the difference. Above 100%, small differences add up over all requests in the queue, and the p95 of *single* grows the longer you measure. Batching raises the load that a server can sustain, by at most the factor measured under *A larger batch*, but each request waits for its whole batch.
#
# ## Where is the time going now?

# %% tags=["results"]
p95s = tails[0.8, "single"]
waiting = 1 - services.mean() / np.median(p95s)
print(f"No queue, p50 {p50:.1f} ms from a file: preparation {share:.0f}%, network the rest")
print(
    f"{middle:.0%} load, p95 {np.median(p95s):.1f} ms from a prepared image: waiting {waiting:.0%}, network {1 - waiting:.0%}"
)
session.note("preparation", share, "%", "share of a request spent on preparation")
session.note("p95", float(p95), "ms", f"p95 of one run of {requests} requests, no queue")
what = f"p95 of {version}, single, at {middle:.0%} load ({min(p95s):.1f} to {max(p95s):.1f} ms)"
session.note("p95_load", float(np.median(p95s)), "ms", what)

# %% [markdown]
# Without a queue, a request's time is only preparation and computation; near 80% load, the slowest 5% mostly wait for others. So state batch, image size, precision, threads and load with every latency or throughput.
#
# ## Key takeaways
#
# - Score a checkpoint before you build on it, and expect the same score.
# - A correct timing needs evaluation mode, `inference_mode`, warm-up and synchronisation.
# - A CUDA graph saves at most the time during which no kernel runs.
# - Call a version faster only if it wins every turn (for a small gain, in two races). Then ask a profiler why.
# - Report p95 or p99 at a stated load, measured with an open loop and several sequences of arrivals.
#
# **Try it:** add `"by 2": 2` and `"by 8": 8` to `servers`, so that all take turns on the same arrivals. Which has the lowest p95 at each load, and is it clear (`workshop.ratio(tails[1.5, "by 8"] / tails[1.5, "batched"])`)?
#
# The last notebook asks whether eight more GPUs pay off.
