# %% [markdown]
# # ex03 · Several ranks
#
# In these exercises, you train one model on two ranks with your own shard function, fix a wrong accuracy, measure in a trace what communication costs, and turn a single-process script into one for several ranks.
#
# **Time:** 52 minutes · **Needs:** notebook 03 · **On a CPU:** about two minutes to run
#
# Replace `...` in a cell, run it, then run the check below it. Stuck? `workshop.hint("ex03.shard")` gives the next of three hints, `workshop.solution("ex03.shard")` a solution.
#
# Some answers run in separate processes, which cannot see the rest of this notebook. So each answer must import what it needs, for example `import numpy as np`.

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

# %%
import workshop

session = workshop.start("ex03", profile)

# %% [markdown]
# ## ex03.shard · Different images for every rank
#
# *fill in · medium · 10 minutes*
#
# All ranks have the same `order`, a NumPy array with the indices of all images, shuffled for the epoch. Write `shard(order, rank, size, batch)`, which returns the indices that one rank reads, as an array of shape `(steps, batch)`. There are `size` ranks; `batch` is the batch size per rank.
#
# - In each step, the ranks together take the next `G = size · batch` images of the order: step `s` takes `order[s·G : (s+1)·G]`.
# - Of those `G` images, rank `r` takes numbers `r·batch` to `(r+1)·batch − 1`.
# - All ranks take `len(order) // G` steps. The remaining images are dropped.


# %% tags=["answer", "ex03.shard"]
def shard(order, rank: int, size: int, batch: int):
    """Return the images of one rank, an array of shape (steps, batch)."""
    ### BEGIN SOLUTION
    steps = len(order) // (size * batch)
    table = order[: steps * size * batch].reshape(steps, size, batch)
    return table[:, rank]
    ### END SOLUTION


# %% tags=["check", "ex03.shard"]
workshop.check("ex03.shard", shard)

# %% [markdown]
# Your reward: two ranks train, and your function decides what they read. `workshop.use` writes your cell to `answers/ex03.py`, and the ranks import it from there. The run takes a few seconds and prints a line per epoch; two epochs are too short to learn much.

# %%
run = workshop.use(shard=shard)

# %% [markdown]
# ## ex03.sums · A wrong accuracy
#
# *find the bug · medium · 10 minutes*
#
# Two ranks validate 40 images. Rank 0 has 32 of them and gets 24 right; rank 1 has 8 and gets 2 right. That is 26 of 40, or 65%. The function below returns 50% ([the result would depend on the number of GPUs](../docs/troubleshooting.md#validation-accuracy-depends-on-the-number-of-gpus)). Run it and find out why.
#
# Each rank calls it with `sums`, a tensor of four numbers: the sum of its losses, its number of top-1 hits, its number of top-5 hits, and its number of images.


# %%
def broken_sums(sums):
    """Return loss, top1 and top5 (percent) over all ranks. Something is wrong here."""
    import torch.distributed as dist

    means = sums[:3] / sums[3]
    dist.all_reduce(means)
    loss, top1, top5 = (means / dist.get_world_size()).tolist()
    return {"loss": loss, "top1": 100 * top1, "top5": 100 * top5}


from workshop.checks import process_ranks

# two processes, one for each row of sums
two = {"size": 2, "sums": [[64.0, 24, 30, 32], [16.0, 2, 6, 8]]}
for rank, found in enumerate(process_ranks.together(broken_sums, "metrics", [two])[0]):
    print(f"rank {rank}: {found}")

# %% [markdown]
# Copy it into the next cell as `metric_sums` and fix it. It must also work if a rank has no images; if no rank has any, all three metrics are `None`. All ranks must return the same result, and `sums` must not change.


# %% tags=["answer", "ex03.sums"]
def metric_sums(sums):
    """Return loss, top1 and top5 (percent) over all ranks; None if there are no images."""
    import torch.distributed as dist

    ### BEGIN SOLUTION
    total = sums.clone()  # all_reduce works in place
    dist.all_reduce(total)
    loss, top1, top5, images = total.tolist()
    if not images:
        return {"loss": None, "top1": None, "top5": None}
    return {"loss": loss / images, "top1": 100 * top1 / images, "top5": 100 * top5 / images}
    ### END SOLUTION


# %% tags=["check", "ex03.sums"]
workshop.check("ex03.sums", metric_sums)

# %% [markdown]
# ## ex03.exposed · The exchange that a step waits for
#
# *fill in · medium · 12 minutes*
#
# Communication is *hidden* while something else is computed. Write `exposed(events)`, which reads this from a trace. An event is an entry of the file's `traceEvents`, a dictionary:
#
# | key | |
# |---|---|
# | `"name"` | of a GPU kernel, or of an operator on a CPU |
# | `"ts"` | its start, in microseconds (in a real trace, a large number with decimals) |
# | `"dur"` | its duration, in microseconds |
#
# An event whose name contains `nccl`, `gloo` or `c10d` (PyTorch's own operators for collectives) is **exchange**; any other is **computation**. Events may overlap and may be in any order. Return two numbers in **milliseconds**:
#
# 1. how long at least one exchange was running
# 2. how long at least one exchange but no computation was running: the *exposed* part
#
# For example, with an exchange from 0 to 5 ms, a second one from 3 to 8 ms and a convolution from 2 to 6 ms, the result is `(8.0, 4.0)`: the exchange is exposed from 0 to 2 and from 6 to 8 ms.


