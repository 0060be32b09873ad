# %% [markdown]
# # 03 · Horovod
#
# After this notebook you can train one model on several GPUs with five changes, recognise what goes wrong without each of them, and estimate the gain from more workers.
#
# **Time:** 70 minutes · **Needs:** notebook 02 · **On a CPU:** about 4 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
workers: int | None = None  # workers that train together; None: one per GPU up to 8, or 2 on a CPU
batch: int | None = None  # images per worker and step
seed: int = 0  # seed of all random numbers

# %%
import os
from pathlib import Path

import rn50lib
import workshop

session = workshop.start("03", profile)
gpus = len(session.machine.gpus)
workers = workers or max(2, min(8, gpus))
ranks = min(workers, gpus or workers)  # of the rung: each needs its own GPU
batch = batch or session.batch
if workshop.ladder.library() == "horovod":
    launcher = (
        f"horovodrun -np {workers} --gloo -H localhost:{workers} --network-interface lo python"
    )
else:
    launcher = f"torchrun --standalone --nproc-per-node {workers}"
    print("Horovod is not built for PyTorch here, so PyTorch's DDP takes its place.")
os.chdir(session.folder)  # everything below is written here
os.environ |= {
    "DATA": str(session.data_root),
    "LADDER": str(Path(rn50lib.__file__).parents[1] / "exercises" / "ladder"),
    "WORKERS": str(workers),
    "LAUNCH": launcher,
    "LIBRARY": workshop.ladder.library(),
    "RANKS": str(ranks),
    "OMP_NUM_THREADS": str(max(1, session.machine.cores // workers)),
    "FLAGS": f"--image-size {session.image_size} --batch-size {batch} --steps {session.steps}",
    "LARGE": session.large,
    "TINY": f"--seed {seed} --recipe roadsigns --profile cpu --network tiny --image-shape 32"
    f" --dtype float32 --threads 1 -n 1 --num-examples {session.large_images} --no-val"
    f" -e {session.large_epochs} --lr-step-epochs {session.large_epochs}",
}
workshop.ladder.figure()

# %% [markdown]
# The first rung is your script from notebook 02. If computation takes most of its time, use more devices. But workers that train one model must exchange their gradients in every step, which adds a third part: **communication**.
#
# ## Data parallelism
#
# Give each worker the whole model and a share of the *images*. If each of two workers has half a batch, the mean of their gradients should be the gradient of the whole batch. Is it?

# %%
import torch
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
# Without batch norm they differ only by rounding. Batch norm makes a difference because each worker uses the mean and variance of its own images. That is usually acceptable; sharing them (`SyncBatchNorm`) costs two messages per layer.
#
# The workers need one average per step. The batch determines how much a worker *computes*, but the model determines how much it *sends*: 25.6 million gradients (1,000 classes), or 102 MB, whether the batch has 16 images or 256.
#
# ## The ring
#
# If all workers sent their gradients to worker 0, its link would become the bottleneck. An **all-reduce** gives every worker the sum. In a ring all-reduce, no link is busier than another: every worker cuts its gradients into as many chunks as there are workers, and sends only to its neighbour. In the *reduce-scatter*, the chunks travel around the ring and are added up; in the *all-gather*, the finished sums travel around once more. Follow chunk 0 with the step slider. Compare the megabytes at the last step with those of 8 workers.

# %%
import inspect

from workshop.lessons import nb03

nb03.explore_ring()
print(inspect.getsource(nb03.all_reduce))

# %% [markdown]
# Each worker sends `2 (n − 1) / n` times the gradients' size, always less than twice. Patarasuk and Yuan showed in 2009 that workers cannot send less, unless the network does the adding. Horovod made the ring popular ([Sergeev and Del Balso, 2018](https://arxiv.org/abs/1802.05799)).
#
# ## Recipe 1: "press the sport button"
#
# This is the first recipe of the talk behind this course, *AV Datasets & Multi-GPU Training* (2018): change only how the model is trained.
#
# **Step one: use the NVIDIA container.** Horovod is compiled against MPI and NCCL (NVIDIA's library for GPU communication); in the container, this has been done:
#
# ```
# docker run --rm -it --gpus all --ipc=host -v "$PWD":/workspace/resnet50 nvcr.io/nvidia/tensorflow:25.02-tf2-py3
# ```
#
# It has TensorFlow, for notebook 04, but no PyTorch; for this notebook, `make setup` builds Horovod. NCCL and data loaders need more shared memory than Docker's 64 MB, hence `--ipc=host`. [docs/containers.md](../docs/containers.md) describes the project's own image.
#
# **Step two: five changes.** **Predict:** what happens if a launcher (`horovodrun` or `torchrun`) starts the *unchanged* script several times?

# %% language="bash" magic_args="-e"
# set -o pipefail
# $LAUNCH "$LADDER/1_single.py" --data "$DATA" $FLAGS --batch-size 8 2> errors.txt |
#   sed 's/<stdout>:/ /' || (cat errors.txt; exit 1)  # [1] is rank 1

# %% [markdown]
# All processes report (nearly) the same loss: each runs the whole training alone, on the first GPU if there are several. There was no error, and nothing got faster. Five changes, with `import horovod.torch as hvd`, turn them into one training run:
#
# 1. **Start, and pick a device.** After `hvd.init()` a process knows its number, the **rank** (`hvd.rank()`), and the number of processes, the **size**. The *local* rank numbers the processes on one machine; pass it to `torch.cuda.set_device`. Without that, NCCL refuses ("Duplicate GPU detected").
# 2. **Share the images.** With a `DistributedSampler`, all ranks compute the same random order and each takes its share, so nothing has to be sent. All must take the same number of steps, or a rank with one more waits forever. `sampler.set_epoch` gives each epoch a new order. Random crops should differ too: pass the rank to `torch.manual_seed`, which seeds the readers.
# 3. **Scale the learning rate** with the global batch: multiply it by `hvd.size()`.
# 4. **Average the gradients.** `hvd.DistributedOptimizer` replaces each gradient with its mean over all ranks. This is the change that costs time.
# 5. **Broadcast** rank 0's weights (`hvd.broadcast_parameters(model.state_dict(), 0)`). Averaged gradients make the same *change* on every rank, so weights stay equal only if they start equal.
#
# Only rank 0 reports and saves, and images/s counts the images of all ranks.
#
# **Your turn.** Make these changes in your `runs/train.py` before you open the solution (without Horovod, use DDP, explained below):

# %%
workshop.ladder.changes("2")

# %% [markdown]
# Copy the solution's clock (lines around `optimizer.synchronize()`): later cells need it. The exchange begins *during* `backward()`; the clock shows only the wait for the rest, including any for slower workers.
#
# **Predict** the speed-up over one worker: replace the number, then run the cell. Meanwhile, check the GPUs with `nvidia-smi dmon` or the CPU with `htop`. Until your file uses Horovod (or DDP), the finished script runs.

# %%
workshop.ladder.predict("2", 1.6)  # your number
found = workshop.ladder.climb(
    "2", ranks=ranks, image_size=session.image_size, batch_size=batch, steps=session.steps
)
print(f"{found['images_per_s']:.1f} images/s with {ranks} workers")

# %% [markdown]
# On a CPU the workers share the cores, so two can be slower than one. Is the script *correct*? The next cell shows a short run's evidence for each change; ○ means it could not tell. Only the cell above reports a missing `set_epoch`.

# %%
flags = [*os.environ["FLAGS"].split(), "--steps", 3, "--warm-up", 0]  # later flags win: a short run
flags += ["--save", "weights.pt"]  # saves the weights, to show which ranks write
hidden = {"CUDA_VISIBLE_DEVICES": ""} if gpus == 1 else {}  # two ranks cannot share a GPU
workshop.try_script(
    found["script"], "--data", session.data_root, *flags, ranks=workers, steps=3, env=hidden
)

# %% [markdown]
# Or in a terminal, in `runs`: `rn50 workshop try train.py -n 2 -- FLAGS` (`--data` needs an absolute path).
#
# ### Leave out each change
#
# The next script omits the share, the scaled rate, the broadcast and the average in turn. Its calls to `torch.distributed` show what Horovod's functions do. **Predict** which omissions you would notice from the loss. The script measures what you should check in every parallel program: how many *different* images were seen, how far the weights moved, and how much the ranks' weights differ.

# %%
# %%writefile without.py
import torch
import torch.distributed as dist
from torch.nn import functional as F

from rn50lib import resnet
from rn50lib.torch.model import ResNet

dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
images = torch.rand(240, 3, 32, 32, generator=torch.Generator().manual_seed(1))
labels = torch.arange(240) % 12


def flat(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


for without in ("nothing", "share", "rate", "broadcast", "average"):
    torch.manual_seed(rank)  # each rank starts with different weights
    model = ResNet(resnet.resnet(18, num_classes=12))
    order = torch.randperm(240, generator=torch.Generator().manual_seed(0)).tolist()
    mine = order if without == "share" else order[rank::size]
    lr = 0.002 * (1 if without == "rate" else size)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=0.9)
    if without != "broadcast":
        for tensor in model.state_dict().values():
            dist.broadcast(tensor, src=0)
    start, losses = flat(model), []
    for step in range(4):
        batch = mine[8 * step : 8 * step + 8]
        losses.append(F.cross_entropy(model(images[batch]), labels[batch]))
        optimizer.zero_grad()
        losses[-1].backward()
        if without != "average":
            for weight in model.parameters():
                dist.all_reduce(weight.grad)  # the sum over all ranks
                weight.grad /= size
        optimizer.step()
    everyone = [None] * size
    dist.all_gather_object(everyone, (mine[:32], flat(model)))
    seen = len({image for indices, _ in everyone for image in indices})
    gap = max((weights - flat(model)).abs().max().item() for _, weights in everyone)
    moved = (flat(model) - start).norm()
    if rank == 0:
        print(f"without {without:9} {seen:3} images seen, weights moved by {moved:.2f}"
              f" and differ by {gap:.1g}, loss {losses[0]:.2f} to {losses[-1]:.2f}")  # fmt: skip

dist.destroy_process_group()

# %% language="bash" magic_args="-e"
# torchrun --standalone --nproc-per-node $WORKERS without.py 2> errors.txt || (cat errors.txt; exit 1)

# %% [markdown]
# - Without the **share**, all ranks see the same images, so seven out of eight GPUs do nothing useful.
# - Without the **scaled rate**, the weights move about half as far (with two workers).
# - Without the **broadcast**, the ranks' weights differ, so the average is not the gradient of any rank's model.
# - Without the **average**, the ranks start alike and become different models.
#
# No run reported an error, and the loss of four steps on random images reveals nothing.
#
# ### The DDP version
#
# PyTorch's counterpart is `DistributedDataParallel` (DDP), with the launcher `torchrun`. The five changes are the same; wrapping the model makes changes 4 and 5. **Predict:** faster or slower than Horovod?

# %% language="bash" magic_args="-e"
# cd "$LADDER" && diff -U 1 1_single.py 2_ddp.py || true  # diff ends with 1 if the files differ

# %% language="bash" magic_args="-e"
# torchrun --standalone --nproc-per-node $RANKS "$LADDER/2_ddp.py" --data "$DATA" $FLAGS 2>&1

# %% [markdown]
# DDP's `backward()` waits for the exchange, so `compute_ms` includes it: compare images/s. It sends gradients in **buckets** of about 25 MB (the first is smaller, to start early), each as soon as its last gradient is ready. A communication hook shows when (on the CPU). **Predict:** which layers' gradients leave first?

# %%
# %%writefile overlap.py
import json
import time

import torch
import torch.distributed.nn.functional  # if imported later, the process group does not end
from torch import distributed as dist
from torch.nn.parallel import DistributedDataParallel

from rn50lib import resnet
from rn50lib.torch.model import ResNet

dist.init_process_group("gloo")
model = DistributedDataParallel(ResNet(resnet.resnet(50, num_classes=12)))
names = {weight: name for name, weight in model.module.named_parameters()}
images, sent = torch.randn(16, 3, 64, 64), []


def exchange(group, bucket):
    """Average a bucket's gradients; note when it was ready, when it arrived, size, layer."""
    ready, gradients = time.perf_counter(), bucket.buffer()
    layer = names[bucket.parameters()[0]].rpartition(".")[0]  # of its first gradient

    def arrived(future):
        sent.append((ready, time.perf_counter(), gradients.nbytes / 1e6, layer))
        return future.value()[0] / dist.get_world_size()

    return dist.all_reduce(gradients, async_op=True).get_future().then(arrived)


model.register_comm_hook(None, exchange)
for _ in range(3):  # DDP forms its final buckets after the first step
    loss = model(images).square().mean()
    sent.clear()
    start = time.perf_counter()
    loss.backward()
if dist.get_rank() == 0:
    print(json.dumps([(1e3 * (a - start), 1e3 * (b - start), *c) for a, b, *c in sorted(sent)]))
del model
dist.destroy_process_group()

# %% language="bash" magic_args="-e"
# torchrun --standalone --nproc-per-node $WORKERS overlap.py > overlap.json 2> errors.txt ||
#   (cat errors.txt; exit 1)

# %%
import json

import matplotlib.pyplot as plt

buckets = json.loads(Path("overlap.json").read_text())
computed, end = buckets[-1][0], max(arrived for _, arrived, *_ in buckets)
fig, axes = plt.subplots(figsize=(9, 2.6), layout="constrained")
axes.barh("backward", computed)
for number, (ready, arrived, megabytes, layer) in enumerate(buckets, 1):
    axes.barh(f"bucket {number}", arrived - ready, left=ready, color="#c85200")
    axes.text(arrived, number, f" {megabytes:.0f} MB, from {layer}", va="center")
axes.invert_yaxis()
axes.set(title="Backward pass and exchange of rank 0", xlabel="milliseconds")
axes.set_xlim(0, 1.4 * end)
said = (
    f"{len(buckets)} buckets; the exchange goes on for {end - computed:.0f} ms after the last"
    f" gradient, of {end:.0f} ms in all."
)
workshop.figure(fig, alt=f"DDP's buckets start during the backward pass. {said}")
print(said)

# %% [markdown]
# The backward pass starts at the last layers, so their gradients leave first. A bar includes waits for other ranks and buckets, so 10 MB can take longer than 27. Only what remains after the last gradient is *exposed*: it costs time.
#
# > **Which one, today?** Horovod's last release, 0.28.1, is from June 2023. Its scheduled CI was [switched off](https://github.com/horovod/horovod/pull/4318) in June 2026, and NVIDIA's last container with Horovod was TensorFlow 25.02. *Learn the ring and the five changes from it; start new work with DDP.* PyTorch's FSDP2 shards weights, gradients and optimizer state; use it only if they don't fit on one GPU.

# %% [markdown]
# ## What the exchange costs
#
# Each message has a fixed cost, so Horovod collects gradients too: its **fusion buffer** (`HOROVOD_FUSION_THRESHOLD`) sends many at once.
#
# A larger batch does more work per exchange, and its longer backward pass can hide more of it. With batch `b`, time per image `c` and lost time per step `o`, the efficiency is `b c / (b c + o)`. (On shared cores, workers also slow each other's computation, so your speed-up is lower.) With your numbers:

# %%
lost = found.get("communication_ms", 20.0)
timed = "measured" if "communication_ms" in found else "assumed: this script does not time it"
print(f"exposed communication: {lost:.0f} ms per step ({timed})")
per_image = found["compute_ms"] / batch
for size in (8, 16, 32, 64, 128, 256):
    print(f"batch {size:3} per worker: {100 * size * per_image / (size * per_image + lost):.0f}%")
efficiency = 100 * batch * per_image / (batch * per_image + lost)
os.environ["TWICE"] = str(2 * batch)
expected = 100 * 2 * batch * per_image / (2 * batch * per_image + lost)

# %% [markdown]
# Does the formula hold for twice the batch? Measure it:

# %% language="bash" magic_args="-e"
# set -o pipefail
# rm -f twice.json
# test $LIBRARY = ddp || $LAUNCH "$LADDER/2_horovod.py" --data "$DATA" $FLAGS \
#   --batch-size $TWICE --report twice.json 2> errors.txt | sed 's/<stdout>:/ /' ||
#   (cat errors.txt; exit 1)

# %%
if Path("twice.json").exists() and "communication_ms" in found:
    twice = json.loads(Path("twice.json").read_text())
    both = twice["compute_ms"] + twice["communication_ms"]
    measured = 100 * twice["compute_ms"] / both
    print(f"batch {2 * batch}: {measured:.0f}% measured, {expected:.0f}% by the formula;", end=" ")
    print(f"{twice['communication_ms']:.0f} ms exposed")
    compute, exposed = twice["compute_ms"] / found["compute_ms"], twice["communication_ms"] / lost
    print(f"Computation took {compute:.2f} times as long (the formula assumes 2), and", end=" ")
    print(f"exposed communication {exposed:.2f} times (the formula assumes 1).")
    if compute <= 1:
        print("On one CPU thread, PyTorch can choose slower algorithms for small batches.")
    elif compute < 1.8:
        print("Each step also reads and updates all weights, whatever the batch.")
    if exposed > 1.2:
        print("The clock counts the wait for a slower worker as communication.")

# %% [markdown]
# ### The published figures
#
# NVIDIA's *ResNet-50 v1.5 for MXNet* reports weak scaling: the same batch per GPU on 1, 4 and 8 GPUs of a DGX-1. The batch was 208 in FP16 and 96 in FP32 (notebook 08 has the commands). **Predict:** which precision scales better?

# %%
for precision in ("fp32", "fp16"):
    ips = {n: session.results[f"published.v100.{n}gpu.{precision}.ips"].value for n in (1, 4, 8)}
    shares = ", ".join(f"{n} GPUs {100 * ips[n] / n / ips[1]:.1f}%" for n in (4, 8))
    step = {n: 1000 * (96 if precision == "fp32" else 208) * n / ips[n] for n in ips}
    print(f"{precision.upper()}: {shares}; 8 GPUs lose {step[8] - step[1]:.0f} of {step[8]:.0f} ms")

# %% [markdown]
# FP16 computes faster, so about the same lost time becomes a larger share. The figures do not show where the time is lost, and were not measured with Horovod: one process drives all GPUs, and MXNet's kvstore `device` adds the gradients.
#
# ## Interconnects
#
# The talk divides a step into two phases. Images go over PCIe, from the CPU to each GPU; gradients go over NVLink, from GPU to GPU. The links are separate, so the next images can arrive while the gradients travel.

# %%
fig = nb03.draw_phases()
workshop.figure(
    fig,
    alt="Four GPUs: images reach them over PCIe switches, gradients travel in a ring over NVLink.",
)

# %% language="bash" magic_args="-e"
# command -v nvidia-smi > /dev/null && nvidia-smi topo -m || echo "no NVIDIA driver here"

# %% [markdown]
# With GPUs, the matrix names the link between each pair: `NV2` means two NVLinks, `PIX` and `PXB` PCIe switches, `PHB` and `NODE` a path through one CPU, and `SYS` through two. A ring is as fast as its slowest link. On a cluster, run once with `NCCL_DEBUG=INFO` and look for `via`: you want `P2P` inside a machine and `NET/IB`, not `NET/Socket`, between machines with InfiniBand.
#
# ## A larger batch
#
# Eight workers with 16 images each take steps of 128 images, so an epoch has an eighth of the steps. The learning rate depends on the global batch, not on the number of workers, so *one* worker with 128 images shows the same effect, batch norm aside. Compare four runs of a tiny network:

# %% language="bash" magic_args="-e"
# run() {  # name, then flags; --lr is for a batch of 256: 1.6 is 0.1 at 16
#   case " $LARGE " in *" $1 "*) ;; *) return 0 ;; esac
#   echo "$1: ${*:2}"
#   rn50 run --data-root "$DATA" $TINY --report "$1.json" "${@:2}" 2>&1 | tail -n 2
# }
# set -o pipefail
# rm -f {small,unscaled,no_warmup,warmup}.json
# run small     -b 16  --lr 1.6 --warmup-epochs 0
# run unscaled  -b 128 --lr 0.2 --warmup-epochs 0   # the same rate, an eighth as many steps
# run no_warmup -b 128 --lr 1.6 --warmup-epochs 0   # eight times the rate, from the first step
# run warmup    -b 128 --lr 1.6 --warmup-epochs 4   # climbs to the same rate over four epochs

# %%
import numpy as np

plt.style.use("tableau-colorblind10")
fig, axes = plt.subplots(figsize=(9, 3.4), layout="constrained")
titles = {"small": "batch 16", "unscaled": "128, rate not scaled",
          "no_warmup": "128, scaled, no warm-up", "warmup": "128, scaled, warm-up"}  # fmt: skip
ends = {}
for (name, title), style in zip(titles.items(), ("C0o-", "C1s--", "C5^:", "C3D-."), strict=True):
    if (file := Path(f"{name}.json")).exists():
        losses = json.loads(file.read_text())["metrics"]["train.loss"]
        axes.plot(range(1, len(losses) + 1), losses, style, label=title)
        ends[name] = losses[-1]
axes.axhline(np.log(12), color="grey", lw=1, label="guessing")
axes.set(title="The same images in larger steps", xlabel="epoch", ylabel="training loss, nats")
axes.xaxis.get_major_locator().set_params(integer=True)
axes.legend()
said = ", ".join(f"{titles[name]} {loss:.2f}" for name, loss in ends.items())
workshop.figure(fig, alt=f"Training loss of runs with larger batches; at the end: {said}.")
session.expect({f"horovod.large_batch.{name}": ends.get(name) for name in titles})

# %% [markdown]
# Averaged over ten recorded seeds, the unscaled run ends at the loss of guessing (2.48), the scaled one without warm-up slightly below. With warm-up, the loss may first rise, but then comes closest to the small batch's, in an eighth of the steps. [Goyal et al. (2017)](https://arxiv.org/abs/1706.02677) reached almost the same ImageNet accuracy with ResNet-50 at a batch of 8,192 (23.74% error) as at 256 (23.60%).
#
# ## TensorFlow and `mpirun`
#
# TensorFlow has three traps:
#
# - `image_dataset_from_directory(...).shard(n, rank)` decodes and shuffles all images and *then* takes a share, so every rank decodes everything. Shard the list of files first.
# - Horovod's Keras integration was written for Keras 2. Under Keras 3 the gradients are **not averaged**, and there is no warning. Install `tf-keras` and set `TF_USE_LEGACY_KERAS=1`, or write the loop yourself with `tf.GradientTape` and `hvd.grouped_allreduce`.
# - `MultiWorkerMirroredStrategy` fails under Keras 3 ([keras#20585](https://github.com/keras-team/keras/issues/20585)). Use `tf-keras`.
#
# On a cluster, MPI starts the processes. The talk's line, flag by flag:
#
# ```
# mpirun -np 8 --allow-run-as-root -H localhost:8 -bind-to none -map-by slot \
#     -x NCCL_DEBUG=INFO -x LD_LIBRARY_PATH -x PATH -mca pml ob1 -mca btl ^openib python train.py
# ```
#
# | flag | meaning |
# |---|---|
# | `-np 8` | 8 processes, one per GPU |
# | `--allow-run-as-root` | in a container you are root, which `mpirun` otherwise refuses |
# | `-H localhost:8` | the hosts, each with its number of processes: `-H a:4,b:4` for two hosts |
# | `-bind-to none` | do not bind processes to cores: each needs several to load data |
# | `-map-by slot` | fill the first host, then the next, so that consecutive ranks share a host |
# | `-x NAME`, `-x NAME=VALUE` | export an environment variable; `NCCL_DEBUG=INFO` makes NCCL print the ring it chose |
# | `-mca pml ob1` | use Open MPI's basic messaging layer, `ob1`, for MPI's own messages ... |
# | `-mca btl ^openib` | ... without InfiniBand (`^` means "not"): NCCL uses InfiniBand itself, for the gradients |
#
# `rn50 run` builds such a line (without `openib`, which Open MPI 5 removed); `--dry-run` only prints it.

# %% language="bash" magic_args="-e"
# rn50 run -n 8 --hosts a:4,b:4 --launcher mpirun --data-root "$DATA" --dry-run 2>&1 | fold -sw 100

# %% [markdown]
# ## Are two workers as accurate?
#
# Recorded full runs of notebook 02's recipe: ResNet-50 on one worker with a batch of 32, and on two with 16 each.

# %%
starts = ["torch.horovodrun", "torch.mpirun", "torch.torchrun", "tensorflow.horovodrun"]
ways = ["roadsigns.resnet50.bfloat16.top1", *(f"horovod.accuracy.{start}" for start in starts)]
session.expect(dict.fromkeys(ways))
means = [session.results[way].value for way in ways]
print(f"The means are within {max(means) - min(means):.1f} points of each other; "
      f"different seeds alone vary by ± {session.results[ways[0]].spread} points.")  # fmt: skip
workshop.ladder.figure()
session.note("ladder_2_ips", found["images_per_s"], "img/s", f"speed of {workers} workers")
if "communication_ms" in found:  # DDP's is part of its backward pass
    session.note("communication_ms", lost, "ms", "exposed communication per step")
    session.note(
        "scaling_efficiency", efficiency, "%", "computation / (computation + communication)"
    )

# %% [markdown]
# ## Key takeaways
#
# - Data parallelism needs one exchange per step: the mean of the gradients.
# - Five changes: start and pick a device, share the images, scale the rate, average, broadcast (after a resume, the optimizer's state too). Rank 0 reports and saves.
# - If one of the last four is missing, the script still runs without an error. Count the images and compare the weights.
# - Larger batches and faster links improve scaling; faster computation alone makes the lost time a larger share.
#
# **Try it:** find the bugs in `exercises/hunt/train_parallel.py` (TensorFlow; exercise `ex04.hunt` checks your answer).
#
# The talk warns here: "Your new bottleneck is likely the data pipeline now!" Notebook 04 measures it.
