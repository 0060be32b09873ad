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
from rn50lib.torch.model import ResNet, load_arrays

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
# ## A benchmark with six mistakes
#
# How fast is the network? The benchmark below makes six mistakes. **Find as many as you can** before you read on.


# %%
def first_try(net):
    """Return the milliseconds that a batch of 4 takes, with six mistakes."""
    begin = time.perf_counter()
    for start in range(0, 16, 4):
        net(torch.stack([prepare(file) for file in some[start : start + 4]]).to(device))
    return 1000 * (time.perf_counter() - begin) / 4


trained_net = copy.deepcopy(model).train()  # as it is after training
print(f"A batch of 4 takes {first_try(trained_net):.1f} ms!")

# %% [markdown]
# <details><summary>The six mistakes</summary>
#
# 1. In **training mode**, batch norm uses the statistics of these four images, and every call changes the running averages.
# 2. Without `inference_mode`, **autograd** keeps activations for a backward pass that never comes.
# 3. The time includes **decoding**. If you want that, say so.
# 4. It includes the **first calls**, which allocate memory and choose kernels.
# 5. On a GPU, the code **does not wait** for the result: the call returns as soon as the work is queued.
# 6. It reports **one mean**, without its spread, image size, precision or threads.
#
# </details>
#
# **Your turn:** write the repaired clock. `net`, in evaluation mode, predicts a decoded batch: only call it. Mistakes 2, 4, 5 and 6 are yours to repair. `wait()` returns when the device has no work left.


# %%
def answer_times(net, batch, repeats, warm_up, wait):
    """Return the milliseconds of each of `repeats` calls, after `warm_up` that do not count."""
    return None  # your code


# %%
from workshop.lessons import nb07, nb07_checks

answer_times = nb07_checks.check_clock(answer_times)
wait = torch.cuda.synchronize if device.type == "cuda" else (lambda: None)

# %% [markdown]
# How much does each mistake change the time? The next cell puts 1, 2, 3 and, on a GPU, 5 back one at a time, in turns with your clock and `first_try`. A difference counts only with five or more ratios, all on one side of 1 (`workshop.ratio`). **Predict** the order.

# %%
net, batch = copy.deepcopy(model), images[:4]


def one_call(training=False, autograd=False, decoding=False, waiting=True):
    """Return the milliseconds of the second of two calls, with the mistakes that are True."""
    net.train(training)
    for _ in range(2):
        begin = time.perf_counter()
        x = torch.stack([prepare(file) for file in some[:4]]).to(device) if decoding else batch
        with torch.inference_mode(not autograd):
            net(x)
        if waiting:
            wait()
        ms = 1000 * (time.perf_counter() - begin)
    wait()
    return ms


mistakes = {
    "repaired": lambda: answer_times(net.eval(), batch, 1, 1, wait)[0],
    "training mode": lambda: one_call(training=True),
    "autograd": lambda: one_call(autograd=True),
    "decoding": lambda: one_call(decoding=True),
    "first_try": lambda: first_try(trained_net),
}
if device.type == "cuda":
    mistakes["no waiting"] = lambda: one_call(waiting=False)
times = {name: [] for name in mistakes}
for _ in range(rounds):
    for name, mistake in mistakes.items():
        times[name].append(mistake())
for name, ms in sorted(times.items(), key=lambda item: np.median(item[1])):
    print(f"{name:13} {np.median(ms):5.1f} ms, {min(ms):.1f} to {max(ms):.1f}", end="")
    over = np.divide(ms, times["repaired"])
    print("" if name == "repaired" else f"; over repaired: {workshop.ratio(over)}")
same = (predict(net.eval()).argmax(1) == logits.argmax(1)).float().mean()
print(f"After the calls in training mode, {100 * same:.0f}% of the predictions are the same.")

