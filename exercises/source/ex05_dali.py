# %% [markdown]
# # ex05 · DALI
#
# After these exercises you have built a DALI graph of your own, told in advance what it brings, and counted every validation picture once.
#
# **Time:** 36 minutes · **Needs:** notebook 05, DALI for one exercise · **On a CPU:** half a minute to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

# %% [markdown]
# **How it works.** Replace `...` in a cell, run it, and run the check below it. A check says what is wrong and what to do. Stuck? Type `workshop.hint("ex05.graph")` into a new cell: it gives three hints, one at a time, each saying more than the last. After them `workshop.solution("ex05.graph")` shows a solution. What you have passed is kept in the folder `answers/`.

# %%
import workshop
from workshop.session import ensure_data

session = workshop.start("ex05", profile)
ensure_data(session.data_root, session.profile)

# %% [markdown]
# ## ex05.bottleneck · Who waits for whom
#
# *predict, then measure · medium · 10 minutes*
#
# On a server four cores make pictures ready, and each picture takes one of them for
#
# | work | time of a core |
# |---|---|
# | decoding the JPEG | 3.2 ms |
# | resizing, mirroring, copying | 0.8 ms |
#
# The device behind them trains on 1,442.6 pictures per second, as the published V100 does. Predict:
#
# | | |
# |---|---|
# | `"in turn"` | pictures per second, where the loader stands still while the device works, and the other way round |
# | `"overlapped"` | pictures per second, where both work all the time, with a queue between them |
# | `"cores"` | how many cores there must be, so that the device of the overlapped run never waits |
# | `"half the decoding"` | pictures per second, overlapped and with four cores, where decoding takes 1.6 ms |
#
# Rates are best compared as times: a loader of `r` pictures per second takes `1 / r` seconds for each.

# %% tags=["answer", "ex05.bottleneck"]
# {"in turn": …, "overlapped": …, "cores": …, "half the decoding": …}
### BEGIN SOLUTION
rates = {
    "in turn": 1 / (1 / 1000 + 1 / 1442.6),
    "overlapped": min(1000, 1442.6),
    "cores": 6,
    "half the decoding": min(4 / 0.0024, 1442.6),
}
### END SOLUTION

# %% tags=["check", "ex05.bottleneck"]
workshop.check("ex05.bottleneck", rates)

# %% [markdown]
# Now measure. `rn50 diagnose` times your machine's loader alone, a device of that speed alone, and both together. To which of the two formulas is the third number closer? The last bit of overlap is often missing, because the loader's cores have other work too while a run is on.

# %%
from workshop.lessons import nb05

scratch = session.runs / "ex05-diagnose"
scratch.mkdir(parents=True, exist_ok=True)
patient = dict(
    data_root=str(session.data_root), data_format="files", recipe="reference", batch_size=32,
    loader="native", step=1442.6, profile=session.profile, n=1,
)  # fmt: skip
found = nb05.diagnose(scratch, "own", patient, "--seconds", session.pick(ci=0.3, cpu=2))
loader, device, both = (found["rates"][name] for name in ("loader", "compute", "both"))
print(f"In turn: {1 / (1 / loader + 1 / device):,.0f}. Overlapped: {min(loader, device):,.0f}.")
print(f"Measured: {both:,.0f} pictures per second.")

# %% [markdown]
# ## ex05.graph · A graph of your own
#
# *fill in · hard · 16 minutes*
#
# Write `graph(files, labels, rank, size)`, which adds the operators of one rank to a DALI graph, for the CPU. `files` are the paths of all JPEGs, `labels` their classes. It takes four operators, one behind the other, and the flip of a coin beside them:
#
# | operator | what it takes | what it gives |
# |---|---|---|
# | `fn.readers.file` | `files`, `labels`, `shard_id`, `num_shards`, `random_shuffle` | two nodes: the JPEG, and the label |
# | `fn.decoders.image_random_crop` | a JPEG, `random_area`, `random_aspect_ratio` | a random part, uint8, height × width × 3 |
# | `fn.resize` | pixels, `resize_x`, `resize_y` | pixels of that size |
# | `fn.random.coin_flip` | `probability` | 0 or 1, another one for each picture |
# | `fn.crop_mirror_normalize` | pixels, `mean`, `std`, `mirror`, `dtype`, `output_layout` | `(pixel − mean) / std` |
#
# - Every rank reads other pictures, in a random order: its *shard* is number `rank` of `size`.
# - A crop has 5 to 100 % of the picture's area (`1.0` is all of it), and a width of 3/4 to 4/3 of its height. Both are given as a list `[from, to]`.
# - A picture becomes 64 × 64, half of them mirrored, `types.FLOAT` (which is float32), a plane per colour: `"CHW"`.
# - The recipe's mean is 0.485, 0.456, 0.406 and its std 0.229, 0.224, 0.225, for red, green and blue from 0 to 1. The decoder's pixels reach from 0 to 255.
#
# The library leaves normalising to the training step, as notebook 05 says. This graph does all of it, as most examples that you will meet.


