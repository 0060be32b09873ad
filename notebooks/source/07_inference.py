# %% [markdown]
# # 07 · Inference
#
# After this notebook you can take a checkpoint to an answer: score it, export it, say what its probabilities are worth, and choose a batch by the throughput and the latency that it gives.
#
# **Time:** 25 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 5 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
epochs: int | None = None  # epochs of the training run; None: 2, on a GPU those of the recipe
rounds: int | None = None  # rounds in which forms of the network take turns; None: 10
requests: int | None = None  # single requests that are timed; None: 400
seed: int = 0  # start of all randomness

# %%
import os

import workshop

session = workshop.start("07", profile)

# %% [markdown]
# ## Where is the time going?
#
# So far one number counted: images per second. Whoever trains has all the pictures at hand, wants them all done soon, and does not care which of them comes first. Whoever *asks* a trained network has one picture and waits. To them it is nothing that a thousand others were answered in the same second; what counts is the time from their question to their answer, the **latency**.
#
# The two pull in different directions, and the batch is the knob between them. This notebook first makes sure that the answers are right, then makes one of them fast, then many, and asks what becomes of the one when the many arrive.

# %% [markdown]
# ## A checkpoint and its score
#
# Inference begins with a checkpoint. Here a short run makes one, of ResNet-50 on the road signs.

# %%
from rn50lib import recipe

epochs = epochs or session.pick(cpu=2, gpu=recipe.ROADSIGNS.epochs)
slow = session.profile != "gpu" and not session.machine.bfloat16
run = workshop.train(
    name="to-serve", num_epochs=epochs, batch_size=32, seed=seed, model_prefix="model",
    num_examples=640 if slow else None, disp_batches=10,
).wait()  # fmt: skip

# %% [markdown]
# A checkpoint is a network's description and a file of arrays. The rest is PyTorch: build, load, switch to evaluation, and ask under `inference_mode`, which keeps nothing for a backward pass. The pictures must be prepared as in validation; the library's `crop` does it here.

# %%
import torch
from PIL import Image

from rn50lib import checkpoint
from rn50lib.data.decode import crop, open_image
from rn50lib.data.source import open_source
from rn50lib.recipe import MEAN, STD, center_crop_box
from rn50lib.torch.model import ResNet, load_arrays

prefix = run.dir / "model"
last = checkpoint.epochs(prefix)[-1]
device = torch.device("cuda" if session.profile == "gpu" else "cpu")
model = ResNet(checkpoint.read_network(prefix))
load_arrays(model, checkpoint.load(prefix, last).arrays)
model = model.to(device).eval()

# %%
size = run.report["env"]["axes"]["image_shape"]["value"]
val = open_source(session.data_root, "val", "recordio")


