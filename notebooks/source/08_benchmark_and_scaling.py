# %% [markdown]
# # 08 · Benchmark and scaling
#
# After this notebook you can measure a training's speed so that others may believe it, spot a benchmark that flatters, and say what your training would do on 8, 64 or 512 GPUs, and why.
#
# **Time:** 35 minutes · **Needs:** nothing beyond the set-up · **On a CPU:** about 5 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
workers: int | None = None  # workers that are measured beside one; None: 2, on GPUs all, at most 8
iterations: int | None = None  # iterations of an epoch of the sweeps; None: 5, on GPUs 50
epochs: int | None = None  # epochs of the two training runs; None: 4, on a GPU those of the recipe
ips: float = 1442.6  # for the predictions: images per second of one GPU; published, V100, FP16
gpu_batch: int = 208  # the batch with which it reaches them
price: float = 2.0  # of one GPU for one hour

# %%
import workshop

session = workshop.start("08", profile)

# %% [markdown]
# ## Where is the time going?
#
# Every notebook so far changed one thing and looked where the time went: the input, the exchange, the bits. This one puts it all into numbers that leave the house. NVIDIA's training package [ResNet-50 v1.5 for MXNet](https://github.com/NVIDIA/DeepLearningExamples/tree/master/MxNet/Classification/RN50v1.5), whose recipe this course follows, ends with three tables: training performance, weak scaling, inference. Here you make the same three from your own machine, find out in how many ways such tables go wrong, and then use them for the question that a budget asks: *what would more hardware bring?*
#
# ## A benchmark in ten lines
#
# Almost everybody has written this program once. A model, a batch, one training step, and a clock:

# %%
import os
import subprocess
import time
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "6")  # PyTorch's profiler: no lines of its own
import torch
from torch.nn.functional import cross_entropy

from rn50lib import resnet as networks
from rn50lib.torch.model import ResNet

small, on_gpu = session.profile == "ci", session.profile == "gpu"
size, batches = session.pick(ci=(32, (2, 4)), cpu=(64, (8, 16)), gpu=(224, (64, 128)))
described = networks.tiny(12) if small else networks.resnet(50, 12)
device = torch.device("cuda" if on_gpu else "cpu")
model = ResNet(described).to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


