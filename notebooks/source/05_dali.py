# %% [markdown]
# # 05 · DALI
#
# After this notebook, you can measure whether a training run is waiting for its input, write a DALI pipeline operator by operator, compare loaders fairly, and put DALI into your own training script.
#
# **Time:** 90 minutes · **Needs:** DALI, and your script and shards from notebooks 03 and 04 (supplied if missing) · **On a CPU:** about 3 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu

# %%
import itertools
import os
import random
import shutil
import time

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from torch.nn.functional import interpolate
from torch.utils.data import DataLoader, Dataset, RandomSampler

import workshop
from rn50lib import resnet
from rn50lib.torch.model import ResNet
from workshop.lessons import nb05

DALI = True
try:
    import nvidia.dali
    from nvidia.dali import fn, pipeline_def, tfrecord, types  # noqa: F401 - for your operators
except ImportError:
    DALI = False
    print("DALI is not installed here: its cells do nothing. On Linux, `make setup` installs it.")
try:
    import simplejpeg
except ImportError:
    simplejpeg = None  # it has no wheel for some machines
    print("simplejpeg is not installed here: its loader is left out.")

torch.multiprocessing.set_start_method("fork", force=True)  # as in notebook 02
session = workshop.start("05", profile)
cores, ranks = min(32, session.machine.cores), min(8, len(session.machine.gpus)) or 1
device = torch.device("cuda" if session.profile == "gpu" else "cpu")
workers = max(1, min(session.rung_workers, cores // ranks))  # of your script, per rank
folder = workshop.ladder.shards()  # yours, from notebook 04
os.chdir(session.folder)
shutil.copy(workshop.ladder.script("2"), "rung2.py")
os.environ |= {
    "DATA": str(session.data_root),
    "SIZES": f"--image-size {session.image_size} --batch-size {min(32, session.batch_size)}",
    "SECONDS_EACH": str(session.seconds),
    "TRACE": str(session.runs / "trace-05.json"),
}

# %% [markdown]
# ## Your own step: where is the time going?
#
# DALI cannot help if the input is not the bottleneck ([an example](https://github.com/NVIDIA/DALI/issues/1639)). So first, **cache one batch** and run the same loop on it again and again: no loader can be faster. The cached loop's speed divided by the real loop's is your **headroom**.
#
# `rn50 workshop try --headroom` times `rung2.py`, a copy of your script, in three modes that take turns: as it is, with a perfect loader, and with a perfect, instant step (all with `WORKERS=0`). Before that, it records a trace of three steps. **Predict** your headroom.

# %% language="bash" magic_args="-e"
# HEADROOM=?  # your number
# WORKERS=0
# echo "Predicted headroom: $HEADROOM"
# rn50 workshop try rung2.py --headroom --seconds $SECONDS_EACH -- \
#   --data "$DATA" $SIZES --steps 100000 --workers $WORKERS --trace "$TRACE" 2>&1

# %%
ms = workshop.trace(os.environ["TRACE"], about="waiting")
waiting = ms["waiting"] / sum(ms.values())
print(f"Waiting is {waiting:.0%} of a traced step. Without it: {1 / (1 - waiting):.2f} × the speed")

# %% [markdown]
# On a CPU, `waiting` is the time in which the loop loads images, so this is the headroom again: a rougher estimate, from three early steps, slowed by the profiler. On a GPU, it is all the time in which the GPU is idle, whatever it is waiting for: an upper bound. Without workers, the times of loading and computing add up: if the loader is *r* times as fast as the step, the headroom is about 1 + 1/*r*, or more if they slow each other down, for example by evicting each other's data from the caches.
#
# The headroom is the median of the ratios in the five turns, so it can differ from the ratio of the two speeds below it. It leaves out the start of each epoch, when workers start again: in long epochs, that hardly matters. If the ends of the range differ by a factor of 2 or more, something else was running: close it, and run the cell again. If your headroom is below about 1.1, leave the loader alone. **Otherwise**, set `WORKERS` to your number of cores, but at most 12, and run the cell again (on a GPU, this can take a minute or more, because epochs are short); on a CPU, workers take cores from the step. If there is still a lot of headroom, [docs/troubleshooting.md](../docs/troubleshooting.md#the-gpu-waits-for-data-or-dali-is-not-faster) shows how to find the slow part.
#
# A **recorded H100** (batch 128, 12 workers, each run once) had headroom: rung 2 trained at 1,089 images/s with Pillow, rung 3 at 1,735 with DALI, reading JPEG files, not yet shards. DALI is not a perfect loader, so rung 2's headroom was at least about 1.6, including its workers' start every 18 steps.
#
# ## A simulated V100: the cheap fixes first
#
# Without a GPU, your step is so slow that the loader hardly matters. So from here to your next rung, a **simulated V100** takes its place: it sleeps for as long as a V100 would need for the batch at its published 1,443 images/s (the loop's overhead adds a little). If you have a GPU, your GPU runs both passes of ResNet-50 in mixed precision instead.
#
# Before you replace a loader, configure it. Here is an ordinary one: `DataLoader` with Pillow, and your script's random crop. The loaders take **turns**, so a change in the machine's load affects all of them.


# %%
def random_box(width, height):
    """Return left, top, right and bottom of a square: 70 to 100% of the shorter side."""
    side = int(random.uniform(0.7, 1.0) * min(width, height))
    left, top = random.randint(0, width - side), random.randint(0, height - side)
    return left, top, left + side, top + side


class Signs(Dataset):
    def __init__(self, size):
        self.files, self.size = sorted((session.data_root / "train").rglob("*.jpg")), size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        image = Image.open(self.files[i]).convert("RGB")
        box = random_box(image.width, image.height)
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box)
        return torch.from_numpy(np.array(image))


def load(data_set, **settings):
    """Return an endless iterator over batches of random images; only their speed counts here."""
    sampler = RandomSampler(data_set, replacement=True, num_samples=10**9)
    return iter(DataLoader(data_set, session.batch, sampler=sampler, **settings))


signs = Signs(session.pixels)
one = next(load(signs))

# %%
v100 = session.results["published.v100.1gpu.fp16.ips"].value
model = ResNet(resnet.resnet(50, num_classes=12)).to(device, memory_format=torch.channels_last)


def train(images):
    images = images.to(device, non_blocking=True).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.autocast("cuda", torch.float16):
        loss = model(images).mean()  # any loss
    loss.backward()
    loss.item()  # waits for the GPU


def wait_like_a_v100(images):
    time.sleep(len(images) / v100)


def no_step(images):
    pass


def predicted(guess):
    return "" if guess is None else f"; you predicted {guess}"


def images_per_second(batches, step, seconds):
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() < begin + seconds:
        step(next(batches))
        steps += 1
    return session.batch * steps / (time.perf_counter() - begin)


def in_turns(loaders, step):
    """Return each loader's images per second in every turn but the first, which warms up."""
    rates = {name: [] for name in loaders}
    for _ in range(1 + session.rounds):
        for name, batches in loaders.items():
            time.sleep(session.turn_seconds / 4)  # the other loaders' workers fill their queues
            images_per_second(batches, no_step, session.turn_seconds / 4)  # drains this one's
            rates[name].append(images_per_second(batches, step, session.turn_seconds))
    return {name: values[1:] for name, values in rates.items()}


step = train if device.type == "cuda" else wait_like_a_v100
step(one)  # the first one is slow on a GPU

# %% [markdown]
# - `num_workers`: processes that decode *while* the device computes.
# - `prefetch_factor`: batches that each worker prepares ahead. A longer queue evens out slow images, but does not speed up decoding.
# - `pin_memory=True`, with `non_blocking=True` in `.to(device)`: copies to the GPU from page-locked memory, without blocking the CPU.
#
# **Predict** the headroom of each row. Then add a row that could beat the last one; predict its headroom, too.

# %%
guesses = {"num_workers=0": None, f"num_workers={cores}": None, "yours": None}  # your numbers
guesses["+ pin_memory"] = None  # only on a GPU
settings = {"num_workers=0": {}, f"num_workers={cores}": {"num_workers": cores}}
if device.type == "cuda":
    settings["+ pin_memory"] = {"num_workers": cores, "pin_memory": True}
# settings["yours"] = {**settings[[*settings][-1]], "prefetch_factor": 4}  # for example
loaders = {name: load(signs, **setting) for name, setting in settings.items()}
rates = in_turns({"cached": itertools.repeat(one.to(device)), **loaders}, step)
del loaders  # ends the workers
needed = np.median(rates["cached"])
print(f"{step.__name__}: {needed:,.0f} images/s with a cached batch")
for name in settings:
    headroom = workshop.ratio(np.divide(rates["cached"], rates[name]))
    print(f"{name}: {np.median(rates[name]):,.0f} images/s, headroom {headroom}", end="")
    print(predicted(guesses.get(name)))
before, last = [*settings][-2:]
print(f"{last} over {before}: {workshop.ratio(np.divide(rates[last], rates[before]))}")

# %% [markdown]
# Workers decode during the step, but passing batches between processes costs time, too. No setting saves *decoding*: unpacking a JPEG's variable-length codes, transforming them into blocks of 8 × 8 pixels, upsampling the colours. If there is still headroom, make each image cheaper to decode.
#
# ## A pipeline in pieces
#
# **DALI** is NVIDIA's library for everything between the files and the batch ([which build?](../docs/troubleshooting.md#which-dali-for-which-cuda)). A pipeline is defined by a Python function that calls *operators*; DALI's own threads run these in C++. Each operator's `device` decides where it runs: `cpu`, `mixed` or `gpu`.
#
# Calling the function describes a graph of operators' outputs (*nodes*), `build` creates it, and `run` returns a batch. The first graph reads your shards and decodes the images. For each shard, DALI needs an **index** with the offset of each record; `python -m data_prep.tfrecord --index FOLDER` rebuilds it. On a GPU, the decoder is a `mixed` operator: its input is in CPU memory, its output on the GPU.

# %%
if DALI:
    where = {"num_threads": cores, "device_id": 0 if device.type == "cuda" else None, "seed": 0}
    source = {
        "path": sorted(map(str, folder.glob("train-*"))),
        "index_path": sorted(map(str, folder.glob("index/train-*"))),
        "features": {
            "image/encoded": tfrecord.FixedLenFeature([], tfrecord.string, ""),
            "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, 0),
        },
        "random_shuffle": True,
    }

    def batches_of(pipe):
        pipe.build()
        while True:
            yield pipe.run()

    @pipeline_def(batch_size=8, **where)
    def reading():
        record = fn.readers.tfrecord(**source)
        place = "mixed" if device.type == "cuda" else "cpu"
        images = fn.decoders.image(record["image/encoded"], device=place)
        return images, record["image/class/label"]

    batches = batches_of(reading())
    images, labels = next(batches)
    print("DALI", nvidia.dali.__version__, "shapes", images.shape())
    print("labels", np.array(labels.as_array()).ravel())

# %% [markdown]
# Your labels start at 1. Images differ in size, so a DALI batch is a *list* of arrays. **Your turn:** write the next operator, which crops and resizes them to one size. `random_area=[0.37, 0.75]` and `random_aspect_ratio=[1, 1]` come close to your script's crop: for 4:3 images, squares of 70 to 100% of the shorter side. (DALI's default is 8 to 100% of the area.) Python runs your function only **once**, when the graph is built, so a number drawn by Python is the same in every batch. Use DALI's random operators instead, as notebook 04 used `tf.random`.


# %%
def crop(images, size):
    """Return random squares, 37 to 75% of the images' area, resized to `size` x `size` pixels."""
    return None  # your code: fn.random_resized_crop


if DALI:
    crop = nb05.check("crop", crop)

# %% [markdown]
# ### What each operator costs
#
# What could a faster decoder gain? The next cell cuts the graph off after each operator and measures **CPU time**, which excludes waiting for a busy core. *Decode the crop* is a fused operator, which decodes only the crop: about half of the image. **Predict:** what share of the graph's time is decoding, how many times as fast would the graph be if decoding cost nothing, and what share of the decoding time is left with the fused operator?


# %%
guesses = {"decoding": None, "limit": None, "left": None}  # your numbers
no_prefetch = {"exec_async": False, "exec_pipelined": False, "prefetch_queue_depth": 1}
area = {"random_area": [0.37, 0.75], "random_aspect_ratio": [1, 1]}
if DALI:

    @pipeline_def(batch_size=16, num_threads=1, device_id=None, seed=0, **no_prefetch)
    def until(last):
        jpegs = fn.readers.tfrecord(**source)["image/encoded"]
        if last == "read":
            return jpegs
        if last == "decode the crop":
            return fn.decoders.image_random_crop(jpegs, **area)
        images = fn.decoders.image(jpegs)
        return images if last == "decode" else crop(images, session.pixels)

    pieces = ("read", "decode", "decode, crop, resize", "decode the crop")
    pieces = {name: batches_of(until(name)) for name in pieces}
    ms = {name: [] for name in pieces}  # CPU time per image, in every turn
    for _ in range(session.rounds):
        for name, batches in pieces.items():
            next(batches)  # warms up
            begin = time.process_time()
            for _ in range(session.operator_batches):
                next(batches)
            seconds = time.process_time() - begin
            ms[name].append(1000 * seconds / (16 * session.operator_batches))
    read, decode, graph, part = (np.array(values) for values in ms.values())
    rows = [[name, np.median(values), min(values), max(values)] for name, values in ms.items()]
    workshop.table(rows, ["graph", "median", "least", "most"], "CPU ms per image")
    share = workshop.ratio((decode - read) / graph)
    limit = workshop.ratio(graph / (graph - decode + read))
    left = workshop.ratio((part - read) / (decode - read))
    print(f"Decoding, as a share of the graph: {share}{predicted(guesses['decoding'])}")
    print(f"Speed-up of the graph if decoding cost nothing: {limit}{predicted(guesses['limit'])}")
    print(f"Decoding the crop over decoding the image: {left}{predicted(guesses['left'])}")

# %% [markdown]
# A JPEG's codes vary in length. So to reach the crop's last row, a decoder has to unpack all rows before it, in full width: decoding half of the image can take more than half of the time.
#
# ### When and where to decode
#
# DALI prefetches: it prepares the next batches while you train. With `device="mixed"`, the CPU unpacks the codes and the GPU does the rest. An A100 or H100 also has a JPEG engine, which decodes a share of the images on its own ([`hw_decoder_load`](https://docs.nvidia.com/deeplearning/dali/user-guide/docs/operations/nvidia.dali.fn.decoders.image.html)). Each pipeline below decodes one batch per step, and the device works on the cached batch. **Predict:** how many times as fast is the loop with prefetching?
#
# **Your turn:** write `only_crop`, with the fused operator. `place` is its `device`.


# %%
def whole(jpegs, size, place):
    return crop(fn.decoders.image(jpegs, device=place), size)


def only_crop(jpegs, size, place):
    """Decode random squares only, 37 to 75% of the area; resize them to `size` x `size` pixels."""
    return None  # your code: fn.decoders.image_random_crop and fn.resize


guess = None  # your number: the speed-up from prefetching
if DALI:
    only_crop = nb05.check("only_crop", only_crop)

    @pipeline_def(batch_size=session.batch, **where)
    def decoded(decode, place):
        return decode(fn.readers.tfrecord(**source)["image/encoded"], session.pixels, place)

    def decoding(decode, place, **options):
        images = one.to(device) if place == "mixed" else one  # where DALI's are
        return (images for _ in batches_of(decoded(decode, place, **options)))

    decoders = {
        "CPU, no prefetch": decoding(whole, "cpu", **no_prefetch),
        "CPU": decoding(whole, "cpu"),
        "CPU, only the crop": decoding(only_crop, "cpu"),
    }
    if device.type == "cuda":  # the authors have not timed these rows
        decoders["mixed"] = decoding(whole, "mixed")
        decoders["mixed, only the crop"] = decoding(only_crop, "mixed")
    rates = in_turns(decoders, step)
    rows = [[name, np.median(values), min(values), max(values)] for name, values in rates.items()]
    workshop.table(rows, ["decoder", "median", "least", "most"], "images/s with the step")
    gain = workshop.ratio(np.divide(rates["CPU"], rates["CPU, no prefetch"]))
    print(f"The device alone: {needed:,.0f} images/s.", end=" ")
    print(f"Speed-up from prefetching: {gain}{predicted(guess)}")
    second, fastest = sorted(rates, key=lambda name: np.median(rates[name]))[-2:]
    print(f"{fastest} over {second}: {workshop.ratio(np.divide(rates[fastest], rates[second]))}")

# %% [markdown]
# Without prefetching, the times of decoding and training add up; with it, a step takes as long as the slower of the two. So prefetching can at most double the speed, and only if both take equally long (a single turn can exceed that by chance). Use the fastest row's decoder in your script. If two do not differ clearly, either will do; on a CPU, the one that needs less CPU time to decode (compare the rows *decode* and *decode the crop* above) leaves more for the step.
#
# ## A fair comparison
#
# Compare DALI, using the decoder with the highest median above, with two `DataLoader`s: the one with Pillow, and one in which simplejpeg decodes and PyTorch resizes. All take nearly the same crops, resize with antialiasing, and use one thread or process per core. The `DataLoader`s open files and DALI reads your shards, all in the page cache by now. **Predict** DALI's speed-up over each `DataLoader`.


# %%
class FasterSigns(Signs):
    def __getitem__(self, i):
        pixels = simplejpeg.decode_jpeg(self.files[i].read_bytes())  # by libjpeg-turbo
        left, top, right, bottom = random_box(pixels.shape[1], pixels.shape[0])
        part = torch.from_numpy(pixels[None, top:bottom, left:right].copy()).permute(0, 3, 1, 2)
        small = interpolate(part, (self.size, self.size), mode="bilinear", antialias=True)
        return small[0].permute(1, 2, 0)


guesses = {"Pillow": None, "simplejpeg": None}  # your numbers
loaders = {"Pillow": load(signs, num_workers=cores)}
if simplejpeg:
    loaders["simplejpeg"] = load(FasterSigns(session.pixels), num_workers=cores)
if DALI:
    loaders["DALI"] = decoders[fastest]
rates = in_turns(loaders, no_step)
del loaders
for name, guess in guesses.items():
    if DALI and name in rates:
        gain = workshop.ratio(np.divide(rates["DALI"], rates[name]))
        print(f"DALI ({fastest}) over {name}: {gain}{predicted(guess)}")
medians = {name: round(np.median(values)) for name, values in rates.items()}
best = max(medians, key=medians.get)
leads = {name: workshop.ratio(np.divide(rates[best], rates[name])) for name in rates}
beaten = [medians[name] for name, lead in leads.items() if lead.clear]
ties = [name for name in leads if name == best or medians[name] > max(beaten, default=0)]
others = " or ".join(name for name in ties if name != best)
fastest_ones = f"{best} (not clearly ahead of {others})" if others else best
fig, axes = plt.subplots(figsize=(9, 3.4))
workshop.ranges(axes, rates, "input")
axes.axvline(needed, color="black", ls="--")
axes.text(needed, -0.7, f"the device alone: {needed:,.0f} images/s ", ha="right")
axes.set(xlabel=f"images/s on {cores} cores, {session.pixels} px: median, and each turn")
title = f"{fastest_ones}: {medians[best] / needed:.0%} of what the device needs"
fig.suptitle(title, x=0.01, ha="left")
workshop.figure(fig, alt=f"Images per second: {medians}. The device alone: {needed:.0f}.")
note = f"{fastest_ones}, {medians[best]:,.0f} images/s"
session.note("fastest_loader", note, "", "Fastest loader")

# %% [markdown]
# If the ends of a range above differ by a factor of 2 or more, something else was running: run the cell again. On a CPU, all use the same cores for the same JPEGs, but they differ in their decoders and resizers, in using threads or processes, in how they divide a batch among the cores, and in how much of each image they decode. If `simplejpeg` is clearly faster, keep `FasterSigns` for scripts without shards. A loader whose bar ends left of the dashed line cannot feed the device: use more cores, store smaller images, or decode on other hardware. On a GPU, `mixed` also takes time from the training: trust the table above.
#
# A loader can also be faster because it resizes without antialiasing. But then [its images differ from Pillow's](../docs/troubleshooting.md#accuracy-is-lower-with-dali-images-are-resized-differently), in one example by 21 of 255 levels on average.
#
# ## Your own step again: one more rung
#
# With only a few cores, a faster `DataLoader` may be the better choice. But of the three, only DALI can decode on a GPU, so it is your next rung, and notebooks 06 and 08 build on it. Write the two functions that turn your `runs/train.py` into a script that reads your shards with DALI, without mirroring. Normalise last, because it turns each byte into a 4-byte float.


# %%
def photos(folder, size, device, rank, ranks):
    """Return two nodes: crops, float32 (3, size, size) from -1 to 1, and labels from 0."""
    # 1. fn.readers.tfrecord of train-* and index/train-* in the folder, with random_shuffle;
    #    with shard_id and num_shards, rank `rank` of `ranks` reads its part
    # 2. only_crop, or what was fastest on your GPU; "mixed" if device.type is "cuda"
    # 3. fn.crop_mirror_normalize, which computes (pixel - mean) / std, one plane per colour
    return None  # your code


def endless(loader):
    """Yield (images, labels), epoch after epoch; labels have the shape (batch,)."""
    # DALIClassificationIterator(loader), from nvidia.dali.plugin.pytorch, gives lists with one
    # dictionary per pipeline, {"data": images, "label": labels}; labels are of shape (batch, 1).
    return None  # your code: yield


if DALI:
    any_place = device.type == "cuda" and "mixed" not in fastest  # a CPU row was the fastest
    photos = nb05.check("photos", photos, any_place)
    endless = nb05.check("endless", endless, photos)
    pipe = pipeline_def(photos)(
        folder, session.pixels, device, 0, 1, batch_size=session.batch, **where
    )
    images, labels = next(endless(pipe))
    print(tuple(images.shape), images.dtype, images.device, labels[:8].tolist())

# %% [markdown]
# Copy both into `runs/train.py`, with `@pipeline_def` above `photos`, in place of `Photos`, the old `endless`, the sampler, the loader and `set_epoch`. Details:
#
# - Copy DALI's imports, including `DALIClassificationIterator`, and whatever else you use from this notebook, such as `only_crop` and `area`.
# - `--data` is now the folder with the shards; count the classes in its `classes.txt`.
# - Store the result of `photos(…)` under a different name: in `main`, `photos = photos(…)` would hide the function. The call also takes `batch_size`, `num_threads` (`args.workers`), `seed` (the rank) and `device_id` (`None` on a CPU, the local rank on a GPU).
#
# The next cell runs three small steps in two CPU processes. Watch the row *share the samples*: without `shard_id` and `num_shards` the script is just as fast, but every rank reads every image. A ○ means that this short run cannot tell. This run does not check pixels or order, so copy `photos` exactly as it was accepted.

# %%
workshop.ladder.try_rung(
    "3_dali", ranks=2, only_yours=True, env={"CUDA_VISIBLE_DEVICES": ""},
    image_size=32, batch_size=16, steps=3, warm_up=0,  # 96 images
)  # fmt: skip

# %% [markdown]
# Rung 2 now loads with workers. On a GPU, base your guess on the headroom that you measured with workers (batches of at most 32). DALI can gain more than that: the race includes the start of each epoch, when rung 2 starts its workers again and waits for their first batches, and decoding on the GPU saves copying the images there. On a CPU, both loaders take cores from the step. **Predict** DALI's speed-up over rung 2.

# %%
guess = None  # your number
torch.cuda.empty_cache()  # the scripts need the memory
found = workshop.ladder.race(
    ["2", "3_dali"], own="3_dali", guess=guess, turns=session.turns, ranks=ranks,
    image_size=session.image_size, batch_size=session.batch_size, warm_up=1,
    workers=workers, steps=max(session.steps, 2 * workers),  # whole rounds of workers
)  # fmt: skip
if "3_dali" in found and found["3_dali"]["paired"]:
    ratios = np.divide(found["3_dali"]["turns"], found["2"]["turns"])
    print(f"DALI over rung 2: {workshop.ratio(ratios)}{predicted(guess)}")
workshop.ladder.figure("3_dali")
for rung, report in found.items():
    rest = report["compute_ms"] + report.get("communication_ms", 0)
    waiting = report["input_ms"] / (report["input_ms"] + rest)
    print(f"{rung}: input is {waiting:.1%} of a step; without: {1 / (1 - waiting):.2f} × the speed")

# %% [markdown]
# The figure's ratio is again the median of the turns' ratios, so it can disagree with the bars. If the ends of DALI's range over rung 2 differ by a factor of 2 or more, something else was running: run the cell again. If DALI's script would gain less than about 10% without waiting for input, leave the input alone. If it would gain more, give DALI more threads, or decode on the GPU. If the rungs differ clearly although neither waits, one loader takes more of the step's cores, or of its GPU, than the other. The time spent waiting does not show that; the headroom, measured with a cached batch, does.
#
# ## Key takeaways
#
# - Measure the headroom before you change a loader. If it is near 1, change nothing. If cores are idle, add workers. If they are busy, use a faster decoder, or decode on a GPU.
# - DALI builds a pipeline once and runs it without Python. Let operators draw random numbers.
# - Let loaders take turns when you compare them, on the same images and with the same resizing.
# - Defaults differ between loaders, so set crop area, antialiasing, aspect ratio and shuffling explicitly.
#
# Computation is next: notebook 06 asks how few bits it needs.