# %% [markdown]
# *No clear difference*: such a mistake costs less than the timing varies, but may change answers. Less than 100% means that the calls in training mode changed the network.
#
# ## Where is the time going?
#
# From here on, images are 64 × 64 on a CPU, and 224 × 224 in `float16` on a GPU. Trace one image at a time. On a GPU, Python only queues **kernels**, one launch after another; `waiting` is the time in which none of them runs. On a CPU, each operator finishes before the next one starts; convolutions run PyTorch's own code or that of oneDNN, a library for CPUs. **Predict:** how many operators does one prediction start? (The network has 53 convolutions.)


# %%
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

    def write(trace):
        trace.export_chrome_trace(file)

    with profiler.profile(schedule=when, on_trace_ready=write, acc_events=True) as trace:
        for _ in range(4):
            with profiler.record_function("forward"):
                answer_times(net, batch, 1, 0, wait)
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
if not kernels:
    nb07.print_convolutions("one.json")

# %% [markdown]
# Folding, below, removes *normalisation* and some of the time between operators (*other*; on a GPU, *waiting*). What does it cost just to *start* an operator? Time chains of convolution, batch norm and ReLU on a single number: there is nothing to compute. The time per added operator is its cost. A second cost is fixed, too: every weight is read from memory, at about a large copy's bandwidth.


# %%
def chain(length):
    layers = [nn.Conv2d(1, 1, 1, bias=False), nn.BatchNorm2d(1), nn.ReLU(inplace=True)]
    copies = [copy.deepcopy(layer) for _ in range(length) for layer in layers]
    return nn.Sequential(*copies).to(device).eval()


def race(forms, batch, turns, warm_up=0):
    """Let versions take turns in a random order; return the milliseconds of all by version."""
    ms = {name: [] for name in forms}
    for turn in range(turns + 2):  # the first two warm up
        for name in random.sample(list(forms), len(forms)):
            took = answer_times(forms[name], batch, 1, warm_up, wait)
            if turn >= 2:
                ms[name] += [*took]
    return {name: np.array(values) for name, values in ms.items()}


lengths, number = (10, 20, 40, 80), torch.zeros(1, 1, 1, 1, device=device)
array, copied = torch.zeros(2, 2**27 if device.type == "cuda" else 2**25, device=device)
chains = {n: chain(n) for n in lengths}
works = {n: lambda _, net=net: net(number) for n, net in chains.items()}
works |= {"network": eager, "copy": lambda _: copied.copy_(array)}
ms = race(works, one, session.repeats)
alone = ms["network"]
starts, _ = np.polyfit([3 * n for n in lengths], [ms[n] for n in lengths], 1)  # one per turn
weights = sum(weight.nbytes for weight in eager.parameters())
reads = weights / (2 * array.nbytes / ms["copy"])
start, reading = np.median(starts), np.median(reads)
print(f"One image takes {np.median(alone):.2f} ms, the median of {len(alone)} turns.")
for what, costs in (
    (f"Starting {operators} operators at {1000 * start:.1f} µs", operators * starts),
    (f"Reading {weights / 1e6:.0f} MB of weights, if no cache holds them,", reads),
):
    low, middle, high = 100 * np.quantile(costs / alone, [0.1, 0.5, 0.9])
    print(f"{what} takes {np.median(costs):.2f} ms, {middle:.0f}% of one prediction", end=" ")
    print(f"({low:.0f} to {high:.0f}% in 8 of 10 turns)")
if kernels:
    print(f"{kernels} kernels run for {100 * busy / np.median(alone):.0f}% of the time")
else:
    rest = np.median(alone) - operators * start - reading
    if rest > 0:
        print(f"The rest, if nothing overlaps: {rest:.2f} ms inside the operators (see the trace)")
    else:
        print("These two add up to more than the prediction: the weights come from a cache.")

# %% [markdown]
# The operators are 53 convolutions, 53 batch norms, 49 ReLUs, 16 additions, two poolings and a linear layer. Starting fewer of them helps on *your* device only if the first share above is large. If it is small, look at the convolutions: other engines, below, may run faster ones.
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
fewer, left, left_busy = traced(folded, one, "folded.json")
saved = kinds["normalisation"]  # on a CPU, it includes its starts
if kernels:  # they run behind the launches
    saved = max((operators - fewer) * start, saved)
