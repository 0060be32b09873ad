# %% [markdown]
# # 03 · Horovod and DDP
#
# After this notebook, you can turn a single-GPU script into a multi-GPU one in five changes, recognise what goes wrong without each, write an all-reduce, and estimate what the exchange of gradients costs.
#
# **Time:** 120 minutes · **Needs:** notebook 02 · **On a CPU:** about 3 minutes to run · **With one GPU:** most of it runs on the CPU

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
ranks: int | None = None  # processes that train together; None: one per GPU, from 2 to 8
batch: int | None = None  # images per rank and step
seed: int = 0  # seed of all random numbers

# %%
import json
import math
import os
from pathlib import Path

import numpy as np
import torch

import workshop

session = workshop.start("03", profile)
gpus = torch.cuda.device_count()
if gpus > 1:
    ranks = min(ranks or 8, gpus)
ranks = ranks or 2
rung_ranks = 1 if gpus == 1 else ranks  # on the ladder, where each rank needs its own GPU
hidden = {"CUDA_VISIBLE_DEVICES": ""} if gpus == 1 else {}  # elsewhere, ranks then use the CPU
os.chdir(session.folder)  # everything below is written here
settings = {"ranks": ranks, "cores": session.machine.cores, "data": session.data_root, "seed": seed}
settings |= {"omp_num_threads": max(1, session.machine.cores // ranks)} | session.sizes
# for the cells that begin with %%bash
os.environ |= {name.upper(): str(value) for name, value in settings.items()}

# %% [markdown]
# If your script from notebook 02 (rung 1 of the ladder) mostly computes, more devices can help. But the processes that train one model, its **ranks**, must exchange gradients. That adds a third part to each step, after input and compute: **communication**.
#
# ## Do two half batches give the gradient of a whole one?
#
# In **data parallelism**, each rank has the whole model and a share of the *images*: here, two ranks, half a batch each. **Predict** the answer, without and with batch norm.

# %%
from torch import nn


def gradient(net, images):
    net.zero_grad()
    net(images).square().mean().backward()
    return torch.cat([p.grad.flatten() for p in net.parameters()])


torch.manual_seed(seed)
images = torch.randn(32, 3, 8, 8, dtype=torch.float64)
for name, norm in {
    "without batch norm": nn.Identity(),
    "with batch norm": nn.BatchNorm2d(8),
}.items():
    net = nn.Sequential(nn.Conv2d(3, 8, 3), norm, nn.ReLU(), nn.Conv2d(8, 1, 3)).double()
    whole = gradient(net, images)
    halves = (gradient(net, images[:16]) + gradient(net, images[16:])) / 2
    gap = (whole - halves).abs().max() / whole.abs().max()
    print(f"{name}: relative difference of full-batch and averaged gradients: {gap:.1g}")

# %% [markdown]
# Without batch norm, the gradients differ only by rounding; with it, by more: each rank normalises with the mean and variance of its own images.
#
# So ranks average their gradients in each step. The batch determines how much a rank *computes*, the model how much it *exchanges*: 25.6 million `float32` gradients (1,000 classes), 102 MB.
#
# ## How do ranks add up their gradients?
#
# If every rank sent its gradients to rank 0, that rank's link would become the bottleneck. An **all-reduce** gives every rank the sum. In a *ring*, all links are equally busy: every rank cuts its gradients into as many chunks as there are ranks, and sends only to the next rank. In the *reduce-scatter*, the chunks travel around the ring and are added up; in the *all-gather*, the finished sums travel around once more. The next cell follows chunk 0: each column shows whose gradients a rank's copy contains. **Predict** how many steps 4 ranks take until all have the sum.

# %%
from IPython.display import Pretty, display
from ipywidgets import IntSlider


def follow(n):
    """Return whose gradients are in chunk 0 of each of `n` ranks, step by step."""
    chunk = [str(rank) for rank in range(n)]
    lines = [["begin:", *chunk]]
    for step in range(2 * (n - 1)):
        sender, receiver = step % n, (step + 1) % n
        if step < n - 1:  # reduce-scatter: add what arrives
            chunk[receiver] = chunk[sender] + "+" + chunk[receiver]
        else:  # all-gather: keep it
            chunk[receiver] = chunk[sender]
        lines.append([f"step {step + 1}:", *chunk])
    return "\n".join(" ".join(f"{part:<{max(9, 2 * n)}}" for part in line) for line in lines)


guess = None  # your number
shown = display(Pretty(follow(4)), display_id=True)
print(f"You predicted {'?' if guess is None else guess} steps.")
slider = IntSlider(4, 2, 6, description="ranks")
slider.observe(lambda change: shown.update(Pretty(follow(change.new))), "value")
slider

# %% [markdown]
# It takes `2 (n − 1)` steps. The other chunks travel at the same time: chunk `c` starts at rank `c`. In total, a rank sends `2 (n − 1) / n` times the size of the gradients: 153 MB with 4 ranks, 179 MB with 8. No algorithm can send less if the ranks themselves do the adding ([Patarasuk and Yuan, 2009](https://doi.org/10.1016/j.jpdc.2008.09.002)).
#
# **Your turn: write the ring**. In step `s` = 0, 1, …, `2n − 3`, rank `r` sends chunk `(r − s) % n` to the next rank and receives chunk `(r − s − 1) % n` from the one before. `dist.isend(tensor, rank)` and `dist.irecv(tensor, rank)`, which overwrites its tensor, return at once; call `wait()` on what they return before you touch a tensor. The chunks, `gradients.tensor_split(n)`, are views in a tuple: change them with `add_` and `copy_`.

# %%
import torch  # other processes run this cell: import here what it uses
from torch import distributed as dist


def all_reduce(gradients):
    """Replace a vector with its sum over all ranks, using only isend and irecv."""
    ...  # your code; dist.get_rank() and dist.get_world_size() are r and n


# %%
from workshop.lessons import nb03

all_reduce = nb03.check("all_reduce", all_reduce, "ring.py")

# %% [markdown]
# ## What changes in your script?
#
# A launcher starts the ranks and passes each rank its number in an environment variable. An unchanged script ignores it, so every rank runs the whole training. Five changes, plus the rows below them, turn these copies into one training run, with Horovod or PyTorch's `DistributedDataParallel` (DDP):
#
# | | Horovod: `import horovod.torch as hvd` | DDP: `from torch import distributed as dist` |
# |---|---|---|
# | 1. start | `hvd.init()`, `hvd.local_rank()` | `dist.init_process_group()`, `dist.get_node_local_rank()` |
# | 2. share | `torch.utils.data.DistributedSampler(photos, hvd.size(), hvd.rank())` | `torch.utils.data.DistributedSampler(photos)` |
# | 3. rate | `lr * hvd.size()` | `lr * dist.get_world_size()` |
# | 4. average | `hvd.DistributedOptimizer(optimizer, model.named_parameters())` | `torch.nn.parallel.DistributedDataParallel(model)` |
# | 5. broadcast | `hvd.broadcast_parameters(model.state_dict(), 0)` | done by 4 |
# | report, trace, save | if `hvd.rank() == 0` | if `dist.get_rank() == 0`; save `model.module` |
# | multiply images/s by | `hvd.size()` | `dist.get_world_size()` |
# | last line | | `dist.destroy_process_group()` |
# | exposed exchange (optional) | `optimizer.synchronize()` in a range `exchange`, then `step()` in `with optimizer.skip_synchronize():` | before the loop `last = []` and `next(model.parameters()).register_post_accumulate_grad_hook(lambda _: last.append(now()))`; after `backward()`, `last.pop()` to `now()` |
# | launcher | `horovodrun -np 2 python train.py` | `torchrun --nproc-per-node 2 train.py` |
#
# 1. **Start, and pick a device.** Pass the *local* rank, counted within a machine, to `torch.cuda.set_device`; otherwise, NVIDIA's NCCL reports "Duplicate GPU detected".
# 2. **Share the images.** Replace `shuffle=True` with `sampler=`: all ranks compute the same random order, and each takes its share. [A rank with an extra step hangs](../docs/troubleshooting.md#ranks-with-different-numbers-of-steps-stall). In `endless`, `loader.sampler.set_epoch(epoch)` gives each epoch a new order. Pass the rank to `torch.manual_seed`, so that random crops differ, too.
# 3. **Scale the learning rate** with the global batch.
# 4. **Average the gradients** over all ranks.
# 5. **Broadcast** rank 0's weights: they stay equal only if they start equal.
#
# [Only rank 0](../docs/troubleshooting.md#ddp-hangs-when-only-rank-0-validates) reports. If you add the optional row, report the **exposed** exchange as `communication`: the time between the last gradient and the update, when the step waits for messages. Otherwise, it counts as `compute`.
#
# > Horovod's last release is from June 2023, and its CI is [off](https://github.com/horovod/horovod/pull/4318): start new work with DDP.
#
# **Your turn.** Choose a library, change your `runs/train.py`, and run the next cell. First: is the script *correct*? Until your file has the changes, solutions are shown, folded, and a finished version runs: Horovod's if it is built, otherwise DDP's.

# %%
workshop.ladder.try_rung(
    "2", ranks=ranks, compare=session.compare, env=hidden, image_size=session.small_size,
    batch_size=session.small_batch, steps=4, warm_up=0, save="weights.pt",  # which ranks write?
)  # fmt: skip

# %% [markdown]
# Is it *fast*? **Predict** the speed-up over one rank, as a factor. (With one GPU: speed with the library over speed without it.)

# %%
guess = None  # your number
workers = max(1, min(12, session.machine.cores // rung_ranks))  # that load images, per rank
steps = math.ceil(session.steps / workers) * workers  # they deliver in bursts: time whole ones
one, several = workshop.ladder.race(
    ["1_single", "2"], own="2", guess=guess, turns=session.turns, ranks=rung_ranks,
    image_size=session.image_size, batch_size=batch or session.batch, workers=workers,
    warm_up=session.warm_up, steps=steps,
).values()  # fmt: skip
if "communication_ms" not in several:
    print("Your script does not report its communication: it is counted as compute.")
for rung in (one, several):
    parts = {p: rung[f"{p}_ms"] for p in ("input", "compute", "communication") if f"{p}_ms" in rung}
    print(f"ranks: {rung['ranks']}; images/s, median turn: {rung['images_per_s']:.1f};", end=" ")
    print("ms per step:", ", ".join(f"{part} {ms:.1f}" for part, ms in parts.items()))
if rung_ranks > 1:
    gains = several.get("gains") or [several["images_per_s"] / one["images_per_s"]]
    low, middle, high = np.quantile(gains, [0, 0.5, 1]) / rung_ranks
    print(f"efficiency, each turn's speed-up over the number of ranks: {middle:.0%}", end=" ")
    print(f"({low:.0%} to {high:.0%})")
    if high > 2 * low:
        print("The turns differ a lot: was something else running? Run this cell again.")
workshop.ladder.figure()

# %% [markdown]
# This is the **ladder**: speeds on the left; on the right, each speed-up over the rung before. Eight V100s reach an efficiency of 89% (published). If your whole range is below 1/*n*, *n* ranks are slower than one: this is [common on a CPU](../docs/troubleshooting.md#more-ranks-on-a-cpu-are-not-faster-too-many-threads), where one rank uses all cores.
#
# Which part of a step grew most? (With one GPU, overhead may hide behind input.) If *n* ranks share a CPU's cores, each needs about *n* times as long to compute. If compute grew by more than that, messages and the library's threads may slow it down.
#
# ## What goes wrong without each change?
#
# `leave_out.py` trains a small network on random images: with all changes, then without each of changes 2 to 5 in turn, then without all four, like the unchanged script. It prints how many *different* images were seen, how far the weights moved, and how much the ranks' weights differ. **Predict** which number reveals each omission.
#
# **Your turn: write change 4** in two lines. With all changes, the weights differ by 0.

# %%
from torch import distributed as dist  # other processes run this cell, too


def average(gradient):
    """Replace a rank's gradient with its mean over all ranks."""
    ...  # your code


# %%
average = nb03.check("average", average, "average.py")

# %%
# %%writefile leave_out.py
import torch
from average import average
from torch import distributed as dist
from torch.nn import functional as F

from rn50lib import resnet
from rn50lib.torch.model import ResNet


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
images = torch.rand(240, 3, 32, 32, generator=torch.Generator().manual_seed(1))
labels = torch.arange(240) % 12
for without in ("nothing", "share", "rate", "broadcast", "average", "all four"):
    missing = {"share", "rate", "broadcast", "average"} if without == "all four" else {without}
    # each rank starts with different weights, but the unchanged script seeds all ranks alike
    torch.manual_seed(0 if without == "all four" else rank)
    model = ResNet(resnet.tiny(num_classes=12))
    order = torch.randperm(240, generator=torch.Generator().manual_seed(0)).tolist()
    mine = order if "share" in missing else order[rank::size]
    lr = 0.005 * (1 if "rate" in missing else size)
    if "broadcast" not in missing:
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)
    start = flat(model)
    for step in range(4):
        batch = mine[8 * step : 8 * step + 8]
        F.cross_entropy(model(images[batch]), labels[batch]).backward()
        with torch.no_grad():
            for weight in model.parameters():
                if "average" not in missing:
                    average(weight.grad)
                weight -= lr * weight.grad
                weight.grad = None
    everyone = [None] * size
    dist.all_gather_object(everyone, mine[:32])
    seen = len(set().union(*everyone))
    moved, low, high = (flat(model) - start).norm(), flat(model), flat(model)
    dist.all_reduce(low, dist.ReduceOp.MIN)
    dist.all_reduce(high, dist.ReduceOp.MAX)
    if rank == 0:
        name = "all changes" if without == "nothing" else f"without {without}"
        print(f"{name:17} {seen:3} images seen, weights moved by {moved:.2f}", end=" ")
        print(f"and differ by {(high - low).max():.1g}")
dist.destroy_process_group()

# %% language="bash" magic_args="-e"
# SHARE=? RATE=? BROADCAST=? AVERAGE=?  # what reveals each omission: images, moved or differ?
# torchrun --standalone --nproc-per-node $RANKS leave_out.py 2> errors.txt || (cat errors.txt; exit 1)
# echo "You predicted: share $SHARE, rate $RATE, broadcast $BROADCAST, average $AVERAGE"

# %% [markdown]
# - Without the [**share**](../docs/troubleshooting.md#every-rank-reads-the-whole-data-set), all ranks see the same ***images***. The weights even move *further*: the gradients of different images partly cancel when they are averaged.
# - Without the [**scaled rate**](../docs/troubleshooting.md#accuracy-is-lower-than-on-one-gpu), the weights ***moved*** only about 1/n as far on n ranks.
# - Without the **broadcast**, the ranks' weights ***differ***, so the average is not the gradient of any rank's model.
# - Without the **average**, the ranks' weights start out equal, then ***differ***, and move further.
# - Without **all four**, every rank runs the same training.
#
# None of these runs raised an error.
#
# On two hosts with 8 GPUs each, only the launch command changes ([flags](../docs/commands.md#several-hosts), [hangs](../docs/troubleshooting.md#initialisation-hangs-across-hosts)). Run the first command on every host, or one of the others on a single host:
#
# ```
# torchrun --nnodes 2 --nproc-per-node 8 --rdzv-backend c10d --rdzv-endpoint HOST1:29500 train.py
# srun --nodes 2 --ntasks-per-node 1 torchrun --nnodes 2 …  # the same flags
# horovodrun -np 16 -H HOST1:8,HOST2:8 python train.py
# mpirun -np 16 -H HOST1:8,HOST2:8 … python train.py
# ```
#
# ## How long does a step wait for the exchange?
#
# A message takes a fixed **latency** α plus its bytes over the **bandwidth** β. DDP sends gradients in **buckets**. It sends a bucket as soon as it holds at least 25 MiB (26 MB), the first at 1 MiB. Horovod checks every millisecond and sends what is ready. Both begin *during* the backward pass; whatever is still being sent when the pass ends is exposed.
#
# On the CPU, `overlap.py` times two all-reduces, Gloo's (PyTorch's library for CPUs) and yours, from 4 KiB to 32 MiB, then DDP's backward passes with exchange and without (`noop_hook`).

# %%
# %%writefile overlap.py
import json
import math
import sys
import time

import torch
import torch.distributed.nn.functional  # if imported later, it keeps the process group open
from ring import all_reduce
from torch import distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.debugging_hooks import noop_hook
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel

from rn50lib import resnet
from rn50lib.torch.model import ResNet

largest, layers, turns, side, batch = map(int, sys.argv[1:])
dist.init_process_group("gloo")


def timed(work, *arguments):
    """Start work on all ranks together; return when it began, and its seconds."""
    dist.barrier()
    begin = time.perf_counter()
    work(*arguments)
    return begin, time.perf_counter() - begin


def shortest(messages):
    """Return the shortest of at least 15 times of each message: an all-reduce and its bytes."""
    buffer = torch.zeros(max(size for _, size in messages) // 4)
    best = dict.fromkeys(messages, math.inf)
    for turn in range(16):  # in turns: a disturbance hits one repetition of each message
        for (reduce, size), before in best.items():
            tries = 7 if size < 2**20 else 1
            seconds = min(timed(reduce, buffer[: size // 4])[1] for _ in range(tries))
            best[reduce, size] = min(before, seconds) if turn else math.inf  # skip the first
    return best


ways = {"Gloo": dist.all_reduce, "ring.py": all_reduce}
sizes = [2**k for k in range(12, largest.bit_length())]
best = shortest([(reduce, size) for reduce in ways.values() for size in sizes])
sweep = {way: [(size, best[reduce, size]) for size in sizes] for way, reduce in ways.items()}

model = ResNet(resnet.resnet(layers, num_classes=12))
names = {weight: name for name, weight in model.named_parameters()}
# the exchange alone: by default, DDP also sends batch norm's statistics, and copies all gradients
model = DistributedDataParallel(model, broadcast_buffers=False, gradient_as_bucket_view=True)
full = []  # when each bucket of a pass was full, its bytes, and the layer of its first gradient


def exchange(group, bucket):  # DDP calls this hook for each full bucket; noop_hook sends nothing
    layer = names[bucket.parameters()[0]].rpartition(".")[0]
    full.append((time.perf_counter(), bucket.buffer().nbytes, layer))
    return (allreduce_hook if exchanging else noop_hook)(group, bucket)


model.register_comm_hook(None, exchange)
run = {"alone": [], "together": [], "parts": []}
buckets, ends = [], [None] * dist.get_world_size()  # when each rank's last bucket was full
for turn in range(1 + turns):  # DDP forms its buckets after the first pass
    for exchanging in (False, True) if turn % 2 else (True, False):
        full.clear()
        loss = model(torch.randn(batch, 3, side, side)).square().mean()
        begin, seconds = timed(loss.backward)
        dist.all_gather_object(ends, full[-1][0])  # the ranks of a machine share a clock
        if turn > 0 and exchanging:
            run["together"].append(seconds)
            run["parts"].append([max(ends) - ends[0], begin + seconds - max(ends)])  # of rank 0
        elif turn > 0:
            run["alone"].append(seconds)
            buckets.append([(at - begin, nbytes, layer) for at, nbytes, layer in full])
run["buckets"] = sorted(zip(run["alone"], buckets, strict=True))[turns // 2][1]  # median pass
# the messages alone
alone = [(dist.all_reduce, nbytes) for _, nbytes, _ in run["buckets"]]
messages = [*map(shortest(alone).get, alone)]

if dist.get_rank() == 0:
    print(json.dumps({"sweep": sweep, "runs": [run], "messages": messages}))
del model, loss  # they keep the process group open, too
dist.destroy_process_group()  # else a thread of Gloo can abort Python at its exit

# %% language="bash" magic_args="-e"
# CUDA_VISIBLE_DEVICES= torchrun --standalone --nproc-per-node $RANKS overlap.py \
#   $LARGEST $LAYERS $TURNS $SMALL_SIZE $SMALL_BATCH > overlap.json 2> errors.txt ||
#   (cat errors.txt; exit 1)

# %% [markdown]
# ### Latency and bandwidth
#
# α is Gloo's shortest time for a small message. β is fitted to messages of at least 4 MiB, like most buckets; smaller ones can lie well above or below the line.
#
# A 32 MiB message has 8,192 times the bytes of a 4 KiB message. **Predict** how many times as long it takes.

# %%
import matplotlib.pyplot as plt

guess = None  # your number; on a CPU, α is 0.1 to 0.3 ms and β 1 to 5 GB/s
measured = json.loads(Path("overlap.json").read_text())
swept = {way: np.array(rows).T for way, rows in measured["sweep"].items()}
swept_bytes, seconds = swept["Gloo"]
own = swept["ring.py"][1]
latency, large = seconds[swept_bytes <= 2**16].min(), swept_bytes >= 2**22
per_byte = np.median((seconds - latency)[large] / swept_bytes[large])  # 1 / β
line = latency + per_byte * swept_bytes
print(f"α is {1e6 * latency:.0f} µs, β {1e-9 / per_byte:.2f} GB/s (with your number of ranks)")
off, slower = abs(line / seconds - 1)[large].max(), own / seconds
print(f"From 4 MiB, the line misses Gloo's times by up to {off:.0%}")
print(f"ring.py / Gloo: {slower[0]:.1f} at 4 KiB, {slower[-1]:.1f} at the largest size", end=" ")
print("(Gloo adds one part of a chunk while the next is on its way)" if slower[-1] > 1.2 else "")

fig, axes = plt.subplots(figsize=(9, 3.6), layout="constrained")
colour = workshop.MEANING["communication"]
axes.loglog(swept_bytes, 1e3 * line, "-", color="0.55", lw=1, label="α + bytes / β")
axes.loglog(swept_bytes, 1e3 * seconds, "o", color=colour, label="Gloo")
axes.loglog(swept_bytes, 1e3 * own, "o", color=colour, mfc="none", ms=9, label="ring.py")
axes.axvline(25 * 2**20, color="0.55", lw=1, ls=":", label="DDP's bucket size")
axes.legend()
axes.set_xscale("log", base=2)
units = [f"{n / 2**20:.0f} MiB" if n >= 2**20 else f"{n / 2**10:.0f} KiB" for n in swept_bytes]
ticks = [*range(0, len(units) - 2, 2), len(units) - 1]
axes.set_xticks(swept_bytes[ticks], [units[i] for i in ticks])
workshop.log_ticks(axes.yaxis)
axes.set(xlabel="bytes of a message (log scale)", ylabel="ms (log scale), shortest")
longer = seconds[-1] / seconds[0]
axes.set_title(f"{swept_bytes[-1] / swept_bytes[0]:,.0f} × the bytes take {longer:.0f} × as long")
print(f"You predicted {'?' if guess is None else guess} × as long.")
said = ", ".join(f"{way} {1e3 * t[0]:.2g} to {1e3 * t[-1]:.3g} ms" for way, (_, t) in swept.items())
workshop.figure(fig, alt=f"Time of an all-reduce by size: {said}.")

# %% [markdown]
# ### The exposed time
#
# From 4 to 64 KiB, α dominates: 16 times the bytes take far less than 16 times as long. That is why gradients travel in buckets.
#
# **Your turn: predict when the last message arrives,** in five lines. `full` lists when each bucket is full, in seconds after the pass began; `takes` lists how long each message takes; `alone` is the length of the pass without exchange. Messages leave in the order of the list, each through the sender that becomes free first (Gloo has two senders, its threads; NCCL has one, a stream).
#
# **Predict**, in milliseconds, how long after the end of DDP's pass its last message arrives. (ResNet-50's last bucket holds 9.7 MB, and is full when the pass ends.)


# %%
def after_the_pass(full, takes, alone, senders):
    """Return how many seconds after the pass the last message arrives, at least 0."""
    ...  # your code


# %%
guess = None  # your number
after_the_pass = nb03.check("after_the_pass", after_the_pass)
(run,) = measured["runs"]
full, bucket_bytes, layers = map(list, zip(*run["buckets"], strict=True))
takes = [latency + per_byte * nbytes for nbytes in bucket_bytes]
for layer, nbytes, at, seconds in zip(layers, bucket_bytes, full, takes, strict=True):
    print(f"{nbytes / 1e6:4.1f} MB, starting with {layer + ',':15}", end=" ")
    print(f"full after {1e3 * at:6.1f} ms; α + bytes / β: {1e3 * seconds:.1f} ms")
alone = np.median(run["alone"])
by_turn = np.subtract(run["together"], run["alone"])
middle = np.argsort(by_turn)[len(by_turn) // 2]  # the turn with the median: its parts add up
longer, (waiting, messages) = by_turn[middle], run["parts"][middle]
least, most = 1e3 * by_turn.min(), 1e3 * by_turn.max()
rests = 1e3 * (by_turn - np.sum(run["parts"], axis=1))  # of each turn
sent = np.array(run["parts"])[:, 1]  # of each turn
rows = {
    f"added to a backward pass by the exchange, median turn ({least:.0f} to {most:.0f})": longer,
    "- rank 0 waits for the slowest rank": waiting,
    f"- messages after that (what you predicted; {1e3 * sent.min():.0f} to {1e3 * sent.max():.0f})": messages,
    f"- the rest ({rests.min():.0f} to {rests.max():.0f})": longer - waiting - messages,
    "the last message alone, shortest": measured["messages"][-1],
    "your function's prediction of the messages": after_the_pass(full, takes, alone, 2),
}
for what, seconds in rows.items():
    print(f"{1e3 * seconds:7.1f} ms  {what}")
print(f"You predicted {'?' if guess is None else guess} ms of messages.")
if rests.min() > 0:
    rest = (longer - waiting - messages) / longer
    print(f"The rest, {rest:.0%} of what is added, is above 0 in all turns: the pass got slower.")
session.note("exposed_ms", 1e3 * messages, "ms", "exposed exchange of a pass, without waiting")

# %% [markdown]
# Hidden messages share hardware with the computation (cores with Gloo, a few multiprocessors with NCCL) and can slow it down. If the whole range of the rest is above 0, the pass itself got slower: through this sharing, or through averaging and handing over buckets. Your function ignores the slower pass and the wait, and takes its times from the line, which is fitted to the shortest times of messages alone: after a pass, a message can take longer.
#
# ### The exchange in your script
#
# What does a script report as `communication`? The next cell traces yours and, if it uses Horovod, DDP's, too: PyTorch's profiler does not see Horovod's thread. With one GPU, it uses two ranks on the CPU.

# %%
sizes = {"image_size": session.image_size, "batch_size": batch or session.batch}
if gpus == 1:
    sizes = {"image_size": session.small_size, "batch_size": session.small_batch}
for library in dict.fromkeys([workshop.ladder.chosen_library(), "ddp"]):  # yours first
    file = session.folder / f"{library}.json"
    report = workshop.ladder.climb(
        f"2_{library}", ranks=ranks, env=hidden, workers=2 if gpus == 1 else workers, warm_up=3,
        steps=8, trace=file, **sizes,
    )  # fmt: skip
    name = Path(report["script"]).name
    print(f"{name}, rank 0 of {ranks}, on the {'GPUs' if gpus > 1 else 'CPU'}:")
    about = "exchange" if "communication_ms" in report else ""
    exposed = workshop.trace(file, about=about)["exchange"]
    if reported := report.get("communication_ms"):
        print(f"{reported:7.1f} ms  communication that {name} reports")
    if exposed or library == "ddp":
        print(f"{exposed:7.1f} ms  exposed exchange in its traced steps", end=" ")
        print("(three steps: tracing slows only rank 0, so ranks wait differently)")
    else:
        print("Horovod's exchange is inside the update: add the range `exchange` to see it.")
if gpus <= 1:
    transfer = latency + per_byte * sum(bucket_bytes)
    print(f"{1e3 * transfer:7.1f} ms  for all gradients by α + bytes / β, with none hidden")

# %% [markdown]
# DDP's figure shows one step, the tables show the mean of three, and the script reports the mean of all. When the main thread is orange, it hands over a bucket or batch norm's statistics. The trace also counts exposed moments before the last gradient (such as hand-overs), but not the last message while DDP copies (yellow); the script counts all time after that gradient.
#
# If, on a CPU, more is exposed than α + bytes / β for all gradients, [waiting for the other rank](../docs/troubleshooting.md#a-collective-times-out-although-every-rank-makes-it), busy cores and Horovod's copies can cause the excess.
#
# ## What would eight GPUs lose?
#
# No run on several GPUs is recorded, so let your function predict one, with the link speeds that [NCCL 2.20 assumes](https://github.com/NVIDIA/nccl/tree/v2.20.5-1/src/graph) and the recorded step of an H100. Assume that backward takes two thirds of it, with buckets that fill as above. **Predict** for how many of the five links eight GPUs lose more than 5% of their speed.

# %%
guess = None  # your number
step = 256 / session.results["h100.float16.ips"].value
print(f"A step of one H100 (recorded, float16, batch 256): {1e3 * step:.1f} ms;", end=" ")
print(f"gradients of 12 classes: {sum(bucket_bytes) / 1e6:.0f} MB")
ready = np.array(full) / full[-1] * 2 / 3 * step
print(f"{'eight GPUs with':26}{'ms in total':>14}{'exposed':>10}{'efficiency':>12}")
for link, gigabytes, hop in (  # GB/s per GPU (or host) and direction; seconds per hop
    ("H100's NVLink", 371, 3.4e-6),
    ("V100's NVLink", 120, 3.4e-6),
    ("PCIe 3.0, not shared", 12, 5.7e-6),
    ("InfiniBand, 100 Gbit/s", 12, 14e-6),
    ("Ethernet, 10 Gbit/s", 1.2, 14e-6),
):
    # the ring: 2 (n - 1) steps, in each of which a rank sends one of n chunks
    takes = 2 * (8 - 1) * (hop + np.array(bucket_bytes) / 8 / (1e9 * gigabytes))
    exposed = after_the_pass(ready.tolist(), takes.tolist(), ready[-1], 1)
    print(f"{link:26}{1e3 * takes.sum():14.1f}{1e3 * exposed:10.1f}", end="")
    print(f"{step / (step + exposed):12.1%}")
print(f"You predicted that {'?' if guess is None else guess} of these lose more than 5%.")

# %% [markdown]
# Only one: 10-Gbit Ethernet. In published measurements, however, eight V100s (batch 208 each) take 18 ms longer per step than one: notebook 08 looks for the reasons.
#
# ## What does the larger batch change?
#
# More ranks also mean a larger batch: eight ranks with 16 images each train on 128 per step, and take an eighth as many steps per epoch. Change 3 scaled the rate: is that enough? *One* rank with 128 shows the same, except for batch norm. **Predict** the order of the final losses.

# %% language="bash" magic_args="-e"
# run() {  # name, then flags; --lr is for a batch of 256: 1.6 is 0.1 at 16
#   rn50 run --data-root "$DATA" --recipe roadsigns --network tiny --image-shape 32 \
#     --dtype float32 --threads 1 -n 1 --seed $SEED --num-examples $LARGE_IMAGES --no-val \
#     -e $LARGE_EPOCHS --lr-step-epochs $LARGE_EPOCHS --report "$1.json" "${@:2}" > "$1.txt" 2>&1 ||
#     (cat "$1.txt"; exit 1)
# }
# export CUDA_VISIBLE_DEVICES=  # on the CPU
# export -f run
# # as many at a time as there are cores, each with one thread: only their losses matter.
# # unscaled: the rate of small, an eighth as many steps; no_warmup: eight times the rate, from the
# # first step; warmup: climbs to the same rate over four epochs
# xargs -P $CORES -L 1 bash -c 'run "$@"' _ <<END
# small     -b 16           --lr 1.6 --warmup-epochs 0
# unscaled  -b $LARGE_BATCH --lr 0.2 --warmup-epochs 0
# no_warmup -b $LARGE_BATCH --lr 1.6 --warmup-epochs 0
# warmup    -b $LARGE_BATCH --lr 1.6 --warmup-epochs 4
# END

# %%
guess = []  # the four names, lowest final loss first
losses = {}
for name in ("small", "unscaled", "no_warmup", "warmup"):  # training loss after each epoch
    by_epoch = json.loads(Path(f"{name}.json").read_text())["metrics"]["train.loss"]
    losses[f"horovod.large_batch.{name}"] = by_epoch[-1]
    print(f"{name:10}", *(f"{loss:6.2f}" for loss in by_epoch))
print(f"guessing   {np.log(12):6.2f}")
order = [name.rpartition(".")[2] for name in sorted(losses, key=losses.get)]
print(f"lowest first: {', '.join(order)}; you predicted {', '.join(guess) or '?'}")
session.expect(losses)

# %% [markdown]
# Scaling the rate alone is not enough: in ten recorded runs, neither the scaled run without warm-up nor the unscaled one reliably beats guessing. With warm-up, the loss may also climb at first, but ends closest to the small batch's. [Goyal et al. (2017)](https://arxiv.org/abs/1706.02677) warm up because the network changes rapidly at first.
#
# ## Key takeaways
#
# - Five changes: start and pick a device, share the images, scale the rate, average, broadcast.
# - If you leave out any of the last four, the script still runs. Count the images, compare the weights, print the rate.
# - A message takes latency plus bytes over bandwidth. On fast links, little more than the last message is exposed.
#
# **Try it:** delete the division in `average.py`, and run `leave_out.py` again. Which number reveals it?
#
# Next: the input.