# %% tags=["answer", "ex05.graph"]
def graph(files, labels, rank: int, size: int):
    """Two nodes of one rank's graph: images float32 (3, 64, 64), and their labels."""
    from nvidia.dali import fn, types

    ### BEGIN SOLUTION
    jpeg, label = fn.readers.file(
        files=files, labels=labels, shard_id=rank, num_shards=size, random_shuffle=True
    )
    part = fn.decoders.image_random_crop(
        jpeg, random_area=[0.05, 1.0], random_aspect_ratio=[3 / 4, 4 / 3]
    )
    small = fn.resize(part, resize_x=64, resize_y=64)
    images = fn.crop_mirror_normalize(
        small,
        mean=[255 * 0.485, 255 * 0.456, 255 * 0.406],
        std=[255 * 0.229, 255 * 0.224, 255 * 0.225],
        mirror=fn.random.coin_flip(probability=0.5),
        dtype=types.FLOAT,
        output_layout="CHW",
    )
    return images, label
    ### END SOLUTION


# %% tags=["check", "ex05.graph"]
workshop.check("ex05.graph", graph)

# %% [markdown]
# The check has run your graph on pictures of its own making, whose colours say where in the picture a pixel was. Here are road signs, decoded, cropped and mirrored by your graph; only the normalisation is undone, so that you see colours.

# %%
from workshop.checks import ex05_graph

ex05_graph.show(graph, session.data_root)

# %% [markdown]
# ## ex05.exact · Every picture once
#
# *fill in · medium · 10 minutes*
#
# In validation nothing may be dropped and nothing counted twice. With `pad_last_batch=True` DALI's reader does this:
#
# - Of `N` pictures rank `r` of `size` gets those with the numbers `r·N // size … (r+1)·N // size`, the last one not included. So some ranks have one more than others.
# - All ranks make the same number of batches, enough for the rank with the most pictures.
# - All batches are full. What is missing is filled up with the rank's last picture, over and over, if need be for a whole batch.
#
# Take 27 pictures, two ranks and a batch of 8:
#
# | | batch 0 | batch 1 |
# |---|---|---|
# | rank 0 | 0 … 7 | 8 … 12, and 12 three times more |
# | rank 1 | 13 … 20 | 21 … 26, and 26 twice more |
#
# Write `valid(images, rank, size, batch)`: for each batch of a rank, how many of its rows count. Here it gives `[8, 5]` for rank 0 and `[8, 6]` for rank 1.


# %% tags=["answer", "ex05.exact"]
def valid(images: int, rank: int, size: int, batch: int) -> list[int]:
    """How many rows of each batch count, from the first batch of a rank to its last."""
    ### BEGIN SOLUTION
    mine = (rank + 1) * images // size - rank * images // size
    most = -(-images // size)
    steps = -(-most // batch)
    return [min(batch, mine - step * batch) for step in range(steps)]
    ### END SOLUTION


# %% tags=["check", "ex05.exact"]
workshop.check("ex05.exact", valid)

# %% [markdown]
# And this is what two of DALI's readers really give, cut by your numbers:

# %%
ex05_graph.show_counted(valid)

# %% [markdown]
# Dropping what does not fill a batch would have left 27 − 16 = 11 pictures out, and counting every row would have counted 5 pictures too many. An accuracy that is wrong in this way is not *far* off, which is why nobody notices.
