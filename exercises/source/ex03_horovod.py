# %% [markdown]
# # ex03 · Many workers
#
# After these exercises two workers have trained one model with your own shard, your own start and your own validation.
#
# **Time:** 34 minutes · **Needs:** notebook 03 · **On a CPU:** about a minute to run

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
# Now count the messages of notebook 03's simulation.

# %%
import numpy as np

from workshop.lessons.horovod import ring

for workers in (2, 8, 64):
    gradients = np.ones((workers, 6400), np.float32)
    _, messages = ring.all_reduce(gradients)
    first = sum(message.bytes for message in messages if message.sender == 0)
    print(f"{workers:2} workers: each sends {first / gradients[0].nbytes:.3f} times the gradients")
