# %% [markdown]
# # 05 · DALI
#
# After this notebook, you can measure whether a training run is waiting for its input, write a DALI pipeline operator by operator, compare loaders fairly, and put DALI into your own training script. Three devices train here: yours, a simulated V100 if you have no GPU, and an H100 that was recorded.
#
# **Time:** 60 minutes · **Needs:** DALI, and your script and shards from notebooks 03 and 04 · **On a CPU:** about 3 minutes to run

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
    print("DALI is not installed here: its cells do nothing. `make setup` installs it.")
try:
    import simplejpeg
except ImportError:
    simplejpeg = None  # it has no wheel for some machines
    print("simplejpeg is not installed here: its loader is left out.")

torch.multiprocessing.set_start_method("fork", force=True)  # as in notebook 02
session = workshop.start("05", profile)
cores, ranks = session.machine.cores, min(8, len(session.machine.gpus)) or 1
device = torch.device("cuda" if session.profile == "gpu" else "cpu")
workers = max(1, min(session.rung_workers, cores // ranks))  # of your script, per rank
folder = workshop.ladder.shards()  # yours, from notebook 04
os.chdir(session.folder)
shutil.copy(workshop.ladder.script("2"), "train.py")
os.environ |= {
    "DATA": str(session.data_root),
    "SIZES": f"--image-size {session.image_size} --batch-size {session.batch_size}",
    "SECONDS_EACH": str(session.seconds),
    "TRACE": str(session.runs / "trace-05.json"),
}

# %% [markdown]
# ## Your own step: where is the time going?
#
# Training can [stay slow](https://github.com/NVIDIA/DALI/issues/1639) with DALI if the input was never the bottleneck. Measure that first. **Cache one batch** and run the same loop with it again and again. No loader can beat it. Its speed divided by the real loop's is your **headroom**.
#
# `rn50 workshop try --headroom` times your own `train.py` in three modes that take turns: as it is, with a perfect loader, and with a perfect, instant step (all with `WORKERS=0`). Before that, it records a trace of three steps. **Predict** your headroom.

# %% language="bash" magic_args="-e"
# HEADROOM=1.0  # your number
# WORKERS=0
# rn50 workshop try train.py --headroom --seconds $SECONDS_EACH -- \
#   --data "$DATA" $SIZES --steps 100000 --workers $WORKERS --trace "$TRACE" 2>&1
# echo "You predicted a headroom of $HEADROOM"

# %%
ms = workshop.trace(os.environ["TRACE"])
waiting = ms["waiting"] / sum(ms.values())
print(f"Waiting is {waiting:.0%} of a step: without it, {1 / (1 - waiting):.2f} times the speed")

# %% [markdown]
# On a CPU, `waiting` is the time in which the loop loads images; on a GPU, all the time in which the GPU is idle. Without workers, headroom is about 1 + 1 / (the loader's speed over the step's), 1.05 for 20; on a CPU, also about the last line's number. If it is clearly larger, loader and step disturb each other, or another program disturbs them. Close to 1, leave the loader alone. If it is large, [docs/troubleshooting.md](../docs/troubleshooting.md#the-gpu-waits-for-data-or-dali-is-not-faster) shows how to find the slow part. **Try it:** set `WORKERS` to your number of cores. Waiting ends, but on a CPU, the workers still use the step's cores.
#
# A **recorded H100** had more headroom. Rungs 1 and 3 computed nearly the same step on the same JPEG files: 1,080 images/s with Pillow in 12 workers, 1,735 with DALI. So rung 1 had a headroom of at least 1.6.
#
# ## A simulated V100: the cheap fixes first
#
# Your CPU computes so slowly that its loader hardly matters. So from here to your next rung, a **simulated V100** takes its place, with images of 224 pixels: it sleeps as long as a V100 takes at its published 1,443 images/s. (A GPU runs ResNet-50, forward and backward, in mixed precision instead.)
#
# Before you replace a loader, configure it. Here is an ordinary one: `DataLoader` with Pillow, and your script's random crop. Loaders that are compared take **turns**, so that a change of the machine's load meets all of them.


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


def images_per_second(batches, step, seconds):
    begin, steps = time.perf_counter(), 0
    while time.perf_counter() < begin + seconds:
        step(next(batches))
        steps += 1
    return session.batch * steps / (time.perf_counter() - begin)


def in_turns(loaders, step):
    """Return each loader's images per second in every turn."""
    rates = {name: [] for name in loaders}
    for _ in range(session.rounds):
        for name, batches in loaders.items():
            images_per_second(batches, no_step, session.turn_seconds / 4)  # drains the queue
            rates[name].append(images_per_second(batches, step, session.turn_seconds))
    return rates


step = train if device.type == "cuda" else wait_like_a_v100
step(one)  # the first one is slow on a GPU

# %% [markdown]
# - `num_workers`: processes that decode *while* the device computes. `persistent_workers=True` keeps them at the end of an epoch.
# - `prefetch_factor`: batches that each worker prepares ahead. They absorb slow images, but do not speed up decoding.
# - `pin_memory=True`, with `non_blocking=True` in `.to(device)`: copy to a GPU from page-locked memory, which does not block the CPU.
#
# **Predict** the headroom of each row. Add your own row.

# %%
settings = {"num_workers=0": {}, f"num_workers={cores}": {"num_workers": cores}}
if device.type == "cuda":
    settings["+ pin_memory"] = {"num_workers": cores, "pin_memory": True}
# settings["+ prefetch_factor"] = {"num_workers": cores, "prefetch_factor": 4}  # your row
loaders = {name: load(signs, **setting) for name, setting in settings.items()}
rates = in_turns({"cached": itertools.repeat(one), **loaders}, step)
del loaders  # ends the workers
needed = np.median(rates["cached"])
print(f"{step.__name__}: {needed:,.0f} images/s with a cached batch")
for name in settings:
    headroom = workshop.ratio(np.divide(rates["cached"], rates[name]))
    print(f"{name:20} {np.median(rates[name]):6,.0f} images/s, headroom {headroom}")

# %% [markdown]
# Workers decode during the step, but passing batches between processes costs time, too. If your row is clearly faster, add it to the `DataLoader` in `runs/train.py`. No setting saves *decoding*: unpacking a JPEG's variable-length codes, transforming them to blocks of 8 × 8 pixels, upsampling colours. If headroom is left, each image has to cost less.
#
# ## A pipeline in pieces
#
# **DALI** is NVIDIA's library for everything between the files and the batch. A pipeline is defined by a Python function that calls *operators*; DALI's own threads run these in C++. Each operator's `device` decides where it runs: `cpu`, `mixed` or `gpu`.
#
# Calling the function describes a graph of operators' outputs (*nodes*), `build` creates it, and `run` returns a batch. The first graph reads your shards, and decodes. For each shard, DALI needs an **index** with the offset of each record; `python -m data_prep.tfrecord --index FOLDER` rebuilds it. On a GPU, the decoder is a `mixed` operator: its input is in CPU memory, its output on the GPU. **Predict** the shapes: will eight images fit into one array?

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
# Your labels start at 1. Images differ in size, so a DALI batch is a *list* of arrays. **Your turn:** write the next operator, which crops and resizes them to one size. Keep your script's crop, a square of 70 to 100% of the shorter side: `random_area=[0.37, 0.75]` (for 4:3 images), `random_aspect_ratio=[1, 1]`. (DALI's default is 8 to 100% of the area, the published recipe's 5 to 100%.) Python runs your function only **once**, when the graph is built, so a number that Python draws stays the same. Let operators draw, as with `tf.random` in notebook 04.


# %%
def crop(images, size):
    """Return random squares, 37 to 75% of the images' area, resized to `size` x `size` pixels."""
    return None  # your code: fn.random_resized_crop


if DALI:
    crop = nb05.check_crop(crop)

# %% [markdown]
# ### What each operator costs
#
# To see what a faster decoder could gain, the next cell cuts the graph off after each operator. It measures **CPU time**, which does not count waiting for a core that another program uses. *Decode the crop* is a fused operator, which decodes only that part: on average, about half of the image. **Predict:** what share of the graph's time is decoding, and what share of decoding is left with the fused operator? Enter both.


# %%
guesses = {"decoding": 0.4, "left": 0.5}  # your numbers
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
    workshop.table(rows, ["CPU ms per image", "median", "least", "most"])
    share = workshop.ratio((decode - read) / graph)
    left = workshop.ratio((part - read) / (decode - read))
    print(f"Decoding, as a share of the graph: {share}; you predicted {guesses['decoding']}")
    print(f"Decoding the crop over decoding the image: {left}; you predicted {guesses['left']}")

# %% [markdown]
# A JPEG's codes vary in length. So to reach the crop's last row, a decoder has to unpack all rows before it, in full width: half of the image can cost more than half of the time.
#
# ### When and where to decode
#
# DALI prefetches: it prepares the next batches while you train. With `device="mixed"`, the CPU unpacks the codes and the GPU does the rest. An A100 or H100 also has a JPEG engine, which does both for a share of the images, `hw_decoder_load` ([DALI's documentation](https://docs.nvidia.com/deeplearning/dali/user-guide/docs/operations/nvidia.dali.fn.decoders.image.html)). (The rows for a GPU are untested.) Each pipeline below decodes while your device trains on the cached batch. **Predict:** what does prefetching gain, and how close do the pipelines come to the device's own speed?

# %%
if DALI:

    @pipeline_def(batch_size=session.batch, **where)
    def whole(place, load=0.9):
        jpegs = fn.readers.tfrecord(**source)["image/encoded"]
        images = fn.decoders.image(jpegs, device=place, hw_decoder_load=load)
        return crop(images, session.pixels)

    @pipeline_def(batch_size=session.batch, **where)
    def only_crop(place):
        jpegs = fn.readers.tfrecord(**source)["image/encoded"]
        images = fn.decoders.image_random_crop(jpegs, device=place, **area)
        return fn.resize(images, size=(session.pixels, session.pixels))

    decoders = {
        "CPU, no prefetch": batches_of(whole("cpu", **no_prefetch)),
        "CPU": batches_of(whole("cpu")),
        "CPU, only the crop": batches_of(only_crop("cpu")),
    }
    if device.type == "cuda":
        decoders["mixed, 65% on the engine"] = batches_of(whole("mixed", 0.65))
        decoders["mixed, 90% on the engine"] = batches_of(whole("mixed", 0.9))
        decoders["mixed, only the crop"] = batches_of(only_crop("mixed"))
    rates = in_turns(decoders, lambda _: step(one))
    for name, values in rates.items():
        print(f"{name:25} {np.median(values):6,.0f} images/s with training")
    gain = workshop.ratio(np.divide(rates["CPU"], rates["CPU, no prefetch"]))
    print(f"The device alone: {needed:,.0f} images/s. Prefetching gains {gain}")
    fastest = max(rates, key=lambda name: np.median(rates[name]))

# %% [markdown]
# Without prefetching, the times of decoding and training add up; with it, the longer one counts. So it gains at most a factor of 2. **On a GPU**, your script should decode like the row that is fastest *with training*. Pass `hw_decoder_load` yourself: [65% and 90%](https://github.com/NVIDIA/DALI/pull/6366) have both been its default.
#
# ## A fair comparison
#
# Compare DALI, with the fastest row above, with two `DataLoader`s: the one with Pillow, and one in which simplejpeg decodes and PyTorch resizes. All take your script's crops, resize with antialiasing, and use one thread or process per core. The `DataLoader`s open files; DALI reads your shards. Both are cached by now. **Predict:** how many times as fast as each `DataLoader` is DALI?


# %%
class FasterSigns(Signs):
    def __getitem__(self, i):
        pixels = simplejpeg.decode_jpeg(self.files[i].read_bytes())  # by libjpeg-turbo
        left, top, right, bottom = random_box(pixels.shape[1], pixels.shape[0])
        part = torch.from_numpy(pixels[None, top:bottom, left:right].copy()).permute(0, 3, 1, 2)
        small = interpolate(part, (self.size, self.size), mode="bilinear", antialias=True)
        return small[0].permute(1, 2, 0)


guesses = {"Pillow": 1.5, "simplejpeg": 1.5}  # your numbers
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
        print(f"DALI ({fastest}) over {name}: {gain}; you predicted {guess:g}")
medians = {name: round(np.median(values)) for name, values in rates.items()}
best = max(medians, key=medians.get)
fig, axes = plt.subplots(figsize=(9, 3.4))
workshop.ranges(axes, rates, "input")
axes.axvline(needed, color="black", ls="--")
axes.text(needed, -0.7, f"the device needs {needed:,.0f} ", ha="right")
axes.set(xlabel=f"images/s on {cores} cores, {session.pixels} px: median, and each turn")
title = f"{best}, the best median: {medians[best] / needed:.0%} of what the device needs"
fig.suptitle(title, x=0.01, ha="left")
workshop.figure(fig, alt=f"Images per second: {medians}. The device needs {needed:.0f}.")
session.note("fastest_loader", f"{best}, {medians[best]:,.0f} images/s", "", "The fastest loader")

# %% [markdown]
# On a CPU, all decode the same JPEGs on the same cores, so only the libraries' code differs. If `simplejpeg` wins, it is the cheapest gain of this notebook: a few lines in `Photos`, without shards. Your own step gains only if its headroom above was large. A loader whose bar ends left of the dashed line cannot feed the device: use more cores, store smaller images, or decode on other hardware.
#
# A loader can also be faster because it resizes without antialiasing, which [cost a small network 4 points of top-1](../docs/troubleshooting.md#accuracy-is-lower-with-dali-images-are-resized-differently) (recorded).
#
# ## Your own step again: one more rung
#
# Even if DALI is no faster here, it is your next rung: notebooks 06 and 08 build on it. Write the two functions that turn your `runs/train.py` into a script that reads your shards with DALI, with the same crop and no mirror. Each rank must read its own part. Normalising turns every 1-byte value into a 4-byte float, so do it last; on a GPU, it runs there, where its input is.


# %%
def photos(folder, size, device, rank, ranks):
    """Return two nodes: crops, float32 (3, size, size) from -1 to 1, and labels from 0."""
    # 1. fn.readers.tfrecord of train-* and index/train-* in the folder, with random_shuffle;
    #    with shard_id and num_shards, rank `rank` of `ranks` reads its part
    # 2. fn.decoders.image_random_crop and fn.resize, or what was fastest on your GPU;
    #    device="mixed" if device.type is "cuda"
    # 3. fn.crop_mirror_normalize, which computes (pixel - mean) / std, one plane per colour
    return None  # your code


def endless(loader):
    """Yield (images, labels), epoch after epoch; labels have the shape (batch,)."""
    # DALIClassificationIterator(loader), from nvidia.dali.plugin.pytorch, gives lists with one
    # dictionary per pipeline, {"data": images, "label": labels}; labels are of shape (batch, 1).
    return None  # your code: yield


if DALI:
    photos, endless = nb05.check(photos, endless)
    pipe = pipeline_def(photos)(
        folder, session.pixels, device, 0, 1, batch_size=session.batch, **where
    )
    images, labels = next(endless(pipe))
    print(tuple(images.shape), images.dtype, images.device, labels[:8].tolist())

# %% [markdown]
# Copy both into `runs/train.py`, with `@pipeline_def` above `photos`, in place of `Photos`, the sampler, the loader and `set_epoch`. Details:
#
# - Copy DALI's imports (also `DALIClassificationIterator`), and whatever else you use from this notebook, such as `area`.
# - `--data` is now the folder with the shards; count the classes in its `classes.txt`.
# - The call to `photos` (name its result differently) also takes `batch_size`, `num_threads`, `seed` (the rank) and `device_id` (`None` on a CPU, the local rank on a GPU).
#
# Is your edit correct? The next cell runs three small steps in two CPU processes. If you forget to subtract 1 from the labels, label 12 is out of range, and the processes end with an error. Watch the row *share the samples*: without `shard_id` and `num_shards` the script is just as fast, but every rank reads every image. A ○ means that this short run cannot tell.

# %%
own = session.runs / "train.py"
if DALI and "nvidia.dali" in own.read_text() and not workshop.ladder.has_gaps(own):
    small = ["--image-size", 32, "--batch-size", 16, "--steps", 3, "--warm-up", 0]  # 96 images
    print(workshop.try_script(
        own, "--data", folder, *small,
        ranks=2, steps=3, single=False, reseed=False, env={"CUDA_VISIBLE_DEVICES": ""},
    ))  # fmt: skip
else:
    print("Your runs/train.py does not use DALI yet, or has gaps. Run this again after your edit.")
workshop.ladder.changes("3_dali")  # the finished edit

# %% [markdown]
# Rung 2 has its workers now, and its headroom bounds the gain. **Predict** DALI's speed-up over rung 2: replace `None`.

# %%
guess = None  # your number
if guess:
    workshop.ladder.predict("3_dali", guess)
found = workshop.ladder.race(
    ["2", "3_dali"], turns=session.turns, ranks=ranks, own="3_dali",  # your script is past rung 2
    image_size=session.image_size, batch_size=session.batch_size, warm_up=1,
    workers=workers, steps=max(session.steps, 2 * workers),  # whole rounds of workers
)  # fmt: skip
if "3_dali" in found and found["3_dali"]["paired"]:
    ratios = np.divide(found["3_dali"]["turns"], found["2"]["turns"])
    print(f"DALI over rung 2: {workshop.ratio(ratios)}; you predicted {guess or 'nothing'}")
workshop.ladder.figure("3_dali")
for rung, report in found.items():
    rest = report["compute_ms"] + report.get("communication_ms", 0)
    waiting = report["input_ms"] / (report["input_ms"] + rest)
    print(f"{rung}: input is {waiting:.1%} of a step: a headroom of {1 / (1 - waiting):.2f}")

# %% [markdown]
# If DALI's headroom is below 1.05, leave the input alone: less waiting gains at most 5%. If it is larger, give DALI more threads, or decode on the GPU. If DALI is clearly slower than rung 2 without more headroom, its threads disturb the step. The figure's square compares DALI on the recorded H100 with rung 1 in 12 workers.
#
# ## Key takeaways
#
# - Measure the headroom before you change a loader. Near 1: change nothing. Idle cores: configure workers. Busy cores: a faster decoder, or DALI on a GPU.
# - A pipeline is built once and run without Python. Let operators draw random numbers.
# - Let loaders take turns when you compare them, on the same images and with the same resizing.
# - Defaults differ between loaders, so set crop area, antialiasing, aspect ratio and shuffling explicitly.
#
# Computation is next: notebook 06 asks how few bits it needs.