print(f"{operators} operators before, {fewer} now; the removed ones took", end=" ")
print(
    f"{saved:.2f} of {np.median(alone):.2f} ms: × {1 / (1 - saved / np.median(alone)):.2f} without"
)
if kernels:
    print(f"{kernels} kernels before, {left} now")
ms = race({"eager": eager, "folded": folded}, one, rounds)
gain = workshop.ratio(ms["eager"] / ms["folded"])
print(f"In turns, the speed of folded over eager: {gain}")
if not gain.clear:
    print("So this check cannot decide whether folding saves time here.")

# %% [markdown]
# The difference is only rounding. Folding saves hardly any arithmetic, but it saves starts and **memory traffic**: a separate layer reads its input and writes its output.
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
started = 100 * np.median(operators * starts / alone)
if kernels:
    idle = max(0, 1 - busy / np.median(alone))
    print(f"Here, no kernel runs for {idle:.0%} of a prediction: a graph can save at most that")
else:
    print(f"Here, starting takes {started:.0f}% of a prediction: a graph could save at most that")
print(f"ResNet-50, float16, 224 px, {session.results['h100.predict.eager.1'].provenance}:")
for key, item in session.results.items():
    if key.startswith("h100.predict") and "eager" not in key:
        eagerly = session.results[f"h100.predict.eager.{key.split('.')[-1]}"].value
        way = item.what.split("px, ")[1]
        print(f"{item.value / eagerly:.1f} times eager's {eagerly:,} img/s: {way}")

# %% [markdown]
# In a large batch, kernels hide the launches; at 256, the graph gains hardly more than **pinned** memory alone, from which a GPU copies directly. Faster kernels gain more: those of `torch.compile` (last line; torchvision's network) fuse what follows a convolution.
#
# ## Faster kernels: other engines, and eight bits
#
# The program that serves a network is often not the one that trained it. **ONNX** is a file format for this: it stores operations and weights, and most engines read it, on GPUs also NVIDIA's TensorRT. The next cell exports your folded network.
#
# Recent processors multiply 8-bit integers several times as fast as floats (on x86 Linux, look for `vnni` in `lscpu`). **Quantisation** stores each value as an integer *q*: value ≈ scale · (*q* − zero point). The weights' range is known; the activations' is measured on some images (**calibration**). **Predict:** what share of the predictions changes? (CPU only.)

# %%
import logging
import warnings
from importlib.util import find_spec

import onnxruntime
from onnxruntime import quantization

logging.getLogger("torch.onnx").setLevel(logging.ERROR)  # it looks for torchvision
logging.getLogger().setLevel(logging.ERROR)  # the quantiser recommends its own preprocessing
warnings.simplefilter("ignore", FutureWarning)  # about the exporter's own calls
provider = "CUDAExecutionProvider" if device.type == "cuda" else "CPUExecutionProvider"
options = onnxruntime.SessionOptions()
options.intra_op_num_threads = torch.get_num_threads()
# no spinning: other versions run in between
options.add_session_config_entry("session.intra_op.allow_spinning", "0")


class Calibration(quantization.CalibrationDataReader):
    def __init__(self):
        self.files = iter(sorted(Path(session.data_root, "train").glob("*/*.jpg"))[::16])

    def get_next(self):
        file = next(self.files, None)
        return file and {"images": prepare(file)[None].numpy()}


def serve_onnx(file):
    """Return a function that predicts a batch with ONNX Runtime, or None if it fell back."""
    engine = onnxruntime.InferenceSession(file, options, providers=[provider])
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


forms, served = {"eager": eager, "folded": folded}, None
if provider in onnxruntime.get_available_providers():
    torch.onnx.export(
        folded, (many[:2],), "float.onnx", dynamo=True, dynamic_shapes=({0: "N"},), verbose=False,
        input_names=["images"], output_names=["logits"], external_data=False,
    )  # fmt: skip
    served = serve_onnx("float.onnx")