def prepared(i):
    """Validation picture i as the network takes it, (1, 3, size, size)."""
    image = open_image(val.read(i), val.name(i))
    array = crop(image, center_crop_box(*image.size, size), size, val.name(i))
    x = torch.tensor(array).permute(2, 0, 1)[None]
    x = (x - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    return x.to(device)


some = range(session.pick(ci=16, cpu=192, gpu=600))
images = torch.cat([prepared(i) for i in some])
labels = torch.tensor(val.labels[some.start : some.stop]).to(device)
with torch.inference_mode():
    logits = torch.cat([model(part) for part in images.split(32)])
right = (logits.argmax(dim=1) == labels).float().mean()
print(f"{100 * right:.1f} % of {len(labels)} validation pictures are right.")

# %% [markdown]
# `rn50 score PREFIX EPOCH` does the same for all of them, as quickly as the machine allows. Its score must be the number that the run reported, not one near it: the same weights, the same pictures, the same crops, and nothing random. It is computed in a new process that knows only the files. A difference in the last digit would mean that one of these is not what you believe, and that error would stay in everything built on it.

# %%
score = workshop.train(
    name="score", model_prefix=str(prefix), load_epoch=last, only_inference=True, num_epochs=1
).wait()
said, scored = (r.report["metrics"]["val.top1"][-1] for r in (run, score))
print(
    f"The run said {said}, the score says {scored}: {'equal' if said == scored else 'NOT equal'}."
)
print(f"By hand: rn50 score {prefix.parent.name}/{prefix.name} {last}")

# %% [markdown]
# ## Pictures that were never in the data
#
# Validation pictures are at least relatives of the training pictures: the same program drew them, from the same seed. So let it draw some that nobody has seen, with another seed, each named by its class. And to be mean, add two that are no sign at all: a road without one, and noise.
#
# **Predict first:** what does the network say about the road, and how sure is it?

# %%
import numpy as np

from rn50 import predict
from workshop.lessons.inference import fresh
from workshop.programs import program

classes = open_source(session.data_root, "val").classes
scratch = run.dir / "inference"
new = fresh.draw(scratch / "new", classes)
program("rn50", "predict", "../model", last, *[f"new/{file.name}" for file in new],
        "-o", "new.npz", folder=scratch)  # fmt: skip
probabilities = np.load(scratch / "new.npz")["probabilities"]
for file, row in zip(new, probabilities, strict=True):
    print(f"{file.name}: {predict.best(row, classes)}")

# %%
from workshop.lessons import figures

opened = [np.asarray(Image.open(file).convert("RGB")) for file in new]
fig, finding = figures.answers(opened, [file.stem for file in new], probabilities, classes)
workshop.figure(fig, alt=f"New pictures with the network's three likeliest classes. {finding}")
sure = {name: row.max() for name, row in zip((f.stem for f in new), probabilities, strict=True)}
print(
    f"The probabilities of the noise add up to {probabilities[-1].sum():.3f}, as do all the others."
)
print(f"About a road without a sign it is {100 * sure['road']:.0f} % sure,")
print(f"about noise {100 * sure['noise']:.0f} %.")

# %% [markdown]
# The probabilities come from a softmax. It takes twelve numbers and makes them positive with a sum of 1, whatever they are. Give your model anything at all:

# %%
torch.manual_seed(seed)
nonsense = 3 * torch.randn(1, 3, size, size, device=device)
with torch.inference_mode():
    probability = torch.softmax(model(nonsense)[0].float(), dim=0)
top = probability.topk(3)
for value, label in zip(top.values.tolist(), top.indices.tolist(), strict=True):
    print(f"{100 * value:5.1f} %  {classes[label]}")
print("all twelve together:", round(probability.sum().item(), 4))

# %% [markdown]
# There is no thirteenth class "none of these", and the network has never seen a picture that would have needed it. So the numbers answer *"if it is one of the twelve, which?"*, and they do not say whether the question makes sense. If a picture may show something else, your training data must contain something else.
#
# ### What a probability is worth
#
# Does 90 % mean that nine of ten such answers are right? That is no matter of definition. It can be counted. The cell computes the answers to all validation pictures in several forms of the network, which the next sections need too, and groups those of the plain one by their probability.

# %%
from rn50 import autoconfig
from workshop.lessons.inference import figures as drawn
from workshop.lessons.inference import forms

reduced = session.pick(cpu="bfloat16")
if session.profile == "gpu":
    reduced = autoconfig.best_dtype(session.machine, "reference")[0]
every = 3 if slow else 1  # where bfloat16 is imitated, a third of the pictures must do
answers = forms.answers(prefix, last, scratch / "answers.npz", reduced, every)
fig, finding = drawn.trust(answers.probabilities(forms.FOLDED), answers.labels)
workshop.figure(fig, alt=f"Claimed probability and share of right answers by group. {finding}")
print(finding)

# %% [markdown]
# Where the two bars are alike, one may take the network at its word. Where the hatched bar is lower, it is too sure of itself; where it is higher, it is too modest. A network at the beginning of its training is often modest; one that was trained until it knows its training pictures by heart tends to be too sure. Either way: a threshold such as "act from 90 % on" belongs to *this* checkpoint and must be counted again for the next.

# %% [markdown]
# ## A clock, written wrongly
#
# What the answers are worth is known. How long does one take? Here is a benchmark as it is often written. It runs, it prints a number, and there are six things wrong with it. How many do you find before you read on?


# %%
import copy
import time

net = ResNet(checkpoint.read_network(prefix)).to(device)
load_arrays(net, checkpoint.load(prefix, last).arrays)
begin = time.perf_counter()
for start in range(0, 16, 4):
    answer = net(torch.cat([prepared(i) for i in range(start, start + 4)]))
took = (time.perf_counter() - begin) / 4
print(f"My network answers a batch of 4 in {1000 * took:.1f} ms!")

# %% [markdown]
# The first two lie in the network. A new module is in **training mode**: its batch norms normalise with the mean of these four pictures, so that the answer to one depends on the other three, and every call changes the running averages. And nobody said that there will be no backward pass, so that PyTorch **keeps all activations** for it. Both are mended by a line each. Compare the answers too:

# %%
batch = torch.cat([prepared(i) for i in range(4)])
true = logits[:4]
answer = net.train()(batch)
print(f"training mode: logits off by up to {(answer - true).abs().max():.3f},", end=" ")
print("a graph is kept" if answer.grad_fn else "no graph")
with torch.inference_mode():
    answer = model.eval()(batch)
print(f"evaluation:    logits off by up to {(answer - true).abs().max():.1e},", end=" ")
print("a graph is kept" if answer.grad_fn else "no graph")

# %% [markdown]
# Three more are in the way the clock is held. It also times the **JPEG decoder**, which may be asked for but then should be said. It counts the **first calls**, for which memory is fetched and kernels are chosen. And on a GPU it **does not wait**: the call returns when the work has been queued. So prepare before, warm up, and wait:


# %%
def seconds_of(net, batch, rounds, warm_up=3):
    """Seconds of each of `rounds` answers to a batch that is ready, after some that do not count."""
    seconds = []
    with torch.inference_mode():
        for turn in range(-warm_up, rounds):
            begin = time.perf_counter()
            net(batch)
            if device.type == "cuda":
                torch.cuda.synchronize()
            if turn >= 0:
                seconds.append(time.perf_counter() - begin)
    return seconds


rounds_here = session.pick(ci=5, cpu=50)
took = 1000 * torch.tensor(seconds_of(model, batch, rounds_here))
print("the first three, warm:", *(f"{value:.1f}" for value in took[:3].tolist()), "ms")

# %% [markdown]
# The sixth is the one number. A **mean** says nothing of the answers that took long, and a rate or a time without batch, precision and threads is no result. So:

# %%
threads = torch.get_num_threads()
for name, value in (
    ("mean", took.mean()),
    *((f"p{q}", took.quantile(q / 100)) for q in (50, 90, 99)),
):
    print(f"{name:5} {value:8.2f} ms")
print(f"batch {len(batch)}, {size} pixels, float32, {threads} threads, {device.type}, ", end="")
print(f"{len(took)} answers, PyTorch {torch.__version__}")

# %% [markdown]
# ## Inference is not training without a backward pass
#
# One could take the network as it trains, switch it to evaluation, and ask. It would be right and slower than need be. What training keeps apart, inference can put together.
#
# A **batch norm** in training computes mean and variance of its batch. In inference both are fixed, the running averages of the training. Then it is one multiplication and one addition per channel, and the convolution before it is multiplications and additions too. So one can do the batch norm's multiplication *beforehand*, on the weights:
#
# `gamma · (W x − mean) / std + beta  =  (gamma / std · W) x + (beta − gamma · mean / std)`
#
# PyTorch has a function for exactly this. Here it is on the first convolution of your checkpoint and the batch norm behind it, and the same by hand:

# %%
from torch.nn.utils import fuse_conv_bn_eval

conv, norm = model.conv1, model.bn1
one_layer = fuse_conv_bn_eval(conv, norm)
with torch.inference_mode():
    apart = norm(conv(images[:8]))
    together = one_layer(images[:8])
    factor = norm.weight / torch.sqrt(norm.running_var + norm.eps)
    by_hand = conv.weight * factor.view(-1, 1, 1, 1)
print(
    f"values up to {apart.abs().max():.2f}, differences up to {(apart - together).abs().max():.1e}"
)
print("the folded weights are those by hand:", torch.allclose(one_layer.weight, by_hand, atol=1e-6))

# %% [markdown]
# The differences are rounding: the same sums in another order. And over the whole network, with all of its batch norms folded, on the pictures of before:

# %%
NAMES = (("conv1", "bn1"), ("conv2", "bn2"), ("conv3", "bn3"), ("downsample", "downsample_bn"))
folded = copy.deepcopy(model).eval()
count = 0
for module in list(folded.modules()):
    for conv, norm in NAMES:
        if isinstance(getattr(module, norm, None), torch.nn.BatchNorm2d):
            fused = fuse_conv_bn_eval(getattr(module, conv), getattr(module, norm))
            setattr(module, conv, fused)
            setattr(module, norm, torch.nn.Identity())
            count += 1
with torch.inference_mode():
    again = torch.cat([folded(part) for part in images.split(32)])
difference = (again - logits).abs().max().item()
print(f"{count} batch norms folded; {len(images)} pictures:")
print(f"logits up to {logits.abs().max():.1f}, apart by {difference:.1e}")

# %% [markdown]
# ### What that saves
#
# Hardly any arithmetic. What it saves is *traffic*: every layer that stands alone reads its input from memory and writes its output back. With the batch norm gone into the weights, the convolution can also do the ReLU and the addition of the shortcut while it still has its result at hand. Counted for ResNet-50 at 224 pixels:

# %%
from rn50lib import resnet as network
from workshop.lessons.inference import traffic

resnet50 = network.resnet(50)
apart, fused = (traffic.total(resnet50, 224, 32, "float32", f) for f in (False, True))
workshop.table(
    [[name, work.flops / 32e9, work.bytes / 32e6, work.intensity]
     for name, work in (("training form", apart), ("folded and fused", fused))],
    columns=["", "GFLOP an image", "MB an image", "FLOP per byte"],
    caption="One forward pass in float32, batch 32, every layer from memory to memory",
)  # fmt: skip
print(f"The same work; apart, the layers have {apart.bytes / fused.bytes:.1f} times the traffic.")

# %% [markdown]
# This is the library's own code. `score`, `predict` and every validation go through it. The first function folds, by PyTorch's `fuse_conv_bn_eval`; the other two are what a processor gets, where one kernel of oneDNN does all three.

# %%
workshop.show("rn50lib.torch.inference:fold_batch_norms")
workshop.show("rn50lib.torch.cpu:one_pass")
workshop.show("rn50lib.torch.cpu:OnePass.forward")

# %% [markdown]
# What does it bring? PyTorch's timer warms up, waits for the GPU and repeats until the time is up:

# %%
from torch.utils import benchmark

one = images[:1]


def milliseconds(statement, **given):
    """The median time of a statement about a network `m` and a picture `x`."""
    timer = benchmark.Timer(statement, globals={"x": one, **given}, num_threads=threads)
    return 1000 * timer.blocked_autorange(min_run_time=session.pick(ci=0.2, cpu=2)).median


print(f"with a graph kept: {milliseconds('m(x)', m=model):.2f} ms a picture")
with torch.inference_mode():
    print(f"inference_mode:    {milliseconds('m(x)', m=model):.2f} ms")
    print(f"and folded:        {milliseconds('m(x)', m=folded):.2f} ms")

# %% [markdown]
# The fusing can be left to a compiler. `torch.compile` reads what a module does when it is called for the first time, and writes new code in which ReLU, addition and batch norm share one pass over memory. Here it is on the first block of ResNet-50, in a program of its own. On a processor it needs a C++ compiler, and the first call takes a while.

# %%
# %%writefile {session.folder}/compiled.py
import sys
import time

import torch
from torch.utils import benchmark

from rn50lib import resnet as network
from rn50lib.torch.model import Bottleneck

device = "cuda" if torch.cuda.is_available() else "cpu"
block = Bottleneck(next(network.resnet(50).blocks())).to(device).eval()
x = torch.randn(4, 64, 56, 56, device=device)
compiled = torch.compile(block, backend=sys.argv[1])
with torch.no_grad():
    print("compiling ...", flush=True)
    begin = time.perf_counter()
    compiled(x)
    print(f"the first call: {time.perf_counter() - begin:.1f} s")
    for name, form in (("as written", block), ("compiled", compiled)):
        timer = benchmark.Timer(
            "form(x)", globals={"form": form, "x": x}, num_threads=torch.get_num_threads()
        )
        median = timer.blocked_autorange(min_run_time=float(sys.argv[2])).median
        print(f"{name:10} {1000 * median:.2f} ms")
    print(f"largest difference: {(compiled(x) - block(x)).abs().max():.1e}")

# %%
import shutil

backend = "inductor" if shutil.which("g++") and session.profile != "ci" else "eager"
workshop.run_script(session.folder / "compiled.py", backend, session.pick(ci=0.1, cpu=1))
if backend == "eager":
    print('The backend "eager" only reads the module and compiles nothing (no g++, or profile ci).')

# %% [markdown]
# The library's forms, larger pictures, and a proper comparison. **Predict:** is it faster by the factor of the traffic? By more? By less? The forms take turns, so that a slow moment of this machine hits all of them; the third one is for later.

# %%
from workshop.pairs import median_interval

half = forms.folded(reduced)
at_224 = dict(
    image_shape=224, num_classes=1000, seed=seed, batch_size=session.pick(cpu=4 if slow else 16, gpu=64)
)  # fmt: skip
rounds = rounds or session.pick(ci=2, cpu=7 if slow else 10)
timed = forms.compare(at_224, (forms.TRAINING, forms.FOLDED, half), rounds)
pair = timed.pair(forms.FOLDED, forms.TRAINING)
lines = {"traffic, counted": apart.bytes / fused.bytes}
fig, finding = figures.pairs(pair, lines, "A batch")
workshop.figure(fig, alt=f"Time of a batch in two forms, in turns, and their ratio. {finding}")
done = timed.experiment
print(f"{done.image_shape} px, batch {done.batch_size}, {done.threads} threads. {finding}")
faster = median_interval(pair.ratios)[0]

# %% [markdown]
# Only the part of the time that went by moving numbers can be saved; the arithmetic of the convolutions stays.

# %% [markdown]
# ## One answer, or many
#
# A batch of one reads all the weights for a single picture. A batch of 32 reads them once and uses them 32 times. So the work per byte, the **arithmetic intensity**, rises with the batch. By how much?

# %%
sheet = {key: session.results[f"v100.{key}"].value for key in ("fp32", "fp16", "bandwidth")}
rows = []
for batch in (1, 8, 32, 208):
    work = [traffic.total(resnet50, 224, batch, d) for d in ("float32", "float16")]
    rows.append([batch, work[0].bytes / batch / 1e6, *(w.intensity for w in work)])
workshop.table(
    rows,
    columns=["batch", "MB an image, FP32", "FLOP per byte, FP32", "FP16"],
    caption="ResNet-50 at 224 pixels, folded",
)
knee = {p: 1e12 * sheet[p] / (1e9 * sheet["bandwidth"]) for p in ("fp32", "fp16")}
print(f"A V100 needs {knee['fp32']:.0f} FLOP per byte in FP32 and {knee['fp16']:.0f} in FP16,")
print("by its data sheet, for its arithmetic to be the limit.")

# %% [markdown]
# It rises, and not even twofold: the feature maps of a single picture are as much traffic as all the weights. Keep that in mind for the measurement. First your own model, by your own clock:

# %%
with torch.inference_mode():
    for batch in (1, 4, 16):
        x = torch.randn(batch, 3, size, size, device=device)
        took = milliseconds("m(x)", m=folded, x=x)
        print(
            f"batch {batch:2}: {took:7.2f} ms for all, {1000 * batch / took:7.1f} images per second"
        )

# %% [markdown]
# Both columns are true, and they recommend different batches. `rn50 benchmark --only-inference` is the command of NVIDIA's training package [ResNet-50 v1.5 for MXNet](https://github.com/NVIDIA/DeepLearningExamples/tree/master/MxNet/Classification/RN50v1.5): it goes through a list of batches with random pictures of 224 pixels and writes a file. **Predict** how many times as many images per second the largest batch gets than a batch of 1, on your machine and on a V100.

# %%
batches = session.pick(ci=(1, 2, 4), cpu=(1, 2, 4, 8, 16), gpu=(1, 2, 4, 8, 16, 32, 64, 128, 208))
common = ["-n", 1, "-b", ",".join(map(str, batches)), "--only-inference", "--loader", "synthetic",
          "--image-shape", 224, "-i", session.pick(ci=2, cpu=6, gpu=50),
          "--profile", session.profile, "--num-classes", 1000]  # fmt: skip
kinds = ("float32",) if slow or session.profile == "ci" else ("float32", reduced)
for dtype in kinds:
    program("rn50", "benchmark", *common, "--dtype", dtype, "-o", f"{dtype}.json",
            folder=scratch)  # fmt: skip

# %%
from rn50 import compare

sides = {dtype: compare.read(str(scratch / f"{dtype}.json")).rates for dtype in kinds}
yours = {
    dtype: {b: ips for (_, _, b), ips in rates.items() if ips} for dtype, rates in sides.items()
}
published = {
    name: {b: ips for (key, _, b), ips in compare.published(f"DGX-1/{kind}").rates.items()
           if key == "val.total_ips"}
    for name, kind in (("FP32", "FP32"), ("FP16", "mixed"))
}  # fmt: skip
fig, finding = drawn.curve(yours, published)
workshop.figure(fig, alt=f"Images per second over the batch. {finding}")
print(finding.replace(". ", ".\n").strip())

# %% [markdown]
# Why is a batch of one so slow on the V100? The usual answer is the weights, which it must fetch for a single picture. But the sum above says that the feature maps are as much traffic again, so that they explain less than a factor of two.
#
# What is left is what no roofline knows: a hundred kernels and more are started one after the other, and the late layers, with 7 × 7 pixels, are too small to keep 80 multiprocessors busy. A larger batch spreads the first over more pictures and fills the second; that is where most of the gain comes from.
#
# A processor with a few cores starts a layer in microseconds, and a single picture is enough to keep all of them busy. So its curve is much flatter, and it may even fall, when the feature maps of a larger batch no longer fit into the cache. The same network, the same command, another answer: the curve must be measured on the machine that will serve.

# %% [markdown]
# ## How long does one wait?
#
# A request that arrives is a JPEG. It has to be decoded, cut and resized, and only then does the network see it. So the clock starts before the decoder:

# %%
seconds = []
with torch.inference_mode():
    for i in some[: session.pick(ci=8, cpu=100)]:
        begin = time.perf_counter()
        answer = folded(prepared(i)).argmax().item()  # waits for the device
        seconds.append(time.perf_counter() - begin)
took = 1000 * torch.tensor(seconds)
for q in (0.5, 0.9, 0.99, 1.0):
    print(
        f"{100 * q:4.0f} % of {len(took)} requests were answered within {took.quantile(q):.1f} ms"
    )

# %% [markdown]
# A few requests say little about the hundredth of them that is slowest. The next cell asks your checkpoint about one picture after the other, as a patient client would. It also times batches, and at the end it lets requests arrive at random; both are needed further down.

# %%
from workshop.lessons.inference import serving

count = requests or session.pick(ci=40, cpu=400)
loads = session.pick(ci=((0.5, 1), (0.5, 8)), cpu=((0.5, 1), (0.9, 1), (1.2, 1), (1.2, 8)))
server = serving.measure(prefix, last, count, loads, seconds=session.pick(ci=1, cpu=5))
fig, finding = drawn.latencies(server.requests)
workshop.figure(fig, alt=f"Latencies of single requests and how many are below each. {finding}")
print(finding)
decoding = 100 * server.decode.sum() / server.requests.sum()
print(f"{decoding:.0f} % of the time goes into decoding, the rest into the network.")

# %% [markdown]
# The squares are **percentiles**: p99 is the time within which 99 of 100 requests were answered, and p100, which may lie beyond the right edge, is the longest of all.

# %% [markdown]
# ### The mean hides the tail
#
# Which of these two servers would you rather have? Decide by the mean, then look at the rest.

# %%
steady, moody = [20.0] * 100, [10.0] * 97 + [343.0] * 3  # milliseconds of 100 requests
shares = (50, 90, 95, 99, 100)
workshop.table(
    [[name, sum(values) / 100, *np.percentile(values, shares, method="inverted_cdf").tolist()]
     for name, values in (("steady", steady), ("moody", moody))],
    columns=["server", "mean, ms", *(f"p{p}" for p in shares)],
)  # fmt: skip
for asked in (1, 10, 50):
    slow_one = 100 * (1 - 0.97**asked)
    print(
        f"A page that asks the moody server {asked:2d} times is slow in {slow_one:.0f} % of cases."
    )

# %% [markdown]
# The means are equal up to a hundredth of a millisecond, and nearly all requests are twice as fast with the moody one. But a page that needs ten answers waits for the slowest of them. This is why services promise a p99 and not a mean. `rn50 benchmark` therefore notes the percentiles of every cell in its file. With n answers, no percentile beyond 100 - 100/n can be told from the longest of them.

# %% [markdown]
# ### When requests come as they like
#
# So far the client waited for its answer before it asked again. Real clients know nothing of each other. Even if the server could answer them all, some arrive while it is busy, and they wait: in a **queue**. (MLPerf, the usual contest of inference, measures these cases apart: *single stream* is the patient client, *offline* the sweep over batches, and *server* this one, where only as many requests count as keep the p99 below a bound.)
#
# The rule of this server is simple. Whenever it is free, it takes all that wait, at most as many as the *limit*, as one batch. It may also hold a batch that is not full back for a short while, the *wait*, in the hope of more. Here is the whole of it:

# %%
from workshop.lessons.inference import queueing

workshop.show(queueing.play)

# %% [markdown]
# The cell plays it with the times that your server took for its batches. **Predict** first:
#
# 1. With a limit of 1, the load rises from half of what is possible to nine tenths. What happens to p50, and what to p99?
# 2. Then the limit rises to 8. What does a single request pay for it?
# 3. Then batches are held back for 20 ms. What becomes of the time that the server works, and who pays for it?

# %%
alone = server.service.capacity(1)
rows = []
for share, limit, wait in ((0.5, 1, 0), (0.9, 1, 0), (0.9, 8, 0), (0.9, 8, 20), (1.2, 8, 0)):
    played = queueing.play(
        queueing.poisson(share * alone, 3000), server.service, limit, wait / 1000
    )
    p50, p99 = (1000 * played.percentile(p) for p in (50, 99))
    rows.append([share * alone, limit, wait, p50, p99, played.mean_batch, 100 * played.utilisation])
workshop.table(
    rows, columns=["requests/s", "limit", "wait, ms", "p50, ms", "p99, ms", "at once", "% at work"],
    caption=f"Played with your server's times; one at a time it answers {alone:.0f} a second",
)  # fmt: skip

# %% [markdown]
# A queue does not grow in proportion to the load. Between half and nine tenths the server has less than twice the work, and the tail becomes several times as long. A server that works 100 % of its time has, sooner or later, an endless queue: **spare time is what keeps latency short**.
#
# A limit above 1 costs nothing while there is little to do, because nobody is waited for, and when much is to do the batches fill by themselves. Holding back is another matter: the server works less for the same answers, which may save power or leave time for others, and every request pays for it with a longer wait.
#
# ### Is that so?
#
# A simulation is a claim. The cell above also ran the real thing: requests arrived at random, waited, were decoded and answered by your checkpoint. Beside it, the same arrivals are played.

# %%
workshop.table(
    serving.load_rows(server.loads, server.service),
    columns=["requests/s", "limit", "p50 measured, ms", "played", "p99 measured, ms", "played",
             "at once", "% at work"],
    caption="Real requests, and the same arrivals in the simulation",
)  # fmt: skip
print("The simulation gives every batch its median time. A real machine now and then takes longer:")
print("each such moment lengthens the queue, so the measured tail is the longer one as a rule.")
print("If other programs are busy here, they are the larger part of it.")

# %% [markdown]
# ## Precision
#
# Notebook 06 took care that 16 bits do no harm in training: a loss scale, master weights. In inference there are no gradients and no updates, so only one question is left. Do the answers change? You have them already, for every validation picture.

# %%
half_top1, full_top1 = answers.top1(half), answers.top1(forms.FOLDED)
workshop.table(
    [[form, answers.top1(form), answers.same(form, forms.FOLDED), answers.max_difference(form, forms.FOLDED)]
     for form in answers.logits],
    columns=["form", "top-1, %", "same answer as folded float32, %", "largest difference of a logit"],
)  # fmt: skip
print(f"Top-1 differs by {half_top1 - full_top1:+.2f} points,")
print("and pictures whose answer changes were close calls: some become right, some wrong.")

# %% [markdown]
# By your own hands, `autocast` is enough:

# %%
with torch.inference_mode(), torch.autocast(device.type, getattr(torch, reduced)):
    short = model(images[:32]).float()
full = logits[:32].float()
print(f"{reduced} against float32: logits differ by up to {(short - full).abs().max():.3f},")
print(f"{(short.argmax(1) == full.argmax(1)).sum()} of {len(full)} answers are the same.")

# %% [markdown]
# And the speed, from the rounds above:

# %%
pair = timed.pair(half, forms.FOLDED)
fig, finding = figures.pairs(pair, what="A batch")
workshop.figure(fig, alt=f"Time of a batch in two precisions, in turns, and their ratio. {finding}")
print(finding)
if slow:
    print("This processor has no instructions for bfloat16 and imitates them.")
    session.recorded("inference.half_faster")

# %% [markdown]
# ## Take it elsewhere
#
# The program that serves is often not the one that trained: another language, another framework, a phone. What they have in common is **ONNX**, a file with the operations and the weights. PyTorch writes one by running the model once and noting what it did. (`dynamo=False` takes the older of its two exporters; the newer one needs the package `onnxscript` too.)

# %%
import warnings

can = {
    "ONNX": forms.has("onnx") and forms.has("onnxruntime"),
    "TensorFlow": forms.has("tensorflow"),
}
if can["ONNX"]:
    warnings.simplefilter("ignore", DeprecationWarning)  # of the exporter: see above
    mine = scratch / "mine.onnx"
    torch.onnx.export(
        model, (images[:1],), str(mine), dynamo=False,
        input_names=["images"], output_names=["logits"], dynamic_axes={"images": {0: "batch"}},
    )  # fmt: skip
    print(f"{mine.stat().st_size / 1e6:.1f} MB")

# %%
if can["ONNX"]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    runtime = onnxruntime.InferenceSession(str(mine), options, providers=["CPUExecutionProvider"])
    (theirs,) = runtime.run(["logits"], {"images": images[:32].cpu().numpy()})
    apart = (torch.tensor(theirs) - logits[:32].cpu().float()).abs().max()
    print(f"ONNX Runtime and PyTorch: logits differ by up to {apart:.1e}")
    one_picture = {"images": images[:1].cpu().numpy()}
    print(f"{milliseconds('r.run(None, x)', r=runtime, x=one_picture):.2f} ms for one picture")

# %% [markdown]
# Look at what your file wants: pictures that are already normalised. Whoever forgets that gets answers, and wrong ones. `rn50 export` writes the network in two forms that other programs read: **ONNX**, one file, and TensorFlow's **SavedModel**, a folder. In both, normalising is inside, so that nobody can forget it: pixels in, logits out.

# %%
if can["ONNX"]:
    program("rn50", "export", "../model", last, "-o", "model.onnx", folder=scratch)
if can["TensorFlow"]:
    program("rn50", "export", "../model", last, "-o", "model", folder=scratch)
for name, here in can.items():
    if not here:
        print(f"{name} is not installed here, so its part of this section is left out.")
for path in sorted(scratch.glob("model*")):
    size = sum(f.stat().st_size for f in (path.rglob("*") if path.is_dir() else [path]))
    print(f"{size / 1e6:8.1f} MB  {path.name}")

# %% [markdown]
# An export is right when a program that knows nothing of this library gives the same answers. So here are both files, opened by other people's software:

# %%
shown, theirs = answers.images[: session.pick(ci=8, cpu=200)], {}
if can["ONNX"]:
    opened = onnxruntime.InferenceSession(
        str(scratch / "model.onnx"), options, providers=["CPUExecutionProvider"]
    )
    (theirs["ONNX"],) = opened.run(["logits"], {"images": shown})
if can["TensorFlow"]:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")  # no lines about the processor
    import tensorflow as tf

    saved = tf.saved_model.load(str(scratch / "model")).signatures["serving_default"]
    theirs["TensorFlow"] = saved(images=tf.constant(shown))["logits"].numpy()

# %%
ours = answers.logits[forms.FOLDED]
exported = []
for name, logits in theirs.items():
    mine = ours[: len(logits)]
    away = float(np.abs(logits - mine).max())
    same = 100 * float(np.mean(logits.argmax(axis=1) == mine.argmax(axis=1)))
    exported.append([name, len(logits), away, same, bool(np.allclose(logits, mine, 1e-4, 1e-4))])
if exported:
    workshop.table(exported, columns=["", "pictures", "largest difference of a logit", "same answer, %",
                                  "agrees to 1e-4"])  # fmt: skip

# %% [markdown]
# ### And its speed?
#
# ONNX Runtime is made for nothing but inference. It may well be faster than the framework that trained, so the fair thing is to measure it beside ours in the same turns: the same network, the same batch, as many threads.

# %%
if can["ONNX"] and session.profile == "cpu":
    beside = forms.compare(at_224, (forms.FOLDED, forms.ONNX), rounds)
    with_onnx = beside.pair(forms.FOLDED, forms.ONNX)
    fig, finding = figures.pairs(with_onnx, what="A batch")
    workshop.figure(fig, alt=f"Time of a batch, ours and ONNX Runtime's, in turns. {finding}")
    print(finding)
    ratio = median_interval(with_onnx.ratios)[0]
elif session.profile == "ci":
    print("Profile ci leaves this comparison out: the forms that it takes have been seen above.")
elif can["ONNX"]:
    print("ONNX Runtime's package for processors would not be a fair peer of this GPU.")

# %% [markdown]
# ## Another task: begin with these weights
#
# A trained network can do more than answer. Most of its layers know edges, colours and shapes; only the last one knows *which* classes there are. Whoever has few pictures of a new task begins with the weights of an old one: **transfer learning**. To see it, pretend that four of the signs are new. First a small network learns the other eight:

# %%
from workshop.lessons.tfrecord.data import take_part

new_signs = ("roundabout", "speed-50", "stop", "yield")
old_signs = [name for name in classes if name not in new_signs]
count, splits = session.pick(ci=4, cpu=150), ("train", "val")
eight = take_part(session.data_root, scratch / "eight", count, old_signs, splits)
base = workshop.train(
    name="eight-signs", data_root=str(eight), network="tiny", image_shape=64, batch_size=32,
    num_epochs=session.pick(ci=1, cpu=5), seed=seed, dtype="float32", no_val=True,
    model_prefix="model", disp_batches=20,
).wait()  # fmt: skip

# %% [markdown]
# Of the four new signs there are 24 pictures each to learn from, and as many again to be tested with. Three networks learn them with the same loop: one from nothing, one from the old weights with a new last layer, and one that may change *only* that layer. Guess the order before you run it.

# %%
train_on, test_on = open_source(session.data_root, "train", "files"), val
few = session.pick(ci=4, cpu=24)


def pictures_of(source):
    """The first few pictures of each new sign and their labels, 0 to 3."""
    x, y = [], []
    for label, name in enumerate(new_signs):
        of_class = (source.labels == classes.index(name)).nonzero()[0][:few]
        for i in of_class:
            image = open_image(source.read(int(i)), name)
            array = crop(image, center_crop_box(*image.size, 64, 73), 64, name)
            x.append(torch.tensor(array).permute(2, 0, 1))
            y.append(label)
    x = (torch.stack(x) - torch.tensor(MEAN).view(3, 1, 1)) / torch.tensor(STD).view(3, 1, 1)
    return x.to(device), torch.tensor(y, device=device)


learn, test = pictures_of(train_on), pictures_of(test_on)


# %%
def new_network(old_weights, only_the_last):
    torch.manual_seed(seed)
    net = ResNet(checkpoint.read_network(base.dir / "model"))
    if old_weights:
        epoch = checkpoint.epochs(base.dir / "model")[-1]
        load_arrays(net, checkpoint.load(base.dir / "model", epoch).arrays)
    net.requires_grad_(not only_the_last)
    net.fc = torch.nn.Linear(net.fc.in_features, len(new_signs))  # the new classes
    return net.to(device)


# %%
def fine_tune(net, only_the_last):
    changing = [p for p in net.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(changing, lr=0.02, momentum=0.9)
    for _ in range(session.pick(ci=2, cpu=20)):
        net.train(not only_the_last)  # or batch norm's statistics would change all the same
        for i in torch.randperm(len(learn[0])).split(16):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(net(learn[0][i]), learn[1][i]).backward()
            optimizer.step()
        net.eval()
        with torch.inference_mode():
            yield 100 * (net(test[0]).argmax(1) == test[1]).float().mean().item()


ways = {"from nothing": (0, 0), "from the old weights": (1, 0), "only the last layer": (1, 1)}
for name, (old_weights, only_the_last) in ways.items():
    scores = list(fine_tune(new_network(old_weights, only_the_last), only_the_last))
    print(f"{name:22}", *(f"{score:4.0f}" for score in scores[:: session.pick(ci=1, cpu=3)]))

# %% [markdown]
# Each row is the share of the test pictures that are right, in per cent, every third epoch. Guessing gives 25. With so few pictures a single row depends on chance; change `seed` or `few` and look again. What stays is that old weights save epochs. The last layer alone is the cheapest to train, since no gradient has to pass through the rest, and how far it comes says how much the features of the eight old signs have in common with the four new ones.
#
# In the library the same is `rn50 run --init-from PREFIX`, with `--freeze-until stage3` to leave the first stages as they are, statistics of batch norm included. And the old weights need not be your own: `rn50 import torchvision resnet50.pth -o model` makes a checkpoint of torchvision's or timm's weights, `rn50 export torchvision` goes the other way.

# %% [markdown]
# ## Beside the recorded numbers

# %%
measured = {
    "inference.folded_faster": faster,
    "inference.over_onnx": ratio if can["ONNX"] and session.profile == "cpu" else None,
    "inference.half_faster": median_interval(timed.pair(half, forms.FOLDED).ratios)[0],
}
if slow or session.profile != "cpu":  # another network, other sizes, or another device
    measured = dict.fromkeys(measured)
session.expect({key: value for key, value in measured.items() if key in session.results})

# %% [markdown]
# ## Where is the time going now?

# %%
p50, p99 = 1000 * np.percentile(server.requests, (50, 99), method="inverted_cdf")
network_ms, decode_ms = 1000 * np.median(server.answer), 1000 * np.median(server.decode)
print(f"A single request takes {p50:.1f} ms at the median: {decode_ms:.1f} ms to decode the JPEG,")
print(f"{network_ms:.1f} ms in the network. One of 100 takes more than {p99:.1f} ms.")
busiest = max(server.loads, key=lambda load: load.rate / load.limit)
waited = 1000 * busiest.served.percentile(50) - p50
print(f"At {busiest.rate:.0f} requests per second, one at a time, half of them wait at least")
print(f"{max(0, waited):.0f} ms more than that: in the queue.")

# %% [markdown]
# Answering takes as long as it takes. What grows without a limit is waiting, and no faster network cures a server that is asked too much.

# %% [markdown]
# ## Your numbers
#
# What this notebook measured on your machine, in one place: to compare with a colleague's, or with those of another machine.

# %% tags=["results"]
session.note("score_equal", "yes" if said == scored else "no", "", "the score is the run's top-1")
session.note("folded_apart", difference, "", "largest difference of a logit after folding")
session.note("folded_faster", faster, "times", "speed of the folded form over the training form")
session.note("half_same", answers.same(half, forms.FOLDED), "%", f"same answer in {reduced}")
session.note("half_faster", median_interval(pair.ratios)[0], "times", f"speed in {reduced}")
for name, _, away, *_ in exported:
    session.note(f"export_{name.split()[0].lower()}", away, "", f"largest difference, {name}")
if can["ONNX"] and session.profile == "cpu":
    session.note("over_onnx", ratio, "times", "speed of the folded form over ONNX Runtime's")
session.note("p99", p99, "ms", "99 of 100 single requests are answered within")

# %% [markdown]
# ## What to take with you
#
# - Score a checkpoint before you build on it, and expect the same number to the last digit.
# - A probability says which of the known classes, never whether it is one of them. How far to trust it can be counted.
# - Batch norm goes into the weights, ReLU and addition into the convolution: the same answers with less traffic.
# - Throughput over the batch rises where starting a layer costs much, and belongs to the machine: measure it there.
# - Before you time: evaluation, no graph, pictures ready, warm, and wait for the GPU.
# - Promise a p99, not a mean, and leave the server time to spare.
# - 16 bits change few answers. Count which.
# - An export is right when a stranger's program agrees.
#
# Something to try: give the second cell `epochs = 1`, and see whether the less trained network is more modest or more sure of itself.
#
# One machine has been measured from every side now. What would eight bring, or 512? That is the last notebook.
