# %% [markdown]
# # 08 · Benchmark and scaling
#
# In this notebook, you write a clock, measure seven benchmarking mistakes, tune one device, predict and explain the speed of several ranks, and decide whether eight more GPUs are worth their price.
#
# **Time:** 95 minutes · **Needs:** DALI, and the script from notebook 06, which you extend · **On a CPU:** about 3 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
ranks: int | None = None  # ranks to compare with one; None: one per GPU, from 2 to 8
compiled: bool = False  # on a GPU, race rung 6, too: compiling takes a minute
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

import workshop
from rn50lib import resnet

session = workshop.start("08", profile)
gpus, cores = torch.cuda.device_count(), session.machine.cores
half = torch.float16 if gpus else torch.bfloat16
emulated = not (gpus or session.machine.bfloat16)  # slow 16-bit types: few images below
usual = torch.float32 if emulated else half  # precision of everything else
precision = str(usual).removeprefix("torch.")
recent = all(gpu.capability >= (8, 0) for gpu in session.machine.gpus)
full = "TF32" if gpus and recent else "float32"
if ranks is None:
    ranks = min(8, gpus) if gpus > 1 else 2
big, pixels = session.batch, max(32, session.size // 2) if emulated else session.size
wait = torch.cuda.synchronize if gpus else (lambda: None)  # a CPU has nothing to wait for
os.chdir(session.folder)  # everything below is written here
os.environ |= {
    "SIZE": str(session.size), "LAYERS": str(session.layers), "DTYPE": precision,
    "BATCH": str(big), "STARTS": str(session.starts), "TURNS": str(session.turns),
    "STEPS": str(session.scaling_steps),
    "RANKS": str(ranks), "CORES": str(max(1, cores // ranks)),
    "DATA": str(session.data_root), "TOOL": session.tool,
}  # fmt: skip

# %% [markdown]
# ## Would you buy eight more GPUs?
#
# Training on your eight GPUs takes too long. How many times as fast would sixteen be?
#
# ## Measure one device
#
# A typical first benchmark:

# %%
# %%writefile first.py
import os
import time

import torch
from torch.nn.functional import cross_entropy

from rn50.allocator import keep_memory
from rn50lib import resnet
from rn50lib.torch.model import ResNet

keep_memory()  # as `rn50` does: page faults of new arrays make a CPU's steps longer
torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True  # notebook 06
layers, size, big = (int(os.environ[name]) for name in ("LAYERS", "SIZE", "BATCH"))
usual = getattr(torch, os.environ["DTYPE"])
device = torch.device("cpu")
if gpus := torch.cuda.device_count():
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")) % gpus)
    torch.cuda.set_device(device)
model = ResNet(resnet.resnet(layers, 12)).to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)


def train(images, labels, model=model, dtype=usual, before_update=None):
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        loss = cross_entropy(model(images), labels)
    loss.backward()  # without a loss scaler: random labels, only the speed counts
    if before_update:
        before_update()
    optimizer.step()
    optimizer.zero_grad()


def training_step(batch, size=size, **options):
    """Return a function that trains on the same random images at each call."""
    images = torch.randn(batch, 3, size, size, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(12, (batch,), device=device)
    return lambda: train(images, labels, **options)


if __name__ == "__main__":
    step, seconds = training_step(big), []
    for _ in range(4):
        begin = time.perf_counter()
        step()
        seconds.append(time.perf_counter() - begin)
    print(*(f"{big / each:.1f}" for each in seconds), "img/s")

# %% language="bash" magic_args="-e"
# set -o pipefail
# for start in $(seq $STARTS); do python first.py; done | tee first.txt

# %% [markdown]
# You publish "My ResNet-50 trains at …" with the largest of these numbers. **Find three mistakes** (named in 1 and 2, below).
#
# **Your turn: write a better clock**, in about eight lines. `step()` may return before its work is done; `wait()` returns when all work is done.

# %%
import time


def measure(step, steps, warm_up, wait):
    """Return the seconds of each of `steps` steps, after `warm_up` steps that do not count."""
    return None  # your code


# %%
from workshop.lessons import nb08, nb08_checks

measure = nb08_checks.check("measure", measure, "clock.py")

# %% [markdown]
# ## Seven mistakes
#
# Most experiments below compute *n* ratios of a wrong result to a right one, in turns if possible. The printed ratio is their median, not the quotient of the printed medians. The rule of this course, `workshop.ratio`: a difference is clear if *n* ≥ 5 and all ratios are on one side of 1. With *n* = 5, two equally fast variants look clearly different in 1 of 16 comparisons, so repeat a comparison before you act on it. For most mistakes, **predict** the ratio of wrong to right.
#
# ### 1. No warm-up, and a clock that does not wait
#
# The first steps allocate memory and choose kernels. On a GPU, `step` returns as soon as its work is queued. On a CPU, it returns when it is done, so the next cell runs it in a thread, which stands in for the queue.


# %%
from concurrent.futures import ThreadPoolExecutor

from first import device, model, train, training_step


def show(mistake, wrong, right, guess=None, unit="img/s"):
    """Print the medians of wrong and right results, and what their ratios say."""
    middle = [np.median(values) for values in (wrong, right)]
    texts = [f"{value:,.{0 if value > 99 else 2}f}" for value in middle]
    print(f"{mistake}: {texts[0]} instead of {texts[1]} {unit};", end=" ")
    print(f"wrong over right: {workshop.ratio(np.divide(wrong, right))}", end="")
    print("" if guess is None else f" (you: {guess})")


def no_wait():
    """Return at once."""


guess = None  # your ratio, without warm-up
step = training_step(big)
right = big / np.array(measure(step, session.steps, 2, wait))
rates = np.loadtxt("first.txt", usecols=range(4), ndmin=2).T
low, middle, high = np.quantile(right, [0, 0.5, 1])
print(f"your clock: {middle:,.1f} ({low:,.1f} to {high:,.1f}) img/s;", end=" ")
print(f"first.py's largest: {rates.max():,.1f}")
last = right if gpus else rates[3]
if max(high / low, last.max() / last.min()) > 1.5:
    print(
        "Equal steps differ by more than half: is something else running? Rerun from first.py on."
    )
# on a GPU, first.py did not wait; its 3 starts, to save time, are too few for the rule
show("1. no warm-up", rates[0], np.median(right) if gpus else rates[3], guess)

launch, finish = step, wait
if not gpus:
    queue = ThreadPoolExecutor(1)
    queue.submit(no_wait).result()  # starts its thread
    launch, finish = lambda: queue.submit(step), lambda: queue.submit(no_wait).result()
queued, waited = [], []
for _ in range(session.turns):
    queued.extend(measure(launch, 1, 0, no_wait))
    finish()
    waited.extend(measure(launch, 1, 0, finish))
thread = "" if gpus else " (steps in a thread, where they are slower)"
show(f"1. no waiting{thread}", big / np.array(queued), big / np.array(waited))
if not gpus:
    queue.shutdown()  # while its OpenMP threads exist, the notebook's own are slower

# %% [markdown]
# ### 2. The wrong mean, and the best of n
#
# If half of your batches run at 100 images/s and half at 50, the average speed is not 75: 200 images take 1 + 2 s, or 66.7 images/s. Divide total images by total seconds; for equal batches, that is the **harmonic mean** of the rates. In the next cell, every other step runs only the forward pass. The best of *n* is also above the mean.

# %%
import itertools

guess = None  # your ratio
images = torch.randn(big, 3, session.size, session.size, device=device)
images = images.contiguous(memory_format=torch.channels_last)


@torch.no_grad()
def predict():
    with torch.autocast(device.type, usual, enabled=usual != torch.float32):
        model(images)


mixed = itertools.cycle([predict, step])
pairs = np.array(measure(lambda: next(mixed)(), 2 * session.steps, 2, wait)).reshape(-1, 2)
off = np.median(np.mean(big / pairs, axis=1) / (2 * big / pairs.sum(axis=1)))
print(f"2. mean of rates over the harmonic mean: {off:.2f}, never below 1 (you: {guess or '?'})")
best = np.random.default_rng(0).choice(right, size=(1000, 5)).max(axis=1).mean()
above = best * np.mean(1 / right) - 1
print(f"your warm steps: the best of 5 is {above:.1%} above the mean")

# %% [markdown]
# ### 3. Batch 208 versus batch 96
#
# NVIDIA's table (see [below](#Predict-GPUs-you-do-not-have)) reports FP16 as 3.6 times as fast as FP32 on a V100, but with 208 images per step instead of 96. Everything you compare must have the same batch size and **take turns**, so that a slowdown affects everything equally.
#
# **Your turn: write `in_turns`**. `works` is a list; `once(work)` measures one of its items once.


# %%
def in_turns(works, turns, once):
    """Return what `once(work)` returns, as an array (turns, works); the works take turns."""
    return None  # your code


# %%
in_turns = nb08_checks.check("in_turns", in_turns)
guess = None  # your ratio: the gain with unequal batches over that with equal ones
batch = 4 if emulated else big
fewer = max(2, batch // 2)
in_half = training_step(batch, pixels, dtype=half)
in_full = training_step(batch, pixels, dtype=torch.float32)
in_small = training_step(fewer, pixels, dtype=torch.float32)
variants = [in_half, in_full, in_small]
times = in_turns(variants, session.turns, lambda step: measure(step, 1, 1, wait)[0])
half_s, full_s, small_s = np.transpose(times)
print(f"{str(half).removeprefix('torch.')} over {full}, batches {batch} and {fewer}:")
show("3. unequal batches", (batch / half_s) / (fewer / small_s), full_s / half_s, guess, "times")

# %% [markdown]
# Ratios above 1 are the larger batch's own gain, wrongly credited to 16-bit precision. (A full GPU gains little.)
#
# ### 4. A sweep
#
# A **sweep** runs each batch size once. The one below divides the number of images by the seconds of its second epoch; the first warms up. **Predict** which batch is fastest.

# %%
from torch.utils.data import DataLoader, TensorDataset

guess = None  # the fastest batch
data = TensorDataset(torch.randn(big, 3, session.size, session.size), torch.randint(12, (big,)))
for size in (big // 2, big, 100_000):
    loader = DataLoader(data, size, drop_last=True)
    for _ in range(2):  # the first epoch warms up
        begin = time.perf_counter()
        for x, y in loader:
            train(x.to(device, memory_format=torch.channels_last), y.to(device))
        wait()
    rate = len(data) / (time.perf_counter() - begin)
    print(f"batch {size:,}: {rate:,.0f} img/s with loading, training steps: {len(loader)}")
print(f"you predicted {guess or '?'}")
torch.cuda.empty_cache()  # the processes below need the memory

# %% [markdown]
# The largest batch was never full, so nothing was trained. Always count what was done.
#
# ### 5. A stale report
#
# NVIDIA's benchmark starts one run per batch size, ignores the exit status, and reads the report file. Suppose [the run fails](../docs/troubleshooting.md#a-benchmark-reports-0-imagess-or-nothing), and yesterday's report is still there:

# %% language="bash" magic_args="-e"
# echo '{"metrics": {"train.total_ips": [1442.6]}}' > report.json  # yesterday's
# rn50 run --load-epoch 7 --model-prefix no-such-model --report report.json 2>&1 || echo "exit: $?"
# cat report.json
# rn50 benchmark $TOOL -w 1 --no-val --num-layers $LAYERS --image-shape $SIZE --dtype $DTYPE \
#   -n 1 -b $BATCH,100000 --data-root "$DATA" -o new.json > log.txt 2>&1 || echo "exit: $?"
# grep -A 3 'total_ips, images' log.txt || cat log.txt

# %% [markdown]
# Accept a number only if *this* run wrote it and exited with 0. `rn50 benchmark` marks a batch that was never filled as "failed" and exits with 1, although the other row's run succeeded.
#
# ### 6 and 7. A loader that fills its queue, or restarts
#
# During a pause within an epoch (to validate or save), the `DataLoader` fills its queue; a clock that covers only the next few batches measures that queue.
#
# In [NVIDIA's commands](../docs/recipes.md#what-the-published-speeds-measured), `--num-examples 25600` means about six restarts of DALI in 100 timed iterations with eight GPUs. For 6, the next cell times 3 batches after a pause, then 10 with an empty queue; for 7, epochs of 10 batches and one long epoch. A restart starts new processes with an empty queue; with `persistent_workers`, the processes stay, as DALI's threads do.

# %%
from PIL import Image

torch.multiprocessing.set_start_method("fork", force=True)  # as in notebook 02


def read(files):
    """Return JPEG files as a batch of images of one size."""
    images = [Image.open(file).convert("RGB").resize((64, 64)) for file in files]
    return torch.from_numpy(np.stack(images))


guesses = {6: None, 7: None}  # your ratios
files = sorted(Path(session.data_root, "train").glob("*/*.jpg"))[:80]
batches = iter(DataLoader(files * 2 * session.turns, 8, num_workers=2, collate_fn=read))
short, long = [], []
for _ in range(session.turns):
    time.sleep(0.5)  # validation, a checkpoint
    short.append(3 * 8 / sum(measure(lambda: next(batches), 3, 0, no_wait)))
    long.append(10 * 8 / sum(measure(lambda: next(batches), 10, 4, no_wait)))
show("6. after a pause", short, long, guesses[6])
batches = None  # ends the readers


def loader_rate(files, epochs, persistent=False):
    loader = DataLoader(files, 8, num_workers=2, collate_fn=read, persistent_workers=persistent)
    begin = time.perf_counter()
    images = sum(len(batch) for _ in range(epochs) for batch in loader)
    del loader  # ends persistent workers, too: the others have ended by then
    return images / (time.perf_counter() - begin)


epochs = session.batches // 10
loaders = [(files, epochs), (files, epochs, True), (files * epochs, 1)]
rates = in_turns(loaders, session.turns, lambda loader: loader_rate(*loader))
restarts, persistent, without = np.transpose(rates)
show("7. restarts", restarts, without, guesses[7])
show("7. restarts, persistent workers", persistent, without)

# %% [markdown]
# Time more batches than the queue holds. Include restarts only if your training has them. If clear, the second ratio of 7 shows the empty queue's cost; the rest is starting and ending processes.
#
# ## Before you buy: tune one device
#
# Rung 5, `5_tuned`, adds settings for the device:
#
# - [channels last](../docs/troubleshooting.md#channels_last-has-no-effect-a-layer-loses-it): the images, from DALI without a copy (`output_layout="HWC"`, then `permute`); with DDP, the weights, too (Horovod rejects that layout);
# - on a GPU, `cudnn.benchmark = True` and 16-bit gradients on the wire: `hvd.Compression.fp16`, or `fp16_compress_hook` in DDP's `register_comm_hook`;
# - on a CPU, `torch.set_num_threads`: the cores over `hvd.local_size()` or torchrun's `LOCAL_WORLD_SIZE` (the race presets this).
#
# Rung 6 adds `torch.compile` ([is it slow?](../docs/troubleshooting.md#torchcompile-is-slow-it-compiles-again-in-every-step); with it, Horovod no longer overlaps anything).
#
# Change `runs/train.py` before you open the first diff. **Predict** rung 5's speed-up over rung 4 as `guess`, then run all rungs in turns. (If your script uses none of these settings, the finished one runs instead. With fewer than two GPUs, each rung has one rank, and rung 2 is left out. Rung 6, always the finished script, needs a GPU and `compiled = True`, above.)

# %%
from workshop import ladder

ladder.changes("5_tuned")
ladder.changes("6_compiled")

# %%
guess = None  # your number
rung_ranks = max(1, min(ranks, gpus))
rung_batch, warm_up = (2, 1) if emulated else (session.rung_batch, 3)
if compiled and not gpus:
    print("Rung 6 is left out: on a CPU, compiling takes a minute and gains little.")
names = session.rungs.split() + ["6_compiled"] * (compiled and gpus > 0)
rungs = ladder.race(
    [rung for rung in names if rung != "2" or rung_ranks > 1],
    own="5_tuned", guess=guess, turns=session.rung_turns, ranks=rung_ranks,
    image_size=pixels, batch_size=rung_batch, steps=session.rung_steps, warm_up=warm_up,
    workers=min(session.rung_workers, max(1, cores // rung_ranks)),
)  # fmt: skip

peaks = {}
for dtype in (torch.float32, half):
    a = torch.randn(session.side, session.side, device=device, dtype=dtype)
    # an upper limit, so take the fastest
    peaks[dtype] = 2 * session.side**3 / min(measure(lambda a=a: a @ a, 5, 2, wait))
torch.cuda.empty_cache()  # the ranks below need the memory
flops = resnet.resnet(50, 12).train_flops(pixels)
for dtype, peak in peaks.items():
    name = full if dtype == torch.float32 else str(dtype).removeprefix("torch.")
    print(f"peak for the MFU, {name}: {peak / 1e12:.3g} TFLOP/s")
rows, gains = [], {}
for rung, one in rungs.items():
    dtype = half if int(rung[0]) >= 4 and not emulated else torch.float32  # emulated: float32
    peak = peaks[dtype] * (one["ranks"] if gpus else 1)
    if "gains" in one:
        gains[rung] = workshop.ratio(one["gains"])
    rows.append([rung, f"{one['images_per_s'] * flops / peak:.1%}", str(gains.get(rung, "–"))])
workshop.table(rows, ["rung", "MFU", "× row above"], "Share of the peak, and ratios per turn")
ladder.figure()

# %% [markdown]
# ## What did each rung gain?
#
# Compare rungs in the right half of the figure: its ratios are taken turn by turn. The bars on the left, and the MFU, use medians of different turns and can mislead. If a rung's dots are far apart, something else was running: run the race again. On a CPU, nearly everything is *compute*, which `--trace` breaks down. On a fast GPU, rungs 1 and 2 also wait for *input*. The MFU can fall although training gets faster: the peak is higher in 16 bits, but layers that only move bytes cannot use it.
#
# ## Predict several ranks, then explain
#
# In **weak scaling**, each rank keeps its batch, so the work grows. In **strong scaling**, they share a fixed batch, so each computes on fewer images per step, but exchanges just as many gradients.
#
# Ranks lose time because they **contend** for memory, caches, or a shared GPU, **wait** for the slowest, and **exchange** gradients. In turns, the script below times rank 0 *alone*, on its share of a CPU's cores; all ranks *together*, without any exchange; with a *barrier* after the backward pass; and with DDP's *exchange*. **Predict** the speed-up over one rank of *together*, *barrier* and *exchange*. ([What if a collective hangs?](../docs/troubleshooting.md#a-collective-times-out-although-every-rank-makes-it))

# %%
speedups = {"together": None, "barrier": None, "exchange": None}  # yours, in weak scaling

# %%
# %%writefile bench.py
import json
import os
import statistics

import torch
import torch.distributed.nn.functional  # if imported later, it keeps the process group open
from clock import measure  # yours
from first import big, device, gpus, model, training_step
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

turns, steps = int(os.environ["TURNS"]), int(os.environ["STEPS"])
wait = torch.cuda.synchronize if gpus else (lambda: None)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
group = dist.new_group(backend="nccl") if gpus >= int(os.environ["LOCAL_WORLD_SIZE"]) else None
ddp = DistributedDataParallel(model, process_group=group, broadcast_buffers=False)
number = torch.zeros(1, device=device)


def wait_for_all():
    dist.all_reduce(number, group=group)  # a message of 4 bytes


ways = {  # with the options of train
    "alone": {}, "together": {},
    "barrier": {"before_update": wait_for_all}, "exchange": {"model": ddp},
}  # fmt: skip
found = {way: {big: [], big // world: []} for way in ways}
for _ in range(1 + turns):  # the first turn warms up
    for way, options in ways.items():
        for batch, seconds in found[way].items():
            dist.barrier()
            if way != "alone" or rank == 0:
                took = measure(training_step(batch, **options), steps, 1, wait)
                seconds.append(statistics.median(took))
            dist.barrier()
messages = {25 * 2**k: [] for k in range(11, 19)}  # 0.2 to 26 MB, the size of DDP's buckets
for _ in range(30):
    for numbers, seconds in messages.items():
        array = torch.ones(numbers, device=device)
        dist.barrier()
        seconds.extend(measure(lambda a=array: dist.all_reduce(a, group=group), 1, 1, wait))
found["all_reduce"] = [[4 * n, statistics.median(s[1:])] for n, s in messages.items()]
found["bytes"] = sum(weight.nbytes for weight in model.parameters())  # as large as the gradients
if rank == 0:
    print(json.dumps(found))
del ddp, ways, options  # DDP keeps the process group open, too
dist.destroy_process_group()  # else a thread of Gloo can abort Python at its exit

# %% language="bash" magic_args="-e"
# # about a minute on two cores
# export OMP_NUM_THREADS=$CORES  # a rank's share of the cores
# torchrun --standalone --nproc-per-node $RANKS bench.py > together.json 2> errors.txt \
#   || (cat errors.txt; exit 1)

# %% [markdown]
# ### A model of the exchange
#
# **Your turn:**
#
# - `fit`: in the **alpha-beta** model (notebook 03), exchanging *S* bytes takes α + *S* / β. Fit α and β to the all-reduces that `bench.py` timed, with short messages counting as much as long ones: 1 = α / seconds + size / (β · seconds). `np.linalg.lstsq` finds α and 1 / β.
# - `causes`: which two of `bench.py`'s four runs differ only in contention, which two only in waiting, and which two only in the exchange?


# %%
def fit(size, seconds):
    """Return α in seconds and β in bytes per second, from two arrays."""
    return None  # your code


def causes(alone, together, barrier, exchange):
    """Return three times in seconds: what contention, waiting and the exchange add to a step."""
    return None  # your code


# %%
fit = nb08_checks.check("fit", fit)
causes = nb08_checks.check("causes", causes)
if gpus == 1:
    print("The ranks share one GPU and exchange over Gloo: two GPUs would lose less.")
found = json.loads(Path("together.json").read_text().splitlines()[-1])
sizes, seconds = np.array(found["all_reduce"]).T
alpha, beta = fit(sizes, seconds)
sending = alpha + found["bytes"] / beta
off = (alpha + sizes / beta) / seconds - 1
noise = " (noise: it cannot be below 0)" if alpha < 0 else ""
print(f"α {1e6 * alpha:.0f} µs{noise}, β {1e-9 * beta:.2f} GB/s:", end=" ")
print(f"{found['bytes'] / 1e6:.0f} MB of gradients take {1000 * sending:.0f} ms without overlap")
fig, ax = plt.subplots(figsize=(5, 2.8), layout="constrained")
ax.loglog(1e-6 * sizes, 1000 * seconds, "o", label="measured")
ax.loglog(1e-6 * sizes, 1000 * (alpha + sizes / beta), "k-", label="α + S / β")
ax.set(xlabel="S, the size of a message, MB", ylabel="ms, median")
ax.xaxis.set_major_formatter("{x:g}")
ax.yaxis.set_major_formatter("{x:g}")
ax.set_title(f"Your line is {np.median(abs(off)):.0%} off (median), {off[-1]:+.0%} at 26 MB")
ax.legend()
workshop.figure(fig, alt="The time of an all-reduce by size, with your line.")

# %%
fig, axes = plt.subplots(1, 2, figsize=(9, 3.2), layout="constrained", sharex=True, sharey=True)
ways = ("alone", "together", "barrier", "exchange")
one_rank = np.array(found["alone"][str(big)][1:])
scaled, losses = {}, {}
for ax, (name, count) in zip(axes, (("weak", big), ("strong", big // ranks)), strict=True):
    times = {way: np.array(found[way][str(count)][1:]) for way in ways}
    images = ranks * count / big  # over those of one rank
    speeds = {way: images * one_rank / seconds for way, seconds in times.items()}
    predicted = times["barrier"] + sending
    named = {f"{ranks} × alone" if way == "alone" else way: speeds[way] for way in ways}
    workshop.ranges(ax, named, "compute", "{:.2f}")
    ax.plot(np.median(images * one_rank / predicted), 3, "ks", mfc="none", ms=11)
    if name == "weak":
        ax.plot(list(speedups.values()), [1, 2, 3], "kD", mfc="none", ms=9)  # None is not drawn
    ax.axvline(1, color="black", ls=":")
    ax.set_xlabel("speed over one rank (dotted); ○ a turn\n□ barrier + α-β, ◇ your prediction")
    scaled[name] = workshop.ratio(speeds["exchange"])
    ax.set_title(f"{name.title()}, {count} images each: × {scaled[name].median:.2f}")
    total = ranks * count / np.median(times["exchange"])
    print(f"{name} scaling, {ranks} ranks over one: {scaled[name]}; {total:,.1f} img/s in all")
    if name == "strong":
        print(f"  {ranks} × alone, without losses: {workshop.ratio(speeds['alone'])}")
    if any(turn.max() > 1.5 * turn.min() for turn in times.values()):
        print(
            "  Turns differ by more than half: is something else running? Repeat from bench.py on."
        )
    longer = (times["exchange"] - times["barrier"]) / sending
    print(f"  exchange over α-β: {workshop.ratio(longer)}")
    added = np.transpose([causes(*turn) for turn in zip(*times.values(), strict=True)])
    for cause, seconds in zip(("contention", "waiting", "exchange"), added, strict=True):
        losses[name, cause] = workshop.ratio(1 + seconds / times["alone"])
        print(f"  {cause}: {1000 * np.median(seconds):+,.0f} ms, × {losses[name, cause]}")
workshop.figure(fig, alt=f"Speed of {ranks} ranks over one: weak {scaled['weak']}.")
clear = [key for key, loss in losses.items() if loss.clear and loss.median > 1]
both = [cause for name, cause in clear if name == "weak" and ("strong", cause) in clear]
none = "none" if session.turns > 4 else "too few turns to tell"
print("Clear causes, in both measurements:", ", ".join(both) or none)

# %% [markdown]
# Without losses, *n* ranks would be *n* times as fast as *alone*. In strong scaling, even that is less than *n* times one rank's speed if 1/*n* of a batch takes more than 1/*n* of the time. The × of a cause is (*alone* + cause) / *alone*, on rank 0. Compare the exchange with α-β only if your line is within 20% at 26 MB, the size of DDP's buckets, and ignore differences smaller than its error there. If the exchange is clearly shorter, the backward pass hid part of it. If it is clearly longer, DDP's copies or slower compute add to it; `noop_hook`, as in notebook 03, separates them. (If bars and milliseconds disagree, or one dot is far off, repeat from `bench.py` on.)
#
# ## Predict GPUs you do not have
#
# [Published](../docs/troubleshooting.md#the-published-speed-is-not-reached) **Total IPS** (global batch over mean iteration time) of a DGX-1 with NVIDIA's MXNet container 18.12 ([the commands](../docs/recipes.md#what-the-published-speeds-measured)):
#
# | GPUs | FP16, batch 208 | weak scaling | FP32, batch 96 | weak scaling |
# |---:|---:|---:|---:|---:|
# | 1 | 1442.6 | 1.00 | 400.2 | 1.00 |
# | 4 | 5391.8 | 3.74 | 1558.6 | 3.89 |
# | 8 | 10263.2 | 7.11 | 2957.4 | 7.39 |
#
# **These runs did not use Horovod:** one process drove all GPUs through MXNet's kvstore `device`. Only the runs on 4 and 8 GPUs restarted the loader (mistake 7), so restarts may have cost them speed.
#
# Besides *perfect* (*n* GPUs are *n* times as fast), four models predict published weak-scaling rates that they were not fitted to: NVIDIA's (DGX-1, 8 V100s; DGX A100, 4 and 8) and OneFlow's DLPerf (4 hosts of 8 V100s).
#
# - **wires only**: alpha-beta with NCCL's constants, overlapped with the backward pass.
# - **Amdahl's law**: a share of the work cannot be parallelised.
# - **stragglers**: wires, plus step times that vary, so that all GPUs wait for the slowest.
# - **communication**: no overlap, and only part of the bandwidth.
#
# The last three have one parameter each, fitted to fewer GPUs or to the DGX-1.
#
# **Predict** which model is closest.

# %%
closest = None  # your model
models = "perfect", "wires only", "Amdahl", "stragglers", "communication"
rows, assumed = nb08.held_out(*models)
errors = np.abs([row[3:] for row in rows]).mean(axis=0)
rows = [[*row[:2], *(f"{error:+.1f}" for error in row[3:])] for row in rows]
rows.append(["mean absolute error", None, *(f"{error:.1f}" for error in errors)])
workshop.table(rows, ["published", "GPUs", *models], "Error of the predicted speed, %")
print(*(f"{cause} assumes {shares}\n" for cause, shares in assumed.items()), sep="", end="")
print(f"closest: {models[errors.argmin()]}; you expected {closest or '?'}")

# %% [markdown]
# Bandwidth and latency alone explain almost none of the V100s' loss. Over all eight rows, the last two models err by only 3 to 4% on average, although they blame different causes. Neither is plausible. With the same links, *communication* has to assume 6 to 7% of the bandwidth in mixed precision but 20 to 33% in FP32. With the same GPUs, *stragglers* has to assume step times that vary by 7 to 17% in mixed precision but only by 3 to 4% in FP32. A model can predict a speed without explaining it. Only controls and a trace show *why* a step takes longer.
#
# ## Decide
#
# What do 90 epochs of ImageNet cost on GPUs like yours if `network` (first code cell) connects the hosts? (Without a GPU: like the recorded H100.) **Predict** how many times as fast 16 GPUs are as 8 (`sixteen`). One GPU is assumed to compute as fast as your fastest rung with a clear gain. `rn50 scale` cannot separate causes: it attributes all loss that the wires do not explain to *stragglers*, fitted to the DGX-1 (too pessimistic for A100s), and assumes that loading keeps up. Nothing is fitted to H100s.

# %%
sixteen = None  # your number: the speed of 16 GPUs over that of 8

gained = [r for r in rungs if r not in gains or (gains[r].clear and gains[r].median > 1)]
best = max(gained, key=lambda rung: rungs[rung]["images_per_s"])
h100 = session.results["h100.float16.ips"]
gpu_batch, ips, source = 256, h100.value, h100.provenance
if gpus:
    gpu_batch, ips = rung_batch, 1000 * rung_batch / rungs[best]["compute_ms"]
    source = f"compute of {best} on {torch.cuda.get_device_name()} (a larger batch would lose less)"
print(f"{ips:,.0f} img/s with batch {gpu_batch}: {source}")
cluster = f"--compute-ips {ips:.0f} --batch {gpu_batch} --network {network} --price {price}"
os.environ["CLUSTER"] = cluster

# %% language="bash" magic_args="-e"
# # apart from the wires, stragglers are the only loss; "Your decision", below, also tries communication
# rn50 scale --gpus 1,8,16,64,512 --dtype float16 --gradient-bytes 2 $CLUSTER

# %% [markdown]
# Weak scaling makes the global batch larger: **predict** how many points a batch of 65,536 loses, with a linearly scaled learning rate and five epochs of warm-up.

# %%
guess = None  # points of accuracy lost
accuracies = [f"published.batch.{batch}.error" for batch in (256, 8192, 65536)]
session.expect(dict.fromkeys(accuracies))
lost = session.results[accuracies[-1]].value - session.results[accuracies[0]].value
print(f"lost: {lost:.1f} points; you predicted {guess or '?'}")

# %% [markdown]
# Up to 8,192 images per step, almost no accuracy is lost. Beyond that, use strong scaling or a recipe for large batches.
#
# The last cell predicts the speed for your `network` and, for comparison, for hosts joined by one 100 Gbit/s link, as in DLPerf. *Stragglers* and *communication* are each fitted to a DGX-1 (1 and 4 GPUs) and to DLPerf (up to 16 GPUs). (There, 16 V100s are 1.69 times as fast as 8 in mixed precision, 1.92 in FP32; the same wire takes a larger share of an H100's shorter steps.) If the predictions disagree, measure first: rent two such hosts for an hour; run `bench.py` on one, then on both (`torchrun --nnodes 2 …`, with the second cell's variables). Trust *stragglers* if most of the clear loss is waiting, *communication* if most of it is the exchange. Neither describes contention.
#
# ## Your decision
#
# **Your turn:** how many times as fast as 8 must 16 GPUs be before you buy? They cost twice as much per hour: at 1.8 times the speed, a run costs 11% more. Set `threshold`, then write the rule: `speeds` has one prediction per cause and fit; they disagree if some reach the threshold and others do not.

# %%
threshold = None  # your number: the least speed of 16 GPUs over 8


def decide(speeds, threshold):
    """Return "buy", "do not buy", or "measure first" if the predictions disagree."""
    return None  # your code


# %% tags=["results"]
decide = nb08_checks.check("decide", decide)
for links in dict.fromkeys([network, "nvlink4+100g"]):
    speeds = []
    for cause, fitted in itertools.product(("stragglers", "communication"), ("DGX-1", "DLPerf")):
        eight, more = (
            n * nb08.efficiency(n, cause, gpu_batch, ips, links, fitted) for n in (8, 16)
        )
        speeds.append(more / eight)
        print(f"{links}, {cause} ({fitted}): {more / eight:.2f}; a run's cost", end=" ")
        print(f"× {2 * eight / more:.2f}")
    verdict = decide(speeds, threshold) if threshold else "no threshold yet"
    yours = f"; you predicted {sixteen or '?'}" if links == network else ""
    print(f"{links}: {min(speeds):.2f} to {max(speeds):.2f}{yours}. Decision: {verdict}")
    if threshold and links == network:
        session.note("decision", verdict, "", f"16 GPUs instead of 8, at least × {threshold}")
if threshold and not 1 < threshold <= 2:
    print(f"Your threshold is {threshold}: choose one above 1 (any gain) and up to 2 (perfect).")
session.note("clock", float(np.median(right)), "img/s", f"{precision}, batch {big}, synthetic")
session.note("weak_scaling", str(scaled["weak"]), "", f"{ranks} ranks over one, weak scaling")
workshop.progress()

# %% [markdown]
# ## Key takeaways
#
# - Warm up, wait, divide total images by total seconds, take turns, and show the median and range.
# - A failed run is neither 0 nor yesterday's number.
# - Tune one device before you buy a second. Measure controls before you blame the exchange.
#
# **Try it:** set `network` and `price` to those of a cluster you could rent, rerun the first two code cells, then everything from "Decide" on.