if served:
    forms["ONNX Runtime"] = served
else:
    print(f"ONNX Runtime is left out: {provider} is missing or did not load, so it would use")
    print("the CPU. Install onnxruntime-gpu for your version of CUDA.")
if device.type == "cpu":
    unsigned = quantization.QuantType.QUInt8  # of the activations: faster than signed on x86
    quantization.quantize_static(
        "float.onnx", "int8.onnx", Calibration(), activation_type=unsigned, per_channel=True
    )
    forms["ONNX Runtime, int8"] = serve_onnx("int8.onnx")
if device.type == "cpu" and find_spec("openvino"):
    import openvino

    engine_limits = {"INFERENCE_NUM_THREADS": torch.get_num_threads()}
    engine_limits |= {"INFERENCE_PRECISION_HINT": "f32"}
    core = openvino.Core()
    network = core.compile_model("float.onnx", "CPU", engine_limits)
    forms["OpenVINO"] = lambda x: torch.from_numpy(network(x.numpy())[0])
if device.type == "cpu" and session.machine.bfloat16:
    halved = ready(folded, torch.bfloat16)
    forms["bfloat16"] = lambda x: halved(x.bfloat16()).float()
if device.type == "cuda":  # the exported file takes only images of this size
    images = torch.stack([prepare(file, size) for file in some]).to(device)
    logits = predict(model)
classes = sorted({file.parent.name for file in files})
labels = torch.tensor([classes.index(file.parent.name) for file in some])
for name, form in forms.items():
    found = predict(form, dtype)
    same, right = (
        100 * (found.argmax(1) == of).float().mean() for of in (logits.argmax(1), labels)
    )
    print(f"{name:18} logits change by up to {(found - logits).abs().max():.1e},", end=" ")
    print(f"{same:.1f}% of {len(images)} predictions stay the same, top-1 of these {right:.1f}%")

# %% [markdown]
# That an independent program gives the same answers tests the export. A changed prediction need not be a wrong one: compare top-1, and score all images before you deploy eight bits.
#
# ## Which version is fastest?
#
# All versions take turns, in a random order; an untimed call before each timed one hands the cores to the next engine's threads. `Predictor` is this library's; it also folds. Fewer bits change some answers, so those versions cannot win. Compare within a race, as speeds drift, and believe a small gain (folding's) only if two races show it. **Predict** the order at batch 1, and at the larger batch. ([`torch.compile` is slow?](../docs/troubleshooting.md#torchcompile-is-slow-it-compiles-again-in-every-step))


# %%
from rn50lib.torch.inference import Predictor


def verdict(ms):
    """Return the two versions with the lowest medians, fewer bits aside, and their ratio."""
    same = [name for name in ms if name not in rounded]
    best, second, *_ = sorted(same, key=lambda name: np.median(ms[name]))
    return best, second, workshop.ratio(ms[second] / ms[best])


rounded = "ONNX Runtime, int8", "bfloat16"
forms["Predictor"] = Predictor(model, dtype)
if device.type == "cuda":
    graphs = {n: capture(folded, many[:n]) for n in session.race}
    forms["CUDA graph"] = lambda x: graphs[len(x)](x)
if not session.compiled:
    print("torch.compile takes a minute to compile here, so it is left out")
results, best = {}, {}
for n in session.race:
    if session.compiled and n == max(session.race):  # each batch compiles for itself
        forms["torch.compile"] = torch.compile(copy.deepcopy(folded), dynamic=False)
    results[n] = race(forms, many[:n], rounds, warm_up=1)
    best[n] = first, second, lead = verdict(results[n])
    print(f"Batch {n}: {first} has the lowest median; its speed over {second}: {lead}")
    gains = {name: results[n]["eager"] / values for name, values in results[n].items()}
    for name, gain in list(gains.items())[1:]:
        print(f"  {name}, speed over eager: {workshop.ratio(gain)}")

