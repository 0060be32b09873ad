# %% [markdown]
# # 08 · Benchmark and scaling
#
# After this notebook you can benchmark training correctly, spot a misleading benchmark, predict the effect of more GPUs, and say how much to trust the prediction. At the end, you run the whole ladder.
#
# **Time:** 45 minutes · **Needs:** nothing beyond the set-up; Horovod from rung 2, DALI from rung 3 · **On a CPU:** about 4 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
workers: int | None = None  # workers to compare with one; None: all GPUs up to 8, else 2
iterations: int | None = None  # iterations per epoch of the sweeps
ips: float = 1442.6  # images/s of one GPU, for the predictions: published, V100, FP16
gpu_batch: int = 208  # its batch
price: float = 2.0  # per GPU-hour, in any currency

# %%
import os

import torch

import workshop

session = workshop.start("08", profile)
gpus, cores = torch.cuda.device_count(), session.machine.cores
workers = workers or (min(8, gpus) if gpus > 1 else 2)
small, big = session.batch // 2, session.batch
os.chdir(session.folder)  # everything below is written here
os.environ |= {
    "DATA": str(session.data_root),
    "SIZE": str(session.size),
    "SMALL": str(small),
    "BIG": str(big),
    "SHARE": str(big // workers),
    "STEPS": str(session.steps),
    "WORKERS": str(workers),
    "SWEEP": "1" if gpus == 1 else f"1,{workers}",  # a GPU for each worker
    "CORES": str(max(1, cores // workers)),  # of each worker
    "ITERATIONS": str(iterations or session.iterations),
    "EPOCHS": str(session.epochs),
    "NETWORK": session.network,
    "IPS": str(ips),
    "GPU_BATCH": str(gpu_batch),
    "PRICE": str(price),
}

# %% [markdown]
# ## A first benchmark
#
# Here is a typical first benchmark: a model, a batch, a training step and a clock.

# %%
import statistics
import time

from torch.nn.functional import cross_entropy

from rn50lib import resnet
from rn50lib.torch.model import ResNet

torch.backends.cudnn.allow_tf32 = False  # real float32 (notebook 06)
device = torch.device("cuda" if gpus else "cpu")
model = ResNet(resnet.resnet(50, 12)).to(device, memory_format=torch.channels_last)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def step(batch, dtype=torch.float32):
    """Run one training step on random images."""
    images = torch.randn(batch, 3, session.size, session.size, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(12, (batch,), device=device)
    with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
        loss = cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


# %%
rates = []
for _ in range(4):
    begin = time.perf_counter()
    step(small)
    rates.append(small / (time.perf_counter() - begin))
print("img/s of each step:", *(f"{rate:.1f}" for rate in rates))
print(f"My ResNet-50 trains at {max(rates):.1f} images per second!")

# %% [markdown]
# Is the last line true? **Find the mistakes** before you read on. Which steps should count? Does the clock wait for the GPU? Which of the four rates does the line quote? What is missing next to it?
#
# ## Four ways to get a wrong number
#
# ### 1. No warm-up, and a clock that does not wait
#
# In a fresh process, the first steps are slow because they allocate memory and choose kernels. On a GPU, `step` returns as soon as the work is queued. So leave out the first steps, and call `torch.cuda.synchronize()` before you read the clock.
#
# The script below synchronises. It runs in one process or, under `torchrun`, in several; then it also times the all-reduce alone. It reports the time of *every* step, so that you can see the warm-up.

# %%
# %%writefile {session.folder}/bench.py
import argparse
import json
import os
import time

import torch
import torch.distributed.nn  # if a group exists before this import, it is never released
from torch.nn.functional import cross_entropy

from rn50lib import resnet
from rn50lib.torch.model import ResNet

parser = argparse.ArgumentParser()
parser.add_argument("--batches", type=int, nargs="+", default=[8])  # of each worker
parser.add_argument("--steps", type=int, default=12)
parser.add_argument("--size", type=int, default=64)
args = parser.parse_args()

world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("LOCAL_RANK", 0))
gpus = torch.cuda.device_count()
torch.backends.cudnn.allow_tf32 = False  # real float32
device = torch.device("cuda", rank % gpus) if gpus else torch.device("cpu")
if gpus:
    torch.cuda.set_device(device)
model = ResNet(resnet.resnet(50, 12)).to(device, memory_format=torch.channels_last)
if world > 1:  # NCCL needs a GPU for each worker
    torch.distributed.init_process_group("nccl" if gpus >= world else "gloo")
    model = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


def now():
    if gpus:
        torch.cuda.synchronize()
    return time.perf_counter()


found = {"workers": world, "seconds": {}, "all_reduce": []}
for batch in args.batches:
    images = torch.randn(batch, 3, args.size, args.size, device=device)
    images = images.contiguous(memory_format=torch.channels_last)
    labels = torch.randint(12, (batch,), device=device)
    seconds = found["seconds"][batch] = []
    for _ in range(args.steps):
        begin = now()
        cross_entropy(model(images), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        seconds.append(now() - begin)
if world > 1:
    for numbers in (2**10, 2**18, 2**20, 2**22, 2**24):
        array, seconds = torch.ones(numbers, device=device), []
        for _ in range(8):
            torch.distributed.barrier()
            begin = now()
            torch.distributed.all_reduce(array)
            seconds.append(now() - begin)
        found["all_reduce"].append([array.nbytes, sorted(seconds)[4]])
    del model  # it refers to the group, whose threads end with the last reference
    torch.distributed.destroy_process_group()
if rank == 0:
    print(json.dumps(found))

# %% language="bash" magic_args="-e"
# export OMP_NUM_THREADS=$CORES  # one worker's share of the cores; step() above used them all
# python bench.py --batches $SMALL $BIG --size $SIZE --steps $STEPS > alone.json

# %%
import json
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

plt.style.use("tableau-colorblind10")
alone = {int(b): s for b, s in json.loads(Path("alone.json").read_text())["seconds"].items()}
took = np.array(alone[small])
half = len(took) // 2  # the second half counts as warm
cold, warm = small / took.mean(), small / took[half:].mean()
fig, ax = plt.subplots(figsize=(10, 3), layout="constrained")
ax.bar(np.arange(len(took)) + 1, 1000 * took)
ax.axhline(1000 * np.median(took[half:]), color="black", ls="--", label="median, second half")
ax.set(title="The first steps of a fresh process", xlabel="step", ylabel="milliseconds")
ax.xaxis.get_major_locator().set_params(integer=True)
ax.legend()
finding = (
    f"The first step takes {took[0] / np.median(took[half:]):.1f} times as long as a warm one;"
    f" the mean speed is {cold:.1f} img/s over all steps and {warm:.1f} over the second half."
)
workshop.figure(fig, alt=f"Milliseconds of each step. {finding}")
print(finding)

# %% [markdown]
# ### 2. The wrong mean
#
# Suppose half of your batches run at 100 images/s and half at 50. The average speed is not 75: 100 images take 1 s at the first rate and 2 s at the second, so 200 images take 3 s, which is 66.7 images/s. To average rates over equal amounts of work, use the **harmonic mean**: for batches of equal size, it equals total images divided by total seconds. Now compare the means over your own steps:

# %%
rates = small / took
print(f"total images over seconds   {small * len(took) / took.sum():8.1f} img/s")
print(f"harmonic mean of the rates  {1 / np.mean(1 / rates):8.1f}")
print(f"arithmetic mean             {rates.mean():8.1f}")
print(f"median                      {np.median(rates):8.1f}")

# %% [markdown]
# ### 3. The best of n
#
# "We report the best of five runs." The more runs and the noisier the machine, the higher the best rate. Resample your own warm steps:

# %%
rng = np.random.default_rng(0)
for n in (2, 5):
    best = rng.choice(rates[half:], size=(10_000, n)).max(axis=1).mean()
    gain = 100 * (best / rates[half:].mean() - 1)
    print(f"the best of {n} steps is on average {gain:4.1f}% above the mean")

# %% [markdown]
# ### 4. Batch 208 versus batch 96
#
# NVIDIA's table (below) says that FP16 is 3.6 times as fast as FP32 on a V100. It compares 208 images per step with 96. That answers "what do I gain in practice?" (*best batch*), but not "what does FP16 alone gain?" (*equal batch*). Say which one you publish.
#
# To compare two things on a busy machine, let them **take turns**, so that a slowdown affects both, and report the **median and range** of the per-turn ratios. Here, the smaller batch stands in for the largest one that would fit in memory in FP32.

# %%
reduced = torch.float16 if gpus else torch.bfloat16
kinds = [(dtype, batch) for dtype in (torch.float32, reduced) for batch in (small, big)]
rate = {kind: [] for kind in kinds}
for turn in range(session.turns + 1):  # the first turn warms up
    for dtype, batch in kinds:
        begin = time.perf_counter()
        step(batch, dtype)
        if gpus:
            torch.cuda.synchronize()
        if turn:
            rate[dtype, batch].append(batch / (time.perf_counter() - begin))
rate = {kind: np.array(values) for kind, values in rate.items()}
for name, base in (("equal", big), ("best", small)):
    ratio = rate[reduced, big] / rate[torch.float32, base]
    print(f"{name} batch: {reduced} with {big} over float32 with {base}:", end=" ")
    print(f"{np.median(ratio):.2f} times ({ratio.min():.2f} to {ratio.max():.2f})")
equal_batch = float(np.median(rate[reduced, big] / rate[torch.float32, big]))
print(f"training, {session.size} px, {device}, {torch.get_num_threads()} threads,", end=" ")
print(f"PyTorch {torch.__version__}, {session.turns} turns")

# %% [markdown]
# On a CPU, a ratio below 1 usually means emulated bfloat16, or other programs on the same cores. Publish that last line, plus batch, precision and hardware, with every rate.
#
# ## A benchmark tool
#
# `rn50 benchmark` warms up, synchronises, takes harmonic means over epochs and records its settings. It has the flags of NVIDIA's `benchmark.py`: lists of workers and batches, `-i` iterations per epoch, `-e` epochs, `-w` warm-up epochs to discard. It reports **Total IPS**: the global batch divided by the mean iteration time, input and computation together, excluding the first iteration of each epoch.
#
# The published tables show Total IPS on *real* records. So measure with real images, and add a second column for synthetic images, which need no input pipeline. A **sweep** has a **cell** for each worker count and batch; the first sweep's last batch deliberately exceeds the data set. **Predict:** how much faster is training on synthetic images than on real ones, and what should the report say about the batch that is too large?

# %% language="bash" magic_args="-e"
# common="-i $ITERATIONS -e $EPOCHS -w 1 --no-val --image-shape $SIZE --dtype float32"
# common="$common $NETWORK --threads $CORES --data-nthreads $CORES"
# rn50 benchmark $common -n $SWEEP -b $SMALL,$BIG,100000 --data-root "$DATA" -o real.json \
#   > real.txt 2>&1 || status=$?
# grep -A 99 'total_ips, images' real.txt || cat real.txt  # the tables; the file has the log, too
# echo "rn50 benchmark exited with status ${status:-0} (expected: 1, as one cell is too large)"
# rn50 benchmark $common -n 1 -b $SMALL,$BIG --loader synthetic --num-classes 12 \
#   -o synthetic.json > synthetic.txt 2>&1 || (cat synthetic.txt; exit 1)

# %%
sweeps = {kind: json.loads(Path(f"{kind}.json").read_text()) for kind in ("real", "synthetic")}
cells = {
    kind: {
        (int(n), int(b)): cell["train.total_ips"]
        for n, row in sweep["metrics"].items()
        for b, cell in row.items()
    }
    for kind, sweep in sweeps.items()
}
real = cells["real"]
rows = [
    [n, b, rate, cells["synthetic"].get((n, b)), rate and rate / real[1, b]]
    for (n, b), rate in real.items()
]
columns = ["workers", "batch", "real images", "synthetic", "weak scaling, real"]
workshop.table(
    rows, columns, f"Total IPS, images/s: {sweeps['real']['model']}, {session.size} px, float32"
)
gap = 100 * (1 - real[1, big] / cells["synthetic"][1, big])
print(f"one worker, batch {big}: switching to real images changes the rate by {-gap:+.0f}%")

# %% [markdown]
# If real images are much slower, you measured your input pipeline; otherwise you measured the network. On a CPU, two workers may be slower than one.
#
# Published Total IPS of a DGX-1 (8 V100s) with NVIDIA's MXNet container 18.12:
#
# | GPUs | FP16, batch 208 | weak scaling | FP32, batch 96 | weak scaling | FP16/FP32 |
# |---:|---:|---:|---:|---:|---:|
# | 1 | 1442.6 | 1.00 | 400.2 | 1.00 | 3.60 |
# | 4 | 5391.8 | 3.74 | 1558.6 | 3.89 | 3.46 |
# | 8 | 10263.2 | 7.11 | 2957.4 | 7.39 | 3.47 |
#
# ```bash
# python benchmark.py -n 1,4,8 -b 208 --dtype float16 \
#   -o benchmark_report_fp16.json --data-root <path to imagenet> \
#   -i 100 -e 12 -w 4 --num-examples 25600
# python benchmark.py -n 1,4,8 -b 96 --dtype float32 \
#   -o benchmark_report_fp32.json --data-root <path to imagenet> \
#   -i 100 -e 12 -w 4 --num-examples 12800
# ```
#
# **These runs did not use Horovod:** one process drove all GPUs through MXNet's kvstore `device`.
#
# ## Three mistakes of benchmark programs
#
# ### 5. A failed cell counted as a result
#
# For the batch that is too large, your report has `null` and the reason; NVIDIA's program writes `NaN`, which is not valid JSON. `rn50 benchmark` exited with 1, so a script notices the failure. Counted as 0, the failure makes the harmonic mean 0:

# %%
rates = [rate for (n, _), rate in real.items() if n == 1]
measured = [rate for rate in rates if rate is not None]
print(sweeps["real"]["env"]["cells"]["1"]["100000"]["reason"])
print(f"mean of what was measured:   {statistics.harmonic_mean(measured):8.1f} img/s")
print(f"mean with 0 for the failure: {statistics.harmonic_mean([*measured, 0]):8.1f} img/s")

# %% [markdown]
# ### 6. A stale report
#
# NVIDIA's benchmark starts one run per cell, ignores the exit status, and reads the report file. Suppose the run fails and yesterday's report is still there:

# %% language="bash" magic_args="-e"
# echo '{"metrics": {"train.total_ips": [1442.6]}}' > report.json  # yesterday's
# rn50 run --load-epoch 7 --model-prefix no-such-model --report report.json 2>&1 || status=$?
# python -c 'import json; print("read:", json.load(open("report.json"))["metrics"])'
# echo "but the run ended with exit status $status"

# %% [markdown]
# So give each cell its own folder, and accept a figure only if *this* run wrote it and exited with 0.
#
# ### 7. A loader that restarts inside the timed iterations
#
# In the published commands, `--num-examples 25600` sets the length of the DALI iterator. How many of an epoch's 100 iterations does that cover?

# %%
for precision, images, batch in (("FP16", 25_600, 208), ("FP32", 12_800, 96)):
    lasts = {n: images / (batch * n) for n in (1, 4, 8)}
    counts = (f"{n} GPU{'s' * (n > 1)}: {it:.1f} iterations" for n, it in lasts.items())
    print(f"{precision}, {', '.join(counts)}")

# %% [markdown]
# With one GPU, the data outlasts the 100 iterations. With eight GPUs in FP16, it ends after 15.4, so the program restarts the loader about six times during the 100 timed iterations. **This is an inference from the source code of that release; the cost of a reset has not been published.** It may be part of the weak-scaling loss in the table.
#
# What does a restart cost here? The next cell takes 30 batches from PyTorch's `DataLoader`, first from a data set of 10 batches, then from one that is large enough. (This loader spends most of a restart starting processes, which `persistent_workers=True` avoids, so it shows the effect, not its size on a DGX-1.)

# %%
from PIL import Image
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    """JPEG files as small images."""

    def __init__(self, files):
        self.files = files

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        image = Image.open(self.files[i]).convert("RGB").resize((64, 64))
        return torch.from_numpy(np.array(image))


def loader_rate(files, batch=8, count=30):
    """Return the images per second of `count` batches; the first batch is not timed."""
    loader = DataLoader(Photos(files), batch, num_workers=2)
    batches = iter(loader)
    next(batches)
    begin = time.perf_counter()
    for _ in range(count):
        if next(batches, None) is None:  # out of images: restart, inside the timed loop
            batches = iter(loader)
            next(batches)
    return batch * count / (time.perf_counter() - begin)


files = sorted(Path(session.data_root, "train").glob("*/*.jpg"))[:80]
pairs = [(loader_rate(files), loader_rate(4 * files)) for _ in range(3)]  # in turns
lost = 100 * np.median([1 - short / long for short, long in pairs])
print("img/s with restarts and without: {:.0f} and {:.0f}".format(*np.median(pairs, axis=0)))
print(f"the restarts cost {lost:.0f}% (median of the 3 turns' losses)")

# %% [markdown]
# `rn50 benchmark` ends an epoch when the data ends and does not time an epoch's first iteration, so it never counts a restart.
#
# ## Weak and strong scaling
#
# In **weak scaling**, each worker keeps its batch, so the global batch grows. In **strong scaling**, the workers share a fixed batch, so each computes less per step but exchanges just as many gradients. **Predict both** for your workers:

# %% language="bash" magic_args="-e"
# export OMP_NUM_THREADS=$CORES
# python bench.py --batches $BIG --size $SIZE --steps $STEPS > one.json
# torchrun --standalone --nproc-per-node $WORKERS bench.py --batches $BIG $SHARE \
#   --size $SIZE --steps $STEPS > together.json

# %%
report = json.loads(Path("together.json").read_text().splitlines()[-1])
single = json.loads(Path("one.json").read_text().splitlines()[-1])
one = big / np.mean(single["seconds"][str(big)][half:])
weak, strong = (
    workers * b / np.mean(report["seconds"][str(b)][half:]) for b in (big, big // workers)
)
print(f"1 worker, batch {big}, {os.environ['CORES']} thread(s): {one:.1f} img/s")
print(f"weak, {workers} workers with {big} each: {weak:.1f} img/s, {weak / one:.2f} times")
print(f"strong, {workers} workers share {big}: {strong:.1f} img/s, {strong / one:.2f} times")
if sweep := real.get((workers, big)):
    print(f"the sweep above: {sweep / real[1, big]:.2f} times; it also reads images, and", end=" ")
    print("rn50 uses Horovod if it can; bench.py uses DDP")
if workers > gpus > 0:
    print(f"{workers} workers share {gpus} GPU here, so they cannot be much faster than one")

# %% [markdown]
# ## A model of a step
#
# To predict the speed of GPUs you do not have, you need a model. The two classics are:
#
# - **Amdahl's law**: a share *s* of a fixed amount of work cannot be parallelised. The speed-up of *n* workers is 1 / (*s* + (1 − *s*) / *n*).
# - **Alpha-beta**: a message takes a latency *α* plus its size divided by the bandwidth *B*. In a ring all-reduce, each worker sends 2 (*n* − 1) messages of 1/*n* of the *S* bytes of gradients, so a step takes *compute* + 2 (*n* − 1) (*α* + *S* / (*n B*)).
#
# Fit *α* and *B* to the all-reduces that `bench.py` timed, add the predicted time to the step of one worker, and compare with the measured step.

# %%
size, seconds = np.array(report["all_reduce"]).T
messages = 2 * (workers - 1)
line = np.column_stack([np.full_like(size, messages), messages * size / workers])
# divide by the seconds, so that the short messages count as much as the long ones
alpha, per_byte = np.linalg.lstsq(line / seconds[:, None], np.ones_like(size), rcond=None)[0]
alpha = max(alpha, 0)  # noise may make it negative
gradients = 4 * sum(weight.numel() for weight in model.parameters())
exchange = messages * (alpha + per_byte * gradients / workers)
predicted = workers * big / (big / one + exchange)
own_error = 100 * (predicted / weak - 1)
print(f"alpha {1e6 * alpha:.0f} µs, bandwidth {1e-9 / per_byte:.2f} GB/s;", end=" ")
print(f"{gradients / 1e6:.0f} MB (12 classes) take {1000 * exchange:.0f} ms of a step of", end=" ")
print(f"{1000 * workers * big / weak:.0f} ms")
print(f"predicted {predicted:.1f} img/s, measured {weak:.1f}: {own_error:+.0f}%")

# %% [markdown]
# The model leaves out two things. DDP overlaps the exchange with the backward pass, so the prediction may be too low. Workers that share memory, caches or a GPU each compute more slowly than alone, so it may be too high; on a CPU or one shared GPU, this second effect usually dominates.
#
# ### Compare with published results
#
# The first line below solves Amdahl's law for *s* with the DGX-1 row for 4 GPUs. The table compares five models:
#
# - **perfect**: *n* GPUs are *n* times as fast.
# - **wires only**: alpha-beta with NCCL's latencies and bandwidths, overlapped with the backward pass. (It assumes 2 bytes per gradient for mixed precision, 4 otherwise.)
# - **Amdahl**, **stragglers** (wires, plus varying step times: all wait for the slowest) and **communication** (no overlap, and only part of the bandwidth) each have one parameter, fitted to smaller runs (for the A100s, to V100 runs).
#
# The table's rows were not used for fitting. They come from NVIDIA (DGX-1, 8 V100s; DGX A100, 8 A100s) and OneFlow's benchmark DLPerf (4 hosts of 8 V100s). *Mixed* is mixed precision. **Predict:** which model is closest, and how large is its error?

# %%
from workshop.lessons import nb08

dgx = {n: session.results[f"published.v100.{n}gpu.fp16.ips"].value for n in (1, 4, 8)}
serial = (4 / (dgx[4] / dgx[1]) - 1) / 3
eight = dgx[1] / (serial + (1 - serial) / 8)
print(f"DGX-1, FP16: s = {100 * serial:.1f}%; Amdahl gives 8 GPUs {eight:,.0f} img/s", end=" ")
print(f"(published {dgx[8]:,.0f}: {100 * (eight / dgx[8] - 1):+.1f}%)")

models = ("perfect", "wires only", "Amdahl", "stragglers", "communication")
rows = nb08.held_out(*models)
columns = ["publication, precision", "GPUs", "published img/s", *(f"{name}, %" for name in models)]
workshop.table(rows, columns, "Held-out rows and the error of each model's prediction, in per cent")
errors = np.abs([row[3:] for row in rows])
for name, mean, worst in zip(models, errors.mean(axis=0), errors.max(axis=0), strict=True):
    print(f"{name:13} {mean:4.1f}% off on average, {worst:4.1f}% at most")

# %% [markdown]
# Bandwidth and latency alone explain almost none of the loss. Amdahl's law, meant for strong scaling, is mostly too pessimistic. The last two models are within a few per cent on average, although they assume different causes. Rates alone cannot tell you *why* a step takes longer. Before you buy a faster network, measure the exchange and the input separately.
#
# ## How long would training take?
#
# **Predict** the hours and the cost of 90 epochs of ImageNet on 8, 64 and 512 of the GPUs set in the first code cell. `rn50 scale` uses the straggler model, with PyTorch's 4 bytes per gradient. `--network nvlink+100g` means hosts of 8 GPUs joined by NVLink, with 100 Gbit/s between hosts.

# %% language="bash" magic_args="-e"
# rn50 scale --gpus 1,8,64,512 --compute-ips $IPS --batch $GPU_BATCH --dtype float16 \
#   --network nvlink+100g --price $PRICE

# %%
rows, causes = [], ("stragglers", "communication")
for n in (64, 512):
    for scaling, images in (("weak", gpu_batch), ("strong", max(1, 8 * gpu_batch // n))):
        percent = [100 * nb08.efficiency(n, cause, images, ips) for cause in causes]
        rows.append([n, scaling, images, *percent])
columns = ["GPUs", "scaling", "batch per GPU", *(f"cause: {cause}" for cause in causes)]
workshop.table(rows, columns, "Efficiency in %, with 2 bytes per gradient as on the DGX-1")

# %% [markdown]
# Both causes are extrapolated from one DGX-1, and their gap shows how uncertain that is. DLPerf's 32 V100s reached 69% (mixed), in between. For strong scaling, the global batch is about that of 8 GPUs. Both assume that a GPU is equally fast at every batch size; small batches are slower, so strong scaling will be worse.
#
# ## Time to accuracy
#
# Images per second matter only if the network learns. Do the published speeds explain the published hours?

# %%
published = {name: item.value for name, item in session.results.items() if "v100" in name}
inference = published["published.v100.1gpu.fp16.inference_ips"]  # batch 208 (notebook 07)
print("GPUs  90 epochs at Total IPS  validation  published  top-1   (FP16)")
for n in (1, 4, 8):
    of = f"published.v100.{n}gpu.fp16"
    hours = 90 * 1_281_167 / published[f"{of}.ips"] / 3600
    validation = 90 * 50_000 / (inference * n) / 3600
    print(f"{n:4} {hours:20.2f} h {validation:11.2f} h {published[f'{of}.hours']:8.1f} h", end="")
    print(f" {published[f'{of}.top1']:7.2f}%")

# %% [markdown]
# Almost. Validation accounts for at most half of the difference. But weak scaling changes the training: with 208 images on each of 512 GPUs, a step processes 106,496 images. With a linearly scaled learning rate and five epochs of warm-up, how much accuracy does a batch of 65,536 lose? **Predict** it. Goyal et al. ran each batch size five times:

# %%
goyal = {
    int(key.split(".")[2]): (100 - item.value, item.spread)
    for key, item in session.results.items()
    if key.startswith("published.batch.")
}
batches = sorted(goyal)
top1, spread = np.array([goyal[b] for b in batches]).T
fig, ax = plt.subplots(figsize=(10, 3), layout="constrained")
ax.errorbar(batches, top1, yerr=spread, fmt="o-", capsize=4)
ax.set_xscale("log", base=2)
ax.set_xticks(batches, [f"{b:,}" for b in batches], rotation=30)
ax.set(title="ResNet-50 on ImageNet, 90 epochs: mean and standard deviation of 5 runs, published")
ax.set(xlabel="global batch", ylabel="top-1, %")
finding = f"{goyal[8192][0]:.2f}% at batch 8,192, {goyal[65536][0]:.2f}% at 65,536"
workshop.figure(fig, alt=f"Top-1 accuracy by global batch. {finding}.")
ffcv = session.results["published.minutes.ffcv.8"]
print(f"{finding} ({session.results['published.batch.8192.error'].source})")
print(f"76.6% with a different recipe: {ffcv.value} minutes on {ffcv.hardware} ({ffcv.source})")

# %% [markdown]
# Up to about 8,192 images, the plain recipe loses almost nothing. If more GPUs would push the batch beyond that, either give each a smaller batch (strong scaling) or change the recipe. The FFCV run above does so even on 8 GPUs: 32 epochs, smaller images at first, and validation averaged over flips.
#
# ## The ladder
#
# The last rung of your script, `5_tuned`, trains the same network. It changes the images' memory layout and lengthens DALI's queue. On a CPU, it also sets the threads per process; on a GPU, it lets cuDNN choose the fastest kernels and sends the gradients as 16-bit numbers.

# %%
from workshop import ladder

ladder.changes("5_tuned")

# %% [markdown]
# Type the changes into `runs/train.py`. Which of them can matter on *your* device? Replace the factor below with **your prediction**, then run every rung, with `nvidia-smi dmon` or `htop` open. For the last rung, your `train.py` runs if it has Horovod or DDP, DALI, autocast and at least one of these settings; other rungs use finished scripts.

# %%
ladder.predict("5_tuned", 1.2)  # your number: images/s over those of the rung before
ranks = min(workers, gpus or workers)
sizes = {"image_size": session.size, "batch_size": session.rung_batch}
sizes |= {"steps": session.rung_steps, "warm_up": session.rung_warm_up}
sizes |= {"workers": max(1, cores // ranks)}
rungs, dali = {}, workshop.has("nvidia.dali")
for rung in session.rungs.split():
    if rung >= "3" and not dali:
        continue
    count = 1 if rung == "1_single" else ranks
    rungs[rung] = ladder.climb(rung, ranks=count, own=rung == "5_tuned", **sizes)
print("rung          img/s    ms per step: input, compute, communication")
for rung, found in rungs.items():
    parts = [found.get(f"{part}_ms", 0) for part in ("input", "compute", "communication")]
    print(f"{rung:11} {found.get('images_per_s', 0):7.1f}", "".join(f"{ms:9.1f}" for ms in parts))
ladder.figure()

# %% [markdown]
# Black diamonds are your predictions. How many were within 20%? On a CPU, `climb` has already set the threads, so the last rung may gain nothing. Your next change should target the largest part of its bar. DDP exchanges gradients inside `backward()`, so its script cannot time them separately.
#
# Each rung ran once, so small differences are noise.
#
# ## Your numbers

# %% tags=["results"]
session.note(
    "first_step", float(took[0] / np.median(took[half:])), "times", "first step over a warm one"
)
session.note("equal_batch", equal_batch, "times", f"{str(reduced)[6:]} over float32, equal batch")
session.note("real_ips", real[1, big], "img/s", f"Total IPS, real images, batch {big}")
session.note("weak_scaling", weak / one, "times", f"{workers} workers over one, float32")
session.note("own_error", own_error, "%", "error of the alpha-beta model on this machine")
best_batch = np.median(rate[reduced, big] / rate[torch.float32, small])
own = f"{best_batch:.2f}", f"{100 * weak / one / workers:.0f}", f"{abs(own_error):.0f}"
labels = (f"{str(reduced)[6:]} over float32, best batch, times", f"weak-scaling efficiency, {workers} workers, %",
          "error of the step model, %")  # fmt: skip
there = (
    f"{dgx[1] / session.results['published.v100.1gpu.fp32.ips'].value:.2f} (V100, FP16)",
    f"{100 * dgx[8] / 8 / dgx[1]:.0f} (8 V100, FP16)",
    f"{errors.mean(axis=0).min():.0f} (best model)",
)
workshop.table(zip(labels, own, there, strict=True), ["", "yours", "for comparison"])

# %% [markdown]
# ## Key takeaways
#
# - State workers, batch, precision, size, hardware, versions and command with every rate.
# - Warm up, synchronise, take harmonic means of rates, take turns, and show the median and range.
# - A failed cell is neither 0 nor yesterday's number. Check what happens inside the timed loop.
# - A fitted model came within a few per cent on average. It cannot tell you where the time goes.
# - The goal is time to accuracy, not images per second.
#
# **Try it:** set your GPU's speed and batch, rerun the first two code cells, then "How long would training take?".
#
# Exercises passed so far:

# %%
workshop.summary()
