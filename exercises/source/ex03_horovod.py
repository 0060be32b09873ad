# %% [markdown]
# # ex03 · Many workers
#
# After these exercises two workers have trained one model with your own shard, and you have made a script for one GPU one for many.
#
# **Time:** 54 minutes · **Needs:** notebook 03, Horovod for the last exercise · **On a CPU:** about two minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

# %% [markdown]
# **How it works.** Replace `...` in a cell, run it, and run the check below it. A check says what is wrong and what to do. Stuck? Type `workshop.hint("ex03.shard")` into a new cell: it gives three hints, one at a time, each saying more than the last. After them `workshop.solution("ex03.shard")` shows a solution. What you have passed is kept in the folder `answers/`.
#
# Some answers train in processes of their own, which see nothing else of this notebook. So a cell imports what it needs itself, `import numpy as np` for example.

# %%
import workshop

session = workshop.start("ex03", profile)

# %% [markdown]
# ## ex03.shard · Own pictures for every rank
#
# *fill in · medium · 10 minutes*
#
# All ranks hold the same `order`, a NumPy array with the numbers of all images in the order of the epoch. Write `shard(order, rank, size, batch)`, which returns the numbers of those that one rank reads, as an array of shape `(steps, batch)`. There are `size` ranks; `batch` is the batch of each.
#
# - A step of all ranks takes the next `G = size · batch` images of the order: step `s` takes `order[s·G : (s+1)·G]`.
# - Of those, rank `r` takes the rows `r·batch … (r+1)·batch`.
# - All ranks take `len(order) // G` steps. What is left over is dropped.


# %% tags=["answer", "ex03.shard"]
def shard(order, rank: int, size: int, batch: int):
    """The images of one rank, an array of shape (steps, batch)."""
    ### BEGIN SOLUTION
    steps = len(order) // (size * batch)
    table = order[: steps * size * batch].reshape(steps, size, batch)
    return table[:, rank]
    ### END SOLUTION


# %% tags=["check", "ex03.shard"]
workshop.check("ex03.shard", shard)

# %% [markdown]
# The reward: two workers train, and what they read is what your function says. `workshop.use` writes your cell to `answers/ex03.py`, from where the workers import it. The run takes a few seconds after its start, and shows a line for each epoch; its two epochs are too short to learn much.

# %%
run = workshop.use(shard=shard)

# %% [markdown]
# ## ex03.start · The same start for all
#
# *fill in · easy · 6 minutes*
#
# Each rank has drawn weights of its own, or rank 0 has read a checkpoint. Before the first step all must have rank 0's. Horovod has `hvd.broadcast_parameters` for it, and DistributedDataParallel does it by itself; here write it once with what both are made of. `broadcast_start(model)` gets a `torch.nn.Module` and returns nothing: afterwards the model of every rank holds rank 0's numbers.
#
# | `import torch.distributed as dist` | |
# |---|---|
# | `dist.get_rank()`, `dist.get_world_size()` | who I am, and how many we are |
# | `dist.broadcast(tensor, src=0)` | overwrites `tensor`, in place, with what rank 0 has |
# | `dist.all_reduce(tensor)` | overwrites `tensor`, in place, with the sum over all ranks |
#
# The last two are conversations of all ranks: every rank must call them, in the same order. The check starts groups of 2 and 3 processes and looks at the model of each.


# %% tags=["answer", "ex03.start"]
def broadcast_start(model):
    """Rank 0's weights and running statistics in the model of every rank."""
    import torch.distributed as dist

    ### BEGIN SOLUTION
    for tensor in model.state_dict().values():
        dist.broadcast(tensor, src=0)
    ### END SOLUTION


# %% tags=["check", "ex03.start"]
workshop.check("ex03.start", broadcast_start)

# %% [markdown]
# ## ex03.sums · A wrong accuracy
#
# *find the bug · medium · 10 minutes*
#
# Two ranks validate 40 pictures. Rank 0 has 32 of them and gets 24 right, rank 1 has 8 and gets 2 right: 26 of 40, 65 %. The function below says something else: 50 %. Run it, and find out why.
#
# Each rank calls it with `sums`, a tensor of four numbers: its summed loss, how many first guesses were right, how many times the right class was among five guesses, and how many images it had.


# %%
def broken_sums(sums):
    """Loss, top1 and top5 (per cent) over all ranks. Something is wrong here."""
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
# Copy it into the next cell as `metric_sums` and mend it. Four more things should hold: a rank without any image is no problem, where there is no image on any rank all three metrics are `None`, all ranks get the same answer, and `sums` is left as it was.