fig, axes = plt.subplots(1, len(results), figsize=(9, 3.6), layout="constrained")
for ax, (n, ms) in zip(axes, results.items(), strict=True):
    first, second, lead = best[n]
    colours = dict.fromkeys(rounded, "0.6") | ({first: workshop.FINDING} if lead.clear else {})
    lead = f"{lead.median:.2f} × {second}" if lead.clear else f"no clear lead on {second}"
    order = sorted(ms, key=lambda name: np.median(ms[name]))
    workshop.spans(ax, {name: ms[name] for name in order}, colours)
    ax.set(title=f"Batch {n}: {first},\n{lead}", xlabel="ms per batch (log scale)")
name = torch.cuda.get_device_name() if device.type == "cuda" else "CPU"
fig.suptitle(
    f"Median and range, {rounds} rounds (grey: fewer bits); {name}, {session.dtype}, {size} px"
)
said = "; ".join(f"batch {n}: {verdict(ms)[0]} has the lowest median" for n, ms in results.items())
workshop.figure(fig, alt=f"Time per batch by version and batch size. {said}.")

# %% [markdown]
# *Where* is a version faster than `folded`: does it start fewer operators, or are its convolutions faster? The next cell traces PyTorch's versions; the engines profile themselves, all in turns. The time of a convolution includes what is fused into it. (On a GPU, launches overlap with kernels: eager should take as long as the slower of the two, a graph as long as its kernels.) **Predict** which saves more: fewer operators or faster convolutions.


# %%
def profiled(names, batch, turns):
    """Profile versions in turns; return each one's operators, and (convolution, rest) in ms."""
    engines, counts, spent = {}, {}, {name: [] for name in names}
    for name in exported:
        options.profile_file_prefix = f"{name}, batch {len(batch)}"
        engines[name] = onnxruntime.InferenceSession(exported[name], options, providers=[provider])
    if "OpenVINO" in names:
        request = core.compile_model("float.onnx", "CPU", engine_limits | {"PERF_COUNT": True})
        request = request.create_infer_request()
    for _ in range(turns + 1):
        for name in names:
            if name in engines:
                engines[name].run(["logits"], {"images": batch.numpy()})
            elif name == "OpenVINO":
                request.infer(batch.numpy())
                counts[name], parts = nb07.openvino_parts(request)
                spent[name].append(parts)
            else:
                counts[name] = traced(forms[name], batch, "version.json")[bool(kernels)]
                ms = workshop.trace("version.json", show=False)
                spent[name].append((ms["convolution"], sum(ms.values()) - ms["convolution"]))
    for name, engine in engines.items():
        counts[name], spent[name] = nb07.onnx_parts(engine.end_profiling(), turns + 1)
    return counts, {name: np.array(ms[1:]).T for name, ms in spent.items()}  # the first warms up


exported = {"ONNX Runtime": "float.onnx", "ONNX Runtime, int8": "int8.onnx"}
exported = exported if device.type == "cpu" else {}
options.enable_profiling = True
rows, wins = [], {}
for n in session.race:
    opened = ["folded", *exported, "OpenVINO", "torch.compile"]
    opened = [name for name in opened if name in results[n]]
    counts, spent = profiled(opened, many[:n], session.turns)
    for name, ms in spent.items():
        less = np.median(spent["folded"] - ms, axis=1)
        rows.append([f"batch {n}, {name}", counts[name], *np.median(ms, axis=1)])
        rows[-1].append(f"{less[0]:.1f}; {less[1]:.1f}" if name != "folded" else None)
        wins[f"{name}, batch {n}"] = np.greater(*(spent["folded"] - ms)).sum()
columns = ["", "kernels" if kernels else "operators", "convolution, ms", "the rest, ms"]
columns.append("saves over folded, ms: convolution; the rest")
workshop.table(rows, columns, f"Medians under the profilers (turns: {session.turns})")
for name, won in wins.items():
    if not name.startswith("folded"):
        print(f"{name}: convolutions save more than the rest in {won} of {session.turns} turns")