# %%
def step(batch, dtype=torch.float32):
    """Train on `batch` random pictures, once."""
    images = torch.randn(batch, 3, size, size, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(12, (batch,), device=device)
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        loss = cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


# %%
rates = []
for _ in range(session.pick(ci=3, cpu=5, gpu=10)):
    begin = time.perf_counter()
    step(batches[0])
    rates.append(batches[0] / (time.perf_counter() - begin))
print("img/s of each step:", *(f"{rate:.1f}" for rate in rates))
print(f"My ResNet-50 trains {max(rates):.1f} images per second!")

# %% [markdown]
# Is the last line true? At least four things are wrong with it, and you will put them right one after the other. Look for them now, before you read on: what do the first steps have in common, which of the numbers was chosen, what does the clock wait for on a GPU, and what is missing beside the number?
#
# ## Six ways to a wrong number
#
# None of the following is far-fetched: the last three are in NVIDIA's own program or table. Each is shown with your own numbers.
#
# ### 1. No warm-up, and a clock that does not wait
#
# A process that has just begun is not what you want to know about: memory is fetched from the system, libraries choose their kernels, GPUs raise their clock. And a GPU works through a queue: `step` returns when the work has been handed over, long before it is done. So the clock must wait for the queue, with `torch.cuda.synchronize`, and the first steps must not count.
#
# The program below does both, as a file, because a fresh process shows what warming up means. It trains on one worker or on several (`torchrun` tells each process its number by `WORLD_SIZE` and `LOCAL_RANK`), and its last line is its result. You will use it to the end of this notebook.

# %%
# %%writefile {session.folder}/bench.py
import argparse
import json
import os
import time

import torch
import torch.distributed.nn  # before a group exists: imported later, it would hold on to it
from torch.nn.functional import cross_entropy

from rn50lib import resnet as network
from rn50lib.torch.model import ResNet

parser = argparse.ArgumentParser()
parser.add_argument("--batch", type=int, default=8)  # of each worker
parser.add_argument("--steps", type=int, default=10)
parser.add_argument("--warm-up", type=int, default=3)
parser.add_argument("--size", type=int, default=64)
parser.add_argument("--threads", type=int, default=0)
parser.add_argument("--dtype", default="float32")
parser.add_argument("--tiny", action="store_true")
args = parser.parse_args()

world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
cuda = torch.cuda.is_available()
device = torch.device("cuda", rank) if cuda else torch.device("cpu")
if args.threads:
    torch.set_num_threads(args.threads)
if cuda:
    torch.cuda.set_device(device)
model = ResNet(network.tiny(12) if args.tiny else network.resnet(50, 12))
model = model.to(device, memory_format=torch.channels_last)
if world > 1:
    torch.distributed.init_process_group("nccl" if cuda else "gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)

images = torch.randn(args.batch, 3, args.size, args.size, device=device)
images = images.contiguous(memory_format=torch.channels_last)
labels = torch.randint(12, (args.batch,), device=device)
dtype = getattr(torch, args.dtype)
seconds = []
for _ in range(args.warm_up + args.steps):
    begin = time.perf_counter()
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        loss = cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    if cuda:
        torch.cuda.synchronize()
    seconds.append(time.perf_counter() - begin)

counted = seconds[args.warm_up :]
if rank == 0:
    rate = world * args.batch * len(counted) / sum(counted)
    print(json.dumps({"workers": world, "rate": rate, "seconds": seconds}), flush=True)
if world > 1:
    del model  # it refers to the group, whose threads end with the last reference
    torch.distributed.destroy_process_group()

# %%
import json

from workshop.lessons.scaling import figures

bench = session.folder / "bench.py"
flags = ["--size", size, *(["--tiny"] if small else [])]
steps = session.pick(ci=4, cpu=12, gpu=30)
said = workshop.run_script(bench, "--batch", batches[0], "--steps", steps, "--warm-up", 0, *flags)
seconds = json.loads(said[-1])["seconds"]
fig, finding = figures.cold_start(seconds, batches[0])
workshop.figure(fig, alt=f"Milliseconds of the first steps of a process. {finding}")
print(finding)

# %% [markdown]
# ### 2. The wrong mean
#
# If half of the images run at 100 images per second and half at 50, what is the speed? Not 75. The first half takes 1 second for each 100 images, the second half takes 2, and 200 images in 3 seconds are 66.7. **Rates over equal work are averaged by the harmonic mean**, which is nothing else than all images over all seconds; the arithmetic mean is always higher, the more so the more the rates vary. Here are your own steps, the cold ones included, so that they vary:

# %%
took = torch.tensor(seconds)
rates = batches[0] / took
print(f"all images over all seconds: {batches[0] * len(took) / took.sum():8.1f} img/s")
print(f"harmonic mean of the rates:  {1 / (1 / rates).mean():8.1f}")
print(f"arithmetic mean:             {rates.mean():8.1f}")
print(f"median:                      {rates.median():8.1f}")
print(f"the best step:               {rates.max():8.1f}")

# %% [markdown]
# The median forgets the slow steps altogether, and those took real time. It is a good description of a typical step, and a bad one of a run.
#
# ### 3. The best of n
#
# "We report the best of five runs." The best of many is not a property of the program. It is a property of the noise and of your patience, and it never gets lower. Draw from your own warm steps again and again, and nothing about the machine changes:

# %%
warm = rates[len(rates) // 2 :]
torch.manual_seed(0)
for n in (1, 5, 30):
    draws = warm[torch.randint(len(warm), (10_000, n))]  # 10,000 times the rates of n steps
    best = draws.max(dim=1).values.mean()
    print(f"The best of {n:2} is {100 * (best * (1 / warm).mean() - 1):4.1f} % above the mean.")

# %% [markdown]
# PyTorch has a timer that does the warm-up, the waiting for a GPU and the statistics for you. It repeats a statement until the time is up and reports the median with its spread (IQR: the middle half of the measurements lies that close together).

# %%
from torch.utils import benchmark

threads = torch.get_num_threads()
timer = benchmark.Timer(
    "step(batch)", globals={"step": step, "batch": batches[0]}, num_threads=threads
)
timed = timer.blocked_autorange(min_run_time=session.pick(ci=0.5, cpu=5, gpu=5))
print(timed)
print(
    f"\n{batches[0] / timed.median:.1f} img/s, training, batch {batches[0]}, float32, {size} px,",
    end=" ",
)
print(f"{threads} threads, PyTorch {torch.__version__}")

# %% [markdown]
# The last line says what a rate needs beside it: what was done, with which batch, in which precision, on what. A rate without its batch is no result.
#
# ### 4. Batch 208 against batch 96
#
# NVIDIA's table says that FP16 is 3.6 times as fast as FP32 on one V100. It compares 208 images with 96. That is a fair answer to "what do I gain in practice?" and a wrong one to "what does the precision bring?", and the batch is not the only other difference (notebook 06). Time both precisions with both batches, and divide twice:

# %%
from rn50 import autoconfig

reduced = autoconfig.best_dtype(session.machine, "reference")[0] if on_gpu else "bfloat16"
emulated = not (on_gpu or session.machine.bfloat16)
rate = {}
for dtype in ("float32", reduced):
    for batch in batches:
        given = {"step": step, "batch": batch, "dtype": getattr(torch, dtype)}
        timer = benchmark.Timer("step(batch, dtype)", globals=given, num_threads=threads)
        timed = timer.blocked_autorange(min_run_time=session.pick(ci=0.3, cpu=3, gpu=3))
        rate[dtype, batch] = batch / timed.median
equal = rate[reduced, batches[1]] / rate["float32", batches[1]]
best = rate[reduced, batches[1]] / rate["float32", batches[0]]
print(f"{reduced} over float32, both with {batches[1]} images: {equal:.2f} times as fast;")
print(f"with {batches[1]} images over float32 with {batches[0]}: {best:.2f} times.")
if emulated and not small:
    print("This processor imitates bfloat16, so expect it to be the slower of the two. The sweeps")
    print("below would take too long with it: they take the smallest network of this course.")

# %% [markdown]
# So a table needs both columns, and each by its name: *equal batch* for the precision, *best batch* for the gain.
#
# ## The same, hardened: a sweep
#
# `rn50 benchmark` does all this and takes the flags of NVIDIA's `benchmark.py`: `-n` and `-b` are lists, `-i` the iterations of an epoch, `-e` the epochs, `-w` how many of them are left out. Every pair of workers and batch is a **cell**, and the workers stay for all batches. Three iterations that nobody times come before a cell begins, and the first iteration of every epoch is left out. The images are random ones that need no decoding, so that the cell measures training and not the disk; each worker has the same number of cores.
#
# Before you run it: a worker that is given twice the batch, how much faster will it be? And two workers, each with the same batch?

# %%
from workshop.lessons.scaling import sweeps

gpus = len(session.machine.gpus)
workers = workers or (min(8, gpus) if gpus > 1 else 2)
hidden = {"CUDA_VISIBLE_DEVICES": ""} if gpus < workers else {}  # they share the processor
swept_workers = "1" if gpus == 1 else f"1,{workers}"
scratch = session.folder / "sweeps"
scratch.mkdir(exist_ok=True)
cores = max(1, session.machine.cores // workers)
common = [
    *("-e", 3, "-w", 1, "-i", iterations or session.pick(ci=4, cpu=5, gpu=50)),
    *(["--network", "tiny"] if small or emulated else ["--num-layers", 50]),
    *("--image-shape", size, "--num-classes", 12, "--loader", "synthetic"),
    *(() if on_gpu else ("--threads", cores, "--data-nthreads", 0)),
]  # fmt: skip
training = ["-n", swept_workers, "-b", ",".join(map(str, batches)), "--no-val", *common]
training += [] if on_gpu else ["--bind", "core"]
files = {dtype: scratch / f"training-{dtype}.json" for dtype in (reduced, "float32")}
swept = {reduced: sweeps.run(files[reduced], *training, "--dtype", reduced)}

# %% [markdown]
# And the same in `float32`:

# %%
swept["float32"] = sweeps.run(files["float32"], *training, "--dtype", "float32")

# %% [markdown]
# ### What is in the file
#
# The file has the keys of NVIDIA's `benchmark.py` in its order, so that a program written for it reads yours. `metrics` holds one number a cell: the **harmonic mean over the epochs** that were not left out. Everything else that was noted about a cell stands under one more key, `env`.

# %%
print(json.dumps({k: v for k, v in swept[reduced].items() if k != "env"}, indent=1))
cell = swept[reduced]["env"]["cells"]["1"][str(batches[-1])]
print(f"\nand of the cell n 1, batch {batches[-1]}:")
print(json.dumps(cell[sweeps.TRAIN], indent=1))

# %% [markdown]
# ## Three tables
#
# ### Training performance and weak scaling
#
# NVIDIA's first table has a row for each number of GPUs, with the speed in both precisions at the best batch of each, the speed-up of one over the other, and the **weak scaling**: the speed of `n` over that of one, where each worker keeps its batch. Here is yours, and below it the published one. At the end yours stands once more as Markdown, ready for the README of your own project, with what belongs beside it: the command, and the versions.

# %%
from rn50 import compare

yours = [compare.read(str(path), dtype) for dtype, path in files.items()]
rows, columns = sweeps.training_table(yours)
workshop.table(rows, columns, f"Yours: {swept[reduced]['model']}, {size} pixels")
theirs = [compare.published(f"DGX-1/{kind}") for kind in ("mixed", "FP32")]
theirs[0].name, theirs[1].name = "FP16", "FP32"
workshop.table(*sweeps.training_table(theirs), "Published: DGX-1 with V100s, 224 pixels")
speedup = next(row[5] for row in rows if row[0] == 1)
print(sweeps.markdown(rows, columns))
env = swept[reduced]["env"]
print("\n", " ".join(env["cmd"][:9]), "…")
print(" ", ", ".join(f"{name} {version}" for name, version in env["versions"].items() if version))

# %% [markdown]
# ### Inference
#
# The third table has one worker and many batches, and `--only-inference`. Predict its shape: what does a batch of 1 reach of the speed of the largest?

# %%
asked = session.pick(ci=(1, 4), cpu=(1, 4, 16), gpu=(1, 4, 16, 64, 128))
inference = ["-n", 1, "-b", ",".join(map(str, asked)), "--only-inference", *common]
answers = []
for dtype in files:
    path = scratch / f"inference-{dtype}.json"
    sweeps.run(path, *inference, "--dtype", dtype)
    answers.append(compare.read(str(path), dtype))

# %%
rows, columns = sweeps.batch_table(answers)
workshop.table(rows, columns, "Inference, images per second: yours")
print(sweeps.markdown(rows, columns))  # the same, for a README
workshop.table(*sweeps.batch_table(theirs), "Inference, images per second: published, one V100")
fig, finding = figures.by_batch(answers)
workshop.figure(fig, alt=f"Images per second over the batch in both precisions. {finding}")
print(finding)

# %% [markdown]
# `rn50 compare` lays files beside each other, and beside the published figures. It divides two speeds by each other only where metric, workers *and* batch are the same.

# %%
from workshop.programs import program

program("rn50", "compare", *[path.name for path in files.values()], "--labels", *files,
        "--published", "DGX-1/mixed", folder=scratch)  # fmt: skip

# %% [markdown]
# ## Two more ways to a wrong number
#
# The last two of the six lie in the file, not in the clock.
#
# ### 5. A stale report
#
# NVIDIA's benchmark starts a run for each cell, does not look at how it ended, and reads the report file. What if the run failed, and a file of the same name is still there from yesterday? The cell below puts a report there, starts a run that cannot work, and reads.

# %%
import shutil

stale = scratch / "report-yesterday.json"
shutil.copy(swept["float32"]["env"]["cells"]["1"][str(batches[0])]["report"], stale)
program("rn50", "run", "-n", 1, *common[6:], "--load-epoch", 7, "--model-prefix",
        "no-such-model", "--report", stale.name, folder=scratch, status=2)  # fmt: skip
read = json.loads(stale.read_text())["metrics"][sweeps.TRAIN][-1]
print(f"A script that does not ask for the exit status reads {read:.1f} images per second,")
print("for a run that never started.")

# %% [markdown]
# The remedy is plain: every cell has a new folder of its own, the exit status counts, and a figure exists only if *this* run wrote it.
#
# ### 6. A failed cell that counts
#
# Now a sweep in which a cell fails. In the place of the model is a wait as long as the GPU of the second cell would need (`--step paced:RATE`), and there are 24 images. With a batch of 24 an epoch has a single iteration. The first iteration is never timed, so there is nothing to report. What should stand in the file? NVIDIA's program writes `NaN`, which is not even JSON. Zero would be worse.

# %%
paced = ["--network", "tiny", "--image-shape", 32, "--loader", "synthetic", "--threads", 1]
failing = sweeps.run(
    scratch / "failing.json", "-n", 1, "-b", "4,12,24", "-i", 6, "-e", 2, "-w", 1, "--num-examples",
    24, "--step", f"paced:{ips:g}", "--no-val", *paced, status=1,
)  # fmt: skip
cells = {b: cell[sweeps.TRAIN] for b, cell in failing["metrics"]["1"].items()}
measured = [rate for rate in cells.values() if rate is not None]
print(json.dumps(cells))
mean = len(measured) / sum(1 / rate for rate in measured)  # harmonic
print(f"Mean of what was measured: {mean:.1f} images per second.")
zeros = sum(measured) / len(cells)
print(f"With the failed cell as 0 the arithmetic mean says {zeros:.1f}. Nothing ran at that speed,")
print("and the harmonic mean cannot even be computed.")

# %% [markdown]
# In our file the cell is `null`, the reason is given beside it, the other cells go on, and the exit status is not 0, so that a script notices.
#
# ## Curves
#
# A table of speeds is worth nothing if the faster run learns less. So NVIDIA's document shows three curves for both precisions: training loss, training accuracy, validation accuracy. They are drawn from the report files alone. The cell trains the small network twice, on a part of the road signs, with the same seed. Will you be able to tell the two apart?

# %%
from rn50lib import recipe

epochs = epochs or session.pick(ci=1, cpu=4, gpu=recipe.ROADSIGNS.epochs)
learning = dict(
    network="tiny", num_epochs=epochs, batch_size=32, model_prefix="model",
    num_examples=session.pick(ci=96, cpu=720, gpu=2400), disp_batches=5,
)  # fmt: skip
runs = {reduced: workshop.train(learning, name=reduced, dtype=reduced).wait()}

# %%
runs["float32"] = workshop.train(learning, name="float32", dtype="float32").wait()

# %%
reports = {dtype: json.loads((run.dir / "report.json").read_text()) for dtype, run in runs.items()}
fig, finding = figures.curves(reports)
workshop.figure(fig, alt=f"Loss and accuracies over the epochs in both precisions. {finding}")
print(finding)

# %% [markdown]
# `rn50 plot R1.json R2.json -o curves.png` draws the same picture from any reports. Two runs that begin alike drift apart for no other reason than rounding, so small differences between the curves mean nothing (notebook 06). The speeds of these two runs mean nothing either: they decode pictures and validate. **Accuracy and speed come from separate runs.**
#
# ## Weak and strong scaling
#
# There are two ways to use more workers. With **weak scaling** every worker keeps its batch, so the global batch grows. With **strong scaling** the global batch stays and is shared, so each worker gets less to do in every step, while the exchange stays as large as it was. `bench.py` measures both. One worker takes the larger batch; then several take the same batch each, and then they share it. `torchrun` starts them, and `DistributedDataParallel` averages their gradients.

# %%
usual = size, batches[1], session.pick(ci=4, cpu=8, gpu=50)
side, batch, steps = (64, 16, 8) if on_gpu and hidden else usual  # smaller: on the processor
flags = ["--size", side, *flags[2:], "--steps", steps, "--threads", cores]


def images_per_second(workers, batch):
    """The rate of bench.py with this many workers, each with `batch` images."""
    said = workshop.run_script(
        bench, "--batch", batch, *flags, np=workers, launcher="torchrun", env=hidden
    )
    return json.loads(next(line for line in said if line.startswith("{")))["rate"]


alone = images_per_second(1, batch)
together = images_per_second(workers, batch)
shared = images_per_second(workers, batch // workers)
rows = [["weak: each has the batch", workers * batch, together, together / alone],
        ["strong: they share it", batch, shared, shared / alone]]  # fmt: skip
columns = [f"{workers} workers", "images a step", "img/s", "times as fast as one"]
workshop.table(
    rows, columns, f"One worker, {batch} images of {side} px: {alone:.1f} img/s, float32"
)
if hidden and gpus:
    print(f"{workers} workers need a GPU each; here they shared the processor instead.")

# %% [markdown]
# ### Look inside a step
#
# Where did the time go? A profiler takes a step apart. The ranges that you name with `record_function` stand in the table beside the framework's own operations, so that you can tell your parts of the program from each other.

# %%
from torch.profiler import ProfilerActivity, profile, record_function

activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
images = torch.randn(batches[0], 3, size, size, device=device)
labels = torch.randint(12, (batches[0],), device=device)
with profile(activities=activities) as profiler:
    for _ in range(3):
        with record_function("MY forward"):
            loss = cross_entropy(model(images), labels)
        with record_function("MY backward"):
            loss.backward()
        with record_function("MY update"):
            optimizer.step()
            optimizer.zero_grad()
key = "device_time_total" if on_gpu else "cpu_time_total"
found = sorted(profiler.key_averages(), key=lambda row: -getattr(row, key))
workshop.table(
    [[row.key[:60], row.count, getattr(row, key) / 3e3] for row in found[:9]],
    columns=["range or operation", "calls", "ms a step"],
)

# %% [markdown]
# On a GPU the same ranges appear in Nsight Systems, which draws every kernel on a line of time: name them with `torch.cuda.nvtx.range_push`, and start the program under `nsys`. And on a machine with two processors each GPU hangs on one of them: a worker whose threads run on the other one reaches its GPU through the link between the two. The cell prints the command, and which cores belong to which half (a NUMA node) of your machine; `rn50 run --bind core` keeps each worker to its own.

# %%
print(f"nsys profile --trace=cuda,nvtx,osrt -o step python {bench.name} --batch {batches[0]}")
for node in sorted(Path("/sys/devices/system/node").glob("node[0-9]*")):
    print(node.name, "has the cores", (node / "cpulist").read_text().strip())
if on_gpu:
    with torch.autograd.profiler.emit_nvtx():  # nothing to see without nsys
        torch.cuda.nvtx.range_push("one step")
        step(batches[0])
        torch.cuda.nvtx.range_pop()
    print(subprocess.run(["nvidia-smi", "topo", "-m"], capture_output=True, text=True).stdout)

# %% [markdown]
# Whoever reads "we scale to 512 GPUs" should ask which of the two is meant. Weak scaling is the easier one, and it has a hidden price, to which this notebook comes at its end: a larger global batch is another training.
#
# ## A model of a step
#
# To say something about GPUs that one does not have, one needs a model. Ours adds up the time of a step from parts that can each be measured or looked up:
#
# - **compute**, as measured on one GPU;
# - **stragglers**: all wait for the slowest of `n`, and the more there are, the slower is the slowest;
# - the **exchange**, an all-reduce in a ring or hierarchically, with latency and bandwidth of each link;
# - minus what of it is **hidden**, because the gradients of the last layers travel while the first ones are still being computed;
# - the **input**, which all GPUs of a host share.

# %%
from rn50.scaling import Training, predict

workshop.show(predict)

# %% [markdown]
# Begin with the exchange. Within a host the wires are fast. Between hosts they are slower, and one **ring** through all GPUs takes `2 (n − 1)` steps, each of which waits for its slowest wire. The **hierarchical** way first adds up within each host, then between the hosts, and hands the sum around. In which range of GPUs does it matter?

# %%
from workshop.lessons.scaling import predictions

network = "nvlink+100g"
one_gpu = Training(ips, gpu_batch)
fig, finding = predictions.exchange(one_gpu, network)
workshop.figure(fig, alt=f"Milliseconds of an all-reduce over the GPUs. {finding}")
print(finding)

# %% [markdown]
# Now all of it, as a stack. The speed of one GPU is that of the second cell. Hosts have 8 GPUs, joined by NVLink, with 100 Gbit/s between them; bandwidths and latencies are those by which NCCL itself decides. The one number that no source gives, how much the step times of the workers vary, was fitted on the published rows of 1 and 4 GPUs: this is one reading of them, and two others follow.

# %%
fig, finding = predictions.predicted(512, gpu_batch, network, True, price, ips)
workshop.figure(fig, alt=f"Predicted efficiency and parts of a step up to 512 GPUs. {finding}")
print(finding)

# %% [markdown]
# ### With your own machine
#
# Does the sum hold where you can check it? First measure the exchange by itself. The program below sums arrays of several sizes over the workers, and nothing else.

# %%
# %%writefile {session.folder}/allreduce.py
import json
import os
import time

import torch
import torch.distributed as dist

cuda = torch.cuda.is_available()
device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if cuda else torch.device("cpu")
if cuda:
    torch.cuda.set_device(device)  # otherwise barrier() and synchronize() use GPU 0 on every rank
dist.init_process_group("nccl" if cuda else "gloo")
for megabytes in (0.004, 1, 4, 16, 64):
    array = torch.ones(int(megabytes * 2**18), device=device)  # of 4 bytes each
    seconds = []
    for _ in range(8):
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(array)
        if cuda:
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begin)
    if dist.get_rank() == 0:
        print(json.dumps([array.nbytes, sorted(seconds)[4]]), flush=True)
dist.destroy_process_group()

# %% [markdown]
# A line through these points has two numbers: what an all-reduce costs however small it is (the **latency**), and how many bytes a second it moves (the **bandwidth**). The model adds that to the step of one worker, with **nothing fitted** to what you measured with several. Predict: will it be too fast or too slow?

# %%
script = session.folder / "allreduce.py"
said = workshop.run_script(script, np=workers, launcher="torchrun", env=hidden)
points = torch.tensor([json.loads(line) for line in said if line.startswith("[")])
design = torch.stack([torch.ones(len(points)), points[:, 0]], dim=1).double()
weight = 1 / points[:, 1:].double()  # so that the small sizes count as much as the large ones
latency, per_byte = (
    torch.linalg.lstsq(design * weight, points[:, 1:] * weight).solution.ravel().tolist()
)
print(f"latency {1000 * latency:.2f} ms, bandwidth {1e-9 / per_byte:.2f} GB/s")

own = Training(alone, batch, 4, described, side)
here = predictions.predict_here(own, workers, max(latency, 0), 1 / per_byte, together)
workshop.table(here.rows(), ["float32, your machine", "ms"])
print(f"Predicted {here.predicted.ips:.1f}, measured {together:.1f} images per second:")
print(f"the model is {abs(100 * here.error):.0f} % too {'fast' if here.error > 0 else 'slow'}.")

# %% [markdown]
# On a processor expect a remainder, and its name is known: two workers share memory and caches, so each computes more slowly than alone (notebook 03 measured that), and the exchange runs on the very cores that compute, so that what the model hides beneath the backward pass is not hidden at all. GPUs have memory and wires of their own. A model is only as good as the list of what it contains.
#
# ### Against published rows that it has not seen
#
# Form and constants of the model were fixed before these rows were looked at. It was fitted on the published rows of few GPUs and then asked about the others, and the A100s were predicted with the V100s' parameters. Beside it stand two rivals that explain the same loss in another way, and two naive baselines: Amdahl's law, by which a fixed share of the work never gets faster, and "nothing is lost". Guess the error of the model, and which baseline comes closest.

# %%
rows, columns = predictions.held_out_rows()
workshop.table(rows, columns, "Predicted over published, less 1; every row that was not fitted")

# %%
from workshop.lessons.scaling import readings

print(readings.verdict().replace(": ", ":\n", 1))
print(readings.cannot_tell().replace(". ", ".\n"))

# %% [markdown]
# Read the table with care. One of the rivals has a smaller mean error than our model, and for the A100s in mixed precision even "nothing is lost" is closer, since they scale better than the V100s did. The rows say how long a step took and not why. So trust the *sum* to several per cent, and do not trust what it says about the *parts* before you have measured the exchange and the input yourself. And no row has more than 32 GPUs: what the model says about 512 nobody has checked here.
#
# ## What would my training do?
#
# Now the question. Before you touch a control: 90 epochs of ImageNet on 8, 64 and 512 GPUs of the kind chosen at the top. How many hours, and at which price?

# %%
budget = []
for step in predictions.steps(512, gpu_batch, network, True, ips):
    if step.gpus in (1, 8, 64, 512):
        hours = step.hours()
        took = f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.0f} min"
        budget.append([step.gpus, step.gpus * gpu_batch, step.ips, 100 * step.efficiency, step.limit,
                     took, hours * step.gpus * price])  # fmt: skip
columns = ["GPUs", "global batch", "img/s", "efficiency, %", "most is lost in", "90 epochs", "cost"]
workshop.table(
    budget, columns, f"Predicted: {ips:g} img/s a GPU with {gpu_batch} images, {network}"
)

# %% [markdown]
# And why? The published rows cannot say. Three readings of them mean different remedies, and notebook 03 showed what the rows decide and what they leave open. So ask all three, each fitted to the same rows of the DGX-1. (Gradients have 16 bits here, as in those rows, and 32 in the table above. That is why the first reading differs a little from it.)

# %%
from workshop.lessons import dgx1

rows, columns = predictions.by_reading(one_gpu, network, (8, 64, 512))
workshop.table(rows, columns, "Predicted efficiency in %, by the reason that one believes in")
print(dgx1.account())
print("What it is, nobody knows before the exchange and the input have been measured there.")

# %% [markdown]
# What can be said whichever reading is right is what makes things worse. These are changes to a cluster that loses its time to stragglers; the last one is the input: eight such GPUs ask one host for all the images that they train on, and if its processors cannot deliver them, everything else hardly matters.

# %%
workshop.table(predictions.changes(one_gpu, network, 512), ["512 GPUs", "efficiency, %"])

# %% [markdown]
# Here is the whole model with its controls. One assumption to keep in mind: images per second of one GPU are taken as the **same for every batch**. In truth small batches are slower (your inference table shows how much), so a small batch looks better here than it is. Three things to try: from how many GPUs on are PCIe and 10 Gbit/s too little? What does overlap bring, at batch 32 and at 208? Does any network bring 512 GPUs to 90 %, and if not, what holds them up?

# %%
predictions.explore(ips, gpu_batch)

# %% [markdown]
# And strong scaling, where the global batch stays what 8 GPUs had. Follow the last column: from which number of GPUs on does more hardware bring nothing?

# %%
columns = ["GPUs", "weak, times as fast", "images per GPU", "strong, times as fast"]
rows = predictions.strong_rows(one_gpu, network, 8 * gpu_batch)
workshop.table(rows, columns, f"Predicted; strong: {8 * gpu_batch:,} images in all")

# %% [markdown]
# ## What a large batch costs
#
# So the budget asks for weak scaling, and the global batch becomes very large. Is the result still the same network? With `k` times the batch there are `k` times fewer updates, so each must go `k` times as far: the learning rate is **scaled linearly**. At the beginning, when the weights change quickly, such a rate is too much, so it is raised over the first epochs: the **warm-up** (notebook 03 let you see this at small scale). These results are published, five runs each; the batch is 8,192:

# %%
found = session.results
kinds = {"none": "no warm-up", "constant": "a small constant rate at first", "gradual": "gradual"}
named = {"batch 256": found["published.batch.256.error"]}
named |= {
    f"batch 8,192, {text}": found[f"published.warmup.{kind}.error"] for kind, text in kinds.items()
}
workshop.table(
    [[name, f"{item.value:.2f}", f"{item.spread:.2f}"] for name, item in named.items()],
    columns=["ResNet-50 on ImageNet", "top-1 error, %", "±"],
    caption=found["published.warmup.gradual.error"].source,
)

# %% [markdown]
# With a gradual warm-up 8,192 images lose nothing that could be told from noise. How far does that go? Predict the top-1 at 65,536.

# %%
errors = {
    int(key.split(".")[2]): (item.value, item.spread)
    for key, item in found.items() if key.startswith("published.batch.")
}  # fmt: skip
lars = found["published.lars.32768.top1"]
workshop.table(
    [
        [batch, f"{100 - error:.2f}", f"{spread:.2f}"]
        for batch, (error, spread) in sorted(errors.items())
    ],
    columns=["global batch", "top-1, %", "±"],
    caption="SGD, rate scaled linearly, 5 epochs of warm-up; published",
)
print(f"With LARS: {lars.value} % at 32,768 ({lars.source}).")

# %% [markdown]
# Beyond 8,192 the recipe breaks. One reason is that a single rate must fit all layers. **LARS** (layer-wise adaptive rate scaling, [You et al., 2017](https://arxiv.org/abs/1708.03888)) compares, for each layer, the size of its weights with the size of its gradient, and gives it a rate in proportion to their ratio. How different are the layers really? Here are the first gradients of a fresh network; it has a look at one batch, and no step is taken.

# %%
torch.manual_seed(0)
fresh = ResNet(described).to(device)
images = torch.randn(16, 3, size, size, device=device)
labels = torch.randint(12, (16,), device=device)
cross_entropy(fresh(images), labels).backward()
ratio = {
    name: (weight.norm() / weight.grad.norm()).item()
    for name, weight in fresh.named_parameters()
    if weight.ndim == 4  # the convolutions
}
low, high = min(ratio, key=ratio.get), max(ratio, key=ratio.get)
print(f"|weights| / |gradient| is {ratio[low]:.3g} in {low} and {ratio[high]:.3g} in {high}:")
print(f"a step that is right for one is {ratio[high] / ratio[low]:.0f} times off for the other.")

# %% [markdown]
# LARS adds only two lines to SGD, the `if` below. `trust` is the share of its own size by which a layer may change in a step at rate 1:


# %%
def lars_step(model, lr, trust=0.001, decay=1e-4):
    """One update by LARS, without momentum; biases and batch norm go on as in SGD."""
    with torch.no_grad():
        for weight in model.parameters():
            change = weight.grad + decay * weight
            if weight.ndim > 1:
                change *= trust * weight.norm() / (change.norm() + 1e-9)
            weight -= lr * change


before = {name: weight.detach().clone() for name, weight in fresh.named_parameters()}
lars_step(fresh, lr=1.0)
for name in (low, high):
    moved = (fresh.get_parameter(name) - before[name]).norm() / before[name].norm()
    print(f"{name} changed by {100 * moved:.2f} % of its size")

# %% [markdown]
# Now the rate itself, as PyTorch's schedulers say it: a linear warm-up, then a tenth after epochs 30, 60 and 80, for a global batch of 8,192.

# %%
from torch.optim.lr_scheduler import LinearLR, MultiStepLR, SequentialLR

peak = 0.1 * 8192 / 256
sgd = torch.optim.SGD(fresh.parameters(), lr=peak, momentum=0.9)
warm_up = LinearLR(sgd, start_factor=1 / 32, total_iters=5)
decay = MultiStepLR(sgd, milestones=[30 - 5, 60 - 5, 80 - 5], gamma=0.1)
schedule = SequentialLR(sgd, [warm_up, decay], milestones=[5])
rate = []
for _ in range(90):
    rate.append(schedule.get_last_lr()[0])
    sgd.step()
    schedule.step()
print("epoch: rate", {epoch: round(rate[epoch], 4) for epoch in (0, 1, 4, 5, 29, 30, 60, 80)})

# %% [markdown]
# The library has LARS as a flag, `rn50 run --optimizer lars`, and with it what else large batches are trained with: `--lr-schedule cosine` or `poly`, `--label-smoothing`, `--zero-gamma` and `--no-bn-decay`. Recipes that were published with them are presets:

# %%
workshop.table(
    [[r.name, f"{r.global_batch:,}", r.optimizer, r.lr_schedule, r.expected]
     for r in recipe.LARGE_BATCH],
    columns=["--preset", "global batch", "optimizer", "schedule", "published accuracy"],
    caption="; ".join(f"{r.name}: {r.source}" for r in recipe.LARGE_BATCH),
)  # fmt: skip

# %% [markdown]
# None of them can be repeated on a laptop: `rn50 run --preset goyal2017 --dry-run` shows what it would take. This is how long such a training takes those who try hardest:

# %%
records = [item for key, item in found.items() if key.startswith("published.minutes.")]
workshop.table(
    [[x.hardware, x.what.split("until ")[1], f"{x.value:g}", x.source] for x in records],
    columns=["hardware", "accuracy", "minutes", "source"], caption="Time to accuracy, published",
)  # fmt: skip

# %% [markdown]
# LARS is used with a warm-up too, and the published run with 32,768 changed more than the optimizer: its batch norm, for example, took the statistics of several devices together. So it is not "the same with LARS"; it shows that the loss of accuracy is no law of nature.
#
# For your own plan remember the order. Up to about 8,192 images the plain recipe will do. 512 GPUs with 208 images each make 106,496, more than any row of the table. Whoever has so many GPUs gives each a smaller batch, and you have just seen what that does to the efficiency.
#
# ## Where is the time going now?

# %%
lost = 100 * (1 - together / (workers * alone))
print(f"Measured here, {workers} workers in float32: {lost:.0f} % of the time is lost;")
print(f"the all-reduce alone takes {100 * here.exchange_share:.0f} % of a step of theirs.")

# %% [markdown]
# ## Your numbers
#
# What this notebook measured on your machine, in one place: to compare with a colleague's, or with those of another machine.

# %% tags=["results"]
session.note("first_step", seconds[0] / min(seconds), "times", "first step over the fastest one")
session.note("speedup", speedup, "times", f"one worker in {reduced} over float32, best batches")
session.note("weak_scaling", together / alone, "times", f"{workers} workers over one, float32")
session.note("own_error", 100 * here.error, "%", "error of the model on this machine")
session.note("efficiency_512", budget[-1][3], "%", "predicted efficiency of 512 GPUs")

# %% [markdown]
# ## What to take with you
#
# - Say what was measured: workers, batch, precision, size, hardware, versions, command. A rate without its batch is no result.
# - Warm up, average rates harmonically, show the spread, never the best of n; a failed cell is neither 0 nor yesterday's number.
# - Equal batch for the precision, best batch for the gain, and each by its name.
# - Weak scaling flatters, strong scaling ends: the exchange does not shrink with the batch.
# - A model of a step is a sum. It predicted the total to several per cent, as far as there were rows to check it; why time is lost it cannot say before the parts have been measured.
# - Large batches need a scaled rate and a warm-up; beyond about 8,192 images a plain recipe loses accuracy.
#
# Something to try: measure your own GPU, put its speed and batch into the second cell, and run the notebook again from "What would my training do?".
#
# ## What you have passed
#
# This is what the records of your exercises say. Hints and solutions count as far as they were looked at before an exercise was passed. In a terminal `rn50 workshop status` says the same, and `rn50 workshop status -o summary.html` writes the page to a place of your choice.

# %%
workshop.summary()

# %% [markdown]
# This is the end of the road that began with a folder of JPEGs. The same question goes with you to the next machine: *where is the time going now?*