# %% tags=["answer", "ex03.exposed"]
def exposed(events: list[dict]) -> tuple[float, float]:
    """Return the milliseconds of the exchange, and of its part without any computation."""
    ### BEGIN SOLUTION
    edges = []  # (time, what starts or ends, +1 or -1)
    for event in events:
        sends = any(library in event["name"] for library in ("nccl", "gloo", "c10d"))
        edges.append((event["ts"], sends, 1))
        edges.append((event["ts"] + event["dur"], sends, -1))
    running, since = {True: 0, False: 0}, 0.0
    total = alone = 0.0
    for time, sends, change in sorted(edges):
        if running[True]:
            total += time - since
            if not running[False]:
                alone += time - since
        running[sends] += change
        since = time
    return total / 1000, alone / 1000
    ### END SOLUTION


# %% tags=["check", "ex03.exposed"]
workshop.check("ex03.exposed", exposed)

# %% [markdown]
# Now read a real trace: the one of three steps of DDP that notebook 03 wrote, or a recorded one if you have not run that notebook. If it was recorded on a CPU, its events are PyTorch operators and Gloo's messages instead of GPU kernels.

# %%
import json

from workshop.checks import engine, ex03

file = ex03.trace_of_notebook(session.runs)
events = [event for event in json.loads(file.read_text())["traceEvents"] if event["ph"] == "X"]
kernels = [event for event in events if event.get("cat") == "kernel"]
work = kernels or [e for e in events if e.get("cat") == "cpu_op" or "gloo" in e["name"]]
print(f"{file.name}: {len(work):,} {'kernels' if kernels else 'operators'}")
kinds = workshop.trace(file)
if not engine.unanswered(exposed):
    total, alone = (ms / 3 for ms in exposed(work))
    print(f"exchange, mean of the 3 steps: {total:.1f} ms, of which {alone:.1f} ms", end=" ")
    print(f"exposed (in the table: {kinds['exchange']:.1f} ms)")

# %% [markdown]
# If hidden communication were free, the exposed part would be the most that a faster network could save. On a CPU it is not free: it takes cores from the computation that hides it. Waiting for a slower rank also counts as exchange, and no network shortens that. If most of the exchange is exposed, first check *when* the buckets are sent.
#
# ## ex03.recipe · Recipe 1
#
# *fill in · hard · 20 minutes*
#
# Now apply notebook 03's five changes, and writing only on rank 0, to a single-process script: the 2018 talk's *recipe 1*. On the CPU, it trains a small network to distinguish two road signs, for one epoch of 96 images in batches of 4. The network without DDP must be able to load `net.pt`.


# %%
def single(data, out):
    """Train a small network for one epoch on the images in a file; write OUT/net.pt."""
    import numpy as np
    import torch
    from torch import nn

    with np.load(data) as file:
        images, labels = torch.tensor(file["images"]), torch.tensor(file["labels"])
    layers = [nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 2))
    optimizer = torch.optim.SGD(net.parameters(), lr=0.02, momentum=0.9)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    for step in range(len(order) // 4):
        chosen = order[4 * step : 4 * step + 4]
        loss = nn.functional.cross_entropy(net(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 6 == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    torch.save(net.state_dict(), f"{out}/net.pt")


from workshop.checks import recipes

data = recipes.signs(session.folder)
single(data, data.parent)

# %% [markdown]
# Copy it into the next cell as `train` and make it run on any number of ranks, with Horovod (`import horovod.torch as hvd`) or DDP (`from torch import distributed as dist`):
#
# 1. **Start** the library.
# 2. **Share** the images: each rank takes its own part of the order and runs fewer steps.
# 3. **Scale** the learning rate with the number of ranks. (Usually with a warm-up; this run, 12 steps on two ranks, is too short for one.)
# 4. **Average** the gradients.
# 5. **Broadcast** rank 0's weights, so that all ranks start with the same ones.
# 6. Write only on **rank 0**, under the same names as above.
#
# The check runs the function as a script three times: on two ranks, on one rank to compare the learning rates, and on two ranks with different seeds to compare the first weights. It reports what it observed: which ranks started, which images went into the network and which gradients into the update, whether the weights were equal, and which ranks wrote. This takes up to half a minute; `rn50 workshop try` does the same for any script.


# %% tags=["answer", "ex03.recipe"]
def train(data, out):
    """Do the same on several ranks."""
    ### BEGIN SOLUTION
    import numpy as np
    import torch
    from torch import distributed as dist
    from torch import nn

    dist.init_process_group()  # change 1
    rank, size = dist.get_rank(), dist.get_world_size()
    with np.load(data) as file:
        images, labels = torch.tensor(file["images"]), torch.tensor(file["labels"])
    layers = [nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 2))
    net = nn.parallel.DistributedDataParallel(net)  # changes 4 and 5
    rate = 0.02 * size  # change 3
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    order = order[rank::size]  # change 2
    for step in range(len(order) // 4):
        chosen = order[4 * step : 4 * step + 4]
        loss = nn.functional.cross_entropy(net(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 6 == 0 and rank == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    if rank == 0:  # change 6
        torch.save(net.module.state_dict(), f"{out}/net.pt")
    dist.destroy_process_group()
    ### END SOLUTION


# %% tags=["check", "ex03.recipe"]
workshop.check("ex03.recipe", train)

# %% [markdown]
# The talk's own script for recipe 1, with Horovod, is `exercises/recipes/slides_horovod.py`. [docs/migration.md](../docs/migration.md) ports such a script from TensorFlow to PyTorch.