small, large = min(results), max(results)
if kernels:
    alike = {"eager": max(operators * start, busy), "CUDA graph": left_busy}
    for name, predicted in alike.items():
        print(f"{name}, one image: predicted {predicted:.2f} ms; measured over predicted:", end=" ")
        print(workshop.ratio(results[small][name] / predicted))

# %% [markdown]
# ## Shared costs: one image, or many
#
# The images of a batch share its starts and its weights. If nothing else changed, a batch of *n* would take the shared time once and the rest of one image's time *n* times (on a GPU, the longer of the starts and *n* times the kernels of one image). The next cell compares this with eager batches, in turns. **Predict** by what factor the throughput rises from batch 1 to the largest.

# %%
batches = race({n: lambda _, n=n: eager(many[:n]) for n in session.batches}, None, rounds)
shared = operators * start + reading
rest = np.maximum(batches[1] - shared, 0)
rates, predicted = {}, {}
for n, ms in batches.items():
    rates[n] = 1000 * n / ms
    expected = np.maximum(operators * start, n * busy) if kernels else shared + n * rest
    predicted[n] = 1000 * n / expected
    print(f"Batch {n}: {np.median(rates[n]):,.0f} img/s;", end=" ")
    if kernels or n > 1:
        print(f"measured over predicted: {workshop.ratio(rates[n] / predicted[n])}")
    else:
        print("the prediction starts from it")
disturbed = workshop.ratio(results[small]["eager"] / batches[small])
print(f"Time of eager at batch {small}, in the race with engines over this cell: {disturbed}")
more = [n for n in batches if n > 1]
if len(more) > 2 and not kernels:
    each, fixed = np.polyfit(more, [np.median(batches[n]) for n in more], 1)
    print(f"From batch {more[0]} on, n images take about {fixed:.1f} + {each:.1f} n ms", end=" ")
    print(f"(starts and weights: {shared:.1f} ms);", end=" ")
    name = best[small][0]
    one_image, last = (np.median(results[n][name]) for n in (small, large))
    each = (last - one_image) / (large - small)
    print(f"with {name}, {one_image - each:.1f} + {each:.1f} n ms (from two points)")
for n in dict.fromkeys((more[0], max(batches))):
    _, _, busy_many = traced(eager, many[:n], "many.json")
    print(f"Batch {n}:", end=" ")
    if kernels:
        print(f"kernels run for {busy_many / n:.3f} ms per image; those of one, {busy:.2f} ms")
    else:
        nb07.print_convolutions("many.json")

# %%
curves = {"measured": (rates, "o-", "black"), "shared costs": (predicted, "D--", "0.4")}
fig, ax = plt.subplots(figsize=(9, 3.6), layout="constrained")
rise = {}
for name, (values, look, colour) in curves.items():
    sizes = sorted(values)
    over = [np.quantile(values[n], [0, 0.5, 1]) / np.median(values[1]) for n in sizes]
    low, middle, high = np.transpose(over)
    ax.errorbar(sizes, middle, (middle - low, high - middle), fmt=look, capsize=3, color=colour)
    rise[name] = f"{middle[-1]:.1f} ×"
    ax.text(sizes[-1], middle[-1], f"   {name}: {rise[name]}", va="center", color=colour)
ax.set_xscale("log", base=2)
ax.set_yscale("log", base=2)
ax.xaxis.set_major_formatter("{x:g}")
ax.yaxis.set_major_formatter("{x:g}")
ax.margins(x=0.15)
title = f"Batch {n}: {rise['measured']} batch 1; shared costs explain {rise['shared costs']}"
ax.set(title=title, ylabel="speed over batch 1 (log scale)")
ax.set_xlabel(f"batch (log scale); median and range of {rounds} rounds")
workshop.figure(fig, alt=f"Speed of the largest batch over batch 1: {rise}.")

