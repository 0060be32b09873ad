# %% [markdown]
# # 05 · DALI
#
# After this notebook, you can measure whether a training run is waiting for its input, write a DALI pipeline operator by operator, compare loaders fairly, and put DALI into your own training script. Without a GPU, DALI decodes on your cores; some sections also show recorded H100 results.
#
# **Time:** 60 minutes · **Needs:** DALI, and your script and shards from notebooks 03 and 04 · **On a CPU:** about 4 minutes to run

# %% tags=["parameters"]
profile: str = "auto"  # auto, ci (seconds), cpu or gpu
v100: float = 1442.6  # images/s of the accelerator that is simulated without a GPU
rounds: int | None = None  # rounds of each timed comparison
seed: int = 0  # DALI's random seed

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
from torch.nn.functional import cross_entropy, interpolate

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
rounds, root, cores = rounds or session.rounds, session.data_root / "train", session.machine.cores
ranks = min(8, len(session.machine.gpus)) or 1  # of the ladder's runs
device = torch.device("cuda" if session.profile == "gpu" else "cpu")
most = 12 if device.type == "cuda" else 4
workers = max(1, min(most, cores // ranks))  # of your script, per rank
folder = workshop.ladder.shards()  # yours, from notebook 04
shards = sorted(map(str, folder.glob("train-*")))
index = sorted(map(str, (folder / "index").glob("train-*")))
os.chdir(session.folder)
shutil.copy(workshop.ladder.script("2"), "train.py")
os.environ |= {
    "DATA": str(session.data_root),
    "SIZES": f"--image-size {session.image_size} --batch-size {session.batch_size}",
    "WORKERS": str(workers),
    "SECONDS_EACH": str(session.seconds),
    "TRACE": str(session.runs / "trace-05.json"),
    "SHARDS": str(folder),
}

# %% [markdown]
# ## Where is the time going?
#
# Training can [stay slow](https://github.com/NVIDIA/DALI/issues/1639) with DALI if the input was never the bottleneck. Measure that first. **Cache one batch** and run the same loop with it again and again. Apart from noise, no loader can beat it. Its speed divided by the real loop's is your **headroom**.
#
# `rn50 workshop try --headroom` times your own `train.py` in three modes that take turns: as it is, with a perfect loader, and with a perfect, instant step. **Predict** your headroom.

# %% language="bash" magic_args="-e"
# set -o pipefail
# rn50 workshop try train.py --headroom --seconds $SECONDS_EACH -- \
#   --data "$DATA" $SIZES --steps 100000 --workers $WORKERS --trace "$TRACE" 2>&1 | tee before.txt

# %% [markdown]
# Before the timing, your script recorded a trace of three steps. On a CPU, `waiting` is the time in which the loop waits for its images; on a GPU, all the time in which the GPU is idle. **Predict** the share of `waiting`.

# %%
parts_ms = workshop.trace(os.environ["TRACE"], show=False)
print(f"Waiting is {parts_ms['waiting'] / sum(parts_ms.values()):.0%} of a step")

# %% [markdown]
# If the headroom is close to 1, leave the loader alone (if its range is wide, rerun with more `--seconds`); if it is large, [docs/troubleshooting.md](../docs/troubleshooting.md#the-gpu-waits-for-data-or-dali-is-not-faster) shows how to find the slow part. If loader and step share the cores, without `waiting`, the headroom is 1 + 1 / (the first line's ratio); more is noise, or they disturb each other.
#
# A recorded H100 had headroom. Rungs 1 and 3 computed nearly the same step on the same JPEG files: 1,080 images/s with Pillow in 12 workers, 1,735 with DALI. So rung 1 had a headroom of at least 1.6. How much of it a tuned `DataLoader` would have gained was not recorded.
#
# ## The cheap fixes first
#
# Before you replace a loader, configure it. Here is an ordinary one: `DataLoader` with Pillow in its worker processes, and your script's random crop. It feeds your GPU, which runs ResNet-50's forward and backward passes in mixed precision. On a CPU, training hardly waits for images, so up to your next rung, a simulated V100 takes its place. It sleeps at least as long as a real one computes.


# %%
def random_box(width, height):
    """Return left, top, right and bottom of a square: 70 to 100% of the shorter side."""
    side = int(random.uniform(0.7, 1.0) * min(width, height))
    left, top = random.randint(0, width - side), random.randint(0, height - side)
    return left, top, left + side, top + side


class Signs(torch.utils.data.Dataset):
    def __init__(self, size):
        self.files, self.size = sorted(root.rglob("*.jpg")), size

    def __len__(self):
        return len(self.files)

    def __getitem__(self, i):
        image = Image.open(self.files[i]).convert("RGB")
        box = random_box(image.width, image.height)
        image = image.resize((self.size, self.size), Image.Resampling.BILINEAR, box)
        return torch.from_numpy(np.array(image)), i % 12  # any label: only the speed counts here


batch, size = session.batch, session.pixels
signs = Signs(size)
model = ResNet(resnet.resnet(50, num_classes=12)).to(device, memory_format=torch.channels_last)


def train_here(images, labels):
    images = images.to(device, non_blocking=True).permute(0, 3, 1, 2).float() / 127.5 - 1
    with torch.autocast(device.type, torch.float16, enabled=device.type == "cuda"):
        loss = cross_entropy(model(images), labels.to(device, non_blocking=True))
    loss.backward()
    loss.item()  # waits for the device


def wait_like_a_v100(images, labels):
    time.sleep(len(images) / v100)


def images_per_second(batches, step, count, warm_up):
    """Return the speed of a loop of `count` steps; `warm_up` steps before them empty the queue."""
    for number in range(-warm_up, count):
        if number == 0:
            begin = time.perf_counter()
        step(*next(batches))
    return count * batch / (time.perf_counter() - begin)


def make_loader(data_set, least, **setting):
    """Return a loader, how many batches to time, at least `least`, and how many come before.

    Workers start together and deliver in bursts, so whole rounds of them are timed. The batches
    that they prepare ahead are not.
    """
    workers = setting.get("num_workers", 0)
    count = workers * max(2, -(-least // workers)) if workers else least
    ahead = 1 + workers * setting.get("prefetch_factor", 2)
    images = batch * (count + ahead)
    sampler = torch.utils.data.RandomSampler(data_set, replacement=True, num_samples=images)
    setting["persistent_workers"] = workers > 0
    return torch.utils.data.DataLoader(data_set, batch, sampler=sampler, **setting), count, ahead


def in_turns(loaders, step):
    """Return each loader's images per second in every turn."""
    rates = {name: [] for name in loaders}
    for turn in range(rounds + 1):  # the first one warms up
        for name, (loader, count, ahead) in loaders.items():
            rate = images_per_second(iter(loader), step, count, ahead)
            rates[name] += [rate] if turn > 0 else []
    return rates


step = train_here if device.type == "cuda" else wait_like_a_v100
one = next(iter(torch.utils.data.DataLoader(signs, batch)))
target = images_per_second(itertools.repeat(one), step, session.batches, 3)
print(f"The device trains on {target:,.0f} images/s with a cached batch ({step.__name__})")

# %% [markdown]
# - `num_workers`: processes that decode *while* the device computes.
# - `persistent_workers=True`: keep these processes at the end of an epoch, as `make_loader` does.
# - `prefetch_factor`: batches that each worker prepares ahead. They absorb slow images, but do not speed up decoding.
# - `pin_memory=True`, with `non_blocking=True` in `.to(device)`: copy to a GPU from page-locked memory, which does not block the CPU.
#
# **Predict:** how much of the time is each loop below waiting? Add a row of your own.

# %%
with_workers = {"num_workers": cores}
settings = {"num_workers=0": {}, f"num_workers={cores}": with_workers}
if device.type == "cuda":
    with_workers = settings["+ pin_memory"] = with_workers | {"pin_memory": True}
# settings["+ prefetch_factor=4"] = with_workers | {…}  # your row
loaders = {name: make_loader(signs, session.batches, **x) for name, x in settings.items()}
tuned = in_turns(loaders, step)
del loaders  # ends the workers
gains = {b: workshop.ratio(np.divide(tuned[b], tuned[a])) for a, b in itertools.pairwise(tuned)}
for name, values in tuned.items():
    over = f", over the row above: {gains[name]}" if name in gains else ""
    waits = 1 - min(1, np.median(values) / target)
    print(f"{name:22} {np.median(values):6,.0f} images/s, waiting {waits:.0%} of the time{over}")
headroom = workshop.ratio(target / np.array(max(tuned.values(), key=np.median)))
print(f"Headroom of the best: {headroom}")

# %% [markdown]
# Workers decode during the step, so the gain can exceed their number. No setting saves *decoding*: unpacking a JPEG's variable-length codes, transforming them to blocks of 8 × 8 pixels, upsampling colours. If a row is clearly faster, use it in `runs/train.py`. If headroom is left, each image has to cost less.
#
# ## A pipeline in pieces
#
# **DALI** is NVIDIA's library for everything between the files and the batch. A pipeline is defined by a Python function that calls *operators*; DALI's own threads run these in C++. Each operator's `device` decides where it runs: `cpu`, `mixed` or `gpu`.
#
# Calling the function describes a graph of operators' outputs (*nodes*), `build` creates it, and `run` returns a batch. The first graph reads your shards, and decodes. For each shard, DALI needs an **index** with the offset of each record; `python -m data_prep.tfrecord --index FOLDER` rebuilds it. On a GPU, the decoder is a `mixed` operator: its input is in CPU memory, its output on the GPU. **Predict** the shapes: will eight images fit into one array?

# %%
if DALI:
    where = {"num_threads": cores, "device_id": 0 if device.type == "cuda" else None, "seed": seed}
    decoder = "mixed" if device.type == "cuda" else "cpu"
    print("DALI", nvidia.dali.__version__)
    features = {
        "image/encoded": tfrecord.FixedLenFeature([], tfrecord.string, ""),
        "image/class/label": tfrecord.FixedLenFeature([1], tfrecord.int64, 0),
    }
    source = {"path": shards, "index_path": index, "features": features, "random_shuffle": True}

    @pipeline_def(batch_size=8, **where)
    def reading():
        record = fn.readers.tfrecord(**source)
        images = fn.decoders.image(record["image/encoded"], device=decoder)
        return images, record["image/class/label"]

    pipe = reading()
    pipe.build()
    images, labels = pipe.run()
    print("shapes", images.shape())
    print("labels", np.array(labels.as_array()).ravel())

# %% [markdown]
# Your labels start at 1. Images differ in size, so a DALI batch is a *list* of arrays. The next graph resizes a random crop to one size.
#
# **Your turn.** Write its last two operators. Always set the crop area: DALI's default is 8 to 100% of the image, the published recipe's 5 to 100%. The second one mirrors half of the images (as for ImageNet; never train on mirrored road signs), and computes `(pixel − mean) / std`, with one plane per colour. Python runs your function only **once**, when the graph is built. So draw random numbers in the graph, with `fn.random`, as with `tf.random` in notebook 04.


# %%
def crop(images, size):
    """Return crops of 5 to 100% of the images' area, resized to a square of `size` pixels."""
    return None  # your code: fn.random_resized_crop


def normalise(images):
    """Return float32 images (3, height, width) from -1 to 1, half of them mirrored."""
    return None  # your code: fn.crop_mirror_normalize, fn.random.coin_flip


if DALI:
    crop, normalise = nb05.check_crop(crop), nb05.check_normalise(normalise)

    @pipeline_def(batch_size=8, **where)
    def training():
        jpegs = fn.readers.tfrecord(**source)["image/encoded"]
        images = crop(fn.decoders.image(jpegs, device=decoder), size)
        return images, normalise(images)

    pipe = training()
    pipe.build()
    for images in pipe.run():
        pixels = (images.as_cpu() if device.type == "cuda" else images).as_array()
        print(pixels.shape, pixels.dtype, f"from {pixels.min():.2f} to {pixels.max():.2f}")

# %% [markdown]
# Normalising turns every 1-byte value into a 4-byte float. So send bytes to the GPU and normalise there: an operator runs where its input is.
#
# ### What each operator costs
#
# The next cell cuts the graph off after each operator. It measures **CPU time**, which does not count waiting for a core that another program uses. *Decode the crop* is a fused operator, which decodes only that part: on average, about half of the image. **Predict:** what share of the graph's time is decoding, and what share of decoding is left with the fused operator? Enter both.


# %%
guesses = {"decoding": 0.4, "left": 0.5}  # your numbers
no_prefetch = {"exec_async": False, "exec_pipelined": False, "prefetch_queue_depth": 1}
if DALI:

    @pipeline_def(batch_size=16, num_threads=1, device_id=None, seed=seed, **no_prefetch)
    def until(last):
        jpegs = fn.readers.tfrecord(**source)["image/encoded"]
        if last == "read":
            return jpegs
        if last == "decode the crop":
            return fn.decoders.image_random_crop(jpegs, random_area=[0.05, 1.0])
        images = fn.decoders.image(jpegs)
        return images if last == "decode" else crop(images, size)

    names = ("read", "decode", "decode, crop, resize", "decode the crop")
    pieces = {name: until(name) for name in names}
    for pipe in pieces.values():
        pipe.build()
    spent = {name: [] for name in names}  # CPU milliseconds per image, in every turn
    for turn in range(rounds + 1):  # the first one warms up
        for name, pipe in pieces.items():
            begin = time.process_time()
            for _ in range(session.operator_batches):
                pipe.run()
            each = 1000 * (time.process_time() - begin) / (16 * session.operator_batches)
            spent[name] += [each] if turn > 0 else []
    ms = {name: np.array(values) for name, values in spent.items()}
    rows = [[name, np.median(each), each.min(), each.max()] for name, each in ms.items()]
    workshop.table(rows, ["CPU ms per image", "median", "least", "most"])
    decoding, of_crop = (ms[name] - ms["read"] for name in ("decode", "decode the crop"))
    share = workshop.ratio(decoding / ms["decode, crop, resize"])
    left = workshop.ratio(of_crop / decoding)
    print(f"Decoding, as a share of the graph: {share}; you predicted {guesses['decoding']}")
    print(f"Decoding the crop over decoding the image: {left}; you predicted {guesses['left']}")
    session.expect({"dali.decode.share": 100 * share.median})

# %% [markdown]
# Half of the image costs more than half of the time: a JPEG's codes vary in length, so to reach row 300, a decoder has to unpack all rows before it.
#
# ### When and where to decode
#
# DALI prefetches: it prepares the next batches while you train. With `device="mixed"`, the CPU unpacks the codes and the GPU does the rest. An A100 or H100 also has a JPEG engine, which does both for a share of the images, `hw_decoder_load` ([DALI's documentation](https://docs.nvidia.com/deeplearning/dali/user-guide/docs/operations/nvidia.dali.fn.decoders.image.html)). (The rows for a GPU are untested.) Each pipeline below decodes while your device trains on the cached batch. **Predict:** what does prefetching gain, and how close do the pipelines come to the device's own speed?

# %%
if DALI:

    @pipeline_def(batch_size=batch, **where)
    def decode_on(place, share=None):
        record = fn.readers.tfrecord(**source)
        area = {"random_area": [0.37, 0.75], "random_aspect_ratio": [1, 1]}  # your script's
        jpegs, labels = record["image/encoded"], record["image/class/label"]
        if share is None:  # only the crop
            images = fn.decoders.image_random_crop(jpegs, device=place, **area)
            return fn.resize(images, size=(size, size)), labels
        engine = {"hw_decoder_load": float(share)} if place == "mixed" else {}
        images = fn.decoders.image(jpegs, device=place, **engine)
        return fn.random_resized_crop(images, size=(size, size), **area), labels

    ways = {"CPU": ("cpu", 0), "CPU, only the crop": ("cpu",)}
    if device.type == "cuda":
        ways |= {f"mixed, {x:.0%} on the engine": ("mixed", x) for x in (0, 0.65, 0.9)}
        ways["mixed, only the crop"] = ("mixed",)
    pipes = {"CPU, no prefetch": decode_on("cpu", 0, **no_prefetch)}
    pipes |= {name: decode_on(*way) for name, way in ways.items()}
    for pipe in pipes.values():
        pipe.build()
    loaders = {name: (iter(pipe.run, None), 3 * session.batches, 4) for name, pipe in pipes.items()}
    together = in_turns(loaders, lambda *_: step(*one))
    base = together["CPU, no prefetch"]
    for name, values in together.items():
        gain = "" if values is base else f", gain: {workshop.ratio(np.divide(values, base))}"
        print(f"{name}: {np.median(values):,.0f} images/s with training{gain}")
    fastest = max(ways, key=lambda name: np.median(together[name]))
    over_cpu = workshop.ratio(np.divide(together[fastest], together["CPU"]))
    print(f"The device alone: {target:,.0f} images/s. Fastest: {fastest}; over CPU: {over_cpu}")

# %% [markdown]
# Without prefetching, the times of decoding and training add up; with it, the longer one counts.
#
# **On a GPU**, your script should decode like the row that is fastest *with training*. It need not be the fastest alone: in [NVIDIA's test](https://github.com/NVIDIA/DALI/pull/6366) (EfficientNet), sending 90% instead of 65% to the engine slowed decoding (15.6 to 17.7 ms), but sped up training by 1.8%. DALI has had both defaults: pass yours.
#
# ## A fair comparison
#
# Compare DALI with the `DataLoader` above, and with a second one: simplejpeg decodes, PyTorch resizes. All take your script's crops, resize with antialiasing, and use one thread or process per core. DALI decodes in its fastest way. The `DataLoader`s open files; DALI reads your shards. Both are cached by now. The loaders take **turns**.
#
# **Predict:** how many times as fast as each `DataLoader` is DALI?


# %%
class FasterSigns(Signs):
    def __getitem__(self, i):
        pixels = simplejpeg.decode_jpeg(self.files[i].read_bytes())  # by libjpeg-turbo
        left, top, right, bottom = random_box(pixels.shape[1], pixels.shape[0])
        part = torch.from_numpy(pixels[None, top:bottom, left:right].copy()).permute(0, 3, 1, 2)
        small = interpolate(part, (self.size, self.size), mode="bilinear", antialias=True)
        return small[0].permute(1, 2, 0), i % 12


data_sets = {"DataLoader + Pillow": signs}
if simplejpeg:
    data_sets["DataLoader + simplejpeg"] = FasterSigns(size)
loaders = {name: make_loader(data_set, session.loader_batches, num_workers=cores)
           for name, data_set in data_sets.items()}  # fmt: skip
if DALI:
    pipe = decode_on(*ways[fastest])
    pipe.build()
    loaders["DALI"] = (iter(pipe.run, None), session.loader_batches, 4)  # calls run() endlessly
rates = in_turns(loaders, lambda *_: None)
del loaders
reached = max(np.median(values) for values in rates.values()) / target
title = f"The fastest loader delivers {reached:.0%} of what the device needs"
if DALI:
    over = {n: workshop.ratio(np.divide(rates["DALI"], rates[n])) for n in data_sets}
    for name, gain in over.items():
        print(f"DALI ({fastest}) over {name}: {gain}")
    best = over[max(data_sets, key=lambda name: np.median(rates[name]))]
    title = f"DALI over the faster DataLoader: {best}\n{title}"
    session.note("dali_gain", str(best), "", "DALI's speed over the best DataLoader's")
fig, axes = plt.subplots(figsize=(9, 3.4))
workshop.ranges(axes, rates, "input")
axes.axvline(target, color="black", ls="--")
axes.text(target, -0.7, f"the device needs {target:,.0f} ", ha="right")
axes.set(xlabel=f"images/s on {cores} cores, {size} px: median, and each turn")
fig.suptitle(title, x=0.01, ha="left")
medians = ", ".join(f"{name} {np.median(values):.0f}" for name, values in rates.items())
workshop.figure(fig, alt=f"Images per second by loader: {medians}. The device needs {target:.0f}.")
session.expect({"dali.fast_costs": None})

# %% [markdown]
# On a CPU, all decode the same JPEGs on the same cores with similar libraries: expect a factor below 2, perhaps below 1. If the faster `DataLoader` is about as fast as DALI or faster, keep it. A loader whose bar ends left of the dashed line cannot feed the device: use more cores, store smaller images, or decode on other hardware.
#
# A loader can also be faster because it skips work. To shrink an image well, it averages all pixels that map to one pixel of the result (**antialiasing**); `tf.image.resize` and OpenCV [do not](https://arxiv.org/abs/2104.11222) unless you ask. For a network trained with antialiased images, [that costs accuracy](../docs/troubleshooting.md#accuracy-is-lower-with-dali-images-are-resized-differently): 4 points of top-1 for the small network recorded above.
#
# ## Your turn: one more rung
#
# Even if DALI is no faster here, it is your next rung: notebooks 06 and 08 build on it. Write the two functions that turn your `runs/train.py` into a script that reads your shards with DALI. Keep your script's crop, a square of 70 to 100% of the shorter side, so that both rungs do nearly the same work: `random_area=[0.37, 0.75]` (for 4:3 images), `random_aspect_ratio=[1, 1]`, no mirror. Each rank must read its own part.


# %%
def photos(folder, size, device, rank, ranks):
    """Return two nodes: crops, float32 (3, size, size) from -1 to 1, and labels from 0.

    `folder` has the shards train-* and index/train-*; rank `rank` of `ranks` reads its part.
    """
    # 1. fn.readers.tfrecord, with shard_id, num_shards and random_shuffle
    # 2. fn.decoders.image_random_crop and fn.resize, or what was fastest on your GPU;
    #    device="mixed" if device.type is "cuda"
    # 3. fn.crop_mirror_normalize
    return None  # your code


def endless(loader):
    """Yield (images, labels), epoch after epoch; labels have the shape (batch,)."""
    # DALIClassificationIterator(loader), from nvidia.dali.plugin.pytorch, gives lists with one
    # dictionary per pipeline, {"data": images, "label": labels}; labels are of shape (batch, 1).
    return None  # your code: yield


# %%
if DALI:
    photos, endless = nb05.check(photos, endless)
    gpu = 0 if device.type == "cuda" else None
    pipe = pipeline_def(photos)(
        folder, size, device, 0, 1, batch_size=batch, num_threads=cores, device_id=gpu, seed=0
    )
    images, labels = next(endless(pipe))
    print(tuple(images.shape), images.dtype, images.device, labels[:8].tolist())

# %% [markdown]
# Copy both into `runs/train.py`, with `@pipeline_def` above `photos`, in place of `Photos`, the sampler, the loader and `set_epoch`. Details:
#
# - DALI's imports (also `DALIClassificationIterator`) and, if you use it, `features` belong in the script, too.
# - `--data` is now the folder with the shards; count the classes in its `classes.txt`.
# - The call to `photos` (name its result differently) also takes `batch_size`, `num_threads`, `seed` (the rank) and `device_id` (`None` on a CPU, the local rank on a GPU).
# - Without a size, the iterator never ends, and all batches are full.
#
# Try it before you open the solution:

# %%
workshop.ladder.changes("3_dali")

# %% [markdown]
# Is your edit correct? The next cell runs three small steps in two CPU processes. If you forget to subtract 1 from the labels, the largest has no output of the network, and the processes end with an error. Watch the row *share the samples*: without `shard_id` and `num_shards` the script is just as fast, but every rank reads every image. A ○ means that this short run cannot tell.

# %%
own = session.runs / "train.py"
if not DALI:
    print("Without DALI, your script cannot be tried.")
elif "nvidia.dali" not in own.read_text():
    print("Your runs/train.py does not use DALI yet. Run this cell again after your edit.")
elif workshop.ladder.has_gaps(own):
    print("Your runs/train.py still has gaps. Fill them, then run this cell again.")
else:
    small = ["--image-size", 32, "--batch-size", 16, "--steps", 3, "--warm-up", 0]  # all classes
    print(workshop.try_script(
        own, "--data", folder, *small,
        ranks=2, steps=3, single=False, reseed=False, env={"CUDA_VISIBLE_DEVICES": ""},
    ))  # fmt: skip

# %% [markdown]
# **Predict** DALI's speed-up over rung 2 (headroom bounds it): replace the number. The cell after the race repeats the first measurement with DALI. **Predict** also the loader's speed alone.

# %%
guess = 1.0  # your number
workshop.ladder.predict("3_dali", guess)
found = workshop.ladder.race(
    ["2", "3_dali"], turns=session.turns, ranks=ranks, own="3_dali",  # your script is past rung 2
    image_size=session.image_size, batch_size=session.batch_size, warm_up=1,
    workers=workers, steps=max(session.steps, 2 * workers),  # whole rounds of workers
)  # fmt: skip
for rung, report in found.items():
    rest = report["compute_ms"] + report.get("communication_ms", 0)
    print(f"{rung}: per step, input {report['input_ms']:.1f} ms, the rest {rest:.1f} ms")
if "3_dali" in found and found["3_dali"]["paired"]:
    ratios = np.divide(found["3_dali"]["turns"], found["2"]["turns"])
    print(f"DALI over rung 2: you predicted {guess:g}; measured: {workshop.ratio(ratios)}")
workshop.ladder.figure("3_dali")
if "3_dali" in found:
    shutil.copy(found["3_dali"]["script"], "rung3.py")

# %% language="bash" magic_args="-e"
# test -f rung3.py || exit 0  # without DALI
# grep "loader alone" before.txt
# rn50 workshop try rung3.py --headroom --seconds $SECONDS_EACH -- \
#   --data "$SHARDS" $SIZES --steps 100000 --workers $WORKERS 2>&1

# %% [markdown]
# On a CPU, there is little input time to save, so DALI cannot gain much; if the rest takes clearly longer, DALI's threads compete with it. The figure's square compares DALI on the recorded H100 with rung 1 in 12 workers.
#
# ## Key takeaways
#
# - Measure the headroom, with a cached batch, before you change a loader. Near 1: change nothing. Idle cores: configure workers. Busy cores: a faster decoder, or DALI on a GPU.
# - A pipeline is built once and run without Python. Draw random numbers inside it.
# - Let loaders take turns when you compare them, on the same images and with the same resizing.
# - Defaults differ between loaders, so set crop area, antialiasing, aspect ratio and shuffling explicitly.
#
# Computation is next: notebook 06 asks how few bits it needs.
