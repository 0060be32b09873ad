# %% [markdown]
# # 08 · Benchmark and scaling
#
# After this notebook, you can decide with numbers whether to buy eight more GPUs: you write a clock, measure seven benchmarking mistakes, predict and explain the speed of several workers, and say how much to trust a prediction.
#
# **Time:** 75 minutes · **Needs:** DALI, and the script from notebook 06, which you extend · **On a CPU:** about 2 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
workers: int | None = None  # workers to compare with one; None: one per GPU, from 2 to 8
compiled: bool = False  # on a GPU, race rung 6, too: compiling takes a minute
ips: float | None = None  # images/s of one GPU; None: yours, without a GPU the H100's
gpu_batch: int | None = None  # its batch, if you set ips
network: str = "nvlink4+8x400g"  # H100 hosts joined by 8 x 400 Gbit/s; names: rn50 scale --help
price: float = 2.0  # per GPU-hour, in any currency

# %%
import json
import os
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from torch.nn.functional import cross_entropy

import workshop
from rn50lib import resnet
from rn50lib.torch.model import ResNet

session = workshop.start("08", profile)
gpus, cores = torch.cuda.device_count(), session.machine.cores
device = torch.device("cuda" if gpus else "cpu")
half = torch.float16 if gpus else torch.bfloat16
emulated = not (gpus or session.machine.bfloat16)  # 16-bit types are slow, so few images below
usual = torch.float32 if emulated else half  # precision of everything else
workers = workers or (min(8, gpus) if gpus > 1 else 2)
big = session.batch
wait = torch.cuda.synchronize if gpus else (lambda: None)  # a CPU has nothing to wait for
os.chdir(session.folder)  # everything below is written here
os.environ |= {
    "DATA": str(session.data_root), "SIZE": str(session.size), "DTYPE": str(usual)[6:],
    "BATCHES": f"{big},100000", "BATCH": str(big), "WORKERS": str(workers),
    "SWEEP": "1" if gpus < 2 else f"1,{workers}", "CORES": str(max(1, cores // workers)),
    "LAYERS": str(session.layers), "TOOL": session.tool, "TURNS": str(session.turns),
    "STEPS": str(session.scaling_steps),
}  # fmt: skip

# %% [markdown]
# ## Would you buy eight more GPUs?
#
# Suppose that eight GPUs train too slowly. **Predict:** how many times as fast are sixteen? Before you decide, you measure one device, predict several workers, explain what they lose, and price a run.
#
# ## Measure one device
#
# A typical first benchmark has a model, a batch, a training step and a clock:

# %%
from rn50.allocator import keep_memory

sixteen = None  # your number: the speed of 16 GPUs over that of 8

keep_memory()  # as `rn50` does: page faults of new arrays make a CPU's steps longer
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True  # notebook 06
model = ResNet(resnet.resnet(session.layers, 12)).to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)


def train(images, labels, dtype=usual):
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        loss = cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def training_step(batch, size=session.size, dtype=usual):
    """Return a function that trains on the same random images at each call."""
    images = torch.randn(batch, 3, size, size, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(12, (batch,), device=device)
    return lambda: train(images, labels, dtype)


step, first = training_step(big), []
for _ in range(4):
    begin = time.perf_counter()
    step()
    first.append(time.perf_counter() - begin)
print("img/s of each step:", *(f"{big / seconds:.1f}" for seconds in first))
print(f"My ResNet-50 trains at {big / min(first):.1f} images per second!")

# %% [markdown]
# Is the last line true? **Find three mistakes.** (Sections 1 and 2, below, name them.)
#
# **Your turn: write a better clock**, in about eight lines. `step()` may return before its work is done; `wait()` returns when all work is done.

# %%
import time


def measure(step, steps, warm_up, wait):
    """Return the seconds of each of `steps` steps, after `warm_up` steps that do not count."""
    return None  # your code


# %%
from workshop.lessons import nb08, nb08_checks

measure = nb08_checks.check_clock(measure, "clock.py")

# %% [markdown]
# ## Seven mistakes
#
# Each experiment takes *n* ratios of a wrong to a right result, in turns if possible. The **rule of this course**, `workshop.ratio`: a difference is clear if *n* ≥ 5 and all ratios are on one side of 1. Two equally fast things pass by chance in 1 of 16 comparisons with *n* = 5, so repeat one before you act on it. **Predict** for each mistake: too fast or too slow, and by how much?
#
# ### 1. No warm-up, and a clock that does not wait
#
# The first steps allocate memory and choose kernels. On a GPU, `step` returns as soon as its work is queued. (On a CPU, a thread with a queue imitates a GPU. Only one start is timed: *n* = 1.)

# %%
from concurrent.futures import ThreadPoolExecutor

effects = {}


def digits(number):
    return f"{number:,.0f}" if number > 99 else f"{number:#.3g}"


def show(mistake, wrong, right, unit="img/s"):
    """Print the ratios of wrong to right results."""
    ratio = workshop.ratio(np.divide(wrong, right))
    effects[f"{mistake} (n = {ratio.n})"] = ratio.median, ratio.clear
    print(f"{mistake}: {digits(np.median(wrong))} instead of {digits(np.median(right))}", end=" ")
    print(f"{unit}; wrong over right: {ratio}")


right = big / np.array(measure(step, session.steps, 2, wait))
show("1. no warm-up", [4 * big / sum(first)], [np.median(right)])
thread, queued = ThreadPoolExecutor(1), []
launch, finish = step, wait
if not gpus:
    launch, finish = lambda: thread.submit(step), lambda: thread.submit(int).result()
for _ in range(session.turns):
    queued += measure(launch, 1, 0, wait=int)  # int() waits for nothing
    finish()
thread.shutdown()
show(f"1. no waiting{', imitated' * (not gpus)}", big / np.array(queued), np.median(right))

# %% [markdown]
# ### 2. The wrong mean, and the best of n
#
# If half of your batches run at 100 images/s and half at 50, the average speed is not 75: 200 images take 1 + 2 s, or 66.7 images/s. Divide total images by total seconds; for equal batches, that is the **harmonic mean** of the rates. Here, every other step only predicts. The best of *n* is also above the mean.

# %%
import itertools

images = torch.randn(big, 3, session.size, session.size, device=device)
images = images.contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def validation_step():
    with torch.autocast(device.type, usual, enabled=usual != torch.float32):
        model(images)


mixed = itertools.cycle([validation_step, step])
pairs = np.array(measure(lambda: next(mixed)(), 2 * session.steps, 2, wait)).reshape(-1, 2)
show("2. mean of rates", np.mean(big / pairs, axis=1), 2 * big / pairs.sum(axis=1))
best = np.random.default_rng(0).choice(right, size=(1000, 5)).max(axis=1).mean()
print(f"your warm steps: the best of 5 is {100 * (best / right.mean() - 1):.1f}% above the mean")

# %% [markdown]
# ### 3. Batch 208 versus batch 96
#
# NVIDIA's table (below) reports FP16 as 3.6 times as fast as FP32 on a V100, but with 208 images per step instead of 96. What does FP16 alone gain? Let two things that you compare **take turns**, so that a slowdown affects both.

# %%
batch, fewer = (4, 2) if emulated else (big, max(2, big // 4))
pixels = max(32, session.size // 2) if emulated else session.size
kinds = (half, batch), (torch.float32, batch), (torch.float32, fewer)
variants = {kind: training_step(kind[1], pixels, kind[0]) for kind in kinds}
rate = {variant: [] for variant in variants}
for _ in range(session.turns):
    for variant, one in variants.items():
        rate[variant].append(variant[1] / np.mean(measure(one, 1, 1, wait)))
rate = {variant: np.array(rates) for variant, rates in rate.items()}
equal = rate[half, batch] / rate[torch.float32, batch]
print(f"{str(half)[6:]} over float32 (TF32 on GPUs), batches {batch} and {fewer}:")
show("3. unequal batches", rate[half, batch] / rate[torch.float32, fewer], equal, "times")

# %% [markdown]
# ### 4. A failed run counted as a result
#
# A **sweep** makes a run for each batch size. This one divides the data set's images by the seconds of an epoch. **Predict** its fastest batch.

# %%
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(big, 3, session.size, session.size), torch.randint(12, (big,)))
sweep, trained = {big // 2: [], big: [], 100_000: []}, {}
for _ in range(session.turns):
    for batch, rates in sweep.items():
        begin, trained[batch] = time.perf_counter(), 0
        for images, labels in DataLoader(data, batch, drop_last=True):
            train(images.to(device, memory_format=torch.channels_last), labels.to(device))
            trained[batch] += len(labels)
        wait()
        rates.append(len(data) / (time.perf_counter() - begin))
fastest = max(sweep, key=lambda batch: np.median(sweep[batch]))
print(f"fastest batch: {fastest:,}, on {trained[fastest]} images")
show("4. failed run", sweep[fastest], sweep[big])
torch.cuda.empty_cache()  # the processes below need the memory

# %% [markdown]
# No batch was full, so nothing was trained. Count what was done; if that is nothing, report no rate.
#
# ### 5. A stale report
#
# NVIDIA's benchmark starts one run per batch, ignores the exit status, and reads the report file. Suppose the run fails and yesterday's report is still there:

# %% language="bash" magic_args="-e"
# echo '{"metrics": {"train.total_ips": [1442.6]}}' > report.json  # yesterday's
# rn50 run --load-epoch 7 --model-prefix no-such-model --report report.json 2>&1 || status=$?
# python -c 'import json; print("read:", json.load(open("report.json"))["metrics"])'
# echo "but the run ended with exit status $status"

# %% [markdown]
# Accept a number only if *this* run wrote it and exited with 0.
#
# ### 6 and 7. A loader that fills its queue, or restarts
#
# While you validate or save, the `DataLoader` fills its queue, and a short epoch takes its batches from there.
#
# In [NVIDIA's commands](../docs/reference.md), `--num-examples 25600` sets the length of DALI's iterator: with eight GPUs, about six restarts in 100 timed iterations. **That follows from the release's source code; its cost was never published.** The next cell runs epochs of 10 batches. A restart starts new processes, with an empty queue; with `persistent_workers`, the processes stay.


# %%
from PIL import Image
from torch.utils.data import Dataset

torch.multiprocessing.set_start_method("fork", force=True)  # as in notebook 02


class Photos(Dataset):
    """JPEG files as images of one size."""

    def __init__(self, files, size=64):
        self.files, self.size = files, size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        image = Image.open(self.files[i]).convert("RGB").resize((self.size, self.size))
        return torch.from_numpy(np.array(image))


files = sorted(Path(session.data_root, "train").glob("*/*.jpg"))[:80]
batches = iter(DataLoader(Photos(files * 10), 8, num_workers=2))
take = lambda: next(batches)  # noqa: E731
short, long = [], []
for _ in range(session.batches // 10):
    time.sleep(0.5)  # validation, a checkpoint
    short.append(3 * 8 / sum(measure(take, 3, 0, int)))
    long.append(10 * 8 / sum(measure(take, 10, 4, int)))
show("6. short epochs", short, long)
del batches


def loader_rate(files, persistent=False):
    loader = DataLoader(Photos(files), 8, num_workers=2, persistent_workers=persistent)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))  # epoch after epoch
    return 8 / np.mean(measure(lambda: next(batches), session.batches // 2, 1, int))


loaders = (files, False), (files, True), (10 * files, False)
turns = [[loader_rate(*loader) for loader in loaders] for _ in range(session.turns)]
restarts, persistent, without = np.array(turns).T
show("7. restarts", restarts, without)
show("7. restarts, persistent workers", persistent, without)

# %%
fig, ax = plt.subplots(figsize=(9, 3.2), layout="constrained")
for row, (factor, clear) in enumerate(effects.values()):
    ax.barh(row, factor - 1, left=1, color="C0" if clear else "#bbbbbb")
    ax.text(factor, row, f" {digits(factor)} ", va="center", ha="left" if factor > 1 else "right")
factors = [factor for factor, _ in effects.values()]
ax.set_yticks(range(len(effects)), list(effects))
ax.set(xscale="log", xlim=(min(1, *factors) / 3, 5 * max(1, *factors)))
clear = [name for name, (_, sure) in effects.items() if sure and "imitated" not in name]
worst = max(clear, key=lambda name: abs(np.log(effects[name][0])), default="")
largest = f"{worst}, × {digits(effects[worst][0])}" if clear else "none is clear"
ax.set(title=f"The largest mistake{', imitations aside' * (not gpus)}: {largest}")
ax.set(xlabel="wrong result / right result: median of n (grey: no clear difference)")
ax.xaxis.set_major_formatter("{x:,g}")
ax.axvline(1, color="black", lw=1)
ax.invert_yaxis()
said = ", ".join(f"{name} {factor:.3g}" for name, (factor, _) in effects.items())
workshop.figure(fig, alt=f"Wrong over right result of each mistake: {said}.")

# %% [markdown]
# Two mistakes have no bar: the best of *n*, printed in section 2, and a stale report (5), off by any factor.
#
# ## A benchmark tool
#
# `rn50 benchmark` has the flags of NVIDIA's `benchmark.py`: workers (`-n`), batches (`-b`), iterations per epoch (`-i`), epochs (`-e`), and warm-up epochs to discard (`-w`). It reports **Total IPS** on *real* images: the global batch divided by the mean iteration time, input and computation together, without the first iteration of each epoch. The largest batch deliberately exceeds the data set. Then your clock compares JPEGs with **synthetic** images, which cost nothing to load. **Predict:** how much slower are real ones?

# %% language="bash" magic_args="-e"
# rm -f real.json  # mistake 5
# rn50 benchmark $TOOL -w 1 --no-val --num-layers $LAYERS --image-shape $SIZE --dtype $DTYPE \
#   -n $SWEEP -b $BATCHES --data-root "$DATA" -o real.json > real.txt 2>&1 || status=$?
# grep -A 99 'total_ips, images' real.txt || cat real.txt  # the tables; the file has the log, too
# echo "rn50 benchmark exited with status ${status:-0} (expected: 1, as one batch is too large)"

# %%
report = json.loads(Path("real.json").read_text())
real = report["metrics"]["1"][str(big)]["train.total_ips"]
assert real, report["env"]["cells"]["1"][str(big)]["reason"]
hardware = torch.cuda.get_device_name() if gpus else session.machine.processor
print(f"{report['model']}, 1 worker, {session.size} px, batch {big}, {str(usual)[6:]},", end=" ")
print(f"{hardware}, PyTorch {torch.__version__}: {digits(real)} img/s with real images")

readers = max(1, min(session.rung_workers, cores))
photos = iter(DataLoader(Photos(files * 9999, session.size), big, num_workers=readers))
labels = torch.randint(12, (big,), device=device)


def real_step():
    images = next(photos).to(device).permute(0, 3, 1, 2)
    train(images.float() / 127.5 - 1, labels)


rates = {real_step: [], step: []}
for _ in range(session.turns):
    for one, values in rates.items():
        queued = 2 * readers if one is real_step else 1  # batches that were ready
        seconds = measure(one, session.real_steps, queued, wait)
        values.append(len(seconds) * big / sum(seconds))
print("real over synthetic images:", workshop.ratio(np.divide(rates[real_step], rates[step])))
photos = None  # ends the readers

# %% [markdown]
# If the range is below 1, loading costs the difference; on a CPU, readers also take cores.
#
# The tool avoids every mistake except number 3. Its step is not this notebook's, so do not compare its rate with your clock's.
#
# Published Total IPS of a DGX-1 (8 V100s) with NVIDIA's MXNet container 18.12 ([the commands](../docs/reference.md)):
#
# | GPUs | FP16, batch 208 | weak scaling | FP32, batch 96 | weak scaling | FP16/FP32 |
# |---:|---:|---:|---:|---:|---:|
# | 1 | 1442.6 | 1.00 | 400.2 | 1.00 | 3.60 |
# | 4 | 5391.8 | 3.74 | 1558.6 | 3.89 | 3.46 |
# | 8 | 10263.2 | 7.11 | 2957.4 | 7.39 | 3.47 |
#
# **These runs did not use Horovod:** one process drove all GPUs through MXNet's kvstore `device`.
#
# ## Before you buy: tune one device
#
# Rung 5, `5_tuned`, trains the same network with settings for the device: images in [channels last](../docs/troubleshooting.md#channels_last-has-no-effect-a-layer-loses-it); on a GPU, cuDNN's fastest kernels and 16-bit gradients on the wire (`hvd.Compression.fp16`, or `fp16_compress_hook` in DDP's `register_comm_hook`); on a CPU, `torch.set_num_threads` (cores / `hvd.local_size()`, or / torchrun's variable `LOCAL_WORLD_SIZE`). Leave the weights' layout alone: Horovod refuses weights in channels last. Rung 6 adds `torch.compile` (notebook 06; [slow?](../docs/troubleshooting.md#torchcompile-is-slow-it-compiles-again-in-every-step)); save the weights of the model that is not compiled.
#
# Change `runs/train.py` before you open the first diff. Which changes can matter on *your* device? **Predict** rung 5's speed-up over rung 4 as `guess`, then run all rungs in turns, with `nvidia-smi dmon` or `htop` open. `train.py` counts as rung 5 with any of these settings. (With fewer than two GPUs, each rung has one worker, and rung 2 is left out. Rung 6 needs a GPU and `compiled = True`, above.)
#
# **MFU** (notebook 06) is relative to a large matrix product here, in the same precision.

# %%
from workshop import ladder

ladder.changes("5_tuned")
ladder.changes("6_compiled")

# %%
guess = None  # your number
if guess:
    ladder.predict("5_tuned", guess)
ranks = max(1, min(workers, gpus))
rung_batch, warm_up = (2, 1) if emulated else (session.rung_batch, 3)
names = session.rungs.split() + ["6_compiled"] * (compiled and gpus > 0)
rungs = ladder.race(
    [rung for rung in names if rung != "2" or ranks > 1],
    turns=session.rung_turns, ranks=ranks, own="5_tuned",
    image_size=pixels, batch_size=rung_batch, steps=session.rung_steps, warm_up=warm_up,
    workers=min(session.rung_workers, max(1, cores // ranks)),
)  # fmt: skip

peaks = {}
for dtype in (torch.float32, half):
    a = torch.randn(session.side, session.side, device=device, dtype=dtype)
    peaks[dtype] = 2 * session.side**3 / min(measure(lambda a=a: a @ a, 5, 2, wait))
flops = resnet.resnet(50, 12).train_flops(pixels)
rows, before, gains = [], None, {}
for rung, found in rungs.items():
    rates = np.array(found["turns"])
    dtype = half if rung >= "4" and not emulated else torch.float32  # emulated: float32 inside
    peak = peaks[dtype] * (found["ranks"] if gpus else 1)
    low, middle, high = np.quantile(rates, [0, 0.5, 1])
    row = [rung, f"{middle:,.1f} ({low:,.1f} to {high:,.1f})", f"{middle * flops / peak:.1%}"]
    row += [found.get(f"{part}_ms") for part in ("input", "compute", "communication")]
    if before is not None and found["paired"]:
        gains[rung] = workshop.ratio(rates / before)
        row.append(str(gains[rung]))
    rows.append([*row, *[None] * (7 - len(row))])
    before = rates
columns = ["rung", "img/s", "MFU", "input, ms", "compute, ms", "communication, ms", "× row above"]
title = f"{pixels} px, batch {rung_batch}, median and range, turns: {session.rung_turns}"
workshop.table(rows, columns, title)
ladder.figure()
print(f"5_tuned over 4_amp: you predicted {guess or 'nothing'};", end=" ")
print(f"measured {gains.get('5_tuned', 'nothing')}.")

# %% [markdown]
# Next, change the largest part of the fastest rung's step; 1 / MFU bounds the gain. (For one worker on a CPU, rung 5 changes little but the layout.)
#
# ## Predict several workers, then explain
#
# In **weak scaling**, each worker keeps its batch, so the work grows. In **strong scaling**, they share a fixed batch, so each computes less per step but exchanges just as many gradients.
#
# Workers lose time because they **contend** for memory, caches, or a shared GPU, **wait** for the slowest, and **exchange** gradients. In turns, the script below times rank 0 *alone*, on its share of a CPU's cores and on *all cores*; all ranks *together*, without any exchange; with a *barrier* after the backward pass; and with DDP's *exchange*. **Predict** the speed-up over one worker of *together*, *barrier* and *exchange*. ([It hangs?](../docs/troubleshooting.md#a-collective-times-out-although-every-rank-makes-it))

# %%
# %%writefile bench.py
import json
import os
import statistics
import sys

import torch
import torch.distributed.nn  # if a group exists before this import, it is never released
from clock import measure  # yours
from torch import distributed as dist
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from rn50lib import resnet
from rn50lib.torch.model import ResNet

layers, batch, size, turns, steps = map(int, sys.argv[2:])
dtype, gpus = getattr(torch, sys.argv[1]), torch.cuda.device_count()
local, on_host = dist.get_node_local_rank(), int(os.environ["LOCAL_WORLD_SIZE"])
device = torch.device("cuda", local % gpus) if gpus else torch.device("cpu")
wait = torch.cuda.synchronize if gpus else (lambda: None)
if gpus:
    torch.cuda.set_device(device)
alone = ResNet(resnet.resnet(layers, 12)).to(device, memory_format=torch.channels_last)
dist.init_process_group("gloo")
rank, world, share = dist.get_rank(), dist.get_world_size(), torch.get_num_threads()
group = dist.new_group(backend="nccl") if gpus >= on_host else None  # a GPU for each worker
ddp = DistributedDataParallel(alone, process_group=group, broadcast_buffers=False)
optimizer = torch.optim.SGD(alone.parameters(), lr=0.001, momentum=0.9)


def training_step(model, batch):
    images = torch.randn(batch, 3, size, size, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(12, (batch,), device=device)

    def step():
        with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
            loss = cross_entropy(model(images), labels)
        loss.backward()
        if way == "barrier":  # waits for the slowest worker, plus a message of 4 bytes
            dist.all_reduce(number, group=group)
        optimizer.step()
        optimizer.zero_grad()

    return step


number = torch.zeros(1, device=device)
ways = {"alone": alone, "all cores": alone, "together": alone, "barrier": alone, "exchange": ddp}
found = {way: {batch: [], batch // world: []} for way in ways}
first = 1 if gpus else 0  # warm-up steps: an idle GPU clocks down
for _ in range(1 + turns):  # the first turn warms up
    for way, model in ways.items():
        torch.set_num_threads(share * on_host if way == "all cores" else share)
        for count, seconds in found[way].items():
            dist.barrier()
            if way not in ("alone", "all cores") or rank == 0:
                took = measure(training_step(model, count), steps, first, wait)
                seconds.append(sum(took) / steps)
            dist.barrier()
messages = {25 * 2**k: [] for k in range(11, 19)}  # 0.2 to 26 MB, the size of DDP's buckets
for _ in range(10):
    for numbers, seconds in messages.items():
        array = torch.ones(numbers, device=device)
        dist.barrier()
        seconds.extend(measure(lambda a=array: dist.all_reduce(a, group=group), 1, 0, wait))
found["all_reduce"] = [[4 * n, statistics.median(s[1:])] for n, s in messages.items()]
found["bytes"] = sum(weight.nbytes for weight in alone.parameters())  # the gradients have as many
if rank == 0:
    print(json.dumps(found))
del model, ddp, ways  # they refer to the group, whose threads end with the last reference
dist.destroy_process_group()

# %% language="bash" magic_args="-e"
# export OMP_NUM_THREADS=$CORES  # a worker's share of the cores
# torchrun --standalone --nproc-per-node $WORKERS bench.py \
#   $DTYPE $LAYERS $BATCH $SIZE $TURNS $STEPS > together.json 2> errors.txt || (cat errors.txt; exit 1)

# %% [markdown]
# ### A model of a step
#
# Three classic models predict the speed of more GPUs:
#
# - **Amdahl's law** is for strong scaling: a share *s* of a fixed amount of work cannot be parallelised (in notebook 06, 1 − `share`). The speed-up of *n* workers is 1 / (*s* + (1 − *s*) / *n*).
# - **Gustafson's law** is for weak scaling: only the parallel part grows with *n*. The speed-up is *s* + (1 − *s*) *n*.
# - **Alpha-beta** (notebook 03): exchanging *S* bytes takes α + *S* / β.
#
# **Your turn:** fit α and β to the all-reduces that `bench.py` timed. Divide the equation `seconds = α + size / β` by `seconds` first, so that short messages count as much as long ones; `np.linalg.lstsq` finds α and 1 / β.


# %%
def fit(size, seconds):
    """Return α in seconds and β in bytes per second, from two arrays."""
    return None  # your code


# %%
fit = nb08_checks.check_fit(fit)
found = json.loads(Path("together.json").read_text().splitlines()[-1])
alpha, beta = fit(*np.array(found["all_reduce"]).T)
exchange = alpha + found["bytes"] / beta
size, seconds = found["all_reduce"][-1]
error = (alpha + size / beta) / seconds - 1
fits = abs(error) <= 0.2
print(f"at {size / 1e6:.0f} MB, a bucket of DDP, the line is off by {round(100 * error)}%", end="")
print("" if fits else ": no verdict on α-β")
print(
    f"α {1e6 * alpha:.0f} µs{'' if alpha > 0 else ' (noise)'}, β {1e-9 * beta:.2f} GB/s:", end=" "
)
print(f"{found['bytes'] / 1e6:.0f} MB (12 classes) take {1000 * exchange:.0f} ms without overlap")

# %%
fig, axes = plt.subplots(1, 2, figsize=(10, 3.8), layout="constrained")
colours = {"predicted": "C0", "measured": "C1"}
key = [plt.Rectangle((0, 0), 1, 1, color=colours[kind], label=kind) for kind in colours]
scaled, missed, said, alone = {}, {}, [], np.array(found["alone"][str(big)][1:])
usual_way = np.array(found["alone" if gpus else "all cores"][str(big)][1:])  # of one worker
for ax, (name, count) in zip(axes, (("weak", big), ("strong", big // workers)), strict=True):
    one, together, barrier, measured = (
        np.array(found[way][str(count)][1:]) for way in ("alone", "together", "barrier", "exchange")
    )
    steps = {f"perfect: {workers} × alone": one, "α-β": one + exchange, "together": together,
             "barrier": barrier, "barrier + α-β": barrier + exchange, "exchange": measured}  # fmt: skip
    for row, (label, seconds) in enumerate(steps.items()):
        ratio = workers * count / seconds * alone / big  # speed-up in each turn
        middle, low, high = np.median(ratio), min(ratio), max(ratio)
        kind = "measured" if label in ("together", "barrier", "exchange") else "predicted"
        spread = [[middle - low], [high - middle]]
        ax.barh(row, middle, xerr=spread, color=colours[kind], capsize=3)
        said.append(f"{name}, {label}: {middle:.2f} times ({low:.2f} to {high:.2f})")
    ax.set_yticks(range(len(steps)), list(steps))
    scaled[name] = workshop.ratio(workers * count / big * usual_way / measured)
    title = f"{name.title()} scaling, {count} images each:\n{workers} workers over one"
    ax.set_title(f"{title}{' on all cores' * (not gpus)}:\n{scaled[name]}", fontsize="medium")
    if not gpus:
        middle = np.median(alone / usual_way)
        key[2:] = [ax.axvline(middle, color="black", ls=":", label="one worker on all cores")]
    ax.set(xlabel=f"speed-up over one worker{' on its share' * (not gpus)}, {len(one)} turns")
    ax.invert_yaxis()
    print(f"{name} scaling: a step of one worker takes {1000 * np.median(one):,.0f} ms")
    added = {"contention": (together, one), "waiting": (barrier, together),
             "the exchange": (measured, barrier)}  # fmt: skip
    for cause, (longer, before) in added.items():
        print(f"  {cause} adds {1000 * np.median(longer - before):,.0f} ms;", end=" ")
        print(f"with over without it: {workshop.ratio(longer / before)}")
    missed[name] = {model: workshop.ratio(measured / steps[model])
                    for model in ("α-β", "barrier + α-β")}  # fmt: skip
    for model, ratio in missed[name].items():
        print(f"  measured step over {model}: {ratio}")
fig.legend(handles=key, loc="outside lower center", ncols=3)
workshop.figure(fig, alt=f"Speed-up with {workers} workers. {'; '.join(said)}")

# %% [markdown]
# The title decides: one worker would use all of a CPU's cores (dotted line). The bars explain it: *α-β* counts only the exchange; *barrier + α-β* adds what the controls lost. If the measured step is clearly shorter, the backward pass hid part of the exchange; if clearly longer, and the line fits, the exchange probably slows computing. (Strong *perfect* is below *n*: small batches are slow.)
#
# ## Predict GPUs you do not have
#
# Six models predict published rates of weak scaling, to which none was fitted: NVIDIA's (DGX-1, 8 V100s; DGX A100, 4 and 8) and OneFlow's DLPerf (4 hosts of 8 V100s).
#
# - **perfect**: *n* GPUs are *n* times as fast.
# - **wires only**: alpha-beta with NCCL's constants, overlapped with the backward pass.
# - **Amdahl**, **Gustafson**, **stragglers** (wires, plus varying step times: all wait for the slowest) and **communication** (no overlap, and only part of the bandwidth) have one parameter each, fitted to smaller runs (for the A100s, of V100s).
#
# **Predict:** which model is closest, and how large is its error?

# %%
models = ("perfect", "wires only", "Amdahl", "Gustafson", "stragglers", "communication")
colours = ("black", "#56b4e9", "#e69f00", "#cc79a7", "#0072b2", "#d55e00")
rows = nb08.held_out(*models)
errors = np.array([row[3:] for row in rows])
fig, ax = plt.subplots(figsize=(10, 3.2), layout="constrained")
for column, (name, marker) in enumerate(zip(models, "ovsP^D", strict=True)):
    at = np.arange(len(rows)) + 0.12 * (column - 2.5)
    ax.plot(at, errors[:, column], marker, color=colours[column], label=name)
    mean, worst = np.abs(errors[:, column]).mean(), np.abs(errors[:, column]).max()
    print(f"{name:13} {mean:4.1f}% off on average, {worst:4.1f}% at most")
ax.axhline(0, color="black", lw=1)
names = ["\n".join([*name.rsplit(" ", 1), f"{n} GPUs"]) for name, n, *_ in rows]
ax.set_xticks(range(len(rows)), names)
means = np.abs(errors).mean(axis=0)
closest, error = models[means.argmin()], means.min()
ax.set(title=f"Predicted over published speed: {closest} is closest, {error:.1f}% off on average")
ax.set(ylabel="error, %")
ax.legend(ncols=3, fontsize="small")
said = ", ".join(f"{name} {mean:.1f}%" for name, mean in zip(models, means, strict=True))
workshop.figure(fig, alt=f"Errors of six models for published rows. Mean size: {said}.")

# %% [markdown]
# Bandwidth and latency alone explain almost none of the loss. Amdahl's law is mostly too pessimistic, because the work grows. The last two err by 3 to 4% on average, but assume different causes: rates cannot tell you *why* a step takes longer; controls and a trace can.
#
# ## Decide
#
# **Predict** the hours and the cost of 90 epochs of ImageNet on 8, 16 and 512 GPUs like yours (without a GPU, like the recorded H100), if `network` (first code cell) connects the hosts. `rn50 scale` uses the straggler model and assumes that loading keeps up. Rung 5 sends 2 bytes per gradient, hence the flag.

# %%
h100 = session.results["h100.float16.ips"]
source = "set above"
if not ips:
    gpu_batch, ips = (big, float(np.median(right))) if gpus else (256, h100.value)
    source = torch.cuda.get_device_name() if gpus else h100.provenance
gpu_batch = gpu_batch or big
print(f"{ips:,.0f} img/s with batch {gpu_batch}: {source}")
os.environ |= {"GPU": f"--compute-ips {ips} --batch {gpu_batch}",
               "LINKS": f"--network {network} --price {price}"}  # fmt: skip

# %% language="bash" magic_args="-e"
# rn50 scale --gpus 1,8,16,64,512 --dtype float16 --gradient-bytes 2 $GPU $LINKS

# %% [markdown]
# Images per second matter only if the network learns. Weak scaling makes the global batch larger: how much accuracy does a batch of 65,536 lose, with a linearly scaled learning rate and five epochs of warm-up? Goyal et al. ran each batch size five times. Costs and table are for two networks and two causes of lost speed.

# %%
goyal = {int(key.split(".")[2]): (100 - item.value, item.spread)
         for key, item in session.results.items() if key.startswith("published.batch.")}  # fmt: skip
batches = sorted(goyal)
counts = [8, 16, 32, 64, 128, 256, 512]
fig, (left, right_) = plt.subplots(1, 2, figsize=(11, 3.4), layout="constrained")
networks, causes = dict.fromkeys((network, "nvlink4+100g")), ("stragglers", "communication")
ends = []
for links, colour in zip(networks, ("#0072b2", "#d55e00"), strict=False):
    for cause, style in zip(causes, ("o-", "s--"), strict=True):
        shares = np.array([nb08.efficiency(n, cause, gpu_batch, ips, links) for n in counts])
        cost = 90 * 1_281_167 / ips / 3600 * price / shares
        label = f"{links}, {cause}:\n{shares[-1]:.0%} efficient on 512"
        left.plot(counts, cost, style, color=colour, label=label)
        ends.append(cost[-1])
left.set_xscale("log", base=2)
left.set_xticks(counts, counts)
left.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize="small")
left.set(title=f"90 epochs on 512 GPUs cost {min(ends):,.0f} to {max(ends):,.0f}")
left.set(xlabel="GPUs (predicted)", ylim=(0, None), ylabel=f"cost, at {price:g} per GPU-hour")
top1, spread = np.array([goyal[batch] for batch in batches]).T
right_.errorbar(batches, top1, yerr=spread, fmt="o-", capsize=4)
right_.set_xscale("log", base=2)
right_.set_xticks(batches, [f"{batch:,}" for batch in batches], rotation=30)
finding = f"{goyal[8192][0]:.2f}% at batch 8,192, {goyal[65536][0]:.2f}% at 65,536"
right_.set(title=f"Top-1: {finding}", ylabel="top-1 after 90 epochs, %")
right_.set(xlabel="global batch (published: 5 runs each)")
workshop.figure(fig, alt=f"Cost by GPUs for two causes, and top-1 by global batch: {finding}.")
ffcv = session.results["published.minutes.ffcv.8"]
print(f"{finding} ({session.results['published.batch.8192.error'].source})")
print(f"76.6% with a different recipe: {ffcv.value} minutes on {ffcv.hardware} ({ffcv.source})")

options = []
for links, cause in itertools.product(networks, causes):
    eight, more = (n * nb08.efficiency(n, cause, gpu_batch, ips, links) for n in (8, 16))
    hours = 90 * 1_281_167 / ips / more / 3600
    options.append([links, cause, more / eight, hours * more / eight, hours, 2 * eight / more])
columns = ["network", "cause of the loss", "speed of 16 over 8", "hours on 8", "hours on 16"]
columns.append("cost of a run, 16 over 8")
workshop.table(options, columns, f"Predicted; yours: {sixteen or 'no number'}")
found = (session.results[f"ladder.h100.{rung}.ips"] for rung in ("4_amp", "5_tuned"))
amp, tuned = (item.value for item in found)
print(f"Without a new GPU: rung 5 is {tuned / amp:.2f} times as fast as rung 4 (recorded H100).")

# %% [markdown]
# Up to about 8,192 images, the plain recipe loses almost nothing. Beyond that, use strong scaling or change the recipe, as FFCV, a loader with its own recipe, does even on 8 GPUs.
#
# Both models are fitted to V100s (one DGX-1); for A100s, *stragglers* was up to 7% too slow. If the causes agree, you can decide. For fast GPUs with one slow adapter per host, they do not. Then measure first: rent two such hosts for an hour, and start `bench.py` on both (`torchrun --nnodes 2 …`).
#
# ## Your decision
#
# **Your turn:** from the table of your rungs, the speed of your workers and the last table: what would you change first, what would you buy, and which measurement could change your mind? Write it as `decision`. The cell prints an answer to compare with.

# %% tags=["results"]
decision = ""  # your sentence
verdicts = {f"rung {rung[0]}, {ladder.RUNGS[rung]}": gain for rung, gain in gains.items()}
verdicts[f"{workers} workers, weak scaling"] = scaled["weak"]
gained = [rung for rung, gain in gains.items() if gain.clear and gain.median > 1]
best_rung = max(gained, key=lambda rung: gains[rung].median, default="none of the rungs")
again = "; ".join(name for name, gain in verdicts.items() if not gain.clear) or "nothing"
print("Yours:", decision or "not written yet")
print(f"To compare: first change: {ladder.RUNGS.get(best_rung, best_rung)}; measure again {again}.")
for links in networks:
    low, high = np.sort([speed_16 for name, _, speed_16, *_ in options if name == links])
    print(f"{links}: 16 GPUs are {low:.2f} to {high:.2f} times as fast as 8;", end=" ")
    print("buy if you need the time" if high < 1.1 * low else "bench.py on two such hosts decides")
session.note("clock", float(np.median(right)), "img/s", f"{str(usual)[6:]}, batch {big}, synthetic")
over = f"{str(half)[6:]} over float32, equal batch"
session.note("equal_batch", str(workshop.ratio(equal)), "", over)
session.note("real_ips", real, "img/s", f"Total IPS, real images, batch {big}")
over = f"{workers} workers over one{' on all cores' * (not gpus)}, weak scaling"
session.note("weak_scaling", str(scaled["weak"]), "", over)
for model, ratio in missed["weak"].items():
    what = f"measured step over {model}, weak scaling{'' if fits else ': no verdict'}"
    session.note(f"error_{model}", str(ratio), "", what)
print("Exercises passed so far:")
workshop.progress()

# %% [markdown]
# ## Key takeaways
#
# - Warm up, wait, take total images over total seconds, take turns, and show the median and range.
# - State workers, batch, precision, size, hardware, versions and command with every rate.
# - A failed run is neither 0 nor yesterday's number.
# - Tune one device before you buy a second. Measure controls before you blame the exchange.
# - Trust no prediction whose models disagree; measure.
# - The goal is time to accuracy, not images per second.
#
# **Try it:** set `network` and `price` to those of a cluster you could rent, rerun the first two code cells, then "Decide".