# %% [markdown]
# A batch clearly above the prediction shares more costs or runs faster kernels. On a CPU, PyTorch chooses a convolution's code by its input's size, and oneDNN's reorders the weights in every call; an engine does so once, which can explain a smaller fixed cost (above the figure). On a GPU, one image cannot keep all cores busy.
#
# ## One request
#
# A real request is a JPEG file, which must be decoded, resized and cropped. Time the preparation and the network separately, without a queue. The **p95** is the time within which 95% of requests are answered; p50 is the median. Services promise a p95 or p99, because the mean and the median hide the slowest requests. **Predict:** what fraction of the time does the preparation take, and what is p95 / p50?

# %%
version = best[small][0]
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
drawn = np.random.default_rng(seed).choice(latency, (1000, requests))  # requests drawn again
tails = np.percentile(drawn, (50, 95), axis=1, method="inverted_cdf")
low, high = np.quantile(tails[1] / tails[0], [0.025, 0.975])
share = 100 * np.median(decoding / latency)
print(f"{version}: p50 {p50:.2f} ms, p95 {p95:.2f} ms, slowest {latency.max():.2f} ms,", end=" ")
print(f"mean {latency.mean():.2f} ms; preparation {share:.0f}% of a typical request")
print(f"p95 is {p95 / p50:.2f} times p50 (bootstrap, 95%: {low:.2f} to {high:.2f})")

# %% [markdown]
# ## Many users: latency under load
#
# A loop that sends the next request after the last answer never sees a queue. Real requests arrive at their own rate, whatever the queue (an **open loop**), and latency counts from the arrival. `serve` answers prepared images one at a time or, with `most` above 1, up to `most` in one batch: **dynamic batching**. One random sequence of arrivals proves little, so each point has several.
#
# **Your turn:** predict the mean latency without batching. If all services take equally long, a request waits for load / (2 (1 − load)) of them on average (Pollaczek and Khinchine), then for its own. **Predict** p95 at 50, 80 and 150% of the one-at-a-time capacity, too.


# %%
def mean_latency(service, load):
    """Return the mean latency in ms at a `load` below 1."""
    return None  # your code


# %%
mean_latency = nb07_checks.check_latency(mean_latency)


@torch.inference_mode()
def serve(answer, rate, most, sequence):
    """Answer requests that arrive at random, `rate` per ms.

    Return the latency of each request and the time of each service, in ms.
    """
    random = np.random.default_rng([seed, sequence])
    arrivals = np.cumsum(random.exponential(1 / rate, requests))
    latencies, services, begin = [], [], time.perf_counter()
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
        services.append(end - now)
    return np.array(latencies), np.array(services)


most = 16
if device.type == "cuda":  # a graph has a fixed batch: take the next larger one
    version = "CUDA graph"
    by_size = {n: capture(folded, many[:n]) for n in (1, 2, 4, 8, 16)}


def answer(count):
    if device.type == "cpu":
        return quick(many[:count])
    n = min(n for n in by_size if n >= count)
    by_size[n](many[:n])
    torch.cuda.synchronize()


with torch.inference_mode():
    for count in range(1, most + 1):
        answer(count)  # warm up
times = race({n: lambda _, n=n: answer(n) for n in (1, most)}, None, session.repeats, warm_up=1)
capacity = 1 / np.median(times[1])
loads, limits = (0.5, 0.8, 1.5), {"one at a time": 1, f"up to {most} at once": most}
served, services = ({(name, load): [] for name in limits for load in loads} for _ in range(2))
for sequence in range(session.sequences):
    for (name, load), runs in served.items():
        latencies, times_of = serve(answer, load * capacity, limits[name], sequence)
        runs.append(latencies)
        services[name, load].append(times_of.mean())
for load in loads[:2]:
    means = np.mean(served["one at a time", load], axis=1)
    mean = mean_latency(1 / capacity, load)
    print(f"one at a time, load {load:.0%}: measured over predicted mean:", end=" ")
    print(workshop.ratio(means / mean))
    longer = np.array(services["one at a time", load]) * capacity
    print(f"  a service in the queue over one in a loop: {workshop.ratio(longer)}")