# %% tags=["answer", "ex03.sums"]
def metric_sums(sums):
    """Loss, top1 and top5 (per cent) over all ranks; None where there are no images."""
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
# ## ex03.ring · What travels around the ring
#
# *predict, then measure · medium · 8 minutes*
#
# In a ring all-reduce each of `n` workers cuts its gradients into `n` chunks. It sends one chunk to its right neighbour in every step: `n − 1` steps until the sums are complete, and `n − 1` more until everybody has all of them.
#
# How much does **one** worker send in all, in multiples of the size of the gradients? Predict it for 2, 8 and 64 workers.

# %% tags=["answer", "ex03.ring"]
# A dictionary {2: …, 8: …, 64: …}: what one worker sends, in multiples of the gradients' size
### BEGIN SOLUTION
sent = {n: 2 * (n - 1) / n for n in (2, 8, 64)}
### END SOLUTION

# %% tags=["check", "ex03.ring"]
workshop.check("ex03.ring", sent)

# %% [markdown]
# Now count what notebook 03's simulation sends. Worker 1 gets everything from worker 0, so each number that changes on worker 1 was sent by worker 0.

# %%
from itertools import pairwise

import numpy as np

from workshop.lessons import nb03

for workers in (2, 8, 64):
    gradients = np.ones((workers, 640), np.float32)
    states = nb03.all_reduce(gradients)
    changed = sum((after[1] != before[1]).sum() for before, after in pairwise(states))
    print(f"{workers:2} workers: each sends {changed / 640:.3f} times the gradients")

# %% [markdown]
# ## ex03.recipe · Recipe 1
#
# *fill in · hard · 20 minutes*
#
# Everything together: a script for one GPU, and recipe 1. It trains a small network to tell two signs apart, 96 pictures in batches of 4, one epoch.


# %%
def single(data, out):
    """Trains a small network for one epoch on the pictures of a file; writes OUT/net.pt."""
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


# %%
from workshop.checks import recipes

data = recipes.signs()
single(data, data.parent)

# %% [markdown]
# Copy it into the next cell as `train` and let Horovod (`import horovod.torch as hvd`) run it on as many ranks as there are:
#
# 1. **Start** Horovod.
# 2. **Share** the pictures: each rank takes its own part of the order, and its steps with it.
# 3. **Scale** the learning rate with the number of ranks. (A warm-up belongs to it; in an epoch of 12 steps it would be over before it has begun.)
# 4. **Average** the gradients.
# 5. **Start alike**, from rank 0's weights.
# 6. **Rank 0** alone writes.
#
# The check looks at no line of it. It runs the function as a script on two ranks, and once on one rank to compare the rates. It says what passed by: who started, whose pictures went into the network, which gradients into the update, whether the weights were the same, and who wrote. That takes about half a minute; `rn50 workshop try` does the same for any script of your own.


# %% tags=["answer", "ex03.recipe"]
def train(data, out):
    """The same on many ranks, by Horovod."""
    ### BEGIN SOLUTION
    import horovod.torch as hvd
    import numpy as np
    import torch
    from torch import nn

    hvd.init()  # change 1
    with np.load(data) as file:
        images, labels = torch.tensor(file["images"]), torch.tensor(file["labels"])
    layers = [nn.Conv2d(3, 16, 3, stride=2), nn.BatchNorm2d(16), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(), nn.Linear(800, 2))
    rate = 0.02 * hvd.size()  # change 3
    optimizer = torch.optim.SGD(net.parameters(), lr=rate, momentum=0.9)
    optimizer = hvd.DistributedOptimizer(optimizer, net.named_parameters())  # change 4
    hvd.broadcast_parameters(net.state_dict(), root_rank=0)  # change 5
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    order = order[hvd.rank() :: hvd.size()]  # change 2
    for step in range(len(order) // 4):
        chosen = order[4 * step : 4 * step + 4]
        loss = nn.functional.cross_entropy(net(images[chosen]), labels[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 6 == 0 and hvd.rank() == 0:
            print(f"step {step}: loss {loss.item():.3f}")
    if hvd.rank() == 0:  # change 6
        torch.save(net.state_dict(), f"{out}/net.pt")
    ### END SOLUTION


# %% tags=["check", "ex03.recipe"]
workshop.check("ex03.recipe", train)

# %% [markdown]
# The talk's own script for recipe 1 is in `exercises/recipes`, as the slides show it.