percent, tails = 100 * np.array(loads), {}
fig, ax = plt.subplots(figsize=(9, 3.4), layout="constrained")
for name, colour in zip(limits, ("black", workshop.FINDING), strict=True):
    runs = np.array([served[name, load] for load in loads])  # loads × sequences × requests
    tails[name] = np.percentile(runs, 95, axis=2, method="inverted_cdf")
    low, middle, high = np.quantile(tails[name], [0, 0.5, 1], axis=1)
    for i, load in enumerate(percent):
        print(f"{name}, load {load:.0f}%: p50 {np.median(runs[i]):.1f} ms,", end=" ")
        print(f"p95 {middle[i]:.1f} ms ({low[i]:.1f} to {high[i]:.1f}, {runs.shape[1]} sequences)")
    at = percent + len(tails)  # side by side
    ax.errorbar(at, middle, (middle - low, high - middle), fmt="o-", capsize=3, color=colour)
    ax.text(at[-1], middle[-1], f"   {name}", va="center", color=colour)
gains = [workshop.ratio(alone / batched) for alone, batched in zip(*tails.values(), strict=True)]
print(f"p95 of one at a time over batched at {percent[1]:.0f}% load: {gains[1]}")
more = workshop.ratio(most * times[1] / times[most])
ax.set(title=f"Batches of {most} serve {more.median:.2f} × the requests per second")
ax.set(yscale="log", ylabel="p95 in ms (log scale)", xlim=(45, 185), xticks=percent)
workshop.log_ticks(ax.yaxis)
ax.axvspan(100, 185, color="0.93", zorder=0)
ax.set_xlabel(
    f"load, % of the one-at-a-time capacity (grey: its queue only grows); {version}, {size} px"
)
workshop.figure(
    fig, alt=f"p95 by load, with and without batching; at the largest load: {gains[-1]}."
)
print(f"Requests per second in batches of {most} over one at a time: {more}")

# %% [markdown]
# If services in the queue are longer than in a loop, the load is higher than you set, and the formula predicts too little. Above 100%, the p95 of one at a time shows how long you measured; near it, waits vary so much that few requests decide little. Batching changes the limit by about the factor in the last line. The price: each request waits for its whole batch.
#
# ## Where is the time going now?

# %% tags=["results"]
queued = float(np.median(tails["one at a time"][1]))
budget = np.median(decoding), np.median(latency - decoding), max(0, queued - 1 / capacity)
print(
    "One request: preparation {:.1f} ms, network {:.1f} ms; at 80% load,".format(*budget), end=" "
)
print(f"one at a time, p95 adds {budget[2]:.1f} ms of queue")
session.note("decoding", share, "%", "share of a request spent on preparation")
session.note("p95", float(p95), "ms", f"p95 of {requests} single requests")
session.note("p95_load", queued, "ms", "p95 at 80% load, one at a time")

# %% [markdown]
# A single request waits for its preparation, its arithmetic and the fixed costs that a batch shares; near capacity, for other requests. So latency cannot be derived from throughput: publish both, with batch, image size, precision, threads and load.
#
# ## Key takeaways
#
# - Score a checkpoint before you build on it, and expect equality, on a CPU to the last digit.
# - A correct timing needs evaluation mode, `inference_mode`, warm-up and synchronisation.
# - Count a prediction's operators and time one start: that bounds what a CUDA graph can save.
# - Call a version faster only if it wins every round (a small gain: in two races), and ask a profiler why.
# - A batch shares starts and weights, and may get faster kernels.
# - Report p95 or p99 at a stated load, measured with an open loop and several sequences of arrivals.
#
# **Try it:** set `most` to 2 and to 8. Which one has the lowest p95 at each load?
#
# The last notebook asks whether eight more GPUs pay off.
